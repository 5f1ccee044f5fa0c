//! Reports the progress of a node shutdown: metrics, the Node object, the state file, the lock.
//!
//! When the last group is over the machine waits a moment more, until the API server has accepted
//! the statuses of the pods: they could not be written afterwards, and a controller would wait for
//! pods that have ended. Bounds: `STATUSES_MAX`.

use std::time::Duration;

use pintle_agent_core::shutdown::ShutdownRecord;
use pintle_agent_core::worker::Worker;
use pintle_daemon::tasks;

use super::PodDriver;

/// How long the machine waits for the last statuses to be written.
const STATUSES_MAX: Duration = Duration::from_secs(5);

impl PodDriver {
    pub(super) fn shut_down(&self, record: ShutdownRecord) {
        self.metrics.shutdown(&record);
        match (&self.writer, record.ended_at) {
            (Some(_), Some(_)) if !record.cancelled => self.end_when_written(record),
            _ => drop(self.shutdown.send_replace(Some(record))),
        }
    }

    fn end_when_written(&self, ended: ShutdownRecord) {
        let Some(writer) = self.writer.clone() else { return };
        let pods = self.pods.workers().filter(|w| w.pod().is_some()).map(Worker::uid);
        let pods: Vec<_> = pods.cloned().collect();
        let progress = self.shutdown.clone();
        progress.send_replace(Some(ShutdownRecord { ended_at: None, ..ended.clone() }));
        tasks::spawn("last statuses", async move {
            if tokio::time::timeout(STATUSES_MAX, writer.settled(&pods)).await.is_err() {
                tracing::warn!("the API server has not taken what became of all pods");
            }
            // It may have been given up meanwhile.
            progress.send_if_modified(|known| {
                let same =
                    |now: &ShutdownRecord| !now.cancelled && now.started_at == ended.started_at;
                let goes_on = known.as_ref().is_some_and(same);
                if goes_on {
                    *known = Some(ended);
                }
                goes_on
            });
        });
    }
}
