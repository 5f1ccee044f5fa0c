//! What a daemon needs besides its work, shared by the three daemons.
//!
//! ```text
//!   logging, clock, build     lines, times, which program this is
//!   tasks, blocking           tasks that are watched; threads for what a disk can hold up
//!   own_code                  code that is not used any more does not count as memory
//!   durable, files, regular_file, twice   careful files
//!   told                      a trouble that goes on is a line in the log, not thousands
//!   metrics, serve            what others read: families, HTTP servers, who may ask
//!   program                   the process of a leader-elected component: flags, lease, port, end
//! ```

#![forbid(unsafe_code)]

pub mod blocking;
pub mod build;
pub mod clock;
pub mod durable;
pub mod files;
pub mod logging;
pub mod metrics;
pub mod own_code;
pub mod program;
pub mod regular_file;
pub mod serve;
pub mod tasks;
pub mod told;
pub mod twice;
