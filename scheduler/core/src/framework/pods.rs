//! Whole pods and their nodes, for out-of-tree plugins.
//!
//! Input: observed pods, and each pod that is placed on a node or removed from it, assumed pods
//! included. Output: the same by uid and by node. Owner: shared by the cache and the plugins, on
//! one thread. Bounds: one object per pod; none if no plugin is enabled.
// k8s: staging/src/k8s.io/kube-scheduler/framework/listers.go SharedLister

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

/// All whole pods.
#[derive(Debug, Default)]
pub(crate) struct WholePods {
    known: RefCell<HashMap<String, Rc<Pod>>>,
    /// Uids with nodes.
    placed: RefCell<BTreeMap<String, Rc<str>>>,
}

impl WholePods {
    /// Stores an observed pod.
    pub(crate) fn set(&self, pod: &Pod) {
        if let Some(uid) = &pod.metadata.uid {
            self.known.borrow_mut().insert(uid.clone(), Rc::new(pod.clone()));
        }
    }

    /// Drops all pods, because the cluster is read again.
    pub(crate) fn forget_all(&self) {
        self.known.borrow_mut().clear();
        self.placed.borrow_mut().clear();
    }

    /// Drops a deleted pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.known.borrow_mut().remove(uid);
    }

    /// Places a pod on a node.
    pub(crate) fn place(&self, uid: &str, node: &str) {
        self.placed.borrow_mut().insert(uid.to_owned(), node.into());
    }

    /// Removes a pod from its node.
    pub(crate) fn take_away(&self, uid: &str) {
        self.placed.borrow_mut().remove(uid);
    }

    /// Returns a pod by its uid.
    pub(crate) fn get(&self, uid: &str) -> Option<Rc<Pod>> {
        self.known.borrow().get(uid).cloned()
    }

    /// Returns pods on nodes, assumed ones included, in the order of their uids.
    pub(crate) fn on_nodes(&self) -> Vec<(Rc<str>, Rc<Pod>)> {
        let placed = self.placed.borrow();
        placed.iter().filter_map(|(uid, node)| Some((Rc::clone(node), self.get(uid)?))).collect()
    }
}
