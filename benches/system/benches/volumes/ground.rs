//! The node's driver, and the objects of pods with volumes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use xtask::cluster::{Agent, Cluster};
use xtask::image::set::BOX;
use xtask::node::agent;

pub(crate) const NODE: &str = "n1";
pub(crate) const AGENT: &str = "n1-agent";
pub(crate) const NAMESPACE: &str = "default";
const DRIVER: &str = "csi.test.pintle.dev";
const REGISTRY: &str = "/var/lib/kubelet/plugins_registry";
const VOLUME_BYTES: i64 = 1 << 20;

/// Where a volume of a pod comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VolumeSourceKind {
    /// A folder of the node.
    HostPath,
    /// The driver.
    Csi,
}

/// The cluster with the driver; it ends with this.
pub(crate) struct DriverCluster<'a> {
    pub(crate) cluster: &'a Cluster,
    /// The driver's folder, which the node sees at the same path.
    pub(crate) state: PathBuf,
    driver: Child,
}

impl<'a> DriverCluster<'a> {
    pub(crate) fn start(cluster: &'a Cluster) -> Result<Self> {
        let program = match std::env::var_os("PINTLE_CSI_DRIVER") {
            Some(path) => PathBuf::from(path),
            None => agent::build("pintle-csi-driver")?,
        };
        let state = cluster.layout().node(NODE).join("csi");
        std::fs::create_dir_all(&state)?;
        let mut command = cluster.node_command(NODE, &program)?;
        command.arg(format!("--state={}", state.display()));
        command.arg(format!("--endpoint={}", state.join("csi.sock").display()));
        command.args([&format!("--registry={REGISTRY}"), &format!("--node-id={NODE}")]);
        command.args([&format!("--name={DRIVER}"), "--without=attach"]);
        let driver = command.stdin(Stdio::null()).spawn().context("start the driver")?;
        let ground = Self { cluster, state, driver };
        ground.create(&[json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false, "podInfoOnMount": true, "fsGroupPolicy": "File"},
        })])?;
        Ok(ground)
    }

    /// Ends the node's agent and starts this one.
    pub(crate) fn choose_agent(&self, agent: &Agent) -> Result<()> {
        self.cluster.stop(AGENT)?;
        self.cluster.choose_agent(NODE, agent)?;
        self.cluster.start(AGENT)?;
        self.cluster.wait_ready()
    }

    /// Creates objects in one request after the other of one kubectl.
    pub(crate) fn create(&self, items: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
        let mut cmd = self.cluster.kubectl_command()?;
        cmd.args(["create", "--validate=false", "-f", "-"]).stdin(Stdio::piped());
        let mut child = cmd.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        child.stdin.take().expect("piped").write_all(list.as_bytes())?;
        let out = child.wait_with_output()?;
        ensure!(out.status.success(), "create: {}", String::from_utf8_lossy(&out.stderr).trim());
        Ok(())
    }

    /// A volume of this name, to be bound to the claim of its name.
    pub(crate) fn volume(&self, name: &str, source: VolumeSourceKind) -> Result<Value> {
        let source = match source {
            VolumeSourceKind::HostPath => {
                let path = self.state.join(format!("folder-{name}"));
                std::fs::create_dir_all(&path)?;
                json!({"hostPath": {"path": path, "type": "Directory"}})
            }
            VolumeSourceKind::Csi => {
                let handle = pintle_csi_driver::create(&self.state, name, VOLUME_BYTES, false)?;
                json!({"csi": {"driver": DRIVER, "volumeHandle": handle}})
            }
        };
        let mut volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
                "claimRef": {"namespace": NAMESPACE, "name": name}},
        });
        for (key, value) in source.as_object().into_iter().flatten() {
            volume["spec"][key] = value.clone();
        }
        Ok(volume)
    }

    /// How many claims of a prefix are bound.
    pub(crate) fn claims_bound(&self, prefix: &str) -> Result<usize> {
        let template = "{range .items[*]}{.metadata.name} {.status.phase}{\"\\n\"}{end}";
        let text = self.cluster.kubectl(&["get", "pvc", "-o", &format!("jsonpath={template}")])?;
        let bound = |line: &&str| line.starts_with(prefix) && line.ends_with(" Bound");
        Ok(text.lines().filter(bound).count())
    }
}

impl Drop for DriverCluster<'_> {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let socket = Path::new(REGISTRY).join(format!("{DRIVER}-reg.sock"));
        if let Ok(root) = self.cluster.node_root(NODE) {
            let _ = std::fs::remove_file(root.join(socket.strip_prefix("/").unwrap_or(&socket)));
        }
    }
}

/// Names of `count` pods that sort as they are numbered.
pub(crate) fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}-{number:03}")).collect()
}

/// The claim of the volume of its name.
pub(crate) fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Mi"}}},
    })
}

/// A pod of the node that waits until it is deleted, with the claim of its name.
pub(crate) fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": NODE, "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": BOX, "command": ["/box", "pause"],
                "imagePullPolicy": "IfNotPresent",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}
