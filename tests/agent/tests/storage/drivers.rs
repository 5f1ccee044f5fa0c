//! Volumes of a CSI driver: staged and published in order, kept through the agent's death, gone with
//! their pods; the driver's own log says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::ensure;
use pintle_agent_core::storage::csi::attachment_name;
use pintle_csi_driver::create;
use pintle_csi_driver::faults::{Fault, FaultFile, Rule};
use pintle_csi_driver::log::{LogFile, Phase};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase};
use pintle_testbed::{LONG, until};
use serde_json::json;

use crate::ground::{Bound, claimant, delete_pods, folder, volume, wait_for_event};

/// Name of the driver, where it matters to no test.
pub const DRIVER: &str = "csi.test.pintle.dev";
/// Where the agent looks for sockets.
pub const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
/// gRPC's code for a volume that is being worked on.
const ABORTED: i32 = 10;
/// Waits for SIGTERM.
pub const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";

/// The driver on the node; it goes with its owner.
pub struct Driver<'a> {
    test: &'a TestCluster,
    name: &'static str,
    child: Child,
    /// Its folder, as the test sees it.
    pub state: PathBuf,
    flags: Vec<String>,
}

impl<'a> Driver<'a> {
    /// Starts it; `attaches` says whether volumes are attached first.
    pub fn start(test: &'a TestCluster, folder: &str, attaches: bool) -> Self {
        let without = if attaches { &[][..] } else { &["--without=attach"] };
        let driver = Self::named(test, DRIVER, folder, without);
        driver.describe(attaches);
        driver
    }

    /// Starts it under a name, with flags, with a folder of its own.
    pub fn named(test: &'a TestCluster, name: &'static str, own: &str, more: &[&str]) -> Self {
        let on_node = folder(test, &format!("csi-{own}"));
        let state = test.on_node(&on_node);
        let mut flags = vec![
            format!("--state={on_node}"),
            format!("--endpoint={on_node}/csi.sock"),
            format!("--registry={REGISTRY}"),
            format!("--node-id={NODE}"),
            format!("--name={name}"),
        ];
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        let child = spawn(test, &flags);
        Self { test, name, child, state, flags }
    }

    /// Makes its CSIDriver object.
    pub fn describe(&self, attaches: bool) {
        self.test.apply(&json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": self.name},
            "spec": {"attachRequired": attaches, "podInfoOnMount": true, "fsGroupPolicy": "File",
                "volumeLifecycleModes": ["Persistent", "Ephemeral"]},
        }));
    }

    /// A volume of the driver; returns its handle.
    pub fn create(&self, name: &str) -> String {
        create(&self.state, name, 1 << 20, false).expect("a volume")
    }

    /// Has these calls fail.
    pub fn fail(&self, rules: &[Rule]) {
        FaultFile::new(&self.state).write(rules).expect("written");
    }

    /// Kills the process and starts another one.
    pub fn restart(&mut self) {
        self.child.kill().and_then(|()| self.child.wait()).expect("killed");
        self.child = spawn(self.test, &self.flags);
    }

    /// Kills the process and takes its registration from the node.
    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let socket = self.test.on_node(&format!("{REGISTRY}/{}-reg.sock", self.name));
        let _ = fs::remove_file(socket);
    }

    /// The calls for a volume that went well, in order; and no call was out of order.
    pub fn calls(&self, handle: &str) -> Vec<String> {
        let lines = LogFile::new(&self.state).read().expect("a log");
        let wrong: Vec<_> = lines.iter().filter(|line| line.phase == Phase::Violation).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let done = lines.iter().filter(|line| line.is_success() && line.volume == handle);
        let node = done.filter(|line| line.method.starts_with("Node"));
        node.map(|line| line.method.clone())
            .filter(|method| *method != "NodeGetVolumeStats")
            .collect()
    }

    /// Nothing is staged or published, and no folder is left.
    pub fn nothing_is_left(&self) {
        until(LONG, "the driver's volumes are gone", || {
            let folder = format!("/var/lib/kubelet/plugins/kubernetes.io/csi/{}", self.name);
            let staged = self.test.on_node(&folder);
            let left: Vec<_> = fs::read_dir(&staged).into_iter().flatten().flatten().collect();
            ensure!(left.is_empty(), "{left:?}");
            let text = fs::read_to_string(format!("/proc/{}/mounts", self.child.id()))?;
            let mounts: Vec<_> = text
                .lines()
                .filter(|line| line.contains("kubernetes.io") && line.contains("csi"))
                .collect();
            ensure!(mounts.is_empty(), "{mounts:#?}");
            Ok(())
        });
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        delete_pods(self.test);
        let _ = self.test.kubectl(&["delete", "csidriver", self.name, "--ignore-not-found"]);
        self.stop();
    }
}

fn spawn(test: &TestCluster, flags: &[String]) -> Child {
    let program = xtask::node::agent::build("pintle-csi-driver").expect("it builds");
    let mut command: Command =
        test.cluster().node_command(NODE, Path::new(&program)).expect("a node");
    command.args(flags).stdin(Stdio::null()).spawn().expect("the driver starts")
}

/// What the Node's status says of volumes in use.
fn in_use(test: &TestCluster) -> anyhow::Result<Vec<String>> {
    let text = test.kubectl(&["get", "node", NODE, "-o", "json"])?;
    let node: serde_json::Value = serde_json::from_str(&text)?;
    let names = node["status"]["volumesInUse"].as_array().cloned().unwrap_or_default();
    Ok(names.iter().filter_map(|name| name.as_str()).map(str::to_owned).collect())
}

/// Binds a claim of this name to a volume of the driver.
fn bind(bound: &mut Bound<'_>, name: &str, handle: &str) {
    let source = json!({"driver": DRIVER, "volumeHandle": handle});
    bound.bind(&volume(name, json!({"csi": source})));
}

#[test]
fn a_volume_of_a_driver_is_staged_published_and_taken_back_for_each_pod() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "plain", false);
    let handle = driver.create("plain");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-plain", &handle);
    test.apply(&claimant("writer", "csi-plain", "echo kept > /data/file"));
    test.pod_until("writer", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "writer"]).expect("deleted");
    driver.nothing_is_left();
    let once = ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    assert_eq!(driver.calls(&handle), once);
    test.apply(&claimant("reader", "csi-plain", "test $(cat /data/file) = kept"));
    test.pod_until("reader", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "reader"]).expect("deleted");
    driver.nothing_is_left();
    assert_eq!(driver.calls(&handle), [once, once].concat());
}

#[test]
fn a_volume_survives_the_agents_death_and_is_taken_back_by_the_next_agent() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "death", false);
    let handle = driver.create("death");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-death", &handle);
    let (one, two) = (claimant("one", "csi-death", SLEEP), claimant("two", "csi-death", SLEEP));
    for (name, pod) in [("one", &one), ("two", &two)] {
        test.apply(pod);
        test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
    }
    let running = test.running().expect("containers");
    test.restart_agent();
    test.kubectl(&["delete", "pod", "one", "--grace-period=1"]).expect("deleted");
    test.pod_gone("one");
    assert!(test.running().expect("containers").iter().all(|id| running.contains(id)));
    let pod = test.pod_until("two", "is ready", |pod| condition(pod, "Ready"));
    let mount = test.volume(&pod, "csi", "csi-death").join("mount");
    assert!(mount.exists(), "the other pod keeps it");
    test.kubectl(&["delete", "pod", "two", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    assert_eq!(driver.calls(&handle).last().map(String::as_str), Some("NodeUnstageVolume"));
}

#[test]
fn a_driver_that_loses_answers_and_dies_in_calls_leaves_no_volume_behind() {
    let test = TestCluster::take();
    let mut driver = Driver::start(&test, "faults", false);
    let handle = driver.create("faults");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-faults", &handle);
    let lost = |method: &str| {
        let message = "the answer is lost".to_owned();
        Rule::new(method, Fault::Fail { code: ABORTED, message }).times(1).after()
    };
    driver.fail(&[
        lost("NodeStageVolume"),
        Rule::new("NodePublishVolume", Fault::Die).times(1).after(),
    ]);
    test.apply(&claimant("unlucky", "csi-faults", SLEEP));
    wait_for_event(
        &test,
        "unlucky",
        "FailedMount",
        "MountVolume.MountDevice failed for volume \"csi-faults\" : rpc error: code = Aborted desc = \
         the answer is lost",
    );
    until(LONG, "the driver has died", || {
        let ended = driver.child.try_wait()?;
        ensure!(ended.is_some(), "it runs");
        Ok(())
    });
    driver.restart();
    test.pod_until("unlucky", "is ready", |pod| condition(pod, "Ready"));
    driver.fail(&[lost("NodeUnpublishVolume"), lost("NodeUnstageVolume")]);
    test.kubectl(&["delete", "pod", "unlucky", "--grace-period=1"]).expect("deleted");
    test.pod_gone("unlucky");
    driver.nothing_is_left();
    driver.calls(&handle);
}

#[test]
fn inline_volume_is_published_with_its_pods_identity() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "inline", false);
    let volumes = json!([{"name": "data", "csi": {"driver": DRIVER}}]);
    test.apply(&claimant("inline", "", "touch /data/file").with_spec("volumes", volumes));
    test.pod_until("inline", "succeeds", |pod| phase(pod) == "Succeeded");
    let lines = LogFile::new(&driver.state).read().expect("a log");
    let publish = lines.iter().find(|line| line.method == "NodePublishVolume");
    let told = publish.map(|line| line.text.clone()).unwrap_or_default();
    for key in ["pod.name", "pod.namespace", "pod.uid", "serviceAccount.name", "ephemeral"] {
        assert!(told.contains(&format!("\"csi.storage.k8s.io/{key}\"")), "{key}: {told}");
    }
    test.kubectl(&["delete", "pod", "inline"]).expect("deleted");
    driver.nothing_is_left();
}

#[test]
fn pod_without_its_driver_waits_with_an_event_and_starts_with_the_driver() {
    let test = TestCluster::take();
    let mut driver = Driver::start(&test, "late", false);
    let handle = driver.create("late");
    driver.stop();
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-late", &handle);
    test.apply(&claimant("early", "csi-late", "true"));
    let text = format!(
        "MountVolume.MountDevice failed for volume \"csi-late\" : kubernetes.io/csi: attacher.MountDevice \
         failed to create newCsiDriverClient: driver name {DRIVER} not found in \
         the list of registered CSI drivers"
    );
    wait_for_event(&test, "early", "FailedMount", &text);
    driver.restart();
    test.pod_until("early", "ends", |pod| phase(pod) == "Succeeded");
    driver.nothing_is_left();
}

#[test]
fn attachable_volume_is_in_use_from_before_staging_until_unstaged() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "attached", false);
    test.kubectl(&["delete", "csidriver", DRIVER]).expect("deleted");
    test.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": true},
    }));
    let handle = driver.create("attached");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-attached", &handle);
    test.apply(&claimant("user", "csi-attached", SLEEP));
    let name = format!("kubernetes.io/csi/{DRIVER}^{handle}");
    // The attach-detach controller makes the object; the attacher is played.
    let attachment = attachment_name(&handle, DRIVER, NODE);
    until(LONG, "the volume is to be attached", || {
        ensure!(in_use(&test)? == [name.clone()], "{:?}", in_use(&test)?);
        test.kubectl(&["get", "volumeattachment", &attachment]).map(drop)
    });
    assert_eq!(driver.calls(&handle), Vec::<String>::new());
    let attached = r#"{"status": {"attached": true}}"#;
    let patch = ["patch", "volumeattachment", &attachment, "--subresource=status", "--type=merge"];
    test.kubectl(&[&patch[..], &["-p", attached]].concat()).expect("patched");
    test.pod_until("user", "is ready", |pod| condition(pod, "Ready"));
    assert_eq!(in_use(&test).expect("a node"), [name]);
    test.kubectl(&["delete", "pod", "user", "--grace-period=1"]).expect("deleted");
    driver.nothing_is_left();
    until(LONG, "no volume is in use", || {
        ensure!(in_use(&test)?.is_empty(), "{:?}", in_use(&test)?);
        Ok(())
    });
}

#[test]
#[ignore = "the pod waits two minutes for its volume first"]
fn pod_over_the_volume_attachment_limit_fails_and_node_get_info_is_called_again() {
    let test = TestCluster::take();
    let driver = Driver::start(&test, "full", false);
    test.kubectl(&["delete", "csidriver", DRIVER]).expect("deleted");
    test.apply(&json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
        "spec": {"attachRequired": true, "nodeAllocatableUpdatePeriodSeconds": 3600},
    }));
    let handle = driver.create("full");
    let mut bound = Bound::new(&test);
    bind(&mut bound, "csi-full", &handle);
    test.apply(&claimant("excess", "csi-full", SLEEP));
    let attachment = attachment_name(&handle, DRIVER, NODE);
    until(LONG, "the volume is to be attached", || {
        test.kubectl(&["get", "volumeattachment", &attachment]).map(drop)
    });
    let asked = || {
        let lines = LogFile::new(&driver.state).read().expect("a log");
        lines.iter().filter(|line| line.method == "NodeGetInfo" && line.is_success()).count()
    };
    let before = asked();
    let status = json!({"status": {"attached": false, "attachError": {
        "errorCode": 8, "message": "no slot is free", "time": "2026-01-01T00:00:00Z"}}});
    let patch = ["patch", "volumeattachment", &attachment, "--subresource=status", "--type=merge"];
    test.kubectl(&[&patch[..], &["-p", &status.to_string()]].concat()).expect("patched");
    // The pod waits for its volumes for two minutes first.
    until(LONG * 2, "the pod fails", || {
        let pod = test.kubectl(&["get", "pod", "excess", "-o", "json"])?;
        let pod: serde_json::Value = serde_json::from_str(&pod)?;
        ensure!(pod["status"]["reason"] == "VolumeAttachmentLimitExceeded", "{:#}", pod["status"]);
        let message = "Pod was rejected: Node has reached its volume attachment limit, rejecting \
                       pod. unmounted volumes=[data], unattached volumes=[data], failed to process \
                       volumes=[]: context deadline exceeded";
        ensure!(pod["status"]["message"] == message, "{:#}", pod["status"]);
        Ok(())
    });
    until(LONG, "the driver is asked for its limit", || {
        ensure!(asked() > before, "{} calls", asked());
        Ok(())
    });
}
