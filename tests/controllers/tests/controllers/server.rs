//! An API server with its store, and controller managers beside it, ours and upstream's.
//!
//! Input: arguments of managers. Output: clients in the cluster's network, answers of a manager's
//! port, logs and exit codes. Bounds: all processes of a test end with the server. The cases share
//! at most one server and have namespaces of their own; it lives as long as a test uses it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use anyhow::{Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use pintle_api::{Access, ClientOptions};
use pintle_testbed::wait::{LONG, until};
use serde_json::Value;
use xtask::cluster::Cluster;
use xtask::cluster::controllers::LOOPS;
use xtask::node::agent::build;
use xtask::shell;
use xtask::upstream::Program;

use crate::kit::NamespaceClient;

/// Port of a controller manager.
pub const PORT: u16 = 10257;

/// A cluster without nodes and controllers of its own.
pub struct ControlPlane {
    cluster: Cluster,
    /// A manager for as long as the server.
    manager: Option<ManagerProcess>,
}

/// A controller manager; it ends with this.
pub struct ManagerProcess {
    child: Child,
    log: PathBuf,
}

impl ManagerProcess {
    /// How it ended; nothing while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("it is there");
    }

    /// Sends it a signal, unless it has ended, and waits for its end.
    pub fn end(mut self, with: Signal) -> ExitStatus {
        if let Some(status) = self.ended() {
            return status;
        }
        self.signal(with);
        self.child.wait().expect("a child can be waited for")
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of its log.
    pub fn log_end(&self) -> String {
        shell::tail(&self.log(), 30)
    }
}

impl Drop for ManagerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

static SHARED: Mutex<Weak<ControlPlane>> = Mutex::new(Weak::new());

impl ControlPlane {
    /// Starts it without a manager, and builds the one under test.
    pub fn start(purpose: &str) -> Self {
        let _ = program();
        let cluster = Cluster::of_this_run(purpose).expect("a cluster's name");
        cluster.down().expect("an old cluster can be removed");
        let server = Self { cluster, manager: None };
        server.cluster.up_without_nodes("controllers").expect("the cluster starts");
        server
    }

    /// The server of all cases, with the manager under test.
    pub fn shared() -> Arc<Self> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let mut server = Self::start("cases");
        let mut args = server.args();
        // Cases run side by side, more at once than a user has.
        args.extend(
            ["--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400"]
                .map(str::to_owned),
        );
        server.manager = Some(server.start_tested("manager", &args));
        server.wait_healthy(PORT);
        let server = Arc::new(server);
        *shared = Arc::downgrade(&server);
        server
    }

    /// The end of the log of the manager of all cases.
    pub fn manager_log_end(&self) -> String {
        self.manager.as_ref().map(ManagerProcess::log_end).unwrap_or_default()
    }

    /// The arguments that any manager has here, for the controllers that pintle has.
    pub fn args(&self) -> Vec<String> {
        let mut args = self.cluster.manager_args();
        args.push(format!("--controllers={}", LOOPS.join(",")));
        args
    }

    /// Starts the program under test.
    pub fn start_tested(&self, name: &str, args: &[String]) -> ManagerProcess {
        self.start_program(&program(), name, args)
    }

    /// Starts upstream's.
    pub fn start_upstream(&self, name: &str, args: &[String]) -> ManagerProcess {
        let folder = Program::Components.ensure().expect("upstream's programs are built");
        self.start_program(&folder.join("kube-controller-manager"), name, args)
    }

    fn start_program(&self, program: &Path, name: &str, args: &[String]) -> ManagerProcess {
        let mut cmd = self.cluster.control_command(program).expect("a command");
        let log = self.cluster.layout().log(name);
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        cmd.args(args).stdout(file.try_clone().expect("a log")).stderr(file);
        ManagerProcess { child: cmd.spawn().expect("it starts"), log }
    }

    /// Exit status and output of a manager with wrong arguments.
    pub fn refusal(&self, args: &[String]) -> (ExitStatus, String) {
        let mut cmd = self.cluster.control_command(&program()).expect("a command");
        cmd.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let out = cmd.output().expect("it starts");
        (out.status, String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Waits until the manager on this port is healthy.
    pub fn wait_healthy(&self, port: u16) {
        until(LONG, "the manager is healthy", || {
            let answer = self.answer(port, "/healthz", None);
            ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            Ok(())
        });
    }

    /// The identity in the lease of the managers.
    pub fn holder(&self) -> Value {
        self.with_client(async |client| {
            let requests = NamespaceClient::new(client, "kube-system".to_owned());
            let lease = requests.get("Lease", "kube-controller-manager").await?;
            Ok(lease["spec"]["holderIdentity"].clone())
        })
    }

    /// A file in the cluster's folder.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.cluster.layout().dir().join(name);
        fs::write(&path, text).expect("written");
        path
    }

    /// A key or certificate of the cluster.
    pub fn pki(&self, name: &str) -> String {
        self.cluster.layout().pki(name).display().to_string()
    }

    /// Runs `work` with a client of the administrator, in the cluster's network.
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

    /// A manager's answer on its port, to the owner of this certificate or to an anonymous client.
    pub fn answer(&self, port: u16, path: &str, user: Option<&str>) -> String {
        let openssl = shell::which(&["openssl"]).expect("openssl");
        let mut cmd = self.cluster.control_command(&openssl).expect("a command");
        cmd.args(["s_client", "-quiet", "-connect", &format!("127.0.0.1:{port}")]);
        if let Some(user) = user {
            cmd.arg("-cert").arg(self.pki(&format!("{user}.crt")));
            cmd.arg("-key").arg(self.pki(&format!("{user}.key")));
        }
        cmd.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = cmd.spawn().expect("it starts");
        // Kept open: a client that has sent all its input would be cut off.
        let mut input = child.stdin.take().expect("piped");
        let head = format!("GET {path} HTTP/1.1\r\nHost: s\r\nConnection: close\r\n\r\n");
        // Without a listener openssl ends before it reads.
        let _ = input.write_all(head.as_bytes());
        let answer = child.wait_with_output().expect("an answer");
        drop(input);
        String::from_utf8_lossy(&answer.stdout).into_owned()
    }

    /// Write requests to the API server, a line each.
    pub fn audit(&self) -> String {
        fs::read_to_string(self.cluster.layout().audit_log()).unwrap_or_default()
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.manager = None;
        if std::env::var_os("PINTLE_KEEP").is_some() {
            return;
        }
        if let Err(error) = self.cluster.down() {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// The program under test: `PINTLE_CONTROLLERS`, else this workspace's, built if it is not up to
/// date.
fn program() -> PathBuf {
    if let Some(path) = std::env::var_os("PINTLE_CONTROLLERS") {
        return path.into();
    }
    build("pintle-controllers").expect("the controllers build")
}
