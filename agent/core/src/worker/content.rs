//! A worker's reaction to a change of an object that its pod refers to.
//!
//! Pure. Files of volumes are written again by `Action::Refresh`, which waits for nothing and holds
//! up nothing; a pod that failed because an object was missing continues when that appears. A pod
//! with an image that cannot be pulled syncs again, because a pull secret may have come: the image
//! puller decides whether that ends the wait.

use crate::worker::step::Worker;
use crate::worker::syncs::VOLUME_RETRY;
use pintle_api_types::ids::Mono;

/// Reasons of failures that end when a missing object appears.
const WAIT_FOR_CONTENT: [&str; 4] =
    ["FailedMount", "CreateContainerConfigError", "ErrImagePull", "ImagePullBackOff"];

impl Worker {
    /// An object that the pod refers to changed or appeared.
    pub fn content(&mut self, files: bool) {
        if files {
            self.files.stale = true;
            self.files.refresh_at = None;
            self.files.refresh_failures = 0;
        }
        // Actions that waited for it need not wait any longer; other failures keep their pace.
        let waits = |reason: &str| WAIT_FOR_CONTENT.contains(&reason);
        if self.retries.last_failure.as_ref().is_some_and(|failure| waits(&failure.reason)) {
            self.retries.retry_at = None;
        }
        let waiting = &self.shown.waiting;
        self.retries
            .pauses
            .retain(|name, _| !waiting.get(name).is_some_and(|why| waits(&why.reason)));
    }

    /// Containers keep running with the files that they have; nothing else of the pod waits.
    pub(super) fn refresh_failed(&mut self, now: Mono) {
        let wait = VOLUME_RETRY.first * 2_u32.pow(self.files.refresh_failures.min(12));
        self.files.refresh_failures += 1;
        self.files.refresh_at = Some(now.plus(wait.min(VOLUME_RETRY.longest)));
        self.files.stale = true;
    }
}
