//! The board: which containers are probed, what is due when, what runs, what is to be told.
//!
//! Pure but for the handles by which attempts are given up. Owner: the prober. Due times are kept
//! in a heap whose entries are not taken back: one that no longer agrees with its machine is
//! dropped when it comes up. An attempt is named by its container, its kind and a number, so that
//! the end of one that was given up is not taken for the end of its successor.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::task::AbortHandle;

use super::adopt;
use super::plan::{Change, KINDS, Machine, Outcome, Settings};
use super::target::Target;
use crate::observed::{ObservedContainer, ObservedPod, RunState};
use crate::pod;
use crate::types::{ContainerId, ContainerKind, PodUid, UnixNanos};
use crate::worker::{Input, ProbeKind};

/// `Command::Probe`, taken apart.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) uid: PodUid,
    pub(super) pod: Arc<Pod>,
    pub(super) observed: Arc<ObservedPod>,
    pub(super) terminating: bool,
}

/// What does not change while the agent runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// Addresses of pods on the node's network.
    pub(super) host_ips: Vec<IpAddr>,
    /// When the agent began.
    pub(super) agent_started_at: UnixNanos,
}

/// Names an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) uid: PodUid,
    pub(super) id: ContainerId,
    pub(super) kind: ProbeKind,
    pub(super) number: u64,
}

/// An attempt to begin.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) key: Key,
    pub(super) target: Rc<Target>,
    pub(super) timeout: Duration,
}

#[derive(Debug)]
struct Watched {
    target: Rc<Target>,
    machine: Machine,
    /// Attempts under way, by kind.
    running: BTreeMap<ProbeKind, (u64, Option<AbortHandle>)>,
}

type Containers = BTreeMap<ContainerId, Watched>;
type HeapEntry = Reverse<(Duration, PodUid, ContainerId, ProbeKind)>;

/// See the module's header.
#[derive(Debug, Default)]
pub(super) struct Board {
    pods: BTreeMap<PodUid, Containers>,
    heap: BinaryHeap<HeapEntry>,
    results: VecDeque<Input>,
    /// Attempts under way, given-up ones that have not ended yet included.
    attempts: usize,
    counter: u64,
}

impl Board {
    /// Probe exactly these containers of the pod from now on; `now` is the prober's clock and the
    /// wall clock.
    pub(super) fn order(&mut self, order: &Order, facts: &Facts, now: (Duration, UnixNanos)) {
        let spec = pod::spec(&order.pod);
        let mut known = self.pods.remove(&order.uid).unwrap_or_default();
        let mut watched = Containers::new();
        let running = order.observed.containers.iter().filter(|c| c.state == RunState::Running);
        for seen in running {
            let Some((kind, container)) = pod::containers::find(spec, &seen.name) else { continue };
            // Only containers that are meant to stay have probes.
            if kind == ContainerKind::Init {
                continue;
            }
            let mut entry = match known.remove(&seen.id) {
                Some(entry) => entry,
                None => self.watch(order, container, seen, facts, now),
            };
            if order.terminating {
                let changes = entry.machine.terminate(now.0);
                self.tell(&order.uid, &seen.id, changes);
                entry.give_up_stopped();
            }
            watched.insert(seen.id.clone(), entry);
        }
        known.into_values().for_each(|gone| gone.give_up());
        let due: Vec<_> =
            watched.iter().map(|(id, w)| (id.clone(), due_times(&w.machine))).collect();
        if !watched.is_empty() {
            self.pods.insert(order.uid.clone(), watched);
        }
        for (id, due) in due {
            self.push(&order.uid, &id, due);
        }
    }

    /// Forgets a pod.
    pub(super) fn forget(&mut self, uid: &PodUid) {
        for gone in self.pods.remove(uid).unwrap_or_default().into_values() {
            gone.give_up();
        }
    }

    fn watch(
        &mut self,
        order: &Order,
        container: &Container,
        seen: &ObservedContainer,
        facts: &Facts,
        (now, wall): (Duration, UnixNanos),
    ) -> Watched {
        let times = (facts.agent_started_at, wall);
        let beginning = adopt::beginning(&order.pod, container, seen, times);
        let agent_age = wall.since(facts.agent_started_at);
        let delay = |kind, settings: &Settings| spread(&seen.id, kind, settings.period, agent_age);
        let (machine, changes) = Machine::new(container, beginning, now, delay);
        self.tell(&order.uid, &seen.id, changes);
        let target = Target::new(&order.pod, container, &order.observed, seen, &facts.host_ips);
        Watched { target: Rc::new(target), machine, running: BTreeMap::new() }
    }

    /// The next attempt that is due, if there is room for one.
    pub(super) fn take_due(&mut self, now: Duration, attempts_max: usize) -> Option<Attempt> {
        loop {
            if self.attempts >= attempts_max || self.peek()? > now {
                return None;
            }
            let Reverse((_, uid, id, kind)) = self.heap.pop()?;
            let watched = self.pods.get_mut(&uid)?.get_mut(&id)?;
            let Some(settings) = watched.machine.settings(kind) else { continue };
            if !watched.machine.begin(kind, now) {
                continue;
            }
            self.counter += 1;
            self.attempts += 1;
            watched.running.insert(kind, (self.counter, None));
            let target = Rc::clone(&watched.target);
            let key = Key { uid, id, kind, number: self.counter };
            return Some(Attempt { key, target, timeout: settings.timeout });
        }
    }

    /// When the next attempt may begin; `None` when none is due ever, or there is no room.
    pub(super) fn next_due(&mut self, attempts_max: usize) -> Option<Duration> {
        if self.attempts >= attempts_max {
            return None;
        }
        self.peek()
    }

    /// The earliest due time, after dropping entries that no longer hold.
    fn peek(&mut self) -> Option<Duration> {
        loop {
            let Reverse((at, uid, id, kind)) = self.heap.peek()?;
            let watched = self.pods.get(uid).and_then(|containers| containers.get(id));
            if watched.and_then(|w| w.machine.due(*kind)) == Some(*at) {
                return Some(*at);
            }
            self.heap.pop();
        }
    }

    /// The attempt's task runs and can be given up by this handle.
    pub(super) fn began(&mut self, key: &Key, handle: AbortHandle) {
        let watched = self.pods.get_mut(&key.uid).and_then(|c| c.get_mut(&key.id));
        if let Some((number, slot)) = watched.and_then(|w| w.running.get_mut(&key.kind))
            && *number == key.number
        {
            *slot = Some(handle);
        }
    }

    /// An attempt ended, in whatever way.
    pub(super) fn ended(&mut self, key: &Key, now: Duration, outcome: Outcome) {
        self.attempts = self.attempts.saturating_sub(1);
        let watched = self.pods.get_mut(&key.uid).and_then(|c| c.get_mut(&key.id));
        let Some(watched) = watched else { return };
        if watched.running.get(&key.kind).is_none_or(|(number, _)| *number != key.number) {
            return;
        }
        watched.running.remove(&key.kind);
        let change = watched.machine.end(key.kind, now, outcome);
        let due = due_times(&watched.machine);
        self.push(&key.uid, &key.id, due);
        self.tell(&key.uid, &key.id, change);
    }

    /// The oldest result that has not been told.
    pub(super) fn take_result(&mut self) -> Option<Input> {
        self.results.pop_front()
    }

    /// Attempts under way.
    #[cfg(test)]
    pub(super) fn attempts(&self) -> usize {
        self.attempts
    }

    fn tell(
        &mut self,
        uid: &PodUid,
        container: &ContainerId,
        changes: impl IntoIterator<Item = Change>,
    ) {
        self.results.extend(changes.into_iter().map(|change| Input::Probed {
            uid: uid.clone(),
            container: container.clone(),
            probe: change.kind,
            healthy: change.healthy,
        }));
    }

    fn push(&mut self, uid: &PodUid, id: &ContainerId, due: Vec<(Duration, ProbeKind)>) {
        for (at, kind) in due {
            self.heap.push(Reverse((at, uid.clone(), id.clone(), kind)));
        }
        self.trim();
    }

    /// Rebuilds the heap when entries that no longer hold outweigh the others.
    fn trim(&mut self) {
        let probes: usize = self.pods.values().map(|c| c.len() * KINDS.len()).sum();
        if self.heap.len() <= 64 + 4 * probes {
            return;
        }
        let pods = &self.pods;
        let holds = |Reverse((at, uid, id, kind)): &HeapEntry| {
            let watched = pods.get(uid).and_then(|containers| containers.get(id));
            watched.and_then(|w| w.machine.due(*kind)) == Some(*at)
        };
        let entries: BTreeSet<_> =
            std::mem::take(&mut self.heap).into_iter().filter(holds).collect();
        self.heap = entries.into_iter().collect();
    }
}

impl Watched {
    /// Ends all attempts; nobody waits for them any more.
    fn give_up(self) {
        self.running.into_values().filter_map(|(_, handle)| handle).for_each(|h| h.abort());
    }

    /// Ends attempts whose outcome no longer matters.
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

fn due_times(machine: &Machine) -> Vec<(Duration, ProbeKind)> {
    KINDS.into_iter().filter_map(|kind| Some((machine.due(kind)?, kind))).collect()
}

/// Spreads the first attempts over a period while the agent is younger than the period, so that a
/// restart does not probe everything at once. The same for a container each time.
// k8s: pkg/kubelet/prober/worker.go run
fn spread(id: &ContainerId, kind: ProbeKind, period: Duration, agent_age: Duration) -> Duration {
    if period <= agent_age {
        return Duration::ZERO;
    }
    let mut hasher = DefaultHasher::new();
    (id, kind).hash(&mut hasher);
    let share = (hasher.finish() >> 40) as f64 / f64::from(1_u32 << 24);
    period.mul_f64(share)
}

#[cfg(test)]
#[path = "board_tests.rs"]
mod tests;
