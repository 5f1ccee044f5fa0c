//! The health of each controller: a check of `/healthz` from its start on.
//!
//! Input: starts, ends and failures, from the deciding thread. Output: checks, which the port's
//! thread runs. Owner: shared.
// k8s: staging/src/k8s.io/controller-manager/pkg/healthz/handler.go MutableHealthzHandler

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The health of the controllers that have started.
#[derive(Debug, Default)]
pub struct LoopHealth(Mutex<BTreeMap<&'static str, Option<String>>>);

impl LoopHealth {
    /// The controller has started, or is healthy again.
    pub fn mark_healthy(&self, controller: &'static str) {
        self.states().insert(controller, None);
    }

    /// The controller fails for this reason.
    pub fn mark_failed(&self, controller: &'static str, reason: String) {
        self.states().insert(controller, Some(reason));
    }

    /// The controller has ended.
    pub fn mark_ended(&self, controller: &'static str) {
        self.states().remove(controller);
    }

    /// True if the controller runs, and so has a check.
    pub fn is_running(&self, controller: &str) -> bool {
        self.states().contains_key(controller)
    }

    /// Why the controller fails; `None` when it is healthy.
    pub fn failure(&self, controller: &str) -> Option<String> {
        self.states().get(controller).cloned().flatten()
    }

    fn states(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
