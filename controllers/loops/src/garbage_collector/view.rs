//! What debug endpoints and tests of whole clusters ask of the graph.
// k8s: pkg/controller/garbagecollector/dump.go

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;

use pintle_controllers_core::meta::Uid;

use super::graph::Graph;

/// A view of the graph.
#[derive(Clone, Debug)]
pub struct GraphView(Rc<RefCell<Graph>>);

impl GraphView {
    pub(super) fn new(graph: Rc<RefCell<Graph>>) -> Self {
        Self(graph)
    }

    /// The graph has a node with this UID.
    // k8s: pkg/controller/garbagecollector/garbagecollector.go GraphHasUID
    pub fn has_uid(&self, uid: &str) -> bool {
        self.0.borrow().get(&Uid::of(uid)).is_some()
    }

    /// Every kind that is followed is listed.
    // k8s: pkg/controller/garbagecollector/graph_builder.go IsSynced
    pub fn is_synced(&self) -> bool {
        self.0.borrow().is_synced
    }

    /// Nodes of the graph.
    pub fn len(&self) -> usize {
        self.0.borrow().nodes().count()
    }

    /// The graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The nodes with owners or dependents, in the language of Graphviz. With UIDs, only nodes that
    /// are connected with them.
    // k8s: pkg/controller/garbagecollector/dump.go ServeHTTP
    pub fn to_dot(&self, uids: &[&str]) -> String {
        let graph = self.0.borrow();
        let mut wanted: Vec<Uid> = uids.iter().map(|uid| Uid::of(uid)).collect();
        let mut connected = std::collections::BTreeSet::new();
        while let Some(uid) = wanted.pop() {
            if let Some(node) = graph.get(&uid)
                && connected.insert(uid)
            {
                wanted.extend(node.dependents.iter().cloned());
                wanted.extend(node.owners.iter().map(|owner| owner.uid.clone()));
            }
        }
        let mut nodes: Vec<_> = graph
            .nodes()
            .filter(|node| !node.owners.is_empty() || !node.dependents.is_empty())
            .filter(|node| uids.is_empty() || connected.contains(&node.identity.uid))
            .collect();
        nodes.sort_unstable_by_key(|node| &node.identity.uid);
        let mut text = "strict digraph full {\n".to_owned();
        for (at, node) in nodes.iter().enumerate() {
            let identity = &node.identity;
            let flags = [
                ("virtual", node.is_virtual),
                ("deleting dependents", node.is_deleting_dependents),
                ("being deleted", node.is_being_deleted),
            ];
            let flags: Vec<_> = flags.iter().filter(|flag| flag.1).map(|flag| flag.0).collect();
            let (uid, kind) = (identity.uid.as_str(), identity.kind.as_str());
            let (namespace, name) = (identity.namespace.as_str(), identity.name.as_str());
            let state = flags.join(", ");
            let name = format!("namespace={namespace:?} name={name:?}");
            // A String takes everything.
            let _ = writeln!(text, "  {at} [label={uid:?} kind={kind:?} {name} state={state:?}];");
        }
        for (at, node) in nodes.iter().enumerate() {
            for owner in &node.owners {
                if let Some(to) = nodes.iter().position(|known| known.identity.uid == owner.uid) {
                    let _ = writeln!(text, "  {at} -> {to};");
                }
            }
        }
        text + "}\n"
    }
}
