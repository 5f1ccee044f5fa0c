//! Extension points of the scheduling framework: one trait for each.
//!
//! Owner: none; traits alone. All methods run on the deciding thread and must not block it. Slow
//! work belongs in `PreBind` or `Bind`, which are asynchronous.
// k8s: staging/src/k8s.io/kube-scheduler/framework/interface.go

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod};
use pintle_sched_core::chunk::Numbers;

/// The reason for a plugin's rejection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The node does not fit as it is now: fewer pods may help, so preemption is tried.
    Unschedulable(String),
    /// Preemption cannot help.
    Unresolvable(String),
    /// The plugin itself failed: the pod is retried after its backoff.
    Error(String),
}

/// A failure of a plugin, or its reason to refuse, in its own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PluginError(Box<str>);

impl PluginError {
    /// The error with this message.
    pub fn new(message: impl Into<Box<str>>) -> Self {
        Self(message.into())
    }
}

/// State of plugins during one attempt of one pod, by type. It lives until the pod is bound or the
/// attempt has failed.
#[derive(Default)]
pub struct CycleState(RefCell<HashMap<TypeId, Rc<dyn Any>>>);

impl CycleState {
    /// A copy with the same values: writes to it do not change the original.
    pub(super) fn copy(&self) -> Self {
        Self(RefCell::new(self.0.borrow().clone()))
    }

    /// Stores a value; it replaces one of the same type.
    pub fn write<T: 'static>(&self, value: T) {
        self.0.borrow_mut().insert(TypeId::of::<T>(), Rc::new(value));
    }

    /// Returns the value of this type, if there is one.
    pub fn read<T: 'static>(&self) -> Option<Rc<T>> {
        Rc::clone(self.0.borrow().get(&TypeId::of::<T>())?).downcast().ok()
    }
}

impl fmt::Debug for CycleState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CycleState").finish_non_exhaustive()
    }
}

/// The node under evaluation.
#[derive(Clone, Copy, Debug)]
pub struct NodeInfo<'a> {
    /// The object in the API.
    pub node: &'a Node,
    /// Its allocatable resources and the requests of its pods, those that are being bound included:
    /// milli-CPUs, bytes, pods.
    pub numbers: Numbers,
}

impl NodeInfo<'_> {
    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the value of a label.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }
}

/// Gates pods before they enter the active queue.
pub trait PreEnqueue {
    /// Called when a pod is added or changed, and on events that may help it by
    /// [`EnqueueExtensions`].
    ///
    /// # Errors
    /// The reason why the pod is gated.
    fn pre_enqueue(&self, pod: &Pod) -> Result<(), PluginError>;
}

/// Orders the queue. At most one plugin, the same in all profiles.
pub trait QueueSort {
    /// Pods of a lower rank are popped first; among equal ranks the longest wait. Upstream compares
    /// two pods; ranks cannot contradict each other.
    fn rank(&self, pod: &Pod) -> i64;
}

/// The nodes that a PreFilter plugin allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes {
    /// All nodes.
    All,
    /// These alone; all others are unresolvable.
    Only(BTreeSet<String>),
    /// All nodes, and the plugin's `Filter` is skipped for this pod.
    Skip,
}

/// Runs before nodes are filtered, and may reject the pod or restrict the nodes.
pub trait PreFilter {
    /// Called once per attempt.
    ///
    /// # Errors
    /// The reason why no node fits. After `Unschedulable` preemption is tried: `Filter`, which did
    /// not run before, then decides for each node.
    fn pre_filter(&self, state: &CycleState, pod: &Pod) -> Result<Nodes, Rejection>;

    /// Returns the extensions that follow pods added and removed in dry runs. Default: none.
    fn extensions(&self) -> Option<&dyn PreFilterExtensions> {
        None
    }
}

/// Follows pods that a dry run adds to the node under evaluation or removes from it: nominated pods
/// of the same or a higher priority, and potential victims. Each node has a copy of the state, in
/// which values are replaced by `write`, not changed.
pub trait PreFilterExtensions {
    /// A dry run adds `other` to the node.
    ///
    /// # Errors
    /// When it fails: the node is rejected, or a victim that was to be reprieved remains a victim.
    fn add_pod(
        &self,
        state: &CycleState,
        pod: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection>;

    /// A dry run removes `other` from the node.
    ///
    /// # Errors
    /// When it fails: the node is rejected.
    fn remove_pod(
        &self,
        state: &CycleState,
        pod: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection>;
}

/// Rejects nodes for a pod.
pub trait Filter {
    /// Called for each node that passes all in-tree filters, and again when the rejections of nodes
    /// are explained.
    ///
    /// # Errors
    /// The reason why the node does not fit.
    fn filter(&self, state: &CycleState, pod: &Pod, node: &NodeInfo<'_>) -> Result<(), Rejection>;
}

/// Runs for a pod that fits on no node, when preemption found no victims.
pub trait PostFilter {
    /// Called with the message of the rejection. If it returns a node's name, the pod is nominated
    /// to it.
    ///
    /// # Errors
    /// The text to append to the message. After any rejection but `Unschedulable` no further plugin
    /// is called, and its text replaces those of the plugins before it.
    fn post_filter(
        &self,
        state: &CycleState,
        pod: &Pod,
        why: &str,
    ) -> Result<Option<String>, Rejection>;
}

/// Runs before nodes are scored.
pub trait PreScore {
    /// Called once per attempt, with the feasible nodes; returns `false` if its `Score` is to be
    /// skipped for this pod.
    ///
    /// # Errors
    /// When it fails; the pod is retried after its backoff.
    fn pre_score(
        &self,
        state: &CycleState,
        pod: &Pod,
        nodes: &[NodeInfo<'_>],
    ) -> Result<bool, PluginError>;
}

/// Scores nodes.
pub trait Score {
    /// Returns the score of one feasible node.
    ///
    /// # Errors
    /// When it fails; the pod is retried after its backoff.
    fn score(&self, state: &CycleState, pod: &Pod, node: &NodeInfo<'_>)
    -> Result<i64, PluginError>;

    /// Normalizes the scores of all nodes, in one order, to 0..=100. Default: no change.
    fn normalize(&self, _state: &CycleState, _pod: &Pod, _scores: &mut [i64]) {}
}

/// Maintains a plugin's own account of reservations.
pub trait Reserve {
    /// A node was selected.
    ///
    /// # Errors
    /// The reason why the pod cannot have this node.
    fn reserve(&self, state: &CycleState, pod: &Pod, node: &str) -> Result<(), Rejection>;

    /// Reverts `reserve`. Also called when `reserve` of another plugin failed, and so possibly
    /// without an earlier `reserve` of this plugin; must not fail.
    fn unreserve(&self, state: &CycleState, pod: &Pod, node: &str);
}

/// The answer of `Permit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// The pod may be bound now.
    Granted,
    /// Wait for [`Handle::allow`](super::Handle::allow), at most this long (and at most 15
    /// minutes).
    Wait(Duration),
}

/// Allows, delays or rejects the binding of a pod that has a node.
pub trait Permit {
    /// Called once the node is reserved.
    ///
    /// # Errors
    /// The reason why the pod may not be bound.
    fn permit(&self, state: &CycleState, pod: &Pod, node: &str) -> Result<Permission, Rejection>;
}

/// Runs before a pod is bound.
pub trait PreBind {
    /// Runs concurrently with decisions. A second call for the same pod may follow when it or a
    /// later step fails. An error names the failure; the pod is retried after its backoff.
    fn pre_bind<'a>(
        &'a self,
        state: &'a CycleState,
        pod: &'a Pod,
        node: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), PluginError>>;
}

/// Binds pods itself.
pub trait Bind {
    /// `None` leaves the pod to the next plugin. Runs concurrently with decisions.
    fn bind<'a>(
        &'a self,
        state: &'a CycleState,
        pod: &'a Pod,
        node: &'a str,
    ) -> LocalBoxFuture<'a, Option<Result<(), PluginError>>>;
}

/// Runs after a pod was bound.
pub trait PostBind {
    /// The API server has accepted the binding.
    fn post_bind(&self, state: &CycleState, pod: &Pod, node: &str);
}

/// A cluster event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// A node was added.
    NodeAdded,
    /// A node changed.
    NodeChanged,
    /// A node was deleted.
    NodeGone,
    /// A pod got a node.
    PodAdded,
    /// A pod on a node changed.
    PodChanged,
    /// A pod on a node was deleted or ended, or its nomination ended.
    PodGone,
    /// The pending pod itself changed.
    Itself,
    /// Volumes, claims, classes.
    Other,
}

/// Queueing hint of a plugin. Pods that a plugin without it rejected are retried on any event.
pub trait EnqueueExtensions {
    /// Returns true if the event may help the pod.
    fn may_help(&self, pod: &Pod, happened: Happened) -> bool;
}
