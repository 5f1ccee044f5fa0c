//! A real cluster on this machine: upstream's control plane, and nodes with our agent or the
//! kubelet.
//!
//! Input: a name, the number of nodes, the agents. Output: a running cluster in namespaces of its
//! own, which outlives the run of xtask that started it; later runs find it by its name. Everything
//! it makes is below one folder, in cgroups of its name and in processes that carry its mark, and
//! `down` removes all of it. Nothing is installed and, once the cache is filled, nothing fetched.
//!
//! - `layout`: folders and addresses. `pki`: keys. `config`: files
//! - `processes`: background processes. `network`: the machines
//! - `control`, `node`: the two kinds of machines. `controllers`: upstream's and ours beside it
//! - `guest`: nodes with a kernel of their own, see `uml`
//! - `disk`: a node's folder on a file system of its own
//! - `metrics`: metrics-server, on request
//! - `snapshots`: the controller of volume snapshots, on request

pub mod config;
pub mod control;
pub mod controllers;
mod disk;
mod guest;
pub mod layout;
mod metrics;
mod network;
pub mod node;
mod pki;
mod processes;
mod snapshots;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

pub use self::controllers::Controllers;
use self::layout::{Layout, NODES_MAX};
pub use self::node::Agent;
use self::processes::Processes;
use crate::image::{e2e, set, sha256};
use crate::node::leftovers::{self, Places};
use crate::node::{Leftovers, RootTemplate, cgroups, process};
use crate::runtime::Version;
use crate::shell::{capture, say, timed};
use crate::upstream::Program;
use crate::{apt, cache};

/// How long a node may take until it is ready.
const NODE_WAIT: Duration = Duration::from_secs(120);
/// The usual number of nodes: a scheduler has a choice, and pods talk across machines.
const NODES: usize = 2;
/// Programs that a cluster needs, and the packages that have them.
const TOOLS: [(&[&str], &str); 3] =
    [(&["ip"], "iproute2"), (&["nsenter"], "util-linux"), (&["openssl"], "openssl")];
/// The cluster's DNS, with its address and image left open.
const DNS: &str = include_str!("dns.yaml");

/// A cluster, running or not.
#[derive(Clone, Debug)]
pub struct Cluster {
    layout: Layout,
    processes: Processes,
    nodes: Vec<String>,
}

impl Cluster {
    /// The cluster of this name, with as many nodes as it was started with.
    pub fn named(name: &str) -> Result<Self> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_good = !name.is_empty() && name.len() <= 20 && name.chars().all(is_plain);
        ensure!(is_good, "a cluster's name is up to 20 small letters and digits, not {name:?}");
        let layout = Layout::of(name);
        let processes = Processes::of(&layout);
        let count = fs::read_to_string(layout.dir().join("nodes"));
        let count = count.ok().and_then(|c| c.parse().ok()).unwrap_or(NODES);
        Ok(Self { layout, processes, nodes: layout::nodes(count) })
    }

    /// A cluster for this process only, named after `purpose` and our pid, so that concurrent runs
    /// do not collide. Leftovers of killed runs are removed first.
    pub fn of_this_run(purpose: &str) -> Result<Self> {
        sweep();
        Self::named(&format!("{purpose}x{}", std::process::id()))
    }

    /// The same with another number of nodes, before its first start.
    pub fn with_nodes(mut self, count: usize) -> Result<Self> {
        ensure!((1..=NODES_MAX).contains(&count), "a cluster has 1 to {NODES_MAX} nodes");
        ensure!(!self.is_up() || count == self.nodes.len(), "the cluster has its nodes already");
        self.nodes = layout::nodes(count);
        Ok(self)
    }

    /// Its folders and addresses.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Names of its nodes.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// Returns whether its control plane runs.
    pub fn is_up(&self) -> bool {
        self.processes.pid("apiserver").is_some()
    }

    /// Chooses a node's agent, from its next start on.
    pub fn choose_agent(&self, node: &str, agent: &Agent) -> Result<()> {
        self.check_node(node)?;
        node::choose_agent(self, node, agent)
    }

    /// Chooses the scheduler's program, from its next start on; `None` is upstream's.
    pub fn choose_scheduler(&self, program: Option<&Path>) -> Result<()> {
        let path = self.layout.scheduler_program();
        match program {
            Some(program) => {
                fs::create_dir_all(self.layout.dir())?;
                fs::write(&path, program.as_os_str().as_encoded_bytes())
                    .with_context(|| format!("write {}", path.display()))
            }
            None if path.exists() => Ok(fs::remove_file(path)?),
            None => Ok(()),
        }
    }

    /// Chooses which controllers are ours, from the next start of both managers on; `None` is none.
    pub fn choose_controllers(&self, choice: Option<&Controllers>) -> Result<()> {
        controllers::choose(self, choice)
    }

    /// Arguments that any controller manager has on the control plane's machine.
    pub fn manager_args(&self) -> Vec<String> {
        controllers::usual(self, true)
    }

    /// Sets fields of the node's KubeletConfiguration, from its agent's next start on.
    pub fn configure_agent(&self, node: &str, fields: &Value) -> Result<()> {
        self.check_node(node)?;
        node::configure_agent(self, node, fields)
    }

    /// Sets flags of the node's agent, from its next start on.
    pub fn flag_agent(&self, node: &str, flags: &[&str]) -> Result<()> {
        self.check_node(node)?;
        node::flag_agent(self, node, flags)
    }

    /// Starts all parts that do not run and waits until every node is ready.
    pub fn up(&self) -> Result<()> {
        apt::require_root("there is no way around it: namespaces and containers are made")?;
        apt::install_missing(&TOOLS)?;
        self.components()?;
        let template = template()?;
        let text = format!("cluster {} in {}", self.layout.name(), self.layout.dir().display());
        timed("start", &text, || {
            fs::create_dir_all(self.layout.dir().join("log"))?;
            fs::write(self.layout.dir().join("nodes"), self.nodes.len().to_string())?;
            pki::ensure(&self.layout, &self.nodes)?;
            self.machines(&template)?;
            for node in &self.nodes {
                node::start_agent(self, node)?;
            }
            self.wait_ready()
        })
    }

    /// Starts nothing but the registry and one node with its runtime, which sees its own cgroup as
    /// the root: for a suite that brings an API server and starts the agent. With a size, the node
    /// has a disk of its own, to be filled.
    pub fn up_for_node_suite(&self, node: &str, disk_bytes: Option<u64>) -> Result<()> {
        self.check_node(node)?;
        apt::require_root("there is no way around it: namespaces and containers are made")?;
        let template = template()?;
        let text = format!("node {node} in {}", self.layout.dir().display());
        timed("start", &text, || {
            fs::create_dir_all(self.layout.dir().join("log"))?;
            fs::create_dir_all(self.layout.node(node))?;
            if let Some(bytes) = disk_bytes {
                disk::mount(&self.layout, node, bytes)?;
            }
            fs::write(self.layout.own_cgroups_file(node), "")?;
            if self.processes.pid(network::CONTROL_HOLDER).is_none() {
                network::start_control(&self.layout, &self.processes)?;
            }
            if self.processes.pid("registry").is_none() {
                control::start(self, "registry")?;
            }
            node::start_runtime(self, node, &template)
        })
    }

    /// Starts nothing but an API server with its store, and writes a scheduler's configuration, for
    /// nodes that exist in the API alone. The caller creates all other objects.
    pub fn up_for_scheduler(&self, scheduler: &Value) -> Result<()> {
        control::configure_scheduler(self, scheduler)?;
        self.up_without_nodes("scheduler")
    }

    /// Has the API server started with these flags as well.
    pub fn add_api_server_flags(&self, flags: &[&str]) -> Result<()> {
        fs::create_dir_all(self.layout.dir())?;
        fs::write(self.layout.api_server_flags(), flags.join("\n")).context("write its flags")
    }

    /// Starts nothing but an API server with its store; the text names the purpose.
    pub fn up_without_nodes(&self, purpose: &str) -> Result<()> {
        self.up_control(purpose, &[], || self.start_api_server())
    }

    /// Makes the control plane's machine and the keys of these nodes, and starts parts there.
    fn up_control(
        &self,
        purpose: &str,
        nodes: &[String],
        start: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        apt::require_root("there is no way around it: namespaces are made")?;
        apt::install_missing(&TOOLS)?;
        self.components()?;
        let text = format!("{purpose} {} in {}", self.layout.name(), self.layout.dir().display());
        timed("start", &text, || {
            fs::create_dir_all(self.layout.dir().join("log"))?;
            pki::ensure(&self.layout, nodes)?;
            network::start_control(&self.layout, &self.processes)?;
            start()
        })
    }

    fn start_api_server(&self) -> Result<()> {
        ["etcd", "apiserver"].iter().try_for_each(|part| control::start(self, part))
    }

    /// Starts upstream's scheduler in it.
    pub fn start_scheduler(&self) -> Result<()> {
        control::start(self, "scheduler")
    }

    /// The program of an agent, built if it is ours and no file is named.
    pub fn agent_program(&self, agent: &Agent) -> Result<PathBuf> {
        agent.program(self)
    }

    /// A command in a node with cgroups of its own, in the cgroup of a service; it and its children
    /// end with the cluster.
    pub fn node_service(&self, node: &str, service: &str, program: &Path) -> Result<Command> {
        let mut cmd = node::service(self, node, service, program)?;
        cmd.env(process::MARK, self.layout.mark());
        Ok(cmd)
    }

    /// Imports the images of an OCI layout into a node's runtime.
    pub fn import_images(&self, node: &str, layout: &Path) -> Result<()> {
        self.check_node(node)?;
        node::import_images(self, node, layout)
    }

    /// The control plane and every node's runtime; they wait for disk and CPU in different places.
    fn machines(&self, template: &Path) -> Result<()> {
        if self.processes.pid(network::CONTROL_HOLDER).is_none() {
            network::start_control(&self.layout, &self.processes)?;
        }
        thread::scope(|scope| {
            let control = scope.spawn(|| self.start_control());
            for node in &self.nodes {
                node::start_runtime(self, node, template)?;
            }
            control.join().map_err(|_| anyhow!("starting the control plane panicked"))?
        })
    }

    fn start_control(&self) -> Result<()> {
        for part in control::PARTS {
            if self.processes.pid(part).is_none() {
                control::start(self, part)?;
            }
        }
        let dns = DNS.replace("@IMAGE@", config::COREDNS);
        let dns = dns.replace("@ADDRESS@", layout::DNS_SERVICE);
        for (name, text) in [("dns.yaml", dns), ("proxy.json", config::proxy_rights().to_string())]
        {
            let path = self.layout.dir().join(name);
            fs::write(&path, text)?;
            self.kubectl(&["apply", "-f", &path.to_string_lossy()])?;
        }
        Ok(())
    }

    /// Waits until every node is ready.
    pub fn wait_ready(&self) -> Result<()> {
        for node in &self.nodes {
            let agent = node::agent_process(node);
            self.processes.wait(&agent, NODE_WAIT, || node::check_ready(self, node))?;
        }
        Ok(())
    }

    /// Ends and removes everything; a missing cluster is no error.
    pub fn down(&self) -> Result<()> {
        // The agents first: they would restart killed containers.
        for node in &self.nodes {
            self.processes.kill(&node::agent_process(node))?;
        }
        self.processes.kill_all();
        for node in &self.nodes {
            // Containers have no mark but a place below the node's cgroup.
            cgroups::remove(&self.layout.cgroup(node))?;
        }
        self.processes.kill_all();
        for node in &self.nodes {
            disk::unmount(&self.layout, node)?;
        }
        cache::remove(self.layout.dir())
    }

    /// Starts a part of the control plane or of a node: `apiserver`, `n1-agent` and so on.
    pub fn start(&self, process: &str) -> Result<()> {
        match process {
            metrics::PART => return metrics::start(self),
            snapshots::PART => return snapshots::start(self),
            _ => {}
        }
        match process.split_once('-') {
            Some((node, "agent" | "proxy")) => {
                self.check_node(node)?;
                node::start_agent(self, node)
            }
            Some((node, "containerd")) => {
                self.check_node(node)?;
                node::start_runtime(self, node, &template()?)
            }
            _ => control::start(self, process),
        }
    }

    /// Stops a part of the control plane or of a node; pods keep running.
    pub fn stop(&self, process: &str) -> Result<()> {
        self.processes.stop(process)
    }

    /// Stops the agents and replays the recording of each of ours; fails on a different decision.
    pub fn replay_agents(&self) -> Result<()> {
        self.nodes.iter().try_for_each(|node| node::replay_agent(self, node))
    }

    /// Kills a part of the control plane or of a node without asking.
    pub fn kill(&self, process: &str) -> Result<()> {
        self.processes.kill(process)
    }

    /// The pid of a part, while it runs.
    pub fn pid(&self, process: &str) -> Option<i32> {
        self.processes.pid(process)
    }

    /// `kubectl` as the cluster's administrator; returns what it printed.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        capture(self.kubectl_command()?.args(args))
    }

    /// The same as a command that is not started yet.
    pub fn kubectl_command(&self) -> Result<Command> {
        let mut cmd = control::command(self, &self.components()?.join("kubectl"))?;
        cmd.env("KUBECONFIG", self.layout.kubeconfig("admin"));
        Ok(cmd)
    }

    /// A command on the control plane's machine, with the administrator's rights.
    pub fn control_command(&self, program: &Path) -> Result<Command> {
        let mut cmd = control::command(self, program)?;
        cmd.env("KUBECONFIG", self.layout.kubeconfig("admin"));
        Ok(cmd)
    }

    /// A command inside a node.
    pub fn node_command(&self, node: &str, program: &Path) -> Result<Command> {
        self.check_node(node)?;
        node::command(self, node, program)
    }

    /// Returns the command line of a node's agent, after rewriting its configuration.
    pub fn agent_command(&self, node: &str) -> Result<Command> {
        self.check_node(node)?;
        node::chosen_agent_command(self, node)
    }

    /// Runs `work` on a thread in the control plane's network; sockets made there stay there.
    pub fn in_control_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        network::within(self.holder_pid(network::CONTROL_HOLDER)?, work)
    }

    /// The root folder as a node sees it, with everything that is mounted there.
    pub fn node_root(&self, node: &str) -> Result<PathBuf> {
        let pid = self.holder_pid(&network::holder(node))?;
        Ok(PathBuf::from(format!("/proc/{pid}/root")))
    }

    /// Resources that pods left behind on a node.
    pub fn leftovers(&self, node: &str) -> Result<Leftovers> {
        let (cgroup, mark) = (self.layout.cgroup(node), self.layout.mark());
        let places = Places {
            cgroup: &cgroup,
            mark: &mark,
            pods: "/var/lib/kubelet/pods".into(),
            state: "/run/containerd".into(),
            logs: "/var/log/pods".into(),
        };
        leftovers::count(self.holder_pid(&network::holder(node))?, &places)
    }

    fn holder_pid(&self, holder: &str) -> Result<u32> {
        let pid = self.processes.pid(holder).with_context(|| format!("{holder} does not run"))?;
        Ok(u32::try_from(pid)?)
    }

    /// One line for each part: its name, and whether it runs.
    pub fn status(&self) -> Vec<String> {
        let nodes = self.nodes.iter();
        let parts = ["containerd", "agent", "proxy"];
        let of_nodes = nodes.flat_map(|n| parts.iter().map(move |p| format!("{n}-{p}")));
        let central =
            control::PARTS.iter().chain(&[metrics::PART, snapshots::PART]).map(|p| (*p).to_owned());
        let all = central.chain(of_nodes);
        let line = |name: String| match self.processes.pid(&name) {
            Some(pid) => format!("{name:<16} {pid:>8}  {}", self.layout.log(&name).display()),
            None => format!("{name:<16} {:>8}", "-"),
        };
        all.map(line).collect()
    }

    fn components(&self) -> Result<PathBuf> {
        Program::Components.ensure()
    }

    fn check_node(&self, node: &str) -> Result<()> {
        let known = self.nodes.iter().any(|n| n == node);
        ensure!(known, "there is no node {node}: {}", self.nodes.join(", "));
        Ok(())
    }
}

/// Removes the clusters of processes that are gone.
pub fn sweep() {
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(name) = name.strip_prefix(layout::PREFIX) else { continue };
        let Some(maker) = maker_of(name) else { continue };
        if i32::try_from(maker).is_ok_and(process::is_running) {
            continue;
        }
        if let Err(error) = Cluster::named(name).and_then(|cluster| cluster.down()) {
            say("leftover", &format!("{error:#}"));
        }
    }
}

/// The process that created the cluster of this name, if the cluster is for one process only.
fn maker_of(name: &str) -> Option<u32> {
    let (purpose, pid) = name.split_once('x')?;
    let is_purpose = !purpose.is_empty() && purpose.chars().all(|c| c.is_ascii_lowercase());
    if is_purpose { pid.parse().ok() } else { None }
}

/// containerd's folder with the images of the suites in it; made once.
pub(crate) fn template() -> Result<PathBuf> {
    let standard = set::archive()?;
    let (layout, digest) = e2e::layout()?;
    let version = Version::usual()?;
    let all = format!("{} {digest} {}", standard.digest, version.name());
    let digest = sha256(all.as_bytes());
    let template = RootTemplate { kind: "template/cluster", digest: &digest, version };
    template.ensure(|node| {
        node.import(&standard.path).context("import the standard images")?;
        node.import(&layout).context("import the suites' images")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clusters_of_a_single_process_have_a_maker_pid() {
        let own = Cluster::of_this_run("test").expect("a name");
        assert_eq!(maker_of(own.layout().name()), Some(std::process::id()));
        for name in ["dev", "bench", "x12", "ex", "box", "testx12y", "test12"] {
            assert_eq!(maker_of(name), None, "{name}");
        }
    }
}
