//! Usage of volumes that lie on a file system of their own: claims, and shares of servers.
//!
//! Input: the snapshot's pods and their resolved claims. Output: the figures of each volume's file
//! system. A statfs of a dead file server never returns, so each server has its own share of
//! threads for it, an answer waits `ASK_MAX` at most, and the last figures are shown meanwhile.
//! Figures are cached for a period. Bounds: `VOLUMES_MAX` volumes.
// k8s: pkg/volume/metrics_statfs.go, pkg/kubelet/server/stats/volume_stat_calculator.go

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pintle_agent_core::storage::disk;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::volume::csi_dirs::CsiDirs;
use pintle_agent_core::volume::kind::{ISCSI, NFS, Nfs, UsageSource, VolumeKind};
use pintle_agent_core::volume::{ClaimViews, PodDirs};
use pintle_agent_host::disk::{FileSystem, file_system};
use pintle_api_types::pod;
use pintle_daemon::blocking;
use pintle_daemon::blocking::Place;
use pintle_daemon::clock;

use super::files::Usage;
use super::text::{Text, labels};
use super::volumes::{Counted, PvcRef, Volumes};

/// Volumes of one round.
const VOLUMES_MAX: usize = 4096;
/// Longest wait for an answer.
const ASK_MAX: Duration = Duration::from_secs(1);

/// A volume on a file system of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClaimTarget {
    uid: PodUid,
    name: String,
    path: PathBuf,
    /// The server of its files; `None` of a disk.
    server: Option<String>,
    claim: Option<PvcRef>,
}

/// Figures of a volume, and when they were asked for.
#[derive(Clone, Debug)]
struct LastFigures {
    asked: Instant,
    counted: Option<Counted>,
}

/// Reads the usage of file systems. Clones share the cache.
#[derive(Clone, Debug)]
pub(super) struct FileSystems {
    claims: ClaimViews,
    period: Duration,
    last: Arc<Mutex<HashMap<PathBuf, LastFigures>>>,
}

impl FileSystems {
    pub(super) fn new(claims: ClaimViews, period: Duration) -> Self {
        Self { claims, period, last: Arc::default() }
    }

    /// The volumes of all pods, behind those that were counted.
    pub(super) async fn add_to(
        &self,
        counted: Arc<Volumes>,
        snapshot: &Snapshot,
        root: &Path,
    ) -> Arc<Volumes> {
        let targets = targets(snapshot, &self.claims, root);
        let paths: Vec<_> = targets.iter().map(|target| target.path.clone()).collect();
        self.forget_all_but(&paths);
        if targets.is_empty() {
            return counted;
        }
        let figures = join_all(targets.iter().map(|target| self.figures(target))).await;
        let mut volumes = Volumes::clone(&counted);
        for (target, figures) in targets.into_iter().zip(figures) {
            volumes.entry(target.uid).or_default().extend(figures);
        }
        Arc::new(volumes)
    }

    fn forget_all_but(&self, paths: &[PathBuf]) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|path, _| paths.contains(path));
    }

    async fn figures(&self, target: &ClaimTarget) -> Option<Counted> {
        let known = {
            let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.get(&target.path).cloned()
        };
        if let Some(known) = known.as_ref().filter(|known| known.asked.elapsed() < self.period) {
            return known.counted.clone();
        }
        let asked = Instant::now();
        let place = match &target.server {
            Some(server) => Place::remote_look(server),
            None => Place::look(&target.uid),
        };
        let path = target.path.clone();
        let answer = blocking::run(place.within(ASK_MAX), move || file_system(&path)).await;
        let before = known.and_then(|known| known.counted);
        let counted = answer.map_or(before, |fs| fs.map(|fs| counted(target, fs)));
        let figures = LastFigures { asked, counted: counted.clone() };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.insert(target.path.clone(), figures);
        counted
    }
}

fn counted(target: &ClaimTarget, fs: FileSystem) -> Counted {
    let usage = Usage {
        bytes: fs.capacity_bytes.saturating_sub(fs.free_bytes),
        inodes: fs.inodes.saturating_sub(fs.inodes_free),
    };
    Counted {
        name: target.name.clone(),
        is_ephemeral: false,
        usage,
        fs,
        at: clock::now(),
        is_whole: true,
        claim: target.claim.clone(),
    }
}

/// The volumes of pods with a ready sandbox.
fn targets(snapshot: &Snapshot, claims: &ClaimViews, root: &Path) -> Vec<ClaimTarget> {
    let mut found = Vec::new();
    for (uid, view) in &snapshot.pods {
        if !view.observed.sandboxes.iter().any(|sandbox| sandbox.ready) {
            continue;
        }
        let dirs = PodDirs::new(root, uid);
        for (volume, claimed) in claims.get(uid).iter() {
            let kind = claimed.kind();
            let plugin = kind.plugin().filter(|plugin| plugin.usage == UsageSource::FileSystem);
            let Some(folder) = plugin.and_then(|plugin| plugin.folder) else { continue };
            if claimed.is_block() {
                continue;
            }
            let name = claimed.volume_name();
            let path = match &kind {
                VolumeKind::Csi(_) => CsiDirs::new(root).target(uid, name),
                _ => dirs.volume(folder, name),
            };
            let namespace = pod::namespace(&view.pod).to_owned();
            found.push(ClaimTarget {
                uid: uid.clone(),
                name: volume.to_owned(),
                path,
                server: server_of(&kind),
                claim: Some(PvcRef { name: claimed.claim.clone(), namespace }),
            });
        }
        for volume in pod::spec(&view.pod).volumes.iter().flatten() {
            let namespace = pod::namespace(&view.pod);
            let (kind, folder) = match (&volume.nfs, &volume.iscsi) {
                (Some(source), _) => {
                    (VolumeKind::Nfs(Nfs::of(source, false, Vec::new())), NFS.folder)
                }
                (None, Some(source)) => {
                    let disk = disk::iscsi_of_pod(source, &volume.name, namespace);
                    let Ok(disk) = disk else { continue };
                    (VolumeKind::NetworkDisk(Box::new(disk)), ISCSI.folder)
                }
                (None, None) => continue,
            };
            found.push(ClaimTarget {
                uid: uid.clone(),
                name: volume.name.clone(),
                path: dirs.volume(folder.unwrap_or_default(), &volume.name),
                server: server_of(&kind),
                claim: None,
            });
        }
    }
    found.truncate(VOLUMES_MAX);
    found
}

/// The families of claims' volumes in Prometheus' text format; each claim once.
// k8s: pkg/kubelet/metrics/collectors/volume_stats.go CollectWithStability
pub(super) fn exposition(volumes: &Volumes) -> String {
    type Figure = fn(&Counted) -> u64;
    const FAMILIES: [(&str, &str, Figure); 6] = [
        ("capacity_bytes", "Capacity in bytes of the volume", |v| v.fs.capacity_bytes),
        ("available_bytes", "Number of available bytes in the volume", |v| v.fs.available_bytes),
        ("used_bytes", "Number of used bytes in the volume", |v| v.usage.bytes),
        ("inodes", "Maximum number of inodes in the volume", |v| v.fs.inodes),
        ("inodes_free", "Number of free inodes in the volume", |v| v.fs.inodes_free),
        ("inodes_used", "Number of used inodes in the volume", |v| v.usage.inodes),
    ];
    let claims: BTreeMap<(&str, &str), &Counted> = volumes
        .values()
        .flatten()
        .filter_map(|volume| {
            let claim = volume.claim.as_ref()?;
            Some(((&*claim.namespace, &*claim.name), volume))
        })
        .collect();
    let mut text = Text::default();
    for (name, help, figure) in FAMILIES.iter().filter(|_| !claims.is_empty()) {
        let name = format!("kubelet_volume_stats_{name}");
        text.help(&name, &format!("[ALPHA] {help}"));
        text.family(&name, "gauge");
        for ((namespace, claim), volume) in &claims {
            let of = [("namespace", *namespace), ("persistentvolumeclaim", *claim)];
            // Figures of a float's precision, as upstream's.
            text.sample(&name, &labels(&of), figure(volume) as f64, None);
        }
    }
    text.into_string()
}

/// The server or driver that answers for a volume's figures.
fn server_of(kind: &VolumeKind) -> Option<String> {
    match kind {
        VolumeKind::Csi(volume) => Some(volume.driver.clone()),
        // A disk that hangs holds up its own figures only.
        VolumeKind::NetworkDisk(volume) => Some(volume.handle.clone()),
        VolumeKind::Nfs(nfs) => Some(nfs.server().to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pintle_agent_core::testing::{snapshot_of, view};
    use pintle_agent_core::volume::{ClaimedVolume, Claims};
    use serde_json::json;

    use super::*;

    fn world() -> (Snapshot, ClaimViews) {
        let mut pod = view(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "x"}],
                "volumes": [
                    {"name": "disk", "persistentVolumeClaim": {"claimName": "c"}},
                    {"name": "share", "nfs": {"server": "s", "path": "/e"}}]}}));
        let mut observed = (*pod.observed).clone();
        observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
        pod.observed = Arc::new(observed);
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"local": {"path": "/x"}}});
        let volume = serde_json::from_value(volume).expect("a volume");
        let mut claims = Claims::default();
        let claim = "c".to_owned();
        claims.insert("disk", ClaimedVolume { claim, is_read_only: false, capacity: None, volume });
        let views = ClaimViews::default();
        views.set(&"u".into(), &Arc::new(claims));
        (snapshot_of(vec![pod]), views)
    }

    #[tokio::test]
    async fn a_claims_figures_are_those_of_its_file_system_and_name_the_claim() {
        let root = tempfile::tempdir().expect("a folder");
        let (snapshot, claims) = world();
        let found = targets(&snapshot, &claims, root.path());
        let servers: Vec<_> = found.iter().map(|target| target.server.as_deref()).collect();
        assert_eq!(servers, [None, Some("s")]);
        std::fs::create_dir_all(&found[0].path).expect("made");
        let gauge = FileSystems::new(claims, Duration::from_secs(60));
        let volumes = gauge.add_to(Arc::default(), &snapshot, root.path()).await;
        let of_pod = &volumes[&PodUid::from("u")];
        let names: Vec<_> = of_pod.iter().map(|volume| volume.name.as_str()).collect();
        assert_eq!(names, ["disk"], "what is not mounted has no figures");
        let fs = file_system(root.path()).expect("there");
        assert_eq!(of_pod[0].fs.capacity_bytes, fs.capacity_bytes);
        assert!(of_pod[0].usage.bytes <= fs.capacity_bytes && of_pod[0].usage.bytes > 0);
        let claim = PvcRef { name: "c".to_owned(), namespace: "ns".to_owned() };
        assert_eq!(of_pod[0].claim, Some(claim));
        let text = exposition(&volumes);
        let used = format!(
            "\nkubelet_volume_stats_used_bytes{{namespace=\"ns\",persistentvolumeclaim=\"c\"}} {}\n",
            of_pod[0].usage.bytes
        );
        assert!(text.contains(&used), "{text}");
        assert_eq!(exposition(&Volumes::new()), "");
        // Within a period nothing is asked.
        std::fs::remove_dir(&found[0].path).expect("removed");
        let again = gauge.add_to(Arc::default(), &snapshot, root.path()).await;
        assert_eq!(again, volumes);
    }
}
