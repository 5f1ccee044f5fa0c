//! The node's agent exchanged for another one, ours or upstream's kubelet, while pods run.

use xtask::cluster::Agent;
use xtask::shell;

use super::containers::Held;
use super::{AGENT, NODE, TestCluster};
use crate::node::agent_binary;

/// How an agent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// SIGTERM.
    Stopped,
    /// SIGKILL.
    Killed,
}

/// The agent of a test's node; ours comes back when this is dropped.
pub struct Swap<'a> {
    test: &'a TestCluster,
}

impl<'a> Swap<'a> {
    /// The node as it is.
    pub fn new(test: &'a TestCluster) -> Self {
        Self { test }
    }

    /// Ends the agent and starts another one; returns when the node is ready with it.
    pub fn to(&self, agent: &Agent, end: End) {
        eprintln!("    {agent:?} takes over");
        self.leave(end);
        self.enter(agent);
    }

    /// Ends the agent.
    pub fn leave(&self, end: End) {
        let cluster = self.test.cluster();
        let ended = match end {
            End::Stopped => cluster.stop(AGENT),
            End::Killed => cluster.kill(AGENT),
        };
        ended.expect("the agent ends");
    }

    /// Starts an agent where none runs, and waits until the node is ready with it.
    pub fn enter(&self, agent: &Agent) {
        let cluster = self.test.cluster();
        cluster.choose_agent(NODE, agent).expect("chosen");
        cluster.start(AGENT).expect("the agent starts");
        self.test.heard_of();
        cluster.wait_ready().expect("the node is ready");
    }

    /// The containers that run on the node, and their sandboxes' pods.
    pub fn running(&self) -> Vec<Held> {
        let held = self.test.containers().expect("a list");
        held.into_iter().filter(|held| held.runs && held.node == NODE).collect()
    }
}

impl Drop for Swap<'_> {
    fn drop(&mut self) {
        let cluster = self.test.cluster();
        let back = cluster.stop(AGENT).and_then(|()| cluster.choose_agent(NODE, &ours()));
        if let Err(error) = back.and_then(|()| cluster.start(AGENT)) {
            shell::say("leftover", &format!("{error:#}"));
        }
    }
}

/// The agent under test.
pub fn ours() -> Agent {
    Agent::Pintle(Some(agent_binary().to_owned()))
}
