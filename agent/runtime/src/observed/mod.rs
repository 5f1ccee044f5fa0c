//! Observed state: as the runtime and the kernel report it, one record per pod, one writer.
//!
//! `types` is the record, `read` makes it from CRI answers, `listing` shares the lists that reads
//! begin with, `everything` lists all pods, `termination_message` adds a container's message. The
//! record of a pod is owned by its worker; only the worker changes it.

mod everything;
mod listing;
mod read;
pub(crate) mod termination_message;

pub use everything::all_containers;
pub use read::PodReader;
