//! Many Deployments in one namespace: what a sync reads and what waits does not grow with them.
//!
//! In k#117123 an update of 3,000 Deployments at once took over 100 GB, because each sync listed
//! the sets of the namespace and each change waited apart. A sync here shares the objects of the
//! tables, and a key waits once.

use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, Kind, PODS, REPLICA_SETS};
use pintle_controllers_core::frame::{Controller, Frame, Now};
use pintle_controllers_core::tables::{Decoded, WatchEvent};
use serde_json::{Value, json};

use super::super::DeploymentController;
use super::now;

const COUNT: usize = 3_000;

fn deployment(at: usize, version: u32) -> Value {
    json!({"metadata": {"name": format!("d{at}"), "namespace": "n", "uid": format!("d{at}"),
            "resourceVersion": version.to_string(), "generation": version},
        "spec": {"selector": {"matchLabels": {"of": format!("d{at}")}}}})
}

fn set(at: usize) -> Value {
    let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "controller": true,
        "name": format!("d{at}"), "uid": format!("d{at}")});
    json!({"metadata": {"name": format!("d{at}-1"), "namespace": "n", "uid": format!("s{at}"),
        "resourceVersion": "1", "labels": {"of": format!("d{at}")}, "ownerReferences": [owner]}})
}

#[test]
fn updated_deployments_are_queued_once_each_and_read_only_their_own_sets() {
    let at = Now { instant: Instant::now(), wall: now() };
    let mut frame = Frame::default();
    frame.add(DeploymentController { workers: 5 });
    let put = |frame: &mut Frame, kind: Kind, object: &Value| {
        let object = Decoded::typed(kind, &object.to_string()).expect("a good object");
        frame.apply(WatchEvent::Set(object), at);
    };
    for kind in [DEPLOYMENTS, REPLICA_SETS, PODS] {
        frame.apply(WatchEvent::ListBegun(kind), at);
        frame.apply(WatchEvent::ListComplete(kind), at);
    }
    for number in 0..COUNT {
        put(&mut frame, DEPLOYMENTS, &deployment(number, 1));
        put(&mut frame, REPLICA_SETS, &set(number));
    }
    for version in 2..5 {
        let all = 0..COUNT;
        all.for_each(|number| put(&mut frame, DEPLOYMENTS, &deployment(number, version)));
    }
    assert_eq!(frame.stats(at)[0].stats.queue.depth, COUNT);
    let mut controller = DeploymentController { workers: 5 };
    let key = ObjectKey::new("n", "d7");
    let snapshot = controller.snapshot(&key, frame.tables(), at).expect("it is there");
    let names: Vec<_> = snapshot.sets.iter().map(|set| &*set.metadata.name).collect();
    assert_eq!(names, ["d7-1"]);
    let known = frame.tables().deployments.get(&key).expect("it is there");
    assert!(std::rc::Rc::ptr_eq(&snapshot.deployment, known), "nothing is copied");
}
