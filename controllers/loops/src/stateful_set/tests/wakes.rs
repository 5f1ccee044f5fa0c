//! Which changes of pods wake which sets.
// k8s: pkg/controller/statefulset/stateful_set_test.go

use std::time::Instant;

use pintle_api_types::kind::{PODS, STATEFUL_SETS};
use pintle_controllers_core::frame::{Controller, Now, Wakes};
use pintle_controllers_core::tables::{Decoded, WatchEvent};
use serde_json::json;

use super::*;

fn two_sets() -> LoopWorld {
    let mut world = world(set(1));
    let mut other = set(1);
    other["metadata"]["name"] = "other".into();
    other["metadata"]["uid"] = "other".into();
    other["spec"]["selector"]["matchLabels"]["app"] = "other".into();
    other["spec"]["minReadySeconds"] = 5.into();
    world.add(STATEFUL_SETS, other);
    world
}

fn pod(app: &str, owner: Option<&str>, is_ready: bool) -> Value {
    let owner = owner.map(|name| {
        let uid = if name == "web" { "set" } else { name };
        json!({"kind": "StatefulSet", "name": name, "uid": uid, "controller": true})
    });
    let owners: Vec<_> = owner.into_iter().collect();
    let ready = if is_ready { "True" } else { "False" };
    json!({"metadata": {"name": "p", "labels": {"app": app}, "ownerReferences": owners},
        "status": {"conditions": [{"type": "Ready", "status": ready}]}})
}

/// The keys that a change from one state to another wakes.
fn woken(old: Option<Value>, new: Option<Value>) -> String {
    let mut world = two_sets();
    let old = old.map(|pod| world.add(PODS, pod));
    let mut tables = world.tables();
    let decode = |pod: &Value| Decoded::typed(PODS, &pod.to_string()).expect("a pod");
    let event = match (new, &old) {
        (Some(new), _) => WatchEvent::Set(decode(&world.add(PODS, new))),
        (None, old) => WatchEvent::Deleted(decode(old.as_ref().expect("it was there"))),
    };
    let mut wakes = Wakes::default();
    let now = Now { instant: Instant::now(), wall: world.now };
    for change in tables.apply(event) {
        CONTROLLER.clone_for_test().handle_change(&change, &tables, now, &mut wakes);
    }
    format!("{wakes:?}")
}

impl StatefulSets {
    fn clone_for_test(&self) -> Self {
        Self { workers: self.workers, has_max_unavailable: self.has_max_unavailable }
    }
}

#[test]
fn pod_wakes_its_owner_or_the_sets_that_may_adopt_it() {
    for (old, new, names) in [
        (None, Some(pod("web", Some("web"), false)), ["n/web"].as_slice()),
        (None, Some(pod("web", None, false)), &["n/web"]),
        (None, Some(pod("none", None, false)), &[]),
        (Some(pod("web", Some("web"), false)), None, &["n/web"]),
        (Some(pod("web", None, false)), None, &[]),
        (
            Some(pod("web", Some("web"), false)),
            Some(pod("web", Some("other"), false)),
            &["n/web", "n/other"],
        ),
        (Some(pod("web", Some("web"), false)), Some(pod("web", None, false)), &["n/web", "n/web"]),
        (Some(pod("none", None, false)), Some(pod("other", None, false)), &["n/other"]),
        (Some(pod("other", None, false)), Some(pod("other", None, true)), &[]),
    ] {
        let woken = woken(old.clone(), new.clone());
        let wakes: Vec<_> = names.iter().map(|name| format!("Now({name})")).collect();
        assert_eq!(woken, format!("Wakes {{ wakes: [{}] }}", wakes.join(", ")), "{old:?} {new:?}");
    }
}

#[test]
fn pod_that_became_ready_wakes_its_set_again_after_min_ready_seconds() {
    let woken =
        woken(Some(pod("other", Some("other"), false)), Some(pod("other", Some("other"), true)));
    assert_eq!(woken, "Wakes { wakes: [Now(n/other), After(n/other, 5s)] }");
}
