//! Observes the node's resources on order, and hints when an early observation is worth it: the
//! kernel reports that memory gets short, or page cache hides that and memory alone was read, or a
//! resource falls so fast that the next observation would be late.
//!
//! Owner: one task. Input: `PressureLook`, one at a time. Output: `PodsInput::Pressure` to each,
//! and `PodsInput::MemoryLow` as a hint. Effects: one job of the pool for each observation and each
//! peek at memory, and `PodGauge` when pods are to be ranked. A source without an answer within
//! `READ_MAX` is absent from the observation; memory is read independently of disks. Bounds: one
//! observation at a time; `SOONEST` between two hints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::eviction::Settings;
use pintle_agent_core::eviction::observed::{DiskLayout, Observation, ResourceReading, Scope};
use pintle_agent_core::eviction::signal::Signal;
use pintle_agent_core::worker::PodsInput;
use pintle_agent_host::pressure::lines::MemoryThreshold;
use pintle_agent_host::pressure::memory_watch::MemoryWatch;
use pintle_agent_host::pressure::node;
use pintle_agent_host::pressure::node::{CgroupMemory, NodeReader, RuntimeDisks};
use pintle_agent_server::{PodGauge, Views};
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use tokio::sync::mpsc;

/// How long a look waits for a disk, and the runtime's word on where its disks are.
const READ_MAX: Duration = Duration::from_secs(10);
/// Time between two hints, however fast a resource falls.
const SOONEST: Duration = Duration::from_millis(250);
/// The kubelet's period of observation.
// k8s: pkg/kubelet/kubelet.go evictionMonitoringPeriod
const USUAL: Duration = Duration::from_secs(10);
/// Observations until a threshold would be met, or nothing left, at the current rate of a resource.
const LOOKS_BEFORE_END: u32 = 4;
/// The memories with lines, in the order of `NodeReader::memory_dirs`.
const MEMORY: [Signal; 2] = [Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable];
/// How often the runtime's disks are read.
const DISKS_EVERY: Duration = Duration::from_secs(300);

/// A look that is to be made now.
#[derive(Debug)]
pub(crate) struct PressureLook {
    /// To be returned with the answer.
    pub(crate) ticket: u64,
    /// Pods to measure.
    pub(crate) pods: Scope,
    /// Measure their disk usage as well.
    pub(crate) disks: bool,
}

/// Looks; one task has it.
pub(crate) struct Lookout {
    readers: Readers,
    settings: Settings,
    pods: PodGauge,
    runtime: Client,
    views: Views,
    watch: MemoryWatch,
    disks: Option<(Instant, RuntimeDisks)>,
    last: BTreeMap<Signal, ResourceReading>,
    lines: BTreeMap<Signal, MemoryThreshold>,
}

/// The sources of disks and of pods.
pub(crate) struct PodSources {
    pub(crate) runtime: Client,
    pub(crate) views: Views,
}

impl Lookout {
    /// A lookout of this node; `None`, with a log line, where there are no cgroups.
    pub(crate) fn new(
        root_dir: PathBuf,
        settings: Settings,
        setup: &CgroupSetup,
        pods: PodGauge,
        of_pods: PodSources,
    ) -> Option<Self> {
        let PodSources { runtime, views } = of_pods;
        let reader = || {
            NodeReader::new(root_dir.clone(), setup.kubepods())
                .inspect_err(
                    |error| tracing::warn!(%error, "no pod is evicted: nothing is measured"),
                )
                .ok()
        };
        let (all, memory) = (reader()?, reader()?);
        let (is_v2, dirs) = (all.is_v2(), all.memory_dirs());
        let watch = MemoryWatch::new(is_v2, dirs.into_iter().flatten());
        let (last, lines) = (BTreeMap::new(), BTreeMap::new());
        let readers = Readers::new(all, memory, READ_MAX);
        Some(Self { readers, settings, pods, runtime, views, watch, disks: None, last, lines })
    }

    /// Observes until the channel of orders or of results closes.
    pub(crate) async fn run(
        mut self,
        mut orders: mpsc::Receiver<PressureLook>,
        to: mpsc::Sender<PodsInput>,
    ) {
        let (mut hint_at, mut peek_at) = (None, None);
        loop {
            let input = tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    let (observation, soonest, peek) = self.look(&order).await;
                    (hint_at, peek_at) = (soonest.map(from_now), peek.map(from_now));
                    let observation = Box::new(observation);
                    PodsInput::Pressure { ticket: order.ticket, observation }
                }
                () = self.watch.fired() => PodsInput::MemoryLow,
                () = sleep_until(hint_at) => {
                    hint_at = None;
                    PodsInput::MemoryLow
                }
                () = sleep_until(peek_at) => match self.peek().await {
                    Ok(again) => {
                        peek_at = again.map(from_now);
                        continue;
                    }
                    Err(IsLow) => {
                        peek_at = None;
                        PodsInput::MemoryLow
                    }
                },
            };
            if to.send(input).await.is_err() {
                return;
            }
        }
    }

    /// The observation, when to look again if not by the clock, and when to peek at memory until
    /// then.
    async fn look(
        &mut self,
        order: &PressureLook,
    ) -> (Observation, Option<Duration>, Option<Duration>) {
        let disks = self.runtime_disks().await;
        // The node is read last: a pod that ended while pods were read has made room for all of
        // them.
        let pods = self.pods.read(&self.views.load(), &order.pods, order.disks).await;
        let reading = self.readers.everything(disks).await;
        let seen = observation(&reading);
        let peek = self.draw_lines(&reading, &seen);
        let counted = seen
            .readings
            .keys()
            .filter_map(|signal| Some((*signal, self.settings.counted(*signal, &seen)?)));
        let counted = counted.collect();
        let soonest = pace(&self.settings, &self.last, &counted);
        self.last = counted;
        (Observation { pods, ..seen }, soonest, peek)
    }

    /// Checks whether memory alone has reached a line; else returns when to peek again.
    async fn peek(&mut self) -> Result<Option<Duration>, IsLow> {
        let Ok(reading) = self.readers.memory().await else { return Ok(None) };
        let seen = observation(&reading);
        let mut again = None;
        for (signal, line) in &self.lines {
            let Some(counted) = self.settings.counted(*signal, &seen) else { continue };
            if counted.available <= line.left {
                return Err(IsLow);
            }
            again = soonest(again, line.peek_in(counted.available));
        }
        Ok(again)
    }

    /// The kernel's notices when a line is crossed, where it sends them; when to peek where it does
    /// not.
    fn draw_lines(&mut self, reading: &node::NodeReading, seen: &Observation) -> Option<Duration> {
        let (mut peek, memories) = (None, [reading.memory, reading.pods_memory]);
        self.lines.clear();
        for (index, (signal, memory)) in MEMORY.into_iter().zip(memories).enumerate() {
            let counted = self.settings.counted(signal, seen);
            let Some((memory, counted)) = memory.zip(counted) else { continue };
            let left = counted.available;
            let line = MemoryThreshold::of(&memory, left, self.settings.least(signal, &counted));
            if let Err(error) = self.watch.arm(index, line.usage, line.tolerance) {
                tracing::debug!(%error, "memory is looked at by the clock alone");
            }
            peek = soonest(peek, line.peek_in(left));
            self.lines.insert(signal, line);
        }
        peek
    }

    /// The disks of images and writable layers; the last known ones while the runtime does not
    /// answer.
    async fn runtime_disks(&mut self) -> RuntimeDisks {
        if let Some((read_at, disks)) = &self.disks
            && read_at.elapsed() < DISKS_EVERY
        {
            return disks.clone();
        }
        let request = self.runtime.image_fs_info(v1::ImageFsInfoRequest {});
        let response = tokio::time::timeout(READ_MAX, request).await;
        let first = |all: Vec<v1::FilesystemUsage>| {
            all.into_iter().next().and_then(|fs| fs.fs_id).map(|id| PathBuf::from(id.mountpoint))
        };
        if let Ok(Ok(response)) = response {
            let (images, layers) =
                (first(response.image_filesystems), first(response.container_filesystems));
            self.disks = Some((Instant::now(), RuntimeDisks { images, layers }));
        }
        self.disks.as_ref().map(|(_, disks)| disks.clone()).unwrap_or_default()
    }
}

/// Reads the node. A disk that hangs holds up a whole reading, so memory has a reader of its own:
/// memory may run out before the disk answers.
struct Readers {
    all: Arc<Mutex<NodeReader>>,
    memory: Arc<Mutex<NodeReader>>,
    wait: Duration,
}

impl Readers {
    fn new(all: NodeReader, memory: NodeReader, wait: Duration) -> Self {
        Self { all: Arc::new(Mutex::new(all)), memory: Arc::new(Mutex::new(memory)), wait }
    }

    /// All there is; memory alone while a disk does not answer.
    async fn everything(&self, disks: RuntimeDisks) -> node::NodeReading {
        let read = move |reader: &mut NodeReader| reader.read(&disks);
        let error = match self.read(&self.all, "pressure", read).await {
            Ok(reading) => return reading,
            Err(error) => error,
        };
        tracing::warn!(%error, "what the node's disks have left cannot be read");
        self.memory().await.unwrap_or_else(|error| {
            tracing::warn!(%error, "what memory the node has left cannot be read");
            node::NodeReading { at: pintle_daemon::clock::now(), ..node::NodeReading::default() }
        })
    }

    async fn memory(&self) -> Result<node::NodeReading, blocking::Blocked> {
        self.read(&self.memory, "memory", NodeReader::read_memory).await
    }

    async fn read(
        &self,
        reader: &Arc<Mutex<NodeReader>>,
        part: &'static str,
        what: impl FnOnce(&mut NodeReader) -> node::NodeReading + Send + 'static,
    ) -> Result<node::NodeReading, blocking::Blocked> {
        let reader = Arc::clone(reader);
        let read = move || what(&mut reader.lock().unwrap_or_else(PoisonError::into_inner));
        blocking::run(JobPlace::own(part).within(self.wait), read).await
    }
}

/// Some memory has no more left than its line.
struct IsLow;

/// The observation of a reading, without pods.
fn observation(of: &node::NodeReading) -> Observation {
    let cache = MEMORY.into_iter().zip([of.memory, of.pods_memory]);
    let cache = cache.filter_map(|(signal, memory)| Some((signal, memory?.active_cache)));
    Observation {
        at: of.at,
        readings: readings(of),
        layout: DiskLayout { images_apart: of.images_apart, layers_apart: of.layers_apart },
        stall: of.stall,
        cache: cache.collect(),
        pods: None,
    }
}

/// The readings by signal.
// k8s: pkg/kubelet/eviction/helpers.go makeSignalObservations
fn readings(of: &node::NodeReading) -> BTreeMap<Signal, ResourceReading> {
    let at = of.at;
    let memory =
        |memory: Option<CgroupMemory>| memory.map(|memory| (memory.available(), memory.capacity));
    let bytes = |fs: Option<pintle_agent_host::disk::FileSystem>| {
        fs.map(|fs| (fs.available_bytes, fs.capacity_bytes))
    };
    // A file system that makes inodes on demand reports none.
    let inodes = |fs: Option<pintle_agent_host::disk::FileSystem>| {
        fs.filter(|fs| fs.inodes > 0).map(|fs| (fs.inodes_free, fs.inodes))
    };
    let all = [
        (Signal::MemoryAvailable, memory(of.memory)),
        (Signal::AllocatableMemoryAvailable, memory(of.pods_memory)),
        (Signal::NodeFsAvailable, bytes(of.node_fs)),
        (Signal::NodeFsInodesFree, inodes(of.node_fs)),
        (Signal::ImageFsAvailable, bytes(of.image_fs)),
        (Signal::ImageFsInodesFree, inodes(of.image_fs)),
        (Signal::ContainerFsAvailable, bytes(of.container_fs)),
        (Signal::ContainerFsInodesFree, inodes(of.container_fs)),
        (Signal::PidAvailable, of.pids.map(|(max, used)| (max.saturating_sub(used), max))),
    ];
    let known = all.into_iter().filter_map(|(signal, found)| {
        let (available, capacity) = found?;
        Some((signal, ResourceReading { available, capacity, at }))
    });
    known.collect()
}

/// When the next observation should be, if not after the usual period: a fast-falling resource is
/// observed some times before its threshold is met, and again before it is used up.
fn pace(
    settings: &Settings,
    before: &BTreeMap<Signal, ResourceReading>,
    now: &BTreeMap<Signal, ResourceReading>,
) -> Option<Duration> {
    let pace_of = |(signal, now): (&Signal, &ResourceReading)| {
        let before = before.get(signal)?;
        let gone = before.available.checked_sub(now.available).filter(|gone| *gone > 0)?;
        let above = now.available.checked_sub(settings.least(*signal, now));
        let spare = above.filter(|above| *above > 0).unwrap_or(now.available);
        let nanos = now.at.since(before.at).as_nanos() * u128::from(spare) / u128::from(gone);
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    };
    let soonest = now.iter().filter_map(pace_of).min()? / LOOKS_BEFORE_END;
    (soonest < USUAL).then(|| soonest.max(SOONEST))
}

fn soonest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

fn from_now(after: Duration) -> tokio::time::Instant {
    tokio::time::Instant::now() + after
}

/// Never, without a time.
async fn sleep_until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::eviction::threshold::{Threshold, ThresholdLevel};
    use pintle_agent_core::types::UnixNanos;
    use pintle_agent_host::disk::FileSystem;
    use pintle_api_types::quantity::Amount;

    const SECOND: i64 = 1_000_000_000;

    fn memory(seconds: i64, available: u64) -> BTreeMap<Signal, ResourceReading> {
        let reading =
            ResourceReading { available, capacity: 1000, at: UnixNanos(seconds * SECOND) };
        BTreeMap::from([(Signal::MemoryAvailable, reading)])
    }

    #[test]
    fn fast_falling_memory_is_read_sooner() {
        for (before, now, expected) in [
            (900, 900, None),
            (900, 950, None),
            // Ten a second: the eight hundred that are left last eighty.
            (900, 800, None),
            // Forty a second, for ten seconds more.
            (800, 400, Some(Duration::from_millis(2500))),
            (900, 80, Some(SOONEST)),
            (900, 0, Some(SOONEST)),
        ] {
            let found = pace(&Settings::default(), &memory(0, before), &memory(10, now));
            assert_eq!(found, expected, "{before} {now}");
        }
        assert_eq!(pace(&Settings::default(), &BTreeMap::new(), &memory(0, 1)), None);
        let least = Threshold {
            signal: Signal::MemoryAvailable,
            level: ThresholdLevel::Amount(Amount::from_bytes(400)),
            grace: Duration::ZERO,
            min_reclaim: None,
        };
        let settings = Settings { thresholds: vec![least], ..Settings::default() };
        let of = |before, now| pace(&settings, &memory(0, before), &memory(10, now));
        // Forty a second, and two hundred above the threshold.
        assert_eq!(of(1000, 600), Some(Duration::from_millis(1250)));
        assert_eq!(of(800, 400), Some(Duration::from_millis(2500)), "it is met: until the end");
    }

    #[test]
    fn memory_is_known_while_a_disk_hangs() {
        xtask::disk::with_private_mounts(|| {
            blocking::Pool::own();
            let root = tempfile::tempdir().expect("a folder");
            let hung = xtask::disk::Hung::mount(root.path());
            let reader = || NodeReader::new(root.path().to_owned(), "/".to_owned());
            let (all, memory) = (reader().expect("cgroups"), reader().expect("cgroups"));
            let readers = Readers::new(all, memory, Duration::from_secs(2));
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let reading = readers.everything(RuntimeDisks::default());
            let reading = runtime.expect("a runtime").block_on(reading);
            assert!(reading.memory.is_some() && reading.pods_memory.is_some(), "{reading:?}");
            assert_eq!(reading.node_fs, None);
            drop(hung);
        });
    }

    #[test]
    fn unreadable_signals_have_no_observation() {
        assert!(readings(&node::NodeReading::default()).is_empty());
        let fs = FileSystem { capacity_bytes: 9, available_bytes: 4, ..FileSystem::default() };
        let read = node::NodeReading {
            memory: Some(CgroupMemory {
                capacity: 100,
                working_set: 30,
                usage: 50,
                active_cache: 9,
            }),
            node_fs: Some(fs),
            pids: Some((10, 3)),
            ..node::NodeReading::default()
        };
        let found: Vec<_> =
            readings(&read).into_iter().map(|(s, r)| (s, r.available, r.capacity)).collect();
        let expected = [
            (Signal::MemoryAvailable, 70, 100),
            (Signal::NodeFsAvailable, 4, 9),
            (Signal::PidAvailable, 7, 10),
        ];
        assert_eq!(found, expected, "a file system without inodes has no signal of them");
    }
}
