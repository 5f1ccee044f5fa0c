//! The runtime stage: from the actions of a sync to CRI calls, and from CRI's answers to records.
//!
//! Decisions, and every request's content, come from `pintle_agent_core`. Here are the effects, in
//! the order in which a pod meets them:
//!
//! ```text
//!   event               what happened: kernel, CRI, containerd -> hints
//!   observed            lists and reads pods -> records
//!   execute             runs the actions of a sync, with these:
//!     start_permits     whose turn it is to start or stop
//!     prepare, start    cgroup, volumes, sandbox, containers; adopt, follow: those that run
//!     image             finds or pulls images; in its folder credentials, the order of pulls,
//!                       records of pulls, images that are mounted
//!     hooks, kill       postStart and preStop, stops
//!     resize            new limits for what runs
//!     storage           volumes of CSI drivers: the calls that their state machine asks for
//!     clean, shims      takes away what is left; recover: volumes without a record
//!   garbage             removes images that nobody uses
//!   probe               asks containers how they are; http, resolver: how they are reached
//!   logs                rotates log files; in its folder their names and content
//!   users, env_files    ids of user namespaces, variables that containers wrote into files
//! ```

#![forbid(unsafe_code)]

mod adopt;
mod call_pace;
mod clean;
mod env_files;
pub mod event;
pub mod execute;
mod follow;
pub mod garbage;
pub mod hooks;
pub mod http;
pub mod image;
pub mod kill;
pub mod logs;
pub mod observed;
mod prepare;
pub mod probe;
mod recover;
mod resize;
pub mod resolver;
pub mod shims;
mod start;
pub mod start_permits;
pub mod storage;
pub mod users;
