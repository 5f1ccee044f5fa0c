//! What a pod waits for before it is tried again, and the end of all these waits at once.
//!
//! Pure. Whoever has mended the cause of a crash, a pull or a mount need not wait for the agent to
//! look again, nor make the pod anew. Only waits of the agent's own end: what is under way goes on,
//! and what fails again waits longer than before, as if nobody had asked.

use std::time::Duration;

use crate::sync::backoff::Pause;
use crate::worker::step::{Stage, Worker};
use pintle_api_types::ids::Mono;

/// What a timeline and a replay say of it.
pub const RETRY_TOLD: &str = "somebody asked that nothing of it waits any longer";

/// A wait of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// `container web`, `all of the pod`.
    pub what: String,
    /// Why it waits, as its status or its last failure says.
    pub reason: String,
    /// What is left of it.
    pub left: Duration,
}

impl Worker {
    /// What the pod waits for and for how long, what holds up all of it first; nothing for one that
    /// has not begun or is being ended.
    pub fn waits(&self, now: Mono) -> Vec<Wait> {
        let Some(pod) = self.pod.as_ref().filter(|_| self.stage == Stage::Syncing) else {
            return Vec::new();
        };
        let failed = self.last_failure.as_ref().map_or("", |failure| &failure.reason);
        let until = |pause: Option<Pause>| pause.map(|pause| pause.until);
        let of_pod = [
            ("all of the pod", failed, self.retry_at),
            ("what its volumes show", "", self.refresh_at.filter(|_| self.stale)),
            ("its resize", "", until(self.resize_pause)),
            ("the removal of what is dead", "", until(self.removal_pause)),
        ];
        let of_pod = of_pod.into_iter().filter_map(|(what, reason, at)| {
            Some((what.to_owned(), reason, at.filter(|at| now < *at)?))
        });
        let held = self.plan(pod, now).held;
        let of_containers = held.iter().map(|held| {
            let reason = self.waiting.get(&held.name).map_or("", |why| &why.reason);
            (format!("container {}", held.name), reason, held.until)
        });
        of_pod
            .chain(of_containers)
            .map(|(what, reason, at)| Wait { what, reason: reason.to_owned(), left: at.since(now) })
            .collect()
    }

    /// Somebody asks that the pod is tried again now.
    pub(super) fn retry(&mut self, now: Mono) {
        if self.stage != Stage::Syncing {
            return;
        }
        self.retry_at = None;
        self.refresh_at = None;
        // Their failures stay counted.
        let pauses = self.pauses.values_mut();
        let pauses = pauses.chain(&mut self.resize_pause).chain(&mut self.removal_pause);
        pauses.for_each(|pause| pause.until = pause.until.min(now));
        self.backoff.forgive(now);
    }
}
