//! Memory, disk and process usage of each pod, for eviction ranking.
//!
//! Input: a snapshot, the threads that read cgroups and count volumes, the runtime's figures for
//! writable layers. Output: `PodUse` by uid. Nothing is read without a request, and every reading
//! that a pod can slow down has a thread of its own or a place in the pool. Unknown figures are
//! absent.
// k8s: pkg/kubelet/eviction/helpers.go podDiskUsage, memoryUsage, processUsage

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pintle_agent_config::Config;
use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::eviction::observed::{
    ContainerUse, DiskUse, PodUse, Scope, Unread, VolumeUse,
};
use pintle_agent_core::observed::{ObservedContainer, RunState};
use pintle_agent_core::status::pod_map::PodMap;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_cri::Client;

use super::files::FileUsage;
use super::known::NodeFileValue;
use super::layers::{LayerSizes, READ_MAX};
use super::sweep::{ReadingKind, Sweep};
use super::volumes::{CountedVolume, VolumeCounts};
use super::{Gauges, files, logs, targets, volumes};

/// Longest wait for cgroups; without them memory and processes are unknown.
const SWEEP_WAIT: Duration = Duration::from_secs(10);

/// Reads the usage of pods.
#[derive(Debug)]
pub struct PodGauge {
    gauges: Gauges,
    root_dir: PathBuf,
    setup: CgroupSetup,
    runtime: Client,
    logs: NodeFileValue<logs::Sizes>,
    hosts: NodeFileValue<HashMap<String, FileUsage>>,
}

/// Readings of the disks.
#[derive(Default)]
struct DiskReadings {
    /// `None` while the runtime does not report them.
    layers: Option<Arc<LayerSizes>>,
    /// `None` while the disk does not answer.
    logs: Option<Arc<logs::Sizes>>,
    hosts: Arc<HashMap<String, FileUsage>>,
    volumes: VolumeCounts,
}

impl PodGauge {
    /// A reader beside the server's own; `setup` is how pods' cgroups are laid out.
    pub fn new(gauges: Gauges, config: &Config, setup: CgroupSetup, runtime: Client) -> Self {
        Self {
            gauges,
            root_dir: config.flags.root_dir.clone(),
            setup,
            runtime,
            logs: NodeFileValue::new("sizes of logs to weigh"),
            hosts: NodeFileValue::new("sizes of hosts files to weigh"),
        }
    }

    /// Usage of the snapshot's running pods within `scope`; `None` when there is none. Disk usage
    /// only `with_disks`.
    pub async fn read(
        &self,
        snapshot: &Snapshot,
        scope: &Scope,
        with_disks: bool,
    ) -> Option<BTreeMap<PodUid, PodUse>> {
        let snapshot = &within(snapshot, scope)?;
        let sweep = async {
            let targets = targets::targets(snapshot, &self.setup);
            let sweep = self.gauges.sweeper.as_ref()?.sweep(targets, ReadingKind::Weighed);
            tokio::time::timeout(SWEEP_WAIT, sweep).await.ok()?
        };
        let disks = async { if with_disks { Some(self.disks(snapshot).await) } else { None } };
        let (sweep, disks) = tokio::join!(sweep, disks);
        let sweep = sweep.unwrap_or_default();
        let pods = snapshot.pods.iter().filter(|(_, view)| targets::runs(&view.observed));
        Some(
            pods.map(|(uid, view)| (uid.clone(), of_pod(uid, view, &sweep, disks.as_ref())))
                .collect(),
        )
    }

    async fn disks(&self, snapshot: &Snapshot) -> DiskReadings {
        let volumes = async {
            match &self.gauges.volumes {
                Some(counter) => counter.some(volumes::targets(snapshot, &self.root_dir)).await,
                None => VolumeCounts::default(),
            }
        };
        let folders = logs::folders(snapshot);
        let logs = self
            .logs
            .get(move || folders.into_iter().map(|(id, dir)| (id, files::folder(&dir))).collect());
        let (uids, pods) = (uids(snapshot), self.root_dir.join("pods"));
        let hosts = self.hosts.get(move || files::hosts_files(&pods, uids));
        let layers = self.gauges.layers.read(&self.runtime, READ_MAX);
        let (volumes, logs, hosts, layers) = tokio::join!(volumes, logs, hosts, layers);
        DiskReadings { layers, logs, hosts: hosts.unwrap_or_default(), volumes }
    }
}

/// The snapshot of the pods within the scope.
fn within(snapshot: &Snapshot, scope: &Scope) -> Option<Snapshot> {
    match scope {
        Scope::Nobody => None,
        Scope::All => Some(snapshot.clone()),
        Scope::These(uids) => {
            let mut pods = PodMap::default();
            for (uid, view) in snapshot.pods.iter().filter(|(uid, _)| uids.contains(*uid)) {
                pods.insert(uid.clone(), Arc::new(view.clone()));
            }
            Some(Snapshot { pods, ..Snapshot::default() })
        }
    }
}

/// The pods' uids as their folders are named.
pub(super) fn uids(snapshot: &Snapshot) -> Vec<String> {
    snapshot.pods.keys().map(|uid| uid.as_str().to_owned()).collect()
}

fn of_pod(uid: &PodUid, view: &PodView, sweep: &Sweep, disks: Option<&DiskReadings>) -> PodUse {
    let whole = sweep.pod(&view.observed);
    let running = view.observed.containers.iter().filter(|c| c.state == RunState::Running);
    let (layers, logs) = disks.map(|disks| (&disks.layers, &disks.logs)).unzip();
    let (layers, logs) = (layers.and_then(Option::as_ref), logs.and_then(Option::as_deref));
    let container = |id: &str| ContainerUse {
        working_set: sweep.container(id).map(|found| found.sample.working_set_bytes),
        layer: layers.and_then(|reading| reading.sizes.get(id)).map(disk),
        logs: logs.and_then(|logs| logs.get(id)).map(disk),
    };
    let volumes = disks.and_then(|disks| disks.volumes.volumes.get(uid));
    PodUse {
        working_set: whole.map(|found| found.sample.working_set_bytes),
        processes: sweep.processes(&view.observed),
        containers: running.map(|c| (c.name.clone(), container(c.id.as_str()))).collect(),
        volumes: volumes.into_iter().flatten().map(volume).collect(),
        own_files: disks
            .and_then(|disks| disks.hosts.get(uid.as_str()))
            .map(disk)
            .unwrap_or_default(),
        unread: disks.map(|disks| unread(uid, view, disks)).unwrap_or_default(),
    }
}

/// The missing disk figures of a pod. A figure that was read or requested before a container
/// existed does not cover it.
fn unread(uid: &PodUid, view: &PodView, of: &DiskReadings) -> Unread {
    let running = view.observed.containers.iter().filter(|c| c.state == RunState::Running);
    let any = |is_missing: &dyn Fn(&ObservedContainer) -> bool| running.clone().any(is_missing);
    let is_later = |reading: &LayerSizes, container: &ObservedContainer| {
        container.created_at >= reading.asked_at
            && !reading.sizes.contains_key(container.id.as_str())
    };
    let has_log = |container: &ObservedContainer| Path::new(&container.log_path).parent().is_some();
    let logs = |sizes: &logs::Sizes| any(&|c| has_log(c) && !sizes.contains_key(c.id.as_str()));
    Unread {
        layers: of.layers.is_none(),
        new_layers: of.layers.as_ref().is_some_and(|reading| any(&|c| is_later(reading, c))),
        logs: of.logs.as_ref().is_none_or(|sizes| logs(sizes)),
        volumes: of.volumes.unread.contains(uid),
    }
}

fn volume(counted: &CountedVolume) -> (String, VolumeUse) {
    let used = VolumeUse { disk: disk(&counted.usage), in_memory: !counted.is_ephemeral };
    (counted.name.clone(), used)
}

fn disk(usage: &FileUsage) -> DiskUse {
    DiskUse { bytes: usage.bytes, inodes: usage.inodes }
}

#[cfg(test)]
mod tests {
    use pintle_agent_core::types::UnixNanos;

    use super::*;
    use crate::stats::testing;

    #[test]
    fn pod_usage_combines_the_known_readings_and_omits_unknown_ones() {
        let (snapshot, _, storage) = testing::world();
        let (uid, view) = snapshot.pods.iter().next().expect("a pod");
        let bare = of_pod(uid, view, &Sweep::default(), None);
        assert_eq!((bare.working_set, bare.processes), (None, None));
        assert_eq!(bare.containers["c"], ContainerUse::default(), "it runs, and nothing is known");
        assert!(bare.unread.is_none(), "disks are not requested");
        let volumes = VolumeCounts { volumes: storage.volumes, ..VolumeCounts::default() };
        let disks = DiskReadings {
            layers: Some(storage.layers),
            logs: Some(Arc::new(storage.logs)),
            hosts: Arc::new(storage.pods),
            volumes,
        };
        let mut shared = testing::sweep();
        let shares = |key: &targets::CgroupOwner| !matches!(key, targets::CgroupOwner::Pod(_));
        shared.cgroups.retain(|key, _| shares(key));
        let of_shared = of_pod(uid, view, &shared, None);
        assert_eq!((of_shared.working_set, of_shared.processes), (Some(516_096), Some(3)));
        let full = of_pod(uid, view, &testing::sweep(), Some(&disks));
        assert_eq!((full.working_set, full.processes), (Some(516_096), Some(3)), "no threads");
        let expected = ContainerUse {
            working_set: Some(516_096),
            layer: Some(DiskUse { bytes: 24_576, inodes: 9 }),
            logs: Some(DiskUse { bytes: 0, inodes: 1 }),
        };
        assert_eq!(full.containers["c"], expected);
        assert_eq!(full.volumes["disk"].disk, DiskUse { bytes: 8192, inodes: 2 });
        assert!(full.volumes["token"].in_memory && !full.volumes["disk"].in_memory);
        assert_eq!(full.own_files.bytes, 4096);
        assert!(full.unread.is_none());
        let mut newer = view.clone();
        let mut observed = (*newer.observed).clone();
        observed.containers[0].id = "2".into();
        newer.observed = Arc::new(observed.clone());
        let lacks = |view: &PodView| of_pod(uid, view, &testing::sweep(), Some(&disks)).unread;
        assert!(lacks(&newer).logs, "it was not there when logs were read");
        assert!(!lacks(&newer).new_layers, "the runtime listed it without usage");
        observed.containers[0].created_at = UnixNanos(1_000_000_000_001);
        newer.observed = Arc::new(observed);
        assert!(lacks(&newer).new_layers, "it was not there when the runtime was asked");
        assert!(lacks(view).is_none());
        let volumes = VolumeCounts { unread: [uid.clone()].into(), ..VolumeCounts::default() };
        let lacks = of_pod(uid, view, &testing::sweep(), Some(&DiskReadings { volumes, ..disks }));
        assert_eq!(lacks.unread, Unread { volumes: true, ..Unread::default() });
        let lacks = of_pod(uid, view, &testing::sweep(), Some(&DiskReadings::default()));
        assert!(lacks.unread.layers && lacks.unread.logs, "not known is not nothing");
    }
}
