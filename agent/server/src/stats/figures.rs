//! Figures of volumes that are measured by others: file systems, devices and CSI drivers.
//!
//! Input: the targets of `claimed`. Output: the figures of each, at most a period old, and an event
//! when a driver calls a volume abnormal. A statfs of a dead server never returns, so each server
//! has its own share of threads for it. A call to a driver costs no thread and is a task of its
//! own: an answer here waits `ASK_MAX` for all of them, and shows the last figures meanwhile.
//! Bounds: one measurement a volume, `CALLS_MAX` calls a driver, so a driver that hangs delays its
//! own volumes.
// k8s: pkg/kubelet/server/stats/volume_stat_calculator.go, fs_resource_analyzer.go

use std::collections::HashMap;
use std::io::{Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::view::Snapshot;
use pintle_agent_core::volume::ClaimViews;
use pintle_agent_host::disk::{FileSystem, file_system};
use pintle_agent_metrics::{CountedFrom, Metrics};
use pintle_daemon::blocking::{self, JobPlace};
use pintle_daemon::{clock, tasks};
use tokio::sync::{Semaphore, oneshot};

use super::claimed::{ClaimTarget, FigureSource, targets};
use super::driver_stats::{AskDriver, DriverFigures, NoFigures, VolumeQuery};
use super::files::FileUsage;
use super::volumes::{CountedVolume, Volumes};

/// Longest wait for an answer.
const ASK_MAX: Duration = Duration::from_secs(1);
/// Calls to one driver at a time.
const CALLS_MAX: usize = 16;

/// Figures of a volume, and when they are asked for again.
#[derive(Clone, Debug)]
struct LastFigures {
    due: Instant,
    /// A driver is being asked for as long as its task holds the other end.
    under_way: Weak<()>,
    counted: Option<CountedVolume>,
}

impl LastFigures {
    fn is_due(&self, now: Instant) -> bool {
        self.due <= now && self.under_way.strong_count() == 0
    }
}

/// What is known of all volumes, by the path at which their pods have them.
#[derive(Debug, Default)]
struct KnownFigures {
    last: HashMap<PathBuf, LastFigures>,
    shares: HashMap<String, Arc<Semaphore>>,
}

/// Reads the figures of volumes. Clones share what is known.
#[derive(Clone)]
pub(super) struct VolumeFigures {
    claims: ClaimViews,
    period: Duration,
    ask: AskDriver,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    known: Arc<Mutex<KnownFigures>>,
}

impl std::fmt::Debug for VolumeFigures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Figures").field("known", &self.known).finish_non_exhaustive()
    }
}

impl VolumeFigures {
    pub(super) fn new(
        claims: ClaimViews,
        period: Duration,
        ask: AskDriver,
        recorder: Recorder,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { claims, period, ask, recorder, metrics, known: Arc::default() }
    }

    /// The volumes of all pods, behind those that were counted.
    pub(super) async fn add_to(
        &self,
        counted: Arc<Volumes>,
        snapshot: &Snapshot,
        root: &Path,
    ) -> Arc<Volumes> {
        let targets = targets(snapshot, &self.claims, root);
        self.lock().forget_all_but(&targets);
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

    fn lock(&self) -> MutexGuard<'_, KnownFigures> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn figures(&self, target: &ClaimTarget) -> Option<CountedVolume> {
        let begun = Instant::now();
        let known = self.lock().last.get(target.path()).cloned();
        if let Some(known) = known.as_ref().filter(|known| !known.is_due(begun)) {
            return known.counted.clone();
        }
        let before = known.and_then(|known| known.counted);
        match &target.source {
            FigureSource::Driver(question) => self.of_driver(target, question, before).await,
            FigureSource::Device { path } => {
                let (path, place) = (path.clone(), JobPlace::look(&target.uid));
                let read = blocking::run(place.within(ASK_MAX), move || size_of(&path)).await;
                self.measured(target, begun, read.ok(), before)
            }
            FigureSource::FileSystem { path, server } => {
                let place = match server {
                    Some(server) => JobPlace::remote_look(server),
                    None => JobPlace::look(&target.uid),
                };
                let path = path.clone();
                let read = blocking::run(place.within(ASK_MAX), move || file_system(&path)).await;
                self.measured(target, begun, read.ok(), before)
            }
        }
    }

    /// Takes what was read; `None` of a disk that did not answer, which leaves the last figures.
    fn measured(
        &self,
        target: &ClaimTarget,
        begun: Instant,
        read: Option<Option<FileSystem>>,
        before: Option<CountedVolume>,
    ) -> Option<CountedVolume> {
        let is_device = matches!(target.source, FigureSource::Device { .. });
        let from = if is_device { CountedFrom::Device } else { CountedFrom::FileSystem };
        self.metrics.volume_counted(from, begun.elapsed());
        let counted = match read {
            Some(read) => read.map(|fs| {
                let usage = FileUsage {
                    bytes: fs.capacity_bytes.saturating_sub(fs.free_bytes),
                    inodes: fs.inodes.saturating_sub(fs.inodes_free),
                };
                counted(target, DriverFigures { usage, fs, health: None })
            }),
            None => before,
        };
        let last = LastFigures {
            due: begun + self.period,
            under_way: Weak::new(),
            counted: counted.clone(),
        };
        self.lock().last.insert(target.path().to_owned(), last);
        counted
    }

    /// Has a driver asked, and waits a moment for its answer.
    async fn of_driver(
        &self,
        target: &ClaimTarget,
        question: &VolumeQuery,
        before: Option<CountedVolume>,
    ) -> Option<CountedVolume> {
        let asking = Arc::new(());
        let share = {
            let mut known = self.lock();
            let (due, under_way) = (Instant::now(), Arc::downgrade(&asking));
            let last = LastFigures { due, under_way, counted: before };
            known.last.insert(target.path().to_owned(), last);
            let new = || Arc::new(Semaphore::new(CALLS_MAX));
            Arc::clone(known.shares.entry(question.driver.clone()).or_insert_with(new))
        };
        let (done, answered) = oneshot::channel();
        let (figures, target_too) = (self.clone(), target.clone());
        let call = (self.ask)(question.clone());
        drop(tasks::serve("volume stats", async move {
            let permit = share.acquire().await.expect("it is never closed");
            let begun = Instant::now();
            let answer = call.await;
            drop(permit);
            figures.answered(&target_too, answer, begun);
            drop(asking);
            let _ = done.send(()); // the caller may have what was known before
        }));
        let _ = tokio::time::timeout(ASK_MAX, answered).await; // the last figures then
        self.lock().last.get(target.path()).and_then(|last| last.counted.clone())
    }

    /// Takes a driver's answer. Without one the volume has no figures, as in the kubelet.
    fn answered(
        &self,
        target: &ClaimTarget,
        answer: Result<DriverFigures, NoFigures>,
        begun: Instant,
    ) {
        let figures = answer.inspect_err(|why| {
            tracing::debug!(pod = %target.uid, volume = target.name, %why, "no volume statistics");
        });
        let sick = figures.as_ref().ok().and_then(|figures| figures.health.as_ref());
        if let Some(health) = sick.filter(|health| health.is_abnormal) {
            // k8s: pkg/kubelet/server/stats/volume_stat_calculator.go calcAndStoreStats
            let text = format!("Volume {}: {}", target.name, health.message);
            self.recorder.event(&target.uid, true, "VolumeConditionAbnormal", &text, None);
        }
        let counted = figures.ok().map(|figures| counted(target, figures));
        // A slow answer has a longer pause after it, so that a driver is not always asked.
        let now = Instant::now();
        let due = (begun + self.period).max(now + (now - begun));
        if let Some(last) = self.lock().last.get_mut(target.path()) {
            (last.due, last.counted) = (due, counted);
        }
    }
}

impl KnownFigures {
    /// Drops what is known of volumes that are gone.
    fn forget_all_but(&mut self, targets: &[ClaimTarget]) {
        let paths: std::collections::HashSet<_> = targets.iter().map(ClaimTarget::path).collect();
        self.last.retain(|path, _| paths.contains(path.as_path()));
        // A share that a task holds is in use.
        self.shares.retain(|_, share| Arc::strong_count(share) > 1);
    }
}

fn counted(target: &ClaimTarget, figures: DriverFigures) -> CountedVolume {
    CountedVolume {
        name: target.name.clone(),
        is_ephemeral: false,
        usage: figures.usage,
        fs: figures.fs,
        at: clock::now(),
        is_whole: true,
        claim: target.claim.clone(),
        is_abnormal: figures.health.map(|health| health.is_abnormal),
    }
}

/// The size of a device, as the end of its file. Its use is not known: all of it counts as free.
// k8s: pkg/volume/metrics_block.go getBlockInfo
fn size_of(device: &Path) -> Option<FileSystem> {
    let mut file = std::fs::File::open(device).ok()?;
    let capacity_bytes = file.seek(SeekFrom::End(0)).ok()?;
    Some(FileSystem { capacity_bytes, free_bytes: capacity_bytes, ..FileSystem::default() })
}

#[cfg(test)]
#[path = "figures_tests.rs"]
mod tests;
