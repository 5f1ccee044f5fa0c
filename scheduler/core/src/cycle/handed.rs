//! Opportunistic batching: how often decisions reuse results of earlier pods.
//!
//! Input: the core's counts after a decision. Output: counts by profile. Owner: the scheduler.
//! Bounds: four numbers per profile. A pod is counted where upstream asks its batch for a node
//! hint: once per attempt, unless no node is evaluated.
// k8s: pkg/scheduler/framework/runtime/batch.go GetNodeHint, StoreScheduleResults

use super::Scheduler;
use super::consult::ExtenderAnswers;

/// Batching counts of one profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Batches {
    /// Attempts that reused the results of pods with the same requests.
    pub used: u64,
    /// Attempts that evaluated all nodes.
    pub none: u64,
    /// Results that expired because too much had changed.
    pub expired: u64,
    /// Results that were replaced by those of a pod with other requests.
    pub incompatible: u64,
}

impl Scheduler {
    /// Counts the last decision for a pod of this profile.
    pub(super) fn count_batch(&mut self, profile: usize, answers: &ExtenderAnswers) {
        let handed = self.evaluator.scratch.take_handed();
        let nodes = self.cache.cluster.view().node_count();
        let batches = &mut self.batches[profile];
        batches.expired += handed.outdated;
        batches.incompatible += handed.displaced;
        // An attempt with extender answers evaluates nodes twice, and is counted the first time.
        if !matches!(answers, ExtenderAnswers::Nothing) || nodes == 0 {
            return;
        }
        // With nominated pods, two evaluations are one decision.
        match (handed.computed, handed.taken) {
            (0, 0) => {}
            (0, _) => batches.used += 1,
            _ => batches.none += 1,
        }
    }

    /// Counts a pod that got its nominated node without evaluation of other nodes.
    pub(super) fn count_kept_node(&mut self, profile: usize) {
        self.batches[profile].none += 1;
    }

    /// Returns the counts since the last call, by profile.
    pub fn take_batches(&mut self) -> Vec<Batches> {
        let none = vec![Batches::default(); self.batches.len()];
        std::mem::replace(&mut self.batches, none)
    }
}

#[cfg(test)]
mod tests {
    use pintle_sched_core::Profile;
    use serde_json::json;

    use super::*;
    use crate::cycle::tests::{
        at, decide, deliver_lists, node, pod, scheduler_with, with, without_second_look,
    };
    use crate::watch_event::WatchEvent;

    #[test]
    fn pods_with_equal_requests_reuse_batched_results() {
        let things = ["a", "b", "c"].map(|name| pod(name, "1")).into_iter();
        let mut scheduler = scheduler_with(things.chain([node("n", "8"), pod("d", "2")]).collect());
        decide(&mut scheduler, 0);
        let batches = Batches { used: 2, none: 2, ..Batches::default() };
        assert_eq!(scheduler.take_batches(), [batches]);
        assert_eq!(scheduler.take_batches(), [Batches::default()], "counted once");
        // Pods without room reuse results as well.
        scheduler.handle(WatchEvent::Set(pod("e", "2")), at(1));
        scheduler.handle(WatchEvent::Set(pod("f", "2")), at(1));
        decide(&mut scheduler, 1);
        assert_eq!(scheduler.take_batches(), [Batches { used: 2, ..Batches::default() }]);
    }

    #[test]
    fn nominated_pod_reuses_no_batched_results() {
        let kept = with("k", "1", |pod| pod["status"] = json!({"nominatedNodeName": "n"}));
        let mut scheduler = scheduler_with(vec![node("n", "8"), pod("p", "1")]);
        decide(&mut scheduler, 0);
        scheduler.handle(WatchEvent::Set(kept), at(1));
        decide(&mut scheduler, 1);
        assert_eq!(scheduler.take_batches(), [Batches { none: 2, ..Batches::default() }]);
    }

    #[test]
    fn no_batch_is_counted_when_no_node_is_evaluated() {
        let claims = with("p", "1", |pod| {
            let claim = json!({"claimName": "missing"});
            pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": claim}]);
        });
        for things in [vec![node("n", "8"), claims], vec![pod("p", "1")]] {
            let mut scheduler = scheduler_with(things);
            assert!(!decide(&mut scheduler, 0).is_empty(), "it is rejected");
            assert_eq!(scheduler.take_batches(), [Batches::default()]);
        }
    }

    #[test]
    fn batched_results_expire_after_changes_and_are_displaced_by_other_pods() {
        let other = Profile { scheduler_name: "other".to_owned(), ..Profile::default() };
        let profiles = vec![Profile::default(), other];
        let mut scheduler = Scheduler::new(profiles, without_second_look(), 1);
        let many = (0..65).map(|at| pod(&format!("p{at}"), &format!("{}m", 100 + at)));
        // Each node has room for ten pods.
        let nodes = (0..7).map(|at| node(&format!("n{at}"), "999"));
        deliver_lists(&mut scheduler, &many.chain(nodes).collect::<Vec<_>>());
        decide(&mut scheduler, 0);
        let batches = Batches { none: 65, incompatible: 1, ..Batches::default() };
        assert_eq!(scheduler.take_batches(), [batches, Batches::default()]);
        // The node changes more often than the core remembers changes.
        for at_second in 0..1_200 {
            let cpu = if at_second % 2 == 0 { "998" } else { "999" };
            scheduler.handle(WatchEvent::Set(node("n0", cpu)), at(at_second));
        }
        scheduler.handle(WatchEvent::Set(pod("again", "164m")), at(1_200));
        let others = with("others", "164m", |pod| pod["spec"]["schedulerName"] = json!("other"));
        scheduler.handle(WatchEvent::Set(others), at(1_200));
        decide(&mut scheduler, 1_200);
        let expired = Batches { none: 1, expired: 1, ..Batches::default() };
        let displaces = Batches { none: 1, incompatible: 1, ..Batches::default() };
        assert_eq!(scheduler.take_batches(), [expired, displaces]);
    }
}
