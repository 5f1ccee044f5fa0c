//! Metrics of out-of-tree plugins: number and duration of calls.
//!
//! Input: each call. Output: calls of a [`Meter`]. Owner: an attempt. Every call is counted. One
//! attempt of ten is timed, as upstream does, because a filter runs for each node.
// k8s: pkg/scheduler/schedule_one.go pluginMetricsSamplePercent

use std::time::{Duration, Instant};

use pintle_api_types::panics::{self, Panicked};

use super::attempt::Attempt;
use super::points::{Nodes, Permission, PluginError, Rejection};
use super::{Name, Plugins};

/// One attempt of this many is timed.
const SAMPLE: u64 = 10;

/// Records metrics of the plugins of one profile.
pub trait Meter {
    /// Records the duration and status of a call at a point, with upstream's labels.
    fn ran(&self, plugin: &str, point: &'static str, status: &'static str, took: Duration);

    /// Records the number of calls at a point.
    fn evaluated(&self, plugin: &str, point: &'static str, times: usize);
}

impl Plugins {
    /// Counts an attempt, and returns true if it is to be timed.
    pub(super) fn is_sampled(&self) -> bool {
        let count = self.attempts.get();
        self.attempts.set(count.wrapping_add(1));
        self.meter.is_some() && count.is_multiple_of(SAMPLE)
    }
}

/// The result of a plugin that panicked.
pub(super) trait Failed {
    fn failed(panic: Panicked) -> Self;
}

impl<T> Failed for Result<T, Rejection> {
    fn failed(panic: Panicked) -> Self {
        Err(Rejection::Error(panic.to_string()))
    }
}

impl<T> Failed for Result<T, PluginError> {
    fn failed(panic: Panicked) -> Self {
        Err(PluginError::new(panic.to_string()))
    }
}

impl Failed for () {
    fn failed(_: Panicked) {}
}

/// Calls a plugin; a panic is counted and returned as an error.
pub(super) fn call_plugin<T>(
    plugin: &str,
    point: &str,
    run: impl FnOnce() -> T,
) -> Result<T, Panicked> {
    panics::catch(run).inspect_err(|panic| {
        panics::counted("plugin");
        tracing::error!("running {point} plugin {plugin:?}: {panic}");
    })
}

impl Attempt {
    pub(super) fn timed<T: Failed>(
        &self,
        plugin: &Name,
        point: &'static str,
        run: impl FnOnce() -> T,
        status: impl FnOnce(&T) -> &'static str,
    ) -> T {
        let run = || call_plugin(plugin, point, run).unwrap_or_else(T::failed);
        if !self.is_timed {
            return run();
        }
        let began = Instant::now();
        let result = run();
        self.took(plugin, point, status(&result), began.elapsed());
        result
    }

    pub(super) fn took(
        &self,
        plugin: &str,
        point: &'static str,
        status: &'static str,
        took: Duration,
    ) {
        if let Some(meter) = self.plugins.meter.as_ref().filter(|_| self.is_timed) {
            meter.ran(plugin, point, status, took);
        }
    }

    pub(super) fn evaluates(&self, point: &'static str, plugin: &str, times: usize) {
        if let Some(meter) = &self.plugins.meter {
            meter.evaluated(plugin, point, times);
        }
    }
}

fn of_rejection(rejection: &Rejection) -> &'static str {
    match rejection {
        Rejection::Unschedulable(_) => "Unschedulable",
        Rejection::Unresolvable(_) => "UnschedulableAndUnresolvable",
        Rejection::Error(_) => "Error",
    }
}

pub(super) fn of_result(result: &Result<(), Rejection>) -> &'static str {
    result.as_ref().map_or_else(of_rejection, |()| "Success")
}

pub(super) fn of_nodes(result: &Result<Nodes, Rejection>) -> &'static str {
    match result {
        Ok(Nodes::Skip) => "Skip",
        Ok(_) => "Success",
        Err(rejection) => of_rejection(rejection),
    }
}

pub(super) fn of_prepared(result: &Result<bool, PluginError>) -> &'static str {
    match result {
        Ok(true) => "Success",
        Ok(false) => "Skip",
        Err(_) => "Error",
    }
}

pub(super) fn of_done<T>(result: &Result<T, PluginError>) -> &'static str {
    if result.is_ok() { "Success" } else { "Error" }
}

pub(super) fn of_room(result: &Result<Option<String>, Rejection>) -> &'static str {
    match result {
        Ok(Some(_)) => "Success",
        Ok(None) => "Unschedulable",
        Err(rejection) => of_rejection(rejection),
    }
}

pub(super) fn of_permission(result: &Result<Permission, Rejection>) -> &'static str {
    match result {
        Ok(Permission::Granted) => "Success",
        Ok(Permission::Wait(_)) => "Wait",
        Err(rejection) => of_rejection(rejection),
    }
}
