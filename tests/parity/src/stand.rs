//! The agent in this process, as a node of a cluster that does not exist: a fake runtime below it,
//! the API server in memory above it.
//!
//! Input: objects of the API server, scripts of the runtime. Output: the agent's writes, its calls
//! to the runtime, its answers on its socket. The whole agent is real, in real time, but pods have
//! no processes. It runs on a thread with a mount namespace of its own, which needs root; volumes
//! are really mounted there, below a folder that is removed with the stand.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use pintle_agent_config as config;
use pintle_agent_config::{Command, Config};
use pintle_cri::fake::FakeRuntime;
use pintle_memory_http::{HttpServer, SharedServer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::oneshot;

/// Stack of a program's first thread, on which the agent usually runs.
const STACK_BYTES: usize = 8 << 20;

/// Options that make a stand differ from the usual one.
pub struct StandSetup {
    /// Name of the node.
    pub node: String,
    /// Fields of KubeletConfiguration on top of the stand's own.
    pub config: Value,
    /// Requests that the API server refuses from the beginning: method, part of a path, message.
    pub refused: Vec<(&'static str, &'static str, &'static str)>,
}

impl Default for StandSetup {
    fn default() -> Self {
        Self { node: "node".to_owned(), config: json!({}), refused: Vec::new() }
    }
}

/// A runtime, an API server, and the agent between them.
pub struct Stand {
    agent: Option<(oneshot::Sender<()>, JoinHandle<Result<()>>)>,
    node: String,
    /// The API server.
    pub api: HttpServer,
    /// The runtime.
    pub runtime: FakeRuntime,
    dir: TempDir,
}

impl Stand {
    /// Starts everything; `None`, printed and counted as skipped, where this user may not mount.
    pub fn start(setup: &StandSetup) -> Option<Self> {
        if !nix::unistd::geteuid().is_root() {
            pintle_testbed::skip("volumes can be mounted by root only");
            return None;
        }
        let dir = TempDir::with_prefix("pintle-stand-").expect("a folder");
        let api = HttpServer::start(SharedServer::new(1)).expect("a port and a thread");
        for (method, path, words) in &setup.refused {
            api.refuse(method, path, 403, words);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let socket = dir.path().join("cri.sock");
        let fake = FakeRuntime::start(&socket);
        let fake = runtime.expect("a tokio runtime").block_on(fake).expect("the fake starts");
        write_files(dir.path(), &api, &fake, &setup.config).expect("the folder can be written");
        let mut stand = Self { agent: None, node: setup.node.clone(), api, runtime: fake, dir };
        stand.start_agent();
        Some(stand)
    }

    /// Starts the agent, which must not run.
    pub fn start_agent(&mut self) {
        assert!(self.agent.is_none(), "one agent at a time");
        let config = self.config();
        let (stop, stopped) = oneshot::channel();
        let run = move || run(config, stopped);
        let thread = thread::Builder::new().name("agent".into()).stack_size(STACK_BYTES).spawn(run);
        self.agent = Some((stop, thread.expect("a thread")));
    }

    /// Ends the agent at once, in the middle of its work.
    pub fn stop_agent(&mut self) {
        let Some((stop, thread)) = self.agent.take() else { return };
        drop(stop);
        match thread.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("the agent: {error:#}"),
            Err(_) => eprintln!("the agent panicked"),
        }
    }

    /// The agent's answer to one of its own commands.
    pub fn ask(&self, path: &str) -> Result<Value> {
        let mut stream = UnixStream::connect(self.dir.path().join("agent.sock"))?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").context("an answer has a body")?;
        serde_json::from_str(body).with_context(|| answer.clone())
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.node
    }

    fn config(&self) -> Config {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let args = [
            "pintle-agent".to_owned(),
            format!("--config={}", path("config.json")),
            format!("--kubeconfig={}", path("kubeconfig.json")),
            format!("--root-dir={}", path("root")),
            format!("--cert-dir={}", path("pki")),
            format!("--pintle-socket={}", path("agent.sock")),
            format!("--hostname-override={}", self.node),
            "--pintle-events=relist".to_owned(),
        ];
        match config::parse(args.into_iter().map(Into::into)) {
            Ok(Command::Run(config)) => *config,
            other => panic!("the stand's configuration: {other:?}"),
        }
    }
}

impl Drop for Stand {
    fn drop(&mut self) {
        self.stop_agent();
    }
}

fn write_files(dir: &Path, api: &HttpServer, fake: &FakeRuntime, over: &Value) -> Result<()> {
    let path = |name: &str| dir.join(name).display().to_string();
    let resolv_conf = path("resolv.conf");
    fs::write(&resolv_conf, "nameserver 192.0.2.53\n")?;
    let mut config = json!({
        "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "containerRuntimeEndpoint": fake.endpoint(), "podLogsDir": path("logs"),
        "enableServer": false, "healthzPort": 0, "readOnlyPort": 0, "resolvConf": resolv_conf,
        "cgroupsPerQOS": false, "enforceNodeAllocatable": [], "cgroupDriver": "cgroupfs",
        "failSwapOn": false, "failCgroupV1": false, "maxPods": 1000, "kubeAPIQPS": 1000,
        "kubeAPIBurst": 1000, "eventRecordQPS": 0, "serializeImagePulls": false,
        // The machine's memory and disk pressure must not affect the stand.
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
        "registryPullQPS": 0, "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
        "authentication": {"webhook": {"enabled": false}}, "authorization": {"mode": "AlwaysAllow"},
    });
    for (field, value) in over.as_object().into_iter().flatten() {
        config[field] = value.clone();
    }
    fs::write(path("config.json"), config.to_string())?;
    Ok(fs::write(path("kubeconfig.json"), api.kubeconfig().to_string())?)
}

/// The agent's thread.
fn run(config: Config, stopped: oneshot::Receiver<()>) -> Result<()> {
    // Threads that the agent starts are born into the same namespace.
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("private mounts")?;
    // Links to logs are made there, whatever podLogsDir is.
    mount(Some("tmpfs"), "/var/log", Some("tmpfs"), MsFlags::empty(), none).context("/var/log")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let tasks = tokio::task::LocalSet::new();
    tasks.block_on(&runtime, async {
        tokio::select! {
            ended = pintle_agent::app::run(config) => ended,
            _ = stopped => Ok(()),
        }
    })
}
