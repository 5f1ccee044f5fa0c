//! Events about objects.

use pintle_api_types::kind::Kind;

use crate::meta::Meta;

/// How grave an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventLevel {
    /// As it should be.
    Normal,
    /// Not as it should be.
    Warning,
}

/// An event about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectEvent {
    /// The object.
    pub about: EventTarget,
    /// How grave it is.
    pub level: EventLevel,
    /// The reason in a word.
    pub reason: &'static str,
    /// The sentence.
    pub message: String,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventTarget {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: String,
}

impl EventTarget {
    /// An object with this metadata.
    pub fn of(kind: Kind, meta: &Meta) -> Self {
        Self {
            kind,
            namespace: meta.namespace.as_str().to_owned(),
            name: meta.name.to_string(),
            uid: meta.uid.as_str().to_owned(),
            version: meta.version.to_string(),
        }
    }
}

impl ObjectEvent {
    /// Something that is as it should be.
    pub fn normal(about: EventTarget, reason: &'static str, message: String) -> Self {
        Self { about, level: EventLevel::Normal, reason, message }
    }

    /// Something that is not as it should be.
    pub fn warning(about: EventTarget, reason: &'static str, message: String) -> Self {
        Self { about, level: EventLevel::Warning, reason, message }
    }
}
