//! The controllers of kube-controller-manager, one file or folder each, as pure functions.
//!
//! A controller never names another one: what several need is in `pintle_controllers_core::common`.

#![forbid(unsafe_code)]

pub mod cron_job;
pub mod daemon_set;
pub mod deployment;
pub mod explain;
pub mod garbage_collector;
pub mod job;
pub mod namespace;
pub mod replica_set;
pub mod resource_quota;
pub mod root_ca;
pub mod service_account;
pub mod service_account_token;
pub mod shadow;
pub mod stateful_set;
#[cfg(test)]
mod test_world;
pub mod ttl_after_finished;

#[cfg(test)]
mod stub_api;
#[cfg(test)]
mod testing;
