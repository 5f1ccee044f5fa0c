//! Pods of one name: the next one does not wait for the end of one that was forced out.

use std::fs;

use anyhow::ensure;
use pintle_testbed::cluster::{AGENT, NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container_id, pod, script};
use pintle_testbed::{LONG, until};
use serde_json::json;

#[test]
fn pod_with_the_name_of_a_force_deleted_pod_starts_before_that_pod_ends() {
    let test = TestCluster::take();
    // It ends when its volume has the file, long before its grace is over.
    let stubborn = script("c", "trap '' TERM; until [ -e /v/end ]; do sleep 0.1; done")
        .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    let manifest = pod("twin", &[stubborn])
        .with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]))
        .with_spec("nodeName", json!(NODE))
        .with_spec("terminationGracePeriodSeconds", json!(3600));
    test.apply(&manifest);
    let first = test.pod_until("twin", "is ready", |p| condition(p, "Ready"));

    // The API server writes a grace of 0 before it deletes the pod. An agent that sees that write ends
    // the pod at once; one that was away gives it the grace of its containers.
    test.cluster().kill(AGENT).expect("the agent dies");
    test.kubectl(&["delete", "pod", "twin", "--force", "--grace-period=0"]).expect("deleted");
    until(LONG, "the name is free", || test.create(&manifest));
    test.cluster().start(AGENT).expect("the agent starts");
    let second = test.pod_until("twin", "is ready", |p| {
        p.metadata.uid != first.metadata.uid && condition(p, "Ready")
    });

    let running = test.running().expect("a list");
    assert!(running.contains(&container_id(&second, "c")), "the second one runs");
    assert!(running.contains(&container_id(&first, "c")), "the first one still has its grace");
    let end = test.volume(&first, "empty-dir", "v").join("end");
    fs::write(end, "").expect("written");
    until(LONG, "the first one ends", || {
        let running = test.running()?;
        ensure!(!running.contains(&container_id(&first, "c")), "{running:?}");
        Ok(())
    });
    test.pod_until("twin", "is still the second one, and ready", |p| {
        p.metadata.uid == second.metadata.uid && condition(p, "Ready")
    });
}
