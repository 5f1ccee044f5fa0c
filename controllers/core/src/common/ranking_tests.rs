//! Upstream's table of pairs, and properties of the ranking.
// k8s: pkg/controller/controller_utils_test.go TestSortingActivePodsWithRanks

use std::rc::Rc;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::symbol::Symbol;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::ranking::{PodsByNode, rank_for_deletion};
use crate::kept::KeptObject;
use crate::kinds::Pod;

const HOUR: i64 = 3600;
const MONTH: i64 = 30 * 24 * HOUR;

fn now() -> Timestamp {
    Timestamp::from_second(2_000_000_000).expect("a time")
}

fn ago(seconds: i64) -> Value {
    json!((now() - SignedDuration::from_secs(seconds)).to_string())
}

/// A pod of the upstream table; each has a node of its own, so that it has a rank of its own.
struct RankedPod {
    name: &'static str,
    is_assigned: bool,
    phase: &'static str,
    ready_since: Option<Value>,
    restarts: i32,
    sidecar_restarts: i32,
    created: Value,
    cost: Option<&'static str>,
}

fn case(name: &'static str) -> RankedPod {
    let base = RankedPod {
        name,
        is_assigned: true,
        phase: "Running",
        ready_since: None,
        restarts: 0,
        sidecar_restarts: 0,
        created: Value::Null,
        cost: None,
    };
    let ready = |ready: Value, created: Value| Some((ready, created));
    let times = match name {
        "ready, no time" => ready(Value::Null, Value::Null),
        "ready now" | "many restarts" | "many sidecar restarts" => ready(ago(0), ago(0)),
        "ready then" => ready(ago(MONTH), ago(MONTH)),
        "ready now, created then" | "cheap" | "dear" => ready(ago(0), ago(MONTH)),
        "ready 2 hours" => ready(ago(2 * HOUR), ago(MONTH)),
        "ready 5 hours" => ready(ago(5 * HOUR), ago(MONTH)),
        "ready 8 hours" => ready(ago(8 * HOUR), ago(MONTH)),
        _ => None,
    };
    let base = match times {
        Some((since, created)) => RankedPod { ready_since: Some(since), created, ..base },
        None => base,
    };
    match name {
        "unscheduled" => RankedPod { is_assigned: false, phase: "Pending", ..base },
        "pending" => RankedPod { phase: "Pending", ..base },
        "unknown" => RankedPod { phase: "Unknown", ..base },
        "many restarts" => RankedPod { restarts: 9001, ..base },
        "many sidecar restarts" => RankedPod { restarts: 9001, sidecar_restarts: 9001, ..base },
        "cheap" => RankedPod { cost: Some("10"), ..base },
        "dear" => RankedPod { cost: Some("100"), ..base },
        _ => base,
    }
}

fn pod(case: RankedPod, node: &str) -> Rc<KeptObject<Pod>> {
    let node = if case.is_assigned { node } else { "" };
    let mut pod = json!({
        "metadata": {"name": case.name, "namespace": "n", "uid": node,
            "creationTimestamp": case.created},
        "spec": {"nodeName": node, "initContainers": [
            {"name": "sidecar", "restartPolicy": "Always"}, {"name": "init"}]},
        "status": {"phase": case.phase},
    });
    if let Some(since) = case.ready_since {
        pod["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": since}]);
        pod["status"]["containerStatuses"] =
            json!([{"name": "main", "restartCount": case.restarts}]);
        pod["status"]["initContainerStatuses"] = json!([
            {"name": "sidecar", "restartCount": case.sidecar_restarts},
            {"name": "init", "restartCount": 77_777}]);
    }
    if let Some(cost) = case.cost {
        pod["metadata"]["annotations"] =
            json!({"controller.kubernetes.io/pod-deletion-cost": cost});
    }
    Rc::new(KeptObject::of_value(&pod).expect("a good pod"))
}

fn names(pods: &[Rc<KeptObject<Pod>>]) -> Vec<&str> {
    pods.iter().map(|pod| &*pod.metadata.name).collect()
}

#[test]
fn pod_that_is_missed_least_comes_first() {
    for (lesser, lesser_rank, greater, greater_rank) in [
        ("unscheduled", 1, "pending", 2),
        ("unscheduled", 2, "pending", 1),
        ("pending", 1, "unknown", 2),
        ("unknown", 1, "not ready", 2),
        ("not ready", 1, "ready, no time", 1),
        ("ready, no time", 1, "ready now", 1),
        ("ready now", 2, "ready, no time", 1),
        ("ready now", 1, "ready then", 1),
        ("ready now", 2, "ready then", 1),
        ("many restarts", 1, "ready now", 1),
        ("many sidecar restarts", 1, "many restarts", 1),
        ("ready now", 2, "many restarts", 1),
        ("ready now", 1, "ready now, created then", 1),
        ("ready now, created then", 2, "ready now", 1),
        ("cheap", 2, "dear", 1),
        ("ready 2 hours", 1, "ready 5 hours", 1),
    ] {
        let by_node =
            [("a", lesser_rank), ("b", greater_rank)].map(|(node, rank)| (Symbol::of(node), rank));
        let related = PodsByNode::from(by_node);
        let (one, other) = (pod(case(lesser), "a"), pod(case(greater), "b"));
        let there = rank_for_deletion(&[Rc::clone(&one), Rc::clone(&other)], &related, now());
        assert_eq!(names(&there), [lesser, greater]);
        let back = rank_for_deletion(&[other, one], &related, now());
        assert_eq!(names(&back), [lesser, greater], "given the other way round");
    }
}

#[test]
fn ready_times_within_one_step_of_the_logarithm_are_ordered_by_uid() {
    for (one, other) in [("a", "b"), ("b", "a")] {
        let pods = [pod(case("ready 5 hours"), one), pod(case("ready 8 hours"), other)];
        let ranked = rank_for_deletion(&pods, &PodsByNode::new(), now());
        assert_eq!(ranked[0].metadata.uid.as_str(), "a");
    }
}

#[test]
fn invalid_deletion_cost_counts_as_zero() {
    for (cost, is_before_zero) in [
        ("-1", true),
        ("-010", true),
        ("+10", false),
        ("008", false),
        ("0", false),
        ("-", false),
        ("-9999999999", false),
        ("x", false),
    ] {
        let costly = pod(RankedPod { cost: Some(cost), ..case("dear") }, "b");
        let zero = pod(RankedPod { cost: None, ..case("dear") }, "a");
        let ranked = rank_for_deletion(&[zero, costly], &PodsByNode::new(), now());
        let is_first = ranked[0].metadata.uid.as_str() == "b";
        assert_eq!(is_first, is_before_zero, "{cost}");
    }
}

proptest! {
    #[test]
    fn ranking_keeps_every_pod_and_puts_pods_without_node_first(
        draws in prop::collection::vec((any::<bool>(), 0..3_usize, prop::option::of(0..40_i64),
            0..3_i32, 0..40_i64), 0..60)
    ) {
        let mut pods = Vec::new();
        for (at, (is_assigned, phase, since, restarts, created)) in draws.into_iter().enumerate() {
            let drawn = RankedPod {
                is_assigned,
                phase: ["Pending", "Unknown", "Running"][phase],
                ready_since: since.map(|hours| ago(hours * HOUR)),
                restarts,
                created: ago(created * HOUR),
                ..case("drawn")
            };
            pods.push(pod(drawn, &format!("node-{}", at % 7)));
        }
        let ranked = rank_for_deletion(&pods, &PodsByNode::new(), now());
        prop_assert_eq!(ranked.len(), pods.len());
        for known in &pods {
            let times = ranked.iter().filter(|pod| Rc::ptr_eq(pod, known)).count();
            prop_assert_eq!(times, 1);
        }
        let mut unassigned = ranked.iter().map(|pod| pod.spec.node_name.is_empty());
        prop_assert!(unassigned.by_ref().skip_while(|first| *first).all(|later| !later));
    }
}
