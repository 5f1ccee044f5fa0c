//! Observed state: what the runtime and the kernel say is, one record per pod, one writer.

mod types;

pub use types::{
    Evidence, KernelExit, ObservedContainer, ObservedMount, ObservedPod, ObservedResources,
    ObservedSandbox, ObservedUser, OomKill, RunState, digest_code, digest_of,
};
