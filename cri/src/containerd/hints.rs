//! containerd's task events as small typed hints.
//!
//! Input: envelopes of the events service (topic, time, encoded event). Output: `Hint`s; envelopes
//! that are of no use, including any that do not decode, are skipped. Exits of commands run inside
//! a container are left out: only main processes count. The decoder is pure and takes any bytes.
//! Bound: events wait in the stream until they are asked for; nothing is kept here.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use containerd_client::{
    events::{TaskDelete, TaskExit, TaskOom, TaskPaused, TaskResumed, TaskStart},
    services::v1::{SubscribeRequest, events_client::EventsClient},
    types::Envelope,
};
use futures_util::future::BoxFuture;
use prost::Message;
use prost_types::Timestamp;
use tonic::{Response, Status, Streaming};

use super::{Containerd, ContainerdError};

/// An event of a container or sandbox: a hint to read its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// Id of the container or of the sandbox.
    pub id: String,
    /// The kind of event.
    pub kind: HintKind,
    /// When, by containerd's clock; for exits, when the process ended.
    pub at: SystemTime,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintKind {
    /// Its main process runs.
    Started {
        /// Host pid.
        pid: u32,
    },
    /// Its main process ended.
    Exited {
        /// Host pid.
        pid: u32,
        /// Exit code, 128 + n for signal n.
        code: u32,
    },
    /// A process of it was killed for want of memory; maybe not the main one.
    OomKilled,
    /// Its task is gone from containerd.
    Deleted,
    /// The container was frozen.
    Paused,
    /// The container was thawed.
    Resumed,
}

const TOPICS: [&str; 6] = [
    "/tasks/start",
    "/tasks/exit",
    "/tasks/oom",
    "/tasks/delete",
    "/tasks/paused",
    "/tasks/resumed",
];

/// One filter per topic; an event passes when any of them fits.
pub(super) fn filters(namespace: &str) -> Vec<String> {
    TOPICS.iter().map(|topic| format!("namespace=={namespace},topic==\"{topic}\"")).collect()
}

/// The stream of hints. Dropping it ends the subscription.
pub struct Hints {
    containerd: Containerd,
    state: State,
}

enum State {
    Open(BoxFuture<'static, Result<Response<Streaming<Envelope>>, Status>>),
    Flowing(Box<Streaming<Envelope>>),
    Ended,
}

impl Hints {
    /// Nothing is sent before the first `next`.
    pub(super) fn new(containerd: Containerd, request: SubscribeRequest) -> Self {
        let channel = containerd.channel.clone();
        let opening = async move { EventsClient::new(channel).subscribe(request).await };
        Self { containerd, state: State::Open(Box::pin(opening)) }
    }

    /// The next hint; `None` after containerd ended the stream or after an error. Cancel safe.
    /// containerd sends nothing at all, not even a confirmation, before the first event.
    pub async fn next(&mut self) -> Option<Result<Hint, ContainerdError>> {
        loop {
            let answer = match &mut self.state {
                State::Open(opening) => match opening.await {
                    Ok(response) => {
                        self.state = State::Flowing(Box::new(response.into_inner()));
                        continue;
                    }
                    Err(status) => Err(status),
                },
                State::Flowing(stream) => stream.message().await,
                State::Ended => return None,
            };
            match self.containerd.answer("Subscribe", answer) {
                Ok(Some(envelope)) => {
                    if let Some(hint) = decode(&envelope) {
                        return Some(Ok(hint));
                    }
                }
                Ok(None) => self.state = State::Ended,
                Err(error) => {
                    self.state = State::Ended;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl fmt::Debug for Hints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hints").field("containerd", &self.containerd).finish_non_exhaustive()
    }
}

/// Makes a hint of an envelope, or nothing.
fn decode(envelope: &Envelope) -> Option<Hint> {
    let bytes = envelope.event.as_ref()?.value.as_slice();
    let mut at = time(envelope.timestamp.as_ref());
    let (id, kind) = match envelope.topic.as_str() {
        "/tasks/start" => {
            let event = TaskStart::decode(bytes).ok()?;
            (event.container_id, HintKind::Started { pid: event.pid })
        }
        "/tasks/exit" => {
            let event = TaskExit::decode(bytes).ok()?;
            if !is_main(&event.id, &event.container_id) {
                return None;
            }
            if event.exited_at.is_some() {
                at = time(event.exited_at.as_ref());
            }
            let kind = HintKind::Exited { pid: event.pid, code: event.exit_status };
            (event.container_id, kind)
        }
        "/tasks/delete" => {
            let event = TaskDelete::decode(bytes).ok()?;
            if !is_main(&event.id, &event.container_id) {
                return None;
            }
            (event.container_id, HintKind::Deleted)
        }
        "/tasks/oom" => (TaskOom::decode(bytes).ok()?.container_id, HintKind::OomKilled),
        "/tasks/paused" => (TaskPaused::decode(bytes).ok()?.container_id, HintKind::Paused),
        "/tasks/resumed" => (TaskResumed::decode(bytes).ok()?.container_id, HintKind::Resumed),
        _ => return None,
    };
    (!id.is_empty()).then_some(Hint { id, kind, at })
}

/// Commands have an id of their own; the main process has none, or the container's.
fn is_main(process: &str, container: &str) -> bool {
    process.is_empty() || process == container
}

/// A protocol time; 1970 for one that is absent or makes no sense.
fn time(timestamp: Option<&Timestamp>) -> SystemTime {
    let parts = timestamp.and_then(|timestamp| {
        let seconds = u64::try_from(timestamp.seconds).ok()?;
        let nanos = u32::try_from(timestamp.nanos).ok()?;
        Duration::from_secs(seconds).checked_add(Duration::from_nanos(nanos.into()))
    });
    parts.and_then(|since| UNIX_EPOCH.checked_add(since)).unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost_types::Any;

    use super::*;

    fn envelope(topic: &str, event: Vec<u8>) -> Envelope {
        Envelope {
            timestamp: Some(Timestamp { seconds: 7, nanos: 5 }),
            namespace: "k8s.io".into(),
            topic: topic.into(),
            event: Some(Any { type_url: String::new(), value: event }),
        }
    }

    fn exit(id: &str) -> TaskExit {
        TaskExit {
            container_id: "c1".into(),
            id: id.into(),
            pid: 42,
            exit_status: 137,
            exited_at: Some(Timestamp { seconds: 6, nanos: 0 }),
        }
    }

    #[test]
    fn an_exit_carries_pid_code_and_the_time_of_the_exit() {
        let hint = decode(&envelope("/tasks/exit", exit("c1").encode_to_vec()));
        let kind = HintKind::Exited { pid: 42, code: 137 };
        let at = UNIX_EPOCH + Duration::from_secs(6);
        assert_eq!(hint, Some(Hint { id: "c1".into(), kind, at }));
    }

    #[test]
    fn exits_of_commands_inside_a_container_are_no_hints() {
        assert_eq!(decode(&envelope("/tasks/exit", exit("probe-1").encode_to_vec())), None);
        assert!(decode(&envelope("/tasks/exit", exit("").encode_to_vec())).is_some());
    }

    #[test]
    fn containerd_topics_become_hints_with_the_time_of_the_envelope() {
        let id = || "c1".to_owned();
        let start = TaskStart { container_id: id(), pid: 42 }.encode_to_vec();
        let delete = TaskDelete { container_id: id(), ..Default::default() }.encode_to_vec();
        for (topic, event, kind) in [
            ("/tasks/start", start, HintKind::Started { pid: 42 }),
            ("/tasks/oom", TaskOom { container_id: id() }.encode_to_vec(), HintKind::OomKilled),
            ("/tasks/delete", delete, HintKind::Deleted),
            ("/tasks/paused", TaskPaused { container_id: id() }.encode_to_vec(), HintKind::Paused),
            (
                "/tasks/resumed",
                TaskResumed { container_id: id() }.encode_to_vec(),
                HintKind::Resumed,
            ),
        ] {
            let hint = decode(&envelope(topic, event)).expect("a hint");
            assert_eq!((hint.id.as_str(), hint.kind), ("c1", kind), "{topic}");
            assert_eq!(hint.at, UNIX_EPOCH + Duration::new(7, 5), "{topic}");
        }
        assert_eq!(decode(&envelope("/images/create", Vec::new())), None);
    }

    #[test]
    fn every_topic_that_is_decoded_is_subscribed_to() {
        let filters = filters("k8s.io");
        assert_eq!(filters.len(), TOPICS.len());
        assert_eq!(filters[1], r#"namespace==k8s.io,topic=="/tasks/exit""#);
    }

    proptest! {
        #[test]
        fn no_bytes_and_no_time_make_the_decoder_panic(
            topic in 0..TOPICS.len(),
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
            seconds in any::<i64>(),
            nanos in any::<i32>(),
        ) {
            let mut envelope = envelope(TOPICS[topic], bytes);
            envelope.timestamp = Some(Timestamp { seconds, nanos });
            if let Some(hint) = decode(&envelope) {
                prop_assert!(!hint.id.is_empty());
            }
        }

        #[test]
        fn a_cut_off_exit_never_turns_into_another_container(cut in 0usize..40) {
            let whole = exit("").encode_to_vec();
            let part = whole[..cut.min(whole.len())].to_vec();
            if let Some(hint) = decode(&envelope("/tasks/exit", part)) {
                prop_assert_eq!(hint.id, "c1");
            }
        }
    }
}
