//! Rolling updates with and without surge, and OnDelete.
// k8s: pkg/controller/daemon/update_test.go

use pintle_api_types::kind::{NODES, PODS};
use serde_json::json;

use super::*;

fn with_limits(unavailable: Value, surge: Value) -> Value {
    let mut set = set();
    set["spec"]["updateStrategy"]["rollingUpdate"] =
        json!({"maxUnavailable": unavailable, "maxSurge": surge});
    set
}

fn set_ready(world: &mut LoopWorld, node: &str, ready: &str) {
    let of_node = |pod: &&Value| pod["spec"]["nodeName"] == node;
    let pod = world.all(PODS).find(of_node).expect("a pod on the node").clone();
    let name = pod["metadata"]["name"].as_str().expect("a name");
    world.edit(PODS, name, |pod| pod["status"]["conditions"][0]["status"] = ready.into());
}

#[test]
fn old_pods_are_deleted_up_to_the_limit_both_percentages_rounded_up() {
    for (unavailable, surge, deleted, created) in [
        (json!(1), json!(0), 1, 0),
        (json!(3), json!(0), 3, 0),
        (json!("30%"), json!(0), 2, 0),
        (json!(0), json!(0), 1, 0),
        (json!(0), json!(1), 0, 1),
        (json!(0), json!("30%"), 0, 2),
        (json!(0), json!("100%"), 0, 5),
    ] {
        let mut world = world(with_limits(unavailable.clone(), surge.clone()), 5);
        settle(&mut world);
        set_image(&mut world, "two");
        let driven = sync(&mut world);
        assert_eq!(pod_actions(&driven), PodActions { created, deleted }, "{unavailable} {surge}");
        let again = sync(&mut world);
        assert_eq!(pod_actions(&again), PodActions { created: 0, deleted: 0 }, "no more at once");
        settle(&mut world);
        assert!(images(&world).values().all(|image| image == "two"), "{:?}", images(&world));
        assert_eq!(status(&world)["updatedNumberScheduled"], 5);
    }
}

#[test]
fn old_pod_that_is_not_available_is_replaced_beyond_the_limit() {
    let mut world = world(set(), 4);
    settle(&mut world);
    set_image(&mut world, "two");
    for node in ["node-0", "node-1"] {
        set_ready(&mut world, node, "False");
    }
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 2 });
    world.run_kubelets();
    assert_eq!(images(&world).keys().collect::<Vec<_>>(), ["node-2", "node-3"]);
}

#[test]
fn new_pod_that_is_not_available_holds_up_the_rollout() {
    let mut world = world(set(), 3);
    settle(&mut world);
    set_image(&mut world, "two");
    sync(&mut world);
    world.run_kubelets();
    sync(&mut world);
    world.run_kubelets();
    set_ready(&mut world, "node-0", "False");
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 0 });
    set_ready(&mut world, "node-0", "True");
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 1 });
}

#[test]
fn surge_keeps_the_old_pod_until_the_new_one_is_available() {
    let mut surging = with_limits(json!(0), json!(1));
    surging["spec"]["minReadySeconds"] = 10.into();
    let mut world = world(surging, 2);
    for _ in 0..2 {
        sync(&mut world);
        world.run_kubelets();
    }
    world.now += jiff::SignedDuration::from_secs(10);
    settle(&mut world);
    set_image(&mut world, "two");
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 1, deleted: 0 });
    world.run_kubelets();
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 0 });
    assert_eq!(images(&world)["node-0"].len(), "onetwo".len());
    world.now += jiff::SignedDuration::from_secs(10);
    assert_eq!(pod_actions(&sync(&mut world)), PodActions { created: 0, deleted: 1 });
    world.run_kubelets();
    assert_eq!(images(&world)["node-0"], "two");
}

#[test]
fn surge_does_not_wait_for_an_old_pod_that_is_not_ready() {
    let mut world = world(with_limits(json!(0), json!(1)), 3);
    settle(&mut world);
    set_image(&mut world, "two");
    for node in ["node-0", "node-1", "node-2"] {
        set_ready(&mut world, node, "False");
    }
    assert_eq!(pod_actions(&sync(&mut world)).created, 3);
    let driven = sync(&mut world);
    assert_eq!(pod_actions(&driven).deleted, 3, "the old pods are of no use any more");
}

#[test]
fn surge_rollout_leaves_no_pod_on_a_node_tainted_noschedule() {
    let mut world = world(with_limits(json!(0), json!(1)), 2);
    world.edit(NODES, "node-0", |node| node["metadata"]["labels"] = json!({"old": "yes"}));
    settle(&mut world);
    taint(&mut world, "node-0", "k", "NoSchedule");
    set_image(&mut world, "two");
    settle(&mut world);
    let images = images(&world);
    assert_eq!((images.get("node-0"), &*images["node-1"]), (None, "two"));
}

#[test]
fn on_delete_strategy_replaces_no_running_pod() {
    let mut manual = set();
    manual["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    let mut world = world(manual, 2);
    settle(&mut world);
    set_image(&mut world, "two");
    settle(&mut world);
    assert!(images(&world).values().all(|image| image == "one"));
    assert_eq!(status(&world)["updatedNumberScheduled"], Value::Null);
    let pod = world.names(PODS)[0].to_owned();
    world.remove(PODS, &pod);
    settle(&mut world);
    assert_eq!(status(&world)["updatedNumberScheduled"], 1);
}

#[test]
fn pod_is_of_the_current_template_by_hash_or_by_number() {
    use super::super::template::is_updated;
    for (hash_label, number_label, hash, number, is_current) in [
        ("h", "1", "h", Some(1), true),
        ("h", "2", "h", Some(1), true),
        ("g", "1", "h", Some(1), true),
        ("g", "2", "h", Some(1), false),
        ("g", "1", "h", None, false),
        ("", "2", "", Some(1), false),
    ] {
        let labels = json!({"controller-revision-hash": hash_label,
            "pod-template-generation": number_label});
        let pod = json!({"metadata": {"labels": labels}});
        let pod = serde_json::from_value(pod).expect("a pod");
        assert_eq!(is_updated(&pod, hash, number), is_current, "{hash_label} {number_label}");
    }
}
