//! Pods of one name: the next one does not wait for the end of one that was forced out.

use std::fs;

use anyhow::ensure;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container_id, pod, script};
use pintle_testbed::{FrozenProcess, LONG, until};
use serde_json::{Value, json};
use xtask::node::process;

#[test]
fn pod_with_the_name_of_a_force_deleted_pod_starts_before_that_pod_ends() {
    let test = TestCluster::take();
    let beats = script("c", "while true; do echo > /v/beat; sleep 0.1; done")
        .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    let manifest = pod("twin", &[beats])
        .with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]))
        .with_spec("nodeName", json!(NODE));
    test.apply(&manifest);
    let first = test.pod_until("twin", "is ready", |p| condition(p, "Ready"));
    // As long as its shim is frozen, the first pod cannot be stopped.
    let frozen = FrozenProcess::freeze(shim(&test, &container_id(&first, "c")));
    test.kubectl(&["delete", "pod", "twin", "--force", "--grace-period=0"]).expect("deleted");
    until(LONG, "the name is free", || test.create(&manifest));
    let second = test.pod_until("twin", "is ready", |p| {
        p.metadata.uid != first.metadata.uid && condition(p, "Ready")
    });
    let beat = test.volume(&first, "empty-dir", "v").join("beat");
    fs::remove_file(&beat).expect("the first one has begun");
    until(LONG, "the first one still runs", || {
        ensure!(beat.exists(), "no beat");
        Ok(())
    });

    drop(frozen);
    until(LONG, "the first one ends, and the second one runs", || {
        let running = test.running()?;
        ensure!(!running.contains(&container_id(&first, "c")), "{running:?}");
        ensure!(running.contains(&container_id(&second, "c")), "{running:?}");
        Ok(())
    });
    test.pod_until("twin", "is still the second one, and ready", |p| {
        p.metadata.uid == second.metadata.uid && condition(p, "Ready")
    });
}

/// Pid of the shim of a container's sandbox.
fn shim(test: &TestCluster, container_id: &str) -> i32 {
    let bundle = format!("/run/containerd/{}/{container_id}", process::TASKS);
    let config = fs::read(test.on_node(&bundle).join("config.json")).expect("the container's");
    let config: Value = serde_json::from_slice(&config).expect("the runtime's configuration");
    let sandbox = &config["annotations"]["io.kubernetes.cri.sandbox-id"];
    let shims = process::shims(&test.cluster().layout().mark());
    let own = shims.iter().find(|shim| *sandbox == shim.sandbox_id);
    own.unwrap_or_else(|| panic!("no shim of {sandbox} in {shims:?}")).pid
}
