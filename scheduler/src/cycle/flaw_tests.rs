//! Pods of which something cannot be read.

use std::collections::BTreeMap;

use serde_json::json;

use super::tests::{at, bound, condition, decide, knowing, node, pod, with};
use crate::watch::{Kind, Thing, Told};

/// On the only node, with two CPUs in one container and an amount that is none in another.
fn flawed(node: &str) -> Thing {
    with("old", "2", |pod| {
        pod["spec"]["nodeName"] = json!(node);
        let bad = json!({"name": "d", "resources": {"requests": {"cpu": "lots", "memory": "1Gi"}},
            "ports": [{"containerPort": 80, "hostPort": 80}]});
        pod["spec"]["containers"].as_array_mut().expect("containers").push(bad);
    })
}

#[test]
fn what_can_be_read_of_a_pod_on_a_node_counts() {
    let web = with("web", "1", |pod| {
        pod["spec"]["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 80}]);
    });
    let mut scheduler = knowing(vec![node("n", "3"), flawed("n"), pod("big", "2"), web]);
    let commands = decide(&mut scheduler, 0);
    assert!(commands.iter().all(|command| bound(command).is_none()), "{commands:?}");
    assert_eq!(scheduler.mirror.unreadable(), BTreeMap::from([(Kind::Pod, 1)]));
    let whole = with("old", "2", |pod| pod["spec"]["nodeName"] = json!("n"));
    scheduler.tell(Told::Set(whole), at(1));
    assert_eq!(scheduler.mirror.unreadable(), BTreeMap::from([(Kind::Pod, 0)]));
}

#[test]
fn an_affinity_without_meaning_counts_for_nothing_and_the_others_count() {
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
    let mut scheduler = knowing(things);
    let commands = decide(&mut scheduler, 0);
    let (_, message) = condition(&commands).expect("it is rejected");
    assert!(message.contains("didn't satisfy existing pods anti-affinity rules"), "{message}");
}

#[test]
fn a_pod_without_a_node_that_cannot_be_read_is_told_so() {
    let bad = with("bad", "1", |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("lots");
    });
    let mut scheduler = knowing(vec![node("n", "8"), bad, pod("good", "1")]);
    let commands = decide(&mut scheduler, 0);
    let (reason, message) = condition(&commands).expect("it is told");
    assert_eq!(reason, "SchedulerError");
    assert!(message.contains("resources.requests") && message.contains("lots"), "{message}");
    assert_eq!(commands.iter().filter_map(bound).count(), 1, "others are not held up");
}
