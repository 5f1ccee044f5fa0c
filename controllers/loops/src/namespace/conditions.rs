//! The conditions of a namespace that is being deleted: what failed and what remains.
// k8s: pkg/controller/namespace/deletion/status_condition_utils.go

use std::collections::BTreeMap;

use jiff::Timestamp;
use pintle_api_types::kind::Kind;
use pintle_controllers_core::common::time::api_time;
use pintle_controllers_core::frame::Transcript;
use serde_json::{Value, json};

/// The conditions in order, each with its reason and message while nothing is wrong.
const WHEN_GOOD: [(&str, &str, &str); 5] = [
    (
        "NamespaceDeletionDiscoveryFailure",
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    (
        "NamespaceFinalizersRemaining",
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
];

/// The findings of a sync.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// How discovery failed.
    pub(super) discovery: Option<String>,
    /// How deletions of kinds failed.
    pub(super) failures: Vec<String>,
    /// The remaining objects; also empty before they are counted.
    pub(super) remaining: Remaining,
}

/// Objects that are still there.
#[derive(Debug, Default)]
pub(super) struct Remaining {
    /// How many of each kind.
    pub(super) objects: BTreeMap<Kind, usize>,
    /// How many have each finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
}

impl Remaining {
    /// Records what remains.
    pub(super) fn explain(&self, transcript: &mut Transcript) {
        if !self.objects.is_empty() {
            transcript.because(format!("remaining: {}", self.objects_text()));
        }
        if !self.finalizers.is_empty() {
            transcript.because(format!("finalizers: {}", self.finalizers_text()));
        }
    }

    /// The remaining objects, by kind.
    pub(super) fn objects_text(&self) -> String {
        let kinds = self.objects.iter().map(|(kind, count)| {
            format!("{}.{} has {count} resource instances", kind.plural, kind.group)
        });
        sorted(kinds.collect())
    }

    /// The remaining objects, by finalizer.
    pub(super) fn finalizers_text(&self) -> String {
        let finalizers = self.finalizers.iter();
        let finalizers = finalizers
            .map(|(finalizer, count)| format!("{finalizer} in {count} resource instances"));
        sorted(finalizers.collect())
    }
}

fn sorted(mut texts: Vec<String>) -> String {
    texts.sort_unstable();
    texts.join(", ")
}

impl Findings {
    /// Reason and message of a condition that is true.
    fn problem(&self, condition: &str) -> Option<(&'static str, String)> {
        match condition {
            "NamespaceDeletionDiscoveryFailure" => {
                self.discovery.clone().map(|message| ("DiscoveryFailed", message))
            }
            "NamespaceDeletionContentFailure" if !self.failures.is_empty() => {
                let count = self.failures.len();
                let failures = sorted(self.failures.clone());
                let message =
                    format!("Failed to delete all resource types, {count} remaining: {failures}");
                Some(("ContentDeletionFailed", message))
            }
            "NamespaceContentRemaining" if !self.remaining.objects.is_empty() => {
                let objects = self.remaining.objects_text();
                Some(("SomeResourcesRemain", format!("Some resources are remaining: {objects}")))
            }
            "NamespaceFinalizersRemaining" if !self.remaining.finalizers.is_empty() => {
                let finalizers = self.remaining.finalizers_text();
                let message =
                    format!("Some content in the namespace has finalizers remaining: {finalizers}");
                Some(("SomeFinalizersRemain", message))
            }
            _ => None,
        }
    }

    /// Updates the conditions in a status; says whether anything changed.
    // k8s: deletion/status_condition_utils.go updateConditions
    pub(super) fn update(&self, status: &mut Value, now: Timestamp) -> bool {
        if !status["conditions"].is_array() {
            status["conditions"] = json!([]);
        }
        let conditions = status["conditions"].as_array_mut().expect("an array, see above");
        let mut is_changed = false;
        for (kind, reason, message) in WHEN_GOOD {
            let (state, reason, message) = match self.problem(kind) {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", reason, message.to_owned()),
            };
            let new = json!({"type": kind, "status": state, "reason": reason, "message": message});
            let old = conditions.iter_mut().find(|condition| condition["type"] == kind);
            is_changed |= match old {
                None => {
                    let mut new = new;
                    new["lastTransitionTime"] = api_time(now).into();
                    conditions.push(new);
                    true
                }
                Some(old) => merge(old, &new, now),
            };
        }
        is_changed
    }
}

/// Makes a condition say what the new one says; says whether that changed it.
fn merge(old: &mut Value, new: &Value, now: Timestamp) -> bool {
    let fields = ["status", "reason", "message"];
    let is_same = fields.iter().all(|field| old[*field] == new[*field]);
    if old["status"] != new["status"] {
        old["lastTransitionTime"] = api_time(now).into();
    }
    for field in fields {
        old[field] = new[field].clone();
    }
    !is_same
}
