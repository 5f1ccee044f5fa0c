//! The node of a world: its object at the API server, how the agent learns of it, and the prober.
//!
//! A scheduler binds pods only where they fit and where the labels match, so a refusal for either
//! reason is wrong.

use std::sync::Arc;

use pintle_agent_core::admit;
use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::worker::{PodsInput, ProbeKind};

use crate::faults::Fault;
use crate::world::{Event, MS, S, World};

/// Allocatable CPU in millicores.
pub const CPU_MILLIS: i64 = 1_000;

/// The agent's news of the node's object.
#[derive(Debug)]
pub enum NodeNews {
    /// A client labels it.
    Label,
    /// The watch delivers.
    Watched { run: u64 },
    /// A read ends.
    Read { run: u64, ticket: u64 },
}

/// The node's object.
#[derive(Debug, Default)]
pub struct Node {
    /// It has the label that some pods require.
    pub labelled: bool,
    /// A read of it has failed: decisions made without it are not checked.
    pub unread: bool,
    /// It has room for everything: with resizes under way the free amount cannot be checked from
    /// outside.
    pub roomy: bool,
}

impl Node {
    /// The agent's own knowledge of the node.
    pub fn unseen(&self) -> admit::AdmissionNode {
        let mut node = admit::AdmissionNode::roomy("node");
        if !self.roomy {
            node.allocatable.cpu_millis = CPU_MILLIS;
        }
        node
    }

    fn shown(&self) -> Arc<admit::AdmissionNode> {
        let mut node = self.unseen();
        if self.labelled {
            node.labels.insert("disk".to_owned(), "ssd".to_owned());
        }
        Arc::new(node)
    }
}

impl World {
    pub fn plan_node(&mut self) {
        // A pod that comes back with an older store needs no room to be admitted.
        let crowded = self.faults.has(Fault::Edits) || self.faults.has(Fault::Restored);
        self.node.roomy = self.api.is_none() || crowded;
        if self.faults.has(Fault::Node) {
            let when = self.rng.range(0, 120 * S);
            self.at(when, Event::Node(NodeNews::Label));
        }
    }

    fn watch_lag(&mut self) -> u64 {
        match self.faults.has(Fault::Node) {
            true => self.rng.range(MS, 20 * S),
            false => self.rng.range(MS, 100 * MS),
        }
    }

    /// The agent begins to watch its node.
    pub fn node_boot(&mut self) {
        let (run, lag) = (self.run, self.watch_lag());
        self.at(lag, Event::Node(NodeNews::Watched { run }));
    }

    pub fn fetch_node(&mut self, ticket: u64) {
        let (run, lag) = (self.run, self.rng.range(MS, 50 * MS));
        self.at(lag, Event::Node(NodeNews::Read { run, ticket }));
    }

    pub fn learn(&mut self, news: NodeNews) {
        let out = self.api.as_ref().is_none_or(|api| api.is_out());
        match news {
            NodeNews::Label => {
                self.node.labelled = true;
                self.node_boot();
            }
            NodeNews::Watched { run } if run != self.run => {}
            NodeNews::Watched { run } if out => {
                self.at(S, Event::Node(NodeNews::Watched { run }));
            }
            NodeNews::Watched { .. } => self.send(PodsInput::Admission(self.node.shown())),
            NodeNews::Read { run, .. } if run != self.run => {}
            NodeNews::Read { ticket, .. } => {
                let failed = out || self.trouble(Fault::Api, 10);
                self.node.unread |= failed;
                let node = (!failed).then(|| self.node.shown());
                self.send(PodsInput::NodeFetched { ticket, node });
            }
        }
    }

    /// A pod's containers are probed from now on, these and no others.
    pub fn probe(&mut self, uid: &PodUid, observed: &ObservedPod, terminating: bool) {
        let running = observed.containers.iter().filter(|c| c.state == RunState::Running);
        let before = self.probing.remove(uid).unwrap_or_default();
        let running = running.filter(|_| !terminating).map(|c| c.id.as_str().to_owned());
        let now: std::collections::BTreeMap<_, _> =
            running.map(|id| (id.clone(), before.get(&id).cloned().unwrap_or_default())).collect();
        for id in now.keys() {
            let (run, uid, id) = (self.run, uid.clone(), id.clone());
            self.at(MS, Event::Probe { run, uid, id });
        }
        self.probing.insert(uid.clone(), now);
    }

    /// Probes a container, and again when its answers change.
    pub fn look_at(&mut self, run: u64, uid: &PodUid, id: &str) {
        let probed = self.probing.get(uid).is_some_and(|ids| ids.contains_key(id));
        let container = self.runtime.containers.get(id).filter(|c| c.state == RunState::Running);
        let (true, Some(container)) = (run == self.run && probed, container) else { return };
        let me = self.check.known[uid].get(&container.name).clone();
        let age_ms = self.now.since(container.started_at).as_millis() as u64;
        if let Some(stuck_ms) = me.stuck_ms.filter(|_| container.attempt == 0) {
            return self.give_up(uid, id, stuck_ms.saturating_sub(age_ms));
        }
        let mut answers = Vec::new();
        let mut next = None;
        for (kind, after, healthy_before) in [
            (ProbeKind::Startup, me.started_after_ms, false),
            (ProbeKind::Readiness, me.ready_after_ms, false),
            (ProbeKind::Liveness, me.sick_after_ms, true),
        ] {
            let Some(after) = after else { continue };
            answers.push((kind, (age_ms >= after) != healthy_before));
            let left = after.saturating_sub(age_ms);
            next = [next, (left > 0).then_some(left)].into_iter().flatten().min();
        }
        if let Some(left) = next {
            let (uid, id) = (uid.clone(), id.to_owned());
            self.at((left + 1) * MS, Event::Probe { run, uid, id });
        }
        // The other two probes run once it has started.
        let waits = answers.contains(&(ProbeKind::Startup, false));
        for (kind, healthy) in answers {
            // A startup probe that takes its time has not failed.
            if waits || self.said(uid, id, kind) == Some(healthy) {
                continue;
            }
            self.say(uid, id, kind, healthy);
        }
    }

    /// Its startup probe has failed as often as it may once that time is over; no other probe runs.
    fn give_up(&mut self, uid: &PodUid, id: &str, left_ms: u64) {
        if left_ms > 0 {
            let (run, uid, id) = (self.run, uid.clone(), id.to_owned());
            self.at(left_ms * MS, Event::Probe { run, uid, id });
        } else if self.said(uid, id, ProbeKind::Startup).is_none() {
            self.say(uid, id, ProbeKind::Startup, false);
        }
    }

    fn said(&self, uid: &PodUid, id: &str, kind: ProbeKind) -> Option<bool> {
        self.probing.get(uid)?.get(id)?.get(&kind).copied()
    }

    fn say(&mut self, uid: &PodUid, id: &str, probe: ProbeKind, healthy: bool) {
        let said = self.probing.get_mut(uid).and_then(|ids| ids.get_mut(id));
        if let Some(said) = said {
            said.insert(probe, healthy);
        }
        let (uid, container) = (uid.clone(), id.into());
        self.send(PodsInput::Probed { uid, container, probe, healthy });
    }

    /// True when the scheduler may send a pod with such requests.
    pub fn has_room(&self, cpu_millis: u64) -> bool {
        let Some(api) = self.api.as_ref().filter(|_| !self.node.roomy) else { return true };
        let used = api.cpu_of_living(&self.check.known);
        i64::try_from(used + cpu_millis).is_ok_and(|sum| sum <= CPU_MILLIS)
    }
}
