//! The requests to the runtime: RunPodSandbox and CreateContainer of a pod.
//!
//! Input: `PodContext` and `ContainerContext`, gathered by the executor. Output: CRI's messages,
//! equal to the kubelet's field by field, or an error in the kubelet's words. Pure: files that must
//! exist beforehand (hosts file, termination log, sub-paths, log directory) are the executor's.
//!
//! Order for one container: `container_environment`, `PodVolumes::mounts` with it,
//! `volume::execute::prepare_container`, write `hosts_text`, make the termination log and the log
//! directory, `container_config`, CreateContainer.

mod container;
mod context;
pub mod dns;
pub mod hostname;
pub mod hosts;
mod mounts;
pub mod paths;
mod resources;
pub mod runtime;
mod sandbox;
pub mod security;
pub mod sysctl;

pub use crate::types::RuntimeHandler;
pub use container::{ConfigError, container_config, container_environment};
pub use context::{ContainerContext, Gates, NodeContext, PodContext, SwapPolicy};
pub use mounts::{hosts_text, mounts_hosts_file};
pub use resources::{container_resources, overhead_resources, pod_amounts, sandbox_resources};
pub use sandbox::{SandboxConfig, SandboxError, sandbox_config};

#[cfg(test)]
mod tests;
