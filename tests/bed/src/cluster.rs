//! A cluster under test: a real control plane, and one node with the agent, or more.
//!
//! Input: objects for the API server. Output: the API server's objects, and the node's state. A
//! test has the cluster for itself; at its end its pods are removed, stopped processes run again,
//! and the agent has its own kubeconfig. The cluster is the running one that `PINTLE_TEST_CLUSTER`
//! names, or one that is started for this test only; the latter, too, when a test needs more nodes
//! than the running one has. `PINTLE_AGENT` names another binary to test.

pub mod containers;
pub mod port;
pub mod proxy;
pub mod swap;

use std::cell::{Cell, RefCell};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};
use xtask::cluster::node::agent_process;
use xtask::cluster::{Agent, Cluster, control};
use xtask::node::Leftovers;
use xtask::shell;

use self::proxy::{Protocol, Proxy};
use crate::node::agent_binary;
use crate::wait::{LONG, until};

/// Names a running cluster.
const NAMED: &str = "PINTLE_TEST_CLUSTER";
/// Name of a cluster that is started for one test, beside the cluster that other tests share.
const OWN: &str = "own";
/// The node; the only one for most tests.
pub const NODE: &str = "n1";
/// The node's agent, among the cluster's processes.
pub const AGENT: &str = "n1-agent";

static TURN: Mutex<()> = Mutex::new(());

/// The cluster, for one test.
pub struct TestCluster {
    cluster: Cluster,
    is_own: bool,
    /// The agent's original kubeconfig.
    kubeconfig: String,
    /// True if the agent's configuration has been changed.
    configured: Cell<bool>,
    /// True if the cluster's own pods have been removed from the nodes.
    emptied: Cell<bool>,
    /// Shims that an earlier test left: containerd loses some if their caller is killed.
    stale_shims: RefCell<Vec<String>>,
    _turn: MutexGuard<'static, ()>,
}

impl TestCluster {
    /// Waits for its turn; panics with the reason when there is no cluster, because no test can
    /// go on.
    pub fn take() -> Self {
        Self::with_nodes(1)
    }

    /// The same with at least this number of nodes.
    pub fn with_nodes(count: usize) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |name: &str| Cluster::named(name).expect("a cluster's name");
        let given = std::env::var(NAMED).ok().map(|name| named(&name));
        if let Some(given) = &given {
            assert!(given.is_up(), "{NAMED} names a cluster that is not up");
        }
        let given = given.filter(|given| given.nodes().len() >= count);
        let is_own = given.is_none();
        let cluster = given.unwrap_or_else(|| start(&vec![ours(); count]));
        Self::on(cluster, is_own, turn)
    }

    /// A cluster of its own, with the agent on [`NODE`] and the kubelet on the second node.
    pub fn beside_the_kubelet() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        Self::on(start(&[ours(), Agent::Kubelet]), true, turn)
    }

    fn on(cluster: Cluster, is_own: bool, turn: MutexGuard<'static, ()>) -> Self {
        let kubeconfig = fs::read_to_string(cluster.layout().kubeconfig(NODE)).expect("a file");
        let test = Self {
            cluster,
            is_own,
            kubeconfig,
            configured: Cell::new(false),
            emptied: Cell::new(false),
            stale_shims: RefCell::default(),
            _turn: turn,
        };
        test.node_until("is ready", is_ready);
        // The API server accepts no pod before the controllers have created its service account.
        let account = ["get", "serviceaccount", "default"];
        until(LONG, "the default account is there", || test.kubectl(&account));
        test
    }

    /// The cluster itself: its parts can be stopped, killed and started.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The process of the agent.
    pub fn agent_pid(&self) -> i32 {
        self.cluster.pid(AGENT).expect("the agent runs")
    }

    /// Kills the agent and starts it again; pods keep running.
    pub fn restart_agent(&self) {
        self.cluster.kill(AGENT).expect("the agent dies");
        self.cluster.start(AGENT).expect("the agent starts");
    }

    /// Restarts the agent with these fields in its configuration, until the end of the test.
    pub fn configure_agent(&self, fields: &Value) {
        self.configured.set(true);
        self.cluster.configure_agent(NODE, fields).expect("written");
        self.restart_agent();
    }

    /// The same with these flags as well.
    pub fn configure_agent_with(&self, fields: &Value, flags: &[&str]) {
        self.cluster.flag_agent(NODE, flags).expect("written");
        self.configure_agent(fields);
    }

    /// The agent's original kubeconfig.
    pub fn kubeconfig(&self) -> Value {
        serde_json::from_str(&self.kubeconfig).expect("the harness wrote it")
    }

    /// Restarts the agent with this kubeconfig, until the test ends.
    pub fn use_kubeconfig(&self, kubeconfig: &Value) {
        self.write_kubeconfig(&kubeconfig.to_string()).expect("written");
        self.restart_agent();
    }

    /// Restarts the agent with its own kubeconfig, if it uses another one or does not run.
    pub fn use_own_kubeconfig(&self) {
        self.restore_agent().expect("the agent has its own kubeconfig");
    }

    fn restore_agent(&self) -> Result<()> {
        let kubeconfig = self.cluster.layout().kubeconfig(NODE);
        if fs::read_to_string(kubeconfig).ok().as_deref() != Some(self.kubeconfig.as_str()) {
            self.write_kubeconfig(&self.kubeconfig)?;
            self.cluster.kill(AGENT)?;
        }
        if self.configured.replace(false) {
            self.cluster.configure_agent(NODE, &json!({}))?;
            self.cluster.flag_agent(NODE, &[])?;
            self.cluster.kill(AGENT)?;
        }
        if self.cluster.pid(AGENT).is_none() {
            self.cluster.start(AGENT)?;
        }
        Ok(())
    }

    fn write_kubeconfig(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.cluster.layout().kubeconfig(NODE), text)?)
    }

    /// Restarts the agent with a proxy between it and the API server, and waits until the API
    /// server gets a request of the agent.
    pub fn use_proxy(&self, protocol: Protocol) -> Proxy {
        let proxy = Proxy::start(&self.cluster, protocol).expect("the proxy starts");
        let mut kubeconfig = self.kubeconfig();
        kubeconfig["clusters"][0]["cluster"]["server"] = proxy.server().into();
        self.use_kubeconfig(&kubeconfig);
        until(LONG, "the agent uses the proxy", || {
            ensure!(!proxy.counts().is_empty(), "no request so far");
            Ok(())
        });
        proxy
    }

    /// Waits until the agent renews its lease after this call.
    pub fn heard_of(&self) {
        let lease = || {
            let args = ["get", "lease", NODE, "-n", "kube-node-lease", "-o", "json"];
            let lease: Value = serde_json::from_str(&self.kubectl(&args)?)?;
            Ok(lease["spec"]["renewTime"].to_string())
        };
        let before = until(LONG, "there is a lease", lease);
        until(LONG, "the lease is renewed", || {
            ensure!(lease()? != before, "still that of {before}");
            Ok(())
        });
    }

    /// Creates or changes an object.
    pub fn apply(&self, object: &Value) {
        self.send("apply", object).expect("the API server takes the object");
    }

    /// Creates an object; one of its name must not be there.
    pub fn create(&self, object: &Value) -> Result<()> {
        self.send("create", object)
    }

    fn send(&self, verb: &str, object: &Value) -> Result<()> {
        let mut cmd = self.cluster.kubectl_command()?;
        cmd.args([verb, "-f", "-"]).stdin(Stdio::piped());
        let mut child = cmd.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().expect("piped").write_all(object.to_string().as_bytes())?;
        let out = child.wait_with_output()?;
        ensure!(out.status.success(), "{verb}: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    /// Runs kubectl and returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.cluster.kubectl(args)
    }

    /// The pod as the API server has it; `None` when there is none.
    pub fn pod(&self, name: &str) -> Result<Option<Pod>> {
        let text = self.kubectl(&["get", "pod", name, "-o", "json", "--ignore-not-found"])?;
        if text.trim().is_empty() {
            return Ok(None);
        }
        serde_json::from_str(&text).context("read the pod").map(Some)
    }

    /// The pods of the tests' namespace, as the API server has them.
    pub fn pods(&self) -> Result<Vec<Pod>> {
        let mut list: Value = serde_json::from_str(&self.kubectl(&["get", "pods", "-o", "json"])?)?;
        serde_json::from_value(list["items"].take()).context("read the pods")
    }

    /// Waits until the pod is as wanted.
    pub fn pod_until(&self, name: &str, what: &str, check: impl Fn(&Pod) -> bool) -> Pod {
        until(LONG, &format!("pod {name} {what}"), || match self.pod(name)? {
            Some(pod) if check(&pod) => Ok(pod),
            Some(pod) => bail!("{:#?}", pod.status),
            None => bail!("there is no such pod"),
        })
    }

    /// Waits until the API server has no pod of this name.
    pub fn pod_gone(&self, name: &str) {
        until(LONG, &format!("pod {name} is gone"), || match self.pod(name)? {
            None => Ok(()),
            Some(pod) => bail!("{:#?} {:#?}", pod.metadata, pod.status),
        });
    }

    /// Waits until the node's object is as wanted.
    pub fn node_until(&self, what: &str, check: impl Fn(&Node) -> bool) -> Node {
        until(LONG, &format!("node {NODE} {what}"), || {
            let text = self.kubectl(&["get", "node", NODE, "-o", "json"])?;
            let node: Node = serde_json::from_str(&text).context("read the node")?;
            if check(&node) { Ok(node) } else { bail!("{:#?} {:#?}", node.metadata, node.status) }
        })
    }

    /// Ids of [`NODE`]'s running containers, sandboxes among them.
    pub fn running(&self) -> Result<Vec<String>> {
        let mut ctr = self.cluster.node_command(NODE, Path::new("ctr"))?;
        let text = shell::capture(ctr.args(["-n", "k8s.io", "tasks", "ls"]))?;
        let rows = text.lines().filter(|l| l.trim_end().ends_with("RUNNING"));
        Ok(rows.filter_map(|l| l.split_whitespace().next()).map(str::to_owned).collect())
    }

    /// A path as the node sees it, to be read from here; with everything that is mounted.
    pub fn on_node(&self, path: &str) -> PathBuf {
        let root = self.cluster.node_root(NODE).expect("the node's machine runs");
        root.join(path.trim_start_matches('/'))
    }

    /// The folder of a pod's volume, as the node sees it.
    pub fn volume(&self, pod: &Pod, kind: &str, volume: &str) -> PathBuf {
        let uid = pod.metadata.uid.as_deref().expect("a pod of the API server has a uid");
        let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~{kind}/{volume}");
        self.on_node(&path)
    }

    /// Removes the cluster's own pods from the nodes, so that later leftovers are a test's.
    pub fn empty_nodes(&self) {
        self.emptied.set(true);
        self.scale_dns("0").expect("scaled");
        for node in self.cluster.nodes() {
            let shims = until(LONG, &format!("{node} is empty"), || {
                let mut left = self.cluster.leftovers(node)?;
                let shims = std::mem::take(&mut left.shims);
                if left.is_empty() { Ok(shims) } else { bail!("{left:#?}") }
            });
            self.stale_shims.borrow_mut().extend(shims);
        }
    }

    /// Resources that pods left behind on a node since it was empty.
    pub fn leftovers(&self, node: &str) -> Result<Leftovers> {
        let mut left = self.cluster.leftovers(node)?;
        left.shims.retain(|shim| !self.stale_shims.borrow().contains(shim));
        Ok(left)
    }

    fn scale_dns(&self, count: &str) -> Result<()> {
        let count = format!("--replicas={count}");
        let scale = ["scale", "deployment", "coredns", "-n", "kube-system", &count];
        self.kubectl(&scale).map(drop)
    }

    fn log_end(&self, process: &str) -> String {
        let text = fs::read_to_string(self.cluster.layout().log(process)).unwrap_or_default();
        shell::tail(&text, 40)
    }

    /// Starts what the test stopped and removes its pods.
    fn restore(&self) -> Result<()> {
        self.restore_agent()?;
        let of_nodes = self.cluster.nodes().iter();
        let of_nodes = of_nodes.flat_map(|n| [format!("{n}-containerd"), agent_process(n)]);
        for part in control::PARTS.iter().map(|part| (*part).to_owned()).chain(of_nodes) {
            if self.cluster.pid(&part).is_none() {
                self.cluster.start(&part)?;
            }
        }
        let delete =
            ["delete", "deployments,hpa,pods", "--all", "--grace-period=1", "--timeout=60s"];
        self.kubectl(&delete)?;
        if self.emptied.get() { self.scale_dns("1") } else { Ok(()) }
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for agent in self.cluster.nodes().iter().map(|node| agent_process(node)) {
                eprintln!("end of {agent}'s log:\n{}", self.log_end(&agent));
            }
        }
        let is_over = self.is_own && !thread::panicking();
        let replayed = if is_over { self.cluster.replay_agents() } else { Ok(()) };
        let is_kept = std::env::var_os("PINTLE_KEEP").is_some();
        let ended = match self.is_own {
            true if is_kept => Ok(()),
            true => self.cluster.down(),
            false => self.restore(),
        };
        if let Err(error) = ended {
            shell::say("leftover", &format!("{error:#}"));
        }
        replayed.expect("the agents decide again what they decided");
    }
}

/// Returns whether the node is ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|c| c.type_ == "Ready" && c.status == "True"))
}

fn ours() -> Agent {
    Agent::Pintle(Some(agent_binary().to_owned()))
}

/// Starts a cluster with a node for each of these agents, after removing leftovers of a killed run.
fn start(agents: &[Agent]) -> Cluster {
    let cluster = Cluster::of_this_run(OWN).expect("a cluster's name");
    cluster.down().expect("an old cluster can be removed");
    let cluster = cluster.with_nodes(agents.len()).expect("not too many nodes");
    for (node, agent) in cluster.nodes().iter().zip(agents) {
        cluster.choose_agent(node, agent).expect("the node's folder can be written");
    }
    if let Err(error) = cluster.up() {
        let _ = cluster.down();
        panic!("the cluster does not start: {error:#}");
    }
    cluster
}
