//! The schedule: which containers are probed, which attempts are due, which run, which results to
//! report.
//!
//! Pure but for the handles by which attempts are given up. Owner: the prober. Due times are kept
//! in a heap without removal: an entry that no longer agrees with its machine is dropped when it
//! comes up. A due attempt waits with its pod for one of the node's places, which are shared
//! between pods (`shares`). An attempt is named by its container, its kind and a number, so that
//! the end of one that was given up is not taken for the end of its successor.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use pintle_agent_core::observed::{ObservedContainer, ObservedPod, RunState};
use pintle_agent_core::types::{ContainerId, ContainerKind, PodUid, UnixNanos};
use pintle_agent_core::worker::{PodsInput, ProbeKind};
use pintle_api_types::pod;
use tokio::task::AbortHandle;

use super::adopt;
use super::plan::{
    Beginning, ContainerProbes, KINDS, ProbeChange, ProbeOutcome, ResultRun, Settings,
};
use super::shares::Shares;
use super::target::ProbeTarget;

/// Entries of the heap from which on stale ones are searched; after that, when they have doubled:
/// an entry costs the same however many there are.
const HEAP_MIN: usize = 64;

/// `Command::Probe`, taken apart.
#[derive(Debug)]
pub(super) struct ProbeOrder {
    pub(super) uid: PodUid,
    pub(super) pod: Arc<Pod>,
    pub(super) observed: Arc<ObservedPod>,
    pub(super) pod_ip: Option<String>,
    pub(super) terminating: bool,
}

/// Names an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptKey {
    pub(super) uid: PodUid,
    pub(super) id: ContainerId,
    pub(super) kind: ProbeKind,
    pub(super) number: u64,
}

/// An attempt to begin.
#[derive(Clone, Debug)]
pub(super) struct ProbeAttempt {
    pub(super) key: AttemptKey,
    pub(super) target: Rc<ProbeTarget>,
    pub(super) timeout: Duration,
}

/// The probes of a pod.
#[derive(Debug)]
struct Probed {
    /// When it was added: its clocks began then.
    added_at: Duration,
    /// The agent's age at that time.
    agent_age: Duration,
    containers: BTreeMap<ContainerId, WatchedPod>,
    /// The counts of containers that are gone, by name.
    runs: BTreeMap<(String, ProbeKind), ResultRun>,
}

/// A running container whose probes begin.
struct RunningContainer<'a> {
    container: &'a Container,
    seen: &'a ObservedContainer,
    beginning: Beginning,
}

#[derive(Debug)]
struct WatchedPod {
    target: Rc<ProbeTarget>,
    machine: ContainerProbes,
    /// Attempts under way, by kind.
    running: BTreeMap<ProbeKind, (u64, Option<AbortHandle>)>,
    /// Probes that wait for a place.
    waiting: BTreeSet<ProbeKind>,
}

type HeapEntry = Reverse<(Duration, PodUid, ContainerId, ProbeKind)>;

/// See the module's header.
#[derive(Debug)]
pub(super) struct ProbeSchedule {
    agent_started_at: UnixNanos,
    pods: BTreeMap<PodUid, Probed>,
    heap: BinaryHeap<HeapEntry>,
    /// Length of the heap at which it is rebuilt.
    trim_at: usize,
    /// Places of attempts, given-up ones that have not ended yet included.
    places: Shares<PodUid, (ContainerId, ProbeKind)>,
    results: VecDeque<PodsInput>,
    counter: u64,
}

impl ProbeSchedule {
    /// An empty schedule of an agent that began at this time, with that many attempts at a time.
    pub(super) fn new(agent_started_at: UnixNanos, attempts_max: usize) -> Self {
        Self {
            agent_started_at,
            pods: BTreeMap::new(),
            heap: BinaryHeap::new(),
            trim_at: HEAP_MIN,
            places: Shares::new(attempts_max),
            results: VecDeque::new(),
            counter: 0,
        }
    }

    /// Probe exactly these containers of the pod from now on; `now` is the prober's clock and the
    /// wall clock.
    pub(super) fn order(&mut self, order: &ProbeOrder, now: Duration, wall: UnixNanos) {
        let spec = pod::spec(&order.pod);
        let agent_age = wall.since(self.agent_started_at);
        let mut pod = self.pods.remove(&order.uid).unwrap_or_else(|| Probed {
            added_at: now,
            agent_age,
            containers: BTreeMap::new(),
            runs: BTreeMap::new(),
        });
        let mut known = std::mem::take(&mut pod.containers);
        let running = order.observed.containers.iter().filter(|c| c.state == RunState::Running);
        let seen: Vec<_> = running
            .filter_map(|seen| Some((seen, pod::containers::find(spec, &seen.name)?)))
            // Only containers that are meant to stay have probes.
            .filter(|(_, (kind, _))| *kind != ContainerKind::Init)
            .collect();
        let stay: BTreeSet<_> = seen.iter().map(|(seen, _)| &seen.id).collect();
        for (_, gone) in known.extract_if(.., |id, _| !stay.contains(id)) {
            pod.keep_runs(&gone);
            gone.give_up();
        }
        self.places.keep_waiting(&order.uid, |(id, _)| stay.contains(id));
        for (seen, (_, container)) in seen {
            let mut entry = match known.remove(&seen.id) {
                Some(entry) => entry,
                None => {
                    let agent_started_at = self.agent_started_at;
                    let times = adopt::AdoptTimes { agent_started_at, now: wall };
                    let beginning = adopt::beginning(&order.pod, container, seen, times);
                    let running = RunningContainer { container, seen, beginning };
                    self.watch(&order.uid, &pod, running, now)
                }
            };
            entry.move_to(&order.pod, order.pod_ip.as_deref());
            if order.terminating {
                let changes = entry.machine.terminate(now);
                self.send_changes(&order.uid, &seen.id, changes);
                entry.give_up_stopped();
            }
            entry.machine.trigger(now);
            pod.containers.insert(seen.id.clone(), entry);
        }
        self.pods.insert(order.uid.clone(), pod);
        self.schedule(&order.uid);
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        let gone = self.pods.remove(uid).map(|pod| pod.containers).unwrap_or_default();
        gone.into_values().for_each(WatchedPod::give_up);
        self.places.keep_waiting(uid, |_| false);
    }

    fn watch(
        &mut self,
        uid: &PodUid,
        pod: &Probed,
        running: RunningContainer<'_>,
        now: Duration,
    ) -> WatchedPod {
        let RunningContainer { container, seen, beginning } = running;
        let worker = |kind, settings: &Settings| {
            let name = (uid, &*container.name, kind);
            let spread = spread(name, settings.period, pod.agent_age);
            let run = pod.runs.get(&(container.name.clone(), kind)).copied().unwrap_or_default();
            (pod.added_at.saturating_add(spread), run)
        };
        let (machine, changes) = ContainerProbes::new(container, beginning, now, worker);
        self.send_changes(uid, &seen.id, changes);
        let target = Rc::new(ProbeTarget::new(uid, container, seen));
        WatchedPod { target, machine, running: BTreeMap::new(), waiting: BTreeSet::new() }
    }

    /// The next attempt that is due, if there is room for one.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<ProbeAttempt> {
        while self.peek().is_some_and(|at| at <= now) {
            let Some(Reverse((_, uid, id, kind))) = self.heap.pop() else { break };
            let watched = self.pods.get_mut(&uid).and_then(|pod| pod.containers.get_mut(&id));
            if watched.is_some_and(|watched| watched.waiting.insert(kind)) {
                self.places.wait(&uid, (id, kind));
            }
        }
        while let Some((uid, (id, kind))) = self.places.next() {
            let watched = self.pods.get_mut(&uid).and_then(|pod| pod.containers.get_mut(&id));
            let Some(watched) = watched else { continue };
            watched.waiting.remove(&kind);
            let Some(settings) = watched.machine.settings(kind) else { continue };
            if !watched.machine.begin(kind, now) {
                continue;
            }
            self.counter += 1;
            self.places.take(&uid, self.counter, now);
            watched.running.insert(kind, (self.counter, None));
            let target = Rc::clone(&watched.target);
            let key = AttemptKey { uid, id, kind, number: self.counter };
            return Some(ProbeAttempt { key, target, timeout: settings.timeout });
        }
        None
    }

    /// Has pods that hold more than their share give up attempts for those that wait with less;
    /// returns how many. Their places come with their ends.
    pub(super) fn make_room(&mut self, now: Duration) -> usize {
        let mut given_up = 0;
        while let Some((uid, number)) = self.places.ask_back(now) {
            given_up += 1;
            let watched = self.pods.get(&uid).into_iter().flat_map(|pod| pod.containers.values());
            let mut running = watched.flat_map(|watched| watched.running.values());
            // One that is not found has been given up before.
            if let Some((_, Some(handle))) = running.find(|(of, _)| *of == number) {
                handle.abort();
            }
        }
        given_up
    }

    /// When to look again; `None` when nothing is due ever.
    pub(super) fn next_due(&mut self) -> Option<Duration> {
        self.peek()
    }

    /// An attempt is due and has no place yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.places.is_waiting()
    }

    /// The earliest due time, after dropping entries that no longer hold.
    fn peek(&mut self) -> Option<Duration> {
        loop {
            let entry = self.heap.peek()?;
            if self.holds(entry) {
                return Some(entry.0.0);
            }
            self.heap.pop();
        }
    }

    fn holds(&self, Reverse((at, uid, id, kind)): &HeapEntry) -> bool {
        let watched = self.pods.get(uid).and_then(|pod| pod.containers.get(id));
        watched.is_some_and(|w| !w.waiting.contains(kind) && w.machine.due(*kind) == Some(*at))
    }

    /// The attempt's task runs and can be given up by this handle.
    pub(super) fn began(&mut self, key: &AttemptKey, handle: AbortHandle) {
        if let Some((number, slot)) = self.watched(key).and_then(|w| w.running.get_mut(&key.kind))
            && *number == key.number
        {
            *slot = Some(handle);
        }
    }

    /// An attempt ended, in any way.
    pub(super) fn ended(&mut self, key: &AttemptKey, now: Duration, outcome: ProbeOutcome) {
        self.places.give_back(&key.uid, key.number);
        let Some(watched) = self.watched(key) else { return };
        if watched.running.get(&key.kind).is_none_or(|(number, _)| *number != key.number) {
            return;
        }
        watched.running.remove(&key.kind);
        let change = watched.machine.end(key.kind, now, outcome);
        if change.is_some() {
            self.send_changes(&key.uid, &key.id, change);
            let pod = self.pods.get_mut(&key.uid);
            pod.into_iter()
                .flat_map(|pod| pod.containers.values_mut())
                .for_each(|watched| watched.machine.trigger(now));
            self.schedule(&key.uid);
        } else {
            let due = due_times(&watched.machine);
            self.push(&key.uid, &key.id, due);
        }
    }

    fn watched(&mut self, key: &AttemptKey) -> Option<&mut WatchedPod> {
        self.pods.get_mut(&key.uid)?.containers.get_mut(&key.id)
    }

    /// The oldest result that has not been reported.
    pub(super) fn take_result(&mut self) -> Option<PodsInput> {
        self.results.pop_front()
    }

    /// True if there are results that have not been reported.
    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// Attempts under way.
    #[cfg(test)]
    pub(super) fn attempts(&self) -> usize {
        self.places.taken()
    }

    fn send_changes(
        &mut self,
        uid: &PodUid,
        container: &ContainerId,
        changes: impl IntoIterator<Item = ProbeChange>,
    ) {
        self.results.extend(changes.into_iter().map(|change| PodsInput::Probed {
            uid: uid.clone(),
            container: container.clone(),
            probe: change.kind,
            healthy: change.healthy,
        }));
    }

    /// Enters all due times of a pod.
    fn schedule(&mut self, uid: &PodUid) {
        let Some(pod) = self.pods.get(uid) else { return };
        let due: Vec<_> =
            pod.containers.iter().map(|(id, w)| (id.clone(), due_times(&w.machine))).collect();
        for (id, due) in due {
            self.push(uid, &id, due);
        }
    }

    fn push(&mut self, uid: &PodUid, id: &ContainerId, due: Vec<(Duration, ProbeKind)>) {
        for (at, kind) in due {
            self.heap.push(Reverse((at, uid.clone(), id.clone(), kind)));
        }
        self.trim();
    }

    /// Drops entries that no longer hold once there are twice as many as were left last time.
    fn trim(&mut self) {
        if self.heap.len() <= self.trim_at {
            return;
        }
        let heap = std::mem::take(&mut self.heap);
        let entries: BTreeSet<_> = heap.into_iter().filter(|entry| self.holds(entry)).collect();
        self.heap = entries.into_iter().collect();
        self.trim_at = HEAP_MIN.max(2 * self.heap.len());
    }
}

impl Probed {
    /// Keeps the counts of a container that is gone, for the next of its name.
    fn keep_runs(&mut self, gone: &WatchedPod) {
        let name = &gone.target.container.name;
        self.runs.extend(gone.machine.runs().map(|(kind, run)| ((name.clone(), kind), run)));
    }
}

impl WatchedPod {
    /// Attempts that begin from now on ask at the pod's present address.
    fn move_to(&mut self, pod: &Pod, pod_ip: Option<&str>) {
        if !self.target.is_at(pod, pod_ip) {
            self.target = Rc::new(self.target.moved_to(pod, pod_ip));
        }
    }

    /// Ends all attempts; their results are not needed any more.
    fn give_up(self) {
        self.running.into_values().filter_map(|(_, handle)| handle).for_each(|h| h.abort());
    }

    /// Ends attempts with an outcome that no longer matters.
    fn give_up_stopped(&mut self) {
        let machine = &self.machine;
        self.running.retain(|kind, (_, handle)| {
            let matters = machine.is_running(*kind);
            if let Some(handle) = handle.as_ref().filter(|_| !matters) {
                handle.abort();
            }
            matters
        });
    }
}

fn due_times(machine: &ContainerProbes) -> Vec<(Duration, ProbeKind)> {
    KINDS.into_iter().filter_map(|kind| Some((machine.due(kind)?, kind))).collect()
}

/// Spreads the first attempts over a period for pods that came while the agent was younger than
/// the period, so that a restart does not probe everything at once. The same for a probe each time.
// k8s: pkg/kubelet/prober/worker.go run
fn spread(probe: (&PodUid, &str, ProbeKind), period: Duration, agent_age: Duration) -> Duration {
    if period <= agent_age {
        return Duration::ZERO;
    }
    let mut hasher = DefaultHasher::new();
    probe.hash(&mut hasher);
    let share = (hasher.finish() >> 40) as f64 / f64::from(1_u32 << 24);
    period.mul_f64(share)
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
