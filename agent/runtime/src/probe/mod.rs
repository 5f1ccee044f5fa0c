//! The probe stage: liveness, readiness and startup probes of all containers of the node.
//!
//! ```text
//!   Command::Probe ─> execute (one task, a heap of due times) ─> attempt ─> exec http tcp grpc
//!                        │  plan: what a result means, when the next attempt is due
//!                        └─> PodsInput::Probed, events
//! ```
//! Input: which containers of a pod run, from the worker. Output: a probe's result whenever its
//! thresholds change it, and events with upstream's texts. Decisions are in `plan` and `adopt`
//! (pure); `execute` owns all schedules; an attempt is a task for as long as it lasts, so a probe
//! costs neither a thread nor a task while it waits. A time limit only counts time in which the
//! agent really waited: see `patience`.
// k8s: pkg/kubelet/prober, pkg/probe

mod attempt;
mod exec;
mod execute;
mod grpc;
mod http;
mod patience;
mod schedule;
mod shares;
mod tcp;
#[cfg(test)]
pub(crate) mod testing;
mod words;

#[cfg(test)]
use pintle_agent_core::probe::testing as testing_pods;
use pintle_agent_core::probe::{adopt, plan, target};

pub use execute::Prober;
