//! Events that requeue a rejected pod, and events that do not.

use pintle_sched_core::config::SpreadDefaults;
use serde_json::{Value, json};

use super::tests::{
    at, binds_volumes, bound, claim, decide, deliver_lists, node, object, of_driver, renamed,
    scheduler_with, using, volumes, with, with_claim, without_second_look,
};
use super::*;
use crate::watch_event::{WatchEvent, WatchedObject};

pub(super) fn node_like(name: &str, change: impl FnOnce(&mut Value)) -> WatchedObject {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    change(&mut node);
    WatchedObject::Node(object(node))
}

fn web(name: &str, node: Option<&str>) -> WatchedObject {
    with(name, "1", |pod| {
        pod["metadata"]["labels"] = json!({"app": "web"});
        pod["spec"]["nodeName"] = json!(node);
    })
}

#[test]
fn pod_spread_by_a_service_created_later_is_requeued_by_pod_deletions() {
    let constraint = json!([{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule"}]);
    let spread_defaults = SpreadDefaults::List(*object(constraint));
    let profile = Profile { spread_defaults, ..Profile::default() };
    let a = node_like("a", |node| node["metadata"]["labels"]["zone"] = json!("a"));
    let b = node_like("b", |node| {
        node["metadata"]["labels"]["zone"] = json!("b");
        node["spec"]["taints"] = json!([{"key": "k", "effect": "NoSchedule"}]);
    });
    let fills = with("fills", "3", |pod| pod["spec"]["nodeName"] = json!("a"));
    let there = web("there", Some("a"));
    let mut scheduler = Scheduler::new(vec![profile], without_second_look(), 1);
    deliver_lists(&mut scheduler, &[a, b, fills.clone(), there.clone(), web("p", None)]);
    assert_eq!(decide(&mut scheduler, 0).iter().find_map(bound), None, "it has no room");
    let service = json!({"metadata": {"name": "web", "namespace": "default"},
        "spec": {"selector": {"app": "web"}}});
    scheduler.handle(WatchEvent::Set(WatchedObject::Service(object(service))), at(10));
    scheduler.handle(WatchEvent::Gone(fills), at(20));
    assert_eq!(decide(&mut scheduler, 20).iter().find_map(bound), None, "its zone is full");
    scheduler.handle(WatchEvent::Gone(there), at(40));
    let (_, node) = decide(&mut scheduler, 40).iter().find_map(bound).expect("it fits now");
    assert_eq!(&*node, "a");
}

fn waits_at(scheduler: &Scheduler, uid: &str) -> (QueuePlace, u32) {
    let waiting = scheduler.queue.get(uid).expect("it waits");
    (waiting.place, waiting.attempts)
}

#[test]
fn node_images_and_cordon_requeue_no_pod() {
    let picky = |labels: &Value| {
        with("p", "1", |pod| {
            pod["metadata"]["labels"] = labels.clone();
            pod["spec"]["nodeSelector"] = json!({"disk": "ssd"});
        })
    };
    let changes: [fn(&mut Value); 2] = [
        |node| node["status"]["images"] = json!([{"names": ["i"], "sizeBytes": 1}]),
        |node| node["spec"]["unschedulable"] = json!(true),
    ];
    for change in changes {
        let mut scheduler = scheduler_with(vec![node_like("n", |_| ()), picky(&Value::Null)]);
        decide(&mut scheduler, 0);
        // The pod changed, so the plugins that would reject it now are unknown.
        scheduler.handle(WatchEvent::Set(picky(&json!({"app": "web"}))), at(10));
        assert_eq!(scheduler.handle(WatchEvent::Set(node_like("n", change)), at(20)), None);
        assert_eq!(waits_at(&scheduler, "p"), (QueuePlace::Unschedulable, 1));
    }
}

#[test]
fn irrelevant_update_does_not_requeue_a_pod_that_needs_a_node_feature() {
    let needs = |version: &str| {
        with("p", "1", |pod| {
            pod["metadata"]["resourceVersion"] = json!(version);
            pod["metadata"]["annotations"] = json!({"version": version});
            pod["spec"]["hostNetwork"] = json!(true);
            pod["spec"]["hostUsers"] = json!(false);
        })
    };
    let mut scheduler = scheduler_with(vec![node("n", "1"), needs("1")]);
    assert!(!decide(&mut scheduler, 0).is_empty(), "it is rejected");
    let rejectors = &scheduler.queue.get("p").expect("it waits").rejectors;
    assert!(rejectors.contains(&Plugin::NodeDeclaredFeatures), "{rejectors:?}");
    scheduler.handle(WatchEvent::Set(needs("2")), at(20));
    assert_eq!(decide(&mut scheduler, 20), []);
    let declares = node_like("n", |node| {
        node["status"]["declaredFeatures"] = json!(["UserNamespacesHostNetworkSupport"]);
    });
    scheduler.handle(WatchEvent::Set(declares), at(40));
    assert!(decide(&mut scheduler, 40).iter().any(|command| bound(command).is_some()));
}

#[test]
fn cleared_nomination_requeues_pods_of_equal_priority_but_not_higher() {
    let of = |name: &str, priority: i32, node: Option<&str>, kept: &str| {
        with(name, "2", |pod| {
            pod["spec"]["priority"] = json!(priority);
            pod["spec"]["nodeName"] = json!(node);
            pod["status"]["nominatedNodeName"] = json!(kept);
        })
    };
    let things = [
        node("n", "3"),
        of("there", 100, Some("n"), ""),
        of("high", 10, None, ""),
        of("alike", 0, None, ""),
        of("kept", 0, None, "n"),
    ];
    let mut scheduler = scheduler_with(things.to_vec());
    // The last of them fits nowhere, so its nomination is cleared.
    decide(&mut scheduler, 0);
    assert_eq!(scheduler.cache.nominated_on("n"), []);
    assert_eq!(waits_at(&scheduler, "high"), (QueuePlace::Unschedulable, 1));
    assert_eq!(waits_at(&scheduler, "alike"), (QueuePlace::Unschedulable, 2));
}

#[test]
fn pods_that_wait_for_another_scheduler_are_no_event() {
    let of = |scheduler: &str, node: Option<&str>| {
        with("p", "1", |pod| {
            pod["spec"]["schedulerName"] = json!(scheduler);
            pod["spec"]["nodeName"] = json!(node);
        })
    };
    let mut scheduler = scheduler_with(vec![node("n", "4")]);
    let mut handle = |event| scheduler.handle(event, at(1));
    let other = of("other", None);
    assert_eq!(
        [WatchEvent::Set(other.clone()), WatchEvent::Set(other.clone())].map(&mut handle),
        [None; 2]
    );
    assert_eq!(handle(WatchEvent::Gone(other)), None);
    let ours = of("default-scheduler", None);
    assert_eq!(handle(WatchEvent::Set(ours.clone())), Some("UnschedulablePodAdd"));
    assert_eq!(handle(WatchEvent::Set(ours.clone())), Some("UnschedulablePodUpdate"));
    assert_eq!(handle(WatchEvent::Gone(ours)), Some("UnschedulablePodDelete"));
    let there = of("other", Some("n"));
    assert_eq!(handle(WatchEvent::Set(there.clone())), Some("AssignedPodAdd"));
    assert_eq!(handle(WatchEvent::Set(there.clone())), Some("AssignedPodUpdate"));
    assert_eq!(handle(WatchEvent::Gone(there)), Some("AssignedPodDelete"));
}

#[test]
fn pod_waiting_for_a_claim_is_requeued_only_by_pods_that_used_the_claim() {
    let things = [node("a", "8"), using("user", "c", 0, Some("a")), using("other", "d", 0, None)];
    let made = ["c", "d"].into_iter().flat_map(|name| of_driver(name, "ReadWriteOncePod"));
    let waits = [using("waits", "c", 0, None), using("lacks", "none", 0, None)];
    let mut scheduler = scheduler_with(things.into_iter().chain(made).chain(waits).collect());
    decide(&mut scheduler, 0);
    let plain = with("plain", "1", |pod| pod["spec"]["nodeName"] = json!("a"));
    let mut leaving = plain.clone();
    if let WatchedObject::Pod(pod) = &mut leaving {
        pod.metadata.deletion_timestamp = Some(*object(json!("2024-01-01T00:00:00Z")));
    }
    let other = using("other", "d", 0, Some("a"));
    for told in [WatchEvent::Set(plain.clone()), WatchEvent::Set(leaving), WatchEvent::Gone(plain)]
    {
        scheduler.handle(told, at(20));
    }
    scheduler.handle(WatchEvent::Set(other.clone()), at(20));
    scheduler.handle(WatchEvent::Gone(other), at(20));
    let parked = (QueuePlace::Unschedulable, 1);
    assert_eq!((waits_at(&scheduler, "waits"), waits_at(&scheduler, "lacks")), (parked, parked));
    scheduler.handle(WatchEvent::Gone(using("user", "c", 0, Some("a"))), at(21));
    assert_eq!(waits_at(&scheduler, "lacks"), parked);
    let (pod, _) = decide(&mut scheduler, 40).iter().find_map(bound).expect("the claim is free");
    assert_eq!(pod.key.name(), "waits");
}

#[test]
fn pod_waiting_for_volumes_is_requeued_when_a_failed_binding_releases_them() {
    let things = [node("a", "8"), with_claim("p")].into_iter().chain(volumes());
    let mut scheduler = scheduler_with(things.collect());
    let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
    scheduler.handle(WatchEvent::Set(renamed(claim("1", false), "e")), at(1));
    scheduler.handle(WatchEvent::Set(using("q", "e", 0, None)), at(1));
    assert_eq!(binds_volumes(&decide(&mut scheduler, 1)), None, "there is one volume");
    let error = Some("the object has been modified".to_owned());
    scheduler.volumes_written(VolumeWrites { pod, number: 1, versions: vec![], error }, at(20));
    assert_eq!(waits_at(&scheduler, "q").0, QueuePlace::Active);
}
