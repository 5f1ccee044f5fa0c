//! Claims of persistent volumes.

use serde::Deserialize;

use super::facts;
use crate::meta::Meta;

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Its metadata.
    pub metadata: Meta,
}
facts!(PersistentVolumeClaim, PERSISTENT_VOLUME_CLAIMS, whole: true);
