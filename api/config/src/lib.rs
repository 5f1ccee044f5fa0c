//! Command lines, configuration files and feature gates, the same way for every daemon.
//!
//! ```text
//!   arguments ─> given ──────────────┐
//!   files ─────> file (drop-ins) ──> sources ─> typed configuration, gates ─> Settings
//!   daemon's tables: flag (forms), component_flags, field, gates; of all components: election
//!   for people: error, suggest, violations, status (warnings, tables), help, completion, listing
//! ```
//! A daemon implements [`Daemon`]: its tables, its type, its defaults and rules. Order, later wins:
//! built-in defaults, the file of `--config`, the drop-ins of `--config-dir`, flags. Feature gates
//! merge key by key, everything else as a whole. Every problem found on the way is reported at
//! once, each with place, field, value and remedy.
//!
//! Owner of nothing: this runs once, before any thread is started. Reading the files that flags
//! name is its only effect.

#![forbid(unsafe_code)]

#[cfg(test)]
mod any_json;
pub mod completion;
pub mod component_flags;
pub mod component_gates;
pub mod daemon;
pub mod election;
pub mod error;
pub mod field;
pub mod file;
pub mod flag;
pub mod forms;
pub mod gates;
pub mod given;
pub mod help;
pub mod listing;
mod sources;
pub mod status;
pub mod suggest;
pub mod violations;
mod words;

pub use daemon::{Daemon, Settings, load};
pub use error::ConfigError;
pub use given::GivenFlags;
