//! Usage of pods' volumes: measured on request, each at most once a period.
//!
//! Input: the volumes of the snapshot's pods. Output: their use and that of the file system they
//! lie on. A volume that containers write is counted again when `volumeStatsAggPeriod` has passed;
//! one that only the agent writes is counted once, as in the kubelet. With project quotas the
//! kernel counts volumes that have a project. Counting any other volume walks a whole tree, so it
//! has a thread of its own, for which a request waits no longer than `WAIT_MAX`: until a count has
//! ended, the one before is shown, and eviction ranking learns which pods have none. The cheapest
//! come first, so a slow one delays no other. After a failed count the count before is shown until
//! it is too old. An incomplete count is shown, but the volume counts as unknown. Bounds:
//! `VOLUMES_MAX` volumes of one round.
// k8s: pkg/kubelet/server/stats/volume_stat_calculator.go, pkg/volume/metrics_du.go, metrics_cached.go

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Volume;
use nix::errno::Errno;
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::view::{PodView, Snapshot};
use pintle_agent_core::volume::PodDirs;
use pintle_agent_core::volume::layout::EMPTY_DIR_PLUGIN;
use pintle_agent_host::volume::project::{self, Listed, ProjectUsage};
use pintle_agent_metrics::{CountedFrom, Metrics};
use pintle_api_types::pod;
use pintle_daemon::clock;
use pintle_daemon::tasks;
use serde::Serialize;
use tokio::sync::oneshot;

use super::du::{self, Walked};
use super::files::{FileSystem, FileUsage, file_system};

/// Volumes of one round.
const VOLUMES_MAX: usize = 16_384;
/// Periods for which a count without a request is kept.
const KEPT_PERIODS: u32 = 2;
/// How long an answer waits for a round.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// Assumed duration of the first count of a volume, for the order of counts.
const FIRST_TAKES: Duration = Duration::from_secs(1);

/// A volume that is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeTarget {
    uid: PodUid,
    name: String,
    path: PathBuf,
    /// Lies on the node's disk and is deleted with the pod.
    is_ephemeral: bool,
    /// Only the agent writes it.
    is_ours: bool,
    /// May have a project: no process that writes it can take a file out of that.
    may_have_project: bool,
}

/// A volume that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CountedVolume {
    pub(super) name: String,
    pub(super) is_ephemeral: bool,
    pub(super) usage: FileUsage,
    pub(super) fs: FileSystem,
    pub(super) at: UnixNanos,
    /// The count is complete.
    pub(super) is_whole: bool,
    /// The claim that it comes from.
    pub(super) claim: Option<PvcRef>,
    /// What its driver says about its health, if it does.
    pub(super) is_abnormal: Option<bool>,
}

/// Names a claim, as the summary does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PvcRef {
    pub(super) name: String,
    pub(super) namespace: String,
}

/// Counted volumes by pod: those that go with the pod's disk space first.
pub(super) type Volumes = HashMap<PodUid, Vec<CountedVolume>>;

/// The volumes to count.
pub(super) fn targets(snapshot: &Snapshot, root: &Path) -> Vec<VolumeTarget> {
    // Before there is a sandbox, volumes may be in preparation.
    let is_set_up = |view: &PodView| view.observed.sandboxes.iter().any(|sandbox| sandbox.ready);
    let pods = snapshot.pods.iter().filter(|(_, view)| is_set_up(view)).flat_map(|(uid, view)| {
        let dirs = PodDirs::new(root, uid);
        let spec = pod::spec(&view.pod);
        let own_users = spec.host_users == Some(false);
        let volumes = spec.volumes.iter().flatten();
        volumes.filter_map(move |volume| {
            let mut target = target(uid, &dirs, volume)?;
            target.may_have_project &= own_users;
            Some(target)
        })
    });
    pods.take(VOLUMES_MAX).collect()
}

/// Paths of the node and images are not counted.
fn target(uid: &PodUid, dirs: &PodDirs, volume: &Volume) -> Option<VolumeTarget> {
    let on_disk = |medium: &Option<String>| medium.as_deref().unwrap_or_default().is_empty();
    let (plugin, is_ephemeral, is_ours) = match volume {
        Volume { empty_dir: Some(source), .. } => {
            (EMPTY_DIR_PLUGIN, on_disk(&source.medium), false)
        }
        Volume { config_map: Some(_), .. } => ("kubernetes.io~configmap", true, true),
        Volume { secret: Some(_), .. } => ("kubernetes.io~secret", false, true),
        Volume { downward_api: Some(_), .. } => ("kubernetes.io~downward-api", false, true),
        Volume { projected: Some(_), .. } => ("kubernetes.io~projected", false, true),
        _ => return None,
    };
    let (uid, name) = (uid.clone(), volume.name.clone());
    let path = dirs.volume(plugin, &name);
    // A config map's folder is made without one.
    let may_have_project = is_ephemeral && !is_ours;
    Some(VolumeTarget { uid, path, name, is_ephemeral, is_ours, may_have_project })
}

/// The known counts of volumes.
#[derive(Debug, Default)]
struct Latest {
    volumes: Arc<Volumes>,
    /// When each of them was last counted, or was found not to be there.
    tried: HashMap<PathBuf, Instant>,
    /// Duration of counting all of them.
    all_take: Duration,
}

/// Counts of some volumes.
#[derive(Debug, Default)]
pub(super) struct VolumeCounts {
    pub(super) volumes: Arc<Volumes>,
    /// Pods of which a volume on a disk has no count, or one that is not whole or long ago.
    pub(super) unread: HashSet<PodUid>,
}

struct CountRequest {
    targets: Vec<VolumeTarget>,
    /// The targets are all volumes.
    is_all: bool,
    done: oneshot::Sender<()>,
}

/// Asks the thread; dropping it ends the thread after its round.
#[derive(Debug)]
pub(super) struct Counter {
    requests: SyncSender<CountRequest>,
    latest: Arc<Mutex<Latest>>,
    period: Duration,
}

impl Counter {
    /// Starts the thread; `None` when volumes are not counted at all.
    pub(super) fn start(period: Duration, by_project: bool, metrics: Arc<Metrics>) -> Option<Self> {
        if period.is_zero() {
            return None;
        }
        // One that waits while a round is under way: a second one would find nothing to do.
        let (requests, queue) = sync_channel(1);
        let latest = Arc::<Mutex<Latest>>::default();
        let (known, latest_too) = (HashMap::new(), Arc::clone(&latest));
        let thread = StatThread { period, by_project, metrics, known, latest: latest_too };
        pintle_daemon::tasks::thread("volumes", move || thread.run(&queue)).ok()?;
        Some(Self { requests, latest, period })
    }

    /// The counts of all volumes, which are these targets; counts again those that are due.
    pub(super) async fn volumes(&self, targets: Vec<VolumeTarget>) -> Arc<Volumes> {
        self.ask(targets, true).await;
        Arc::clone(&locked(&self.latest).volumes)
    }

    /// The counts of some of the volumes; counts of other volumes may be old.
    pub(super) async fn some(&self, targets: Vec<VolumeTarget>) -> VolumeCounts {
        self.ask(targets.clone(), false).await;
        let latest = locked(&self.latest);
        let unread = targets.into_iter().filter(|target| latest.lacks(target, self.period));
        let unread = unread.map(|target| target.uid).collect();
        VolumeCounts { volumes: Arc::clone(&latest.volumes), unread }
    }

    async fn ask(&self, targets: Vec<VolumeTarget>, is_all: bool) {
        let (done, counted) = oneshot::channel();
        if self.requests.try_send(CountRequest { targets, is_all, done }).is_ok() {
            let _ = tokio::time::timeout(WAIT_MAX, counted).await; // the latest counts then
        }
    }
}

fn locked(latest: &Mutex<Latest>) -> MutexGuard<'_, Latest> {
    latest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Latest {
    /// Age at which a count expires. It may get old while all other volumes are counted.
    fn old(&self, period: Duration) -> Duration {
        KEPT_PERIODS * period + self.all_take
    }

    /// True if it has no usable count.
    fn lacks(&self, target: &VolumeTarget, period: Duration) -> bool {
        let old = self.old(period);
        let is_known = |tried: &Instant| target.is_ours || tried.elapsed() < old;
        target.is_ephemeral && !self.tried.get(&target.path).is_some_and(is_known)
    }

    /// Takes a count that has ended; `None` for a volume that is not there.
    fn take(&mut self, target: &VolumeTarget, counted: Option<&CountedVolume>) {
        match counted.is_none_or(|counted| counted.is_whole) {
            true => drop(self.tried.insert(target.path.clone(), Instant::now())),
            false => drop(self.tried.remove(&target.path)),
        }
        let of_pod = Arc::make_mut(&mut self.volumes).entry(target.uid.clone()).or_default();
        of_pod.retain(|volume| volume.name != target.name);
        of_pod.extend(counted.cloned());
        of_pod.sort_by_key(|volume| !volume.is_ephemeral);
    }
}

/// The result of counting a volume.
#[derive(Debug)]
enum CountAttempt {
    Counted(CountedVolume),
    /// The volume does not exist yet, or no more: it holds nothing.
    NotThere,
    /// Its usage is unknown.
    Failed,
}

struct KnownCount {
    uid: PodUid,
    /// `None` of a volume that could never be counted.
    counted: Option<CountedVolume>,
    /// Time of the last count or attempt.
    since: Instant,
    /// Its duration.
    took: Duration,
}

struct StatThread {
    period: Duration,
    /// The kernel is asked where it counts.
    by_project: bool,
    metrics: Arc<Metrics>,
    known: HashMap<PathBuf, KnownCount>,
    latest: Arc<Mutex<Latest>>,
}

impl StatThread {
    fn run(mut self, queue: &Receiver<CountRequest>) {
        while let Ok(request) = queue.recv() {
            match tasks::catch(|| self.round(&request.targets, request.is_all)) {
                Ok(volumes) => self.publish(volumes),
                Err(panic) => {
                    tasks::counted("volumes");
                    tracing::error!(task = "volumes", "{panic}; one count is lost");
                }
            }
            let _ = request.done.send(()); // the caller is gone: fine
        }
    }

    fn round(&mut self, targets: &[VolumeTarget], is_all: bool) -> Volumes {
        let mut before = std::mem::take(&mut self.known);
        let mut volumes = Volumes::new();
        let may = self.by_project && targets.iter().any(|target| target.may_have_project);
        let projects = if may { project::ProjectFiles::host().listed() } else { Listed::default() };
        // Slow volumes come last.
        let mut ordered: Vec<_> = targets.iter().collect();
        let takes = |known: Option<&KnownCount>| known.map_or(FIRST_TAKES, |known| known.took);
        ordered.sort_by_key(|target| takes(before.get(&target.path)));
        for target in ordered {
            let known = match before.remove(&target.path) {
                Some(known) if self.holds(target, &known) => Some(known),
                known => self.try_again(target, known, &projects),
            };
            self.known.extend(known.map(|known| (target.path.clone(), known)));
        }
        let mut show = |known: &KnownCount| {
            if let Some(counted) = known.counted.clone() {
                volumes.entry(known.uid.clone()).or_default().push(counted);
            }
        };
        targets.iter().filter_map(|target| self.known.get(&target.path)).for_each(&mut show);
        // The request did not name the other volumes. Some of them may be gone.
        let recent =
            |known: &KnownCount| known.since.elapsed() < KEPT_PERIODS * self.period + known.took;
        for (path, known) in before.into_iter().filter(|(_, known)| !is_all && recent(known)) {
            show(&known);
            self.known.insert(path, known);
        }
        for counted in volumes.values_mut() {
            counted.sort_by_key(|volume| !volume.is_ephemeral);
        }
        volumes
    }

    /// Publishes the volumes of a finished round; volumes that are gone are dropped.
    fn publish(&self, volumes: Volumes) {
        let mut latest = locked(&self.latest);
        latest.volumes = Arc::new(volumes);
        latest.all_take = self.known.values().map(|known| known.took).sum();
        let old = latest.old(self.period);
        latest.tried.retain(|path, tried| self.known.contains_key(path) || tried.elapsed() < old);
    }

    fn holds(&self, target: &VolumeTarget, known: &KnownCount) -> bool {
        // From its end on, or one that takes longer would be counted without a pause.
        let is_final = target.is_ours && known.counted.is_some();
        is_final || known.since.elapsed() < self.period + known.took
    }

    /// Counts a volume; `before` is its last count.
    fn try_again(
        &self,
        target: &VolumeTarget,
        before: Option<KnownCount>,
        projects: &Listed,
    ) -> Option<KnownCount> {
        let since = Instant::now();
        let counted = match self.count(target, projects) {
            CountAttempt::Counted(counted) => {
                let was_whole = before.and_then(|of| of.counted).is_none_or(|of| of.is_whole);
                if was_whole && !counted.is_whole {
                    let path = target.path.display();
                    tracing::warn!(%path, "a volume is too large or deep to be counted, or was moved about meanwhile");
                }
                locked(&self.latest).take(target, Some(&counted));
                Some(counted)
            }
            CountAttempt::NotThere => {
                locked(&self.latest).take(target, None);
                return None;
            }
            // One that cannot be counted has its pause as well, and its place among the others.
            CountAttempt::Failed => before.and_then(|known| known.counted),
        };
        Some(KnownCount { uid: target.uid.clone(), counted, since, took: since.elapsed() })
    }

    fn count(&self, target: &VolumeTarget, projects: &Listed) -> CountAttempt {
        let (since, at) = (Instant::now(), clock::now());
        let counted = Some(&target.path).filter(|_| target.may_have_project);
        let (walked, from) = match counted.and_then(|path| projects.usage(path)) {
            Some(ProjectUsage { bytes, inodes }) => {
                let usage = FileUsage { bytes, inodes };
                (Walked { usage, is_whole: true }, CountedFrom::Quota)
            }
            None => match du::usage(&target.path) {
                Ok(walked) => (walked, CountedFrom::Walk),
                Err(Errno::ENOENT | Errno::ENOTDIR) => return CountAttempt::NotThere,
                Err(error) => {
                    let path = target.path.display();
                    tracing::debug!(%error, %path, "a volume cannot be counted");
                    return CountAttempt::Failed;
                }
            },
        };
        let Some(fs) = file_system(&target.path) else { return CountAttempt::Failed };
        self.metrics.volume_counted(from, since.elapsed());
        let VolumeTarget { name, is_ephemeral, .. } = target.clone();
        let Walked { usage, is_whole } = walked;
        let (claim, is_abnormal) = (None, None);
        CountAttempt::Counted(CountedVolume {
            name,
            is_ephemeral,
            usage,
            fs,
            at,
            is_whole,
            claim,
            is_abnormal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::testing::{snapshot_of, view};
    use serde_json::json;
    use std::fs;

    fn world() -> Snapshot {
        let mut pod = view(json!({"metadata": {"name": "p", "uid": "u"}, "spec": {
            "containers": [{"name": "c", "image": "x"}],
            "volumes": [
                {"name": "token", "projected": {"sources": []}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "disk", "emptyDir": {}},
                {"name": "map", "configMap": {"name": "m"}},
                {"name": "host", "hostPath": {"path": "/"}},
                {"name": "image", "image": {"reference": "x"}},
            ],
        }}));
        let mut observed = (*pod.observed).clone();
        observed.sandboxes.push(pintle_agent_core::status::testing::sandbox());
        pod.observed = Arc::new(observed);
        snapshot_of(vec![pod])
    }

    fn thread(period: Duration) -> StatThread {
        let metrics = Arc::new(Metrics::new("n"));
        let (known, latest) = (HashMap::new(), Arc::default());
        StatThread { period, by_project: true, metrics, known, latest }
    }

    #[test]
    fn volumes_of_the_agents_own_kinds_are_counted() {
        let found = targets(&world(), Path::new("/r"));
        let rows: Vec<_> =
            found.iter().map(|t| (t.name.as_str(), t.is_ephemeral, t.is_ours)).collect();
        let expected = [
            ("token", false, true),
            ("memory", false, false),
            ("disk", true, false),
            ("map", true, true),
        ];
        assert_eq!(rows, expected);
        assert_eq!(found[2].path, Path::new("/r/pods/u/volumes/kubernetes.io~empty-dir/disk"));
    }

    #[test]
    fn volume_is_counted_by_project_only_in_a_pod_with_a_user_namespace() {
        let may = |host_users: Option<bool>| {
            let mut world = world();
            let (uid, view) = world.pods.iter().next().expect("a pod");
            let (uid, mut view) = (uid.clone(), view.clone());
            let mut pod = (*view.pod).clone();
            pod.spec.as_mut().expect("it has one").host_users = host_users;
            view.pod = Arc::new(pod);
            world.pods.insert(uid, Arc::new(view));
            let targets = targets(&world, Path::new("/r")).into_iter();
            targets.filter(|t| t.may_have_project).map(|t| t.name).collect::<Vec<_>>()
        };
        assert_eq!(may(Some(false)), ["disk"]);
        assert!(may(None).is_empty() && may(Some(true)).is_empty());
    }

    #[test]
    fn volumes_written_by_containers_are_counted_again_and_those_of_the_agent_are_not() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        for target in &targets {
            fs::create_dir_all(&target.path).expect("made");
        }
        let mut thread = thread(Duration::from_nanos(1));
        let uid = PodUid::from("u");
        let first = thread.round(&targets, true)[&uid].clone();
        let names: Vec<&str> = first.iter().map(|v| v.name.as_str()).collect();
        assert_eq!(names, ["disk", "map", "token", "memory"], "those of the disk first");
        for target in &targets {
            fs::write(target.path.join("f"), "x").expect("written");
        }
        let again = thread.round(&targets, true)[&uid].clone();
        let inodes: Vec<u64> = again.iter().map(|volume| volume.usage.inodes).collect();
        assert_eq!(inodes, [2, 1, 1, 2]);
        let mut thread = StatThread { period: Duration::from_secs(60), ..thread };
        assert_eq!(thread.round(&targets[..1], false)[&uid].len(), 4, "with those not requested");
        assert!(
            thread.round(&targets[..1], true).len() == 1 && thread.known.len() == 1,
            "gone ones go"
        );
    }

    #[test]
    fn volume_is_counted_once_within_the_period() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        let mut thread = thread(Duration::from_secs(3600));
        assert!(thread.round(&targets, true).is_empty(), "nothing is there yet");
        fs::create_dir_all(&targets[2].path).expect("made");
        let first = thread.round(&targets, true);
        fs::write(targets[2].path.join("f"), "x").expect("written");
        assert_eq!(thread.round(&targets, true), first);
    }

    #[test]
    fn volume_count_is_published_when_it_ends_and_a_missing_or_old_count_is_detected() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        fs::create_dir_all(&targets[2].path).expect("made");
        let mut thread = thread(Duration::from_secs(60));
        let period = thread.period;
        let lacks = |thread: &StatThread| -> Vec<String> {
            let latest = locked(&thread.latest);
            let lacking = targets.iter().filter(|target| latest.lacks(target, period));
            lacking.map(|target| target.name.clone()).collect()
        };
        assert_eq!(lacks(&thread), ["disk", "map"], "of those that lie on a disk");
        let volumes = thread.round(&targets[2..3], false);
        assert_eq!(lacks(&thread), ["map"]);
        let known = Arc::clone(&locked(&thread.latest).volumes);
        assert_eq!(known[&PodUid::from("u")], volumes[&PodUid::from("u")], "before the round ends");
        let volumes = thread.round(&targets, true);
        assert!(lacks(&thread).is_empty(), "what is not there holds nothing");
        // However busy the machine is.
        thread.known.values_mut().for_each(|known| known.took = Duration::ZERO);
        thread.publish(volumes);
        assert!(lacks(&thread).is_empty());
        let old = |count: &mut Instant| *count -= KEPT_PERIODS * period;
        locked(&thread.latest).tried.values_mut().for_each(old);
        assert_eq!(lacks(&thread), ["disk"], "only the agent writes the other one");
        let known = thread.known.values_mut().next().expect("counted");
        known.took = Duration::from_secs(10);
        thread.publish(Volumes::new());
        assert!(lacks(&thread).is_empty(), "while one takes long the others get old");
    }

    #[test]
    fn slowly_counted_volume_is_counted_last() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        targets.iter().for_each(|target| fs::create_dir_all(&target.path).expect("made"));
        let mut thread = thread(Duration::from_nanos(1));
        let first = thread.round(&targets, true);
        let slow = thread.known.get_mut(&targets[1].path).expect("counted");
        (slow.took, slow.since) = (Duration::from_secs(60), slow.since - Duration::from_secs(90));
        let again = thread.round(&targets, true);
        let of = |volumes: &Volumes| volumes[&PodUid::from("u")].clone();
        let last = of(&again).into_iter().max_by_key(|volume| volume.at);
        assert_eq!(last.map(|volume| volume.name).as_ref(), Some(&targets[1].name));
        let names = |volumes| of(volumes).into_iter().map(|v| v.name).collect::<Vec<_>>();
        assert_eq!(names(&again), names(&first), "shown in the same order");
    }

    #[test]
    fn uncountable_volume_keeps_its_last_count_and_is_unknown_once_that_is_too_old() {
        let root = tempfile::tempdir().expect("a folder");
        let disk = &targets(&world(), root.path())[2..3];
        let (path, uid) = (&disk[0].path, PodUid::from("u"));
        let parent = path.parent().expect("a folder of the pod");
        fs::create_dir_all(parent).expect("made");
        let cannot = || std::os::unix::fs::symlink(path, path).expect("a link to itself");
        let mut thread = thread(Duration::from_secs(60));
        let lacks = |thread: &StatThread| locked(&thread.latest).lacks(&disk[0], thread.period);
        cannot();
        let volumes = thread.round(disk, true);
        assert!(volumes.is_empty() && lacks(&thread), "never counted");
        thread.publish(volumes);
        assert!(lacks(&thread));
        assert!(thread.holds(&disk[0], &thread.known[path]), "it has its pause");

        fs::remove_file(path).expect("removed");
        fs::create_dir(path).expect("made");
        let long_ago = |thread: &mut StatThread| {
            thread.known.values_mut().for_each(|known| known.since -= KEPT_PERIODS * thread.period);
        };
        long_ago(&mut thread);
        let first = thread.round(disk, true);
        assert!(first[&uid].len() == 1 && !lacks(&thread));
        fs::remove_dir(path).expect("removed");
        cannot();
        long_ago(&mut thread);
        let again = thread.round(disk, true);
        assert_eq!(again, first, "what was counted before");
        let old = |count: &mut Instant| *count -= 3 * Duration::from_secs(60);
        locked(&thread.latest).tried.values_mut().for_each(old);
        thread.publish(again);
        assert!(lacks(&thread), "until it is too old");
    }

    #[test]
    fn a_volume_that_was_not_counted_whole_is_shown_and_not_known() {
        let root = tempfile::tempdir().expect("a folder");
        let disk = &targets(&world(), root.path())[2..3];
        fs::create_dir_all(&disk[0].path).expect("made");
        let mut thread = thread(Duration::from_secs(60));
        let lacks = |thread: &StatThread| locked(&thread.latest).lacks(&disk[0], thread.period);
        let whole = thread.round(disk, true)[&PodUid::from("u")][0].clone();
        assert!(whole.is_whole && !lacks(&thread));
        let part = CountedVolume { is_whole: false, ..whole.clone() };
        locked(&thread.latest).take(&disk[0], Some(&part));
        assert!(lacks(&thread));
        assert_eq!(locked(&thread.latest).volumes[&PodUid::from("u")], [part]);
        let volumes = thread.round(disk, true);
        thread.publish(volumes);
        assert!(lacks(&thread), "though the round is over");
        locked(&thread.latest).take(&disk[0], Some(&whole));
        assert!(!lacks(&thread));
    }

    #[test]
    fn a_volume_that_was_never_counted_comes_after_the_cheap_ones_and_before_the_slow_ones() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        targets.iter().for_each(|target| fs::create_dir_all(&target.path).expect("made"));
        let mut thread = thread(Duration::from_nanos(1));
        thread.round(&targets[1..], true);
        let slow = thread.known.get_mut(&targets[1].path).expect("counted");
        (slow.took, slow.since) = (FIRST_TAKES * 2, slow.since - FIRST_TAKES * 4);
        let all = thread.round(&targets, true)[&PodUid::from("u")].clone();
        let at = |index: usize| all.iter().find(|v| v.name == targets[index].name).map(|v| v.at);
        assert!(at(2) < at(0) && at(0) < at(1), "{all:?}");
    }

    #[tokio::test]
    async fn the_thread_answers() {
        let root = tempfile::tempdir().expect("a folder");
        let targets = targets(&world(), root.path());
        fs::create_dir_all(&targets[2].path).expect("made");
        let metrics = Arc::new(Metrics::new("n"));
        assert!(
            Counter::start(Duration::ZERO, true, Arc::clone(&metrics)).is_none(),
            "switched off"
        );
        let counter = Counter::start(Duration::from_secs(60), true, metrics).expect("a thread");
        let found = counter.volumes(targets.clone()).await;
        assert_eq!(found[&PodUid::from("u")].len(), 1);
        let found = counter.some(targets).await;
        assert!(found.volumes[&PodUid::from("u")].len() == 1 && found.unread.is_empty());
    }
}
