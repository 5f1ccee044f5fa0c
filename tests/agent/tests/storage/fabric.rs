//! fc volumes: a loop device behind a link as the kernel makes them for a port of a fabric. The
//! attach-detach controller attaches the disk; it is mounted once, and kept through a restart.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::ensure;
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, condition, phase, script};
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};

use crate::drivers::SLEEP;
use crate::ground::{Bound, LoopDisk, claimant, volume, wait_for_event};

const DISK_BYTES: u64 = 32 << 20;

/// A disk behind a port; its link goes with it.
struct Port<'a> {
    test: &'a TestCluster,
    _disk: LoopDisk<'a>,
    wwn: &'static str,
    link: PathBuf,
}

impl<'a> Port<'a> {
    fn new(test: &'a TestCluster, wwn: &'static str) -> Self {
        let disk = LoopDisk::new(test, wwn, DISK_BYTES);
        let links = test.on_node("/dev/disk/by-path");
        fs::create_dir_all(&links).expect("made");
        let link = links.join(format!("pci-0000:41:00.0-fc-0x{wwn}-lun-2"));
        let _ = fs::remove_file(&link);
        symlink(&disk.device, &link).expect("linked");
        Self { test, _disk: disk, wwn, link }
    }

    fn source(&self) -> Value {
        json!({"targetWWNs": [self.wwn], "lun": 2})
    }

    /// Whether a list of the Node's status names the disk.
    fn is_in(&self, list: &str) -> anyhow::Result<bool> {
        let path = format!("jsonpath={{.status.{list}}}");
        let text = self.test.kubectl(&["get", "node", NODE, "-o", &path])?;
        Ok(text.contains(&format!("kubernetes.io/fc/[{}]:2", self.wwn)))
    }

    fn nothing_is_left(&self) {
        until(LONG, "the disk is detached", || {
            let text = fs::read_to_string(format!("/proc/{}/mountinfo", self.test.agent_pid()))?;
            let left: Vec<_> = text.lines().filter(|line| line.contains(self.wwn)).collect();
            ensure!(left.is_empty(), "{left:#?}");
            let folder = format!("/var/lib/kubelet/plugins/kubernetes.io/fc/{}-lun-2", self.wwn);
            ensure!(!self.test.on_node(&folder).exists(), "{folder} is still there");
            ensure!(!self.is_in("volumesInUse")?, "the Node names it as in use");
            ensure!(!self.is_in("volumesAttached")?, "the Node names it as attached");
            Ok(())
        });
    }
}

impl Drop for Port<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.link);
    }
}

#[test]
fn a_disk_of_a_fabric_is_attached_first_mounted_once_and_kept_through_a_restart() {
    let test = TestCluster::take();
    let port = Port::new(&test, "50060e8010000001");
    let mut bound = Bound::new(&test);
    bound.bind(&volume("fabric", json!({"fc": port.source()})));
    for name in ["one", "two"] {
        let text = format!("echo {name} > /data/{name}; {SLEEP}");
        test.apply(&claimant(name, "fabric", &text));
        test.pod_until(name, "is ready", |pod| condition(pod, "Ready"));
    }
    assert!(port.is_in("volumesInUse").expect("read"));
    assert!(port.is_in("volumesAttached").expect("read"));
    test.restart_agent();
    test.kubectl(&["delete", "pod", "one", "--grace-period=1"]).expect("deleted");
    test.pod_gone("one");
    assert!(port.is_in("volumesInUse").expect("read"), "the other pod has it");
    test.kubectl(&["delete", "pod", "two", "--grace-period=1"]).expect("deleted");
    port.nothing_is_left();

    let inline = json!([{"name": "data", "fc": port.source()}]);
    let read = claimant("three", "", "test -e /data/one && test -e /data/two");
    test.apply(&read.with_spec("volumes", inline));
    test.pod_until("three", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "three"]).expect("deleted");
    port.nothing_is_left();
}

#[test]
fn a_container_gets_the_device_of_a_disk_of_a_fabric() {
    let test = TestCluster::take();
    let port = Port::new(&test, "50060e8010000002");
    let mut bound = Bound::new(&test);
    bound.bind(
        &volume("fabric-raw", json!({"fc": port.source()})).with_spec("volumeMode", json!("Block")),
    );
    let devices = json!([{"name": "data", "devicePath": "/dev/disk"}]);
    let one = |name: &str, text: &str| -> Value {
        let mut pod = claimant(name, "fabric-raw", text);
        let container = script("c", text).with("volumeDevices", devices.clone());
        pod["spec"]["containers"] = json!([container]);
        pod
    };
    let text = "test -b /dev/disk && echo written | dd of=/dev/disk bs=512 conv=sync && sync";
    test.apply(&one("raw", &format!("{text}; {SLEEP}")));
    test.pod_until("raw", "is ready", |pod| condition(pod, "Ready"));
    test.restart_agent();
    test.kubectl(&["delete", "pod", "raw", "--grace-period=1"]).expect("deleted");
    test.pod_gone("raw");
    port.nothing_is_left();
    test.apply(&one("again", "head -c 7 /dev/disk | grep -q written"));
    test.pod_until("again", "succeeds", |pod| phase(pod) == "Succeeded");
    test.kubectl(&["delete", "pod", "again"]).expect("deleted");
    port.nothing_is_left();
}

#[test]
fn absent_fc_disk_and_invalid_iscsi_name_are_reported_as_failed_mount() {
    let test = TestCluster::take();
    let pod = |name: &str, source: Value| {
        let mut volume = source;
        volume["name"] = json!("data");
        claimant(name, "", "true").with_spec("volumes", json!([volume]))
    };
    let nowhere = json!({"fc": {"targetWWNs": ["50060e8010000003"], "lun": 1}});
    test.apply(&pod("nowhere", nowhere));
    let text = "MountVolume.WaitForAttach failed for volume \"data\" : no fc disk found";
    wait_for_event(&test, "nowhere", "FailedMount", text);
    let odd = json!({"iscsi": {"targetPortal": "10.0.0.1", "lun": 0,
        "iqn": "iqn.2020-01.x:../../../../etc"}});
    test.apply(&pod("odd", odd));
    wait_for_event(
        &test,
        "odd",
        "FailedMount",
        "iqn \"iqn.2020-01.x:../../../../etc\" is not valid",
    );
    let _ = test.kubectl(&["delete", "pods", "nowhere", "odd", "--grace-period=1"]);
}
