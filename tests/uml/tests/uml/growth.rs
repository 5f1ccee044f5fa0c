//! A local volume on a disk that grows. Growing a mounted file system takes CAP_SYS_RESOURCE, which a
//! guest's processes have.
//!
//! No controller runs: the test binds the claim, and says that it grows, as an administrator does
//! for a volume that no driver has. Expected values are the kubelet's.

use anyhow::ensure;
use pintle_uml_tests::{Api, TestNode, sleeper};
use serde_json::{Value, json};

use super::api::ready;

const CLAIM: &str = "data";
const VOLUME: &str = "disk";

/// A volume on the disk, and a claim that is bound to it.
fn bind(api: &Api, device: &str) {
    let here = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}]}});
    let of_both = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": ""});
    let mut claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": CLAIM}, "spec": of_both});
    claim["spec"]["volumeName"] = VOLUME.into();
    claim["spec"]["resources"] = json!({"requests": {"storage": "32Mi"}});
    api.create_as_it_is(&claim);
    let uid = api.kubectl(&["get", "pvc", CLAIM, "-o", "jsonpath={.metadata.uid}"]);
    let mut volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": VOLUME}, "spec": of_both});
    volume["spec"]["capacity"] = json!({"storage": "32Mi"});
    volume["spec"]["local"] = json!({"path": device});
    volume["spec"]["nodeAffinity"] = here;
    volume["spec"]["claimRef"] = json!({"namespace": "default", "name": CLAIM, "uid": uid.trim()});
    api.create_as_it_is(&volume);
    set_status(api, &json!({"phase": "Bound", "capacity": {"storage": "32Mi"}}));
}

fn set_status(api: &Api, status: &Value) {
    let patch = json!({"status": status}).to_string();
    api.kubectl(&["patch", "pvc", CLAIM, "--subresource=status", "--type=merge", "-p", &patch]);
}

/// The disk and the volume have this size, and it is the node's turn.
fn grow(api: &Api, node: &TestNode, mebibytes: u64) {
    node.sh(&format!(
        "truncate -s {mebibytes}M /tmp/disk && losetup -c $(losetup -j /tmp/disk -n -O NAME)"
    ));
    let size = json!({"storage": format!("{mebibytes}Mi")});
    let spec = json!({"spec": {"capacity": size}}).to_string();
    api.kubectl(&["patch", "pv", VOLUME, "--type=merge", "-p", &spec]);
    let pending = json!({"storage": "NodeResizePending"});
    set_status(api, &json!({"allocatedResources": size, "allocatedResourceStatuses": pending}));
}

fn wait_until_grown(api: &Api, node: &TestNode, mebibytes: u64) {
    node.until(&format!("the claim has {mebibytes} MiB"), || {
        let text = api.kubectl(&["get", "pvc", CLAIM, "-o", "json"]);
        let status = serde_json::from_str::<Value>(&text)?["status"].clone();
        let size = &status["capacity"]["storage"];
        ensure!(*size == format!("{mebibytes}Mi"), "{status:#}");
        ensure!(status.get("allocatedResourceStatuses").is_none(), "{status:#}");
        Ok(())
    });
    let path = format!("/var/lib/kubelet/plugins/kubernetes.io/local-volume/mounts/{VOLUME}");
    let bytes = node.sh(&format!("echo $(($(stat -f -c '%b * %S' {path})))"));
    let bytes: u64 = bytes.trim().parse().expect("a number");
    // The file system's own records take a part.
    assert!(bytes > (mebibytes << 20) * 3 / 4, "{bytes} of {mebibytes} MiB");
}

#[test]
fn file_system_of_a_local_disk_grows_before_its_pod_starts_and_while_it_runs() {
    let api = Api::start("growth");
    let node = TestNode::join(api.cluster(), "n1", &json!({"syncFrequency": "2s"}));
    let script = "truncate -s 32M /tmp/disk && losetup --find --show /tmp/disk";
    let device = node.sh(script);
    bind(&api, device.trim());
    let mut pod = sleeper("grower", &json!({}));
    pod["spec"]["volumes"] =
        json!([{"name": "data", "persistentVolumeClaim": {"claimName": CLAIM}}]);
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    api.create(&pod);
    ready(&api, &node, "grower");
    grow(&api, &node, 96);
    wait_until_grown(&api, &node, 96);

    api.kubectl(&["delete", "pod", "grower", "--wait", "--timeout=60s"]);
    grow(&api, &node, 192);
    api.create(&pod);
    ready(&api, &node, "grower");
    wait_until_grown(&api, &node, 192);
    let of = "involvedObject.name=grower,reason=FileSystemResizeSuccessful";
    node.until("the pod has its event", || {
        let events = api.kubectl(&["get", "events", "--field-selector", of]);
        ensure!(events.contains("MountVolume.NodeExpandVolume succeeded for volume"), "{events}");
        Ok(())
    });
}
