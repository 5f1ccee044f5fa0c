//! containerd's own task events as hints: the one source on releases without container events.
//!
//! Owner: one task for the life of the agent; it subscribes again when the stream ends, after which
//! everything is listed, and gives up on a runtime that is not containerd. An exit's code and time
//! are evidence beside the CRI answer, as from the kernel; an event's container is found among the
//! observed ones, and an unknown one is left to the relist. The hint carries the container's
//! termination message, which is complete once its process is gone, and whether the pod has OOM
//! victims: `status::ending` shows such an end before the runtime lists it.

use std::time::{Duration, SystemTime};

use pintle_agent_core::observed::{ObservedContainer, TaskExit};
use pintle_agent_core::types::{ContainerId, PodUid, UnixNanos};
use pintle_agent_core::worker::{Hint, PodsInput};
use pintle_cri::containerd::{Containerd, HintKind};
use tokio::sync::mpsc;

use super::kernel::Tracker;
use super::or_open;
use crate::observed::{PodReader, termination_message};

/// First and longest wait before the stream is opened again.
const REOPEN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

/// Forwards task events as hints until the receiver is gone.
pub async fn run(
    containerd: Containerd,
    reader: PodReader,
    tracker: Tracker,
    inputs: mpsc::Sender<PodsInput>,
) {
    let (mut wait, mut first) = (REOPEN.0, true);
    loop {
        let mut hints = containerd.hints();
        let mut gap = !std::mem::take(&mut first);
        loop {
            let item = or_open(gap, hints.next()).await;
            if gap && !matches!(item, Some(None | Some(Err(_)))) {
                gap = false;
                if inputs.send(PodsInput::Lost).await.is_err() {
                    return;
                }
            }
            let hint = match item {
                Some(Some(hint)) => hint,
                Some(None) => break,
                None => continue,
            };
            let hint = match hint {
                Ok(hint) => hint,
                Err(error) if error.is_unimplemented() => return,
                Err(error) => {
                    tracing::debug!(%error, "task events of containerd");
                    continue;
                }
            };
            wait = REOPEN.0;
            let container = ContainerId::from(hint.id.as_str());
            let at = nanos(hint.at);
            let hint = match hint.kind {
                HintKind::Exited { code, .. } => match i32::try_from(code) {
                    Ok(code) => {
                        let ran = reader.running(&container);
                        let (tracker, inputs) = (tracker.clone(), inputs.clone());
                        let report = async move {
                            let end = end_of(ran, &tracker, code, at).await;
                            let hint = Hint::TaskExit { container: container.clone(), end };
                            // Fails only while the agent ends, when hints are not received any more.
                            let _ = inputs.send(PodsInput::ContainerHint { container, hint }).await;
                        };
                        pintle_daemon::tasks::spawn("termination message", report);
                        continue;
                    }
                    Err(_) => Hint::Exited { container: Some(container.clone()), code: None, at },
                },
                HintKind::OomKilled | HintKind::Deleted => Hint::Changed,
                // The agent reads the results of its own actions afterwards.
                HintKind::Started { .. } | HintKind::Paused | HintKind::Resumed => continue,
            };
            if inputs.send(PodsInput::ContainerHint { container, hint }).await.is_err() {
                return;
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(REOPEN.1);
    }
}

/// Runs in a task of its own: the termination message of one container may take long to read, and
/// the ends of others must not wait for it. Bounded by the time limit of such a read.
async fn end_of(
    ran: Option<(PodUid, ObservedContainer)>,
    tracker: &Tracker,
    code: i32,
    at: UnixNanos,
) -> TaskExit {
    let Some((uid, container)) = ran else {
        return TaskExit { code, at, words: None, no_oom_kill: false };
    };
    let no_oom_kill = tracker.oom_victims(&uid).await == Some(0);
    let words = termination_message::at_end(&uid, &container, code).await;
    TaskExit { code, at, words, no_oom_kill }
}

fn nanos(at: SystemTime) -> UnixNanos {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    UnixNanos(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}
