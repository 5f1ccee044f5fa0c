//! A pod with a claim: it runs and ends, waits with a reason, and has an exclusive claim alone.

use std::fs;

use anyhow::ensure;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::ground::{Bound, ask, claim, claimant, folder, local, volume, wait_for_event};

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

fn no_leftovers(test: &TestCluster) {
    until(LONG, "nothing is left", || {
        let left = test.leftovers(NODE)?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    });
}

#[test]
fn a_pod_with_a_claim_of_a_host_path_runs_and_ends() {
    let test = TestCluster::take();
    test.empty_nodes();
    let path = folder(&test, "host-path");
    let mut bound = Bound::new(&test);
    bound.bind(&volume("host-path", json!({"hostPath": {"path": path, "type": "Directory"}})));
    test.apply(&claimant("writer", "host-path", "echo kept > /data/file"));
    test.pod_until("writer", "succeeds", |pod| phase(pod) == "Succeeded");
    assert_eq!(fs::read_to_string(test.on_node(&path).join("file")).expect("written"), "kept\n");
    test.kubectl(&["delete", "pod", "writer"]).expect("deleted");
    no_leftovers(&test);
    assert!(test.on_node(&path).join("file").exists(), "the data stays");
}

#[test]
fn pod_waits_for_its_claim_with_an_event_and_starts_when_the_claim_is_bound() {
    let test = TestCluster::take();
    let path = folder(&test, "late");
    let late = volume("late", json!({"hostPath": {"path": path}}));
    let mut bound = Bound::new(&test);
    test.apply(&claimant("waits", "late", "true"));
    let unmounted = "Unable to attach or mount volumes: unmounted volumes=[data], unattached \
                     volumes=[], failed to process volumes=[data]: error processing PVC \
                     default/late: ";
    let missing = "failed to fetch PVC from API server: persistentvolumeclaims \"late\" not found";
    wait_for_event(&test, "waits", "FailedMount", &format!("{unmounted}{missing}"));
    until(LONG, "the pod is explained", || {
        let answer: Value =
            serde_json::from_str(&ask(&test, &["explain", "waits", "-o", "json"])?)?;
        let sentence = answer["sentence"].as_str().unwrap_or_default();
        ensure!(sentence.contains("claim default/late"), "{answer:#}");
        Ok(())
    });
    test.apply(&claim(&late));
    wait_for_event(&test, "waits", "FailedMount", &format!("{unmounted}PVC is not bound"));
    bound.add(&late);
    test.pod_until("waits", "succeeds", |pod| phase(pod) == "Succeeded");
}

#[test]
fn read_write_once_pod_volume_is_not_mounted_for_a_second_pod() {
    let test = TestCluster::take();
    let path = folder(&test, "alone");
    let mut bound = Bound::new(&test);
    let modes = json!(["ReadWriteOncePod"]);
    bound.bind(&local("alone", &path).with_spec("accessModes", modes));
    test.apply(&claimant("first", "alone", SLEEP));
    test.pod_until("first", "is ready", |pod| condition(pod, "Ready"));
    // Past the scheduler, which would not have it.
    test.apply(&claimant("second", "alone", "true"));
    wait_for_event(
        &test,
        "second",
        "FailedMount",
        "MountVolume.SetUp failed for volume \"alone\" : volume uses the ReadWriteOncePod access \
         mode and is already in use by another pod",
    );
    test.kubectl(&["delete", "pod", "first", "--grace-period=1"]).expect("deleted");
    test.pod_until("second", "succeeds", |pod| phase(pod) == "Succeeded");
}

#[test]
fn an_ephemeral_volume_is_the_claim_that_was_made_for_the_pod() {
    let test = TestCluster::take();
    let path = folder(&test, "ephemeral");
    let mut bound = Bound::new(&test);
    bound.add(&volume("own-data", json!({"hostPath": {"path": path}})));
    let template = json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "",
        "volumeName": "own-data", "resources": {"requests": {"storage": "1Mi"}}}});
    let volumes = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
    test.apply(&claimant("own", "", "echo own > /data/file").with_spec("volumes", volumes));
    test.pod_until("own", "succeeds", |pod| phase(pod) == "Succeeded");
    assert_eq!(fs::read_to_string(test.on_node(&path).join("file")).expect("written"), "own\n");

    // A claim of that name which is another's.
    let other = volume("other-data", json!({"hostPath": {"path": path}}));
    bound.bind(&other);
    let volumes = json!([{"name": "data", "ephemeral": {"volumeClaimTemplate": template}}]);
    test.apply(&claimant("other", "", "true").with_spec("volumes", volumes));
    wait_for_event(
        &test,
        "other",
        "FailedMount",
        "PVC default/other-data was not created for pod default/other (pod is not owner)",
    );
}
