//! Claims and disks used by pods on nodes.
//!
//! Input: pods bound to or assumed on a node. Output: users of a claim or disk by node. Owner: the
//! volumes. Bounds: pods with claims, such disks, or volumes of plugins that have migrated to CSI.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Pod, Volume};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::pod::claims::volume_claim_name;
use pintle_sched_core::Cluster;

use super::in_tree::{self, Handle};
use super::restrictions::{self, PodDisk};
use crate::uid::Uid;

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeUser {
    pub(super) node: Rc<str>,
    pub(super) claims: Vec<ObjectKey>,
    pub(super) disks: Vec<PodDisk>,
    /// Inline volumes of migrated plugins.
    pub(super) in_tree: Vec<Handle>,
}

impl VolumeUser {
    /// Returns what a pod uses on a node, and those of its claims that were not created for it.
    fn of(pod: &Pod, node: &str) -> (Self, Vec<ObjectKey>) {
        let (claims, disks, in_tree) = (Vec::new(), Vec::new(), Vec::new());
        let mut user = Self { node: node.into(), claims, disks, in_tree };
        let (mut own, mut seen) = (Vec::new(), HashSet::new());
        for volume in volumes(pod) {
            // A pod may name one claim many times.
            if let Some((claim, is_made)) = claim_of(pod, volume)
                && seen.insert((claim.clone(), is_made))
            {
                if !is_made {
                    own.push(claim.clone());
                }
                user.claims.push(claim);
            }
            user.disks.extend(restrictions::disk(volume));
            user.in_tree.extend(in_tree::of_pod(volume));
        }
        (user, own)
    }

    /// Returns the number of its volumes.
    pub(super) fn len(&self) -> usize {
        self.claims.len() + self.disks.len() + self.in_tree.len()
    }

    fn names(&self) -> impl Iterator<Item = String> {
        let claims = self.claims.iter().map(|claim| claim.as_str().to_owned());
        let in_tree = self.in_tree.iter().map(|(driver, handle)| format!("{driver} {handle}"));
        claims.chain(self.disks.iter().map(PodDisk::name)).chain(in_tree)
    }
}

/// Does the pod use any of the claims and disks of these names?
pub fn shares(pod: &Pod, names: &[String]) -> bool {
    let names: HashSet<&String> = names.iter().collect();
    !names.is_empty() && VolumeUser::of(pod, "").0.names().any(|name| names.contains(&name))
}

/// Volumes of a pod removed in a dry run.
#[derive(Debug)]
pub struct Lifted {
    uid: Uid,
    user: VolumeUser,
    own: Vec<ObjectKey>,
}

/// Uids of pods removed in a dry run.
pub(super) type Gone<'a> = HashSet<&'a str>;

/// Pods with their claims and disks.
#[derive(Debug, Default)]
pub struct VolumeUsers {
    pods: HashMap<Uid, VolumeUser>,
    by_node: HashMap<Rc<str>, HashSet<Uid>>,
    /// Pods that use a claim by its own name; claims created for the pod itself do not count.
    claims: HashMap<ObjectKey, HashSet<Uid>>,
}

/// Returns the volumes of a pod.
pub(super) fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten())
}

/// Returns the claim of a volume; true if it is created for the pod.
pub(super) fn claim_of(pod: &Pod, volume: &Volume) -> Option<(ObjectKey, bool)> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let claim = ObjectKey::new(namespace, &volume_claim_name(pod, volume)?);
    Some((claim, volume.persistent_volume_claim.is_none()))
}

/// Does the pod use the claim?
pub fn uses(pod: &Pod, claim: &str) -> bool {
    volumes(pod).filter_map(|v| claim_of(pod, v)).any(|(key, _)| key.as_str() == claim)
}

impl VolumeUsers {
    /// Records a pod on a node.
    pub fn put(&mut self, uid: &str, pod: &Pod, node: &str) {
        let (user, own) = VolumeUser::of(pod, node);
        if user.claims.is_empty() && user.disks.is_empty() && user.in_tree.is_empty() {
            return;
        }
        if self.pods.get(uid) == Some(&user) {
            return;
        }
        self.take(uid);
        let uid: Uid = uid.into();
        for claim in own {
            self.claims.entry(claim).or_default().insert(uid.clone());
        }
        self.by_node.entry(Rc::clone(&user.node)).or_default().insert(uid.clone());
        self.pods.insert(uid, user);
    }

    /// Returns the names of the claims and disks that a pod on a node uses.
    pub fn names(&self, uid: &str) -> Rc<[String]> {
        self.pods.get(uid).map(|user| user.names().collect()).unwrap_or_default()
    }

    /// Is the pod on a node, using anything?
    pub fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// Removes a pod from its node.
    pub fn take(&mut self, uid: &str) {
        let Some(user) = self.pods.remove(uid) else { return };
        for claim in &user.claims {
            // Claims created for the pod itself were not counted.
            if let Some(uids) = self.claims.get_mut(claim) {
                uids.remove(uid);
                if uids.is_empty() {
                    self.claims.remove(claim);
                }
            }
        }
        if let Some(uids) = self.by_node.get_mut(&user.node) {
            uids.remove(uid);
            if uids.is_empty() {
                self.by_node.remove(&user.node);
            }
        }
    }

    /// Removes a pod in a dry run; the result can be put back.
    pub fn lift(&mut self, uid: &str) -> Option<Lifted> {
        let (uid, user) = self.pods.get_key_value(uid)?;
        let (uid, user) = (uid.clone(), user.clone());
        let is_own = |claim: &&ObjectKey| self.claims.get(*claim).is_some_and(|a| a.contains(&uid));
        let own = user.claims.iter().filter(is_own).cloned().collect();
        self.take(&uid);
        Some(Lifted { uid, user, own })
    }

    /// Puts a removed pod back.
    pub fn put_back(&mut self, lifted: Lifted) {
        let Lifted { uid, user, own } = lifted;
        for claim in own {
            self.claims.entry(claim).or_default().insert(uid.clone());
        }
        self.by_node.entry(Rc::clone(&user.node)).or_default().insert(uid.clone());
        self.pods.insert(uid, user);
    }

    /// Does any pod other than those `gone` use the claim by its name? Pods of deleted nodes do not
    /// count.
    // k8s: pkg/scheduler/backend/cache/cache.go updateNodeInfoSnapshotList
    pub(super) fn is_used(&self, claim: &ObjectKey, cluster: &Cluster, gone: &Gone<'_>) -> bool {
        let uids = self.claims.get(claim).into_iter().flatten();
        let mut pods =
            uids.filter(|uid| !gone.contains(&***uid)).filter_map(|uid| self.pods.get(uid));
        pods.any(|user| cluster.row(&user.node).is_some())
    }

    /// Returns the pods on a node, without those `gone`.
    pub(super) fn on_node<'a>(
        &'a self,
        node: &str,
        gone: &'a Gone<'_>,
    ) -> impl Iterator<Item = &'a VolumeUser> {
        let uids = self.by_node.get(node).into_iter().flatten();
        uids.filter(|uid| !gone.contains(&***uid)).filter_map(|uid| self.pods.get(uid))
    }

    /// Returns all users.
    pub(super) fn all(&self) -> impl Iterator<Item = &VolumeUser> {
        self.pods.values()
    }
}
