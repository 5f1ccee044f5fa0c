//! File operations in chains, so that the thread that decides never waits for a disk.
//!
//! ```text
//!   chain      requests: steps in order, chains in a batch                     pure
//!   progress   the part of a chain that the kernel gets next, and its answers  pure
//!   durable    files that are replaced in one step
//!   small      small files that are read whole
//!   files      the handle: `run(place, batch)`, timeouts, which ring
//!   serve      the loop of a ring, on a thread of its own
//!   uring      entries and completions of io_uring; `unsafe`
//!   direct     the same chains with plain calls, where the kernel refuses a ring
//!   project    project quotas: no chains, but the other calls that need `unsafe`
//! ```
//! A chain's steps are linked submissions ("open, read, close" is one; "open, write, sync" and
//! "rename, close" are two), and those of all chains of a batch go to the kernel in one call.
//! `pintle_daemon::blocking`'s queue decides which batch runs next: classes, shares of owners, one
//! change and one read of a pod at a time, spare places.
//!
//! Two rings, because the kernel's workers belong to the thread that submits and not to the ring: a
//! call that hangs on a tenant's dead server must not hold the worker that the agent's own
//! checkpoint needs. `own` serves the agent's files, `pods` all others.
//!
//! io_uring has no getdents, fchmod, fchown, readlink, mount and statfs: work that needs them is a
//! job of `pintle_daemon::blocking`. That pool and the rings do not know of each other: files with
//! one writer are written by one of the two.
//!
//! Bounds: `serve::CHAINS_PER_BATCH`, `chain::{STEPS_MAX, OPENS_MAX, READ_BYTES_MAX}`, and the
//! classes' places; queues, descriptors and workers of a ring are sized by these.

#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod chain;
mod direct;
pub mod durable;
mod files;
mod progress;
#[allow(unsafe_code)]
pub mod project;
mod serve;
pub mod small;
#[cfg(test)]
mod tests;
#[allow(unsafe_code)]
mod uring;

pub use self::chain::{Batch, Chain, Done, FileStat, How, Opened, PathStart};
pub use self::files::{Answers, ChainError, FileError, RingFiles, run, run_all, run_one};
