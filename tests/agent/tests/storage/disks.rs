//! Local volumes: folders, disks with a file system, devices; across restarts of the agent.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::ensure;
use k8s_openapi::api::core::v1::Pod;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, container, phase, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::ground::{Bound, LoopDisk, claimant, events, folder, local, wait_for_event};

const SLEEP: &str = "trap 'exit 0' TERM; while :; do sleep 0.1; done";
const DISK_BYTES: u64 = 32 << 20;

fn uid(pod: &Pod) -> &str {
    pod.metadata.uid.as_deref().expect("a pod of the API server has a uid")
}

/// Mount points of the node with this part in their path.
fn mounts(test: &TestCluster, part: &str) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{}/mountinfo", test.agent_pid())).expect("read");
    let points = text.lines().filter_map(|line| line.split(' ').nth(4));
    points.filter(|point| point.contains(part)).map(str::to_owned).collect()
}

#[test]
fn local_volume_gets_the_pods_fs_group_and_is_read_only_if_the_pod_requests_it() {
    let test = TestCluster::take();
    test.empty_nodes();
    let path = folder(&test, "folder");
    fs::write(test.on_node(&path).join("file"), "x").expect("written");
    let mut bound = Bound::new(&test);
    bound.bind(&local("folder", &path));
    let group = json!({"fsGroup": 4242});
    let writer = claimant("writer", "folder", "echo y > /data/new && touch /data/done")
        .with_spec("securityContext", group);
    test.apply(&writer);
    test.pod_until("writer", "succeeds", |pod| phase(pod) == "Succeeded");
    let meta = fs::metadata(test.on_node(&path).join("file")).expect("stat");
    assert_eq!((meta.gid(), meta.mode() & 0o60), (4242, 0o60));

    let shown = json!([{"name": "data",
        "persistentVolumeClaim": {"claimName": "folder", "readOnly": true}}]);
    test.apply(&claimant("reader", "folder", "! touch /data/x").with_spec("volumes", shown));
    test.pod_until("reader", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pods", "--all"]).expect("deleted");
    until(LONG, "nothing is mounted", || {
        let left = (mounts(&test, "local-volume"), test.leftovers(NODE)?);
        ensure!(left.0.is_empty() && left.1.is_empty(), "{left:#?}");
        Ok(())
    });
    assert!(test.on_node(&path).join("done").exists(), "the data stays");
}

#[test]
fn disk_is_formatted_and_unmounted_with_its_last_pod_also_after_an_agent_restart() {
    let test = TestCluster::take();
    let disk = LoopDisk::new(&test, "formatted", DISK_BYTES);
    let mut bound = Bound::new(&test);
    let unnamed = json!({"path": disk.device, "fsType": ""});
    bound.bind(&local("formatted", &disk.device).with_spec("local", unnamed));
    for name in ["one", "two"] {
        let text = format!("echo {name} > /data/{name}; {SLEEP}");
        test.apply(&claimant(name, "formatted", &text));
        test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
    }
    let global = "plugins/kubernetes.io/local-volume/mounts/formatted";
    // The node's shared root may show it twice.
    assert!(!mounts(&test, global).is_empty());
    test.restart_agent();
    test.kubectl(&["delete", "pod", "one", "--grace-period=1"]).expect("deleted");
    test.pod_gone("one");
    assert!(!mounts(&test, global).is_empty(), "the other pod has it");
    test.kubectl(&["delete", "pod", "two", "--grace-period=1"]).expect("deleted");
    until(LONG, "the disk is not mounted", || {
        let left = mounts(&test, "local-volume");
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    });
    test.apply(&claimant("three", "formatted", "test -e /data/one && test -e /data/two"));
    test.pod_until("three", "succeeds", |pod| phase(pod) == "Succeeded");
}

#[test]
fn a_container_gets_the_device_of_a_block_volume() {
    let test = TestCluster::take();
    let disk = LoopDisk::new(&test, "device", DISK_BYTES);
    let mut bound = Bound::new(&test);
    bound.bind(&local("device", &disk.device).with_spec("volumeMode", json!("Block")));
    let devices = json!([{"name": "data", "devicePath": "/dev/disk"}]);
    let text = "test -b /dev/disk && echo written | dd of=/dev/disk bs=512 conv=sync && sync";
    let one = |name: &str, text: &str| -> Value {
        let mut pod = claimant(name, "device", text);
        pod["spec"]["containers"] =
            json!([script("c", text).with("volumeDevices", devices.clone())]);
        pod
    };
    test.apply(&one("raw", text));
    let pod = test.pod_until("raw", "succeeds", |pod| phase(pod) == "Succeeded");
    wait_for_event(
        &test,
        "raw",
        "SuccessfulMountVolume",
        "MapVolume.MapPodDevice succeeded for volume \"device\"",
    );
    // It goes with the end of the pod, not with its deletion.
    let global = format!("volumeDevices/device/{}", uid(&pod));
    test.kubectl(&["delete", "pod", "raw"]).expect("deleted");
    until(LONG, "the device is released", || {
        let left = mounts(&test, &global);
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    });
    test.apply(&one("again", "head -c 7 /dev/disk | grep -q written"));
    test.pod_until("again", "succeeds", |pod| phase(pod) == "Succeeded");
}

#[test]
fn volume_of_another_node_or_with_a_missing_path_fails_with_the_kubelets_message() {
    let test = TestCluster::take();
    let path = folder(&test, "elsewhere");
    let mut bound = Bound::new(&test);
    let elsewhere = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["another"]}]}]}});
    bound.bind(&local("elsewhere", &path).with_spec("nodeAffinity", elsewhere));
    test.apply(&claimant("stranger", "elsewhere", "true"));
    wait_for_event(
        &test,
        "stranger",
        "FailedMount",
        "MountVolume.NodeAffinity check failed for volume \"elsewhere\" : no matching \
         NodeSelectorTerms",
    );
    bound.bind(&local("missing", "/no/such/path"));
    test.apply(&claimant("lost", "missing", "true"));
    wait_for_event(
        &test,
        "lost",
        "FailedMount",
        "MountVolume.NewMounter initialization failed for volume \"missing\" : path \
         \"/no/such/path\" does not exist",
    );
    assert!(!events(&test, "lost", "FailedMount").expect("events").is_empty());
}

#[test]
fn an_extra_group_of_the_volume_is_given_to_the_pods_processes() {
    let test = TestCluster::take();
    let path = folder(&test, "grouped");
    let mut bound = Bound::new(&test);
    let mut volume = local("grouped", &path);
    volume["metadata"]["annotations"] = json!({"pv.beta.kubernetes.io/gid": "5005"});
    bound.bind(&volume);
    let check = ["sh", "-c", "id -G | grep -qw 5005"];
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let mut pod = claimant("grouped", "grouped", "true");
    pod["spec"]["containers"] = json!([container("c", &check).with("volumeMounts", mounts)]);
    test.apply(&pod);
    test.pod_until("grouped", "succeeds", |pod| phase(pod) == "Succeeded");
}
