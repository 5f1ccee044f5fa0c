//! Tests of StatefulSet by the cases of upstream's tables, against a cluster of a few objects.
// k8s: pkg/controller/statefulset/stateful_set_control_test.go, stateful_set_utils_test.go

mod claims;
mod events;
mod identity;
mod order;
mod recorded;
mod revisions;
mod rollout;
mod storage;
mod wakes;

use pintle_api_types::kind::{PODS, STATEFUL_SETS};
use pintle_api_types::request::Request;
use pintle_controllers_core::frame::{Driven, EventLevel};
use serde_json::{Value, json};

use super::StatefulSets;
use crate::test_world::LoopWorld;

const CONTROLLER: StatefulSets = StatefulSets { workers: 1, has_max_unavailable: false };

/// A set named `web` with so many replicas.
fn set(replicas: i32) -> Value {
    json!({
        "metadata": {"name": "web", "uid": "set", "generation": 1},
        "spec": {
            "replicas": replicas,
            "serviceName": "svc",
            "selector": {"matchLabels": {"app": "web"}},
            "podManagementPolicy": "OrderedReady",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "revisionHistoryLimit": 2,
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "c", "image": "one"}]},
            },
        },
        "status": {"replicas": 0, "availableReplicas": 0},
    })
}

fn world(set: Value) -> LoopWorld {
    let mut world = LoopWorld::new();
    world.add(STATEFUL_SETS, set);
    world
}

fn edit(world: &mut LoopWorld, edit: impl FnOnce(&mut Value)) {
    world.edit(STATEFUL_SETS, "web", |set| {
        let generation = set["metadata"]["generation"].as_i64().expect("a number");
        set["metadata"]["generation"] = (generation + 1).into();
        edit(set);
    });
}

fn set_image(world: &mut LoopWorld, image: &str) {
    edit(world, |set| set["spec"]["template"]["spec"]["containers"][0]["image"] = image.into());
}

fn sync(world: &mut LoopWorld) -> Driven<()> {
    world.sync(&mut { CONTROLLER }, "web")
}

/// Syncs and runs kubelets until nothing is asked for any more; returns the syncs.
fn settle(world: &mut LoopWorld) -> usize {
    for turn in 0..100 {
        let driven = sync(world);
        driven.outcome.as_ref().expect("no failure");
        if !world.run_kubelets() && driven.requests.is_empty() {
            return turn;
        }
    }
    panic!("it never settles: {:?}", sync(world).requests);
}

fn status(world: &LoopWorld) -> &Value {
    &world.get(STATEFUL_SETS, "web").expect("the set is there")["status"]
}

fn image_of<'a>(world: &'a LoopWorld, pod: &str) -> &'a str {
    let pod = world.get(PODS, pod).expect("the pod is there");
    pod["spec"]["containers"][0]["image"].as_str().expect("an image")
}

/// Requests in a few words, without those about revisions.
fn actions(driven: &Driven<()>) -> Vec<String> {
    let name = |body: &Value| body["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let action = |request: &Request| match request {
        Request::Create { body, kind, .. } => format!("create {kind:?} {}", name(body)),
        Request::Replace { target, .. } if target.sub == "status" => "status".to_owned(),
        Request::Replace { target, .. } => {
            format!("update {:?} {}", target.kind, target.key.name())
        }
        Request::Patch { target, .. } => format!("patch {:?} {}", target.kind, target.key.name()),
        Request::Delete { target, .. } => format!("delete {:?} {}", target.kind, target.key.name()),
        Request::Read { target, .. } => format!("read {:?} {}", target.kind, target.key.name()),
        other => format!("{other:?}"),
    };
    let actions = driven.requests.iter().map(action);
    actions.filter(|action| !action.contains("controllerrevisions")).collect()
}

fn events(driven: &Driven<()>) -> Vec<String> {
    let event = |event: &pintle_controllers_core::frame::ObjectEvent| {
        let level = if event.level == EventLevel::Normal { "Normal" } else { "Warning" };
        format!("{level} {} {}", event.reason, event.message)
    };
    driven.events.iter().map(event).collect()
}
