//! The runtime that the fake behaves like: calls that versions of containerd do not implement, and
//! differing answers. Pure. Measured against containerd 1.7.24, 2.1.9, 2.2.9, 2.3.7 and 2.4.2.

use crate::Method;

/// A runtime and its version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavor {
    /// No runtime configuration, no checkpoints.
    Containerd17,
    /// No metrics of pods, no new resources of pods.
    #[default]
    Containerd21,
    /// No new resources of pods, no lists as streams.
    Containerd22,
    /// No lists as streams.
    Containerd23,
    /// Lists as streams.
    Containerd24,
    /// Every call of the protocol.
    Complete,
}

impl Flavor {
    /// True if this runtime answers Unimplemented.
    pub fn lacks(self, method: Method) -> bool {
        use Flavor::{Containerd17, Containerd21, Containerd22, Containerd23};
        match method {
            Method::StreamPodSandboxes
            | Method::StreamContainers
            | Method::StreamContainerStats
            | Method::StreamPodSandboxStats
            | Method::StreamPodSandboxMetrics
            | Method::StreamImages => {
                matches!(self, Containerd17 | Containerd21 | Containerd22 | Containerd23)
            }
            Method::UpdatePodSandboxResources => {
                matches!(self, Containerd17 | Containerd21 | Containerd22)
            }
            Method::ListMetricDescriptors | Method::ListPodSandboxMetrics => {
                matches!(self, Containerd17 | Containerd21)
            }
            Method::RuntimeConfig | Method::CheckpointContainer => self == Containerd17,
            _ => false,
        }
    }

    /// Name and version for `Version`.
    pub(super) fn version(self) -> (&'static str, &'static str) {
        match self {
            Flavor::Containerd17 => ("containerd", "1.7.24"),
            Flavor::Containerd21 => ("containerd", "2.1.9"),
            Flavor::Containerd22 => ("containerd", "2.2.9"),
            Flavor::Containerd23 => ("containerd", "2.3.7"),
            Flavor::Containerd24 => ("containerd", "2.4.2"),
            Flavor::Complete => ("fake", "1.0.0"),
        }
    }

    /// True if sandbox statuses carry those of the containers.
    pub(super) fn sends_containers_with_sandbox(self) -> bool {
        self == Flavor::Complete
    }
}
