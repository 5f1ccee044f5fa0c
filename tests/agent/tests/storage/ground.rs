//! What the tests of volumes share: claims and volumes that are bound to each other, and pods.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use pintle_testbed::cluster::{NODE, TestCluster};
use pintle_testbed::manifest::{With, pod, script};
use pintle_testbed::node::agent_binary;
use pintle_testbed::{LONG, until};
use serde_json::{Value, json};
use xtask::shell;

/// Folder of the tests' data on the node.
const DATA: &str = "/var/lib/storage-tests";

/// A folder of the node by its name, made.
pub fn folder(test: &TestCluster, name: &str) -> String {
    let path = format!("{DATA}/{name}");
    std::fs::create_dir_all(test.on_node(&path)).expect("made");
    path
}

/// A PersistentVolume for the claim of its name, with this source and these fields.
pub fn volume(name: &str, source: Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "64Mi"}, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
            "claimRef": {"namespace": "default", "name": name}},
    });
    for (key, value) in source.as_object().expect("fields") {
        volume["spec"][key] = value.clone();
    }
    volume
}

/// A local volume, which needs to say where it is.
pub fn local(name: &str, path: &str) -> Value {
    let here = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}]}]}});
    volume(name, json!({"local": {"path": path}, "nodeAffinity": here}))
}

/// The claim of the volume of its name.
pub fn claim(volume: &Value) -> Value {
    let name = &volume["metadata"]["name"];
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {
            "accessModes": volume["spec"]["accessModes"], "storageClassName": "",
            "volumeMode": volume["spec"].get("volumeMode").unwrap_or(&json!("Filesystem")),
            "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}},
    })
}

/// A pod of the node that runs a script with the claim at `/data`.
pub fn claimant(name: &str, claim: &str, text: &str) -> Value {
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    pod(name, &[script("c", text).with("volumeMounts", mounts)])
        .with_spec("nodeName", json!(NODE))
        .with_spec("restartPolicy", json!("Never"))
        .with_spec("automountServiceAccountToken", json!(false))
        .with_spec("volumes", volumes)
}

/// Claims and volumes of a test; they go with it.
pub struct Bound<'a> {
    test: &'a TestCluster,
    names: Vec<String>,
}

impl<'a> Bound<'a> {
    /// Nothing yet.
    pub fn new(test: &'a TestCluster) -> Self {
        Self { test, names: Vec::new() }
    }

    /// Creates a volume and its claim, and waits until they are bound.
    pub fn bind(&mut self, volume: &Value) {
        self.add(volume);
        self.test.apply(&claim(volume));
        self.wait(volume["metadata"]["name"].as_str().expect("a name"));
    }

    /// Creates volumes and their claims at once, and waits until all of these many are bound.
    pub fn bind_list(&mut self, objects: &[Value], count: usize) {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.test.apply(&list);
        let names = objects.iter().filter(|object| object["kind"] == "PersistentVolume");
        let names = names.filter_map(|volume| volume["metadata"]["name"].as_str());
        self.names.extend(names.map(str::to_owned));
        until(4 * LONG, "all claims are bound", || {
            let args = ["get", "pvc", "-o", "jsonpath={.items[*].status.phase}"];
            let bound = self.test.kubectl(&args)?.split(' ').filter(|p| *p == "Bound").count();
            ensure!(bound >= count, "{bound} of {count}");
            Ok(())
        });
    }

    /// Creates a volume without its claim.
    pub fn add(&mut self, volume: &Value) {
        let name = volume["metadata"]["name"].as_str().expect("a name").to_owned();
        self.test.apply(volume);
        self.names.push(name);
    }

    /// Waits until the claim of this name is bound.
    pub fn wait(&self, name: &str) {
        until(LONG, &format!("claim {name} is bound"), || {
            let args = ["get", "pvc", name, "-o", "jsonpath={.status.phase}"];
            let phase = self.test.kubectl(&args)?;
            ensure!(phase.trim() == "Bound", "{phase}");
            Ok(())
        });
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        delete_pods(self.test);
        for kind in ["pvc", "pv"] {
            let names = self.names.iter().map(String::as_str);
            let args: Vec<&str> =
                ["delete", kind, "--ignore-not-found"].into_iter().chain(names).collect();
            if !self.names.is_empty() {
                let _ = self.test.kubectl(&args);
            }
        }
    }
}

/// Deletes all pods after a test, and waits for a while: one that stays must not hide the failure.
pub fn delete_pods(test: &TestCluster) {
    let _ = test.kubectl(&["delete", "pods", "--all", "--grace-period=1", "--timeout=60s"]);
}

/// Messages of a pod's events of this reason.
pub fn events(test: &TestCluster, pod: &str, reason: &str) -> Result<Vec<String>> {
    let of = format!("involvedObject.name={pod},reason={reason}");
    let text = test.kubectl(&["get", "events", "--field-selector", &of, "-o", "json"])?;
    let list: Value = serde_json::from_str(&text).context("read the events")?;
    let items = list["items"].as_array().into_iter().flatten();
    Ok(items.filter_map(|event| event["message"].as_str()).map(str::to_owned).collect())
}

/// Waits for an event of a pod with this message.
pub fn wait_for_event(test: &TestCluster, pod: &str, reason: &str, message: &str) {
    until(LONG, &format!("{pod} has the event {message}"), || {
        let all = events(test, pod, reason)?;
        ensure!(all.iter().any(|text| text.contains(message)), "{all:#?}");
        Ok(())
    });
}

/// What the agent's own command prints on the node.
pub fn ask(test: &TestCluster, args: &[&str]) -> Result<String> {
    let mut command = test.cluster().node_command(NODE, Path::new(agent_binary()))?;
    shell::capture(command.args(args))
}

/// A loop device of the node over a file of these bytes; it goes with its owner.
pub struct LoopDisk<'a> {
    test: &'a TestCluster,
    /// The device.
    pub device: String,
    file: PathBuf,
}

impl<'a> LoopDisk<'a> {
    /// Makes one.
    pub fn new(test: &'a TestCluster, name: &str, bytes: u64) -> Self {
        let path = format!("{}/{name}.img", folder(test, "disks"));
        let file = test.on_node(&path);
        std::fs::File::create(&file).and_then(|f| f.set_len(bytes)).expect("a file");
        let mut losetup = test.cluster().node_command(NODE, Path::new("losetup")).expect("a node");
        let device = shell::capture(losetup.args(["-f", "--show", &path])).expect("a loop device");
        Self { test, device: device.trim().to_owned(), file }
    }
}

impl Drop for LoopDisk<'_> {
    fn drop(&mut self) {
        if let Ok(mut losetup) = self.test.cluster().node_command(NODE, Path::new("losetup")) {
            let _ = losetup.args(["-d", &self.device]).status();
        }
        let _ = std::fs::remove_file(&self.file);
    }
}
