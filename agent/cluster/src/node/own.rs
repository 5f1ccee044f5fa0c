//! The Node object as the API server has it: a watch of this one object.
//!
//! Owner: one task. Output: a `tokio::sync::watch` cell that everybody may read; it holds one
//! object, without its managed fields. Bounds: one object, waits between attempts up to
//! `BACKOFF_MAX`.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::Api;
use kube::runtime::watcher::{self, Event};
use tokio::sync::watch;
use tokio_stream::StreamExt as _;

/// First and longest wait after a failed watch.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), BACKOFF_MAX);
const BACKOFF_MAX: Duration = Duration::from_secs(5);

/// What is known of the own Node object.
#[derive(Clone, Debug, Default)]
pub enum OwnNode {
    /// Nothing yet.
    #[default]
    Unknown,
    /// The API server has none.
    Absent {
        /// How often it has gone after it was there.
        gone: u32,
    },
    /// The API server has this one.
    Present(Arc<Node>),
}

impl OwnNode {
    /// The object, if there is one.
    pub fn object(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Present(node) => Some(node),
            Self::Unknown | Self::Absent { .. } => None,
        }
    }

    /// Its uid.
    pub fn uid(&self) -> Option<&str> {
        self.object()?.metadata.uid.as_deref()
    }
}

/// Starts to follow the object; the cell has what is known of it.
pub fn start(client: kube::Client, name: Arc<str>) -> watch::Receiver<OwnNode> {
    let (own, known) = watch::channel(OwnNode::default());
    pintle_daemon::tasks::singleton("own node", follow(client, name, own));
    known
}

async fn follow(client: kube::Client, name: Arc<str>, own: watch::Sender<OwnNode>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher::watcher(Api::<Node>::all(client), config);
    tokio::pin!(events);
    let mut story = Story::default();
    let mut pause = BACKOFF.0;
    while let Some(event) = events.next().await {
        match event {
            Err(error) => {
                tracing::debug!(%error, "watch of the own node");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF.1);
            }
            Ok(event) => {
                if let Some(now) = story.tell(event) {
                    pause = BACKOFF.0;
                    own.send_replace(now);
                }
            }
        }
    }
}

/// What the watch has told so far.
#[derive(Debug, Default)]
struct Story {
    /// The list that the watch begins with has had the object.
    listed: bool,
    there: bool,
    gone: u32,
}

impl Story {
    /// What is known after an event, unless that is nothing new.
    fn tell(&mut self, event: Event<Node>) -> Option<OwnNode> {
        match event {
            Event::Init => {
                self.listed = false;
                None
            }
            Event::InitDone if self.listed => None,
            Event::InitDone | Event::Delete(_) => {
                self.gone += u32::from(std::mem::take(&mut self.there));
                Some(OwnNode::Absent { gone: self.gone })
            }
            Event::InitApply(mut node) | Event::Apply(mut node) => {
                (self.listed, self.there) = (true, true);
                node.metadata.managed_fields = None;
                Some(OwnNode::Present(Arc::new(node)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often the object has gone by then; `None` while it is there.
    fn gone(events: impl IntoIterator<Item = Event<Node>>) -> Option<u32> {
        let mut story = Story::default();
        match events.into_iter().filter_map(|event| story.tell(event)).last() {
            Some(OwnNode::Absent { gone }) => Some(gone),
            Some(OwnNode::Present(_)) => None,
            Some(OwnNode::Unknown) | None => panic!("the events tell something"),
        }
    }

    #[test]
    fn an_object_goes_only_after_it_was_there() {
        use Event::{Apply, Delete, Init, InitApply, InitDone};
        let node = Node::default;
        let never = [Init, InitDone];
        assert_eq!(gone(never), Some(0), "it is not made yet");
        let twice_told = [Init, InitApply(node()), InitDone, Delete(node()), Init, InitDone];
        assert_eq!(gone(twice_told), Some(1));
        let between_two_watches = [Init, InitApply(node()), InitDone, Init, InitDone];
        assert_eq!(gone(between_two_watches), Some(1));
        let soon = [Init, InitDone, Apply(node()), Delete(node())];
        assert_eq!(gone(soon), Some(1), "it went as soon as it had been made");
        let back = [Init, InitDone, Apply(node()), Delete(node()), Apply(node())];
        assert_eq!(gone(back), None);
    }
}
