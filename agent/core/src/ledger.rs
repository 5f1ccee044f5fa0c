//! The kubelet's checkpoint of pods' resources: JSON within JSON, with a checksum.
//!
//! `{"data": "{\"entries\": {UID: …}}", "checksum": FNV-1a of "(string)" and the data}`. Pure. One
//! field of a pod is our own, which a kubelet ignores.
// k8s: pkg/kubelet/allocation/state/checkpoint.go, pkg/kubelet/checkpointmanager/checksum

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::resize::PodResources;
use crate::status::PodVerdict;
use crate::status::pod_map::PodMap;
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::hash;

/// Records by pod.
pub type Entries = BTreeMap<PodUid, LedgerEntry>;

/// The kept record of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerEntry {
    /// Its allocated or actuated resources.
    #[serde(flatten)]
    pub resources: PodResources,
    /// It was ended with this verdict, and other records of its end are removed before its source
    /// knows.
    #[serde(rename = "PintleEnded", default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<PodVerdict>,
}

impl From<PodResources> for LedgerEntry {
    fn from(resources: PodResources) -> Self {
        Self { resources, ended: None }
    }
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// Not JSON, or not of this shape.
    #[error("not a checkpoint of pods' resources")]
    Format(#[from] serde_json::Error),
    /// It was changed or cut.
    #[error("its checksum is {found}, its content's is {expected}")]
    Checksum {
        /// As written.
        found: u32,
        /// As computed.
        expected: u32,
    },
}

#[derive(Serialize, Deserialize)]
struct Checkpoint {
    data: String,
    checksum: u32,
}

#[derive(Deserialize)]
struct DataIn {
    #[serde(default)]
    entries: BTreeMap<String, LedgerEntry>,
}

/// A checkpoint with the text of each pod. Clones share the texts, so the thread that writes the
/// file joins them outside the decision loop.
#[derive(Clone, Debug, Default)]
pub struct Draft(PodMap<String>);

impl Draft {
    /// The pod's record is this now, or there is none.
    pub fn put(&mut self, uid: &PodUid, record: Option<&LedgerEntry>) {
        match record {
            // Maps with text keys and plain values always serialise.
            Some(record) => {
                let text = serde_json::to_string(record).unwrap_or_default();
                if self.0.get(uid) != Some(&text) {
                    self.0.insert(uid.clone(), Arc::new(text));
                }
            }
            None => self.0.remove(uid),
        }
    }

    /// The text of the file.
    pub fn text(&self) -> String {
        let mut data = String::from("{");
        for (index, (uid, record)) in self.0.iter().enumerate() {
            data.push_str(if index == 0 { "\"entries\":{" } else { "," });
            data.push_str(&serde_json::to_string(uid.as_str()).unwrap_or_default());
            data.push(':');
            data.push_str(record);
        }
        data.push_str(if self.0.is_empty() { "}" } else { "}}" });
        let checkpoint = Checkpoint { checksum: hash::go_string_checksum(&data), data };
        serde_json::to_string(&checkpoint).unwrap_or_default()
    }
}

impl<'a> FromIterator<(&'a PodUid, &'a LedgerEntry)> for Draft {
    fn from_iter<I: IntoIterator<Item = (&'a PodUid, &'a LedgerEntry)>>(entries: I) -> Self {
        let mut draft = Self::default();
        for (uid, record) in entries {
            draft.put(uid, Some(record));
        }
        draft
    }
}

/// The text of a checkpoint.
pub fn encode<'a>(entries: impl Iterator<Item = (&'a PodUid, &'a LedgerEntry)>) -> String {
    entries.collect::<Draft>().text()
}

/// Reads a checkpoint.
pub fn decode(text: &[u8]) -> Result<Entries, CheckpointError> {
    let checkpoint: Checkpoint = serde_json::from_slice(text)?;
    let (found, expected) = (checkpoint.checksum, hash::go_string_checksum(&checkpoint.data));
    if found != expected {
        return Err(CheckpointError::Checksum { found, expected });
    }
    let data: DataIn = serde_json::from_str(&checkpoint.data)?;
    let known = |(uid, record): (String, _)| Some((PodUid::parse(&uid)?, record));
    Ok(data.entries.into_iter().filter_map(known).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn record(cpu: &str) -> LedgerEntry {
        let record = json!({"ContainerResources": {"main": {"requests": {"cpu": cpu}}},
            "PodLevelResources": null});
        serde_json::from_value(record).expect("a record")
    }

    #[test]
    fn checkpoint_round_trips() {
        let entries: Entries =
            [("a", "50m"), ("b", "2")].map(|(uid, cpu)| (PodUid::from(uid), record(cpu))).into();
        let text = encode(entries.iter());
        assert_eq!(decode(text.as_bytes()).expect("a checkpoint"), entries);
        assert!(decode(encode(std::iter::empty()).as_bytes()).expect("empty").is_empty());
    }

    #[test]
    fn verdict_of_a_pod_is_checkpointed_with_its_allocated_resources() {
        let phase = "Failed".to_owned();
        let verdict = PodVerdict { phase, reason: "Evicted".into(), message: "no room".into() };
        let ended = LedgerEntry { ended: Some(verdict), ..record("1") };
        let entries: Entries = [(PodUid::from("a"), ended)].into();
        let text = encode(entries.iter());
        assert_eq!(decode(text.as_bytes()).expect("a checkpoint"), entries);
        // Go ignores an unknown name, and no other.
        let checkpoint: Checkpoint = serde_json::from_str(&text).expect("a checkpoint");
        let data: serde_json::Value = serde_json::from_str(&checkpoint.data).expect("data");
        let names = data["entries"]["a"].as_object().expect("a record").keys();
        assert!(names.eq(["ContainerResources", "PintleEnded", "PodLevelResources"]));
    }

    #[test]
    fn the_kubelets_own_file_is_read() {
        let data = concat!(
            r#"{"entries":{"u":{"ContainerResources":{"main":{"requests":{"cpu":"50m"}}},"#,
            r#""PodLevelResources":null}}}"#
        );
        let checksum = hash::go_string_checksum(data);
        let text = format!("{{\"data\":{},\"checksum\":{checksum}}}", json!(data));
        let entries = decode(text.as_bytes()).expect("a checkpoint");
        assert_eq!(entries[&PodUid::from("u")], record("50m"));
        assert_eq!(encode(entries.iter()), text);
    }

    #[test]
    fn a_changed_file_is_refused() {
        let text = encode([(&PodUid::from("a"), &record("1"))].into_iter());
        let changed = text.replace("main", "mein");
        assert!(matches!(decode(changed.as_bytes()), Err(CheckpointError::Checksum { .. })));
        assert!(matches!(decode(b"{"), Err(CheckpointError::Format(_))));
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_a_cut_file_is_refused(cut in 0_usize..200) {
            let text = encode([(&PodUid::from("a"), &record("1"))].into_iter());
            let cut = cut.min(text.len());
            prop_assert_eq!(decode(&text.as_bytes()[..cut]).is_ok(), cut == text.len());
        }
    }
}
