//! A node under test: a private containerd with the agent inside its namespaces.
//!
//! Input: manifests written into the node's folder. Output: the agent's answers on its read-only
//! port, the output of its commands, and the kernel's state. The agent runs with its default ports:
//! every node has a network of its own. The agent is a child of the test, its log is in the node's
//! folder, and `PINTLE_KEEP=1` keeps that folder. `PINTLE_AGENT` names another binary to test, for
//! example a release build or the real kubelet.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
pub use xtask::node::agent::NODE_NAME;
use xtask::node::agent::{self, AgentLayout, HEALTH_PORT, READ_ONLY_PORT};
use xtask::node::{ContainerdNode, Leftovers, NodeKind, http, process};
use xtask::runtime::Version;
use xtask::shell;

use crate::wait::{LONG, until};
use crate::{record, seccomp};

/// Nodes that run at once: the hosts have two cores.
const NODES_MAX: usize = 2;
/// How long a connection inside the node may take.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// How a node differs from the usual one.
pub struct Options {
    /// containerd's release.
    pub version: Version,
    /// Fields of KubeletConfiguration on top of the harness's own.
    pub config: Value,
    /// Further flags of the agent.
    pub flags: Vec<String>,
    /// Environment of the agent.
    pub env: Vec<(String, String)>,
    /// True if the agent starts with the node.
    pub agent: bool,
    /// A name to invoke the agent by, instead of its own.
    pub name: Option<String>,
    /// Another program in place of the agent, for example the kubelet.
    pub program: Option<PathBuf>,
    /// True if systemd makes the cgroups of runtime and agent; `PINTLE_CGROUPS=systemd` has it in
    /// all nodes.
    pub systemd: bool,
    /// True if the kernel lets the agent create an io_uring.
    pub ring: bool,
    /// True if only the node's folder of the machine's disk can be written.
    pub is_guarded: bool,
}

impl Default for Options {
    fn default() -> Self {
        let (flags, env) = (Vec::new(), Vec::new());
        let (config, name, program) = (json!({}), None, None);
        let version = Version::usual().expect("PINTLE_CONTAINERD names a release");
        let (agent, ring) = (true, true);
        let systemd = std::env::var("PINTLE_CGROUPS").is_ok_and(|maker| maker == "systemd");
        let is_guarded = false;
        Self { version, config, flags, env, agent, name, program, systemd, ring, is_guarded }
    }
}

/// A containerd, its network, its folder, and the agent.
pub struct TestNode {
    agent: Option<Child>,
    options: Options,
    layout: AgentLayout,
    /// An agent that records was up.
    recorded: bool,
    // Dropped after the agent's end and before the turn is passed on.
    node: ContainerdNode,
    _turn: NodeTurn,
}

impl TestNode {
    /// The usual node: containerd 2.1, or the release that `PINTLE_CONTAINERD` names, and the agent
    /// with an empty manifest folder.
    pub fn usual() -> Self {
        Self::start(Options::default())
    }

    /// Starts a node; panics with the reason when it cannot, because no test can continue.
    pub fn start(options: Options) -> Self {
        let turn = NodeTurn::take();
        let kind = NodeKind { by_systemd: options.systemd, is_guarded: options.is_guarded };
        let node = ContainerdNode::start_with(options.version, kind);
        let node = node.expect("a private containerd starts");
        let layout = AgentLayout::of(&node);
        layout.write(&node, &options.config).expect("the node's folder can be written");
        let mut node = Self { agent: None, options, layout, recorded: false, node, _turn: turn };
        if node.options.agent {
            node.start_agent();
        }
        node
    }

    /// Starts the agent and waits for its health port.
    pub fn start_agent(&mut self) {
        self.spawn_agent().expect("the agent starts");
        until(LONG, "the agent is healthy", || {
            if let Some(status) = self.agent_ended() {
                panic!("the agent ended: {status}\n{}", self.agent_log());
            }
            let answer = self.get(HEALTH_PORT, "/healthz")?;
            ensure!(answer.status == 200, "{answer:?}");
            Ok(())
        });
        // The kubelet, which `PINTLE_AGENT` may name, has no such folder.
        self.recorded |= self.layout.root().join("pintle").exists();
    }

    /// The agent keeps no record, so there is nothing to replay at the end.
    pub fn skip_record(&mut self) {
        self.recorded = false;
    }

    /// Further flags for the next start of the agent.
    pub fn add_flags(&mut self, flags: Vec<String>) {
        self.options.flags.extend(flags);
    }

    /// Starts the agent and waits for nothing.
    pub fn spawn_agent(&mut self) -> Result<()> {
        assert!(self.agent.is_none(), "one agent per node");
        let log = self.node.log("agent")?;
        let program = self.program().context("give the agent another name")?;
        let mut cmd = self.layout.agent(&self.node, &program);
        cmd.args(&self.options.flags).envs(self.options.env.iter().cloned());
        cmd.stdout(log.try_clone()?).stderr(log);
        let spawned = match self.options.ring {
            true => cmd.spawn(),
            false => seccomp::spawn_without_io_uring(&mut cmd),
        };
        self.agent = Some(spawned.context("start the agent")?);
        Ok(())
    }

    /// The agent's program, or a link to it that has the wanted name.
    fn program(&self) -> Result<PathBuf> {
        if let Some(program) = &self.options.program {
            return Ok(program.clone());
        }
        let Some(name) = &self.options.name else { return Ok(agent_binary().to_owned()) };
        let link = self.dir().join("bin").join(name);
        if !link.is_symlink() {
            fs::create_dir_all(self.dir().join("bin"))?;
            symlink(agent_binary(), &link)?;
        }
        Ok(link)
    }

    /// The agent's status once it has ended by itself, and the end of its log.
    pub fn agent_refuses(&mut self) -> (ExitStatus, String) {
        self.spawn_agent().expect("the agent starts");
        let status = self.wait_agent();
        (status, self.agent_log())
    }

    fn agent_ended(&mut self) -> Option<ExitStatus> {
        self.agent.as_mut()?.try_wait().expect("a child can be waited for")
    }

    /// The agent's pid.
    pub fn agent_pid(&self) -> i32 {
        let child = self.agent.as_ref().expect("the agent runs");
        i32::try_from(child.id()).expect("a pid fits")
    }

    /// Sends SIGTERM; returns the agent's exit status and the time that it took to end.
    pub fn stop_agent(&mut self) -> (ExitStatus, Duration) {
        let begin = Instant::now();
        process::signal(self.agent_pid(), Signal::SIGTERM);
        let status = self.wait_agent();
        (status, begin.elapsed())
    }

    /// SIGKILL: the crash that may come at any instruction.
    pub fn kill_agent(&mut self) {
        process::signal(self.agent_pid(), Signal::SIGKILL);
        self.wait_agent();
    }

    /// Waits until the agent ends.
    pub fn wait_agent(&mut self) -> ExitStatus {
        let status = until(LONG, "the agent ends", || {
            self.agent_ended().ok_or_else(|| anyhow!("it still runs\n{}", self.agent_log()))
        });
        self.agent = None;
        status
    }

    /// The end of the agent's log, for messages.
    pub fn agent_log(&self) -> String {
        let text = fs::read_to_string(self.dir().join("agent.log")).unwrap_or_default();
        shell::tail(&text, 30)
    }

    /// Writes a manifest as a whole: the agent never sees half of it.
    pub fn put(&self, file: &str, manifest: &Value) {
        self.put_text(file, &serde_json::to_string_pretty(manifest).expect("JSON"));
    }

    /// Writes any text as a manifest, also one that is no pod.
    pub fn put_text(&self, file: &str, text: &str) {
        let hidden = self.manifests().join(format!(".{file}.new"));
        fs::write(&hidden, text).expect("the manifest folder can be written");
        fs::rename(&hidden, self.manifests().join(file)).expect("renamed within one folder");
    }

    /// Removes a manifest.
    pub fn remove(&self, file: &str) {
        fs::remove_file(self.manifests().join(file)).expect("the manifest is there");
    }

    /// The pods that the agent serves.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        let answer = self.get(READ_ONLY_PORT, "/pods")?;
        ensure!(answer.status == 200, "/pods: {answer:?}");
        let list: List<Pod> = serde_json::from_str(&answer.body).context("/pods is a PodList")?;
        Ok(list.items)
    }

    /// One pod by the name in its manifest (the agent appends the node's name).
    pub fn pod(&self, name: &str) -> Result<Pod> {
        let full = format!("{name}-{NODE_NAME}");
        let is_it = |p: &Pod| p.metadata.name.as_deref() == Some(&full);
        self.pods()?.into_iter().find(is_it).ok_or_else(|| anyhow!("no pod {full} on /pods"))
    }

    /// Waits until the pod satisfies `check`, and returns it; the message shows its last status.
    pub fn pod_until(&self, name: &str, what: &str, check: impl Fn(&Pod) -> bool) -> Pod {
        until(LONG, &format!("pod {name}: {what}"), || {
            let pod = self.pod(name)?;
            if check(&pod) {
                return Ok(pod);
            }
            bail!("{}", serde_json::to_string_pretty(&pod.status).unwrap_or_default())
        })
    }

    /// Waits until the pod is gone from /pods.
    pub fn gone(&self, name: &str) {
        let full = format!("{name}-{NODE_NAME}");
        until(LONG, &format!("pod {name} is gone"), || {
            let pods = self.pods()?;
            let it = pods.iter().find(|p| p.metadata.name.as_deref() == Some(&full));
            it.map_or(Ok(()), |p| bail!("{}", serde_json::to_string(&p.status)?))
        });
    }

    /// The metrics page as text.
    pub fn metrics(&self) -> Result<String> {
        Ok(self.get(READ_ONLY_PORT, "/metrics")?.body)
    }

    /// GET from a port of the node.
    pub fn get(&self, port: u16, path: &str) -> Result<http::NodeHttpReply> {
        self.get_from(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), path)
    }

    /// GET from an address in the node's network, for example a pod's.
    pub fn get_from(&self, address: SocketAddr, path: &str) -> Result<http::NodeHttpReply> {
        http::get(self.connect(address)?, path)
    }

    /// A connection inside the node's network.
    pub fn connect(&self, address: SocketAddr) -> Result<TcpStream> {
        self.node.connect(address, CONNECT_WAIT)
    }

    /// Output of the agent's own command line, such as `explain POD`.
    pub fn cli(&self, args: &[&str]) -> Result<String> {
        shell::capture(&mut self.layout.ask(&self.node, agent_binary(), args))
    }

    /// Freezes or thaws the shim of a sandbox, and returns its pid.
    pub fn signal_shim(&self, sandbox_id: &str, signal: Signal) -> i32 {
        let shims = self.node.shims();
        let shim = shims.iter().find(|s| s.sandbox_id == sandbox_id);
        let pid = shim.unwrap_or_else(|| panic!("no shim of {sandbox_id} in {shims:?}")).pid;
        process::signal(pid, signal);
        pid
    }

    /// Pid of a container's first process; the id may carry the `containerd://` of a pod's status.
    pub fn container_pid(&self, container_id: &str) -> Option<i32> {
        self.node.container_pid(container_id.trim_start_matches("containerd://"))
    }

    /// Resources that pods left behind.
    pub fn leftovers(&self) -> Leftovers {
        let found = self.node.leftovers(&self.root(), &self.pod_logs());
        found.expect("the node can be looked at")
    }

    /// Waits until nothing of any pod is left.
    pub fn clean(&self) {
        until(LONG, "nothing of the pods is left", || {
            let left = self.leftovers();
            if left.is_empty() { Ok(()) } else { bail!("{left:#?}") }
        });
    }

    /// The private containerd.
    pub fn runtime_node(&self) -> &ContainerdNode {
        &self.node
    }

    /// The private containerd, to be stopped and started.
    pub fn runtime_node_mut(&mut self) -> &mut ContainerdNode {
        &mut self.node
    }

    /// The node's folder.
    pub fn dir(&self) -> &Path {
        self.node.dir()
    }

    /// The agent's `--root-dir`.
    pub fn root(&self) -> PathBuf {
        self.layout.root()
    }

    /// The manifest folder.
    pub fn manifests(&self) -> PathBuf {
        self.layout.manifests()
    }

    /// The agent's podLogsDir.
    pub fn pod_logs(&self) -> PathBuf {
        self.layout.pod_logs()
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            if thread::panicking() {
                eprintln!("end of the agent's log:\n{}", self.agent_log());
                eprintln!("end of containerd's log:\n{}", self.node.containerd_log());
            }
            let _ = agent.kill();
            let _ = agent.wait();
        }
        if self.recorded && !thread::panicking() {
            record::check_replay(&self.layout.root());
        }
    }
}

/// The agent's program: `PINTLE_AGENT`, else this workspace's, built if it is not up to date.
pub fn agent_binary() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        if let Some(path) = std::env::var_os("PINTLE_AGENT") {
            return path.into();
        }
        agent::build("pintle-agent").expect("the agent builds")
    })
}

/// One of the `NODES_MAX` places; passed on when dropped.
struct NodeTurn;

static RUNNING: Mutex<usize> = Mutex::new(0);
static FREED: Condvar = Condvar::new();

impl NodeTurn {
    fn take() -> Self {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |running: &mut usize| *running >= NODES_MAX;
        let running = FREED.wait_while(running, full);
        *running.unwrap_or_else(PoisonError::into_inner) += 1;
        Self
    }
}

impl Drop for NodeTurn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        FREED.notify_one();
    }
}
