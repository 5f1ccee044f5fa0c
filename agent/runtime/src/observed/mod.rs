//! Observed state: what the runtime and the kernel say is, one record per pod, one writer.
//!
//! `types` is the record, `read` makes it from CRI answers, `listing` shares the lists that reads
//! begin with, `termination_message` adds what a container left behind. The record of a pod is owned by its
//! worker; nobody else changes it.

mod listing;
mod read;
mod termination_message;

pub use read::Reader;
