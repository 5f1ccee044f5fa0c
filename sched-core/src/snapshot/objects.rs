//! Parses API objects into the form of the tables.
//!
//! Input: k8s-openapi objects. Output: interned nodes and pods, ready to be put into columns.
//! Owner: pure but for the interner. Bounds: the size of the object; a node's image list and a
//! pod's containers are read once. Why apart from the cluster: a rejected object must not leave a
//! part of itself behind.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, PodAffinityTerm};

use super::pods::NO_START;
use crate::columns::counters::{Scope, TermKey, TermKind};
use crate::columns::ports::HostPort;
use crate::columns::taints::{Effect, NodeTaint, whole_number};
use crate::intern::{Interner, LabelsId, Lease, Str};
use crate::requests::{PodRequests, RequestError, Resources, is_sidecar};
use crate::selector::{Selector, SelectorError};
use pintle_api_types::quantity;

/// Reason why an object is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// The object has no name.
    #[error("metadata.name is missing")]
    NoName,
    /// A quantity of a pod.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A quantity of a node.
    #[error("status.allocatable.{0}")]
    Allocatable(String, #[source] quantity::QuantityError),
    /// A label selector.
    #[error("label selector")]
    Selector(#[from] SelectorError),
    /// A bound pod names no node.
    #[error("spec.nodeName is missing")]
    NoNode,
}

/// A node in the form of the tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeSpec {
    /// Name.
    pub name: Str,
    /// Labels, sorted by the number of the key.
    pub labels: Box<[(Str, Str)]>,
    /// Taints in their order.
    pub taints: Vec<NodeTaint>,
    /// Cordoned.
    pub unschedulable: bool,
    /// Allocatable amounts.
    pub allocatable: Resources,
    /// Allocatable pods.
    pub pods: i64,
    /// Images: name and size.
    pub images: Vec<(Str, i64)>,
    /// Declared features.
    pub features: Vec<Str>,
    /// Protects the strings that it refers to.
    pub lease: Lease,
}

impl NodeSpec {
    /// Parses a node.
    ///
    /// # Errors
    /// It has no name, or an invalid quantity.
    pub fn of(node: &Node, interner: &mut Interner) -> Result<Self, ObjectError> {
        let name = node.metadata.name.as_deref().filter(|n| !n.is_empty());
        let status = node.status.as_ref();
        let spec = node.spec.as_ref();
        let amounts = quantity::read_list(status.and_then(|s| s.allocatable.as_ref()))
            .map_err(|(name, error)| ObjectError::Allocatable(name, error))?;
        let taints = spec.and_then(|s| s.taints.as_ref()).into_iter().flatten();
        let labels = node.metadata.labels.iter().flatten();
        let mut labels: Vec<(Str, Str)> =
            labels.map(|(k, v)| (interner.intern(k), interner.intern(v))).collect();
        labels.sort_unstable();
        let images = status.and_then(|s| s.images.as_ref()).into_iter().flatten();
        let features = status.and_then(|s| s.declared_features.as_ref()).into_iter().flatten();
        Ok(Self {
            name: interner.intern(name.ok_or(ObjectError::NoName)?),
            labels: labels.into(),
            taints: taints
                .map(|t| NodeTaint {
                    key: interner.intern(&t.key),
                    value: interner.intern(t.value.as_deref().unwrap_or("")),
                    number: t.value.as_deref().and_then(whole_number),
                    effect: effect(&t.effect),
                })
                .collect(),
            unschedulable: spec.and_then(|s| s.unschedulable).unwrap_or(false),
            allocatable: Resources::of(&amounts),
            pods: amounts.get("pods").map_or(0, |a| a.units()),
            images: images
                .flat_map(|i| {
                    let size = i.size_bytes.unwrap_or(0);
                    i.names.iter().flatten().map(move |n| (n, size))
                })
                .map(|(name, size)| (interner.intern(name), size))
                .collect(),
            features: features.map(|f| interner.intern(f)).collect(),
            lease: interner.lease(),
        })
    }
}

fn effect(text: &str) -> Effect {
    match text {
        "NoSchedule" => Effect::NoSchedule,
        "NoExecute" => Effect::NoExecute,
        "PreferNoSchedule" => Effect::PreferNoSchedule,
        _ => Effect::Other,
    }
}

/// A bound pod in the form of the tables.
#[derive(Clone, Debug, PartialEq)]
pub struct PodSpec {
    /// Identity.
    pub key: Str,
    /// Name.
    pub name: Str,
    /// Namespace.
    pub namespace: Str,
    /// Labels that other pods may share.
    pub labels: LabelsId,
    /// Labels that no other pod has.
    pub own: OwnLabels,
    /// All request variants.
    pub requests: PodRequests,
    /// Affinity terms that affect incoming pods.
    pub terms: Arc<[TermKey]>,
    /// Host ports.
    pub ports: Vec<HostPort>,
    /// Priority.
    pub priority: i32,
    /// Start time in nanoseconds.
    pub start_ns: i64,
    /// Being deleted.
    pub terminating: bool,
    /// Being deleted because of preemption.
    pub preempted: bool,
    /// Owned by a DaemonSet.
    pub daemon: bool,
    /// Protects the strings that it refers to.
    pub lease: Lease,
}

/// Labels that a controller gives to one pod alone. They distinguish otherwise equal pods, and
/// count only while some selector mentions them.
pub const OWN_KEYS: [&str; 3] = [
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "batch.kubernetes.io/job-completion-index",
];

/// Values of own labels, by position in `OWN_KEYS`.
pub type OwnLabels = Vec<(u8, Arc<str>)>;

/// Position of a key in `OWN_KEYS`.
#[must_use]
pub fn own_key(key: &str) -> Option<u8> {
    OWN_KEYS.iter().position(|own| *own == key).map(|at| at as u8)
}

/// A pod's labels: those that other pods may share, and its own.
pub fn split_labels(pod: &Pod, interner: &mut Interner) -> (LabelsId, OwnLabels) {
    let all = pod.metadata.labels.iter().flatten();
    (interner.intern_labels(all.filter(|(k, _)| own_key(k).is_none())), own_labels(pod))
}

fn own_labels(pod: &Pod) -> OwnLabels {
    let all = pod.metadata.labels.iter().flatten();
    all.filter_map(|(k, v)| Some((own_key(k)?, v.as_str().into()))).collect()
}

impl PodSpec {
    /// Parses a pod.
    ///
    /// # Errors
    /// It has no name, or an invalid quantity or selector.
    pub fn of(pod: &Pod, interner: &mut Interner) -> Result<Self, ObjectError> {
        let name = pod.metadata.name.as_deref().ok_or(ObjectError::NoName)?;
        let requests = PodRequests::of(pod)?;
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let namespace = interner.intern(namespace);
        let owners = pod.metadata.owner_references.iter().flatten();
        let (labels, own) = split_labels(pod, interner);
        Ok(Self {
            key: pod_key(pod, interner),
            name: interner.intern(name),
            namespace,
            labels,
            own,
            requests,
            terms: existing_terms(pod, namespace, interner)?.into(),
            ports: host_ports(pod, interner),
            priority: pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0),
            start_ns: start_ns(pod),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            preempted: is_preempted(pod),
            daemon: owners.filter(|o| o.controller == Some(true)).any(|o| o.kind == "DaemonSet"),
            lease: interner.lease(),
        })
    }

    /// Parses another pod of the same template.
    ///
    /// # Errors
    /// It has no name.
    pub(crate) fn like(&self, pod: &Pod, interner: &mut Interner) -> Result<Self, ObjectError> {
        let name = pod.metadata.name.as_deref().ok_or(ObjectError::NoName)?;
        Ok(Self {
            key: pod_key(pod, interner),
            name: interner.intern(name),
            namespace: self.namespace,
            labels: self.labels,
            own: own_labels(pod),
            requests: self.requests.clone(),
            terms: Arc::clone(&self.terms),
            ports: self.ports.clone(),
            priority: self.priority,
            start_ns: start_ns(pod),
            terminating: pod.metadata.deletion_timestamp.is_some(),
            preempted: is_preempted(pod),
            daemon: self.daemon,
            lease: interner.lease(),
        })
    }
}

fn start_ns(pod: &Pod) -> i64 {
    let start = pod.status.as_ref().and_then(|s| s.start_time.as_ref());
    start.map_or(NO_START, |t| i64::try_from(t.0.as_nanosecond()).unwrap_or(NO_START - 1))
}

/// Returns the identity of a pod: its uid, or namespace/name if it has none.
pub fn pod_key(pod: &Pod, interner: &mut Interner) -> Str {
    match pod.metadata.uid.as_deref() {
        Some(uid) if !uid.is_empty() => interner.intern(uid),
        _ => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
            let name = pod.metadata.name.as_deref().unwrap_or("");
            interner.intern(&format!("{namespace}/{name}"))
        }
    }
}

/// Returns true if a pod is being deleted because of preemption.
// k8s: defaultpreemption/default_preemption.go podTerminatingByPreemption
fn is_preempted(pod: &Pod) -> bool {
    let all = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let target = all.into_iter().flatten().find(|c| c.type_ == "DisruptionTarget");
    pod.metadata.deletion_timestamp.is_some()
        && target.is_some_and(|c| {
            c.status == "True" && c.reason.as_deref() == Some("PreemptionByScheduler")
        })
}

/// Returns true if a pod has ended: it no longer uses resources of its node.
#[must_use]
pub fn is_final(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Returns the host ports of containers and sidecars.
// k8s: pkg/scheduler/util/utils.go GetHostPorts
pub fn host_ports(pod: &Pod, interner: &mut Interner) -> Vec<HostPort> {
    let Some(spec) = pod.spec.as_ref() else { return Vec::new() };
    let sidecars = spec.init_containers.iter().flatten().filter(|c| is_sidecar(c));
    let containers = spec.containers.iter().chain(sidecars);
    let mut ports: Vec<HostPort> = containers
        .flat_map(|c| c.ports.iter().flatten())
        .filter_map(|p| {
            let port = p.host_port.filter(|p| *p > 0)?;
            let or = |text: &Option<String>, default: &str| {
                text.as_deref().filter(|t| !t.is_empty()).unwrap_or(default).to_owned()
            };
            let protocol = interner.intern(&or(&p.protocol, "TCP"));
            let ip = interner.intern(&or(&p.host_ip, "0.0.0.0"));
            Some(HostPort { protocol, ip, port })
        })
        .collect();
    ports.sort_unstable();
    ports.dedup();
    ports
}

/// Returns the namespaces of a term: its own list, or the pod's namespace if it has none.
// k8s: kube-scheduler/framework/types.go getNamespacesFromPodAffinityTerm
pub fn term_namespaces(term: &PodAffinityTerm, own: Str, interner: &mut Interner) -> Vec<Str> {
    let named = term.namespaces.as_deref().unwrap_or_default();
    if named.is_empty() && term.namespace_selector.is_none() {
        return vec![own];
    }
    let mut namespaces: Vec<Str> = named.iter().map(|n| interner.intern(n)).collect();
    namespaces.sort_unstable();
    namespaces.dedup();
    namespaces
}

/// Returns the affinity terms by which a pod affects other pods.
pub(crate) fn existing_terms(
    pod: &Pod,
    own: Str,
    interner: &mut Interner,
) -> Result<Vec<TermKey>, SelectorError> {
    let Some(affinity) = pod.spec.as_ref().and_then(|s| s.affinity.as_ref()) else {
        return Ok(Vec::new());
    };
    let mut found: Vec<(TermKind, &PodAffinityTerm)> = Vec::new();
    if let Some(a) = &affinity.pod_affinity {
        let required = a.required_during_scheduling_ignored_during_execution.iter().flatten();
        found.extend(required.map(|t| (TermKind::RequiredAffinity, t)));
        let preferred = a.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        found.extend(preferred.map(|t| (TermKind::Preferred(t.weight), &t.pod_affinity_term)));
    }
    if let Some(a) = &affinity.pod_anti_affinity {
        let required = a.required_during_scheduling_ignored_during_execution.iter().flatten();
        found.extend(required.map(|t| (TermKind::RequiredAnti, t)));
        let preferred = a.preferred_during_scheduling_ignored_during_execution.iter().flatten();
        found.extend(
            preferred
                .map(|t| (TermKind::Preferred(t.weight.saturating_neg()), &t.pod_affinity_term)),
        );
    }
    let mut last: Arc<[Str]> = Arc::default();
    let read = |(kind, term): (TermKind, &PodAffinityTerm)| {
        let namespaces = term_namespaces(term, own, interner);
        if *last != *namespaces {
            last = namespaces.into();
        }
        term_key(kind, term, Arc::clone(&last), interner)
    };
    found.into_iter().map(read).collect()
}

fn term_key(
    kind: TermKind,
    term: &PodAffinityTerm,
    namespaces: Arc<[Str]>,
    interner: &mut Interner,
) -> Result<TermKey, SelectorError> {
    Ok(TermKey {
        kind,
        scope: Scope::These(namespaces),
        namespaces: Selector::from_api(term.namespace_selector.as_ref(), interner)?,
        selector: Selector::from_api(term.label_selector.as_ref(), interner)?,
        topology: interner.intern(&term.topology_key),
    })
}
