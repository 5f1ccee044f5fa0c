//! Sources of pods: a folder of manifests, a URL, the API server.
//!
//! ```text
//!   file (folder) ─┐
//!   http (URL)    ─┼─ Delivery ─> merge ─ SourceUpdate ─> desired
//!   apiserver     ─┘
//! ```
//! Files and HTTP deliver all their pods at a time ([`SourceReading`]), the API server a list and
//! then one change after the other; `merge` compares with the last reading and returns the
//! difference. A broken manifest is a `Problem` of that file alone: the version of its pod that was
//! read before stays, and so do all others. `file`, `http` and `apiserver` are the only parts with
//! effects; everything else is pure.

pub mod manifest;
pub mod merge;
pub mod references;
pub mod static_pod;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use pintle_api_types::ids::{PodUid, UnixNanos};
use pintle_api_types::pod;

pub use manifest::{ManifestError, fuzz_manifest};
pub use merge::PodSources;

/// Kind of a source, as the annotation `kubernetes.io/config.source` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceKind {
    /// A folder of manifests, or one file.
    File,
    /// A URL.
    Http,
    /// The API server.
    Api,
}

impl SourceKind {
    /// The annotation's text.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Http => "http",
            Self::Api => "api",
        }
    }

    /// The source that the pod is annotated with; without one it is the API server.
    pub fn of(of: &Pod) -> Self {
        let text = pod::annotation(of, pod::ANNOTATION_SOURCE);
        let annotated = |kind: &Self| text == Some(kind.as_str());
        [Self::File, Self::Http].into_iter().find(annotated).unwrap_or(Self::Api)
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A manifest that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {error}")]
pub struct Problem {
    /// File or URL.
    pub place: String,
    /// The error, with line and field.
    pub error: ProblemCause,
    /// True when an earlier version of the manifest keeps being used.
    pub keeps_previous: bool,
}

/// Cause of a problem.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProblemCause {
    /// The content is no pod.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// It could not be read.
    #[error("cannot read: {0}")]
    Read(String),
    /// Another manifest has the same namespace and name.
    #[error("duplicate pod name \"{0}\", ignoring")]
    Duplicate(String),
}

/// All that a source has at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceReading {
    /// Its pods, with the time at which each manifest was last changed. Shared: a pod that is the
    /// same object as in the reading before has not changed, and is skipped.
    pub pods: Vec<(Arc<Pod>, UnixNanos)>,
    /// Its broken manifests; shared, because most are in the next reading, too.
    pub problems: Vec<Arc<Problem>>,
    /// Pods that cannot be read: their known versions stay, and so do their running containers.
    pub unreadable: BTreeSet<PodUid>,
}

/// The broken manifests of all sources.
pub type Problems = Arc<Vec<Arc<Problem>>>;

/// The news of a source.
#[derive(Clone, Debug, PartialEq)]
pub enum Delivery {
    /// All that it has.
    All(SourceReading),
    /// One pod is new or changed.
    Changed(Box<Pod>),
    /// One pod is gone.
    Gone(Box<Pod>),
}

impl From<SourceReading> for Delivery {
    fn from(reading: SourceReading) -> Self {
        Self::All(reading)
    }
}

/// A change of the pods that are wanted.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceUpdate {
    /// A pod that was not there.
    Add(Arc<Pod>),
    /// Its spec, labels or annotations changed.
    Update(Arc<Pod>),
    /// It is to be stopped, and stays until then.
    Delete(Arc<Pod>),
    /// It is gone from its source: to be stopped and forgotten.
    Remove(Arc<Pod>),
    /// Only its status differs from the one we wrote.
    Reconcile(Arc<Pod>),
    /// The source delivered for the first time.
    Ready(SourceKind),
    /// A manifest broke, or broke differently than before.
    Broken(Arc<Problem>),
    /// It is not taken, because another pod of the source has its name.
    Duplicate(Arc<Pod>),
}

impl SourceUpdate {
    /// The pod that it is about.
    pub fn pod(&self) -> Option<&Arc<Pod>> {
        match self {
            Self::Add(pod) | Self::Update(pod) | Self::Delete(pod) => Some(pod),
            Self::Remove(pod) | Self::Reconcile(pod) => Some(pod),
            Self::Ready(_) | Self::Broken(_) | Self::Duplicate(_) => None,
        }
    }
}
