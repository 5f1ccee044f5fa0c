//! The runtime that the fake behaves like: calls that versions of containerd do not implement, and
//! differing answers. Pure. Measured against containerd 1.6.20, 1.7.24 and 2.1.9.

use crate::Method;

/// A runtime and its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// No events, no runtime configuration, no checkpoints.
    Containerd16,
    /// Events, but no runtime configuration.
    Containerd17,
    /// The version of most clusters.
    #[default]
    Containerd21,
    /// Every call of the protocol.
    Complete,
}

impl Flavor {
    /// True if this runtime answers Unimplemented.
    pub fn lacks(self, method: Method) -> bool {
        use Flavor::{Complete, Containerd16, Containerd17, Containerd21};
        match method {
            Method::StreamPodSandboxes
            | Method::StreamContainers
            | Method::StreamContainerStats
            | Method::StreamPodSandboxStats
            | Method::StreamPodSandboxMetrics
            | Method::StreamImages
            | Method::ListMetricDescriptors
            | Method::ListPodSandboxMetrics
            | Method::UpdatePodSandboxResources => {
                matches!(self, Containerd16 | Containerd17 | Containerd21)
            }
            Method::RuntimeConfig | Method::CheckpointContainer => {
                !matches!(self, Containerd21 | Complete)
            }
            Method::GetContainerEvents => self == Containerd16,
            _ => false,
        }
    }

    /// Name and version for `Version`.
    pub(super) fn version(self) -> (&'static str, &'static str) {
        match self {
            Flavor::Containerd16 => ("containerd", "1.6.20"),
            Flavor::Containerd17 => ("containerd", "1.7.24"),
            Flavor::Containerd21 => ("containerd", "2.1.9"),
            Flavor::Complete => ("fake", "1.0.0"),
        }
    }

    /// True if stopping an unknown container is an error.
    pub(super) fn refuses_stop_of_unknown(self) -> bool {
        self == Flavor::Containerd16
    }

    /// True if sandbox statuses carry those of the containers.
    pub(super) fn sends_containers_with_sandbox(self) -> bool {
        self == Flavor::Complete
    }
}
