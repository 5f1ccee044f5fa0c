//! The waits of a pod before the next try, and the end of all these waits at once.
//!
//! Pure. After a user has fixed the cause of a failed start, pull or mount, the pod need neither
//! wait for the next try nor be recreated. Only the agent's own waits end: an action under way goes
//! on, and an action that fails again waits longer than before, as without the request.

use std::time::Duration;

use crate::sync::backoff::Pause;
use crate::worker::step::{Worker, WorkerStage};
use pintle_api_types::ids::Mono;

/// The text of timeline and replay for it.
pub const RETRY_TOLD: &str = "somebody asked that nothing of it waits any longer";

/// A wait of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// `container web`, `all of the pod`.
    pub what: String,
    /// Why it waits, from its status or its last failure.
    pub reason: String,
    /// The remaining wait.
    pub left: Duration,
}

impl Worker {
    /// The waits of the pod and their remaining time, with the wait that holds up all of it first;
    /// none for a pod that has not started or is ending.
    pub fn waits(&self, now: Mono) -> Vec<Wait> {
        let Some(pod) = self.pod.as_ref().filter(|_| self.stage == WorkerStage::Syncing) else {
            return Vec::new();
        };
        let failed = self.retries.last_failure.as_ref().map_or("", |failure| &failure.reason);
        let until = |pause: Option<Pause>| pause.map(|pause| pause.until);
        let of_pod = [
            ("all of the pod", failed, self.retries.retry_at),
            ("what its volumes show", "", self.files.refresh_at.filter(|_| self.files.stale)),
            ("its resize", "", until(self.resizing.pause)),
            ("the removal of what is dead", "", until(self.retries.removal_pause)),
        ];
        let of_pod = of_pod.into_iter().filter_map(|(what, reason, at)| {
            Some((what.to_owned(), reason, at.filter(|at| now < *at)?))
        });
        let held = self.plan(pod, now).held;
        let of_containers = held.iter().map(|held| {
            let reason = self.shown.waiting.get(&held.name).map_or("", |why| &why.reason);
            (format!("container {}", held.name), reason, held.until)
        });
        of_pod
            .chain(of_containers)
            .map(|(what, reason, at)| Wait { what, reason: reason.to_owned(), left: at.since(now) })
            .collect()
    }

    /// Handles a user's request to try the pod again now.
    pub(super) fn retry(&mut self, now: Mono) {
        if self.stage != WorkerStage::Syncing {
            return;
        }
        self.retries.retry_at = None;
        self.files.refresh_at = None;
        // Their failures stay counted.
        let pauses = self.retries.pauses.values_mut();
        let pauses = pauses.chain(&mut self.resizing.pause).chain(&mut self.retries.removal_pause);
        pauses.for_each(|pause| pause.until = pause.until.min(now));
        self.retries.crash_loop.forgive(now);
    }
}
