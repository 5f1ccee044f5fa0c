//! The runtime stage: from desired and observed to actions, and from actions to CRI calls.
//!
//! ```text
//!   plan         pure: desired x observed -> actions
//!   request      pure: pod + node -> RunPodSandbox and CreateContainer requests
//!     env, downward, service_env, env_file, expand   a container's environment
//!     dns, hosts, hostname                           the pod's names
//!     security, sysctl                               rights
//!   labels       names and values by which either agent recognises a pod in the runtime
//!   read_back    CRI's answers -> observed records
//!   termination  where a container's last words are
//!   plan, plan_init, restart, stop_order   pure: what to do next, and how to stop
//!   keyring, credentials, provider   what pulls are tried with: pull secrets, files, plugins
//!   puller, pull_records             pulls, and who made them
//!   execute      runs a plan: prepare, start (up), kill (stop), clean (away), hooks, image, turns
//! ```

#![forbid(unsafe_code)]

mod clean;
pub mod credentials;
mod env_files;
pub mod event;
pub mod execute;
pub mod hooks;
pub mod http;
pub mod image;
mod image_volumes;
pub mod kill;
pub mod log_files;
pub mod log_read;
pub mod log_rotate;
pub mod logs;
pub mod observed;
mod prepare;
pub mod probe;
pub mod provider;
pub mod pull_records;
pub mod puller;
mod resize;
pub mod resolver;
pub mod shims;
mod start;
pub mod start_permits;
pub mod users;
