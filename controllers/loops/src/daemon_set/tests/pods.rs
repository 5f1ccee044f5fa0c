//! Pods per node: created, deleted, adopted, and what they look like.

use pintle_api_types::kind::{CONTROLLER_REVISIONS, DAEMON_SETS, NODES, PODS};
use serde_json::json;

use super::super::update::BURST_MAX;
use super::*;
use crate::test_world::error;

#[test]
fn each_node_gets_a_pod_and_the_status_counts_them() {
    let mut world = world(set(), 3);
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 3, deleted: 0 });
    let messages: Vec<_> = driven.events.iter().map(|event| event.message.as_str()).collect();
    assert!(messages.iter().all(|message| message.starts_with("Created pod: ds-")), "{messages:?}");
    assert_eq!(status(&world)["desiredNumberScheduled"], 3);
    assert_eq!(status(&world)["numberUnavailable"], 3);
    settle(&mut world);
    assert_eq!(
        *status(&world),
        json!({"observedGeneration": 1, "desiredNumberScheduled": 3,
        "currentNumberScheduled": 3, "numberMisscheduled": 0, "numberReady": 3,
        "updatedNumberScheduled": 3, "numberAvailable": 3})
    );
    assert!(sync(&mut world).requests.is_empty());
}

#[test]
fn daemon_pod_is_pinned_to_its_node_and_tolerates_node_problems() {
    let mut tolerant = set();
    tolerant["spec"]["template"]["spec"]["tolerations"] = json!([
        {"key": "own", "operator": "Exists"},
        {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute",
            "tolerationSeconds": 5},
    ]);
    tolerant["spec"]["template"]["spec"]["affinity"] = json!({"podAntiAffinity": {"kept": true},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchExpressions": [{"key": "none", "operator": "DoesNotExist"}]}]}}});
    let mut world = world(tolerant, 1);
    sync(&mut world);
    let pod = world.all(PODS).next().expect("a pod");
    let revision = world.all(CONTROLLER_REVISIONS).next().expect("a revision");
    let hash = &revision["metadata"]["labels"]["controller-revision-hash"];
    assert_eq!(
        pod["metadata"]["labels"],
        json!({"app": "ds", "pod-template-generation": "1",
        "controller-revision-hash": hash})
    );
    let field = json!({"key": "metadata.name", "operator": "In", "values": ["node-0"]});
    assert_eq!(
        pod["spec"]["affinity"],
        json!({"podAntiAffinity": {"kept": true},
        "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
            {"nodeSelectorTerms": [{"matchFields": [field]}]}}})
    );
    let tolerations = pod["spec"]["tolerations"].as_array().expect("tolerations");
    assert_eq!(tolerations.len(), 7);
    assert_eq!(
        tolerations[1],
        json!({"key": "node.kubernetes.io/not-ready", "operator": "Exists",
        "effect": "NoExecute"}),
        "without an end"
    );
}

#[test]
fn pod_that_no_longer_fits_its_node_is_deleted() {
    let mut world = world(set(), 2);
    settle(&mut world);
    taint(&mut world, "node-0", "k", "NoSchedule");
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 0 });
    assert_eq!(status(&world)["numberMisscheduled"], 1);
    taint(&mut world, "node-0", "k", "NoExecute");
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 1 });
    assert!(driven.reasons.contains(&"node node-0 should run no pod".to_owned()));
    settle(&mut world);
    assert_eq!(images(&world).keys().collect::<Vec<_>>(), ["node-1"]);
    assert_eq!(status(&world)["desiredNumberScheduled"], 1);
}

#[test]
fn oldest_bound_pod_of_a_node_stays() {
    let mut world = world(set(), 1);
    sync(&mut world);
    let pending = world.names(PODS)[0].to_owned();
    let old = |world: &mut LoopWorld, name: &str, second: u8| {
        let mut pod = daemon_pod(name, "node-0", "Running");
        pod["metadata"]["creationTimestamp"] = format!("2025-01-01T00:00:0{second}Z").into();
        world.add(PODS, pod);
    };
    old(&mut world, "second", 2);
    old(&mut world, "first", 1);
    world.edit(PODS, &pending, |pod| {
        pod["metadata"]["creationTimestamp"] = "2024-01-01T00:00:00Z".into();
    });
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 2 });
    world.run_kubelets();
    assert_eq!(world.names(PODS), ["first"]);
}

#[test]
fn pending_pod_of_a_deleted_node_is_deleted() {
    let mut world = world(set(), 2);
    sync(&mut world);
    world.remove(NODES, "node-1");
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven), PodActions { created: 0, deleted: 1 });
    settle(&mut world);
    let bound = images(&world);
    assert_eq!(bound.keys().collect::<Vec<_>>(), ["node-0"]);
    world.remove(NODES, "node-0");
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven).deleted, 0, "a bound pod is the collector's concern");
}

#[test]
fn pods_are_created_in_bursts() {
    let mut world = world(set(), BURST_MAX + 30);
    assert_eq!(pod_actions(&sync(&mut world)).created, BURST_MAX);
    assert_eq!(pod_actions(&sync(&mut world)).created, 30);
}

#[test]
fn refused_pod_stops_the_slow_start_and_the_status_is_written() {
    let mut world = world(set(), 10);
    world.refuse = Box::new(|request| match request {
        Request::Create { kind, .. } if *kind == PODS => Some(error(403, "Forbidden")),
        _ => None,
    });
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven).created, 1);
    assert_eq!(driven.events.len(), 1);
    assert_eq!(driven.events[0].message, "Error creating: Forbidden");
    assert_eq!(driven.outcome.expect_err("it was refused").message, "Forbidden");
    assert_eq!(status(&world)["desiredNumberScheduled"], 10);
}

#[test]
fn refusal_in_a_terminating_namespace_is_no_failure() {
    let mut world = world(set(), 2);
    world.refuse = Box::new(|request| match request {
        Request::Create { kind, .. } if *kind == PODS => {
            let causes = vec!["NamespaceTerminating".to_owned()];
            Some(pintle_api_types::request::ApiError { causes, ..error(403, "Forbidden") })
        }
        _ => None,
    });
    let driven = sync(&mut world);
    assert!(driven.outcome.is_ok());
    assert!(driven.events.is_empty());
}

#[test]
fn orphan_is_adopted_and_a_pod_that_is_not_selected_is_released() {
    let mut world = world(set(), 1);
    let mut orphan = daemon_pod("orphan", "node-0", "Running");
    orphan["metadata"]["ownerReferences"] = json!([]);
    world.add(PODS, orphan);
    sync(&mut world);
    assert_eq!(world.names(PODS), ["orphan"]);
    let owners = |world: &LoopWorld| {
        let pod = world.get(PODS, "orphan").expect("it is there");
        pod["metadata"]["ownerReferences"].as_array().map_or(0, Vec::len)
    };
    assert_eq!(owners(&world), 1);
    world.edit(PODS, "orphan", |pod| pod["metadata"]["labels"]["app"] = "none".into());
    let driven = sync(&mut world);
    assert_eq!((owners(&world), pod_actions(&driven).created), (0, 1));
}

#[test]
fn set_that_selects_all_pods_or_is_being_deleted_does_nothing() {
    let mut all = set();
    all["spec"]["selector"] = json!({});
    let driven = sync(&mut world(all, 1));
    assert!(driven.requests.is_empty());
    assert_eq!(driven.events[0].reason, "SelectingAll");
    let mut deleting = set();
    deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let driven = sync(&mut world(deleting, 1));
    assert!(driven.requests.is_empty() && driven.events.is_empty());
}

#[test]
fn pod_counts_as_available_after_min_ready_seconds() {
    let mut slow = set();
    slow["spec"]["minReadySeconds"] = 30.into();
    let mut world = world(slow, 1);
    sync(&mut world);
    world.run_kubelets();
    let driven = sync(&mut world);
    let wait = driven.outcome.expect("no failure").again;
    assert_eq!(wait, Some(std::time::Duration::from_secs(30)));
    assert_eq!(status(&world)["numberReady"], 1);
    assert_eq!(status(&world)["numberAvailable"], Value::Null);
    world.now += jiff::SignedDuration::from_secs(30);
    sync(&mut world);
    assert_eq!(status(&world)["numberAvailable"], 1);
}

#[test]
fn refused_status_is_sent_once_more_on_the_newest_state() {
    let mut world = world(set(), 0);
    let sent = std::rc::Rc::new(std::cell::Cell::new(0));
    let count = std::rc::Rc::clone(&sent);
    world.refuse = Box::new(move |request| match request {
        Request::Replace { target, .. } if target.kind == DAEMON_SETS => {
            count.set(count.get() + 1);
            Some(error(500, "InternalError"))
        }
        _ => None,
    });
    assert!(sync(&mut world).outcome.is_err());
    assert_eq!(sent.get(), 2);
}
