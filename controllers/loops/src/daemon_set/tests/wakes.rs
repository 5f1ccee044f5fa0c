//! Which changes of pods, nodes and revisions wake the set.
// k8s: pkg/controller/daemon/daemon_controller_test.go TestUpdateNode, TestAddPod

use std::time::Instant;

use pintle_api_types::kind::{CONTROLLER_REVISIONS, Kind, NODES, PODS};
use pintle_controllers_core::frame::{Controller, Now, Wakes};
use pintle_controllers_core::tables::{Decoded, WatchEvent};
use serde_json::json;

use super::*;

/// The keys that a change of an object wakes; `None` is an object that does not exist.
fn woken(world: &mut LoopWorld, kind: Kind, old: Option<Value>, new: Option<Value>) -> String {
    let old = old.map(|object| world.add(kind, object));
    let mut tables = world.tables();
    let decode = |object: &Value| Decoded::typed(kind, &object.to_string()).expect("an object");
    let event = match (new, &old) {
        (Some(new), _) => WatchEvent::Set(decode(&world.add(kind, new))),
        (None, old) => WatchEvent::Deleted(decode(old.as_ref().expect("it was there"))),
    };
    let mut wakes = Wakes::default();
    let now = Now { instant: Instant::now(), wall: world.now };
    for change in tables.apply(event) {
        DaemonSets::new(1).handle_change(&change, &tables, now, &mut wakes);
    }
    format!("{wakes:?}").replace("Wakes { wakes: ", "").replace(" }", "")
}

fn node(effect: Option<&str>, labels: Value) -> Value {
    let taints: Vec<_> =
        effect.into_iter().map(|effect| json!({"key": "k", "effect": effect})).collect();
    json!({"metadata": {"name": "node-0", "labels": labels}, "spec": {"taints": taints}})
}

#[test]
fn node_change_wakes_the_daemon_set_only_when_relevant() {
    let none = json!({});
    for (has_pod, misscheduled, old, new, is_woken) in [
        (false, 0, None, Some(node(None, none.clone())), true),
        (false, 0, None, Some(node(Some("NoSchedule"), none.clone())), false),
        (true, 0, None, Some(node(None, none.clone())), false),
        (
            true,
            0,
            Some(node(None, none.clone())),
            Some(node(Some("NoSchedule"), none.clone())),
            false,
        ),
        (
            true,
            0,
            Some(node(None, none.clone())),
            Some(node(Some("NoExecute"), none.clone())),
            true,
        ),
        (
            true,
            1,
            Some(node(Some("NoSchedule"), none.clone())),
            Some(node(None, none.clone())),
            true,
        ),
        (
            false,
            0,
            Some(node(Some("NoSchedule"), none.clone())),
            Some(node(None, none.clone())),
            true,
        ),
        (false, 0, Some(node(None, none.clone())), Some(node(None, none.clone())), false),
        (false, 0, Some(node(None, none.clone())), Some(node(None, json!({"a": "b"}))), true),
        (false, 0, Some(node(None, none.clone())), None, false),
    ] {
        let mut set = set();
        set["status"]["numberMisscheduled"] = misscheduled.into();
        let mut world = world(set, 0);
        if has_pod {
            world.add(PODS, daemon_pod("p", "node-0", "Running"));
        }
        let woken = woken(&mut world, NODES, old.clone(), new.clone());
        assert_eq!(woken, if is_woken { "[Now(n/ds)]" } else { "[]" }, "{has_pod} {old:?} {new:?}");
    }
}

#[test]
fn pod_wakes_its_owner_or_the_set_that_may_adopt_it() {
    let own = || daemon_pod("p", "node-0", "Running");
    let with = |edit: fn(&mut Value)| {
        let mut pod = own();
        edit(&mut pod);
        pod
    };
    let orphan = || with(|pod| pod["metadata"]["ownerReferences"] = json!([]));
    let stranger = || {
        with(|pod| {
            pod["metadata"]["ownerReferences"] = json!([]);
            pod["metadata"]["labels"]["app"] = "none".into();
        })
    };
    let deleting =
        || with(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into());
    for (old, new, wakes) in [
        (None, Some(own()), "[Now(n/ds)]"),
        (None, Some(orphan()), "[Now(n/ds)]"),
        (None, Some(stranger()), "[]"),
        (Some(own()), Some(deleting()), "[Now(n/ds)]"),
        (Some(own()), None, "[Now(n/ds)]"),
        (Some(orphan()), None, "[]"),
        (Some(own()), Some(orphan()), "[Now(n/ds), Now(n/ds)]"),
        (Some(stranger()), Some(orphan()), "[Now(n/ds)]"),
        (Some(orphan()), Some(orphan()), "[]"),
    ] {
        let woken = woken(&mut world(set(), 1), PODS, old.clone(), new.clone());
        assert_eq!(woken, wakes, "{old:?} {new:?}");
    }
}

#[test]
fn pod_that_became_ready_wakes_the_set_a_second_after_min_ready_seconds() {
    let mut slow = set();
    slow["spec"]["minReadySeconds"] = 5.into();
    let mut ready = daemon_pod("p", "node-0", "Running");
    ready["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    let old = daemon_pod("p", "node-0", "Running");
    let woken = woken(&mut world(slow, 1), PODS, Some(old), Some(ready));
    assert_eq!(woken, "[Now(n/ds), After(n/ds, 6s)]");
}

#[test]
fn changed_or_orphaned_revision_wakes_the_set() {
    let revision = |owner: &str, number: i64| {
        let owners = match owner {
            "" => json!([]),
            uid => json!([{"kind": "DaemonSet", "name": "ds", "uid": uid, "controller": true}]),
        };
        json!({"metadata": {"name": "r", "labels": {"app": "ds"}, "ownerReferences": owners},
            "revision": number})
    };
    for (old, new, wakes) in [
        (None, Some(revision("set", 1)), "[]"),
        (None, Some(revision("", 1)), "[Now(n/ds)]"),
        (Some(revision("set", 1)), Some(revision("set", 2)), "[Now(n/ds)]"),
        (Some(revision("other", 1)), Some(revision("other", 2)), "[]"),
        (Some(revision("set", 1)), None, "[Now(n/ds)]"),
        (Some(revision("", 1)), None, "[]"),
    ] {
        let woken = woken(&mut world(set(), 0), CONTROLLER_REVISIONS, old.clone(), new.clone());
        assert_eq!(woken, wakes, "{old:?} {new:?}");
    }
}
