//! Looks at what the node has left when it is told to, and says when that would be worth it: the
//! kernel says that memory gets short, or something goes so fast that the next look would be late.
//!
//! Owner: one task. Input: `Order`, one at a time. Output: `Input::Pressure` to each,
//! `Input::MemoryLow`. Effects: one job of the pool for each look, and `PodGauge` when pods are to be
//! weighed. What does not answer within `READ_MAX` is absent from the look. Bounds: one look at a
//! time; `SOONEST` between two hints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pintle_agent_core::cgroup::names::CgroupSetup;
use pintle_agent_core::eviction::observed::{Layout, Observation, Reading, Scope};
use pintle_agent_core::eviction::signal::Signal;
use pintle_agent_core::worker::Input;
use pintle_agent_host::pressure::memory_watch::MemoryWatch;
use pintle_agent_host::pressure::node;
use pintle_agent_host::pressure::node::{Memory, NodeReader, RuntimeDisks};
use pintle_agent_server::{PodGauge, Views};
use pintle_cri::{Client, v1};
use pintle_daemon::blocking;
use pintle_daemon::blocking::Place;
use tokio::sync::mpsc;

/// How long a look waits for a disk, and the runtime's word on where its disks are.
const READ_MAX: Duration = Duration::from_secs(10);
/// Time between two hints, however fast something goes.
const SOONEST: Duration = Duration::from_millis(250);
/// Who looks by the clock looks so often.
// k8s: pkg/kubelet/kubelet.go evictionMonitoringPeriod
const USUAL: Duration = Duration::from_secs(10);
/// Looks until something would be gone, at the rate at which it goes.
const LOOKS_BEFORE_END: u32 = 4;
/// How often the runtime is asked where its disks are.
const DISKS_EVERY: Duration = Duration::from_secs(300);

/// A look that is to be made now.
#[derive(Debug)]
pub(crate) struct Order {
    /// To be returned with the answer.
    pub(crate) ticket: u64,
    /// Pods whose use is to be told.
    pub(crate) pods: Scope,
    /// What they use of disks as well.
    pub(crate) disks: bool,
}

/// Looks; one task has it.
pub(crate) struct Lookout {
    reader: Arc<Mutex<NodeReader>>,
    pods: PodGauge,
    runtime: Client,
    views: Views,
    watch: MemoryWatch,
    disks: Option<(Instant, RuntimeDisks)>,
    last: BTreeMap<Signal, Reading>,
}

impl Lookout {
    /// A lookout of this node; `None`, told, where there are no cgroups.
    pub(crate) fn new(
        root_dir: PathBuf,
        setup: &CgroupSetup,
        pods: PodGauge,
        runtime: Client,
        views: Views,
    ) -> Option<Self> {
        let reader = NodeReader::new(root_dir, setup.kubepods())
            .inspect_err(|error| tracing::warn!(%error, "nobody is evicted: nothing is measured"))
            .ok()?;
        let watch = MemoryWatch::new(reader.is_v2(), reader.memory_dirs().into_iter().flatten());
        let (reader, last) = (Arc::new(Mutex::new(reader)), BTreeMap::new());
        Some(Self { reader, pods, runtime, views, watch, disks: None, last })
    }

    /// Looks until nobody asks or hears any more.
    pub(crate) async fn run(mut self, mut orders: mpsc::Receiver<Order>, to: mpsc::Sender<Input>) {
        let mut due = None;
        loop {
            let hint = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let input = tokio::select! {
                order = orders.recv() => {
                    let Some(order) = order else { return };
                    let (observation, soonest) = self.look(&order).await;
                    due = soonest.map(|after| tokio::time::Instant::now() + after);
                    let observation = Box::new(observation);
                    Input::Pressure { ticket: order.ticket, observation }
                }
                () = self.watch.fired() => Input::MemoryLow,
                () = hint => {
                    due = None;
                    Input::MemoryLow
                }
            };
            if to.send(input).await.is_err() {
                return;
            }
        }
    }

    async fn look(&mut self, order: &Order) -> (Observation, Option<Duration>) {
        let disks = self.runtime_disks().await;
        let reader = Arc::clone(&self.reader);
        let read = move || {
            let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
            reader.read(&disks)
        };
        let place = Place::own("pressure").within(READ_MAX);
        let reading = blocking::run(place, read).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "what the node has left cannot be read");
            node::Reading { at: pintle_daemon::clock::now(), ..node::Reading::default() }
        });
        for (index, memory) in [reading.memory, reading.pods_memory].into_iter().enumerate() {
            self.arm(index, memory);
        }
        let readings = readings(&reading);
        let soonest = pace(&self.last, &readings);
        self.last.clone_from(&readings);
        let pods = self.pods.read(&self.views.load(), &order.pods, order.disks).await;
        let layout =
            Layout { images_apart: reading.images_apart, layers_apart: reading.layers_apart };
        let cache = [
            (Signal::MemoryAvailable, reading.memory),
            (Signal::AllocatableMemoryAvailable, reading.pods_memory),
        ];
        let cache = cache.into_iter().filter_map(|(of, memory)| Some((of, memory?.active_cache)));
        let (at, stall, cache) = (reading.at, reading.stall, cache.collect());
        (Observation { at, readings, layout, stall, cache, pods }, soonest)
    }

    /// The kernel says when half of what is left now is gone.
    fn arm(&mut self, index: usize, memory: Option<Memory>) {
        let Some(memory) = memory else { return };
        let half = memory.available() / 2;
        let line = memory.usage_that_leaves(half);
        if let Err(error) = self.watch.arm(index, line, half / 4) {
            tracing::debug!(%error, "memory is looked at by the clock alone");
        }
    }

    /// Where images and writable layers lie; as it was told last while the runtime does not answer.
    async fn runtime_disks(&mut self) -> RuntimeDisks {
        if let Some((asked, disks)) = &self.disks
            && asked.elapsed() < DISKS_EVERY
        {
            return disks.clone();
        }
        let asked = self.runtime.image_fs_info(v1::ImageFsInfoRequest {});
        let told = tokio::time::timeout(READ_MAX, asked).await;
        let first = |all: Vec<v1::FilesystemUsage>| {
            all.into_iter().next().and_then(|fs| fs.fs_id).map(|id| PathBuf::from(id.mountpoint))
        };
        if let Ok(Ok(told)) = told {
            let (images, layers) =
                (first(told.image_filesystems), first(told.container_filesystems));
            self.disks = Some((Instant::now(), RuntimeDisks { images, layers }));
        }
        self.disks.as_ref().map(|(_, disks)| disks.clone()).unwrap_or_default()
    }
}

/// What was read, by signal.
// k8s: pkg/kubelet/eviction/helpers.go makeSignalObservations
fn readings(of: &node::Reading) -> BTreeMap<Signal, Reading> {
    let at = of.at;
    let memory =
        |memory: Option<Memory>| memory.map(|memory| (memory.available(), memory.capacity));
    let bytes = |fs: Option<pintle_agent_host::disk::FileSystem>| {
        fs.map(|fs| (fs.available_bytes, fs.capacity_bytes))
    };
    // A file system that makes inodes as it needs them says that it has none.
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
        Some((signal, Reading { available, capacity, at }))
    });
    known.collect()
}

/// When the next look should be, if not by the usual clock: something that goes fast is seen some
/// times before it is gone.
fn pace(before: &BTreeMap<Signal, Reading>, now: &BTreeMap<Signal, Reading>) -> Option<Duration> {
    let pace_of = |(signal, now): (&Signal, &Reading)| {
        let before = before.get(signal)?;
        let gone = before.available.checked_sub(now.available).filter(|gone| *gone > 0)?;
        let left = u32::try_from(now.available / gone).ok()?;
        now.at.since(before.at).checked_mul(left)
    };
    let soonest = now.iter().filter_map(pace_of).min()? / LOOKS_BEFORE_END;
    (soonest < USUAL).then(|| soonest.max(SOONEST))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_core::types::UnixNanos;
    use pintle_agent_host::disk::FileSystem;

    const SECOND: i64 = 1_000_000_000;

    fn memory(seconds: i64, available: u64) -> BTreeMap<Signal, Reading> {
        let reading = Reading { available, capacity: 1000, at: UnixNanos(seconds * SECOND) };
        BTreeMap::from([(Signal::MemoryAvailable, reading)])
    }

    #[test]
    fn what_goes_fast_is_looked_at_sooner() {
        for (before, now, expected) in [
            (900, 900, None),
            (900, 950, None),
            // Ten a second: the eight hundred that are left last eighty.
            (900, 800, None),
            // Forty a second, for ten seconds more.
            (800, 400, Some(Duration::from_millis(2500))),
            (900, 90, Some(SOONEST)),
            (900, 0, Some(SOONEST)),
        ] {
            assert_eq!(pace(&memory(0, before), &memory(10, now)), expected, "{before} {now}");
        }
        assert_eq!(pace(&BTreeMap::new(), &memory(0, 1)), None);
    }

    #[test]
    fn what_cannot_be_read_has_no_reading() {
        assert!(readings(&node::Reading::default()).is_empty());
        let fs = FileSystem { capacity_bytes: 9, available_bytes: 4, ..FileSystem::default() };
        let read = node::Reading {
            memory: Some(Memory { capacity: 100, working_set: 30, usage: 50, active_cache: 9 }),
            node_fs: Some(fs),
            pids: Some((10, 3)),
            ..node::Reading::default()
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
