//! Deletions of objects: what they change for decisions, and the cache after them.
//!
//! Input: kind and key of an object, its last content where the watch had it. Output:
//! [`CacheDelta`]s, and the cache without it. Bounds: one object.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;

use super::kinds::{is_of_devices, is_of_volumes};
use super::{CacheDelta, ClusterCache};
use crate::declared::BoundPod;
use crate::watch_event::{WatchedKind, WatchedObject};

impl ClusterCache {
    pub(super) fn end_of_pod(&mut self, key: &ObjectKey, last: Option<&Pod>) -> Vec<CacheDelta> {
        let mut steps = Vec::new();
        let uid = match (self.bound.get(key).cloned(), self.waiting.get(key).cloned()) {
            (Some(BoundPod { uid, node, .. }), _) => {
                let last = last.and_then(|pod| self.cluster.read_pod_as_it_is(pod).ok());
                let last = last.map(|(spec, _)| spec).filter(|spec| spec.key == uid).map(Rc::new);
                steps.push(CacheDelta::Gone { pod: uid, last, node: node.as_str().into() });
                Some(uid)
            }
            (None, Some(pod)) => Some(pod.spec().key),
            (None, None) => None,
        };
        if let Some((pod, old)) = uid.and_then(|uid| Some((uid, self.nominated.get(&uid)?.clone())))
        {
            steps.push(CacheDelta::Nominated { pod, old: Some(old), new: None });
        }
        steps
    }

    pub(super) fn end_of_node(&self, key: &ObjectKey) -> Option<CacheDelta> {
        let row = self.cluster.row(key.name())?;
        let mut known = self.nodes.iter();
        let old = known.find(|(name, _)| self.cluster.row(self.cluster.text(**name)) == Some(row));
        old.map(|(_, spec)| CacheDelta::Node { old: Some(Rc::clone(spec)), new: None })
    }

    /// Applies the deletion of an object.
    pub fn gone(
        &mut self,
        kind: WatchedKind,
        key: &ObjectKey,
        last: Option<&WatchedObject>,
    ) -> Vec<CacheDelta> {
        let steps = self.foresee_end(kind, key, last);
        self.watches.flawed.take(kind, key);
        match kind {
            WatchedKind::Pod => {
                self.forget_whole(key);
                self.waiting.remove(key);
                self.bound.remove(key);
                if let Some(groups) = &self.groups {
                    groups.end_of_pod(key);
                }
            }
            WatchedKind::PodGroup => {
                if let Some(groups) = &self.groups {
                    groups.gone(key);
                }
            }
            WatchedKind::PodDisruptionBudget => {
                self.disruption.objects.remove(key);
                self.disruption.decoded = None;
            }
            WatchedKind::Node => {
                if let Some(whole) = &mut self.whole.objects {
                    whole.remove(key.name());
                }
            }
            kind if is_of_volumes(kind) => self.happened.extend(self.volumes.gone(kind, key)),
            kind if is_of_devices(kind) => {
                self.happened.extend(self.devices.gone(kind, key));
                self.cluster.set_of_devices(self.devices.resources());
            }
            kind => {
                self.others.remove(&(kind, key.clone()));
                self.end_of_owner(kind, key);
            }
        }
        steps
    }

    /// Removes the selectors of a deleted owner.
    fn end_of_owner(&mut self, kind: WatchedKind, key: &ObjectKey) {
        let (namespace, name, cluster) = (key.namespace(), key.name(), &mut self.cluster);
        match kind {
            WatchedKind::Namespace => cluster.remove_namespace(name),
            WatchedKind::Service => cluster.remove_service(namespace, name),
            WatchedKind::ReplicaSet => cluster.remove_replica_set(namespace, name),
            WatchedKind::StatefulSet => cluster.remove_stateful_set(namespace, name),
            WatchedKind::ReplicationController => {
                cluster.remove_replication_controller(namespace, name)
            }
            _ => {}
        }
    }
}
