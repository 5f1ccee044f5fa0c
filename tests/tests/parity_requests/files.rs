//! Reads the folder of recordings.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::world::Recording;

/// The folder: `PINTLE_RECORDED`, else the one of this repository.
fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded");
    std::env::var_os("PINTLE_RECORDED").map_or(own, PathBuf::from)
}

/// A file of the folder as JSON; a missing one is named and skipped.
pub(crate) fn read(name: &str) -> Option<Value> {
    let path = folder().join(name);
    let Ok(text) = std::fs::read_to_string(&path) else {
        pintle_tests::lacks(&format!("no {}", path.display()));
        return None;
    };
    Some(serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// A file about the node; where the folder has none, the repository's own stands in, as all
/// recordings were made on the same kind of node.
pub(crate) fn of_node(name: &str) -> Value {
    read(name).unwrap_or_else(|| {
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("recorded").join(name);
        let text = std::fs::read_to_string(own).expect("the repository's recording");
        serde_json::from_str(&text).expect("a recording is JSON")
    })
}

/// All recorded pods.
pub(crate) fn pods() -> Vec<Recording> {
    let Ok(entries) = std::fs::read_dir(folder().join("pods")) else {
        pintle_tests::lacks(&format!("no pods in {}", folder().display()));
        return Vec::new();
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".json")).collect();
    names.sort();
    let recordings =
        names.iter().filter_map(|name| Recording::of_pod(&read(&format!("pods/{name}"))?));
    recordings.collect()
}

/// The static pods, each with its own calls.
pub(crate) fn static_pods() -> Vec<Recording> {
    let Some(file) = read("static-pods.json") else {
        return Vec::new();
    };
    let pods = file["pods_endpoint"].as_array().cloned().unwrap_or_default();
    let of = |pod: &Value| {
        let name = &pod["metadata"]["name"];
        let calls = file["cri_calls"].as_array().into_iter().flatten();
        let calls: Vec<&Value> = calls.filter(|call| &call["pod"] == name).collect();
        Recording::of_pod(&json!({"pod_when_seen": pod, "cri_calls": calls}))
    };
    pods.iter().filter_map(of).collect()
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
