//! Claims that grow: before their pod starts, while it runs, and with a driver that refuses.

use anyhow::ensure;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::manifest::condition;
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::drivers::{DRIVER, Driver, SLEEP};
use crate::ground::{Bound, claim, claimant, volume, wait_for_event};

/// gRPC's code for a size that cannot be had.
const OUT_OF_RANGE: i32 = 11;
/// A running pod's claims are read again once a minute or a little later.
const RESYNC: std::time::Duration = LONG.saturating_mul(2);

/// A claim of 8Mi on a volume of the driver, bound.
pub fn bind(bound: &mut Bound<'_>, test: &TestCluster, name: &str, handle: &str) {
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    let volume = volume(name, json!({"csi": source, "capacity": {"storage": "8Mi"}}));
    bound.add(&volume);
    let mut claim = claim(&volume);
    claim["spec"]["resources"] = json!({"requests": {"storage": "8Mi"}});
    test.apply(&claim);
    bound.wait(name);
}

/// What the resizer writes once the volume itself has grown.
pub fn grow(test: &TestCluster, name: &str, to: &str) {
    let spec = json!({"spec": {"capacity": {"storage": to}}}).to_string();
    test.kubectl(&["patch", "pv", name, "--type=merge", "-p", &spec]).expect("patched");
    let status = json!({"status": {
        "allocatedResources": {"storage": to},
        "allocatedResourceStatuses": {"storage": "NodeResizePending"},
        "conditions": [{"type": "FileSystemResizePending", "status": "True"}]}});
    patch_status(test, name, &status);
}

fn patch_status(test: &TestCluster, name: &str, status: &Value) {
    let patch = ["patch", "pvc", name, "--subresource=status", "--type=merge", "-p"];
    test.kubectl(&[&patch[..], &[&status.to_string()]].concat()).expect("patched");
}

fn status(test: &TestCluster, name: &str) -> anyhow::Result<Value> {
    let claim: Value = serde_json::from_str(&test.kubectl(&["get", "pvc", name, "-o", "json"])?)?;
    Ok(claim["status"].clone())
}

/// Waits until the claim has this size and nothing is pending.
pub fn wait_until_grown(test: &TestCluster, name: &str, to: &str) {
    until(RESYNC, &format!("claim {name} has {to}"), || {
        let status = status(test, name)?;
        ensure!(status["capacity"]["storage"] == to, "{status:#}");
        ensure!(status.get("allocatedResourceStatuses").is_none(), "{status:#}");
        ensure!(status["conditions"].as_array().is_none_or(Vec::is_empty), "{status:#}");
        Ok(())
    });
}

#[test]
fn claim_grows_before_its_pod_starts_and_again_while_the_pod_runs() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "growth", false);
    let handle = driver.create("growth");
    let mut bound = Bound::new(&test);
    bind(&mut bound, &test, "csi-growth", &handle);
    grow(&test, "csi-growth", "16Mi");
    test.apply(&claimant("grower", "csi-growth", SLEEP));
    test.pod_until("grower", "is ready", |pod| condition(pod, "Ready"));
    wait_until_grown(&test, "csi-growth", "16Mi");
    let once = ["NodeStageVolume", "NodePublishVolume", "NodeExpandVolume"];
    assert_eq!(driver.calls(&handle), once);
    let text = "MountVolume.NodeExpandVolume succeeded for volume \"csi-growth\"";
    wait_for_event(&test, "grower", "FileSystemResizeSuccessful", text);
    wait_for_event(&test, "csi-growth", "FileSystemResizeSuccessful", text);

    grow(&test, "csi-growth", "32Mi");
    wait_until_grown(&test, "csi-growth", "32Mi");
    assert_eq!(driver.calls(&handle), [&once[..], &["NodeExpandVolume"]].concat());
    test.kubectl(&["delete", "pod", "grower", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
}

#[test]
fn expansion_that_the_driver_refuses_for_good_is_infeasible_and_the_pod_starts() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "infeasible", false);
    let handle = driver.create("infeasible");
    let mut bound = Bound::new(&test);
    bind(&mut bound, &test, "csi-infeasible", &handle);
    let fault = Fault::Fail { code: OUT_OF_RANGE, message: "too large".to_owned() };
    driver.fail(&[Rule::new("NodeExpandVolume", fault)]);
    grow(&test, "csi-infeasible", "16Mi");
    test.apply(&claimant("patient", "csi-infeasible", SLEEP));
    let text = "MountVolume.Setup failed while expanding volume for volume \"csi-infeasible\" : \
                Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = \
                too large";
    wait_for_event(&test, "patient", "FailedMount", text);
    test.pod_until("patient", "is ready", |pod| condition(pod, "Ready"));
    let status = status(&test, "csi-infeasible").expect("a claim");
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible");
    assert_eq!(status["capacity"]["storage"], "8Mi");
    let conditions = status["conditions"].as_array().expect("conditions");
    let kinds: Vec<_> = conditions.iter().map(|c| c["type"].as_str().unwrap_or_default()).collect();
    assert!(kinds.contains(&"NodeResizeError"), "{kinds:?}");
}
