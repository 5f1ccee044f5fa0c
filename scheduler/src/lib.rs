//! The scheduler around `pintle-sched-core`.
//!
//! Today it answers questions about a dump of a cluster ([`simulate`]); the daemon will be a second
//! user of the same core: a cache fed by watches calls the deltas, a cycle calls `decide`, binding
//! calls the API. [`config`] reads the file both share.
#![forbid(unsafe_code)]

pub mod config;
pub mod simulate;
