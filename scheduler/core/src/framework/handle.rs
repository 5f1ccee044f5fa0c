//! Services of the scheduler for plugins: pods that wait for Permit, another attempt, a client.
//!
//! Input: calls of plugins. Output: requests that the cycle handles. Owner: shared by all plugins
//! of one scheduler, on its thread. Bounds: pods with nodes.
// k8s: pkg/scheduler/framework/runtime/waiting_pods_map.go

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;

use super::Name;
use super::pods::WholePods;
use crate::uid::Uid;

/// A pod that has a node and waits for Permit.
#[derive(Clone, Debug)]
pub struct WaitingPod {
    /// The pod.
    pub pod: Rc<Pod>,
    /// The node.
    pub node: Rc<str>,
    /// Plugins that have not allowed it yet.
    pub pending: Vec<Name>,
}

/// A request of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PluginRequest {
    Allow { uid: String, plugin: String },
    Reject { uid: String, plugin: String, why: String },
    Activate(ObjectKey),
}

/// The scheduler as plugins see it.
#[derive(Clone, Default)]
pub struct Handle(Rc<HandleState>);

#[derive(Default)]
struct HandleState {
    waiting: RefCell<BTreeMap<Uid, WaitingPod>>,
    requests: RefCell<Vec<PluginRequest>>,
    wake: RefCell<Option<Box<dyn Fn()>>>,
    /// The client of the process, of a type that this crate does not know.
    client: RefCell<Option<Rc<dyn Any>>>,
    pods: Rc<WholePods>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").finish_non_exhaustive()
    }
}

impl Handle {
    /// Returns the pods that wait for Permit, by uid.
    #[must_use]
    pub fn waiting_pods(&self) -> Vec<WaitingPod> {
        self.0.waiting.borrow().values().cloned().collect()
    }

    /// Returns pods on nodes, those that are being bound included, each with its node.
    #[must_use]
    pub fn pods_on_nodes(&self) -> Vec<(Rc<str>, Rc<Pod>)> {
        self.0.pods.on_nodes()
    }

    pub(crate) fn pods(&self) -> &Rc<WholePods> {
        &self.0.pods
    }

    /// Allows a waiting pod in the name of a plugin. It is bound once every plugin it waits for
    /// has.
    pub fn allow(&self, uid: &str, plugin: &str) {
        self.ask(PluginRequest::Allow { uid: uid.to_owned(), plugin: plugin.to_owned() });
    }

    /// Rejects a waiting pod; it is retried on an event.
    pub fn reject(&self, uid: &str, plugin: &str, why: &str) {
        let (uid, plugin, why) = (uid.to_owned(), plugin.to_owned(), why.to_owned());
        self.ask(PluginRequest::Reject { uid, plugin, why });
    }

    /// Retries a pod without a node at once, whatever rejected it. A pod that is being decided is
    /// retried after its backoff.
    pub fn activate(&self, namespace: &str, name: &str) {
        self.ask(PluginRequest::Activate(ObjectKey::new(namespace, name)));
    }

    /// Returns the client that the process set, if it is of this type.
    #[must_use]
    pub fn client_of<C: Any + Clone>(&self) -> Option<C> {
        self.0.client.borrow().as_ref()?.downcast_ref::<C>().cloned()
    }

    /// Sets the client for plugins, and the function that is called on each request of a plugin.
    pub fn connect<C: Any + Clone>(&self, client: C, wake: Box<dyn Fn()>) {
        *self.0.client.borrow_mut() = Some(Rc::new(client));
        *self.0.wake.borrow_mut() = Some(wake);
    }

    pub(crate) fn waits(&self, uid: &Uid, pod: WaitingPod) {
        self.0.waiting.borrow_mut().insert(uid.clone(), pod);
    }

    pub(crate) fn waits_no_more(&self, uid: &str) {
        self.0.waiting.borrow_mut().remove(uid);
    }

    /// Drops all pods, because the cluster is read again.
    pub(crate) fn forget_pods(&self) {
        self.0.waiting.borrow_mut().clear();
        self.0.requests.borrow_mut().clear();
        self.0.pods.forget_all();
    }

    pub(crate) fn take_requests(&self) -> Vec<PluginRequest> {
        std::mem::take(&mut *self.0.requests.borrow_mut())
    }

    fn ask(&self, request: PluginRequest) {
        self.0.requests.borrow_mut().push(request);
        if let Some(wake) = &*self.0.wake.borrow() {
            wake();
        }
    }
}
