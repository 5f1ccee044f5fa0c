//! The objects of a dump that a simulation uses, by kind, namespace and name.
//!
//! Input: typed objects with their sources. Output: the last state of each. Owner: the loader fills
//! it, the simulation takes it apart. Bounds: those of the files. A uid identifies nothing here:
//! manifests have none, and handmade dumps repeat them.

use std::collections::{BTreeMap, HashMap, HashSet};

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    LimitRange, Namespace, Node, Pod, ReplicationController, Service,
};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::defaults::assumed::Assumed;
use super::valid::is_stored;

/// Objects by `namespace/name`, or by name where the kind has no namespace.
pub(crate) type ByName<T> = BTreeMap<String, T>;

/// Origin of an object.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectOrigin {
    /// File, line and column, for messages.
    pub(crate) place: String,
    /// An API server has stored the object, so that admission has happened.
    pub(crate) is_stored: bool,
}

/// What a simulation reads of a dump and does not use.
#[derive(Debug, Default)]
pub(crate) struct DumpOmissions {
    /// Number of objects of other kinds, by kind.
    pub(crate) ignored: BTreeMap<String, usize>,
    /// Nodes and pods found twice, other than in a watch: the name, the place where it is now and
    /// the first one.
    pub(crate) again: Vec<String>,
    /// Reasons in a file that make the answer incomplete, a sentence each.
    pub(crate) incomplete: Vec<String>,
    /// Fields of manifests that are ignored, because Kubernetes 1.36 does not have them.
    pub(crate) unknown_fields: Vec<String>,
}

/// Everything a simulation uses of a dump.
#[derive(Debug, Default)]
pub struct Dump {
    /// Nodes in their order.
    pub(crate) nodes: Vec<Node>,
    /// Pods in their order, without uids.
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: ByName<Namespace>,
    pub(crate) services: ByName<Service>,
    pub(crate) replica_sets: ByName<ReplicaSet>,
    pub(crate) stateful_sets: ByName<StatefulSet>,
    pub(crate) replication_controllers: ByName<ReplicationController>,
    pub(crate) budgets: ByName<PodDisruptionBudget>,
    /// For pods that have no priority yet.
    pub(crate) priority_classes: ByName<PriorityClass>,
    /// For pods that no API server has stored yet.
    pub(crate) limit_ranges: ByName<LimitRange>,
    /// For pods that no API server has stored yet.
    pub(crate) runtime_classes: ByName<RuntimeClass>,
    /// All classes of the cluster are listed, so that an unlisted one does not exist.
    pub(crate) has_all_runtime_classes: bool,
    /// What the answer leaves out.
    pub(crate) omitted: DumpOmissions,
    /// Values set on pods that their manifests do not have.
    pub(crate) assumed: Assumed,
    /// Indexes of nodes and pods, by kind and name.
    known: HashMap<(&'static str, String), usize>,
    /// Indexes of nodes and of pods deleted by watch events.
    gone: [HashSet<usize>; 2],
    /// The current object is a watch event.
    pub(super) is_news: bool,
    pub(crate) node_sources: Vec<ObjectOrigin>,
    pub(crate) pod_sources: Vec<ObjectOrigin>,
}

impl Dump {
    pub(super) fn put_node(&mut self, node: Node, place: String) {
        let name = node.metadata.name.clone().unwrap_or_default();
        let source = ObjectOrigin { place, is_stored: is_stored(&node.metadata) };
        match self.known_at("Node", &name, self.nodes.len()) {
            None => {
                self.nodes.push(node);
                self.node_sources.push(source);
            }
            Some(at) => {
                self.nodes[at] = node;
                let again = again("Node", &name, &mut self.node_sources[at], source);
                if !self.is_news {
                    self.omitted.again.push(again);
                }
            }
        }
    }

    pub(super) fn put_pod(&mut self, mut pod: Pod, place: String) {
        pod.metadata.uid = None;
        let name = pod_name(&pod);
        let source = ObjectOrigin { place, is_stored: is_stored(&pod.metadata) };
        match self.known_at("Pod", &name, self.pods.len()) {
            None => {
                self.pods.push(pod);
                self.pod_sources.push(source);
            }
            Some(at) => {
                self.pods[at] = pod;
                let again = again("Pod", &name, &mut self.pod_sources[at], source);
                if !self.is_news {
                    self.omitted.again.push(again);
                }
            }
        }
    }

    /// Returns the index of an object, or records that it comes next.
    fn known_at(&mut self, kind: &'static str, name: &str, next: usize) -> Option<usize> {
        let key = (kind, name.to_owned());
        let known = self.known.get(&key).copied();
        if known.is_none() {
            self.known.insert(key, next);
        }
        known
    }

    /// Removes an object deleted by a watch event.
    pub(super) fn forget(&mut self, kind: &str, metadata: &ObjectMeta) {
        let name = object_name(kind, metadata);
        match kind {
            "Node" | "Pod" => {
                let kind = if kind == "Pod" { "Pod" } else { "Node" };
                if let Some(at) = self.known.remove(&(kind, name)) {
                    self.gone[usize::from(kind == "Pod")].insert(at);
                }
            }
            "Namespace" => drop(self.namespaces.remove(&name)),
            "Service" => drop(self.services.remove(&name)),
            "ReplicaSet" => drop(self.replica_sets.remove(&name)),
            "StatefulSet" => drop(self.stateful_sets.remove(&name)),
            "ReplicationController" => drop(self.replication_controllers.remove(&name)),
            "PodDisruptionBudget" => drop(self.budgets.remove(&name)),
            "PriorityClass" => drop(self.priority_classes.remove(&name)),
            "LimitRange" => drop(self.limit_ranges.remove(&name)),
            "RuntimeClass" => drop(self.runtime_classes.remove(&name)),
            _ => {}
        }
    }

    /// Removes deleted nodes and pods, all at once.
    pub(super) fn settle(&mut self) {
        let [nodes, pods] = std::mem::take(&mut self.gone);
        if nodes.is_empty() && pods.is_empty() {
            return;
        }
        leave_out(&mut self.nodes, &nodes);
        leave_out(&mut self.node_sources, &nodes);
        leave_out(&mut self.pods, &pods);
        leave_out(&mut self.pod_sources, &pods);
        let name = |node: &Node| node.metadata.name.clone().unwrap_or_default();
        let nodes = self.nodes.iter().enumerate().map(|(at, node)| (("Node", name(node)), at));
        let pods = self.pods.iter().enumerate().map(|(at, pod)| (("Pod", pod_name(pod)), at));
        self.known = nodes.chain(pods).collect();
    }
}

/// Replaces an object by a later state; a stream has one for each change. Returns the note about
/// the repetition.
fn again(kind: &str, name: &str, now: &mut ObjectOrigin, source: ObjectOrigin) -> String {
    let before = std::mem::replace(now, source);
    format!("{kind} {name} ({}, before that {})", now.place, before.place)
}

fn leave_out<T>(all: &mut Vec<T>, gone: &HashSet<usize>) {
    let mut at = 0..;
    all.retain(|_| at.next().is_none_or(|at| !gone.contains(&at)));
}

/// namespace/name.
pub(crate) fn pod_name(pod: &Pod) -> String {
    object_name("Pod", &pod.metadata)
}

/// Returns namespace/name, or the name of a cluster-scoped object.
pub(crate) fn object_name(kind: &str, metadata: &ObjectMeta) -> String {
    let name = metadata.name.as_deref().unwrap_or("");
    if matches!(kind, "Node" | "Namespace" | "PriorityClass" | "RuntimeClass") {
        return name.to_owned();
    }
    format!("{}/{name}", metadata.namespace.as_deref().unwrap_or("default"))
}
