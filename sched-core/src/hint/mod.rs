//! Queueing hints: may an event make a rejected pod schedulable?
//!
//! Input: an event, a rejected pod, the plugin that rejected it. Output: yes or no. Owner: pure
//! functions over interned facts. Bounds: the requirements of one pod and the labels of one node.
//! Events are copied out of the tables when they happen, so that they can be replayed to a pod that
//! was in an attempt meanwhile.
// k8s: pkg/scheduler/framework/plugins/*: EventsToRegister and the isSchedulableAfter.. functions

mod node;
mod pod;
mod room;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::sync::Arc;

use crate::columns::counters::{CounterId, TermKey, TermKind};
use crate::columns::keys::KeyId;
use crate::columns::ports::HostPort;
use crate::config::Plugin;
use crate::intern::{Lease, Str};
use crate::program::{NodeOp, NodeRequirement, NodeTerm, Program, Spread};
use crate::requests::{PodRequests, Resources};
use crate::snapshot::objects::{NodeSpec, PodSpec};
use crate::snapshot::{Cluster, DeltaError};

type Labels = Arc<[(Str, Str)]>;

/// A pod on a node, or nominated to a node, as hints see it.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// Its identity.
    pub key: Str,
    /// It is being deleted.
    terminating: bool,
    namespace: Str,
    requests: PodRequests,
    ports: Vec<HostPort>,
    /// Its required anti-affinity.
    repels: Vec<TermKey>,
    /// Counters that count pods of its class.
    counters: Vec<CounterId>,
    /// Its priority, if it is only nominated: pods of higher priority may use the resources in any
    /// case.
    kept_for: Option<i32>,
    /// Names of the claims and disks that it uses, where these are known.
    volumes: Option<Rc<[String]>>,
}

impl PodFacts {
    /// Adds the names of claims and disks that the pod uses.
    #[must_use]
    pub fn with_volumes(mut self, names: Rc<[String]>) -> Self {
        self.volumes = Some(names);
        self
    }

    #[cfg(test)]
    pub(crate) fn counters_len(&self) -> usize {
        self.counters.len()
    }

    /// Names of the claims and disks that it uses, where these are known.
    #[must_use]
    pub fn volumes(&self) -> Option<&[String]> {
        self.volumes.as_deref()
    }

    /// Returns true if both count for as much on a node.
    #[must_use]
    pub fn asks_as(&self, other: &Self) -> bool {
        self.requests == other.requests
    }

    /// Converts to the facts of a nominated pod.
    #[must_use]
    pub fn kept_for(mut self, priority: i32) -> Self {
        self.kept_for = Some(priority);
        self
    }
}

/// Changed fields of a pending pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Its labels.
    pub labels: bool,
    /// Its tolerations.
    pub tolerations: bool,
    /// Its scheduling gates were removed.
    pub gates: bool,
    /// Its requests became smaller.
    pub requests: bool,
    /// ResourceClaims were created for it.
    pub claims: bool,
}

impl Changes {
    /// Returns true if a pod that this plugin rejected may pass it now.
    #[must_use]
    pub fn may_pass(self, rejector: Plugin) -> bool {
        pod::helps_itself(self, rejector)
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum HintEvent {
    /// A node was added, changed or deleted.
    Node {
        /// The node before; `None` if it was added.
        old: Option<Rc<NodeSpec>>,
        /// The node now; `None` if it was deleted.
        new: Option<Rc<NodeSpec>>,
    },
    /// A pod has a node.
    PodAdded(Rc<PodFacts>),
    /// A pod on a node changed.
    PodChanged(Rc<PodFacts>, Rc<PodFacts>),
    /// A pod on a node, or its nomination, was removed; the node.
    PodGone(Rc<PodFacts>, Rc<str>),
    /// The pending pod of this identity changed.
    Own(Str, Changes),
    /// A PersistentVolumeClaim was added or changed: namespace and name, and upstream's name of the
    /// event.
    Claim(Rc<str>, &'static str),
    /// A ResourceClaim was added or changed, likewise.
    ResourceClaim(Rc<str>, &'static str),
    /// A pod group, or a pending pod of it, was added: namespace and name of the group, and
    /// upstream's name of the event.
    Group(Rc<str>, &'static str),
    /// Another event: it may help pods rejected by these plugins; the second value is upstream's
    /// name of it.
    Other(&'static [Plugin], &'static str),
}

impl HintEvent {
    /// Returns the event of an added, changed or deleted node; `None` if the change cannot help any
    /// pod.
    #[must_use]
    pub fn of_node(old: Option<Rc<NodeSpec>>, new: Option<Rc<NodeSpec>>) -> Option<Self> {
        if let (Some(old), Some(new)) = (&old, &new) {
            node::change(old, new)?;
        }
        Some(Self::Node { old, new })
    }

    /// Returns upstream's name of it, for metrics; the first that applies if a node changed in
    /// several ways.
    // k8s: staging/src/k8s.io/kube-scheduler/framework/types.go ClusterEvent.Label
    #[must_use]
    pub fn label(&self) -> &'static str {
        match self {
            Self::Node { old: None, .. } => "NodeAdd",
            Self::Node { new: None, .. } => "NodeDelete",
            Self::Node { old: Some(old), new: Some(new) } => {
                node::change(old, new).unwrap_or("NodeUpdate")
            }
            Self::PodAdded(_) => "AssignedPodAdd",
            Self::PodChanged(old, new) => pod::change(old, new),
            Self::PodGone(..) => "AssignedPodDelete",
            Self::Own(_, Changes { gates: true, .. }) => {
                "UnschedulablePodUpdatePodSchedulingGatesEliminated"
            }
            Self::Own(_, Changes { requests: true, .. }) => "UnschedulablePodUpdatePodScaleDown",
            Self::Own(_, Changes { tolerations: true, .. }) => {
                "UnschedulablePodUpdatePodToleration"
            }
            Self::Own(_, Changes { claims: true, .. }) => {
                "UnschedulablePodUpdatePodGeneratedResourceClaim"
            }
            Self::Own(_, Changes { labels: true, .. }) => "UnschedulablePodUpdatePodLabel",
            Self::Own(..) => "UnschedulablePodUpdate",
            Self::Claim(_, label)
            | Self::ResourceClaim(_, label)
            | Self::Group(_, label)
            | Self::Other(_, label) => label,
        }
    }

    /// Returns true if a pod of this priority respected the resources that are freed now.
    // k8s: pkg/scheduler/eventhandlers.go getLEPriorityPreCheck
    #[must_use]
    pub fn concerns(&self, priority: i32) -> bool {
        match self {
            Self::PodGone(pod, _) => pod.kept_for.is_none_or(|of| priority <= of),
            _ => true,
        }
    }

    /// Returns true if an event of this kind can help any pod rejected by this plugin, without
    /// checking a pod.
    #[must_use]
    pub fn may_help(&self, rejector: Plugin) -> bool {
        use Plugin::{NodePorts, NodeResourcesFit};
        // The requirements of out-of-tree plugins and extenders are not known here.
        if Plugin::OTHERS.contains(&rejector) {
            return true;
        }
        if rejector == Plugin::GangScheduling {
            return matches!(self, Self::Group(..));
        }
        match self {
            Self::Node { .. } => rejector != Plugin::SchedulingGates,
            Self::PodAdded(_) => counts_pods(rejector),
            Self::PodChanged(..) => counts_pods(rejector) || rejector == NodeResourcesFit,
            Self::PodGone(..) => {
                counts_pods(rejector)
                    || matches!(rejector, NodeResourcesFit | NodePorts)
                    || pod::waits_for_users(rejector)
            }
            Self::Own(_, changes) => changes.may_pass(rejector),
            Self::Claim(..) => {
                pod::waits_for_users(rejector)
                    || matches!(rejector, Plugin::VolumeBinding | Plugin::VolumeZone)
            }
            Self::ResourceClaim(..) => rejector == Plugin::DynamicResources,
            Self::Group(..) => false,
            Self::Other(waiting, _) => waiting.contains(&rejector),
        }
    }
}

/// A rejected pod, as hints see it.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Its identity.
    pub key: Str,
    /// Its compiled requirements.
    pub program: Arc<Program>,
    namespace: Str,
    /// All labels, because a later pod may select by keys that no other pod uses.
    labels: Labels,
    namespace_labels: Labels,
    /// Protects the strings of its labels.
    _lease: Lease,
    /// Topology keys by number, ascending.
    topology: Vec<(KeyId, Str)>,
    /// The program lacks the counters of pods, because they are not kept: any event of pods may
    /// help.
    is_coarse: bool,
}

impl Rejected {
    fn topology(&self, key: KeyId) -> Option<Str> {
        let at = self.topology.binary_search_by_key(&key, |(id, _)| *id).ok()?;
        Some(self.topology[at].1)
    }
}

impl Cluster {
    /// Returns the facts that hints need about a pod on a node.
    pub fn facts(&mut self, spec: &PodSpec) -> PodFacts {
        let class = self.class_of(spec.namespace, spec.labels, &spec.own);
        PodFacts {
            key: spec.key,
            terminating: spec.terminating,
            namespace: spec.namespace,
            requests: spec.requests.clone(),
            ports: spec.ports.clone(),
            repels: required_anti(&spec.terms).cloned().collect(),
            counters: self.classes[class as usize].counters.clone(),
            kept_for: None,
            volumes: None,
        }
    }

    /// Returns the facts of a bound pod that is in the tables.
    #[must_use]
    pub fn facts_of(&self, pod: Str) -> Option<PodFacts> {
        let row = self.pods.get(self.pods.find(pod)?);
        let class = &self.classes[row.class as usize];
        let terms = self.pods.terms.get(row.terms).iter();
        let terms: Vec<TermKey> =
            terms.map(|t| self.view.counts.terms.get(t.0).key.clone()).collect();
        Some(PodFacts {
            key: pod,
            terminating: row.terminating,
            namespace: class.namespace?,
            requests: self.pods.requests.get(row.requests).clone(),
            ports: self.pods.ports.get(row.ports).clone(),
            repels: required_anti(&terms).cloned().collect(),
            counters: class.counters.clone(),
            kept_for: None,
            volumes: None,
        })
    }

    /// Returns the facts that hints need about a pending pod.
    ///
    /// # Errors
    /// When the pod cannot be read.
    pub fn rejected(
        &mut self,
        spec: &PodSpec,
        program: &Arc<Program>,
    ) -> Result<Rejected, DeltaError> {
        let labels = self.all_labels(spec.labels, &spec.own);
        let in_namespace = self.namespaces.get(&spec.namespace).copied();
        let namespace_labels =
            in_namespace.map(|id| Arc::clone(self.interner.labels(id))).unwrap_or_default();
        let spread = program.spread.hard.iter().map(|s| s.key);
        let attracted = program.pods.required.iter().flat_map(|(_, keys)| keys.iter().copied());
        let repelled = program.pods.anti.iter().map(|(_, key)| *key);
        let mut keys: Vec<KeyId> = spread.chain(attracted).chain(repelled).collect();
        keys.sort_unstable();
        keys.dedup();
        let named = |key: KeyId| (key, self.view.keys.column(key).name);
        let is_coarse = program.is_passing;
        let topology = keys.into_iter().filter(|_| !is_coarse).map(named).collect();
        let program = match is_coarse {
            true => Arc::new(program.without_counters()),
            false => Arc::clone(program),
        };
        Ok(Rejected {
            key: spec.key,
            program,
            namespace: spec.namespace,
            labels,
            namespace_labels,
            _lease: self.interner.lease(),
            topology,
            is_coarse,
        })
    }

    /// Returns true if what happened may let a pod pass the plugin that rejected it.
    #[must_use]
    pub fn helps(&self, event: &HintEvent, pod: &Rejected, rejector: Plugin) -> bool {
        match event {
            _ if Plugin::OTHERS.contains(&rejector) => true,
            _ if rejector == Plugin::GangScheduling => event.may_help(rejector),
            _ if pod.is_coarse && counts_pods(rejector) => event.may_help(rejector),
            HintEvent::Node { old, new } => {
                node::helps(self, (old.as_deref(), new.as_deref()), pod, rejector)
            }
            HintEvent::PodAdded(new) => pod::helps_added(new, pod, rejector),
            HintEvent::PodChanged(old, new) => pod::helps_changed(old, new, pod, rejector),
            HintEvent::PodGone(old, _) => pod::helps_gone(self, old, pod, rejector),
            HintEvent::Own(key, changes) => {
                *key == pod.key && pod::helps_itself(*changes, rejector)
            }
            // The owner of the pod object compares claims and groups.
            HintEvent::Claim(..) | HintEvent::ResourceClaim(..) | HintEvent::Group(..) => {
                event.may_help(rejector)
            }
            HintEvent::Other(waiting, _) => waiting.contains(&rejector),
        }
    }
}

/// Returns true if a plugin counts pods by labels.
fn counts_pods(plugin: Plugin) -> bool {
    matches!(plugin, Plugin::PodTopologySpread | Plugin::InterPodAffinity)
}

fn required_anti(terms: &[TermKey]) -> impl Iterator<Item = &TermKey> {
    terms.iter().filter(|term| term.kind == TermKind::RequiredAnti)
}
