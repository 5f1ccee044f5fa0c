//! Keeps the logs of running containers at their limit: gives the rotator the containers to watch.
//!
//! Owner: the driver. Input: each read of a pod, and that a pod is gone. Followed containers are
//! kept by pod, so that a container that was removed before its end was observed is forgotten with
//! the next read. A full queue means that the rotator is behind: the next read tries again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::types::{ContainerId, PodUid};
use pintle_agent_runtime::logs::LogCommand;
use tokio::sync::mpsc;

/// The containers with logs that the rotator watches.
#[derive(Debug)]
pub(super) struct FollowedLogs {
    /// `None` when rotation is off.
    rotator: Option<mpsc::Sender<LogCommand>>,
    pods: BTreeMap<PodUid, BTreeSet<ContainerId>>,
    /// Containers of pods that are gone, which the rotator could not be given yet.
    left: BTreeSet<ContainerId>,
}

impl FollowedLogs {
    pub(super) fn new(rotator: Option<mpsc::Sender<LogCommand>>) -> Self {
        Self { rotator, pods: BTreeMap::new(), left: BTreeSet::new() }
    }

    /// A pod was read.
    pub(super) fn follow(&mut self, pod: &ObservedPod) {
        let Some(rotator) = &self.rotator else { return };
        let tell = |command| rotator.try_send(command).is_ok();
        self.left.retain(|id| !tell(LogCommand::Forget { id: id.clone() }));
        let running = || pod.containers.iter().filter(|c| c.state == RunState::Running);
        let mut followed = self.pods.remove(&pod.uid).unwrap_or_default();
        followed.retain(|id| {
            running().any(|c| c.id == *id) || !tell(LogCommand::Forget { id: id.clone() })
        });
        for container in running() {
            let (id, path) = (container.id.clone(), PathBuf::from(&container.log_path));
            if !followed.contains(&id) && tell(LogCommand::Watch { id: id.clone(), path }) {
                followed.insert(id);
            }
        }
        if !followed.is_empty() {
            self.pods.insert(pod.uid.clone(), followed);
        }
    }

    /// Nothing is left of a pod.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        let Some(rotator) = &self.rotator else { return };
        let followed = self.pods.remove(uid).unwrap_or_default();
        let untold =
            |id: &ContainerId| rotator.try_send(LogCommand::Forget { id: id.clone() }).is_err();
        self.left.extend(followed.into_iter().filter(untold));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::observed::ObservedContainer;
    use pintle_agent_core::status::testing;

    fn pod(uid: &str, containers: &[(&str, RunState)]) -> ObservedPod {
        let mut pod = ObservedPod::empty(PodUid::from(uid), "ns", uid);
        pod.containers = containers
            .iter()
            .map(|(id, state)| ObservedContainer { state: *state, ..testing::container("c", id) })
            .collect();
        pod
    }

    fn told(queue: &mut mpsc::Receiver<LogCommand>) -> Vec<String> {
        let mut told = Vec::new();
        while let Ok(command) = queue.try_recv() {
            told.push(match command {
                LogCommand::Watch { id, .. } => format!("watch {id}"),
                LogCommand::Forget { id } => format!("forget {id}"),
            });
        }
        told
    }

    #[test]
    fn container_is_forgotten_when_it_exits_when_it_is_removed_and_with_its_pod() {
        let (rotator, mut queue) = mpsc::channel(8);
        let mut logs = FollowedLogs::new(Some(rotator));
        let (runs, over) = (RunState::Running, RunState::Exited);
        logs.follow(&pod("p", &[("a", runs), ("b", runs), ("c", runs)]));
        logs.follow(&pod("p", &[("a", runs), ("b", runs), ("c", runs)]));
        assert_eq!(told(&mut queue), ["watch a", "watch b", "watch c"]);
        // `b` has ended, and `c` was removed before its end was observed.
        logs.follow(&pod("p", &[("a", runs), ("b", over)]));
        assert_eq!(told(&mut queue), ["forget b", "forget c"]);
        logs.forget(&PodUid::from("p"));
        assert_eq!(told(&mut queue), ["forget a"]);
        assert!(logs.pods.is_empty());
    }

    #[test]
    fn requests_that_a_full_rotator_queue_refuses_are_sent_later() {
        let (rotator, mut queue) = mpsc::channel(1);
        let mut logs = FollowedLogs::new(Some(rotator));
        let two = [("a", RunState::Running), ("b", RunState::Running)];
        logs.follow(&pod("p", &two));
        assert_eq!(told(&mut queue), ["watch a"]);
        logs.follow(&pod("p", &two));
        assert_eq!(told(&mut queue), ["watch b"]);
        logs.forget(&PodUid::from("p"));
        assert_eq!(told(&mut queue), ["forget a"]);
        logs.follow(&pod("q", &[]));
        assert_eq!(told(&mut queue), ["forget b"]);
        assert!(logs.left.is_empty());
    }
}
