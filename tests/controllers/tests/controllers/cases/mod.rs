//! Behaviour that users reported as bugs or surprises, by controller: what upstream 1.36 does.
//!
//! Each case names its reports (`k#`: of kubernetes/kubernetes). All run on one server, with one
//! manager for all of pintle's controllers; `PINTLE_CONTROLLERS` runs them against another manager.

mod accounts;
mod collector;
mod cron_jobs;
mod daemon_sets;
mod deployments;
mod job_policies;
mod jobs;
mod replicas;
mod spaces;
mod stateful_sets;
