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

mod clean;
pub mod credentials;
pub mod dns;
pub mod downward;
pub mod env;
pub mod env_file;
pub mod execute;
pub mod expand;
pub mod hooks;
pub mod hostname;
pub mod hosts;
pub mod image;
mod image_volumes;
pub mod keyring;
pub mod kill;
pub mod labels;
pub mod log_files;
pub mod log_line;
pub mod log_pace;
pub mod log_read;
pub mod log_rotate;
pub mod logs;
pub mod plan;
mod plan_init;
mod prepare;
pub mod provider;
pub mod pull_credential;
mod pull_rate;
pub mod pull_records;
pub mod puller;
pub mod read_back;
mod registry_match;
pub mod request;
mod resize;
pub mod restart;
pub mod security;
pub mod service_env;
pub mod shims;
pub(crate) mod start;
pub mod stop_order;
pub mod sysctl;
pub mod termination;
pub mod turns;
pub mod users;
