//! Plans a pod's volumes from its spec. Pure.
//!
//! Input: the pod (with the API's defaults), the node's facts, the root directory. Output:
//! `PodVolumes` for `execute::mount_all`; `mounts` plans what a container sees of them. Owner: the
//! pod's worker, which plans again before each sync, so changed annotations reach downward API
//! volumes. It decides sizes and rejects invalid volumes; it never reads the disk.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    DownwardAPIVolumeFile, EmptyDirVolumeSource, Pod, Volume, VolumeProjection,
};

use super::claim::{self, ClaimedVolume, Claims, VolumeUses};
use super::kind;
pub use super::kind::{
    EmptyDir, HostPathType, HugePageError, Local, Medium, Nfs, UnknownHostPathType, VolumeKind,
};
use super::layout::PodDirs;
use super::nested::{self, Nested};
use super::payload::{
    CertificateRequest, Keys, PayloadSource, PayloadSources, TokenRequest, TrustRequest, mode_bits,
};
use crate::env::downward::{self, DownwardError};
use crate::storage::csi;
use crate::storage::disk;
use crate::storage::selinux::options_of;
use crate::types::NodeFacts;
use crate::volume::csi_dirs::CsiDirs;
use pintle_api_types::ids::PodUid;
use pintle_api_types::migration::{self, InTree};
use pintle_api_types::pod::claims::volume_claim_name;
use pintle_api_types::pod::resources::{self, Side};
use pintle_api_types::quantity::Amount;

/// Default of `defaultMode`.
const FILE_MODE: u32 = 0o644;
/// Default of a token's `expirationSeconds`.
const TOKEN_SECONDS: i64 = 3600;
/// The message for a volume that a container wants as a device and cannot have.
const RAW_BLOCK: &str = "volumeDevices of a volume that is no claim";

/// When a volume of a disk is given to the pod's group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupPolicy {
    /// Whenever the pod is set up.
    #[default]
    Always,
    /// When the volume's root does not say that it was.
    OnRootMismatch,
}

impl GroupPolicy {
    fn of(pod: &Pod) -> Self {
        let security = pintle_api_types::pod::spec(pod).security_context.as_ref();
        Self::parse(security.and_then(|context| context.fs_group_change_policy.as_deref()))
    }

    /// Reads `fsGroupChangePolicy`.
    pub fn parse(policy: Option<&str>) -> Self {
        match policy {
            Some("OnRootMismatch") => Self::OnRootMismatch,
            _ => Self::Always,
        }
    }
}

/// All volumes of one pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodVolumes {
    /// The pod.
    pub uid: PodUid,
    /// Its directories.
    pub dirs: PodDirs,
    /// Group that volumes belong to.
    pub fs_group: Option<u32>,
    /// When those of a disk are given to it.
    pub group_policy: GroupPolicy,
    /// In the order of the spec.
    pub volumes: Vec<PodVolume>,
}

/// One volume.
#[derive(Clone, Debug, PartialEq)]
pub struct PodVolume {
    /// Name within the pod.
    pub name: String,
    /// The kind of volume.
    pub kind: VolumeKind,
    /// The claim that it comes from.
    pub claim: Option<Arc<ClaimedVolume>>,
    /// Where other volumes are mounted inside it, relative; made beforehand in payload volumes,
    /// which containers cannot write. Others have none.
    pub nested: Vec<Nested>,
}

impl PodVolume {
    /// Its name on the disk and in messages: that of the PersistentVolume for a claim, and for a
    /// volume that a driver has in the place of a plugin.
    // k8s: pkg/volume/plugins.go Spec.Name
    pub fn disk_name(&self) -> &str {
        match (&self.claim, &self.kind) {
            (Some(claimed), _) => claimed.volume_name(),
            (None, kind) => kind.staged().map_or(&self.name, |volume| &volume.name),
        }
    }

    /// Directory that a container without sub-path mounts; `None` for images and devices.
    pub fn host_dir(&self, dirs: &PodDirs) -> Option<PathBuf> {
        match &self.kind {
            VolumeKind::HostPath { path, .. } => Some(path.clone()),
            _ if self.is_block() => None,
            VolumeKind::Csi(_) => {
                Some(CsiDirs::new(dirs.root()).target(dirs.uid(), self.disk_name()))
            }
            kind => Some(dirs.volume(kind.plugin()?.folder?, self.disk_name())),
        }
    }

    /// True for what containers never write.
    // k8s: pkg/volume/configmap/configmap.go GetAttributes, and its siblings
    pub fn is_read_only(&self) -> bool {
        self.claim.as_ref().is_some_and(|claimed| claimed.is_read_only)
            || self.kind.plugin().is_some_and(|plugin| plugin.is_payload)
            || match &self.kind {
                VolumeKind::Nfs(nfs) => nfs.read_only,
                kind => kind.staged().is_some_and(|volume| volume.is_read_only),
            }
    }

    /// True where containers get a device.
    pub fn is_block(&self) -> bool {
        self.claim.as_ref().is_some_and(|claimed| claimed.is_block())
    }

    /// True where no other pod has the files: `Managed` and `SELinuxRelabel` of upstream.
    // k8s: pkg/volume/emptydir/empty_dir.go GetAttributes, and its siblings
    pub fn is_made_for_the_pod(&self) -> bool {
        self.kind.plugin().is_some_and(|plugin| plugin.takes_label)
    }
}

impl PodVolumes {
    /// Plans the volumes of a pod with its resolved claims.
    pub fn plan(root: &Path, node: &NodeFacts, pod: &Pod, claims: &Claims) -> Self {
        let spec = pintle_api_types::pod::spec(pod);
        let uid = pintle_api_types::pod::uid(pod);
        let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group);
        let planner = Planner {
            node,
            pod,
            fields: RefCell::default(),
            nested: nested::mount_points(pod),
            memory_bytes: memory_of(node, pod),
            owner: fs_user(pod),
            page_sizes: OnceCell::new(),
            claims,
            uses: VolumeUses::of(spec),
        };
        let volumes = spec.volumes.iter().flatten();
        let volumes = volumes.filter_map(|volume| planner.volume(volume)).collect();
        let dirs = PodDirs::new(root, &uid);
        let fs_group = fs_group.and_then(|g| u32::try_from(g).ok());
        Self { uid, dirs, fs_group, group_policy: GroupPolicy::of(pod), volumes }
    }
}

/// True when a change of the pod itself may change files of its volumes.
pub fn shows_change(before: &Pod, now: &Pod) -> bool {
    let of_itself = |volume: &Volume| {
        let projections = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        volume.downward_api.is_some() || projections.into_iter().any(|p| p.downward_api.is_some())
    };
    pintle_api_types::pod::spec(now).volumes.iter().flatten().any(of_itself)
        && (before.metadata.labels != now.metadata.labels
            || before.metadata.annotations != now.metadata.annotations
            || before.spec != now.spec)
}

struct Planner<'a> {
    node: &'a NodeFacts,
    pod: &'a Pod,
    /// By path: thousands of files may show the same annotations.
    fields: RefCell<BTreeMap<String, Shown>>,
    nested: HashMap<&'a str, Vec<Nested>>,
    // These depend on all containers, so they are computed once for all volumes.
    memory_bytes: Option<u64>,
    owner: Option<u32>,
    page_sizes: OnceCell<PageSizes>,
    claims: &'a Claims,
    uses: VolumeUses<'a>,
}

/// Content of a file, or the reason for which it has none.
type Shown = Result<Arc<[u8]>, DownwardError>;

/// The sizes of huge pages that a pod requests: each text, and its bytes if it is a size.
type PageSizes = BTreeMap<String, Option<u64>>;

impl Planner<'_> {
    /// `None` for a volume that is another's affair and that no container uses.
    fn volume(&self, volume: &Volume) -> Option<PodVolume> {
        let name = volume.name.clone();
        let claimed = self.claims.get(&name);
        let mut kind = match claimed {
            Some(claimed) => claimed.kind(),
            None => self.kind(volume),
        };
        if let VolumeKind::Csi(of_driver) = &mut kind {
            of_driver.labels = options_of(self.pod, &name);
        }
        let is_own = kind.plugin().is_some() && kind.staged().is_none();
        let is_served = is_own && claimed.is_none();
        if !is_served && !self.uses.has(&name) {
            return None;
        }
        let kind = match self.uses.devices.contains(&*name) && claimed.is_none() {
            true if !matches!(kind, VolumeKind::Claim(_)) => VolumeKind::Unsupported(RAW_BLOCK),
            _ => kind,
        };
        let nested = self.nested.get(&*name).filter(|_| matches!(kind, VolumeKind::Payload { .. }));
        let nested = nested.cloned().unwrap_or_default();
        Some(PodVolume { name, kind, claim: claimed.cloned(), nested })
    }

    fn kind(&self, volume: &Volume) -> VolumeKind {
        let memory = || EmptyDir { medium: self.memory(None), size_limit: None };
        let disk = || EmptyDir { medium: Medium::Disk, size_limit: None };
        let payload = |plugin, wrapped, mode: Option<i32>, list| VolumeKind::Payload {
            plugin,
            wrapped,
            sources: self.sources(mode, list),
        };
        if let Some(source) = &volume.host_path {
            let text = source.type_.clone().unwrap_or_default();
            let kind = HostPathType::parse(&text).ok_or(UnknownHostPathType(text));
            return VolumeKind::HostPath { path: PathBuf::from(&source.path), kind };
        }
        if let Some(source) = &volume.config_map {
            let keys = keys(Some(&source.name), &source.items, source.optional);
            let list = vec![PayloadSource::ConfigMap(keys)];
            return payload(&kind::CONFIG_MAP, disk(), source.default_mode, list);
        }
        if let Some(source) = &volume.secret {
            let keys = keys(source.secret_name.as_ref(), &source.items, source.optional);
            let list = vec![PayloadSource::Secret(keys)];
            return payload(&kind::SECRET, memory(), source.default_mode, list);
        }
        if let Some(source) = &volume.downward_api {
            let list = self.fields(&source.items);
            return payload(&kind::DOWNWARD_API, memory(), source.default_mode, list);
        }
        if let Some(source) = &volume.projected {
            let projections = source.sources.iter().flatten();
            let projections = projections.enumerate();
            let list = projections.flat_map(|(at, p)| self.projection(&volume.name, at, p));
            let list = list.collect();
            return payload(&kind::PROJECTED, memory(), source.default_mode, list);
        }
        if let Some(source) = &volume.image {
            let reference = source.reference.clone().unwrap_or_default();
            let pull_policy = source.pull_policy.clone().unwrap_or_default();
            return VolumeKind::Image { reference, pull_policy };
        }
        if let Some(source) = &volume.nfs {
            let is_read_only = source.read_only == Some(true);
            return VolumeKind::Nfs(Nfs::of(source, is_read_only, Vec::new()));
        }
        if let Some(source) = &volume.csi {
            let uid = pintle_api_types::pod::uid(self.pod);
            let namespace = pintle_api_types::pod::namespace(self.pod);
            let volume = csi::Volume::of_pod(source, &volume.name, &uid, namespace);
            return VolumeKind::Csi(Box::new(volume));
        }
        if let Some(disk) = self.network_disk(volume) {
            return disk;
        }
        if let Some(claim) = volume_claim_name(self.pod, volume) {
            return VolumeKind::Claim(claim);
        }
        if InTree::of_pod(volume).is_some() {
            return self.of_driver(volume);
        }
        match unsupported(volume) {
            Some(field) => VolumeKind::Unsupported(field),
            // A volume without any source is an emptyDir.
            None => VolumeKind::EmptyDir(self.empty_dir(volume.empty_dir.as_ref())),
        }
    }

    /// A volume that a driver has in the place of a plugin. A read-only one is published as one that
    /// is written to, as by the kubelet; its access mode says that it is read.
    // k8s: pkg/volume/csimigration/plugin_manager.go TranslateInTreeSpecToCSI
    fn of_driver(&self, volume: &Volume) -> VolumeKind {
        let namespace = pintle_api_types::pod::namespace(self.pod);
        let refuse = |why: &str| {
            VolumeKind::Untranslatable(format!("failed to translate in-tree pv to CSI: {why}"))
        };
        let translated = match migration::csi_volume_of_pod(volume, namespace) {
            Ok(translated) => translated,
            Err(error) => return refuse(&error.to_string()),
        };
        match translated.and_then(|volume| csi::Volume::of_claim(&volume, false, None)) {
            // Its folder would be another one.
            Some(found) if matches!(&*found.name, "" | "." | "..") => refuse("it has no name"),
            Some(found) => VolumeKind::Csi(Box::new(found.migrated())),
            None => refuse("it has no driver"),
        }
    }

    fn network_disk(&self, volume: &Volume) -> Option<VolumeKind> {
        let namespace = pintle_api_types::pod::namespace(self.pod);
        let made = match (&volume.iscsi, &volume.fc) {
            (Some(source), _) => disk::iscsi_of_pod(source, &volume.name, namespace),
            (None, Some(source)) => disk::fc_of_pod(source, &volume.name),
            (None, None) => return None,
        };
        Some(claim::disk_kind(made))
    }

    fn empty_dir(&self, source: Option<&EmptyDirVolumeSource>) -> EmptyDir {
        let limit = source.and_then(|s| s.size_limit.as_ref());
        let size_limit = limit.and_then(|q| Amount::parse(&q.0)).map(Amount::units);
        let size_limit = size_limit.and_then(|b| u64::try_from(b).ok()).filter(|b| *b > 0);
        let medium = match source.and_then(|s| s.medium.as_deref()).unwrap_or_default() {
            "" => Medium::Disk,
            "Memory" => self.memory(size_limit),
            "HugePages" => Medium::HugePages(self.huge_pages("HugePages", None)),
            other => match other.strip_prefix("HugePages-") {
                Some(size) => Medium::HugePages(self.huge_pages(other, Some(size))),
                None => Medium::Unknown(other.to_owned()),
            },
        };
        EmptyDir { medium, size_limit }
    }

    /// The smallest of the node's memory, the pod's limit and the volume's limit.
    // k8s: pkg/volume/emptydir/empty_dir.go calculateEmptyDirMemorySize
    fn memory(&self, size_limit: Option<u64>) -> Medium {
        Medium::Memory([self.memory_bytes, size_limit].into_iter().flatten().min())
    }

    /// Page size in bytes.
    // k8s: pkg/volume/emptydir/empty_dir.go getPageSizeMountOption
    fn huge_pages(&self, medium: &str, size: Option<&str>) -> Result<u64, HugePageError> {
        let parsed = |text: &str, bytes: Option<u64>| {
            let (medium, size) = (medium.to_owned(), text.to_owned());
            bytes.ok_or(HugePageError::NoSize { medium, size })
        };
        let wanted = size.map(|size| parsed(size, page_bytes(size))).transpose()?;
        let mut found = None;
        for (size, bytes) in self.page_sizes.get_or_init(|| page_sizes(self.pod)) {
            let bytes = parsed(size, *bytes)?;
            match (wanted, found) {
                (Some(wanted), _) if wanted != bytes => {}
                (None, Some(other)) if other != bytes => {
                    return Err(HugePageError::SeveralSizes(medium.to_owned()));
                }
                _ => found = Some(bytes),
            }
        }
        found.ok_or_else(|| HugePageError::NoRequest(medium.to_owned()))
    }

    fn sources(&self, mode: Option<i32>, list: Vec<PayloadSource>) -> PayloadSources {
        let security = pintle_api_types::pod::spec(self.pod).security_context.as_ref();
        PayloadSources {
            namespace: pintle_api_types::pod::namespace(self.pod).to_owned(),
            default_mode: mode.map_or(FILE_MODE, mode_bits),
            list,
            owner: self.owner,
            has_group: security.is_some_and(|c| c.fs_group.is_some()),
        }
    }

    // k8s: pkg/volume/downwardapi/downwardapi.go CollectData
    fn fields(&self, items: &Option<Vec<DownwardAPIVolumeFile>>) -> Vec<PayloadSource> {
        let field = |item: &DownwardAPIVolumeFile| {
            let data = match (&item.field_ref, &item.resource_field_ref) {
                (Some(field), _) => self.field(&field.field_path),
                (None, Some(resource)) => downward::resource(resource, self.pod, None, self.node)
                    .map(|text| text.into_bytes().into()),
                (None, None) => Ok(Arc::default()),
            };
            PayloadSource::Field { path: item.path.clone(), mode: item.mode.map(mode_bits), data }
        };
        items.iter().flatten().map(field).collect()
    }

    fn field(&self, path: &str) -> Shown {
        if let Some(known) = self.fields.borrow().get(path) {
            return known.clone();
        }
        let shown = nested::field(self.pod, path).map(|text| text.into_bytes().into());
        self.fields.borrow_mut().insert(path.to_owned(), shown.clone());
        shown
    }

    fn projection(&self, volume: &str, at: usize, source: &VolumeProjection) -> Vec<PayloadSource> {
        if let Some(s) = &source.secret {
            return vec![PayloadSource::Secret(keys(Some(&s.name), &s.items, s.optional))];
        }
        if let Some(s) = &source.config_map {
            return vec![PayloadSource::ConfigMap(keys(Some(&s.name), &s.items, s.optional))];
        }
        if let Some(s) = &source.downward_api {
            return self.fields(&s.items);
        }
        if let Some(s) = &source.service_account_token {
            return vec![PayloadSource::Token(TokenRequest {
                path: s.path.clone(),
                audience: s.audience.clone().unwrap_or_default(),
                expiration_seconds: s.expiration_seconds.unwrap_or(TOKEN_SECONDS),
            })];
        }
        if let Some(s) = &source.cluster_trust_bundle {
            return vec![PayloadSource::TrustBundle(TrustRequest {
                path: s.path.clone(),
                name: s.name.clone(),
                signer: s.signer_name.clone(),
                labels: s.label_selector.clone(),
                optional: s.optional == Some(true),
            })];
        }
        // Validation lets no source pass that is none of these.
        let certificate = source.pod_certificate.clone().unwrap_or_default();
        vec![PayloadSource::Certificate(CertificateRequest {
            volume: volume.to_owned(),
            source: at,
            signer: certificate.signer_name,
            key_type: certificate.key_type,
            expiration_seconds_max: certificate.max_expiration_seconds,
            annotations: certificate.user_annotations,
            bundle_path: certificate.credential_bundle_path,
            key_path: certificate.key_path,
            chain_path: certificate.certificate_chain_path,
        })]
    }
}

fn keys(
    name: Option<&String>,
    items: &Option<Vec<k8s_openapi::api::core::v1::KeyToPath>>,
    optional: Option<bool>,
) -> Keys {
    Keys {
        name: name.cloned().unwrap_or_default(),
        items: items.clone().unwrap_or_default(),
        optional: optional == Some(true),
    }
}

/// The bound of all of a pod's volumes in memory: the node's memory and the pod's limit.
fn memory_of(node: &NodeFacts, pod: &Pod) -> Option<u64> {
    let node = Some(node.memory_allocatable_bytes).filter(|b| *b > 0);
    let limits = resources::pod_limits(pod);
    let limit = resources::is_limited(pod, "memory").then(|| limits.get("memory"));
    let pod = limit.flatten().and_then(|l| u64::try_from(l.units()).ok()).filter(|b| *b > 0);
    node.into_iter().chain(pod).min()
}

fn page_sizes(pod: &Pod) -> PageSizes {
    let spec = pintle_api_types::pod::spec(pod);
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let requests = containers.map(|c| resources::of_container(c, Side::Requests));
    let requests = requests.chain([resources::pod_level(spec, Side::Requests)]);
    let names = requests.flat_map(|requests| requests.into_keys());
    let sizes = names.filter_map(|name| name.strip_prefix("hugepages-").map(str::to_owned));
    sizes.map(|size| (page_bytes(&size), size)).map(|(bytes, size)| (size, bytes)).collect()
}

fn page_bytes(size: &str) -> Option<u64> {
    Amount::parse(size).and_then(|amount| u64::try_from(amount.units()).ok())
}

/// The one user that all containers run as.
// k8s: pkg/volume/util/util.go FsUserFrom
fn fs_user(pod: &Pod) -> Option<u32> {
    let spec = pintle_api_types::pod::spec(pod);
    let of_pod = spec.security_context.as_ref().and_then(|c| c.run_as_user);
    let main = spec.init_containers.iter().flatten().chain(&spec.containers);
    let main = main.map(|c| c.security_context.as_ref());
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let contexts = main.chain(ephemeral.map(|c| c.security_context.as_ref()));
    let mut users = contexts.map(|c| c.and_then(|c| c.run_as_user).or(of_pod));
    let first = users.next().flatten()?;
    let same = users.all(|user| user == Some(first));
    same.then(|| u32::try_from(first).ok()).flatten()
}

fn unsupported(volume: &Volume) -> Option<&'static str> {
    let table = [
        (volume.flex_volume.is_some(), "flexVolume"),
        (volume.git_repo.is_some(), "gitRepo"),
        (volume.cephfs.is_some(), "cephfs"),
        (volume.flocker.is_some(), "flocker"),
        (volume.glusterfs.is_some(), "glusterfs"),
        (volume.photon_persistent_disk.is_some(), "photonPersistentDisk"),
        (volume.quobyte.is_some(), "quobyte"),
        (volume.rbd.is_some(), "rbd"),
        (volume.scale_io.is_some(), "scaleIO"),
        (volume.storageos.is_some(), "storageos"),
    ];
    table.into_iter().find(|(set, _)| *set).map(|(_, field)| field)
}

#[cfg(test)]
mod tests;
