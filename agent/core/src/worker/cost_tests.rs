//! The cost of one pod on a full node: as many visits of pods as on an empty one.

use std::time::Duration;

use serde_json::json;

use super::testing::{Host, pod, settings};
use super::visits;
use crate::worker::{Hint, PodsInput};

/// A node on which this many pods run.
fn full(count: usize) -> Host {
    let mut host = Host::with(settings(Duration::from_secs(3600)));
    for index in 0..count {
        host.want(named(&format!("p{index:04}")));
    }
    host.pods.checkpoints();
    host
}

fn named(uid: &str) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = pod(&json!({}), "hostNetwork", json!(false));
    pod.metadata.uid = Some(uid.to_owned());
    pod.metadata.name = Some(uid.to_owned());
    pod
}

/// Counts visits of pods while one more comes, runs, gets a hint and is removed, and its records
/// are saved.
fn visits_of_one(count: usize) -> u64 {
    let mut host = full(count);
    let before = visits::so_far();
    host.want(named("one"));
    host.pods.checkpoints();
    host.send(PodsInput::Hint { uid: "one".into(), hint: Hint::Changed });
    host.remove("one");
    host.pods.checkpoints();
    assert!(host.pods.worker(&"one".into()).is_none(), "it is gone");
    visits::so_far() - before
}

#[test]
fn a_pod_costs_the_same_however_many_there_are() {
    let few = visits_of_one(5);
    assert!(few > 0);
    assert_eq!(visits_of_one(100), few);
}
