//! Pods with a volume of each kind: what they mount, what they write, and what they check of it.
//!
//! Input: a kind, the pod's number, the name of the volume. Output: the pod. A pod with a volume that
//! outlives it writes its uid under its own number and appends a line to `/record/put`; every pod
//! reads again and again what has to be there, and appends a line to `/record/lost` when it is not.
//! `/record` is a folder of the node that is mounted into every pod.

use pintle_testbed::cluster::NODE;
use pintle_testbed::manifest::{With, pod, script};
use serde_json::{Value, json};

use crate::drivers::DRIVER;

/// The ConfigMap and the Secret that pods mount.
pub const CONTENT: &str = "kinds";
/// What they have, by key.
pub const CONFIG_KEY: &str = "key";
pub const CONFIG_VALUE: &str = "configured";
pub const SECRET_KEY: &str = "password";
pub const SECRET_VALUE: &str = "secret";

/// A kind of volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    EmptyDir,
    Memory,
    ConfigMap,
    Secret,
    DownwardApi,
    Projected,
    HostPath,
    LocalFolder,
    LocalDisk,
    LocalDevice,
    CsiFolder,
    CsiDevice,
    CsiSubPath,
    CsiInline,
    CsiEphemeral,
}

pub const KINDS: [Kind; 15] = [
    Kind::EmptyDir,
    Kind::Memory,
    Kind::ConfigMap,
    Kind::Secret,
    Kind::DownwardApi,
    Kind::Projected,
    Kind::HostPath,
    Kind::LocalFolder,
    Kind::LocalDisk,
    Kind::LocalDevice,
    Kind::CsiFolder,
    Kind::CsiDevice,
    Kind::CsiSubPath,
    Kind::CsiInline,
    Kind::CsiEphemeral,
];

/// How a container uses its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It writes a file.
    Files,
    /// It writes a block of a device.
    Device,
    /// It reads what the agent has put there.
    Content(&'static str),
}

/// A pod to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub kind: Kind,
    /// Its files and blocks have this number; no other pod of the test has it.
    pub number: u64,
    /// Its claim, or the folder of the node. Its content outlives the pod.
    pub volume: Option<String>,
}

impl Member {
    pub fn name(&self) -> String {
        format!("w{}", self.number)
    }

    /// The pod, on the node.
    pub fn manifest(&self, record: &str) -> Value {
        let env = json!([
            {"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "N", "value": self.number.to_string()},
            {"name": "V", "value": self.volume.as_deref().unwrap_or("-")},
        ]);
        let mut mounts = vec![json!({"name": "record", "mountPath": "/record"})];
        let mut container = script("c", &self.script()).with("env", env);
        match self.kind.usage() {
            Use::Device => {
                container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
            }
            _ if self.kind == Kind::CsiSubPath => {
                mounts.push(json!({"name": "data", "mountPath": "/data", "subPath": "below"}))
            }
            _ => mounts.push(json!({"name": "data", "mountPath": "/data"})),
        }
        container["volumeMounts"] = mounts.into();
        let volumes = json!([
            {"name": "record", "hostPath": {"path": record}},
            self.source().with("name", json!("data")),
        ]);
        pod(&self.name(), &[container])
            .with_spec("nodeName", json!(NODE))
            .with_spec("automountServiceAccountToken", json!(false))
            .with_spec("volumes", volumes)
    }

    fn source(&self) -> Value {
        let uid = json!({"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}});
        let volume = || self.volume.clone().expect("a volume that outlives the pod");
        match self.kind {
            Kind::EmptyDir => json!({"emptyDir": {}}),
            Kind::Memory => json!({"emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}),
            Kind::ConfigMap => json!({"configMap": {"name": CONTENT}}),
            Kind::Secret => json!({"secret": {"secretName": CONTENT}}),
            Kind::DownwardApi => json!({"downwardAPI": {"items": [uid]}}),
            Kind::Projected => json!({"projected": {"sources": [
                {"configMap": {"name": CONTENT}}, {"secret": {"name": CONTENT}},
                {"downwardAPI": {"items": [uid]}}, {"serviceAccountToken": {"path": "token"}},
            ]}}),
            Kind::HostPath => json!({"hostPath": {"path": volume(), "type": "Directory"}}),
            Kind::CsiInline => json!({"csi": {"driver": DRIVER}}),
            Kind::CsiEphemeral => {
                let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "",
                    "volumeName": volume(), "resources": {"requests": {"storage": "1Mi"}}});
                json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
            }
            Kind::LocalFolder
            | Kind::LocalDisk
            | Kind::LocalDevice
            | Kind::CsiFolder
            | Kind::CsiDevice
            | Kind::CsiSubPath => json!({"persistentVolumeClaim": {"claimName": volume()}}),
        }
    }

    /// A container that was there before finds what it wrote before it writes again.
    fn script(&self) -> String {
        let (write, check) = match self.kind.usage() {
            Use::Files => (
                "echo $UID > /data/$N",
                "x=; read x < /data/$N; [ \"$x\" = $UID ] || lost \"reads '$x'\"",
            ),
            Use::Device => (
                "echo $UID | dd of=/dev/disk bs=512 seek=$N conv=sync,fsync,notrunc 2>/dev/null",
                "x=$(dd if=/dev/disk bs=512 skip=$N count=1 2>/dev/null | head -n 1); \
                 [ \"$x\" = $UID ] || lost \"reads '$x'\"",
            ),
            Use::Content(check) => ("true", check),
        };
        format!(
            "lost() {{ echo \"$N of $V: $1\" >> /record/lost; }}\n\
             check() {{ {check}; }}\n\
             [ ! -e /record/ran-$N ] || check\n\
             {write} && echo \"$V $N $UID\" >> /record/put\n\
             echo $UID >> /record/ran-$N\n\
             trap 'exit 0' TERM\n\
             while :; do check; sleep 0.5; done"
        )
    }
}

impl Kind {
    fn usage(self) -> Use {
        match self {
            Self::LocalDevice | Self::CsiDevice => Use::Device,
            Self::ConfigMap => {
                Use::Content("x=$(cat /data/key); [ \"$x\" = configured ] || lost \"reads '$x'\"")
            }
            Self::Secret => {
                Use::Content("x=$(cat /data/password); [ \"$x\" = secret ] || lost \"reads '$x'\"")
            }
            Self::DownwardApi => {
                Use::Content("x=$(cat /data/uid); [ \"$x\" = $UID ] || lost \"reads '$x'\"")
            }
            Self::Projected => Use::Content(
                "x=$(cd /data && cat key password uid); \
                 [ \"$x\" = \"configuredsecret$UID\" ] && [ -s /data/token ] || lost \"reads '$x'\"",
            ),
            _ => Use::Files,
        }
    }

    /// Returns whether the content is there after the pod.
    pub fn outlives_its_pod(self) -> bool {
        !matches!(
            self,
            Self::EmptyDir
                | Self::Memory
                | Self::ConfigMap
                | Self::Secret
                | Self::DownwardApi
                | Self::Projected
                | Self::CsiInline
        )
    }
}
