//! Observed state: what the runtime and the kernel say is, one record per pod, one writer.
//!
//! `types` is the record, `read` makes it from CRI answers, `listing` shares the lists that reads
//! begin with, `last_words` adds what a container left behind. The record of a pod is owned by its
//! worker; nobody else changes it.

mod last_words;
mod listing;
mod read;

pub use read::Reader;
