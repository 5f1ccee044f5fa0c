//! TTL after finished: deletes Jobs some time after their end.
//!
//! Reads Jobs. Writes: deletions of Jobs, each after a live read, since a Job's TTL may have been
//! raised meanwhile.
// k8s: pkg/controller/ttlafterfinished/ttlafterfinished_controller.go

use std::rc::Rc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{JOBS, Kind};
use pintle_api_types::request::{DeleteOptions, Propagation, Request, Target};
use pintle_controllers_core::frame::{
    Controller, Now, Retry, SyncError, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Job;
use pintle_controllers_core::tables::{Change, Tables};

/// The controller.
#[derive(Debug)]
pub struct TtlAfterFinished {
    /// `--concurrent-ttl-after-finished-syncs`.
    pub workers: usize,
}

impl Controller for TtlAfterFinished {
    type Key = ObjectKey;
    type Snapshot = Rc<KeptObject<Job>>;
    type Note = ();

    const NAME: &'static str = "ttl-after-finished-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        vec![JOBS]
    }

    fn workers(&self) -> usize {
        self.workers
    }

    fn handle_change(&mut self, change: &Change, _: &Tables, _: Now, wake: &mut Wakes<ObjectKey>) {
        if let Change::Job(delta) = change
            && let Some(job) = &delta.new
            && expires_at(job).is_some()
        {
            wake.now(job.metadata.key());
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<Self::Snapshot> {
        tables.jobs.get(key).cloned()
    }

    fn sync(
        job: &Self::Snapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        if let Some(wait) = wait(job, transcript.now()) {
            return Ok(wait);
        }
        let key = job.metadata.key();
        let target = Target::object(JOBS, key);
        let read = Request::Read { target: target.clone(), only_metadata: false };
        let fresh = match transcript.send(read)? {
            Ok(fresh) => fresh,
            Err(error) if error.is_not_found() => return Ok(SyncOutcome::done()),
            Err(error) => return Err(error.into()),
        };
        let fresh = KeptObject::<Job>::of_value(&fresh).map_err(|error| {
            let message = format!("the Job cannot be read: {error}");
            TranscriptStop::Failed(SyncError { message, retry: Retry::Never })
        })?;
        if let Some(wait) = wait(&fresh, transcript.now()) {
            return Ok(wait);
        }
        let options = DeleteOptions {
            uid: Some(fresh.metadata.uid.as_str().to_owned()),
            propagation: Some(Propagation::Foreground),
            ..Default::default()
        };
        match transcript.send(Request::Delete { target, options })? {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(SyncOutcome::done()),
        }
    }
}

/// The outcome if the Job is not deleted yet.
fn wait(job: &KeptObject<Job>, now: Timestamp) -> Option<SyncOutcome<()>> {
    let Some(at) = expires_at(job) else { return Some(SyncOutcome::done()) };
    let left = Duration::try_from(at.duration_since(now)).unwrap_or_default();
    (!left.is_zero()).then(|| SyncOutcome::after(left))
}

/// When a Job is to be deleted; `None` when it has no end or no TTL, or is being deleted already.
fn expires_at(job: &Job) -> Option<Timestamp> {
    let ttl = job.spec.ttl_seconds_after_finished?;
    let finished = job.finished()?.last_transition_time?;
    let ttl = SignedDuration::from_secs(ttl.into());
    (!job.metadata.is_deleting()).then_some(())?;
    finished.checked_add(ttl).ok()
}

#[cfg(test)]
mod tests {
    use pintle_controllers_core::frame::{Driven, drive};
    use serde_json::{Value, json};

    use super::*;

    fn job(ttl: i32) -> Value {
        json!({"metadata": {"name": "a", "namespace": "n", "uid": "u", "resourceVersion": "5"},
            "spec": {"ttlSecondsAfterFinished": ttl},
            "status": {"conditions": [{"type": "Complete", "status": "True",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}})
    }

    fn synced(job: &Value, fresh: &Value, now: &str) -> Driven<()> {
        let snapshot = Rc::new(KeptObject::of_value(job).expect("a good Job"));
        let now = now.parse().expect("a time");
        drive::<TtlAfterFinished>(&snapshot, now, |_| Ok(fresh.clone()))
    }

    fn wait_of(driven: Driven<()>) -> Option<Duration> {
        driven.outcome.expect("no failure").again
    }

    #[test]
    fn unexpired_job_is_synced_again_when_its_ttl_expires() {
        let driven = synced(&job(100), &Value::Null, "2026-01-01T00:00:30Z");
        assert!(driven.requests.is_empty());
        assert_eq!(wait_of(driven), Some(Duration::from_secs(70)));
    }

    #[test]
    fn expired_job_is_read_and_deleted_in_the_foreground() {
        let driven = synced(&job(10), &job(10), "2026-01-01T00:00:30Z");
        let [Request::Read { .. }, Request::Delete { options, .. }] = &*driven.requests else {
            panic!("{:?}", driven.requests)
        };
        assert_eq!(options.uid.as_deref(), Some("u"));
        assert_eq!(options.propagation, Some(Propagation::Foreground));
    }

    #[test]
    fn expired_job_whose_ttl_was_raised_is_kept() {
        let driven = synced(&job(10), &job(100), "2026-01-01T00:00:30Z");
        assert_eq!(driven.requests.len(), 1);
        assert_eq!(wait_of(driven), Some(Duration::from_secs(70)));
    }

    /// k#59676: a deleted Job is not deleted again and again.
    #[test]
    fn expired_job_that_is_missing_is_not_retried() {
        let snapshot: Rc<KeptObject<Job>> =
            Rc::new(KeptObject::of_value(&job(10)).expect("a good Job"));
        let now = "2026-01-01T00:00:30Z".parse().expect("a time");
        let gone = || Err(crate::test_world::error(404, "NotFound"));
        let unread = drive::<TtlAfterFinished>(&snapshot, now, |_| gone());
        assert_eq!((unread.requests.len(), wait_of(unread)), (1, None));
        let undeleted = drive::<TtlAfterFinished>(&snapshot, now, |request| match request {
            Request::Read { .. } => Ok(job(10)),
            _ => gone(),
        });
        assert_eq!((undeleted.requests.len(), wait_of(undeleted)), (2, None));
    }
}
