//! State of a pod, from every side, as lines.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::access::NodeAccess;
use super::api::{ApiConnection, SeenObject};
use super::flat::{self, Lines};
use super::normal::Normal;
use super::observe::{Part, PodQuery, Settled, Subject};
use super::{calls, events};

/// Annotations of mirror pods with hashes and times.
const HASHES: [&str; 3] =
    ["kubernetes.io/config.hash", "kubernetes.io/config.mirror", "kubernetes.io/config.seen"];

/// An annotation without a meaning, for a change of a pod.
pub(super) const NUDGE: &str = "pintle.test/nudge";

/// Places to read, and the suffix of the aspects' names.
pub(super) struct CasePlaces<'a> {
    pub(super) node: &'a dyn NodeAccess,
    pub(super) api: &'a ApiConnection,
    pub(super) suffix: &'a str,
}

/// The identity of the pod of an object.
fn subject(pod: &Value) -> Subject {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let meta = &pod["metadata"];
    let hash = &meta["annotations"]["kubernetes.io/config.hash"];
    let uid = if hash.is_string() { text(hash) } else { text(&meta["uid"]) };
    Subject { uid, namespace: text(&meta["namespace"]), name: text(&meta["name"]) }
}

impl CasePlaces<'_> {
    /// Words of a pod with their placeholders.
    fn words(&self, subject: &Subject, pod: &Value) -> Vec<(String, String)> {
        let pair = |word: &str, placeholder: &str| (word.to_owned(), placeholder.to_owned());
        vec![
            pair(&subject.uid, "<uid>"),
            // As it is in names of systemd's slices.
            pair(&subject.uid.replace('-', "_"), "<uid>"),
            pair(&flat::show(&pod["metadata"]["uid"]), "<mirror-uid>"),
            pair(&subject.namespace, "<ns>"),
            pair(&self.node.cgroup_root(), "<cgroup-root>"),
        ]
    }

    /// Records the pod while it exists.
    pub(super) fn at(&self, seen: &SeenObject, lines: &mut Lines) -> Result<()> {
        let subject = subject(&seen.object);
        let words = self.words(&subject, &seen.object);
        let normal = Normal::new(words.clone());
        let mut put = |aspect: &str, value: &Value| {
            flat::flatten(lines, &format!("{aspect}{}", self.suffix), value);
        };
        put("pod", &normal.value(&object(&seen.object)));
        if seen.is_gone && seen.object.is_null() {
            return Ok(());
        }
        // Resources that a pod no longer needs once it has ended or is gone are cleaned up.
        let is_over = matches!(phase(&seen.object), Some("Failed" | "Succeeded"));
        let settled = match seen.is_gone {
            true => Settled::Folder,
            false if is_over => Settled::Cgroups,
            false => Settled::Now,
        };
        let query = PodQuery { subject, words, settled, part: Part::State };
        let state = self.node.observe(&query)?;
        for aspect in ["cri", "files", "cgroups"] {
            put(aspect, &normal.value(&state[aspect]));
        }
        Ok(())
    }

    /// Records the pod's last object, the events about it and the CRI calls for it.
    pub(super) fn at_end(
        &self,
        last: &SeenObject,
        ended: &SeenObject,
        lines: &mut Lines,
    ) -> Result<()> {
        let subject = subject(&last.object);
        let words = self.words(&subject, &last.object);
        let normal = Normal::new(words.clone());
        let of_pod = |kept: &super::api::KeptObjects| Some(events::of(kept, &subject, &normal));
        let settled = if ended.is_gone { Settled::Cgroups } else { Settled::Now };
        let query = PodQuery { subject: subject.clone(), words, settled, part: Part::Calls };
        let answer = self.node.observe(&query)?;
        let events = self.api.wait(Duration::ZERO, of_pod).context("the store answers at once")?;
        let mut put = |aspect: &str, value: &Value| {
            flat::flatten(lines, aspect, &normal.value(value));
        };
        put("pod@end", &object(&ended.object));
        put("gone", &Value::from(ended.is_gone));
        put("events", &events);
        put("calls", &calls::sorted(answer["calls"].clone(), &last.object));
        Ok(())
    }
}

fn phase(pod: &Value) -> Option<&str> {
    pod["status"]["phase"].as_str()
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
