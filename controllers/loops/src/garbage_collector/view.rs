//! Queries of the graph for debug endpoints and tests of whole clusters.
// k8s: pkg/controller/garbagecollector/dump.go

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::rc::Rc;

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::meta::Uid;

use super::graph::{Graph, GraphNode};
use super::identity::ObjectIdentity;

/// A view of the graph.
#[derive(Clone, Debug)]
pub struct GraphView(Rc<RefCell<Graph>>);

/// A node as it is shown.
struct Vertex {
    identity: ObjectIdentity,
    conditions: Vec<&'static str>,
}

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

    /// The nodes with owners or dependents, in the language of Graphviz: what
    /// `/debug/controllers/garbage-collector-controller/graph` answers. With UIDs, only nodes that
    /// are connected with them.
    // k8s: pkg/controller/garbagecollector/dump.go toDOTNodesAndEdges, marshalDOT
    pub fn to_dot(&self, uids: &[&str]) -> String {
        let graph = self.0.borrow();
        let connected = connected(&graph, uids);
        let is_shown = |node: &&GraphNode| {
            (!node.owners.is_empty() || !node.dependents.is_empty())
                && connected.as_ref().is_none_or(|uids| uids.contains(&node.identity.uid))
        };
        let mut vertices = BTreeMap::new();
        let mut edges = BTreeSet::new();
        for node in graph.nodes().filter(is_shown) {
            vertices.insert(node.identity.uid.clone(), Vertex::of(node));
        }
        for node in graph.nodes().filter(is_shown) {
            for owner in node.owners.iter() {
                edges.insert((node.identity.uid.clone(), owner.uid.clone()));
                vertices.entry(owner.uid.clone()).or_insert_with(|| Vertex {
                    identity: ObjectIdentity::of_owner(owner, &Symbol::default()),
                    conditions: vec!["missingFromGraph"],
                });
            }
        }
        let mut text = "strict digraph full {\n".to_owned();
        if !vertices.is_empty() {
            text.push_str("  // Node definitions.\n");
        }
        vertices.values().for_each(|vertex| vertex.write(&mut text));
        if !edges.is_empty() {
            text.push_str("  // Edge definitions.\n");
        }
        for (from, to) in edges {
            let _ = writeln!(text, "  {:?} -> {:?};", from.as_str(), to.as_str());
        }
        text + "}\n"
    }
}

/// The nodes that are connected with some; `None` for all.
// k8s: pkg/controller/garbagecollector/dump.go toDOTNodesAndEdgesForObj
fn connected(graph: &Graph, uids: &[&str]) -> Option<BTreeSet<Uid>> {
    if uids.is_empty() {
        return None;
    }
    let mut wanted: Vec<Uid> = uids.iter().map(|uid| Uid::of(uid)).collect();
    let mut connected = BTreeSet::new();
    while let Some(uid) = wanted.pop() {
        if let Some(node) = graph.get(&uid)
            && connected.insert(uid)
        {
            wanted.extend(node.dependents.iter().cloned());
            wanted.extend(node.owners.iter().map(|owner| owner.uid.clone()));
        }
    }
    Some(connected)
}

impl Vertex {
    fn of(node: &GraphNode) -> Self {
        let conditions = [
            ("beingDeleted", node.is_being_deleted),
            ("deletingDependents", node.is_deleting_dependents),
            ("virtual", node.is_virtual),
        ];
        let conditions = conditions.into_iter().filter(|(_, is_so)| *is_so);
        Self {
            identity: node.identity.clone(),
            conditions: conditions.map(|(name, _)| name).collect(),
        }
    }

    // k8s: pkg/controller/garbagecollector/dump.go Attributes
    fn write(&self, text: &mut String) {
        let ObjectIdentity { kind, api_version, namespace, name, uid } = &self.identity;
        let (kind, namespace, name) = (kind.as_str(), namespace.as_str(), name.as_str());
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let dot = if group.is_empty() { "" } else { "." };
        let mut label =
            format!("uid={uid}\nnamespace={namespace}\n{kind}.{version}{dot}{group}/{name}\n");
        if !self.conditions.is_empty() {
            label.push_str(&self.conditions.join(","));
            label.push('\n');
        }
        let is = |condition| if self.conditions.contains(&condition) { "true" } else { "false" };
        // A String takes everything.
        let _ = writeln!(text, "  {:?} [", uid.as_str());
        for (key, value) in [
            ("label", &*label),
            ("group", group),
            ("version", version),
            ("kind", kind),
            ("namespace", namespace),
            ("name", name),
            ("uid", uid.as_str()),
            ("missing", is("missingFromGraph")),
            ("beingDeleted", is("beingDeleted")),
            ("deletingDependents", is("deletingDependents")),
            ("virtual", is("virtual")),
        ] {
            let _ = writeln!(text, "    {key}={value:?}");
        }
        text.push_str("  ];\n");
    }
}
