//! Code besides its work that a daemon needs, shared by the three daemons.
//!
//! ```text
//!   logging, clock, build     lines, times, this program's version
//!   tasks, blocking           supervised tasks; threads for work that a disk can delay
//!   own_code                  code that is not used any more does not count as memory
//!   durable, files, regular_file, twice   careful files
//!   log_once                  logs a persistent problem once, then hourly
//!   metrics, serve            metric families, HTTP servers, their access control
//!   program                   the process of a leader-elected component: flags, lease, port, end
//! ```

#![forbid(unsafe_code)]

pub mod blocking;
pub mod build;
pub mod clock;
pub mod durable;
pub mod files;
pub mod log_once;
pub mod logging;
pub mod metrics;
pub mod own_code;
pub mod program;
pub mod regular_file;
pub mod serve;
pub mod tasks;
pub mod twice;
