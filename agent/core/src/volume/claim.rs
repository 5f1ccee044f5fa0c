//! Resolves a pod's claim to the volume that it is bound to, or to the reason that it cannot be
//! used. Pure.
//!
//! Input: the pod, and what the API server answers for the PersistentVolumeClaim and the
//! PersistentVolume that it names. Output: a `ClaimedVolume` with the kind of volume to set up, or
//! the kubelet's sentence. Owner: the stage of objects, which reads both for the pod's worker. A
//! claim is never watched, because the node authorizer lets a node get it and nothing else.
// k8s: pkg/kubelet/volumemanager/populator/desired_state_of_world_populator.go createVolumeSpec

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{
    Container, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, Pod, PodSpec, Volume,
};
use pintle_api_types::ids::PodUid;
use pintle_api_types::migration::{InTree, TranslateError, csi_volume};
use pintle_api_types::node_match::selects;
use pintle_api_types::pod;
use pintle_api_types::pod::claims::volume_claim_name;
use pintle_api_types::pod::containers;

use super::kind::{HostPathType, Local, Nfs, UnknownHostPathType, VolumeKind};
use crate::storage::csi;
use crate::storage::disk::{self, InvalidDisk};

/// Keeps a claim that pods use from being deleted.
const PROTECTION: &str = "kubernetes.io/pvc-protection";
/// Group of the files of a PersistentVolume, which its pods get.
const GROUP_ANNOTATION: &str = "pv.beta.kubernetes.io/gid";
/// Mount options of a PersistentVolume from before they had a field; they win.
const OPTIONS_ANNOTATION: &str = "volume.beta.kubernetes.io/mount-options";
/// Volume mode of devices.
const BLOCK: &str = "Block";
/// Volume mode of file systems.
const FILESYSTEM: &str = "Filesystem";

/// The volumes that containers of a pod use, by name.
#[derive(Debug, Default)]
pub struct VolumeUses<'a> {
    /// In `volumeMounts`.
    pub mounts: HashSet<&'a str>,
    /// In `volumeDevices`.
    pub devices: HashSet<&'a str>,
}

impl<'a> VolumeUses<'a> {
    /// Of all containers, ephemeral ones included.
    // k8s: pkg/volume/util/util.go GetPodVolumeNames
    pub fn of(spec: &'a PodSpec) -> Self {
        let mut uses = Self::default();
        let own = containers::all(spec).map(|(_, container)| container);
        own.for_each(|Container { volume_mounts, volume_devices, .. }| {
            uses.mounts.extend(volume_mounts.iter().flatten().map(|mount| &*mount.name));
            uses.devices.extend(volume_devices.iter().flatten().map(|device| &*device.name));
        });
        for container in spec.ephemeral_containers.iter().flatten() {
            uses.mounts.extend(container.volume_mounts.iter().flatten().map(|m| &*m.name));
            uses.devices.extend(container.volume_devices.iter().flatten().map(|d| &*d.name));
        }
        uses
    }

    /// True when a container uses the volume.
    pub fn has(&self, volume: &str) -> bool {
        self.mounts.contains(volume) || self.devices.contains(volume)
    }
}

/// A claim that a pod's volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimRef {
    /// Name of the volume within the pod.
    pub volume: String,
    /// Name of the claim, in the pod's namespace.
    pub claim: String,
    /// The claim is made for the pod and has to be owned by it.
    pub is_ephemeral: bool,
    /// The pod never writes.
    pub is_read_only: bool,
    /// A container mounts it.
    pub is_mounted: bool,
    /// A container has it as a device.
    pub is_device: bool,
}

/// The claims that containers of the pod use, in the order of the spec.
pub fn of(pod: &Pod) -> Vec<ClaimRef> {
    let spec = pod::spec(pod);
    let uses = VolumeUses::of(spec);
    let refer = |volume: &Volume| {
        let claim = volume_claim_name(pod, volume).filter(|_| uses.has(&volume.name))?;
        let source = volume.persistent_volume_claim.as_ref();
        Some(ClaimRef {
            volume: volume.name.clone(),
            claim,
            is_ephemeral: source.is_none(),
            is_read_only: source.is_some_and(|source| source.read_only == Some(true)),
            is_mounted: uses.mounts.contains(&*volume.name),
            is_device: uses.devices.contains(&*volume.name),
        })
    };
    spec.volumes.iter().flatten().filter_map(refer).collect()
}

/// The API server's message when it returned no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(pub String);

/// The reason for which a claim cannot be used, worded as the kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The claim or the volume does not exist, is not bound, or they are not bound to each other.
    #[error("error processing PVC {namespace}/{claim}: {why}")]
    Unusable {
        /// The pod's namespace.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// The reason.
        why: String,
    },
    /// The claim of an ephemeral volume belongs to something else.
    #[error("PVC {namespace}/{claim} was not created for pod {namespace}/{pod} (pod is not owner)")]
    NotOwned {
        /// The pod's namespace.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// Name of the pod.
        pod: String,
    },
    /// The driver in the place of the volume's plugin cannot have it.
    #[error("failed to translate in-tree pv to CSI: {0}")]
    Untranslatable(TranslateError),
    /// Containers want the volume in another mode than it has.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    Mode {
        /// Name of the volume within the pod.
        volume: String,
        /// Its mode.
        mode: &'static str,
        /// `volumeMounts` or `volumeDevices`.
        field: &'static str,
    },
}

impl ClaimError {
    fn unusable(pod: &Pod, wanted: &ClaimRef, why: impl Into<String>) -> Self {
        let (namespace, claim) = (pod::namespace(pod).to_owned(), wanted.claim.clone());
        Self::Unusable { namespace, claim, why: why.into() }
    }
}

/// A claim that is bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundClaim {
    /// Name of the PersistentVolume.
    pub volume: String,
    uid: String,
    capacity: Option<String>,
}

impl BoundClaim {
    /// From what the API server answered for the claim.
    ///
    /// # Errors
    /// The claim is not there, is being deleted, is not bound or is not the pod's.
    // k8s: pkg/kubelet/volumemanager/populator getPVCExtractPV
    pub fn of(
        pod: &Pod,
        wanted: &ClaimRef,
        answer: Result<PersistentVolumeClaim, FetchError>,
    ) -> Result<Self, ClaimError> {
        let fail = |why: &str| ClaimError::unusable(pod, wanted, why);
        let claim =
            answer.map_err(|why| fail(&format!("failed to fetch PVC from API server: {why}")))?;
        let mut finalizers = claim.metadata.finalizers.iter().flatten();
        // A claim in use keeps the finalizer, so pods that run are not affected.
        if claim.metadata.deletion_timestamp.is_some() && !finalizers.any(|f| f == PROTECTION) {
            return Err(fail("PVC is being deleted"));
        }
        let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase != Some("Bound") {
            return Err(fail("PVC is not bound"));
        }
        if wanted.is_ephemeral && !is_owned(pod, &claim) {
            return Err(ClaimError::NotOwned {
                namespace: pod::namespace(pod).to_owned(),
                claim: wanted.claim.clone(),
                pod: pod::name(pod).to_owned(),
            });
        }
        let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone());
        let capacity = claim.status.as_ref().and_then(csi::claim_capacity).map(str::to_owned);
        let uid = claim.metadata.uid.unwrap_or_default();
        match volume.filter(|name| !name.is_empty()) {
            Some(volume) => Ok(Self { volume, uid, capacity }),
            None => Err(fail("PVC has empty pvc.Spec.VolumeName")),
        }
    }

    /// The volume that the claim is bound to, from what the API server answered for it; as a volume
    /// of a CSI driver where its plugin was once part of Kubernetes.
    ///
    /// # Errors
    /// The volume is not there, is bound to another claim, cannot be had by its driver or has another
    /// mode than containers want.
    // k8s: pkg/kubelet/volumemanager/populator getPVSpec, createVolumeSpec
    pub fn resolve(
        &self,
        pod: &Pod,
        wanted: &ClaimRef,
        answer: Result<PersistentVolume, FetchError>,
    ) -> Result<ClaimedVolume, ClaimError> {
        let fail = |why: String| ClaimError::unusable(pod, wanted, why);
        let name = &self.volume;
        let volume = answer
            .map_err(|why| fail(format!("failed to fetch PV {name} from API server: {why}")))?;
        let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let Some(claim) = claim else {
            return Err(fail(format!(
                "found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet \
                 bound to the claim"
            )));
        };
        let uid = claim.uid.as_deref().unwrap_or_default();
        if uid != self.uid {
            return Err(fail(format!(
                "found PV object {name} but its pv.Spec.ClaimRef.UID {uid} does not point to \
                 claim.UID {}",
                self.uid
            )));
        }
        let is_migrated = InTree::of_volume(&volume).is_some();
        let volume = csi_volume(volume).map_err(ClaimError::Untranslatable)?;
        let (claim, is_read_only) = (wanted.claim.clone(), wanted.is_read_only);
        let capacity = self.capacity.clone();
        let claimed = ClaimedVolume { claim, is_read_only, capacity, volume, is_migrated };
        let misuse = match claimed.is_block() {
            true => wanted.is_mounted.then_some((BLOCK, "volumeMounts")),
            false => wanted.is_device.then_some((FILESYSTEM, "volumeDevices")),
        };
        match misuse {
            Some((mode, field)) => {
                Err(ClaimError::Mode { volume: wanted.volume.clone(), mode, field })
            }
            None => Ok(claimed),
        }
    }
}

/// True for a claim that was made for this pod.
// k8s: k8s.io/component-helpers/storage/ephemeral VolumeIsForPod
fn is_owned(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true));
    owner.is_some_and(|owner| pod.metadata.uid.as_ref() == Some(&owner.uid))
        && claim.metadata.namespace == pod.metadata.namespace
}

/// A volume that a pod has by a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedVolume {
    /// Name of the claim.
    pub claim: String,
    /// The pod never writes.
    pub is_read_only: bool,
    /// `status.capacity` of the claim, which is less than the volume's while it is expanded.
    pub capacity: Option<String>,
    /// The PersistentVolume.
    pub volume: PersistentVolume,
    /// Its plugin was once part of Kubernetes; `volume` is the driver's.
    pub is_migrated: bool,
}

impl ClaimedVolume {
    /// Name of the PersistentVolume.
    pub fn volume_name(&self) -> &str {
        self.volume.metadata.name.as_deref().unwrap_or_default()
    }

    fn spec(&self) -> Option<&PersistentVolumeSpec> {
        self.volume.spec.as_ref()
    }

    /// True where containers get a device.
    pub fn is_block(&self) -> bool {
        self.spec().is_some_and(|spec| spec.volume_mode.as_deref() == Some(BLOCK))
    }

    /// True where one pod of the whole cluster may use it.
    // k8s: pkg/volume/util/operationexecutor/operation_generator.go GenerateMountVolumeFunc
    pub fn is_for_one_pod(&self) -> bool {
        let modes = self.spec().and_then(|spec| spec.access_modes.as_deref());
        modes.is_some_and(|modes| matches!(modes, [mode] if mode == "ReadWriteOncePod"))
    }

    /// The mount options of the volume, sorted.
    // k8s: pkg/volume/util/util.go MountOptionFromSpec, JoinMountOptions
    pub fn mount_options(&self) -> Vec<String> {
        let annotations = self.volume.metadata.annotations.as_ref();
        let old = annotations.and_then(|all| all.get(OPTIONS_ANNOTATION));
        let listed = self.spec().and_then(|spec| spec.mount_options.as_deref());
        let options: BTreeSet<&str> = match old {
            Some(old) => old.split(',').collect(),
            None => listed.unwrap_or_default().iter().map(String::as_str).collect(),
        };
        options.into_iter().filter(|option| !option.is_empty()).map(str::to_owned).collect()
    }

    /// The supplemental group that the pod's processes get, unless the pod has it.
    // k8s: pkg/kubelet/volumemanager/volume_manager.go getExtraSupplementalGID
    pub fn extra_group(&self, pod: &Pod) -> Option<i64> {
        let text = self.volume.metadata.annotations.as_ref()?.get(GROUP_ANNOTATION)?;
        let group = text.parse().ok()?;
        let security = pod::spec(pod).security_context.as_ref();
        let own = security.and_then(|security| security.supplemental_groups.as_deref());
        (!own.unwrap_or_default().contains(&group)).then_some(group)
    }

    /// Why the volume must not be set up on a node with these labels: the step, and the reason.
    // k8s: pkg/volume/util/operationexecutor/operation_generator.go checkNodeAffinity,
    // checkMountOptionSupport
    pub fn refusal(&self, labels: &BTreeMap<String, String>) -> Option<(&'static str, String)> {
        let affinity = self.spec()?.node_affinity.as_ref();
        let required = affinity.and_then(|affinity| affinity.required.as_ref());
        if !self.is_block() && required.is_some_and(|terms| !selects(terms, "", labels)) {
            let why = "no matching NodeSelectorTerms".to_owned();
            return Some(("MountVolume.NodeAffinity check", why));
        }
        let plugin = self.kind().plugin()?;
        if !plugin.takes_options && !self.mount_options().is_empty() {
            let why = "Mount options are not supported for this volume type".to_owned();
            return Some(("MountVolume.MountOptionSupport check", why));
        }
        None
    }

    /// The kind of volume to set up. The pod's claim decides whether it is read-only, not the
    /// volume.
    pub fn kind(&self) -> VolumeKind {
        let Some(spec) = self.spec() else { return VolumeKind::Unsupported("spec") };
        let (is_block, options) = (self.is_block(), self.mount_options());
        if let Some(source) = &spec.local {
            let local = Local::of(source);
            return VolumeKind::Local(Local {
                options,
                read_only: self.is_read_only,
                is_block,
                size: csi::ClaimSize::of(&self.volume, self.capacity.as_deref()),
                ..local
            });
        }
        if let Some(volume) =
            csi::Volume::of_claim(&self.volume, self.is_read_only, self.capacity.as_deref())
        {
            return VolumeKind::Csi(Box::new(csi::Volume {
                is_migrated: self.is_migrated,
                ..volume
            }));
        }
        let made = disk::of_claim(&self.volume, self.is_read_only, options.clone());
        if let Some(made) = made {
            return disk_kind(made);
        }
        match (&spec.host_path, &spec.nfs) {
            // Neither has devices.
            _ if is_block => {}
            (Some(source), _) => {
                let text = source.type_.clone().unwrap_or_default();
                let kind = HostPathType::parse(&text).ok_or(UnknownHostPathType(text));
                return VolumeKind::HostPath { path: PathBuf::from(&source.path), kind };
            }
            (_, Some(source)) => {
                return VolumeKind::Nfs(Nfs::of(source, self.is_read_only, options));
            }
            _ => {}
        }
        VolumeKind::Unsupported(unsupported(spec))
    }
}

/// The volume of a network disk, or why it cannot be one.
pub(super) fn disk_kind(made: Result<csi::Volume, InvalidDisk>) -> VolumeKind {
    match made {
        Ok(volume) => VolumeKind::NetworkDisk(Box::new(volume)),
        Err(why) => VolumeKind::Untranslatable(why.to_string()),
    }
}

/// The field of a source that no plugin here serves.
fn unsupported(spec: &PersistentVolumeSpec) -> &'static str {
    let table = [
        (spec.flex_volume.is_some(), "flexVolume"),
        (spec.host_path.is_some(), "hostPath as a block device"),
        (spec.nfs.is_some(), "nfs as a block device"),
    ];
    let found = table.into_iter().find(|(is_set, _)| *is_set);
    found.map_or("a source that is withdrawn", |(_, field)| field)
}

/// Resolved claims of a pod, by the name of the volume within the pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Claims(BTreeMap<String, Arc<ClaimedVolume>>);

impl Claims {
    /// The volume behind a claim, once resolved.
    pub fn get(&self, volume: &str) -> Option<&Arc<ClaimedVolume>> {
        self.0.get(volume)
    }

    /// Adds one.
    pub fn insert(&mut self, volume: &str, claimed: ClaimedVolume) {
        self.0.insert(volume.to_owned(), Arc::new(claimed));
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<ClaimedVolume>)> {
        self.0.iter().map(|(volume, claimed)| (&**volume, claimed))
    }

    /// Supplemental groups that the pod's processes get.
    // k8s: pkg/kubelet/volumemanager/volume_manager.go GetExtraSupplementalGroupsForPod
    pub fn extra_groups(&self, pod: &Pod) -> Vec<i64> {
        let groups: BTreeSet<i64> = self.0.values().filter_map(|c| c.extra_group(pod)).collect();
        groups.into_iter().collect()
    }
}

/// Resolved claims of all pods, for readers on other threads. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ClaimViews(Arc<Mutex<BTreeMap<PodUid, Arc<Claims>>>>);

impl ClaimViews {
    fn pods(&self) -> MutexGuard<'_, BTreeMap<PodUid, Arc<Claims>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the claims of a pod.
    pub fn set(&self, uid: &PodUid, claims: &Arc<Claims>) {
        self.pods().insert(uid.clone(), Arc::clone(claims));
    }

    /// Shows none of this pod any more.
    pub fn remove(&self, uid: &PodUid) {
        self.pods().remove(uid);
    }

    /// The claims of a pod.
    pub fn get(&self, uid: &PodUid) -> Arc<Claims> {
        self.pods().get(uid).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
