//! Device plugins that registered with a kubelet of this node, from its device checkpoint.
//!
//! Effects: reads one file, once at the start. The checksum is not verified: a resource that is
//! listed in a damaged file has no plugin here either, and to refuse its pods is the safe side.
// k8s: pkg/kubelet/cm/devicemanager/checkpoint/checkpoint.go

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

use pintle_agent_core::node::capacity::is_extended;
use serde::Deserialize;
use serde::de::IgnoredAny;

/// The file, below the root directory.
const CHECKPOINT: &str = "device-plugins/kubelet_internal_checkpoint";
/// Longest checkpoint that is read, in bytes: 1,000 pods with 64 devices each.
const CHECKPOINT_BYTES_MAX: u64 = 32 << 20;
/// Most resources that are taken from it.
const RESOURCES_MAX: usize = 1024;

#[derive(Deserialize)]
struct Checkpoint {
    #[serde(rename = "Data")]
    data: Registered,
}

#[derive(Deserialize)]
struct Registered {
    #[serde(rename = "RegisteredDevices")]
    resources: Option<BTreeMap<String, IgnoredAny>>,
}

/// The resources of those plugins, sorted; empty without a checkpoint.
pub(crate) fn registered(root: &Path) -> Vec<String> {
    let path = root.join(CHECKPOINT);
    let mut text = Vec::new();
    let read =
        File::open(&path).and_then(|file| file.take(CHECKPOINT_BYTES_MAX).read_to_end(&mut text));
    if let Err(error) = read {
        if error.kind() != ErrorKind::NotFound {
            tracing::warn!(path = %path.display(), %error, "cannot read the device checkpoint");
        }
        return Vec::new();
    }
    let resources = match serde_json::from_slice::<Checkpoint>(&text) {
        Ok(checkpoint) => checkpoint.data.resources.unwrap_or_default().into_keys(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot decode the device checkpoint");
            return Vec::new();
        }
    };
    let resources: Vec<_> =
        resources.filter(|name| is_extended(name)).take(RESOURCES_MAX).collect();
    if !resources.is_empty() {
        let resources = resources.join(", ");
        tracing::warn!(
            %resources,
            "device plugins cannot register yet: pods that request their resources are refused"
        );
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("device-plugins")).expect("a directory");
        std::fs::write(root.path().join(CHECKPOINT), text).expect("a file");
        registered(root.path())
    }

    #[test]
    fn resources_in_the_checkpoint_are_found_and_damage_is_no_error() {
        let text = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c",
            "ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-1"]},"AllocResp":""}],
            "RegisteredDevices":{"nvidia.com/gpu":["GPU-1"],"example.com/nic":[],"cpu":["x"]}},
            "Checksum":1}"#;
        assert_eq!(read(text), ["example.com/nic", "nvidia.com/gpu"]);
        for text in ["", "{", "[]", r#"{"Data":{"RegisteredDevices":null},"Checksum":0}"#] {
            assert_eq!(read(text), Vec::<String>::new(), "{text}");
        }
        let none = tempfile::tempdir().expect("a directory");
        assert_eq!(registered(none.path()), Vec::<String>::new());
    }
}
