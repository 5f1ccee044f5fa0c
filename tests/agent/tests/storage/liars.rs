//! Drivers that lie: they answer a call twice, and say what cannot be of their node, its topology and the
//! size of volumes. Another pod starts as on the quiet node, and the node keeps what it knows.

use std::fs;

use anyhow::{Result, ensure};
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{condition, phase};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::drivers::{DRIVER, Driver};
use crate::expansion;
use crate::ground::{Bound, wait_for_event};
use crate::hostile::{Quiet, victim};

/// A label that no driver may take from the node.
const HOSTNAME: &str = "kubernetes.io/hostname";

fn object(test: &TestCluster, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&test.kubectl(&["get", kind, name, "-o", "json"])?)?)
}

/// The driver is not among those of the CSINode.
fn is_unknown_to_scheduler(test: &TestCluster) -> Result<bool> {
    let node = object(test, "csinode", NODE)?;
    let drivers = node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    Ok(drivers.iter().all(|driver| driver["name"] != DRIVER))
}

#[test]
#[ignore = "minutes: other pods are started beside each lie"]
fn hostile_driver_that_answers_each_call_twice_delays_its_own_pods_alone() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let driver = Driver::named(&test, DRIVER, "twice", &["--without=attach"]);
    driver.describe(false);
    let handle = driver.create("twice");
    let mut bound = Bound::new(&test);
    for (method, step) in [("NodeStageVolume", "MountDevice"), ("NodePublishVolume", "SetUp")] {
        driver.fail(&[Rule::new(method, Fault::Twice)]);
        if method == "NodeStageVolume" {
            victim(&test, &mut bound, "twice", &handle);
        }
        let text = format!(
            "MountVolume.{step} failed for volume \"twice\" : rpc error: code = ResourceExhausted \
             desc = more than one answer"
        );
        wait_for_event(&test, "twice", "FailedMount", &text);
        quiet.bystander_starts();
        let pod = test.pod("twice").expect("asked").expect("a pod");
        assert_eq!(phase(&pod), "Pending", "{method} has no answer");
    }
    driver.fail(&[]);
    test.pod_until("twice", "is ready", |pod| condition(pod, "Ready"));
    let twice = |method| Rule::new(method, Fault::Twice).times(1);
    driver.fail(&[twice("NodeUnpublishVolume"), twice("NodeUnstageVolume")]);
    test.kubectl(&["delete", "pod", "twice", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    driver.calls(&handle);
    quiet.nothing_is_held();
}

#[test]
#[ignore = "minutes: other pods are started beside each lie"]
fn hostile_driver_with_an_invalid_node_id_is_not_registered_until_the_id_is_valid() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let mut driver = Driver::named(&test, DRIVER, "node-id", &["--without=attach"]);
    driver.describe(false);
    let handle = driver.create("node-id");
    let mut bound = Bound::new(&test);
    for id in [String::new(), "n".repeat(100_000)] {
        fs::write(driver.state.join("node_id"), &id).expect("written");
        driver.restart();
        until(LONG, "the driver is not registered", || {
            ensure!(is_unknown_to_scheduler(&test)?, "it is");
            Ok(())
        });
        if id.is_empty() {
            victim(&test, &mut bound, "node-id", &handle);
            let text = format!("driver name {DRIVER} not found in the list of registered");
            wait_for_event(&test, "node-id", "FailedMount", &text);
        }
        quiet.bystander_starts();
    }
    fs::remove_file(driver.state.join("node_id")).expect("removed");
    driver.restart();
    test.pod_until("node-id", "is ready", |pod| condition(pod, "Ready"));
    test.kubectl(&["delete", "pod", "node-id", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    quiet.nothing_is_held();
}

#[test]
#[ignore = "minutes: other pods are started beside each lie"]
fn hostile_driver_that_claims_the_nodes_own_label_as_its_topology_changes_no_label() {
    let test = TestCluster::take();
    let quiet = Quiet::measure(&test);
    let before = object(&test, "node", NODE).expect("a node")["metadata"]["labels"].clone();
    let lie = format!("--topology={HOSTNAME}=elsewhere");
    let driver = Driver::named(&test, DRIVER, "topology", &["--without=attach", &lie]);
    driver.describe(false);
    // Pods of this node can use it, and the scheduler sends it none.
    let handle = driver.create("topology");
    let mut bound = Bound::new(&test);
    victim(&test, &mut bound, "topology", &handle);
    test.pod_until("topology", "is ready", |pod| condition(pod, "Ready"));
    quiet.bystander_starts();
    assert!(is_unknown_to_scheduler(&test).expect("a CSINode"), "its topology is refused");
    let after = object(&test, "node", NODE).expect("a node")["metadata"]["labels"].clone();
    assert_eq!(after, before);
    test.kubectl(&["delete", "pod", "topology", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    quiet.nothing_is_held();
}

/// What the agent says of the volumes of this pod.
fn volumes_shown(test: &TestCluster, name: &str) -> Result<Value> {
    let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
    let summary: Value = serde_json::from_str(&test.kubectl(&["get", "--raw", &path])?)?;
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    let pod = pods.find(|pod| pod["podRef"]["name"] == name);
    Ok(pod.map(|pod| pod["volume"].clone()).unwrap_or_default())
}

#[test]
#[ignore = "minutes: other pods are started beside each lie"]
fn hostile_driver_that_lies_about_sizes_changes_no_claim_and_breaks_no_statistics() {
    let test = TestCluster::take();
    test.configure_agent(&json!({"volumeStatsAggPeriod": "1s"}));
    // From the first request on, files of the node's cgroups stay open.
    volumes_shown(&test, "none").expect("statistics");
    let quiet = Quiet::measure(&test);
    let driver = Driver::named(&test, DRIVER, "sizes", &["--without=attach"]);
    driver.describe(false);
    let handle = driver.create("sizes");
    let mut bound = Bound::new(&test);
    expansion::bind(&mut bound, &test, "sizes", &handle);
    test.apply(&crate::ground::claimant("sizes", "sizes", crate::drivers::SLEEP));
    test.pod_until("sizes", "is ready", |pod| condition(pod, "Ready"));
    for (told, shown) in [(i64::MIN, 0), (-1, 0), (i64::MAX, i64::MAX)] {
        fs::write(driver.state.join("told_bytes"), told.to_string()).expect("written");
        until(LONG, "the lie is shown as a number that can be", || {
            let volumes = volumes_shown(&test, "sizes")?;
            ensure!(volumes[0]["capacityBytes"] == shown, "{volumes:#}");
            Ok(())
        });
    }
    fs::write(driver.state.join("told_bytes"), "1").expect("written");
    expansion::grow(&test, "sizes", "16Mi");
    expansion::wait_until_grown(&test, "sizes", "16Mi");
    quiet.bystander_starts();
    test.kubectl(&["delete", "pod", "sizes", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    // Files of cgroups are closed a minute after the last request.
    quiet.nothing_is_held();
}
