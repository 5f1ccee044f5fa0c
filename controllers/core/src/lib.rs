//! Effect-free parts of all controllers: facts of objects, tables, and the frame that runs syncs.
//!
//! ```text
//!   watch events ─> tables ──change──> Controller::handle_change ──keys──> queue
//!                     │                                                      │
//!                     └────────> Controller::snapshot <──────────────────────┘
//!                                        │
//!                                Controller::sync (pure) ──requests──> orders ─> API server
//!                                        ^                                            │
//!                                        └──────────── answers ───────────────────────┘
//! ```
//! The daemon and the simulator drive the same [`frame::Frame`]: they feed it watch events, answers
//! and the time, and carry out its orders.

#![forbid(unsafe_code)]

pub mod common;
pub mod frame;
pub mod golang;
pub mod kept;
pub mod kinds;
pub mod meta;
pub mod names;
pub mod selector;
pub mod settings;
pub mod tables;
