//! Pods that room is kept for on a node they are not on yet.

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_api::informer::ObjectKey;
use pintle_sched_core::intern::Str;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::{Mirror, Nominee};

impl Mirror {
    /// The node that is kept for a pod.
    pub fn nomination(&self, pod: Str) -> Option<&Nominee> {
        self.nominated.get(&pod)
    }

    /// Pods that room is kept for on a node.
    pub fn nominated_on(&self, node: &str) -> Vec<(Str, Nominee)> {
        let all = self.nominated.iter().filter(|(_, nominee)| *nominee.node == *node);
        all.map(|(pod, nominee)| (*pod, nominee.clone())).collect()
    }

    /// Pods that room is kept for, by node, without `pod` and those it need not respect.
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

    /// Counts the volumes of pods that room is kept for as used on the node, until
    /// [`Mirror::expect_no_users`] is told whose.
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

    /// The same of what their status says that devices take of the node, until
    /// [`Mirror::expect_no_shares`] is told whose.
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

    /// They count no more.
    pub fn expect_no_shares(&mut self, expected: Vec<Str>) {
        for pod in expected {
            self.devices.users.take(self.cluster.text(pod));
        }
    }

    /// They count no more.
    pub fn expect_no_users(&mut self, expected: Vec<Str>) {
        for pod in expected {
            self.volumes.users.take(self.cluster.text(pod));
        }
    }
}
