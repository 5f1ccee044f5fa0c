//! Store of pending pods: recently used ones as objects, all others as compressed text.
//!
//! Input: a pod from a watch. Output: the same pod, on demand. Owner: one thread; the shelf is
//! shared by all its pods. An object of the API takes 7 KB, its text a tenth of that, its
//! difference from another pod of its workload a tenth of the text; and of ten thousand pending
//! pods each is read only now and then. Bounds: `WHOLE_MAX` objects in addition to those that
//! events ask about, and those that callers hold.

use std::cell::{OnceCell, RefCell};
use std::collections::VecDeque;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::snapshot::objects::PodSpec;

use crate::declared::Declaration;
use crate::packed::{Packed, Packer};

/// Pods kept as objects without a caller that holds them.
const WHOLE_MAX: usize = 256;

/// Pods stored as objects, the one unpacked first at the front.
type Whole = VecDeque<Weak<KeptPod>>;

/// Store of pending pods.
#[derive(Clone, Debug, Default)]
pub struct Shelf {
    whole: Rc<RefCell<Whole>>,
    packer: Rc<RefCell<Packer>>,
    /// Keeps every pod as an object, because all are accessed all the time.
    keeps_all: bool,
}

/// A pod without a node.
#[derive(Debug)]
pub struct KeptPod {
    whole: RefCell<Option<Rc<Pod>>>,
    text: OnceCell<Packed>,
    shelf: Shelf,
    own: Weak<Self>,
    spec: Rc<PodSpec>,
    declares: Arc<Declaration>,
    uid: Option<Box<str>>,
    version: Option<Box<str>>,
    nominated: Option<Box<str>>,
}

impl Shelf {
    /// Creates a store that keeps all pods as objects.
    #[must_use]
    pub fn of_objects() -> Self {
        Self { keeps_all: true, ..Self::default() }
    }

    /// Stores a pod with its parsed spec.
    pub fn keep(&self, pod: Pod, spec: Rc<PodSpec>, declares: Arc<Declaration>) -> Rc<KeptPod> {
        let packs = !self.keeps_all && !uses_claims(&pod);
        let nominated = pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref());
        let nominated = nominated.filter(|name| !name.is_empty()).map(Box::from);
        let text = |text: &Option<String>| text.as_deref().map(Box::from);
        let (uid, version) = (text(&pod.metadata.uid), text(&pod.metadata.resource_version));
        let kept = Rc::new_cyclic(|own| KeptPod {
            whole: RefCell::new(Some(Rc::new(pod))),
            text: OnceCell::new(),
            shelf: self.clone(),
            own: Weak::clone(own),
            spec,
            declares,
            uid,
            version,
            nominated,
        });
        if packs {
            self.record_whole(&kept);
        }
        kept
    }

    /// Records that a pod is an object; the oldest one is packed.
    fn record_whole(&self, pod: &Rc<KeptPod>) {
        let mut whole = self.whole.borrow_mut();
        whole.push_back(Rc::downgrade(pod));
        if whole.len() > WHOLE_MAX
            && let Some(first) = whole.pop_front().and_then(|first| first.upgrade())
        {
            first.pack();
        }
    }
}

impl KeptPod {
    /// Returns the parsed spec.
    pub fn spec(&self) -> &Rc<PodSpec> {
        &self.spec
    }

    /// Returns the resources that it declares.
    pub fn declares(&self) -> &Arc<Declaration> {
        &self.declares
    }

    /// Its uid.
    pub fn uid(&self) -> Option<&str> {
        self.uid.as_deref()
    }

    /// Its version.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the node nominated in the pod's status.
    pub fn nominated_node(&self) -> Option<&str> {
        self.nominated.as_deref()
    }

    /// Returns the pod as the watch delivered it.
    pub fn whole(&self) -> Rc<Pod> {
        if let Some(pod) = &*self.whole.borrow() {
            return Rc::clone(pod);
        }
        let text = self.text.get().map(Packed::text).unwrap_or_default();
        let pod = serde_json::from_slice::<Pod>(&text).expect("what was written from a pod");
        let pod = Rc::new(pod);
        *self.whole.borrow_mut() = Some(Rc::clone(&pod));
        if let Some(own) = self.own.upgrade() {
            self.shelf.record_whole(&own);
        }
        pod
    }

    fn pack(&self) {
        let mut whole = self.whole.borrow_mut();
        if let Some(pod) = &*whole {
            self.text.get_or_init(|| {
                let text = serde_json::to_vec(&**pod).expect("a pod has names for keys");
                self.shelf.packer.borrow_mut().pack(whose(pod), &text)
            });
        }
        *whole = None;
    }
}

impl PartialEq for KeptPod {
    fn eq(&self, other: &Self) -> bool {
        self.whole() == other.whole()
    }
}

/// Returns the key of pods with similar text: the controller's UID, or else the namespace.
fn whose(pod: &Pod) -> &str {
    let owners = pod.metadata.owner_references.iter().flatten();
    let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    controller.map_or(namespace, |owner| &owner.uid)
}

/// Does every event of a claim check this pod's volumes or ResourceClaims?
fn uses_claims(pod: &Pod) -> bool {
    let spec = pod.spec.as_ref();
    spec.is_some_and(|spec| spec.volumes.is_some() || spec.resource_claims.is_some())
}

#[cfg(test)]
mod tests {
    use pintle_sched_core::{Cluster, Profile};
    use serde_json::json;

    use super::*;

    fn pod(at: usize, spec: serde_json::Value) -> Pod {
        let pod = json!({
            "metadata": {"name": format!("p{at}"), "namespace": "d", "uid": "u",
                "creationTimestamp": "2024-01-01T00:00:00Z", "labels": {"a": "b"}},
            "spec": spec,
            "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": "m",
                "lastTransitionTime": "2024-01-01T00:00:00Z"}]}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn plain(at: usize) -> Pod {
        let requests = json!({"requests": {"cpu": "1", "memory": "1Gi"}});
        let selector = json!([{"maxSkew": 1, "topologyKey": "zone", "labelSelector": {},
            "whenUnsatisfiable": "DoNotSchedule"}]);
        pod(
            at,
            json!({"containers": [{"name": "c", "resources": requests}],
            "topologySpreadConstraints": selector, "tolerations": [{"operator": "Exists"}]}),
        )
    }

    fn keep(shelf: &Shelf, pod: Pod) -> Rc<KeptPod> {
        let spec = Cluster::new(Profile::default()).read_pod(&pod).expect("it can be read");
        shelf.keep(pod, Rc::new(spec), Arc::default())
    }

    fn objects(kept: &[Rc<KeptPod>]) -> usize {
        kept.iter().filter(|one| one.whole.borrow().is_some()).count()
    }

    #[test]
    fn pods_not_recently_used_are_packed_and_unpack_to_the_same_pod() {
        let shelf = Shelf::default();
        let kept: Vec<_> = (0..WHOLE_MAX + 10).map(|at| keep(&shelf, plain(at))).collect();
        assert_eq!(objects(&kept), WHOLE_MAX);
        for round in 0..2 {
            for (at, one) in kept.iter().enumerate() {
                assert_eq!(*one.whole(), plain(at), "{round}");
                assert_eq!(objects(&kept), WHOLE_MAX);
            }
        }
        let (held, text) = (kept[0].whole(), kept[1].text.get().map(Packed::bytes));
        kept[0].pack();
        assert_eq!((*kept[0].whole()).clone(), (*held).clone(), "a held copy is not changed");
        assert!(text.is_some_and(|bytes| bytes < 70), "{text:?}");
    }

    #[test]
    fn dropped_pods_do_not_count_against_the_object_limit() {
        let shelf = Shelf::default();
        (0..3 * WHOLE_MAX).for_each(|at| drop(keep(&shelf, plain(at))));
        assert_eq!(shelf.whole.borrow().len(), WHOLE_MAX);
        let kept: Vec<_> = (0..WHOLE_MAX).map(|at| keep(&shelf, plain(at))).collect();
        assert_eq!(objects(&kept), WHOLE_MAX);
    }

    #[test]
    fn pods_that_events_refer_to_stay_unpacked() {
        let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        let shelf = Shelf::default();
        let with = keep(&shelf, pod(0, json!({"containers": [], "volumes": [claim]})));
        let all = Shelf::of_objects();
        let one = keep(&all, plain(1));
        let rest: Vec<_> = (0..2 * WHOLE_MAX).map(|at| keep(&shelf, plain(at))).collect();
        let others: Vec<_> = (0..2 * WHOLE_MAX).map(|at| keep(&all, plain(at))).collect();
        assert_eq!((objects(&rest), objects(&others)), (WHOLE_MAX, 2 * WHOLE_MAX));
        assert!(with.whole.borrow().is_some() && one.whole.borrow().is_some());
    }
}
