//! Nodes with several pods while a set surges, and limits by the cases of upstream's tables.
// k8s: pkg/controller/daemon/daemon_controller_test.go TestSurge.., update_test.go

use std::collections::BTreeSet;

use pintle_api_types::kind::{CONTROLLER_REVISIONS, NODES, PODS};
use serde_json::json;

use super::*;

fn surging(nodes: usize) -> LoopWorld {
    let mut set = set();
    set["spec"]["updateStrategy"]["rollingUpdate"] = json!({"maxUnavailable": 0, "maxSurge": 1});
    world(set, nodes)
}

/// A pod of node-1: of the current template or an old one.
struct NodePod {
    name: &'static str,
    is_new: bool,
    created: u8,
    ready_at: Option<u8>,
}

const fn pod(name: &'static str, is_new: bool, created: u8, ready_at: Option<u8>) -> NodePod {
    NodePod { name, is_new, created, ready_at }
}

fn add(world: &mut LoopWorld, pod: &NodePod) {
    let revision = world.all(CONTROLLER_REVISIONS).next().expect("a revision");
    let hash = revision["metadata"]["labels"]["controller-revision-hash"].clone();
    let mut object = daemon_pod(pod.name, "node-1", "Running");
    let labels = &mut object["metadata"]["labels"];
    labels["pod-template-generation"] = if pod.is_new { "1" } else { "0" }.into();
    labels["controller-revision-hash"] = if pod.is_new { hash } else { "old".into() };
    object["metadata"]["creationTimestamp"] =
        format!("2025-12-31T00:00:{:02}Z", pod.created).into();
    let status = if pod.ready_at.is_some() { "True" } else { "False" };
    let since = format!("2025-12-31T00:00:{:02}Z", pod.ready_at.unwrap_or(0));
    object["status"]["conditions"] =
        json!([{"type": "Ready", "status": status, "lastTransitionTime": since}]);
    world.add(PODS, object);
}

#[test]
fn surging_node_keeps_a_new_pod_and_a_ready_old_pod() {
    let (new, new_ready) = (pod("new", true, 50, None), pod("new", true, 50, Some(10)));
    let old_ready = pod("old", false, 10, Some(0));
    let old_unready = pod("old", false, 10, None);
    let excess = pod("excess", false, 20, Some(0));
    let second = pod("second", true, 59, Some(10));
    for (pods, min_ready, left) in [
        (vec![&new, &old_ready, &excess], 0, vec!["new", "old"]),
        (vec![&new, &old_unready, &excess], 0, vec!["new"]),
        (vec![&new_ready, &old_ready, &excess], 15, vec!["new", "old"]),
        (vec![&new_ready, &old_ready, &excess], 5, vec!["new"]),
        (vec![&new, &second], 0, vec!["new"]),
        (vec![&old_ready], 0, vec!["old", "ds"]),
        (vec![&old_unready], 0, vec!["old", "ds"]),
    ] {
        let mut world = surging(2);
        world.edit(pintle_api_types::kind::DAEMON_SETS, "ds", |set| {
            set["spec"]["minReadySeconds"] = min_ready.into();
        });
        settle_slowly(&mut world);
        let on_node = |pod: &&Value| pod["spec"]["nodeName"] == "node-1";
        let own = world.all(PODS).find(on_node).expect("a pod")["metadata"]["name"].clone();
        world.remove(PODS, own.as_str().expect("a name"));
        pods.iter().for_each(|pod| add(&mut world, pod));
        world.now = "2025-12-31T00:00:20Z".parse().expect("a time");
        sync(&mut world);
        let of_node_1 = |pod: &&Value| {
            pod["metadata"]["deletionTimestamp"].is_null()
                && !pod.to_string().contains("\"node-0\"")
        };
        let names: BTreeSet<_> = world
            .all(PODS)
            .filter(of_node_1)
            .map(|pod| {
                let name = pod["metadata"]["name"].as_str().expect("a name");
                name.split('-').next().expect("a part").to_owned()
            })
            .collect();
        assert_eq!(names, left.iter().map(ToString::to_string).collect(), "{left:?}");
    }
}

/// Settles a set with pods that take time to become available.
fn settle_slowly(world: &mut LoopWorld) {
    for _ in 0..4 {
        sync(world);
        world.run_kubelets();
        world.now += jiff::SignedDuration::from_secs(60);
    }
}

#[test]
fn node_with_only_a_terminating_pod_gets_a_new_pod_at_once() {
    let mut world = surging(2);
    settle(&mut world);
    let pod = world.names(PODS)[0].to_owned();
    world.edit(PODS, &pod, |pod| {
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    });
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 1, deleted: 0 });
}

#[test]
fn surge_continues_while_tainted_nodes_are_left() {
    // k8s: TestDaemonSetUpdatesPodsNotMatchTainstWithMaxSurge
    let mut world = surging(5);
    taint(&mut world, "node-0", "k", "NoSchedule");
    world.edit(pintle_api_types::kind::DAEMON_SETS, "ds", |set| {
        set["spec"]["template"]["spec"]["tolerations"] =
            json!([{"key": "k", "operator": "Exists"}]);
    });
    settle(&mut world);
    assert_eq!(images(&world).len(), 5);
    edit(&mut world, |set| {
        set["spec"]["template"]["spec"]["tolerations"] = Value::Null;
        set["metadata"]["annotations"]["deprecated.daemonset.template.generation"] = "2".into();
    });
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 1, deleted: 1 });
    world.run_kubelets();
    for _ in 0..12 {
        let actions = pod_actions(&sync(&mut world));
        assert!(actions.created <= 1 && actions.deleted <= 1, "{actions:?}");
        assert!(world.all(PODS).count() <= 5, "one pod more than nodes");
        world.run_kubelets();
    }
    assert_eq!(images(&world).len(), 4);
}

#[test]
fn ready_old_pods_are_kept_while_pending_pods_use_up_max_unavailable() {
    // k8s: TestDaemonSetUpdatesSaveOldHealthyPods
    let mut wanted = set();
    wanted["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = 4.into();
    let mut world = world(wanted, 8);
    settle(&mut world);
    set_image(&mut world, "two");
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 4 });
    let deleting = |pod: &&Value| !pod["metadata"]["deletionTimestamp"].is_null();
    let gone: Vec<_> = world.all(PODS).filter(deleting).cloned().collect();
    for pod in &gone {
        world.remove(PODS, pod["metadata"]["name"].as_str().expect("a name"));
    }
    let healthy: BTreeSet<_> = world.names(PODS).into_iter().map(str::to_owned).collect();
    for (turn, limit) in [3, 0, 2, 4].into_iter().enumerate() {
        assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 4, deleted: 0 });
        edit(&mut world, |set| {
            set["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] = limit.into();
        });
        set_image(&mut world, &format!("image-{turn}"));
        assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 4 });
        let left: BTreeSet<_> = world.names(PODS).into_iter().map(str::to_owned).collect();
        assert_eq!(left, healthy, "pending pods are deleted at once");
    }
}

#[test]
fn limits_are_taken_of_the_nodes_that_should_run_a_pod() {
    // k8s: TestGetUnavailableNumbers
    use super::super::nodes::PodsByNode;
    use super::super::rollout::{Rollout, RolloutLimits};
    for (nodes, unavailable, surge, wanted) in [
        (0, json!(0), json!(0), [0, 0, 0]),
        (2, json!(1), json!(0), [0, 1, 2]),
        (2, json!(0), json!(0), [0, 1, 2]),
        (2, json!("50%"), json!(0), [0, 1, 2]),
        (2, json!(0), json!("50%"), [1, 0, 2]),
        (2, json!(0), json!("100%"), [2, 0, 2]),
        (3, json!("50%"), json!(null), [0, 2, 3]),
    ] {
        let mut object = set();
        object["spec"]["updateStrategy"]["rollingUpdate"] =
            json!({"maxUnavailable": unavailable, "maxSurge": surge});
        let world = world(object.clone(), nodes);
        let tables = world.tables();
        let nodes: Vec<_> = tables.nodes.iter().cloned().collect();
        let set = serde_json::from_value(object).expect("a set");
        let fit = super::super::template::fit_of(&set);
        let rollout = Rollout { set: &set, fit: &fit, hash: "", nodes: &nodes, now: world.now };
        let mut pods = PodsByNode::new();
        let [surge, unavailable, desired] = wanted;
        let limits = RolloutLimits { surge, unavailable, desired };
        assert_eq!(rollout.limits(&mut pods), Ok(limits));
        assert_eq!(pods.len(), nodes.len(), "each node without pods has an entry");
    }
}

#[test]
fn surge_rollout_fails_while_the_node_of_an_old_pod_is_missing() {
    let mut world = surging(2);
    settle(&mut world);
    set_image(&mut world, "two");
    world.remove(NODES, "node-1");
    let failure = sync(&mut world).outcome.expect_err("a node is gone");
    assert_eq!(
        failure.message,
        "couldn't get node for nodeName \"node-1\": node \"node-1\" not found"
    );
}
