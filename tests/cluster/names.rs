//! Pods of one name, one after the other.

use pintle_tests::cluster::{NODE, TestCluster};
use pintle_tests::manifest::{With, condition, container_id, pod, script};
use pintle_tests::{LONG, until};
use serde_json::json;

#[test]
fn a_pod_that_takes_the_name_of_a_forced_out_one_runs_after_it_has_ended() {
    let test = TestCluster::take();
    // It needs all its grace to end, so that the second one has to wait for it.
    let stubborn = script("c", "trap '' TERM; while :; do sleep 0.1; done");
    let manifest = pod("twin", &[stubborn])
        .with_spec("nodeName", json!(NODE))
        .with_spec("terminationGracePeriodSeconds", json!(3));
    test.apply(&manifest);
    let first = test.pod_until("twin", "is ready", |p| condition(p, "Ready"));

    test.kubectl(&["delete", "pod", "twin", "--force", "--grace-period=0"]).expect("deleted");
    until(LONG, "the name is free", || test.create(&manifest));
    let second = test.pod_until("twin", "is ready", |p| {
        p.metadata.uid != first.metadata.uid && condition(p, "Ready")
    });

    let running = test.running().expect("a list");
    assert!(!running.contains(&container_id(&first, "c")), "the first one is still there");
    assert!(running.contains(&container_id(&second, "c")), "the second one runs");
}
