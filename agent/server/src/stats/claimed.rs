//! Which volumes have figures of their own: claims, shares of servers, volumes of CSI drivers.
//!
//! Input: the snapshot's pods and their resolved claims. Output: a `ClaimTarget` for each, with the
//! source of its figures: the driver, the file system, or the size of the device. Pure. Bound:
//! `VOLUMES_MAX` volumes.
// k8s: pkg/kubelet/server/stats/volume_stat_calculator.go calcAndStoreStats

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Pod, Volume};
use pintle_agent_core::storage::{csi, disk};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::volume::csi_dirs::CsiDirs;
use pintle_agent_core::volume::kind::{ISCSI, NFS, Nfs, UsageSource, VolumeKind};
use pintle_agent_core::volume::layout::device_map;
use pintle_agent_core::volume::{ClaimViews, ClaimedVolume, PodDirs};
use pintle_api_types::pod;

use super::driver_stats::VolumeQuery;
use super::volumes::PvcRef;

/// Volumes of one round.
const VOLUMES_MAX: usize = 4096;

/// A volume with figures of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimTarget {
    pub(super) uid: PodUid,
    /// Its name within the pod.
    pub(super) name: String,
    pub(super) claim: Option<PvcRef>,
    pub(super) source: FigureSource,
}

/// Where the figures of a volume come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FigureSource {
    /// A statfs of the mounted folder.
    FileSystem {
        path: PathBuf,
        /// The server of its files; `None` for a disk.
        server: Option<String>,
    },
    /// The size of a device; nothing is known of its use.
    // k8s: pkg/volume/metrics_block.go
    Device { path: PathBuf },
    /// The driver's answer.
    // k8s: pkg/volume/csi/csi_metrics.go
    Driver(VolumeQuery),
}

impl ClaimTarget {
    /// The path at which the pod has the volume, which no other volume has.
    pub(super) fn path(&self) -> &Path {
        match &self.source {
            FigureSource::FileSystem { path, .. } | FigureSource::Device { path } => path,
            FigureSource::Driver(question) => &question.path,
        }
    }
}

/// The volumes of pods with a ready sandbox: those of others may be half prepared.
pub(super) fn targets(snapshot: &Snapshot, claims: &ClaimViews, root: &Path) -> Vec<ClaimTarget> {
    let mut found = Vec::new();
    for (uid, view) in &snapshot.pods {
        if !view.observed.sandboxes.iter().any(|sandbox| sandbox.ready) {
            continue;
        }
        let finder = Finder { root, uid, pod: &view.pod };
        for (volume, claimed) in claims.get(uid).iter() {
            found.extend(finder.of_claim(volume, claimed));
        }
        let volumes = pod::spec(&view.pod).volumes.iter().flatten();
        found.extend(volumes.filter_map(|volume| finder.of_spec(volume)));
    }
    found.truncate(VOLUMES_MAX);
    found
}

/// Makes the targets of one pod.
struct Finder<'a> {
    root: &'a Path,
    uid: &'a PodUid,
    pod: &'a Pod,
}

impl Finder<'_> {
    fn of_claim(&self, volume: &str, claimed: &ClaimedVolume) -> Option<ClaimTarget> {
        let kind = claimed.kind();
        let (name, plugin) = (claimed.volume_name(), kind.plugin()?);
        let source = match (&kind, plugin.usage) {
            (VolumeKind::Csi(volume), UsageSource::Driver) => self.driver(volume),
            (_, UsageSource::FileSystem) if claimed.is_block() => {
                let map = device_map(self.root, plugin.folder?, name);
                FigureSource::Device { path: map.join(self.uid.as_str()) }
            }
            (_, UsageSource::FileSystem) => FigureSource::FileSystem {
                path: PodDirs::new(self.root, self.uid).volume(plugin.folder?, name),
                server: server_of(&kind),
            },
            _ => return None,
        };
        let namespace = pod::namespace(self.pod).to_owned();
        let claim = Some(PvcRef { name: claimed.claim.clone(), namespace });
        Some(ClaimTarget { uid: self.uid.clone(), name: volume.to_owned(), claim, source })
    }

    fn of_spec(&self, volume: &Volume) -> Option<ClaimTarget> {
        let source = match (&volume.nfs, &volume.iscsi) {
            (Some(source), _) => {
                let kind = VolumeKind::Nfs(Nfs::of(source, false, Vec::new()));
                self.file_system(&kind, NFS.folder, &volume.name)
            }
            (None, Some(source)) => {
                let namespace = pod::namespace(self.pod);
                let disk = disk::iscsi_of_pod(source, &volume.name, namespace).ok()?;
                let kind = VolumeKind::NetworkDisk(Box::new(disk));
                self.file_system(&kind, ISCSI.folder, &volume.name)
            }
            (None, None) => self.driver(&csi::Volume::of_spec(self.pod, volume)?),
        };
        let name = volume.name.clone();
        Some(ClaimTarget { uid: self.uid.clone(), name, claim: None, source })
    }

    fn file_system(&self, kind: &VolumeKind, folder: Option<&str>, name: &str) -> FigureSource {
        let folder = folder.unwrap_or_default();
        let path = PodDirs::new(self.root, self.uid).volume(folder, name);
        FigureSource::FileSystem { path, server: server_of(kind) }
    }

    fn driver(&self, volume: &csi::Volume) -> FigureSource {
        let dirs = CsiDirs::new(self.root);
        // The kubelet asks about the place where it binds a device, not about the driver's own.
        let path = match volume.is_block {
            true => dirs.device_map(&volume.name).join(self.uid.as_str()),
            false => dirs.target(self.uid, &volume.name),
        };
        let (driver, handle) = (volume.driver.clone(), volume.handle.clone());
        FigureSource::Driver(VolumeQuery { driver, handle, path })
    }
}

/// The server that answers a statfs.
fn server_of(kind: &VolumeKind) -> Option<String> {
    match kind {
        // A disk that hangs holds up its own figures only.
        VolumeKind::NetworkDisk(volume) => Some(volume.handle.clone()),
        VolumeKind::Nfs(nfs) => Some(nfs.server().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use pintle_agent_core::testing::{snapshot_of, view};
    use pintle_agent_core::volume::Claims;
    use serde_json::{Value, json};

    use super::*;

    /// A pod that runs, with these volumes and these PersistentVolumes for its claims.
    pub(in crate::stats) fn world(
        volumes: &Value,
        bound: &[(&str, Value)],
    ) -> (Snapshot, ClaimViews) {
        let mut pod = view(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "x"}], "volumes": volumes}}));
        let mut observed = (*pod.observed).clone();
        observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
        pod.observed = Arc::new(observed);
        let mut claims = Claims::default();
        for (name, spec) in bound {
            let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": spec});
            let volume = serde_json::from_value(volume).expect("a volume");
            let claim = format!("claim-{name}");
            let claimed = ClaimedVolume {
                claim,
                is_read_only: false,
                capacity: None,
                volume,
                is_migrated: false,
            };
            claims.insert(name, claimed);
        }
        let views = ClaimViews::default();
        views.set(&"u".into(), &Arc::new(claims));
        (snapshot_of(vec![pod]), views)
    }

    #[test]
    fn each_kind_of_volume_has_the_source_that_the_kubelet_asks() {
        let inline = json!([
            {"name": "share", "nfs": {"server": "s", "path": "/e"}},
            {"name": "inline", "csi": {"driver": "d"}},
            {"name": "disk", "persistentVolumeClaim": {"claimName": "claim-disk"}},
            {"name": "empty", "emptyDir": {}}]);
        let csi = json!({"driver": "d", "volumeHandle": "h"});
        let (snapshot, claims) = world(
            &inline,
            &[
                ("block", json!({"csi": csi, "volumeMode": "Block"})),
                ("disk", json!({"csi": csi})),
                ("folder", json!({"local": {"path": "/x"}})),
                ("host", json!({"hostPath": {"path": "/x"}})),
                ("raw", json!({"local": {"path": "/dev/x"}, "volumeMode": "Block"})),
            ],
        );
        let shown = |target: &ClaimTarget| {
            let what = match &target.source {
                FigureSource::FileSystem { server, .. } => format!("statfs {server:?}"),
                FigureSource::Device { .. } => "size".to_owned(),
                FigureSource::Driver(VolumeQuery { driver, handle, .. }) => {
                    format!("{driver} {handle}")
                }
            };
            let claim = target.claim.as_ref().map_or("", |claim| &*claim.name);
            (target.name.clone(), what, claim.to_owned(), target.path().display().to_string())
        };
        let inline_handle = csi::Volume::of_spec(
            &snapshot.pods.iter().next().expect("a pod").1.pod,
            &serde_json::from_value(inline[1].clone()).expect("a volume"),
        );
        let inline_handle = inline_handle.expect("a driver's").handle;
        let row = |name: &str, what: &str, claim: &str, path: &str| {
            (name.to_owned(), what.to_owned(), claim.to_owned(), path.to_owned())
        };
        let found: Vec<_> =
            targets(&snapshot, &claims, Path::new("/r")).iter().map(shown).collect();
        let expected = [
            row(
                "block",
                "d h",
                "claim-block",
                "/r/plugins/kubernetes.io/csi/volumeDevices/pv-block/dev/u",
            ),
            row("disk", "d h", "claim-disk", "/r/pods/u/volumes/kubernetes.io~csi/pv-disk/mount"),
            row(
                "folder",
                "statfs None",
                "claim-folder",
                "/r/pods/u/volumes/kubernetes.io~local-volume/pv-folder",
            ),
            row(
                "raw",
                "size",
                "claim-raw",
                "/r/plugins/kubernetes.io~local-volume/volumeDevices/pv-raw/u",
            ),
            row("share", "statfs Some(\"s\")", "", "/r/pods/u/volumes/kubernetes.io~nfs/share"),
            row(
                "inline",
                &format!("d {inline_handle}"),
                "",
                "/r/pods/u/volumes/kubernetes.io~csi/inline/mount",
            ),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_pod_without_a_ready_sandbox_has_no_volumes() {
        let (snapshot, claims) = world(&json!([]), &[("disk", json!({"local": {"path": "/x"}}))]);
        let mut snapshot = snapshot;
        let (uid, mut view) =
            snapshot.pods.iter().next().map(|(u, v)| (u.clone(), v.clone())).expect("a pod");
        assert_eq!(targets(&snapshot, &claims, Path::new("/r")).len(), 1);
        let mut observed = (*view.observed).clone();
        observed.sandboxes.clear();
        view.observed = Arc::new(observed);
        snapshot.pods.insert(uid, Arc::new(view));
        assert_eq!(targets(&snapshot, &claims, Path::new("/r")), []);
    }
}
