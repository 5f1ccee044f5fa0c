//! Volumes: cached objects, assumed bindings, and the nodes they allow.
//!
//! ```text
//!   watches ─> Volumes (claims, volumes, classes, drivers, attachments) <─assume/revert─ bind
//!                 └─ look(pod) ─> Claims ─> four plugins of single nodes
//! ```
//! Input: objects of seven kinds, pods on nodes. Output: for a pod with volumes the rows that each
//! plugin allows, and the writes needed before it is bound. Owner: the cluster cache; pure. Bounds:
//! the objects of the API server. Rows of a volume are cached until it or a node changes.
// k8s: pkg/scheduler/framework/plugins/{volumebinding,volumerestrictions,nodevolumelimits,volumezone}

mod attachments;
pub mod bind;
mod binding;
mod candidates;
mod claims;
mod in_tree;
mod limits;
mod look;
mod restrictions;
#[cfg(test)]
mod tests;
pub mod users;
mod zone;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_sched_core::Plugin::{self, NodeVolumeLimits, VolumeBinding, VolumeZone};
use pintle_sched_core::hint::HintEvent;

use self::attachments::Attachments;
pub use self::binding::Choice;
use self::binding::Reach;
pub use self::claims::{Claims, OfPlugin};
pub use self::look::Refused;
use self::users::VolumeUsers;
use crate::watch_event::{WatchedKind, WatchedObject};

/// Cache of volumes, claims, classes and CSI objects.
#[derive(Debug, Default)]
pub struct Volumes {
    claims: HashMap<ObjectKey, Rc<PersistentVolumeClaim>>,
    /// By name, so that of equal volumes the same one is always chosen.
    volumes: BTreeMap<String, Rc<PersistentVolume>>,
    /// Assumed objects, not written yet; they count while the API has the version that the decision
    /// is based on.
    assumed_claims: HashMap<ObjectKey, Rc<PersistentVolumeClaim>>,
    assumed_volumes: HashMap<String, Rc<PersistentVolume>>,
    classes: HashMap<String, Rc<StorageClass>>,
    csi_nodes: HashMap<String, Rc<CSINode>>,
    drivers: HashMap<String, Rc<CSIDriver>>,
    capacities: BTreeMap<ObjectKey, Rc<CSIStorageCapacity>>,
    attachments: Attachments,
    /// Pods on nodes that use volumes.
    pub users: VolumeUsers,
    /// Nodes that the affinity of a volume allows.
    reachable: HashMap<String, Reach>,
    /// Counts changes of nodes and of their migrated plugins.
    pub nodes_changed: u64,
}

fn version(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

fn name(metadata: &ObjectMeta) -> String {
    metadata.name.clone().unwrap_or_default()
}

impl Volumes {
    /// Returns a claim; an assumed one takes precedence.
    pub fn claim(&self, key: &ObjectKey) -> Option<&Rc<PersistentVolumeClaim>> {
        let observed = self.claims.get(key)?;
        let assumed = self.assumed_claims.get(key);
        let is_good =
            |a: &&Rc<PersistentVolumeClaim>| version(&a.metadata) == version(&observed.metadata);
        Some(assumed.filter(is_good).unwrap_or(observed))
    }

    /// Returns a volume; an assumed one takes precedence.
    pub fn volume(&self, name: &str) -> Option<&Rc<PersistentVolume>> {
        let observed = self.volumes.get(name)?;
        let assumed = self.assumed_volumes.get(name);
        let is_good =
            |a: &&Rc<PersistentVolume>| version(&a.metadata) == version(&observed.metadata);
        Some(assumed.filter(is_good).unwrap_or(observed))
    }

    /// Adds or updates an object. Returns the event for queueing hints.
    pub fn set(&mut self, thing: WatchedObject) -> Option<HintEvent> {
        match thing {
            WatchedObject::PersistentVolumeClaim(claim) => Some(self.set_claim(*claim)),
            WatchedObject::PersistentVolume(volume) => Some(self.set_volume(*volume)),
            WatchedObject::StorageClass(class) => self.set_class(*class),
            WatchedObject::CSINode(node) => self.set_csi_node(Rc::new(*node)),
            WatchedObject::CSIDriver(driver) => {
                let old = self.drivers.insert(name(&driver.metadata), Rc::new(*driver));
                let label = "storage.k8s.io/CSIDriverUpdate";
                old.is_some().then_some(HintEvent::Other(&[VolumeBinding], label))
            }
            WatchedObject::CSIStorageCapacity(capacity) => {
                let new = Rc::new(*capacity);
                let old = self.capacities.insert(key_of(&*new), Rc::clone(&new));
                let label = match old {
                    None => "storage.k8s.io/CSIStorageCapacityAdd",
                    Some(_) => "storage.k8s.io/CSIStorageCapacityUpdate",
                };
                let more = old.is_none_or(|old| binding::limit(&new) > binding::limit(&old));
                more.then_some(HintEvent::Other(&[VolumeBinding], label))
            }
            WatchedObject::VolumeAttachment(attachment) => {
                self.attachments.insert(*attachment);
                None
            }
            _ => None,
        }
    }

    fn set_claim(&mut self, claim: PersistentVolumeClaim) -> HintEvent {
        let key = key_of(&claim);
        let is_old =
            |a: &Rc<PersistentVolumeClaim>| version(&a.metadata) != version(&claim.metadata);
        if self.assumed_claims.get(&key).is_some_and(is_old) {
            self.assumed_claims.remove(&key);
        }
        let label = match self.claims.insert(key.clone(), Rc::new(claim)) {
            None => "PersistentVolumeClaimAdd",
            Some(_) => "PersistentVolumeClaimUpdate",
        };
        HintEvent::Claim(key.as_str().into(), label)
    }

    fn set_volume(&mut self, volume: PersistentVolume) -> HintEvent {
        let name = name(&volume.metadata);
        let is_old = |a: &Rc<PersistentVolume>| version(&a.metadata) != version(&volume.metadata);
        if self.assumed_volumes.get(&name).is_some_and(is_old) {
            self.assumed_volumes.remove(&name);
        }
        let label = match self.volumes.insert(name, Rc::new(volume)) {
            None => "PersistentVolumeAdd",
            Some(_) => "PersistentVolumeUpdate",
        };
        HintEvent::Other(&[VolumeBinding, VolumeZone], label)
    }

    fn set_class(&mut self, class: StorageClass) -> Option<HintEvent> {
        let topologies = |class: &StorageClass| class.allowed_topologies.clone();
        let now = topologies(&class);
        let old = self.classes.insert(name(&class.metadata), Rc::new(class));
        match old {
            None => {
                let label = "storage.k8s.io/StorageClassAdd";
                Some(HintEvent::Other(&[VolumeBinding, VolumeZone], label))
            }
            Some(old) if topologies(&old) != now => {
                Some(HintEvent::Other(&[VolumeBinding], "storage.k8s.io/StorageClassUpdate"))
            }
            Some(_) => None,
        }
    }

    fn set_csi_node(&mut self, new: Rc<CSINode>) -> Option<HintEvent> {
        let old = self.csi_nodes.insert(name(&new.metadata), Rc::clone(&new));
        let moves = old.as_ref().is_none_or(|o| in_tree::moved(o) != in_tree::moved(&new));
        self.nodes_changed += u64::from(moves);
        let label = match old {
            None => "storage.k8s.io/CSINodeAdd",
            Some(_) => "storage.k8s.io/CSINodeUpdate",
        };
        let raises = old.is_none_or(|old| limits::raises(&old, &new));
        // The CSINode of another node helps no pod that waits for this one.
        let helps: &[Plugin] = match (raises, moves) {
            (true, true) => &[NodeVolumeLimits, VolumeBinding],
            (true, false) => &[NodeVolumeLimits],
            (false, true) => &[VolumeBinding],
            (false, false) => return None,
        };
        Some(HintEvent::Other(helps, label))
    }

    /// Removes an object. Returns the event for queueing hints.
    pub fn gone(&mut self, kind: WatchedKind, key: &ObjectKey) -> Option<HintEvent> {
        match kind {
            WatchedKind::PersistentVolumeClaim => {
                self.claims.remove(key);
                self.assumed_claims.remove(key);
                // It requeues no pod, but ends the wait of a pod about to be bound with it.
                return Some(HintEvent::Other(&[], "PersistentVolumeClaimDelete"));
            }
            WatchedKind::PersistentVolume => {
                self.volumes.remove(key.name());
                self.assumed_volumes.remove(key.name());
                self.reachable.remove(key.name());
                return Some(HintEvent::Other(&[], "PersistentVolumeDelete"));
            }
            WatchedKind::StorageClass => drop(self.classes.remove(key.name())),
            WatchedKind::CSINode => {
                self.csi_nodes.remove(key.name());
                self.nodes_changed += 1;
                let helps = &[NodeVolumeLimits, VolumeBinding];
                return Some(HintEvent::Other(helps, "storage.k8s.io/CSINodeDelete"));
            }
            WatchedKind::CSIDriver => drop(self.drivers.remove(key.name())),
            WatchedKind::CSIStorageCapacity => drop(self.capacities.remove(key)),
            WatchedKind::VolumeAttachment => {
                self.attachments.remove(key.name());
                let label = "storage.k8s.io/VolumeAttachmentDelete";
                return Some(HintEvent::Other(&[NodeVolumeLimits], label));
            }
            _ => {}
        }
        None
    }

    /// Returns the names of all objects of a kind.
    pub fn keys(&self, kind: WatchedKind) -> Vec<ObjectKey> {
        let unspaced = |name: &String| ObjectKey::new("", name);
        match kind {
            WatchedKind::PersistentVolumeClaim => self.claims.keys().cloned().collect(),
            WatchedKind::PersistentVolume => self.volumes.keys().map(unspaced).collect(),
            WatchedKind::StorageClass => self.classes.keys().map(unspaced).collect(),
            WatchedKind::CSINode => self.csi_nodes.keys().map(unspaced).collect(),
            WatchedKind::CSIDriver => self.drivers.keys().map(unspaced).collect(),
            WatchedKind::CSIStorageCapacity => self.capacities.keys().cloned().collect(),
            WatchedKind::VolumeAttachment => {
                self.attachments.keys().map(|name| ObjectKey::new("", name)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Returns the class of a claim; empty for none.
// k8s: component-helpers/storage/volume/helpers.go GetPersistentVolumeClaimClass
fn class_of_claim(claim: &PersistentVolumeClaim) -> &str {
    let named = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&claim.metadata, "volume.beta.kubernetes.io/storage-class").or(named).unwrap_or("")
}

/// Returns the class of a volume; empty for none.
// k8s: component-helpers/storage/volume/helpers.go GetPersistentVolumeClass
fn class_of_volume(volume: &PersistentVolume) -> &str {
    let named = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
    annotation(&volume.metadata, "volume.beta.kubernetes.io/storage-class").or(named).unwrap_or("")
}

fn annotation<'a>(metadata: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Returns the volume of a claim, if it has one.
fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref());
    name.filter(|name| !name.is_empty())
}

/// Are claim and volume bound to each other, with the controller's confirmation?
// k8s: volumebinding/binder.go isPVCFullyBound
fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    volume_name(claim).is_some()
        && annotation(&claim.metadata, "pv.kubernetes.io/bind-completed").is_some()
}
