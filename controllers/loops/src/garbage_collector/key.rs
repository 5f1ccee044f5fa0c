//! Keys of the collector's queue: a node of the graph, and the reason of its examination.
//!
//! Keys are equal regardless of the namespace under which they were pushed, because the namespace
//! of a node for an unobserved owner is a guess. The namespace is only the queue's tenant, so that
//! the dependents of one namespace do not delay those of another.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::QueueKey;
use pintle_controllers_core::meta::Uid;

/// The reason for which a node is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NodeReason {
    /// The object may have to be deleted, or waits for its dependents.
    Delete,
    /// The dependents of the object have to be orphaned.
    Orphan,
}

/// A node of the graph, for one of two reasons.
#[derive(Clone)]
pub struct NodeKey {
    /// The object.
    pub uid: Uid,
    /// The reason.
    pub reason: NodeReason,
    /// The namespace of the object, as far as it was known.
    pub namespace: Symbol,
}

impl NodeKey {
    fn identity(&self) -> (&Uid, NodeReason) {
        (&self.uid, self.reason)
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.reason, self.uid)
    }
}

impl PartialEq for NodeKey {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for NodeKey {}

impl PartialOrd for NodeKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NodeKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.identity().cmp(&other.identity())
    }
}

impl Hash for NodeKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl QueueKey for NodeKey {
    fn tenant(&self) -> &str {
        &self.namespace
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use pintle_controllers_core::frame::{KeyBackoff, WorkQueue};

    use super::*;

    fn key(namespace: &str, uid: &str) -> NodeKey {
        let (uid, namespace) = (Uid::of(uid), Symbol::of(namespace));
        NodeKey { uid, reason: NodeReason::Delete, namespace }
    }

    #[test]
    fn namespaces_take_turns_and_a_graph_node_has_one_key_across_namespaces() {
        let mut queue = WorkQueue::new(KeyBackoff::DEFAULT);
        let now = Instant::now();
        for uid in ["a", "b", "c"] {
            queue.add(key("large", uid), now);
        }
        queue.add(key("small", "d"), now);
        queue.add(key("", "a"), now);
        let order: Vec<_> =
            std::iter::from_fn(|| queue.take(now + Duration::from_secs(1))).collect();
        let uids: Vec<_> = order.iter().map(|key| key.uid.as_str()).collect();
        assert_eq!(uids, ["a", "d", "b", "c"]);
    }
}
