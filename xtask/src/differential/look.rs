//! State of a pod, from every side, as lines.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;

use super::api::{ApiConnection, SeenObject};
use super::flat::{self, Lines};
use super::normal::Normal;
use super::{calls, cgroups, events, files, runtime};
use crate::cluster::Cluster;

/// Annotations of mirror pods with hashes and times.
const HASHES: [&str; 3] =
    ["kubernetes.io/config.hash", "kubernetes.io/config.mirror", "kubernetes.io/config.seen"];

/// An annotation without a meaning, for a change of a pod.
pub(super) const NUDGE: &str = "pintle.test/nudge";

/// Limit for a node's cleanup after a pod that has ended, and the polling period.
const SETTLE_MAX: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_millis(100);

/// Places to read, and the suffix of the aspects' names.
pub(super) struct CasePlaces<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) api: &'a ApiConnection,
    pub(super) node: &'a str,
    pub(super) suffix: &'a str,
}

/// Identity of a pod on its node.
pub(super) struct Subject {
    /// The UID that the runtime and the folders use: a static pod's differs from its mirror pod's.
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Subject {
    fn of(pod: &Value) -> Self {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        let meta = &pod["metadata"];
        let hash = &meta["annotations"]["kubernetes.io/config.hash"];
        let uid = if hash.is_string() { text(hash) } else { text(&meta["uid"]) };
        Self { uid, namespace: text(&meta["namespace"]), name: text(&meta["name"]) }
    }

    fn normal(&self, pod: &Value, cluster: &Cluster, node: &str) -> Normal {
        let mirror = flat::show(&pod["metadata"]["uid"]);
        let pair = |word: &str, placeholder: &str| (word.to_owned(), placeholder.to_owned());
        Normal::new(vec![
            pair(&self.uid, "<uid>"),
            pair(&mirror, "<mirror-uid>"),
            pair(&self.namespace, "<ns>"),
            pair(&cluster.layout().cgroup(node), "<cgroup-root>"),
        ])
    }
}

impl CasePlaces<'_> {
    /// Records the pod while it exists.
    pub(super) fn at(&self, seen: &SeenObject, lines: &mut Lines) -> Result<()> {
        let subject = Subject::of(&seen.object);
        let normal = subject.normal(&seen.object, self.cluster, self.node);
        let mut put = |aspect: &str, value: &Value| {
            flat::flatten(lines, &format!("{aspect}{}", self.suffix), &normal.value(value));
        };
        put("pod", &object(&seen.object));
        if seen.is_gone && seen.object.is_null() {
            return Ok(());
        }
        // Resources that a pod no longer needs once it has ended or is gone are cleaned up.
        let is_over = matches!(phase(&seen.object), Some("Failed" | "Succeeded"));
        let cgroup = self.cluster.layout().cgroup(self.node);
        let folder = files::folder(&self.root()?, &subject);
        settle(|| match seen.is_gone {
            true => folder.exists(),
            false => is_over && cgroups::is_there(&cgroup, &subject),
        });
        let containers = runtime::containers(self.cluster, self.node, &subject)?;
        put("cri", &containers.configs);
        put("files", &files::of(&self.root()?, &subject, &normal));
        put("cgroups", &cgroups::of(&cgroup, &subject, &containers));
        Ok(())
    }

    /// Records the pod's last object, the events about it and the CRI calls for it.
    pub(super) fn at_end(
        &self,
        last: &SeenObject,
        ended: &SeenObject,
        lines: &mut Lines,
    ) -> Result<()> {
        let subject = Subject::of(&last.object);
        let normal = subject.normal(&last.object, self.cluster, self.node);
        let cgroup = self.cluster.layout().cgroup(self.node);
        settle(|| ended.is_gone && cgroups::is_there(&cgroup, &subject));
        let mut put = |aspect: &str, value: &Value| {
            flat::flatten(lines, aspect, &normal.value(value));
        };
        put("pod@end", &object(&ended.object));
        put("gone", &Value::from(ended.is_gone));
        let events = |kept: &super::api::KeptObjects| Some(events::of(kept, &subject, &normal));
        let events = self.api.wait(Duration::ZERO, events);
        put("events", &events.context("the store answers at once")?);
        let log = self.cluster.layout().log(&format!("{}-containerd", self.node));
        put("calls", &calls::of(&log, &subject, &normal, &last.object)?);
        Ok(())
    }

    /// The node's root folder, with its mounts.
    fn root(&self) -> Result<PathBuf> {
        let pid = self.cluster.pid(&format!("{}-machine", self.node));
        let pid = pid.context("the node's machine runs")?;
        Ok(PathBuf::from(format!("/proc/{pid}/root")))
    }
}

fn phase(pod: &Value) -> Option<&str> {
    pod["status"]["phase"].as_str()
}

/// Waits while the node still has something to clean up.
fn settle(has_rest: impl Fn() -> bool) {
    let deadline = Instant::now() + SETTLE_MAX;
    while has_rest() && Instant::now() < deadline {
        thread::sleep(PERIOD);
    }
}

/// The object without random fields and those that the API server sets.
fn object(pod: &Value) -> Value {
    let mut pod = pod.clone();
    let Some(meta) = pod["metadata"].as_object_mut() else { return pod };
    for field in ["resourceVersion", "managedFields", "creationTimestamp", "generateName"] {
        meta.remove(field);
    }
    if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(NUDGE);
        for (_, value) in annotations.iter_mut().filter(|(k, _)| HASHES.contains(&k.as_str())) {
            *value = Value::from("<hash>");
        }
    }
    if meta.get("annotations").and_then(Value::as_object).is_some_and(|a| a.is_empty()) {
        meta.remove("annotations");
    }
    pod
}
