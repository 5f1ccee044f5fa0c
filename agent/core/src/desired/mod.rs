//! Desired state: the pods that are to run, with a generation each.
//!
//! Input: `SourceUpdate`s. Output: which pod changed and how, for the workers. One writer, the
//! owner of this store. A pod that left its source stays as `Wanted::Gone` until its worker reports
//! that no container of it runs any more (`forget`), since its spec is needed to stop it properly.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use crate::source::SourceUpdate;
use pintle_api_types::ids::{Generation, PodUid};
use pintle_api_types::pod;

/// The desired state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DesiredState {
    /// It is to run.
    Running,
    /// A deletion was requested.
    Deleted,
    /// It left its source.
    Gone,
}

/// A pod that is or was wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct DesiredPod {
    /// The pod as its source has it, defaults applied.
    pub pod: Arc<Pod>,
    /// Counts the changes of this record.
    pub generation: Generation,
    /// Its desired state.
    pub wanted: DesiredState,
}

/// All pods that are or were wanted, by uid.
#[derive(Debug, Default)]
pub struct DesiredPods {
    pods: BTreeMap<PodUid, DesiredPod>,
    /// Grows with every change, so that a pod that comes back never repeats a generation.
    last: Generation,
}

impl DesiredPods {
    /// Takes a change; names the pod that changed by it.
    pub fn apply(&mut self, update: &SourceUpdate) -> Option<PodUid> {
        let (pod, wanted) = match update {
            SourceUpdate::Add(pod) | SourceUpdate::Update(pod) => (pod, DesiredState::Running),
            SourceUpdate::Reconcile(pod) => (pod, DesiredState::Running),
            SourceUpdate::Delete(pod) => (pod, DesiredState::Deleted),
            SourceUpdate::Remove(pod) => (pod, DesiredState::Gone),
            SourceUpdate::Ready(_) | SourceUpdate::Broken(_) | SourceUpdate::Duplicate(_) => {
                return None;
            }
        };
        let deleted = wanted == DesiredState::Running && pod::is_deleted(pod);
        let wanted = if deleted { DesiredState::Deleted } else { wanted };
        let uid = pod::uid(pod);
        // The removal of a pod that was never wanted changes nothing for a worker.
        if wanted == DesiredState::Gone && !self.pods.contains_key(&uid) {
            return None;
        }
        self.last = Generation(self.last.0 + 1);
        let record = DesiredPod { pod: Arc::clone(pod), generation: self.last, wanted };
        self.pods.insert(uid.clone(), record);
        Some(uid)
    }

    /// Forgets a pod that is gone and has no running container; returns true if it was forgotten. A
    /// pod that is wanted again meanwhile stays.
    pub fn forget(&mut self, uid: &PodUid) -> bool {
        let gone = self.pods.get(uid).is_some_and(|pod| pod.wanted == DesiredState::Gone);
        gone && self.pods.remove(uid).is_some()
    }

    /// The record of a pod.
    pub fn get(&self, uid: &PodUid) -> Option<&DesiredPod> {
        self.pods.get(uid)
    }

    /// All records.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &DesiredPod)> {
        self.pods.iter()
    }

    /// The pods of that namespace and name, whatever their uid: successive versions of a static
    /// pod share them, and only one may run at a time.
    pub fn by_name<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> impl Iterator<Item = &'a DesiredPod> {
        self.pods.values().filter(move |desired| {
            pod::namespace(&desired.pod) == namespace && pod::name(&desired.pod) == name
        })
    }

    /// How many pods there are.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// True without any pod.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, name: &str) -> Arc<Pod> {
        let pod = json!({"metadata": {"uid": uid, "name": name, "namespace": "ns"}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    #[test]
    fn each_change_of_a_pod_gets_a_new_generation() {
        let mut desired = DesiredPods::default();
        let uid = desired.apply(&SourceUpdate::Add(pod("1", "a"))).expect("a change");
        let first = desired.get(&uid).expect("a record").generation;
        desired.apply(&SourceUpdate::Remove(pod("1", "a")));
        let gone = desired.get(&uid).expect("still known").clone();
        assert_eq!(gone.wanted, DesiredState::Gone);
        assert!(gone.generation > first);
        assert!(desired.forget(&uid));
        assert!(desired.is_empty());
        desired.apply(&SourceUpdate::Add(pod("1", "a")));
        assert!(desired.get(&uid).expect("back").generation > gone.generation);
        assert!(!desired.forget(&uid), "wanted again");
    }

    #[test]
    fn two_versions_of_a_static_pod_are_found_by_their_name() {
        let mut desired = DesiredPods::default();
        desired.apply(&SourceUpdate::Add(pod("1", "a")));
        desired.apply(&SourceUpdate::Remove(pod("1", "a")));
        desired.apply(&SourceUpdate::Add(pod("2", "a")));
        desired.apply(&SourceUpdate::Add(pod("3", "b")));
        assert_eq!(desired.by_name("ns", "a").count(), 2);
        assert_eq!(desired.apply(&SourceUpdate::Remove(pod("9", "z"))), None);
        assert_eq!(desired.len(), 3);
    }
}
