//! Objects of which only the metadata is known.

use pintle_api_types::kind::Kind;
use serde::Deserialize;

use crate::meta::Meta;

/// An object of a kind that no controller reads further. [`crate::kept::KeptObject`] is not used for it:
/// its kind is known at run time only.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// The kind; set by the reader of the watch.
    #[serde(skip, default = "unknown")]
    pub kind: Kind,
    /// The metadata.
    #[serde(default)]
    pub metadata: Meta,
}

fn unknown() -> Kind {
    pintle_api_types::kind::EVENTS
}
