//! The node on which the agents are compared: in namespaces of this host, or a guest with cgroup v2
//! and systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use super::load::AgentLoad;
use super::pods::NODE;
use crate::cluster::{Agent, Cluster};
use crate::node::process;
use crate::uml;

/// containerd's state folder in a guest.
const STATE: &str = "/run/containerd";

/// The node as the comparison reaches it.
pub(super) trait RatioNode {
    /// Ends the agent and starts this one; returns when the node is ready.
    fn restart(&self, agent: &Agent) -> Result<()>;
    /// The agent's CPU time since its start, and its memory.
    fn load(&self) -> Result<AgentLoad>;
    /// Kills a container's first process; returns the time of the kill.
    fn kill(&self, container: &str) -> Result<Instant>;
}

/// A node in namespaces.
pub(super) struct RatioNamespaces<'a>(pub(super) &'a Cluster);

impl RatioNode for RatioNamespaces<'_> {
    fn restart(&self, agent: &Agent) -> Result<()> {
        self.0.stop("n1-agent")?;
        self.0.choose_agent(NODE, agent)?;
        self.0.start("n1-agent")?;
        self.0.wait_ready()
    }

    fn load(&self) -> Result<AgentLoad> {
        let pid = self.0.pid("n1-agent").context("the agent runs")?;
        let read = |file: &str| {
            fs::read_to_string(format!("/proc/{pid}/{file}")).context("the agent runs")
        };
        AgentLoad::parse(&read("stat")?, &read("status")?)
    }

    fn kill(&self, container: &str) -> Result<Instant> {
        // containerd's state folder, which only the node sees at its place.
        let machine = self.0.pid("n1-machine").context("the node's machine runs")?;
        let state = Path::new("/proc").join(machine.to_string()).join("root/run/containerd");
        let inits = process::containers(&state);
        let init = inits.iter().find(|(id, _)| id == container);
        let (_, pid) = init.with_context(|| format!("{container} has a process"))?;
        let at = Instant::now();
        process::signal(*pid, Signal::SIGKILL);
        Ok(at)
    }
}

/// A node that is a guest.
pub(super) struct RatioGuest<'a> {
    cluster: &'a Cluster,
    node: uml::Node,
}

impl<'a> RatioGuest<'a> {
    /// Boots it with this agent.
    pub(super) fn join(cluster: &'a Cluster, agent: &Agent) -> Result<Self> {
        let program = cluster.agent_program(agent)?;
        Ok(Self { cluster, node: uml::Node::join_whole(cluster, NODE, &program)? })
    }

    /// Copies the agent's program into the guest; its path there.
    fn program(&self, agent: &Agent) -> Result<PathBuf> {
        let program = fs::canonicalize(self.cluster.agent_program(agent)?)?;
        let name = program.file_name().context("a program has a name")?;
        let agents = self.node.guest().dir().join("agents");
        let copy = agents.join(name);
        if !copy.exists() {
            fs::create_dir_all(&agents)?;
            fs::copy(&program, &copy).with_context(|| format!("copy {}", program.display()))?;
        }
        Ok(Path::new("/host/agents").join(name))
    }
}

impl RatioNode for RatioGuest<'_> {
    fn restart(&self, agent: &Agent) -> Result<()> {
        let program = self.program(agent)?;
        let script = format!(
            "systemctl stop pintle-agent && ln -sfn '{}' /usr/local/bin/pintle-agent \
             && systemctl start pintle-agent",
            program.display()
        );
        let started = self.node.guest().capture(&script);
        started.with_context(|| self.node.journal("pintle-agent"))?;
        self.cluster.wait_guest_ready(NODE)
    }

    fn load(&self) -> Result<AgentLoad> {
        let script = "pid=$(systemctl show --property=MainPID --value pintle-agent) \
                      && cat /proc/$pid/stat /proc/$pid/status";
        let text = self.node.guest().capture(script)?;
        let (stat, status) = text.split_once('\n').context("a line of numbers")?;
        AgentLoad::parse(stat, status)
    }

    fn kill(&self, container: &str) -> Result<Instant> {
        // Its clock is the host's.
        let bundle = format!("{STATE}/{}/{container}", process::TASKS);
        let script = format!("date +%s%N && kill -KILL $(cat {bundle}/init.pid)");
        let text = self.node.guest().capture(&script)?;
        let nanoseconds = text.trim().parse().context("a time in nanoseconds")?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
        let since = now.saturating_sub(Duration::from_nanos(nanoseconds));
        Instant::now().checked_sub(since).context("the host runs longer")
    }
}
