//! Observed state: as the runtime and the kernel report it, one record per pod, one writer.
//!
//! `types` is the record, `read_back` makes it from CRI's answers, `runtime_spec` reads the runtime
//! specs of adopted containers and `adopted` compares that with the pod, `termination` finds a
//! container's termination message. The record of a pod is owned by its worker; only the worker
//! changes it.

pub mod adopted;
pub mod read_back;
pub mod runtime_spec;
pub mod termination;
pub mod types;

pub use adopted::CgroupHome;
pub use runtime_spec::{NamespaceUse, SpecFacts, SpecNamespaces, VerboseStatus};
pub use types::{
    AppliedSettings, Evidence, KernelExit, ObservedContainer, ObservedMount, ObservedPod,
    ObservedResources, ObservedSandbox, ObservedUser, OomKill, RunState, TaskExit, digest_code,
    digest_of,
};
