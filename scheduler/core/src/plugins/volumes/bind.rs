//! Volumes of a pod that has a node: assumed, written, and watched until they are bound.
//!
//! Input: the chosen volumes. Output: the writes needed, and the progress of the PersistentVolume
//! controller. Owner: the volumes; pure.
// k8s: pkg/scheduler/framework/plugins/volumebinding/binder.go AssumePodVolumes, BindPodVolumes

use std::rc::Rc;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::reference::to_core_object;
use pintle_sched_core::Cluster;

use super::binding::{Choice, SELECTED, belongs};
use super::{Volumes, annotation, is_bound, version, volume_name};

/// Annotation: the volume was bound by a controller, not by a user.
pub const BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";

/// A write of a volume or a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The object.
    pub target: WriteTarget,
    /// The version the decision is based on; after the write, the written version.
    pub version: String,
    /// It was written.
    pub is_written: bool,
}

/// Object to be written.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteTarget {
    /// A volume is bound to a claim.
    Volume {
        /// The volume.
        name: String,
        /// The claim.
        claim: Box<ObjectReference>,
        /// It gets the annotation [`BY_CONTROLLER`].
        marks: bool,
    },
    /// A volume is provisioned for a claim.
    Claim {
        /// The claim.
        key: ObjectKey,
        /// The selected node.
        node: String,
    },
}

/// An object that the progress of volumes depends on: changes of other objects need no check.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Topic {
    /// A claim.
    Claim(ObjectKey),
    /// A volume, by its name.
    Volume(String),
    /// A node with its migrated plugins, by its name.
    Node(String),
}

/// A volume that the node cannot use.
#[derive(Debug, thiserror::Error)]
#[error("pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")]
struct VolumeElsewhere {
    volume: String,
    node: String,
}

/// Progress of the volumes of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BindProgress {
    /// The PersistentVolume controller, or a provisioner, is not done.
    Waits,
    /// All are bound.
    Bound,
    /// Binding has failed for good.
    Failed(String),
}

impl Volumes {
    /// Assumes the chosen volumes; returns the writes needed.
    pub fn assume(&mut self, choice: &Choice, node: &str) -> Vec<Write> {
        let mut writes = Vec::new();
        for (name, key) in &choice.bindings {
            let (Some(volume), Some(claim)) = (self.volume(name), self.claim(key)) else {
                continue;
            };
            let marks = belongs(volume, claim) != Some(true);
            let to = to_core_object("PersistentVolumeClaim", &claim.metadata);
            let mut new = (**volume).clone();
            let version = version(&new.metadata).to_owned();
            if let Some(spec) = &mut new.spec {
                spec.claim_ref = Some(to.clone());
            }
            if marks {
                let all = new.metadata.annotations.get_or_insert_default();
                all.insert(BY_CONTROLLER.to_owned(), "yes".to_owned());
            }
            self.assumed_volumes.insert(name.clone(), Rc::new(new));
            let target = WriteTarget::Volume { name: name.clone(), claim: Box::new(to), marks };
            writes.push(Write { target, version, is_written: false });
        }
        for key in &choice.provisions {
            let Some(claim) = self.claim(key) else { continue };
            let mut new = (**claim).clone();
            let version = version(&new.metadata).to_owned();
            let all = new.metadata.annotations.get_or_insert_default();
            all.insert(SELECTED.to_owned(), node.to_owned());
            self.assumed_claims.insert(key.clone(), Rc::new(new));
            let target = WriteTarget::Claim { key: key.clone(), node: node.to_owned() };
            writes.push(Write { target, version, is_written: false });
        }
        writes
    }

    /// Drops assumed objects that were not written.
    pub fn revert(&mut self, writes: &[Write]) {
        for write in writes.iter().filter(|write| !write.is_written) {
            match &write.target {
                WriteTarget::Volume { name, .. } => {
                    let is_it = |v: &Rc<_>| {
                        let volume: &k8s_openapi::api::core::v1::PersistentVolume = v;
                        version(&volume.metadata) == write.version
                    };
                    if self.assumed_volumes.get(name).is_some_and(is_it) {
                        self.assumed_volumes.remove(name);
                    }
                }
                WriteTarget::Claim { key, .. } => {
                    let is_it =
                        |c: &Rc<PersistentVolumeClaim>| version(&c.metadata) == write.version;
                    if self.assumed_claims.get(key).is_some_and(is_it) {
                        self.assumed_claims.remove(key);
                    }
                }
            }
        }
    }

    /// Returns the progress of the volumes, by the objects as observed.
    // k8s: binder.go checkBindings
    pub fn progress(
        &mut self,
        cluster: &mut Cluster,
        writes: &[Write],
        node: &str,
    ) -> BindProgress {
        let Some(row) = cluster.row(node) else {
            return BindProgress::Failed(format!(
                "failed to get node {node:?}: node {node:?} not found"
            ));
        };
        for write in writes {
            let found = match &write.target {
                WriteTarget::Volume { name, claim, .. } => {
                    self.volume_progress(cluster, write, name, claim, (node, row))
                }
                WriteTarget::Claim { key, .. } => {
                    self.claim_progress(cluster, write, key, (node, row))
                }
            };
            if found != BindProgress::Bound {
                return found;
            }
        }
        BindProgress::Bound
    }

    /// Returns the objects that the progress depends on, as known now: a claim may get a volume
    /// later.
    pub fn topics(&self, writes: &[Write], node: &str) -> Vec<Topic> {
        let mut topics = vec![Topic::Node(node.to_owned())];
        for write in writes {
            let (key, volume) = match &write.target {
                WriteTarget::Volume { name, claim, .. } => (key_of(claim), Some(&**name)),
                WriteTarget::Claim { key, .. } => {
                    (key.clone(), self.claims.get(key).and_then(|claim| volume_name(claim)))
                }
            };
            topics.extend(volume.map(|name| Topic::Volume(name.to_owned())));
            topics.push(Topic::Claim(key));
        }
        topics
    }

    fn volume_progress(
        &mut self,
        cluster: &mut Cluster,
        write: &Write,
        name: &str,
        claim: &ObjectReference,
        node: (&str, u32),
    ) -> BindProgress {
        let missing = |what: &str, name: &str| {
            BindProgress::Failed(format!("failed to check binding: {what} {name:?} not found"))
        };
        let key = key_of(claim);
        let Some(volume) = self.volumes.get(name).cloned() else {
            return missing("persistentvolumes", name);
        };
        let Some(claim) = self.claims.get(&key).cloned() else {
            return missing("persistentvolumeclaims", key.as_str());
        };
        if is_older(version(&volume.metadata), &write.version) {
            return BindProgress::Waits;
        }
        if let Err(error) = self.check_affinity(cluster, name, node.0, node.1) {
            return BindProgress::Failed(error.to_string());
        }
        let to = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        if to.and_then(|to| to.uid.as_deref()).is_none_or(str::is_empty) {
            return BindProgress::Failed(format!("ClaimRef got reset for pv {name:?}"));
        }
        if is_bound(&claim) { BindProgress::Bound } else { BindProgress::Waits }
    }

    fn claim_progress(
        &mut self,
        cluster: &mut Cluster,
        write: &Write,
        key: &ObjectKey,
        node: (&str, u32),
    ) -> BindProgress {
        let Some(claim) = self.claims.get(key).cloned() else {
            let key = key.as_str();
            let error = "failed to check provisioning pvc: persistentvolumeclaims";
            return BindProgress::Failed(format!("{error} {key:?} not found"));
        };
        if is_older(version(&claim.metadata), &write.version) {
            return BindProgress::Waits;
        }
        let name = key.name();
        if claim.metadata.annotations.is_none() {
            return BindProgress::Failed(format!("selectedNode annotation reset for PVC {name:?}"));
        }
        if annotation(&claim.metadata, SELECTED) != Some(node.0) {
            return BindProgress::Failed(format!("provisioning failed for PVC {name:?}"));
        }
        if let Some(volume) = volume_name(&claim) {
            if !self.volumes.contains_key(volume) {
                return BindProgress::Waits;
            }
            if let Err(error) = self.check_affinity(cluster, volume, node.0, node.1) {
                return BindProgress::Failed(error.to_string());
            }
        }
        if is_bound(&claim) { BindProgress::Bound } else { BindProgress::Waits }
    }

    fn check_affinity(
        &mut self,
        cluster: &mut Cluster,
        name: &str,
        node: &str,
        row: u32,
    ) -> Result<(), VolumeElsewhere> {
        let Some(volume) = self.volumes.get(name).cloned() else { return Ok(()) };
        if self.usable(cluster, &volume).get(row) {
            return Ok(());
        }
        Err(VolumeElsewhere { volume: name.to_owned(), node: node.to_owned() })
    }
}

fn key_of(claim: &ObjectReference) -> ObjectKey {
    let part = |text: &Option<String>| text.clone().unwrap_or_default();
    ObjectKey::new(&part(&claim.namespace), &part(&claim.name))
}

/// Compares resource versions, which are growing numbers.
fn is_older(observed: &str, written: &str) -> bool {
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    number(observed) < number(written)
}
