//! A scheduler with two out-of-tree plugins: everything else is pintle-scheduler.
//!
//! ```yaml
//! apiVersion: kubescheduler.config.k8s.io/v1
//! kind: KubeSchedulerConfiguration
//! profiles:
//! - schedulerName: default-scheduler
//!   plugins:
//!     multiPoint: {enabled: [{name: Gang}, {name: Licence, weight: 5}]}
//!   pluginConfig:
//!   - name: Gang
//!     args: {waitSeconds: 30}
//! ```
#![forbid(unsafe_code)]

mod gang;
mod licence;
#[cfg(debug_assertions)]
mod stuck;

use std::process::ExitCode;

use pintle_scheduler::framework::Registry;

fn main() -> ExitCode {
    let registry = Registry::default().with("Gang", gang::make).with("Licence", licence::make);
    #[cfg(debug_assertions)]
    let registry = registry.with("Stuck", stuck::make);
    pintle_scheduler::command_line(registry)
}
