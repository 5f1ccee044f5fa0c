//! The Node object as the API server has it: a watch of this one object.
//!
//! Owner: one task. Output: a `tokio::sync::watch` cell that any task may read; it holds one
//! object, without its managed fields. Bounds: one object, waits between attempts of `RETRY`.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use pintle_api::informer::{FirstList, FollowSpec, ObjectSink, follow};
use pintle_api_types::object::UnreadableObject;
use tokio::sync::watch;

/// First and longest wait after a failed watch.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// The state of the node's own Node object.
#[derive(Clone, Debug, Default)]
pub enum OwnNode {
    /// Nothing yet.
    #[default]
    Unknown,
    /// The API server has no such Node.
    Absent {
        /// How many times it was deleted after it existed.
        gone: u32,
    },
    /// The API server has this Node.
    Present {
        /// The object.
        node: Arc<Node>,
        /// How many lists had it. A list is what the API server has now, also when its versions went
        /// back because etcd was restored; a change only ever follows one.
        lists: u64,
    },
}

impl OwnNode {
    /// The Node, if it exists.
    pub fn object(&self) -> Option<&Arc<Node>> {
        match self {
            Self::Present { node, .. } => Some(node),
            Self::Unknown | Self::Absent { .. } => None,
        }
    }

    /// How many lists had the Node, while it exists.
    pub fn lists(&self) -> u64 {
        match self {
            Self::Present { lists, .. } => *lists,
            Self::Unknown | Self::Absent { .. } => 0,
        }
    }

    /// UID of the Node, if it exists.
    pub fn uid(&self) -> Option<&str> {
        self.object()?.metadata.uid.as_deref()
    }
}

/// Starts the watch of the Node; the returned cell holds its state.
pub fn start(client: kube::Client, name: Arc<str>) -> watch::Receiver<OwnNode> {
    let (own, known) = watch::channel(OwnNode::default());
    let mut spec = FollowSpec::new("the own node", "/api/v1/nodes");
    spec.source.field_selector = format!("metadata.name={name}");
    spec.first_list = FirstList::Newest;
    spec.retry = RETRY;
    let story = Story { own, listed: false, there: false, gone: 0, lists: 0 };
    pintle_daemon::tasks::singleton("own node", follow(client, spec, story));
    known
}

/// The state that the watch has reported so far.
#[derive(Debug)]
struct Story {
    own: watch::Sender<OwnNode>,
    /// The list under way contains the Node.
    listed: bool,
    there: bool,
    gone: u32,
    lists: u64,
}

impl Story {
    fn has(&mut self, mut node: Node) {
        (self.listed, self.there) = (true, true);
        node.metadata.managed_fields = None;
        self.own.send_replace(OwnNode::Present { node: Arc::new(node), lists: self.lists });
    }

    fn mark_absent(&mut self) {
        self.gone += u32::from(std::mem::take(&mut self.there));
        self.own.send_replace(OwnNode::Absent { gone: self.gone });
    }
}

impl ObjectSink<Node> for Story {
    fn begin(&mut self) {
        self.listed = false;
    }

    fn listed(&mut self, node: Node) {
        self.lists += 1;
        self.has(node);
    }

    fn listed_unreadable(&mut self, _: Option<UnreadableObject>) {
        // The Node exists, although it cannot be decoded.
        self.listed = true;
    }

    fn complete(&mut self) -> impl Future<Output = ()> {
        if !self.listed {
            self.mark_absent();
        }
        ready(())
    }

    fn applied(&mut self, node: Node) -> impl Future<Output = ()> {
        self.has(node);
        ready(())
    }

    fn deleted(&mut self, _: Node) -> impl Future<Output = ()> {
        self.mark_absent();
        ready(())
    }

    fn deleted_unreadable(&mut self, _: UnreadableObject) -> impl Future<Output = ()> {
        self.mark_absent();
        ready(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum ReportedField {
        Begin,
        Listed,
        Unreadable,
        Complete,
        Applied,
        Deleted,
    }

    /// How many times the Node was deleted after these events; `None` while it exists.
    async fn gone(all: &[ReportedField]) -> Option<u32> {
        let (own, known) = watch::channel(OwnNode::default());
        let mut story = Story { own, listed: false, there: false, gone: 0, lists: 0 };
        for told in all {
            match told {
                ReportedField::Begin => story.begin(),
                ReportedField::Listed => story.listed(Node::default()),
                ReportedField::Unreadable => story.listed_unreadable(None),
                ReportedField::Complete => story.complete().await,
                ReportedField::Applied => story.applied(Node::default()).await,
                ReportedField::Deleted => story.deleted(Node::default()).await,
            }
        }
        match &*known.borrow() {
            OwnNode::Absent { gone } => Some(*gone),
            OwnNode::Present { .. } => None,
            OwnNode::Unknown => panic!("the node is known"),
        }
    }

    #[tokio::test]
    async fn own_node_counts_as_deleted_only_after_it_was_observed() {
        use ReportedField::{Applied, Begin, Complete, Deleted, Listed, Unreadable};
        for (why, told, want) in [
            ("it is not made yet", &[Begin, Complete][..], Some(0)),
            (
                "deleted, then absent from a list",
                &[Begin, Listed, Complete, Deleted, Begin, Complete],
                Some(1),
            ),
            ("between two watches", &[Begin, Listed, Complete, Begin, Complete], Some(1)),
            ("as soon as it was made", &[Begin, Complete, Applied, Deleted], Some(1)),
            ("it is back", &[Begin, Complete, Applied, Deleted, Applied], None),
            ("it is still there", &[Begin, Listed, Complete, Begin, Unreadable, Complete], None),
        ] {
            assert_eq!(gone(told).await, want, "{why}");
        }
    }
}
