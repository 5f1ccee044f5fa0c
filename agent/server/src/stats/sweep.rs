//! Reads all cgroups in one go, on a thread of its own.
//!
//! Effects. Input: targets. Output: a `Sweep`. The thread sleeps until it is asked; for
//! `WARM_FOR` after that it sweeps every `SWEEP_EVERY`, so that the use per second is known when
//! it is asked for again; between readings that lie further apart there is none. Files of cgroups
//! are open that long. Bounds: `REQUESTS_MAX` requests that wait, the sampler's open files.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use pintle_agent_core::observed::{ObservedPod, RunState};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_host::cgroup::stats::{Sample, Sampler};
use pintle_daemon::tasks;
use tokio::sync::oneshot;

use super::network::{Interface, interfaces};
use super::targets::{CgroupOwner, CgroupTarget};

/// Requests that wait for the thread.
const REQUESTS_MAX: usize = 4;
/// Interval of its own sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How long they continue after the last request.
const WARM_FOR: Duration = Duration::from_secs(60);
/// Shortest time over which the use per second is computed.
pub(super) const RATE_MIN: Duration = Duration::from_secs(2);
/// Longest time between the two sweeps of a rate: older use says little of the present.
const RATE_MAX: Duration = Duration::from_secs(30);

/// All figures of one moment.
#[derive(Debug, Default)]
pub(super) struct Sweep {
    pub(super) cgroups: BTreeMap<CgroupOwner, CgroupReading>,
    /// Interfaces of pods.
    pub(super) networks: HashMap<PodUid, Vec<Interface>>,
    /// Interfaces of the node.
    pub(super) node_network: Vec<Interface>,
}

/// A cgroup that was read.
#[derive(Clone, Debug, Default)]
pub(super) struct CgroupReading {
    pub(super) path: String,
    pub(super) sample: Sample,
    /// CPU nanoseconds used per second; `None` before the second reading.
    pub(super) nano_cores: Option<u64>,
    /// Processes, without their threads; of containers alone, where they were asked for.
    pub(super) processes: Option<u64>,
}

/// Readings of each cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadingKind {
    /// The readings of the statistics, for all cgroups, with the use per second.
    Shown,
    /// Also the processes of containers, which the kernel lists at each reading.
    Processes,
    /// Also the readings of `/metrics/cadvisor`.
    More,
    /// The readings of eviction ranking, for some cgroups, now: processes, but no use per second,
    /// and nothing is kept for the next sweep.
    Weighed,
}

impl Sweep {
    /// True if the use per second is known, but for new cgroups.
    pub(super) fn has_rates(&self) -> bool {
        self.cgroups.get(&CgroupOwner::Root).is_none_or(|root| root.nano_cores.is_some())
    }

    /// Usage of a container.
    pub(super) fn container(&self, id: &str) -> Option<&CgroupReading> {
        self.cgroups.get(&CgroupOwner::Container(id.to_owned()))
    }

    /// Usage of a pod: the reading of its cgroup, or the sum of its running containers where it has
    /// none of its own.
    // k8s: pkg/kubelet/stats/cri_stats_provider.go addPodCPUMemoryStats, addSwapStats
    pub(super) fn pod(&self, pod: &ObservedPod) -> Option<Cow<'_, CgroupReading>> {
        match self.cgroups.get(&CgroupOwner::Pod(pod.uid.clone())) {
            Some(own) => Some(Cow::Borrowed(own)),
            None => sum(self.running(pod)).map(Cow::Owned),
        }
    }

    /// Processes of a pod's running containers.
    // k8s: pkg/kubelet/stats/cri_stats_provider.go addProcessStats
    pub(super) fn processes(&self, pod: &ObservedPod) -> Option<u64> {
        let each = self.running(pod).filter_map(|reading| reading.processes);
        each.reduce(u64::saturating_add)
    }

    fn running(&self, pod: &ObservedPod) -> impl Iterator<Item = &CgroupReading> {
        let running = pod.containers.iter().filter(|c| c.state == RunState::Running);
        running.filter_map(|container| self.container(container.id.as_str()))
    }
}

/// The sum of the readings; `None` of nothing. Its limits are such that the remaining amount is the
/// sum of the remaining amounts of containers with a limit.
fn sum<'a>(readings: impl Iterator<Item = &'a CgroupReading>) -> Option<CgroupReading> {
    let mut all: Option<CgroupReading> = None;
    let (mut memory_left, mut swap_left) = (0_u64, 0_u64);
    for reading in readings {
        let (of, all) = (&reading.sample, all.get_or_insert_default());
        let left = |limit: Option<u64>, used| limit.map_or(0, |limit| limit.saturating_sub(used));
        memory_left = memory_left.saturating_add(left(of.memory_limit_bytes, of.working_set_bytes));
        swap_left = swap_left.saturating_add(left(of.swap_limit_bytes, of.swap_bytes));
        let sample = &mut all.sample;
        sample.at = of.at;
        for (sum, more) in [
            (&mut sample.cpu_ns, of.cpu_ns),
            (&mut sample.memory_bytes, of.memory_bytes),
            (&mut sample.working_set_bytes, of.working_set_bytes),
            (&mut sample.rss_bytes, of.rss_bytes),
            (&mut sample.swap_bytes, of.swap_bytes),
            (&mut sample.faults.0, of.faults.0),
            (&mut sample.faults.1, of.faults.1),
        ] {
            *sum = sum.saturating_add(more);
        }
        if let Some(more) = reading.nano_cores {
            all.nano_cores = Some(all.nano_cores.unwrap_or(0).saturating_add(more));
        }
    }
    let mut all = all?;
    let sample = &mut all.sample;
    sample.memory_limit_bytes = Some(sample.working_set_bytes.saturating_add(memory_left));
    sample.swap_limit_bytes = Some(sample.swap_bytes.saturating_add(swap_left));
    Some(all)
}

struct SweepRequest {
    targets: Vec<CgroupTarget>,
    kind: ReadingKind,
    answer: oneshot::Sender<Arc<Sweep>>,
}

/// Asks the thread; dropping it ends the thread.
#[derive(Clone, Debug)]
pub(super) struct Sweeper(SyncSender<SweepRequest>);

impl Sweeper {
    /// Starts the thread; `None` without cgroups.
    pub(super) fn start() -> Option<Self> {
        let sampler = Sampler::new()
            .inspect_err(|error| tracing::warn!(%error, "pod statistics are not available"))
            .ok()?;
        let (requests, queue) = sync_channel(REQUESTS_MAX);
        let mut thread = SweepThread::over(sampler);
        pintle_daemon::tasks::thread("stats", move || while thread.turn(&queue) {}).ok()?;
        Some(Self(requests))
    }

    /// A new sweep; `None` when the thread has too much to do.
    pub(super) async fn sweep(
        &self,
        targets: Vec<CgroupTarget>,
        kind: ReadingKind,
    ) -> Option<Arc<Sweep>> {
        let (answer, swept) = oneshot::channel();
        self.0.try_send(SweepRequest { targets, kind, answer }).ok()?;
        swept.await.ok()
    }
}

struct SweepThread {
    sampler: Sampler,
    /// CPU time of the reading before, for the rate.
    before: HashMap<CgroupOwner, (UnixNanos, u64)>,
    rates: HashMap<CgroupOwner, u64>,
    warm: Option<Warm>,
}

/// Sweeps without a request.
struct Warm {
    targets: Vec<CgroupTarget>,
    /// Time of the last request.
    asked: Instant,
    next: Instant,
}

impl SweepThread {
    fn over(sampler: Sampler) -> Self {
        Self { sampler, before: HashMap::new(), rates: HashMap::new(), warm: None }
    }

    /// Sweeps on request, or when it is time; returns false when every sender is gone.
    fn turn(&mut self, queue: &Receiver<SweepRequest>) -> bool {
        let request = match &self.warm {
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(warm) => queue.recv_timeout(warm.next.saturating_duration_since(Instant::now())),
        };
        match request {
            Ok(SweepRequest { targets, kind, answer }) => {
                // A sweep that panics has no answer, and the next one is made.
                if let Some(swept) = self.caught(&targets, kind) {
                    let _ = answer.send(Arc::new(swept)); // the caller is gone: fine
                    let asked = Instant::now();
                    if kind != ReadingKind::Weighed {
                        self.warm = Some(Warm { targets, asked, next: asked + SWEEP_EVERY });
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Some(mut warm) = self.warm.take() {
                    self.caught(&warm.targets, ReadingKind::Shown);
                    warm.next = Instant::now() + SWEEP_EVERY;
                    self.warm = Some(warm).filter(|warm| warm.asked.elapsed() < WARM_FOR);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return false,
        }
        if self.warm.is_none() {
            self.sampler.close();
        }
        true
    }

    fn caught(&mut self, targets: &[CgroupTarget], kind: ReadingKind) -> Option<Sweep> {
        let swept = tasks::catch(|| self.sweep(targets, kind));
        let lost = |panic: &tasks::Panicked| {
            tasks::counted("stats");
            tracing::error!(task = "stats", "{panic}; one sweep is lost");
        };
        swept.inspect_err(lost).ok()
    }

    fn sweep(&mut self, targets: &[CgroupTarget], kind: ReadingKind) -> Sweep {
        // Eviction ranking reads some cgroups only, and the other cgroups' files are read again
        // soon.
        if kind != ReadingKind::Weighed || self.warm.is_none() {
            self.sampler.begin();
        }
        let mut sweep = Sweep::default();
        for target in targets {
            let Some(path) = self.path(target) else { continue };
            let Some(sample) = self.sampler.sample(&path, kind == ReadingKind::More) else {
                continue;
            };
            if let Some(uid) = &target.network_of
                && kind != ReadingKind::Weighed
                && let Some(pid) = self.sampler.first_pid(&path)
                && let Ok(text) = fs::read_to_string(format!("/proc/{pid}/net/dev"))
            {
                sweep.networks.insert(uid.clone(), interfaces(&text));
            }
            let nano_cores = match kind {
                ReadingKind::Weighed => None,
                _ => self.rate(&target.key, sample.at, sample.cpu_ns),
            };
            let processes = match (kind, &target.key) {
                (ReadingKind::Processes | ReadingKind::Weighed, CgroupOwner::Container(_)) => {
                    self.sampler.processes(&path)
                }
                (ReadingKind::More, CgroupOwner::Container(_)) => {
                    sample.more.as_ref().map(|m| m.holds.processes)
                }
                _ => None,
            };
            let reading = CgroupReading { path, sample, nano_cores, processes };
            sweep.cgroups.insert(target.key.clone(), reading);
        }
        if kind == ReadingKind::Weighed {
            return sweep;
        }
        // Those of the host, also where the agent has a network of its own.
        // k8s: github.com/google/cadvisor container/raw/handler.go newRawContainerHandler
        let of = |process: &str| fs::read_to_string(format!("/proc/{process}/net/dev"));
        let text = of("1").or_else(|_| of("self")).unwrap_or_default();
        sweep.node_network = interfaces(&text);
        self.before.retain(|key, _| sweep.cgroups.contains_key(key));
        self.rates.retain(|key, _| sweep.cgroups.contains_key(key));
        sweep
    }

    fn path(&self, target: &CgroupTarget) -> Option<String> {
        match target.paths.as_slice() {
            [path] => Some(path.clone()),
            paths => self.sampler.first_of(paths).cloned(),
        }
    }

    fn rate(&mut self, key: &CgroupOwner, at: UnixNanos, cpu_ns: u64) -> Option<u64> {
        match self.before.get_mut(key) {
            // Also where the clock was set back.
            Some((before, _)) if at < *before || at.since(*before) > RATE_MAX => {
                self.rates.remove(key);
                self.before.insert(key.clone(), (at, cpu_ns));
            }
            None => {
                self.before.insert(key.clone(), (at, cpu_ns));
            }
            Some((before, used)) => {
                let passed = at.since(*before);
                if passed >= RATE_MIN {
                    let rate = rate(cpu_ns.saturating_sub(*used), passed);
                    (*before, *used) = (at, cpu_ns);
                    self.rates.insert(key.clone(), rate);
                }
            }
        }
        self.rates.get(key).copied()
    }
}

/// Nanoseconds of CPU per second.
fn rate(used_ns: u64, passed: Duration) -> u64 {
    let rate = u128::from(used_ns) * 1_000_000_000 / passed.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_use_per_second() {
        assert_eq!(rate(500_000_000, Duration::from_secs(2)), 250_000_000);
        assert_eq!(rate(7, Duration::ZERO), 7_000_000_000);
    }

    #[test]
    fn cpu_rate_is_computed_only_over_a_recent_interval() {
        let mut thread = SweepThread::over(Sampler::new().expect("this host has cgroups"));
        let mut rate = |seconds: i64, cpu_seconds: u64| {
            let at = UnixNanos(seconds * 1_000_000_000);
            thread.rate(&CgroupOwner::Root, at, cpu_seconds * 1_000_000_000)
        };
        assert_eq!(rate(100, 0), None);
        assert_eq!(rate(110, 10), Some(1_000_000_000));
        assert_eq!(rate(111, 10), Some(1_000_000_000), "too short a time");
        assert_eq!(rate(3_700, 500), None, "an hour says nothing of now");
        assert_eq!(rate(3_702, 508), Some(4_000_000_000));
        assert_eq!(rate(50, 509), None, "the clock was set back");
        assert_eq!(rate(60, 529), Some(2_000_000_000));
    }

    #[test]
    fn ranking_does_not_delay_a_sweep() {
        let mut thread = SweepThread::over(Sampler::new().expect("this host has cgroups"));
        let (requests, queue) = sync_channel(REQUESTS_MAX);
        let root =
            CgroupTarget { key: CgroupOwner::Root, paths: vec!["/".to_owned()], network_of: None };
        let ask = |thread: &mut SweepThread, kind| {
            let (answer, _) = oneshot::channel();
            let request = SweepRequest { targets: vec![root.clone()], kind, answer };
            assert!(requests.try_send(request).is_ok());
            assert!(thread.turn(&queue));
            thread.warm.as_ref().map(|warm| warm.next)
        };
        assert_eq!(ask(&mut thread, ReadingKind::Weighed), None);
        let next = ask(&mut thread, ReadingKind::Shown).expect("it is warm");
        assert_eq!(ask(&mut thread, ReadingKind::Weighed), Some(next));
        thread.warm.as_mut().expect("warm").next = Instant::now();
        assert!(thread.turn(&queue), "no request is queued");
        let again = thread.warm.as_ref().expect("warm").next;
        assert!(again >= next && again > Instant::now());
        let warm = thread.warm.as_mut().expect("warm");
        (warm.next, warm.asked) = (Instant::now(), Instant::now() - WARM_FOR);
        assert!(thread.turn(&queue) && thread.warm.is_none());
        drop(requests);
        assert!(!thread.turn(&queue));
    }

    #[test]
    fn usage_of_a_pod_without_its_own_cgroup_is_that_of_its_running_containers() {
        let mut pod = ObservedPod::empty("u".into(), "ns", "p");
        let (running, dead) = (
            pintle_agent_core::status::testing::container,
            pintle_agent_core::status::testing::exited,
        );
        pod.containers = vec![running("a", "1"), running("b", "2"), dead("c", "3", 0)];
        let of = |bytes, limit, processes| {
            let sample = Sample {
                at: UnixNanos(7),
                cpu_ns: bytes,
                working_set_bytes: bytes,
                memory_limit_bytes: limit,
                ..Sample::default()
            };
            CgroupReading { sample, nano_cores: Some(2), processes, ..CgroupReading::default() }
        };
        let id = |id: &str| CgroupOwner::Container(id.to_owned());
        let mut sweep = Sweep::default();
        assert!(sweep.pod(&pod).is_none() && sweep.processes(&pod).is_none());
        let all = [("1", 5, Some(9), Some(600)), ("2", 7, None, Some(3)), ("3", 11, None, Some(1))];
        let all =
            all.map(|(name, bytes, limit, processes)| (id(name), of(bytes, limit, processes)));
        sweep.cgroups.extend(all);
        let found = sweep.pod(&pod).expect("two of them run");
        let sample = &found.sample;
        assert_eq!((sample.working_set_bytes, sample.cpu_ns, sample.at), (12, 12, UnixNanos(7)));
        assert_eq!((sample.memory_limit_bytes, found.nano_cores), (Some(16), Some(4)));
        assert_eq!(sweep.processes(&pod), Some(603));
        sweep.cgroups.insert(CgroupOwner::Pod("u".into()), of(20, None, None));
        assert_eq!(sweep.pod(&pod).expect("its own").sample.working_set_bytes, 20);
        assert_eq!(sweep.processes(&pod), Some(603), "of containers in any case");
    }

    #[tokio::test]
    async fn sweep_reads_existing_cgroups_and_omits_missing_ones() {
        let sweeper = Sweeper::start().expect("this host has cgroups");
        let target =
            |key, path: &str| CgroupTarget { key, paths: vec![path.to_owned()], network_of: None };
        let gone = CgroupOwner::Container("gone".to_owned());
        let one = CgroupOwner::Container("1".to_owned());
        let targets = [(CgroupOwner::Root, "/"), (gone.clone(), "/no/such"), (one.clone(), "/")];
        let targets = targets.into_iter().map(|(key, path)| target(key, path)).collect();
        let targets: Vec<_> = targets;
        let sweep = async |kind| sweeper.sweep(targets.clone(), kind).await.expect("an answer");
        let swept = sweep(ReadingKind::More).await;
        assert!(swept.cgroups[&CgroupOwner::Root].sample.cpu_ns > 0);
        assert!(!swept.cgroups.contains_key(&gone));
        assert_eq!(swept.cgroups[&CgroupOwner::Root].processes, None);
        for (kind, counts) in [
            (ReadingKind::Shown, false),
            (ReadingKind::Processes, true),
            (ReadingKind::More, true),
            (ReadingKind::Weighed, true),
        ] {
            let processes = sweep(kind).await.cgroups[&one].processes;
            assert_eq!(processes.is_some(), counts, "{kind:?}: processes of containers");
        }
    }
}
