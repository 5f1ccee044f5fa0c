//! Times as the API has them: whole seconds, in RFC 3339.
//!
//! Finer parts of a time are lost when it is written; a controller that compares a written time
//! with its own clock would otherwise see a change each time.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/time.go

use jiff::Timestamp;

/// A time in RFC 3339 with whole seconds.
pub fn whole_seconds(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// For `#[serde(with)]` of an optional time.
pub mod seconds {
    use serde::{Deserializer, Serialize, Serializer};

    use super::{Timestamp, whole_seconds};

    /// Writes a time with whole seconds.
    ///
    /// # Errors
    /// When the writer fails.
    #[allow(clippy::ref_option)] // what serde calls
    pub fn serialize<S: Serializer>(at: &Option<Timestamp>, to: S) -> Result<S::Ok, S::Error> {
        at.map(whole_seconds).serialize(to)
    }

    /// Reads a time.
    ///
    /// # Errors
    /// When it is neither `null` nor a time.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
        crate::meta::time(from)
    }
}
