//! An API server, its store, a kube-scheduler and our program beside them.
//!
//! Input: the scheduler's configuration. Output: clients in the cluster's network, and the report
//! that our program prints when it is stopped. All of it ends with the stand.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pintle_api::{Access, ClientOptions};
use pintle_testbed::wait::{LONG, until};
use serde_json::{Value, json};
use xtask::cluster::Cluster;
use xtask::node::agent::build;
use xtask::shell;

/// Port of kube-scheduler, and of ours in its place.
pub const PORT: u16 = 10259;

/// A cluster without nodes of its own.
pub struct SchedulerStand {
    cluster: Cluster,
    shadow: Option<Child>,
}

/// A process of our scheduler; it ends when this is dropped.
pub struct Ours(Child);

impl Ours {
    /// Its process.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Returns whether it still runs.
    pub fn runs(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        // A process that has ended stays as a zombie until it is waited for.
        stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
    }

    /// Sends it a signal; whether it ended as it should.
    pub fn end(mut self, with: Signal) -> bool {
        let pid = i32::try_from(self.0.id()).expect("a pid");
        kill(Pid::from_raw(pid), with).expect("it is there");
        self.0.wait().expect("a child can be waited for").success()
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl SchedulerStand {
    /// Starts it with upstream's scheduler.
    pub fn start(purpose: &str, scheduler: &Value) -> Self {
        let stand = Self::without_scheduler(purpose, scheduler);
        stand.cluster.start_scheduler().expect("the scheduler starts");
        stand
    }

    /// Starts it without a scheduler, but writes the configuration of one.
    pub fn without_scheduler(purpose: &str, scheduler: &Value) -> Self {
        Self::with_api_server(purpose, scheduler, &[])
    }

    /// The same with flags of the API server.
    pub fn with_api_server(purpose: &str, scheduler: &Value, flags: &[&str]) -> Self {
        let cluster = Cluster::of_this_run(purpose).expect("a cluster's name");
        cluster.down().expect("an old cluster can be removed");
        cluster.add_api_server_flags(flags).expect("its flags");
        let stand = Self { cluster, shadow: None };
        stand.cluster.up_for_scheduler(scheduler).expect("the cluster starts");
        stand
    }

    /// Runs `work` with clients of the administrator, in the cluster's network.
    pub fn with_client<T: Send>(
        &self,
        work: impl AsyncFnOnce(kube::Client) -> Result<T> + Send,
    ) -> T {
        let path = self.cluster.layout().kubeconfig("admin");
        let run = || -> Result<T> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let access = Access::read(&path)?;
                let user_agent = "test".to_owned();
                work(access.client(ClientOptions { user_agent, ..Default::default() })).await
            })
        };
        self.cluster.in_control_network(run).expect("a thread").expect("the API server answers")
    }

    /// Runs `work` on a thread in the cluster's network; threads and sockets made there stay there.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.cluster.in_control_network(work).expect("a thread")
    }

    /// Starts `pintle-scheduler run` with the rights of kube-scheduler.
    pub fn start_ours(&self, args: &[&str]) -> Ours {
        self.start_program(&program(), args)
    }

    /// Starts the scheduler of the example, which has plugins of its own.
    pub fn start_example(&self, args: &[&str]) -> Ours {
        self.start_program(&build("pintle-own-plugins").expect("the example builds"), args)
    }

    /// Lets kube-scheduler's user do more than it usually may.
    pub fn give_rights(&self, rules: &Value) {
        self.give("more", "system:kube-scheduler", rules);
    }

    fn start_program(&self, program: &Path, args: &[&str]) -> Ours {
        let mut cmd = self.cluster.control_command(program).expect("a command");
        let log = File::options().create(true).append(true).open(self.log_of("ours"));
        let config = self.cluster.layout().scheduler_config();
        cmd.arg(format!("--config={}", config.display())).args(args);
        cmd.stderr(log.expect("a log"));
        Ours(cmd.spawn().expect("it starts"))
    }

    /// The file with which a scheduler finds the API server.
    pub fn credentials(&self) -> PathBuf {
        self.cluster.layout().kubeconfig("scheduler")
    }

    /// The arguments with which it serves on a port of the cluster's network.
    pub fn serving(&self) -> Vec<String> {
        let layout = self.cluster.layout();
        let credentials = layout.kubeconfig("scheduler").display().to_string();
        vec![
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={PORT}"),
            format!("--cert-dir={}", layout.dir().join("serving").display()),
            format!("--client-ca-file={}", layout.pki("ca.crt").display()),
            format!("--authentication-kubeconfig={credentials}"),
            format!("--authorization-kubeconfig={credentials}"),
        ]
    }

    /// Our scheduler's answer on its port, to the owner of this certificate or to an anonymous
    /// client.
    pub fn get(&self, path: &str, user: Option<&str>) -> String {
        self.get_from(PORT, path, user)
    }

    /// Answer of the server on a port.
    pub fn get_from(&self, port: u16, path: &str, user: Option<&str>) -> String {
        self.get_with(port, path, user, "")
    }

    /// The same, with lines of a request's head.
    pub fn get_with(&self, port: u16, path: &str, user: Option<&str>, head: &str) -> String {
        let openssl = shell::which(&["openssl"]).expect("openssl");
        let mut cmd = self.cluster.control_command(&openssl).expect("a command");
        cmd.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
        if let Some(user) = user {
            let layout = self.cluster.layout();
            cmd.arg("-cert").arg(layout.pki(&format!("{user}.crt")));
            cmd.arg("-key").arg(layout.pki(&format!("{user}.key")));
        }
        let head = format!("GET {path} HTTP/1.1\r\nHost: s\r\nConnection: close\r\n{head}\r\n");
        cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = cmd.spawn().expect("it starts");
        // Kept open: openssl would close the connection at the end of its input.
        let mut input = child.stdin.take().expect("piped");
        input.write_all(head.as_bytes()).expect("it reads");
        let answer = child.wait_with_output().expect("an answer");
        drop(input);
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    /// Requests to the API server, a line each.
    pub fn audit(&self) -> String {
        fs::read_to_string(self.cluster.layout().audit_log()).expect("an audit log")
    }

    /// Grants `shadow` and `ask` the read rights that they need.
    pub fn give_shadow_rights(&self) {
        let rules = json!([
            {"apiGroups": [""], "verbs": ["list", "watch"], "resources": ["pods", "nodes",
                "namespaces", "services", "replicationcontrollers", "persistentvolumes",
                "persistentvolumeclaims"]},
            {"apiGroups": ["storage.k8s.io"], "verbs": ["list", "watch"],
                "resources": ["storageclasses", "csinodes", "csidrivers",
                    "csistoragecapacities", "volumeattachments"]},
            {"apiGroups": ["resource.k8s.io"], "verbs": ["list", "watch"],
                "resources": ["resourceclaims", "resourceslices", "deviceclasses"]},
            {"apiGroups": [""], "verbs": ["get"], "resources": ["pods"]},
            {"apiGroups": ["apps"], "verbs": ["list", "watch"],
                "resources": ["replicasets", "statefulsets"]},
            {"apiGroups": ["policy"], "verbs": ["list", "watch"],
                "resources": ["poddisruptionbudgets"]},
        ]);
        self.give("pintle-shadow", "pintle-shadow", &rules);
    }

    /// Gives a user rights under a name.
    fn give(&self, as_name: &str, user: &str, rules: &Value) {
        let rights = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": as_name}, "rules": rules,
        });
        let given = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": as_name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                "name": as_name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User",
                "name": user}],
        });
        for (name, object) in [("role", rights), ("binding", given)] {
            let path = self.file(&format!("{name}.json"), &object);
            self.cluster.kubectl(&["apply", "-f", &path.to_string_lossy()]).expect("taken");
        }
    }

    /// Starts `pintle-scheduler shadow` with credentials that may only read.
    pub fn start_shadow(&mut self) {
        self.give_shadow_rights();
        let mut cmd = self.cluster.control_command(&program()).expect("a command");
        let log = File::create(self.log()).expect("a log");
        cmd.arg("shadow").arg("--kubeconfig").arg(self.cluster.layout().kubeconfig("shadow"));
        cmd.arg("--config").arg(self.cluster.layout().scheduler_config());
        cmd.arg("--report").arg(self.report()).stderr(log);
        self.shadow = Some(cmd.spawn().expect("it starts"));
        until(LONG, "the shadow follows", || {
            let log = fs::read_to_string(self.log())?;
            ensure!(log.contains("following"), "{log}");
            Ok(())
        });
    }

    /// Output of a command of our program, with read-only credentials.
    pub fn ask(&self, args: &[&str]) -> String {
        let mut cmd = self.cluster.control_command(&program()).expect("a command");
        cmd.args(args).arg("--kubeconfig").arg(self.cluster.layout().kubeconfig("shadow"));
        shell::capture(&mut cmd).expect("an answer")
    }

    /// A file in the cluster's folder.
    pub fn file(&self, name: &str, object: &Value) -> PathBuf {
        let path = self.cluster.layout().dir().join(name);
        fs::write(&path, object.to_string()).expect("written");
        path
    }

    /// Ends our program; returns its report.
    pub fn end_shadow(&mut self) -> Value {
        let mut child = self.shadow.take().expect("it runs");
        let pid = i32::try_from(child.id()).expect("a pid");
        kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it is there");
        let status = child.wait().expect("a child can be waited for");
        assert!(status.success(), "{status}: {}", self.log_end());
        let text = fs::read_to_string(self.report()).expect("a report");
        serde_json::from_str(&text).expect("JSON")
    }

    /// The end of our program's log.
    pub fn log_end(&self) -> String {
        shell::tail(&fs::read_to_string(self.log()).unwrap_or_default(), 40)
    }

    /// The end of our scheduler's log.
    pub fn ours_log_end(&self) -> String {
        shell::tail(&fs::read_to_string(self.log_of("ours")).unwrap_or_default(), 40)
    }

    /// The shadow's resident memory in KiB.
    pub fn resident_kib(&self) -> u64 {
        let pid = self.shadow.as_ref().expect("it runs").id();
        let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|l| l.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }

    fn log(&self) -> PathBuf {
        self.log_of("shadow")
    }

    fn log_of(&self, part: &str) -> PathBuf {
        self.cluster.layout().log(part)
    }

    fn report(&self) -> PathBuf {
        self.cluster.layout().dir().join("report.json")
    }
}

impl Drop for SchedulerStand {
    fn drop(&mut self) {
        if let Some(mut child) = self.shadow.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::env::var_os("PINTLE_KEEP").is_some() {
            return;
        }
        if let Err(error) = self.cluster.down() {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// Our program: `PINTLE_SCHEDULER`, else this workspace's, built if it is not up to date.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("PINTLE_SCHEDULER") {
        return path.into();
    }
    build("pintle-scheduler").expect("the scheduler builds")
}
