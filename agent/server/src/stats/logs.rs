//! `kubelet_container_log_filesystem_used_bytes`: disk usage of containers' logs.
//!
//! `folders` and `exposition` are pure; the code between them reads the metadata of log files, at
//! each scrape of `/metrics`. Bounds: those of `files::folder`.
// k8s: pkg/kubelet/metrics/collectors/log_metrics.go

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pintle_agent_core::observed::RunState;
use pintle_agent_core::view::Snapshot;

use super::files::FileUsage;
use super::text::{FamilyText, labels};

const NAME: &str = "kubelet_container_log_filesystem_used_bytes";
const HELP: &str = "[ALPHA] Bytes used by the container's logs on the filesystem.";

/// Disk usage of containers' logs, by the containers' ids.
pub(super) type Sizes = HashMap<String, FileUsage>;

/// The folders of all containers' logs, with the containers' ids.
pub(super) fn folders(snapshot: &Snapshot) -> Vec<(String, PathBuf)> {
    let containers = snapshot.pods.values().flat_map(|view| &view.observed.containers);
    let folders = containers.filter_map(|container| {
        let dir = Path::new(&container.log_path).parent()?;
        Some((container.id.as_str().to_owned(), dir.to_owned()))
    });
    folders.collect()
}

/// The family, empty without running containers.
pub(super) fn exposition(snapshot: &Snapshot, sizes: &Sizes) -> String {
    let mut text = FamilyText::default();
    let mut begun = false;
    for (uid, view) in &snapshot.pods {
        let observed = &view.observed;
        for container in observed.containers.iter().filter(|c| c.state == RunState::Running) {
            let Some(usage) = sizes.get(container.id.as_str()) else { continue };
            if !std::mem::replace(&mut begun, true) {
                text.help(NAME, HELP);
                text.family(NAME, "gauge");
            }
            let labels = labels(&[
                ("container", &container.name),
                ("namespace", &observed.namespace),
                ("pod", &observed.name),
                ("uid", uid.as_str()),
            ]);
            #[allow(clippy::cast_precision_loss)] // logs are smaller than 2^53 bytes
            text.sample(NAME, &labels, usage.bytes as f64, None);
        }
    }
    text.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::testing::{families, world};

    #[test]
    fn logs_of_running_containers_are_measured() {
        let (snapshot, ..) = world();
        let sizes = HashMap::from([("1".to_owned(), FileUsage { bytes: 5, inodes: 1 })]);
        assert_eq!(folders(&snapshot), [("1".to_owned(), "/none/ns_p_u/c".into())]);
        let text = exposition(&snapshot, &sizes);
        let samples: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
        let family = &families(&samples)[NAME];
        let expected = serde_json::json!({"type": "gauge",
            "labels": ["container", "namespace", "pod", "uid"]});
        assert_eq!(*family, expected, "{text}");
        assert!(exposition(&Snapshot::default(), &sizes).is_empty(), "no container, no family");
    }
}
