//! Observed state: what the runtime and the kernel say is, one record per pod, one writer.
//!
//! `types` is the record, `read_back` makes it from CRI's answers, `termination` knows where a
//! container's last words are. The record of a pod is owned by its worker; nobody else changes it.

pub mod read_back;
pub mod termination;
pub mod types;

pub use types::{
    Evidence, KernelExit, ObservedContainer, ObservedMount, ObservedPod, ObservedResources,
    ObservedSandbox, ObservedUser, OomKill, RunState, TaskExit, digest_code, digest_of,
};
