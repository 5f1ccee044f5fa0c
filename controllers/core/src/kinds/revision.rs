//! Revisions of the templates of StatefulSets and DaemonSets.

use serde::Deserialize;

use super::facts;
use crate::kept::KeptObject;
use crate::meta::Meta;

/// A ControllerRevision. Its data is read from the text, since its bytes matter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ControllerRevision {
    /// Its metadata.
    pub metadata: Meta,
    /// Its place in the history: the highest is the newest.
    pub revision: i64,
}
facts!(ControllerRevision, CONTROLLER_REVISIONS, whole: true);

impl KeptObject<ControllerRevision> {
    /// The patch that restores the template, byte by byte.
    pub fn data(&self) -> String {
        self.raw("data").unwrap_or_default()
    }
}
