//! The plugins of a node: their sockets, their registration, and the calls to CSI drivers.
//!
//! ```text
//!   <root>/plugins_registry ─ scan, watch ─> sockets ─> registry ─> Drivers ─> csi::Node ─> driver
//!                                                       │   ^
//!                                        registration <─┘   └─ Refresher
//! ```
//! In the order of the data:
//!   scan          one look at the folder
//!   watch         looks when something changed, on a thread of its own
//!   registration  the calls to a registration socket, and the rules of what a plugin may say
//!   registry      which plugins are registered: a pure machine, and the task that acts for it
//!   drivers       snapshots of what is registered
//!   csi           the calls to a driver
//!   wire          one gRPC call over a unix socket; `error` is how it fails
//!
//! A plugin is trusted with nothing: its socket is a file that any pod with a hostPath can make.
//! Every byte of it is bounded, one that hangs costs its own callers and no thread.
#![forbid(unsafe_code)]

pub mod csi;
pub mod drivers;
pub mod error;
mod registration;
pub mod registry;
mod scan;
mod watch;
mod wire;

/// The folder of registration sockets below the agent's root directory.
// k8s: pkg/kubelet/config/defaults.go DefaultKubeletPluginsRegistrationDirName
pub const FOLDER: &str = "plugins_registry";

pub use drivers::{DriverChange, Drivers, Plugins, RegisteredDriver, Unregistered, changes};
pub use error::{CallError, Code};
pub use registry::{Refresher, Registrar, start};
