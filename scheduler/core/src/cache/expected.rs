//! Nominated pods: a pod reserves room on a node that it is not on yet.

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::intern::Str;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::{ClusterCache, Nominee};

impl ClusterCache {
    /// Returns the nomination of a pod.
    pub fn nomination(&self, pod: Str) -> Option<&Nominee> {
        self.nominated.get(&pod)
    }

    /// Returns the pods nominated to a node.
    pub fn nominated_on(&self, node: &str) -> Vec<(Str, Nominee)> {
        let all = self.nominated.iter().filter(|(_, nominee)| *nominee.node == *node);
        all.map(|(pod, nominee)| (*pod, nominee.clone())).collect()
    }

    /// Returns nominated pods by node, without `pod` and without pods of a lower priority.
    // k8s: pkg/scheduler/framework/runtime/framework.go addGENominatedPods
    pub fn nominees(&self, pod: Str, priority: i32) -> BTreeMap<Rc<str>, Vec<Rc<PodSpec>>> {
        let mut found: BTreeMap<Rc<str>, Vec<Rc<PodSpec>>> = BTreeMap::new();
        let respected =
            self.nominated.iter().filter(|(key, n)| **key != pod && n.spec.priority >= priority);
        for (_, nominee) in respected {
            found.entry(Rc::clone(&nominee.node)).or_default().push(Rc::clone(&nominee.spec));
        }
        found
    }

    /// Counts the volumes of nominated pods as in use on the node. Returns the pods that were
    /// added, for [`ClusterCache::expect_no_users`].
    pub fn expect_users(&mut self, node: &str, pods: &[Rc<PodSpec>]) -> Vec<Str> {
        let mut expected = Vec::new();
        for pod in pods.iter().filter(|pod| self.cluster.pods().find(pod.key).is_none()) {
            let text = |id| self.cluster.text(id);
            let key = ObjectKey::new(text(pod.namespace), text(pod.name));
            let Some(waits) = self.waiting.get(&key).filter(|w| w.spec().key == pod.key) else {
                continue;
            };
            let uid = text(pod.key);
            self.volumes.users.put(uid, &waits.whole(), node);
            if self.volumes.users.has(uid) {
                expected.push(pod.key);
            }
        }
        expected
    }

    /// Counts what the devices in the status of nominated pods take of the node. Returns the pods
    /// that were added, for [`ClusterCache::expect_no_shares`].
    pub fn expect_shares(&mut self, node: &str, pods: &[Rc<PodSpec>]) -> Vec<Str> {
        let mut expected = Vec::new();
        let is_new = |pod: &&Rc<PodSpec>| self.cluster.pods().find(pod.key).is_none();
        for pod in pods.iter().filter(|pod| pod.requests.has_devices()).filter(is_new) {
            let text = |id| self.cluster.text(id);
            let key = ObjectKey::new(text(pod.namespace), text(pod.name));
            if let Some(waits) = self.waiting.get(&key).filter(|w| w.spec().key == pod.key) {
                self.devices.uses(self.cluster.text(pod.key), &waits.whole(), node);
                expected.push(pod.key);
            }
        }
        expected
    }

    /// Reverts [`ClusterCache::expect_shares`].
    pub fn expect_no_shares(&mut self, expected: Vec<Str>) {
        for pod in expected {
            self.devices.users.take(self.cluster.text(pod));
        }
    }

    /// Reverts [`ClusterCache::expect_users`].
    pub fn expect_no_users(&mut self, expected: Vec<Str>) {
        for pod in expected {
            self.volumes.users.take(self.cluster.text(pod));
        }
    }
}
