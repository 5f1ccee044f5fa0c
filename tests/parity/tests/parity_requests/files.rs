//! Reads the folder of recordings.

use pintle_testbed::recorded;
use serde_json::{Value, json};

use crate::world::PodRecording;

/// A file about the node.
pub(crate) fn of_node(name: &str) -> Value {
    recorded::json_or_own(name)
}

/// All recorded pods.
pub(crate) fn pods() -> Vec<PodRecording> {
    let recordings = recorded::pods().unwrap_or_default();
    recordings.iter().map(|(name, file)| PodRecording::of_pod(name, file)).collect()
}

/// The static pods, each with its own calls.
pub(crate) fn static_pods() -> Vec<PodRecording> {
    let Some(file) = recorded::json("static-pods.json") else {
        return Vec::new();
    };
    let pods = file["pods_endpoint"].as_array().cloned().unwrap_or_default();
    let of = |pod: &Value| {
        let name = &pod["metadata"]["name"];
        let calls = file["cri_calls"].as_array().into_iter().flatten();
        let calls: Vec<&Value> = calls.filter(|call| &call["pod"] == name).collect();
        let file = json!({"pod_when_seen": pod, "cri_calls": calls});
        PodRecording::of_pod(name.as_str().unwrap_or_default(), &file)
    };
    pods.iter().map(of).collect()
}

/// The node's own hosts file within that of a pod on the node's network: it is not recorded
/// elsewhere. Empty for other pods, which do not use it.
pub(crate) fn node_hosts(recorded: &str) -> &str {
    let header = "# Kubernetes-managed hosts file (host network).\n";
    let Some(rest) = recorded.strip_prefix(header) else {
        return "";
    };
    rest.split_once("\n# Entries added by HostAliases.\n").map_or(rest, |(own, _)| own)
}
