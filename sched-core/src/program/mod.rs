//! A pod, compiled: its constraints as operations on columns.
//!
//! Input: an API pod and the cluster it asks to enter. Output: a `Program`, shared by all pods that
//! are equal to the scheduler (same signature). Owner: `Cluster::compile`; programs are immutable.
//! Bounds: as large as the pod's constraints. A program stays valid while nodes and pods come and
//! go, but for what `View::is_current` says; it does not follow changes of namespaces and
//! workloads. Why: names are looked up once, and a decision is arithmetic on columns only.

pub(crate) mod node_terms;

use crate::columns::counters::CounterId;
use crate::columns::keys::KeyId;
use crate::columns::ports::HostPort;
use crate::columns::taints::{Effect, NodeTaint};
use crate::intern::{Lease, Str};
use crate::requests::PodRequests;

/// Operator of a toleration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TolerationOp {
    Equal,
    Exists,
    /// The taint's value is a number above this one.
    Above(i64),
    /// The taint's value is a number below this one.
    Below(i64),
    /// An unknown or disabled operator, or one without a number to compare with: tolerates nothing.
    Never,
}

/// A toleration.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Toleration {
    pub(crate) key: Option<Str>,
    pub(crate) op: TolerationOp,
    pub(crate) value: Str,
    pub(crate) effect: Option<Effect>,
}

impl Toleration {
    /// Returns true if it tolerates a taint.
    // k8s: staging/src/k8s.io/api/core/v1/toleration.go ToleratesTaint
    #[must_use]
    pub fn tolerates(&self, taint: &NodeTaint) -> bool {
        self.effect.is_none_or(|e| e == taint.effect)
            && self.key.is_none_or(|k| k == taint.key)
            && match self.op {
                TolerationOp::Equal => self.value == taint.value,
                TolerationOp::Exists => true,
                TolerationOp::Above(limit) => taint.number.is_some_and(|n| n > limit),
                TolerationOp::Below(limit) => taint.number.is_some_and(|n| n < limit),
                TolerationOp::Never => false,
            }
    }

    /// Returns true if it counts when soft taints are scored.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        self.effect.is_none_or(|e| e == Effect::PreferNoSchedule)
    }
}

/// Operator of a node requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NodeOp {
    /// Present and one of these.
    In(Box<[Str]>),
    /// Absent or none of these.
    NotIn(Box<[Str]>),
    /// Present.
    Exists,
    /// Absent.
    NotExists,
    /// An integer above.
    Above(i64),
    /// An integer below.
    Below(i64),
}

/// A requirement on a node's label, or on its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeRequirement {
    /// Label key; `None` for the node's name.
    pub key: Option<Str>,
    /// The operator.
    pub op: NodeOp,
}

/// Requirements that must all hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeTerm(pub Box<[NodeRequirement]>);

/// Required node affinity: any of these terms.
pub type NodeTerms = Box<[NodeTerm]>;

/// Preferred terms with weights.
pub type WeightedTerms = Box<[(i64, NodeTerm)]>;

/// Pods that meet all required affinity terms, and the topology keys of the terms.
pub type Attraction = (CounterId, Box<[KeyId]>);

/// Weight a matching pod, negative to repel, and where it counts.
pub type Pull = (i64, CounterId, KeyId);

/// A topology spread constraint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Topology key.
    pub key: KeyId,
    /// The key is the hostname: counted by node.
    pub hostname: bool,
    /// Allowed skew.
    pub max_skew: i64,
    /// Below so many domains the minimum is zero.
    pub min_domains: i64,
    /// Only nodes that the pod's node affinity admits count.
    pub honor_affinity: bool,
    /// True if only nodes with tolerated taints count.
    pub honor_taints: bool,
    /// The pods it counts.
    pub counter: CounterId,
    /// The pod counts itself.
    pub self_match: bool,
    /// Selects every pod, and therefore (upstream's rule) counts none.
    pub everything: bool,
}

/// What a pod asks of the labels and fields of nodes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NodeAffinityProgram {
    /// Node selector and required affinity; both must hold.
    pub selector: Box<[NodeRequirement]>,
    /// Any of these terms, when there is required affinity at all.
    pub required: Option<NodeTerms>,
    /// Required affinity of the profile.
    pub added: Option<NodeTerms>,
    /// Names to which required affinity restricts the nodes, if the profile filters by it; empty
    /// means a conflict.
    pub subset: Option<Box<[Str]>>,
    /// Preferred node affinity with weights; `None` when there is none at all.
    pub preferred: Option<WeightedTerms>,
    /// Error of preferred affinity, which cannot be scored then.
    pub preferred_error: Option<String>,
}

/// Topology spread of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SpreadProgram {
    /// Hard constraints.
    pub hard: Box<[Spread]>,
    /// Soft constraints.
    pub soft: Box<[Spread]>,
    /// Nodes that lack a soft topology key are left out of the score.
    pub requires_all: bool,
}

/// Affinity of a pod to other pods.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PodAffinityProgram {
    /// Required affinity: pods meeting all terms, and the keys of the terms.
    pub required: Option<Attraction>,
    /// The pod meets its own affinity terms.
    pub meets_own: bool,
    /// Required anti-affinity.
    pub anti: Box<[(CounterId, KeyId)]>,
    /// Preferred affinity (positive) and anti-affinity (negative).
    pub preferred: Box<[Pull]>,
    /// Once placed, the pod affects other pods by its affinity terms.
    pub carries_terms: bool,
}

/// A compiled pod. Its parts are nested by value: filters read them without a further pointer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// Class of namespace and labels.
    pub class: u32,
    /// Error that ends the cycle before filters, in upstream's words.
    pub error: Option<String>,
    /// Scheduling gates that hold the pod back.
    pub gates: Box<[String]>,
    /// The node it specifies.
    pub node_name: Option<Str>,
    /// Tolerations.
    pub tolerations: Box<[Toleration]>,
    /// Tolerates cordoned nodes.
    pub tolerates_unschedulable: bool,
    /// Rules about the labels and fields of nodes.
    pub node_affinity: NodeAffinityProgram,
    /// Host ports.
    pub ports: Box<[HostPort]>,
    /// Requests.
    pub requests: PodRequests,
    /// Extended resources that the filter checks, sorted by name.
    pub scalars: Box<[(Str, i64)]>,
    /// Extended resources that device classes offer: nodes that do not list them may have devices
    /// instead.
    pub delegated: Box<[(Str, i64)]>,
    /// Names of `requests.plain.scalars`, in its order.
    pub scalar_ids: Box<[Str]>,
    /// Images, normalised.
    pub images: Box<[Str]>,
    /// Containers that the image score divides by.
    pub image_containers: i64,
    /// Topology spread.
    pub spread: SpreadProgram,
    /// Affinity to other pods.
    pub pods: PodAffinityProgram,
    /// Features the node must declare.
    pub features: Box<[Str]>,
    /// Its counters are freed with it.
    pub(crate) is_passing: bool,
    /// `CounterColumns::own_keys_version` at compile time.
    pub(crate) own_keys_version: u32,
    /// Protects the strings that it refers to.
    pub(crate) lease: Lease,
}

impl Program {
    /// Returns a copy without counters of pods.
    pub(crate) fn without_counters(&self) -> Self {
        Self {
            spread: SpreadProgram {
                hard: Box::default(),
                soft: Box::default(),
                requires_all: self.spread.requires_all,
            },
            pods: PodAffinityProgram {
                required: None,
                meets_own: self.pods.meets_own,
                anti: Box::default(),
                preferred: Box::default(),
                carries_terms: self.pods.carries_terms,
            },
            is_passing: false,
            ..self.clone()
        }
    }
}
