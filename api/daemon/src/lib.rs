//! What a daemon needs besides its work: logging, clocks, tasks that are watched, careful files.
//!
//! Shared by the three daemons. Nothing here knows of pods or nodes.

#![forbid(unsafe_code)]

pub mod clock;
pub mod durable;
pub mod files;
pub mod logging;
pub mod regular_file;
pub mod tasks;
pub mod twice;
