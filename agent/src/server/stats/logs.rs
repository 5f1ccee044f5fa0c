//! `kubelet_container_log_filesystem_used_bytes`: what containers' logs take on disk.
//!
//! Effects: reads the metadata of log files, at each scrape of `/metrics`. Bounds: those of
//! `files::folder`.
// k8s: pkg/kubelet/metrics/collectors/log_metrics.go

use std::path::Path;

use super::files;
use super::text::{Text, labels};
use crate::observed::RunState;
use crate::status::view::Snapshot;

const NAME: &str = "kubelet_container_log_filesystem_used_bytes";
const HELP: &str = "[ALPHA] Bytes used by the container's logs on the filesystem.";

/// The family, empty without running containers.
pub(in crate::server) fn exposition(snapshot: &Snapshot) -> String {
    let mut text = Text::default();
    let mut begun = false;
    for (uid, view) in &snapshot.pods {
        let observed = &view.observed;
        for container in observed.containers.iter().filter(|c| c.state == RunState::Running) {
            let Some(dir) = Path::new(&container.log_path).parent() else { continue };
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
            text.sample(NAME, &labels, files::folder(dir).bytes as f64, None);
        }
    }
    text.into_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::stats::testing::{families, world};

    #[test]
    fn logs_of_running_containers_are_measured() {
        let (snapshot, ..) = world();
        let text = exposition(&snapshot);
        let samples: String = text.lines().skip(1).map(|line| format!("{line}\n")).collect();
        let family = &families(&samples)[NAME];
        let expected = serde_json::json!({"type": "gauge",
            "labels": ["container", "namespace", "pod", "uid"]});
        assert_eq!(*family, expected, "{text}");
        assert!(exposition(&Snapshot::default()).is_empty(), "no container, no family");
    }
}
