//! Invariants at the end of each random world.

use super::*;

impl SchedulerWorld {
    /// Checks all invariants.
    pub(super) fn check(&self, scheduler: &Scheduler) {
        assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (0, 0));
        assert_eq!(scheduler.count(QueuePlace::InFlight), 0);
        if !self.nodes_shrink {
            self.check_no_node_is_overcommitted();
        }
        self.check_no_pending_pod_fits(scheduler);
        self.check_nominations_match_the_api(scheduler);
    }

    /// Checks that the scheduler has exactly the API's nominations of pending pods to existing
    /// nodes.
    fn check_nominations_match_the_api(&self, scheduler: &Scheduler) {
        let waits = |pod: &Value| {
            let is_leaving = pod["metadata"].get("deletionTimestamp").is_some();
            pod["spec"]["nodeName"].is_null() && !is_leaving
        };
        let mut said: Vec<(&str, &str)> = Vec::new();
        for pod in self.pods.values().filter(|pod| waits(pod)) {
            let node = pod["status"]["nominatedNodeName"].as_str().unwrap_or_default();
            if !node.is_empty() {
                said.push((pod["metadata"]["uid"].as_str().expect("a uid"), node));
            }
        }
        let known = self.nodes.keys().flat_map(|node| {
            let kept = scheduler.cache.nominated_on(node).into_iter();
            kept.map(move |(pod, _)| (scheduler.cache.cluster.text(pod), node.as_str()))
        });
        let mut known: Vec<(&str, &str)> = known.collect();
        said.retain(|(_, node)| self.nodes.contains_key(*node));
        known.retain(|(uid, _)| {
            let pod = self.pods.values().find(|pod| pod["metadata"]["uid"] == *uid);
            pod.is_none_or(waits)
        });
        said.sort_unstable();
        known.sort_unstable();
        assert_eq!(known, said);
    }

    /// Checks that the pods of a node request at most its allocatable CPUs and pods.
    fn check_no_node_is_overcommitted(&self) {
        let mut used: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        let milli = |text: &str| match text.strip_suffix('m') {
            Some(milli) => milli.parse::<i64>().expect("a number"),
            None => text.parse::<i64>().expect("a number") * 1000,
        };
        for pod in self.pods.values() {
            if let Some(node) = pod["spec"]["nodeName"].as_str() {
                let cpu = &pod["spec"]["containers"][0]["resources"]["requests"]["cpu"];
                let of = used.entry(node).or_default();
                of.0 += milli(cpu.as_str().expect("a CPU request"));
                of.1 += 1;
                // A successor may find entries of a scheduler that died: see `says_what_is_taken`.
                for share in claims::shares(pod).filter(|_| !self.has_successors) {
                    of.0 += milli(share["resources"]["cpu"].as_str().expect("CPUs"));
                }
            }
        }
        for (name, (cpu, pods)) in used {
            let node = &self.nodes[name];
            let has = &node["status"]["allocatable"];
            let most = has["pods"].as_str().expect("a quantity").parse::<i64>().expect("a number");
            assert!(
                cpu <= milli(has["cpu"].as_str().expect("a quantity")) && pods <= most,
                "{name}"
            );
        }
    }

    /// Checks that no pending pod fits on a node, by the decision of a new scheduler.
    fn check_no_pending_pod_fits(&self, scheduler: &Scheduler) {
        let nodes = self.nodes.values().map(|node| thing(WatchedKind::Node, node));
        // Pods of a gang are decided one after the other, so whether all fit depends on their
        // order. This order is the queue's.
        let mut pods: Vec<&Value> = self.pods.values().collect();
        pods.sort_by_key(|pod| {
            let waiting = scheduler.queue.get(pod["metadata"]["uid"].as_str().expect("a uid"));
            waiting.map(|waiting| (waiting.first_attempt, waiting.number()))
        });
        let pods = pods.into_iter().map(|pod| thing(WatchedKind::Pod, pod));
        let claims = self.claims.values().map(|claim| thing(WatchedKind::ResourceClaim, claim));
        let slices = self.slices.values().map(|slice| thing(WatchedKind::ResourceSlice, slice));
        let devices = claims.chain(slices).chain([claims::class()]);
        let things: Vec<WatchedObject> = nodes.chain(pods).chain(devices).collect();
        self.no_group_fits(things.clone());
        let mut fresh = self.scheduler_with(&things);
        self.send_rules(&mut fresh);
        for value in self.pods.values() {
            let is_free = value["spec"]["nodeName"].is_null()
                && value["metadata"].get("deletionTimestamp").is_none()
                && (!self.has_groups || value["spec"].get("schedulingGroup").is_none())
                && value["spec"].get("schedulingGates").is_none_or(Value::is_null);
            if !is_free {
                continue;
            }
            let pod: k8s_openapi::api::core::v1::Pod =
                serde_json::from_value(value.clone()).expect("a pod");
            let asking = Asking::new(&pod, &mut fresh.cache).expect("it can be read");
            let outcome = fresh.evaluator.decide(&mut fresh.cache, &asking);
            let uid = value["metadata"]["uid"].as_str().expect("a uid");
            let waits = scheduler.queue.get(uid).map(|w| (w.place, &w.rejectors, w.attempts));
            assert_eq!(outcome.feasible, 0, "{value} fits: {waits:?}");
        }
    }
}
