//! Pods as they were told, and on which nodes they count, for plugins of others.
//!
//! Input: pods that are told, and each that comes to a node or leaves it, assumed ones included. Output:
//! the same by uid and by node. Owner: shared by the mirror and the plugins, on one thread. Bounds: one
//! object a pod, and none where no plugin is enabled.
// k8s: staging/src/k8s.io/kube-scheduler/framework/listers.go SharedLister

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct WholePods {
    known: RefCell<HashMap<String, Rc<Pod>>>,
    /// Uids with nodes.
    placed: RefCell<BTreeMap<String, Rc<str>>>,
}

impl WholePods {
    /// A pod as it is told.
    pub(crate) fn set(&self, pod: &Pod) {
        if let Some(uid) = &pod.metadata.uid {
            self.known.borrow_mut().insert(uid.clone(), Rc::new(pod.clone()));
        }
    }

    /// Forgets all pods, because the cluster is read again.
    pub(crate) fn forget_all(&self) {
        self.known.borrow_mut().clear();
        self.placed.borrow_mut().clear();
    }

    /// A pod is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.known.borrow_mut().remove(uid);
    }

    /// A pod counts as on a node.
    pub(crate) fn place(&self, uid: &str, node: &str) {
        self.placed.borrow_mut().insert(uid.to_owned(), node.into());
    }

    /// It counts as on none.
    pub(crate) fn take_away(&self, uid: &str) {
        self.placed.borrow_mut().remove(uid);
    }

    /// A pod by its uid.
    pub(crate) fn get(&self, uid: &str) -> Option<Rc<Pod>> {
        self.known.borrow().get(uid).cloned()
    }

    /// Pods that count as on nodes, by uid.
    pub(crate) fn on_nodes(&self) -> Vec<(Rc<str>, Rc<Pod>)> {
        let placed = self.placed.borrow();
        placed.iter().filter_map(|(uid, node)| Some((Rc::clone(node), self.get(uid)?))).collect()
    }
}
