//! PreFilter of a pod's volumes, before any node is filtered.
// k8s: the PreFilter functions of volumerestrictions, volumebinding and volumezone

use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use pintle_api_types::key::ObjectKey;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::{Cluster, Plugin};

use super::binding::Binding;
use super::claims::Claims;
use super::restrictions::Disks;
use super::users::{Gone, claim_of, volumes};
use super::{Volumes, class_of_claim, in_tree, is_bound, restrictions, volume_name};

/// Reason why a pod's volume claim cannot be used.
#[derive(Debug, thiserror::Error)]
enum VolumeClaimError {
    #[error("persistentvolumeclaim {0:?} not found")]
    NotFound(String),
    #[error("persistentvolume {0:?} not found")]
    NoVolume(String),
    #[error("PersistentVolumeClaim had no pv name and storageClass name")]
    NoClassName,
    #[error("storageclass.storage.k8s.io {0:?} not found")]
    NoClass(String),
    #[error("PersistentVolume had no name")]
    NoVolumeName,
    #[error("persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}")]
    Lost { claim: String, volume: String },
    #[error("persistentvolumeclaim {0:?} is being deleted")]
    Deleted(String),
    #[error(
        "PVC {} was not created for pod {}/{pod} (pod is not owner)",
        claim.as_str(), claim.namespace()
    )]
    NotOwner { claim: ObjectKey, pod: String },
}

/// A rejection of the pod on all nodes, which no preemption can resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The plugin that rejects the pod.
    pub plugin: Plugin,
    /// The words.
    pub reason: String,
}

/// A claim of a pod; true if it is created for the pod.
type Named = (ObjectKey, bool);

impl Volumes {
    /// Runs PreFilter: restricts the nodes; `None` if the pod's volumes restrict none.
    ///
    /// # Errors
    /// The volumes allow no node, or the attempt has exceeded a limit.
    pub fn look(
        &mut self,
        pod: &Pod,
        cluster: &mut Cluster,
        spent: &Rc<AttemptBudget>,
    ) -> Result<Option<Claims>, Refused> {
        let (named, order) = names(pod);
        let disks: Vec<_> = volumes(pod).filter_map(restrictions::disk).collect();
        let in_tree: Vec<_> = volumes(pod).filter_map(in_tree::of_pod).collect();
        if named.is_empty() && disks.is_empty() && in_tree.is_empty() {
            return Ok(None);
        }
        let on = |plugin| cluster.view().profile().filters(plugin);
        let one_pod = match on(Plugin::VolumeRestrictions) {
            true => self.taken(&named, cluster),
            false => Ok(Vec::new()),
        };
        let binds = on(Plugin::VolumeBinding);
        let usable = if binds { self.are_usable(pod, &named) } else { Ok(()) };
        let zoned = match on(Plugin::VolumeZone) {
            true => self.zoned(&named),
            false => Ok(Vec::new()),
        };
        let rank = |refused: &&Refused| cluster.view().profile().pre_filter_rank(refused.plugin);
        let refused = [one_pod.as_ref().err(), usable.as_ref().err(), zoned.as_ref().err()];
        if let Some(first) = refused.into_iter().flatten().min_by_key(rank) {
            return Err(first.clone());
        }
        let (one_pod, zoned) = (one_pod?, zoned?);
        let keys: Vec<ObjectKey> = named.into_iter().map(|(key, _)| key).collect();
        let unknown = keys.iter().find(|key| self.claim(key).is_none());
        let exceeded = |exhausted: Exhausted| Refused {
            plugin: Plugin::VolumeBinding,
            reason: exhausted.to_string(),
        };
        let disks = Disks::of(disks);
        let taken = restrictions::taken(cluster, &self.users, &disks, spent).map_err(exceeded)?;
        let binding = match binds {
            true => self.binding(cluster, &keys, &order, spent).map_err(exceeded)?,
            false => Binding::default(),
        };
        let wanted = self.attached_by((&keys, &in_tree));
        Ok(Some(Claims {
            one_pod,
            disks: taken,
            own_disks: disks,
            unknown: unknown.map(|key| {
                let (name, key) = (key.name(), key.as_str());
                format!("looking up PVC {key}: persistentvolumeclaim {name:?} not found")
            }),
            too_many: self.too_many(cluster, &wanted, spent).map_err(exceeded)?,
            wanted,
            outside: super::zone::outside(cluster, zoned.iter().map(|volume| &**volume)),
            binding,
        }))
    }

    /// Returns the ReadWriteOncePod claims of the pod that another pod uses.
    fn taken(&self, named: &[Named], cluster: &Cluster) -> Result<Vec<ObjectKey>, Refused> {
        let (mut taken, nobody) = (Vec::new(), Gone::new());
        for (key, _) in named.iter().filter(|(_, is_made)| !is_made) {
            let claim = self.claim(key).ok_or_else(|| Refused {
                plugin: Plugin::VolumeRestrictions,
                reason: format!("persistentvolumeclaim {:?} not found", key.name()),
            })?;
            if restrictions::is_for_one_pod(claim) && self.users.is_used(key, cluster, &nobody) {
                taken.push(key.clone());
            }
        }
        Ok(taken)
    }

    // k8s: volumebinding/volume_binding.go podHasPVCs, PreFilter
    fn are_usable(&self, pod: &Pod, named: &[Named]) -> Result<(), Refused> {
        let refused = |reason: String| Refused { plugin: Plugin::VolumeBinding, reason };
        let mut immediate = false;
        for (key, is_made) in named {
            let Some(claim) = self.claim(key) else {
                let name = key.name();
                return Err(refused(match is_made {
                    true => format!(
                        "waiting for ephemeral volume controller to create the \
                         persistentvolumeclaim {name:?}"
                    ),
                    false => format!("persistentvolumeclaim {name:?} not found"),
                }));
            };
            let usable = unusable(pod, key, claim, *is_made);
            usable.map_err(|error| refused(error.to_string()))?;
            immediate |= !is_bound(claim) && !self.waits_for_consumer(claim);
        }
        match immediate {
            true => Err(refused("pod has unbound immediate PersistentVolumeClaims".to_owned())),
            false => Ok(()),
        }
    }

    /// Returns the volumes of bound claims.
    // k8s: volumezone/volume_zone.go getPVbyPod
    fn zoned(&self, named: &[Named]) -> Result<Vec<Rc<PersistentVolume>>, Refused> {
        let refused = |error: VolumeClaimError| Refused {
            plugin: Plugin::VolumeZone,
            reason: error.to_string(),
        };
        self.volumes_of(named).map_err(refused)
    }

    fn volumes_of(&self, named: &[Named]) -> Result<Vec<Rc<PersistentVolume>>, VolumeClaimError> {
        let mut volumes = Vec::new();
        for (key, _) in named.iter().filter(|(_, is_made)| !is_made) {
            let claim = self.claim(key);
            let claim = claim.ok_or_else(|| VolumeClaimError::NotFound(key.name().to_owned()))?;
            let Some(name) = volume_name(claim) else {
                self.waits(claim)?;
                continue;
            };
            let volume = self.volume(name);
            let volume = volume.ok_or_else(|| VolumeClaimError::NoVolume(name.to_owned()))?;
            volumes.push(Rc::clone(volume));
        }
        Ok(volumes)
    }

    /// Checks that an unbound claim waits for its first consumer.
    fn waits(&self, claim: &PersistentVolumeClaim) -> Result<(), VolumeClaimError> {
        let class = class_of_claim(claim);
        if class.is_empty() {
            return Err(VolumeClaimError::NoClassName);
        }
        if !self.classes.contains_key(class) {
            return Err(VolumeClaimError::NoClass(class.to_owned()));
        }
        match self.waits_for_consumer(claim) {
            true => Ok(()),
            false => Err(VolumeClaimError::NoVolumeName),
        }
    }

    /// Is the claim bound only when a pod that uses it has a node?
    // k8s: component-helpers/storage/volume/pv_helpers.go IsDelayBindingMode
    pub(super) fn waits_for_consumer(&self, claim: &PersistentVolumeClaim) -> bool {
        let class = self.classes.get(class_of_claim(claim));
        let mode = class.and_then(|class| class.volume_binding_mode.as_deref());
        volume_name(claim).is_none() && mode == Some("WaitForFirstConsumer")
    }
}

/// Returns the claims of a pod, each once, and the order in which its volumes name them.
fn names(pod: &Pod) -> (Vec<Named>, Vec<usize>) {
    let (mut named, mut order) = (Vec::new(), Vec::new());
    let mut places: HashMap<Named, usize> = HashMap::new();
    for claim in volumes(pod).filter_map(|v| claim_of(pod, v)) {
        let at = *places.entry(claim).or_insert_with_key(|claim| {
            named.push(claim.clone());
            named.len() - 1
        });
        order.push(at);
    }
    (named, order)
}

fn unusable(
    pod: &Pod,
    key: &ObjectKey,
    claim: &PersistentVolumeClaim,
    is_made: bool,
) -> Result<(), VolumeClaimError> {
    let name = key.name();
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase == Some("Lost") {
        let (claim, volume) = (name.to_owned(), volume_name(claim).unwrap_or_default().to_owned());
        return Err(VolumeClaimError::Lost { claim, volume });
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(VolumeClaimError::Deleted(name.to_owned()));
    }
    let owners = claim.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    let is_ours = controllers.any(|owner| Some(owner.uid.as_str()) == pod.metadata.uid.as_deref());
    if is_made && !is_ours {
        // k8s: component-helpers/storage/ephemeral/ephemeral.go VolumeIsForPod
        let pod = pod.metadata.name.clone().unwrap_or_default();
        return Err(VolumeClaimError::NotOwner { claim: key.clone(), pod });
    }
    Ok(())
}
