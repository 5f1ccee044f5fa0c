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
    Absent,
    /// The API server has this one.
    Present(Arc<Node>),
}

impl OwnNode {
    /// The object, if there is one.
    pub fn object(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Present(node) => Some(node),
            Self::Unknown | Self::Absent => None,
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
    tokio::task::spawn_local(follow(client, name, own));
    known
}

async fn follow(client: kube::Client, name: Arc<str>, own: watch::Sender<OwnNode>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher::watcher(Api::<Node>::all(client), config);
    tokio::pin!(events);
    let mut seen = false;
    let mut pause = BACKOFF.0;
    while let Some(event) = events.next().await {
        let now = match event {
            Err(error) => {
                tracing::debug!(%error, "watch of the own node");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(BACKOFF.1);
                continue;
            }
            Ok(Event::Init) => {
                seen = false;
                continue;
            }
            Ok(Event::InitDone) if seen => continue,
            Ok(Event::InitDone | Event::Delete(_)) => OwnNode::Absent,
            Ok(Event::InitApply(mut node) | Event::Apply(mut node)) => {
                seen = true;
                node.metadata.managed_fields = None;
                OwnNode::Present(Arc::new(node))
            }
        };
        pause = BACKOFF.0;
        own.send_replace(now);
    }
}
