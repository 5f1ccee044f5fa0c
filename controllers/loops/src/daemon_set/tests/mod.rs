//! Tests of DaemonSet by the cases of upstream's tables, against a cluster of a few objects.
// k8s: pkg/controller/daemon/daemon_controller_test.go, update_test.go

mod deletions;
mod failed;
mod placement;
mod pods;
mod properties;
mod revisions;
mod rollout;
mod surge;
mod wakes;

use std::collections::BTreeMap;

use pintle_api_types::kind::{DAEMON_SETS, NODES, PODS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::Driven;
use serde_json::{Value, json};

use super::{DaemonSets, FailedPodsNote};
use crate::test_world::LoopWorld;

/// A set named `ds`.
fn set() -> Value {
    json!({
        "metadata": {"name": "ds", "uid": "set", "generation": 1,
            "annotations": {"deprecated.daemonset.template.generation": "1"}},
        "spec": {
            "selector": {"matchLabels": {"app": "ds"}},
            "updateStrategy": {"type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
            "revisionHistoryLimit": 2,
            "template": {
                "metadata": {"labels": {"app": "ds"}},
                "spec": {"containers": [{"name": "c", "image": "one"}]},
            },
        },
        "status": {"currentNumberScheduled": 0, "desiredNumberScheduled": 0,
            "numberMisscheduled": 0, "numberReady": 0},
    })
}

/// A cluster with the set and nodes `node-0`, `node-1` and so on.
fn world(set: Value, nodes: usize) -> LoopWorld {
    let mut world = LoopWorld::new();
    world.add(DAEMON_SETS, set);
    for at in 0..nodes {
        world.add(NODES, json!({"metadata": {"name": format!("node-{at}")}}));
    }
    world
}

fn edit(world: &mut LoopWorld, edit: impl FnOnce(&mut Value)) {
    world.edit(DAEMON_SETS, "ds", |set| {
        let generation = set["metadata"]["generation"].as_i64().expect("a number") + 1;
        set["metadata"]["generation"] = generation.into();
        edit(set);
    });
}

/// Changes the template, and its number as the API server does.
fn set_image(world: &mut LoopWorld, image: &str) {
    edit(world, |set| {
        set["spec"]["template"]["spec"]["containers"][0]["image"] = image.into();
        let generation = set["metadata"]["generation"].to_string();
        set["metadata"]["annotations"]["deprecated.daemonset.template.generation"] =
            generation.into();
    });
}

fn taint(world: &mut LoopWorld, node: &str, key: &str, effect: &str) {
    world.edit(NODES, node, |node| {
        node["spec"]["taints"] = json!([{"key": key, "effect": effect}]);
    });
}

fn sync(world: &mut LoopWorld) -> Driven<FailedPodsNote> {
    world.sync(&mut DaemonSets::new(1), "ds")
}

/// Syncs and runs kubelets until nothing changes any more.
fn settle(world: &mut LoopWorld) {
    for _ in 0..100 {
        let driven = sync(world);
        driven.outcome.as_ref().expect("no failure");
        if !world.run_kubelets() && driven.requests.is_empty() {
            return;
        }
    }
    panic!("it never settles: {:?}", sync(world).requests);
}

fn status(world: &LoopWorld) -> &Value {
    &world.get(DAEMON_SETS, "ds").expect("the set is there")["status"]
}

/// The image of the pod on each node; several are joined.
fn images(world: &LoopWorld) -> BTreeMap<String, String> {
    let mut images = BTreeMap::<String, String>::new();
    for pod in world.all(PODS) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let image = text(&pod["spec"]["containers"][0]["image"]);
        let on_node = images.entry(text(&pod["spec"]["nodeName"])).or_default();
        on_node.push_str(&image);
    }
    images
}

/// How many pods were created and deleted.
#[derive(Debug, PartialEq)]
struct PodActions {
    created: usize,
    deleted: usize,
}

fn pod_actions(driven: &Driven<FailedPodsNote>) -> PodActions {
    let count = |is_it: fn(&&Request) -> bool| driven.requests.iter().filter(is_it).count();
    PodActions {
        created: count(|one| matches!(one, Request::Create { kind, .. } if *kind == PODS)),
        deleted: count(|one| matches!(one, Request::Delete { target, .. } if target.kind == PODS)),
    }
}

/// A pod of the set on a node.
fn daemon_pod(name: &str, node: &str, phase: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": "ds", "pod-template-generation": "1"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "ds",
                "uid": "set", "controller": true}]},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": "one"}]},
        "status": {"phase": phase},
    })
}
