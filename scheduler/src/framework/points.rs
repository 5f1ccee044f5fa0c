//! The extension points: what a plugin may be asked, a trait for each.
//!
//! Owner: nobody; contracts alone. All are called on the thread that decides, so that they must not
//! block it: what takes long is `PreBind` or `Bind`, which are asynchronous.
// k8s: staging/src/k8s.io/kube-scheduler/framework/interface.go

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_sched_core::snapshot::chunk::Numbers;

/// Why a plugin says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// Not this node as it is, or not now: other pods that go may help, so that preemption is tried.
    Unschedulable(String),
    /// Whatever other pods do, it stays so.
    Unresolvable(String),
    /// The plugin itself failed: the pod is tried again after a while.
    Error(String),
}

/// What plugins keep of one attempt of one pod, by type. It lives until the pod is bound or the
/// attempt has failed.
#[derive(Default)]
pub struct CycleState(RefCell<HashMap<TypeId, Rc<dyn Any>>>);

impl CycleState {
    /// The same values once more: what is replaced there stays here.
    pub(super) fn copy(&self) -> Self {
        Self(RefCell::new(self.0.borrow().clone()))
    }

    /// Keeps a value; one of the same type is replaced.
    pub fn write<T: 'static>(&self, value: T) {
        self.0.borrow_mut().insert(TypeId::of::<T>(), Rc::new(value));
    }

    /// The value of this type, if one was kept.
    pub fn read<T: 'static>(&self) -> Option<Rc<T>> {
        Rc::clone(self.0.borrow().get(&TypeId::of::<T>())?).downcast().ok()
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CycleState").finish_non_exhaustive()
    }
}

/// A node that is looked at.
#[derive(Clone, Copy, Debug)]
pub struct NodeInfo<'a> {
    /// As the API has it.
    pub node: &'a Node,
    /// What it has and what pods ask for there, those that are being bound included: milli-CPUs,
    /// bytes, pods.
    pub numbers: Numbers,
}

impl NodeInfo<'_> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// Whether a pod may enter the queue of those that are decided.
pub trait PreEnqueue {
    /// Asked when a pod comes, changes, or something happens that [`EnqueueExtensions`] says may help.
    ///
    /// # Errors
    /// Why it has to wait.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), String>;
}

/// In which order pods are decided. One plugin at most, the same in all profiles.
pub trait QueueSort {
    /// Pods of a lower rank go first; of equal ones, who has waited longest. Upstream compares two
    /// pods; ranks cannot contradict each other.
    fn rank(&self, pod: &Pod) -> i64;
}

/// The nodes that a plugin leaves before it looks at any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// All of them.
    All,
    /// These alone; the others count as unresolvable.
    Only(BTreeSet<String>),
    /// All, and its `Filter` has nothing to say of this pod.
    Skip,
}

/// Prepares an attempt.
pub trait PreFilter {
    /// Asked once an attempt.
    ///
    /// # Errors
    /// Why no node would do. Preemption is tried where other pods that go may help: `Filter`, which was
    /// not asked before, then says of each node whether they do.
    fn pre_filter(&self, state: &CycleState, pod: &Pod) -> Result<Nodes, Rejection>;

    /// Who follows pods that come and go in thought. Does nothing unless it is given.
    fn extensions(&self) -> Option<&dyn PreFilterExtensions> {
        None
    }
}

/// Follows pods that count as on a node, or as gone from it, while that node is tried: room that is
/// kept for pods of the same or a higher priority, and pods that would go for this one. Each node
/// has a copy of the state, in which values are replaced by `write`, not changed.
pub trait PreFilterExtensions {
    /// `other` counts as on the node.
    ///
    /// # Errors
    /// When it fails; the node is not taken, or who was to stay there goes.
    fn add_pod(
        &self,
        state: &CycleState,
        pod: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection>;

    /// `other` counts as gone from the node.
    ///
    /// # Errors
    /// When it fails; the node is not taken.
    fn remove_pod(
        &self,
        state: &CycleState,
        pod: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection>;
}

/// Whether a node would take a pod.
pub trait Filter {
    /// Asked for each node that passes all of upstream's filters, and again when it is said why nodes
    /// do not take the pod.
    ///
    /// # Errors
    /// Why it would not.
    fn filter(&self, state: &CycleState, pod: &Pod, node: &NodeInfo<'_>) -> Result<(), Rejection>;
}

/// What may be done for a pod that no node takes, when preemption found nobody.
pub trait PostFilter {
    /// Asked with the sentence that says why. A node's name keeps room for the pod there.
    ///
    /// # Errors
    /// What to add to the sentence. If that is more than `Unschedulable`, nobody else is asked, and it
    /// is said in the place of what others said of room.
    fn post_filter(
        &self,
        state: &CycleState,
        pod: &Pod,
        why: &str,
    ) -> Result<Option<String>, Rejection>;
}

/// Prepares scoring.
pub trait PreScore {
    /// Asked once an attempt, with the nodes that are left; `false` when its `Score` has nothing to say
    /// of this pod.
    ///
    /// # Errors
    /// When it fails; the pod is tried again after a while.
    fn pre_score(
        &self,
        state: &CycleState,
        pod: &Pod,
        nodes: &[NodeInfo<'_>],
    ) -> Result<bool, String>;
}

/// How good a node is.
pub trait Score {
    /// Of one node that is left.
    ///
    /// # Errors
    /// When it fails; the pod is tried again after a while.
    fn score(&self, state: &CycleState, pod: &Pod, node: &NodeInfo<'_>) -> Result<i64, String>;

    /// Brings the scores of all nodes, in one order, to 0..=100. Does nothing unless it is given.
    fn normalize(&self, _state: &CycleState, _pod: &Pod, _scores: &mut [i64]) {}
}

/// What a plugin keeps account of itself.
pub trait Reserve {
    /// A node was chosen.
    ///
    /// # Errors
    /// Why it cannot be this one.
    fn reserve(&self, state: &CycleState, pod: &Pod, node: &str) -> Result<(), Rejection>;

    /// It is not to be this node after all. Also called when `reserve` of another plugin failed, and
    /// so perhaps without one of its own before; must not fail.
    fn unreserve(&self, state: &CycleState, pod: &Pod, node: &str);
}

/// What `Permit` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Bind it.
    Granted,
    /// Wait until [`Handle::allow`](super::Handle::allow), at most so long (15 minutes are the most).
    Wait(Duration),
}

/// Whether and when a pod with a node may be bound.
pub trait Permit {
    /// Asked once the node is reserved.
    ///
    /// # Errors
    /// Why it may not.
    fn permit(&self, state: &CycleState, pod: &Pod, node: &str) -> Result<Permission, Rejection>;
}

/// What has to be done before a pod is bound.
pub trait PreBind {
    /// Runs beside decisions; a second call for the same pod may follow when it or a later step fails.
    /// An error names what failed; the pod is tried again after a while.
    fn pre_bind<'a>(
        &'a self,
        state: &'a CycleState,
        pod: &'a Pod,
        node: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), String>>;
}

/// Binds pods itself.
pub trait Bind {
    /// `None` leaves it to the next one. Runs beside decisions.
    fn bind<'a>(
        &'a self,
        state: &'a CycleState,
        pod: &'a Pod,
        node: &'a str,
    ) -> LocalBoxFuture<'a, Option<Result<(), String>>>;
}

/// Is told of pods that were bound.
pub trait PostBind {
    /// The API server has taken the binding.
    fn post_bind(&self, state: &CycleState, pod: &Pod, node: &str);
}

/// What happened in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A node came.
    NodeAdded,
    /// A node is another one than before.
    NodeChanged,
    /// A node is gone.
    NodeGone,
    /// A pod has a node.
    PodAdded,
    /// A pod on a node is another one than before.
    PodChanged,
    /// A pod on a node is gone, or lost the room that was kept for it.
    PodGone,
    /// The pod that waits is another one than before.
    Itself,
    /// Volumes, claims, classes.
    Other,
}

/// What may help a pod that a plugin rejected. A plugin without it has its pods tried again
/// whatever happens.
pub trait EnqueueExtensions {
    /// Whether it is worth another attempt.
    fn may_help(&self, pod: &Pod, happened: Happened) -> bool;
}
