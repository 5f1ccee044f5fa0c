//! A user ends a pod's waits: its waiting actions are tried at once, and an action that fails again
//! waits longer.

use std::time::Duration;

use crate::worker::testing::{Host, plain};
use crate::worker::{Failure, PodVerdict, PodsInput, Wait, WorkerStage};

impl Host {
    fn retry(&mut self) {
        self.send(PodsInput::Retry { uid: "p".into() });
    }

    fn waits(&self) -> Vec<Wait> {
        self.pods.worker(&"p".into()).expect("a worker").waits(self.now.mono)
    }

    /// The only wait, in whole seconds.
    fn wait_told(&self) -> (String, String, u64) {
        let waits = self.waits();
        let [wait] = waits.as_slice() else { panic!("{waits:?}") };
        // Inputs are a millisecond apart.
        let left = (wait.left + Duration::from_millis(500)).as_secs();
        (wait.what.clone(), wait.reason.clone(), left)
    }
}

/// A pod with a container in a crash loop of this wait.
fn in_crash_loop(seconds: u64) -> Host {
    let mut host = Host::new();
    host.want(plain("p", "100m"));
    host.end("p", "c", 1);
    let mut wait = 10;
    loop {
        host.end("p", "c", 1);
        host.take_starts();
        if wait == seconds {
            return host;
        }
        host.wait(Duration::from_secs(wait));
        assert_eq!(host.take_starts(), ["c"], "after {wait} s");
        wait *= 2;
    }
}

fn crash_loop(left: u64) -> (String, String, u64) {
    ("container c".to_owned(), "CrashLoopBackOff".to_owned(), left)
}

#[test]
fn retry_skips_one_crash_loop_wait_and_the_backoff_keeps_growing() {
    let mut host = in_crash_loop(160);
    host.wait(Duration::from_secs(28));
    assert_eq!(host.wait_told(), crash_loop(132));
    host.retry();
    assert_eq!(host.take_starts(), ["c"], "at once");
    assert_eq!(host.waits(), []);
    host.end("p", "c", 1);
    assert_eq!(host.take_starts(), [""; 0], "only once");
    assert_eq!(host.wait_told(), crash_loop(300));
    host.wait(Duration::from_secs(299));
    assert_eq!(host.take_starts(), [""; 0]);
    host.wait(Duration::from_secs(2));
    assert_eq!(host.take_starts(), ["c"]);
}

#[test]
fn retry_of_a_running_container_does_not_skip_its_next_backoff() {
    let mut host = in_crash_loop(10);
    host.wait(Duration::from_secs(10));
    assert_eq!(host.take_starts(), ["c"]);
    host.wait(Duration::from_secs(1));
    host.retry();
    host.wait(Duration::from_secs(1));
    host.end("p", "c", 1);
    assert_eq!(host.take_starts(), [""; 0], "nothing was waited for");
    assert_eq!(host.wait_told(), crash_loop(20));
}

#[test]
fn a_pull_that_backs_off_is_tried_at_once() {
    let mut host = Host::new();
    let mut failure = Failure::new("ImagePullBackOff", "Back-off pulling image");
    failure.retry_after = Some(Duration::from_secs(300));
    host.failing.insert("c".to_owned(), failure);
    host.want(plain("p", "100m"));
    assert_eq!(host.wait_told(), ("container c".into(), "ImagePullBackOff".into(), 300));
    host.retry();
    assert_eq!(host.wait_told().2, 300, "it failed again");
    host.failing.clear();
    host.retry();
    assert_eq!(host.take_starts(), ["c"]);
    assert_eq!(host.waits(), []);
}

#[test]
fn retry_of_a_pod_level_failure_runs_at_once_and_keeps_the_failure_count() {
    let mut host = Host::new();
    host.lingers = true;
    host.want(plain("p", "100m"));
    let fail = |host: &mut Host| {
        let ticket = host.ticket("p");
        let outcome = Err(Failure::new("FailedMount", "no such server"));
        host.send(PodsInput::Progress { uid: "p".into(), ticket, index: 0, outcome });
        host.send(PodsInput::SyncDone { uid: "p".into(), ticket });
    };
    // Half a second, doubled each time.
    for wait in [500, 1000, 2000, 4000] {
        fail(&mut host);
        let waits = host.waits();
        let [Wait { what, reason, left }] = waits.as_slice() else { panic!("{waits:?}") };
        assert_eq!((what.as_str(), reason.as_str()), ("all of the pod", "FailedMount"));
        let begun = Duration::from_millis(wait);
        assert!(*left <= begun && begun - *left < Duration::from_millis(50), "{left:?} of {wait}");
        host.retry();
        assert_eq!(host.waits(), []);
    }
}

#[test]
fn a_pod_that_ends_or_has_ended_is_left_alone() {
    let mut host = in_crash_loop(160);
    let verdict = PodVerdict {
        phase: "Failed".to_owned(),
        reason: "Evicted".to_owned(),
        message: String::new(),
    };
    host.stubborn = true;
    host.send(PodsInput::Kill { uid: "p".into(), verdict, grace_seconds: None });
    assert_eq!(host.stage("p"), Some(WorkerStage::Terminating));
    for stage in [WorkerStage::Terminating, WorkerStage::Finished] {
        host.take();
        host.retry();
        assert_eq!((host.take(), host.waits()), (String::new(), Vec::new()), "{stage:?}");
        host.stubborn = false;
        host.wait(Duration::from_secs(60));
        assert_eq!(host.take_starts(), [""; 0]);
        assert_eq!(host.stage("p"), Some(WorkerStage::Finished));
    }
}
