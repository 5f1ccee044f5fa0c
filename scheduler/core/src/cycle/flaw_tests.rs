//! Pods with invalid fields, and pods that changed while they were being bound.

use std::collections::BTreeMap;

use pintle_api_types::key::ObjectKey;
use serde_json::json;

use super::tests::{at, bound, condition, decide, node, pod, scheduler_with, with};
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

/// A pod on the only node, with two CPUs in one container and an invalid quantity in another.
fn flawed(node: &str) -> WatchedObject {
    with("old", "2", |pod| {
        pod["spec"]["nodeName"] = json!(node);
        let bad = json!({"name": "d", "resources": {"requests": {"cpu": "lots", "memory": "1Gi"}},
            "ports": [{"containerPort": 80, "hostPort": 80}]});
        pod["spec"]["containers"].as_array_mut().expect("containers").push(bad);
    })
}

#[test]
fn readable_fields_of_an_invalid_pod_on_a_node_are_counted() {
    let web = with("web", "1", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
    });
    let mut scheduler = scheduler_with(vec![node("n", "3"), flawed("n"), pod("big", "2"), web]);
    let commands = decide(&mut scheduler, 0);
    assert!(commands.iter().all(|command| bound(command).is_none()), "{commands:?}");
    assert_eq!(scheduler.cache.unreadable(), BTreeMap::from([(WatchedKind::Pod, 1)]));
    let whole = with("old", "2", |pod| pod["spec"]["nodeName"] = json!("n"));
    scheduler.handle(WatchEvent::Set(whole), at(1));
    assert_eq!(scheduler.cache.unreadable(), BTreeMap::from([(WatchedKind::Pod, 0)]));
}

#[test]
fn invalid_affinity_term_of_a_bound_pod_is_ignored_and_valid_terms_count() {
    let pod = |name: &str, operator: &str| {
        let term = |operator: &str| {
            json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector":
                {"matchExpressions": [{"key": "app", "operator": operator}]}}])
        };
        let affinity = json!({
            "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term(operator)},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term("Exists")},
        });
        with(name, "1", |pod| {
            pod["spec"]["affinity"] = affinity;
            pod["spec"]["nodeName"] = json!("n");
        })
    };
    let labelled = with("p", "1", |pod| pod["metadata"]["labels"] = json!({"app": "web"}));
    let things = vec![node("n", "8"), pod("odd", "Sometimes"), labelled];
    let mut scheduler = scheduler_with(things);
    let commands = decide(&mut scheduler, 0);
    let (_, message) = condition(&commands).expect("it is rejected");
    assert!(message.contains("didn't satisfy existing pods anti-affinity rules"), "{message}");
}

#[test]
fn pending_pod_with_an_invalid_field_gets_a_scheduler_error_condition() {
    let bad = with("bad", "1", |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("lots");
    });
    let mut scheduler = scheduler_with(vec![node("n", "8"), bad, pod("good", "1")]);
    let commands = decide(&mut scheduler, 0);
    let (reason, message) = condition(&commands).expect("a condition");
    assert_eq!(reason, "SchedulerError");
    assert!(message.contains("resources.requests") && message.contains("lots"), "{message}");
    assert_eq!(commands.iter().filter_map(bound).count(), 1, "others are not held up");
}

/// Upstream's cache applies the change, but its queue sees only an added pod, which does not help.
#[test]
fn pod_relabelled_while_binding_no_longer_matches_an_anti_affinity_term() {
    let labelled = |value: &str, node: Option<&str>| {
        with("first", "100m", |pod| {
            pod["metadata"]["labels"] = json!({"app": value});
            pod["spec"]["nodeName"] = json!(node);
        })
    };
    let mut scheduler = scheduler_with(vec![node("n", "1"), labelled("z", None)]);
    decide(&mut scheduler, 0).iter().find_map(bound).expect("it is bound");
    let shy = with("shy", "100m", |pod| {
        pod["spec"]["affinity"] = json!({"podAntiAffinity":
            {"requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": {"matchLabels": {"app": "z"}},
                "topologyKey": "kubernetes.io/hostname"}]}});
    });
    scheduler.handle(WatchEvent::Set(shy), at(1));
    assert_eq!(decide(&mut scheduler, 1).iter().find_map(bound), None, "it keeps away");
    scheduler.handle(WatchEvent::Set(labelled("x", Some("n"))), at(2));
    let (second, _) = decide(&mut scheduler, 20).iter().find_map(bound).expect("no pod has app=z");
    assert_eq!(second.key.name(), "shy");
}

#[test]
fn pod_absent_from_two_lists_with_an_unnamed_item_is_removed() {
    let on_node = |name: &str| with(name, "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let mut scheduler =
        scheduler_with(vec![node("n", "3"), on_node("a"), on_node("b"), on_node("c")]);
    let lists = [
        (vec!["a", "c"], ["a", "b", "c"].as_slice()),
        (vec!["a", "b"], &["a", "b", "c"]),
        (vec!["a", "b"], &["a", "b"]),
    ];
    for (listed, left) in lists {
        scheduler.handle(WatchEvent::Begun(WatchedKind::Pod), at(1));
        listed
            .into_iter()
            .for_each(|name| _ = scheduler.handle(WatchEvent::Listed(on_node(name)), at(1)));
        scheduler.handle(WatchEvent::Unreadable(WatchedKind::Pod, None), at(1));
        scheduler.handle(WatchEvent::Complete(WatchedKind::Pod), at(1));
        let known = ["a", "b", "c"]
            .into_iter()
            .filter(|name| scheduler.cache.node_of(&ObjectKey::new("default", name)).is_some());
        assert_eq!(known.collect::<Vec<_>>(), left);
    }
}
