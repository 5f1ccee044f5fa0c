//! Statistics of volumes: of claims of a driver, of a device, of a volume that is not well, and while
//! the driver hangs.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use pintle_csi_driver::create;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::condition;
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::drivers::{DRIVER, Driver, SLEEP};
use crate::ground::{Bound, claimant, volume, wait_for_event};

/// Bytes of each volume.
const BYTES: i64 = 1 << 20;
/// Threads that come and go with requests.
const SPARE_THREADS: usize = 4;

/// What the node answers to the API server.
fn asked(test: &TestCluster, path: &str) -> Result<String> {
    test.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{NODE}/proxy/{path}")])
}

/// The statistics of a pod's one volume with a claim or a driver.
fn stats(test: &TestCluster, pod: &str) -> Result<Value> {
    let summary: Value = serde_json::from_str(&asked(test, "stats/summary")?)?;
    let mut pods = summary["pods"].as_array().into_iter().flatten();
    let pod = pods.find(|found| found["podRef"]["name"] == pod).context("no such pod")?;
    let mut volumes = pod["volume"].as_array().into_iter().flatten();
    Ok(volumes.find(|volume| volume["name"] == "data").context("no such volume")?.clone())
}

/// The sample of a claim in a family.
fn sample(metrics: &str, family: &str, claim: &str) -> Option<String> {
    let name = format!(
        "kubelet_volume_stats_{family}{{namespace=\"default\",persistentvolumeclaim=\"{claim}\"}} "
    );
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned)
}

/// Has drivers asked often, and for health.
fn configure(test: &TestCluster) {
    test.configure_agent(&json!({
        "featureGates": {"CSIVolumeHealth": true}, "volumeStatsAggPeriod": "1s",
    }));
}

/// A pod that has a volume of the driver and writes to it.
fn start(test: &TestCluster, bound: &mut Bound<'_>, name: &str, handle: &str, text: &str) {
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    bound.bind(&volume(name, json!({"csi": source})));
    test.apply(&claimant(name, name, text));
    test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
}

#[test]
fn claim_statistics_come_from_its_driver_and_abnormal_health_has_metric_and_event() {
    let test = TestCluster::take();
    configure(&test);
    let driver = Driver::start(&test, "stats", false);
    let handle = driver.create("stats");
    let mut bound = Bound::new(&test);
    let text = format!("head -c 300000 /dev/zero > /data/file; {SLEEP}");
    start(&test, &mut bound, "stats", &handle, &text);
    until(LONG, "the driver's figures are shown", || {
        let of = stats(&test, "stats")?;
        ensure!(of["capacityBytes"] == BYTES, "{of:#}");
        ensure!(of["usedBytes"].as_u64() >= Some(300_000), "{of:#}");
        ensure!(of["pvcRef"] == json!({"name": "stats", "namespace": "default"}), "{of:#}");
        ensure!(of["volumeHealthStats"] == json!({"abnormal": false}), "{of:#}");
        Ok(())
    });
    let metrics = asked(&test, "metrics").expect("metrics");
    let capacity = sample(&metrics, "capacity_bytes", "stats").map(|text| text.parse::<f64>());
    assert_eq!(capacity, Some(Ok(BYTES as f64)));
    assert_eq!(sample(&metrics, "health_status_abnormal", "stats").as_deref(), Some("0"));
    let source = format!(
        "kubelet_volume_metric_collection_duration_seconds_count{{metric_source=\"{DRIVER}\"}}"
    );
    assert!(metrics.contains(&source), "the time of its answers is measured");

    fs::write(driver.state.join("abnormal"), &handle).expect("written");
    // Until the event is there no request is made.
    let message = "Volume data: the volume is scratched";
    wait_for_event(&test, "stats", "VolumeConditionAbnormal", message);
    until(LONG, "the volume is abnormal", || {
        let metrics = asked(&test, "metrics")?;
        let health = sample(&metrics, "health_status_abnormal", "stats");
        ensure!(health.as_deref() == Some("1"), "{health:?}");
        Ok(())
    });
}

#[test]
fn statistics_of_a_device_are_its_size() {
    let test = TestCluster::take();
    configure(&test);
    let driver = Driver::start(&test, "stats-block", false);
    let handle = create(&driver.state, "stats-block", BYTES, true).expect("a volume");
    let mut bound = Bound::new(&test);
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    bound.bind(&volume("stats-block", json!({"csi": source, "volumeMode": "Block"})));
    let mut pod = claimant("stats-block", "stats-block", SLEEP);
    let container = &mut pod["spec"]["containers"][0];
    container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/data"}]);
    container.as_object_mut().expect("an object").remove("volumeMounts");
    test.apply(&pod);
    test.pod_until("stats-block", "is ready", |pod| condition(pod, "Ready"));
    until(LONG, "the device's figures are shown", || {
        let of = stats(&test, "stats-block")?;
        ensure!(of["capacityBytes"] == BYTES && of["usedBytes"] == 0, "{of:#}");
        ensure!(of["pvcRef"]["name"] == "stats-block", "{of:#}");
        Ok(())
    });
}

#[test]
fn hung_volume_statistics_call_delays_no_other_volume_and_holds_no_thread() {
    let test = TestCluster::take();
    configure(&test);
    let driver = Driver::start(&test, "stats-hang", false);
    let (hung, well) = (driver.create("hung"), driver.create("well"));
    let mut bound = Bound::new(&test);
    let text = format!("while :; do head -c 9000 /dev/zero >> /data/file; {SLEEP_A_LITTLE}; done");
    start(&test, &mut bound, "hung", &hung, SLEEP);
    start(&test, &mut bound, "well", &well, &text);
    until(LONG, "both are shown", || {
        stats(&test, "hung").and_then(|_| stats(&test, "well")).map(drop)
    });
    let threads = || {
        let tasks = Path::new("/proc").join(test.agent_pid().to_string()).join("task");
        fs::read_dir(tasks).map_or(0, Iterator::count)
    };
    let before = threads();
    let mut rule = Rule::new("NodeGetVolumeStats", Fault::Hang);
    rule.volume.clone_from(&hung);
    driver.fail(&[rule]);
    let used = |of: &Value| of["usedBytes"].as_u64().unwrap_or_default();
    let mut last = used(&stats(&test, "well").expect("figures"));
    // The figures go on, period by period, while the other volume's call hangs.
    for _ in 0..5 {
        until(LONG, "the other pod's figures grow", || {
            let now = used(&stats(&test, "well")?);
            ensure!(now > last, "{now} after {last}");
            last = now;
            Ok(())
        });
        let shown = stats(&test, "hung").expect("its last figures");
        assert_eq!(shown["capacityBytes"], BYTES, "the last figures stay meanwhile");
    }
    let now = threads();
    assert!(now <= before + SPARE_THREADS, "{now} threads, were {before}");
    driver.fail(&[]);
}

/// Between two writes.
const SLEEP_A_LITTLE: &str = "sleep 0.2";
