//! The rules of each of these worlds, independent of how `Evictor` decides.

use std::collections::BTreeMap;
use std::time::Duration;

use pintle_agent_core::eviction::observed::{Observation, ResourceReading};
use pintle_agent_core::eviction::signal::{Condition, Pressure, Signal};
use pintle_agent_core::eviction::threshold::{Settings, Threshold};
use pintle_api_types::ids::{Mono, PodUid};

use crate::world::SimPod;

/// How long the next victim waits for a stuck one: the time that a pod with a grace period of a
/// second may take, plus the time of its clean-up.
const STUCK_MIN: Duration = Duration::from_secs(30);
/// Longest time that a hard threshold may be met while a pod could be evicted. Beyond it the agent
/// is stuck: a lost observation, a reclaim without an answer, a disk that does not show it, two
/// pods that do not end.
const IDLE_MAX: Duration = Duration::from_secs(500);

/// The agent's decisions so far.
#[derive(Debug, Default)]
pub struct Check {
    pub seed: u64,
    /// Since when every look saw less of it than resolves the threshold.
    low_since: Vec<(Threshold, Mono)>,
    /// When a look last saw less than resolves a threshold of this condition.
    low_at: BTreeMap<Condition, Mono>,
    /// The last victim: when it was evicted, and when it was gone.
    last: Option<(PodUid, Mono, Option<Mono>)>,
    /// Since when a hard threshold is met in truth without an eviction.
    idle_since: Option<Mono>,
}

fn is_under(threshold: &Threshold, reading: &ResourceReading, resolving: bool) -> bool {
    let bytes = |level: pintle_agent_core::eviction::threshold::ThresholdLevel| level.of(0);
    let mut least = bytes(threshold.level);
    if resolving && let Some(more) = threshold.min_reclaim {
        least = least + bytes(more);
    }
    let left = i64::try_from(reading.available).expect("small");
    pintle_api_types::quantity::Amount::from_bytes(left) < least
}

/// The reading that counts: page cache is included where stall decides and no task waits for
/// memory.
fn left(settings: &Settings, seen: &Observation, threshold: &Threshold) -> Option<ResourceReading> {
    let reading = *seen.readings.get(&threshold.signal)?;
    let is_idle = seen.stall.zip(settings.stall_min).is_some_and(|(stall, min)| stall < min);
    let cache = seen.cache.get(&threshold.signal).filter(|_| is_idle).copied().unwrap_or(0);
    Some(ResourceReading { available: reading.available + cache, ..reading })
}

impl Check {
    /// Of the world of this seed.
    pub fn of(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// A new agent has seen nothing.
    pub fn forget(&mut self) {
        *self = Self::of(self.seed);
    }

    /// An answer is about to be taken.
    pub fn sees(&mut self, settings: &Settings, observation: &Observation, now: Mono) {
        let before = std::mem::take(&mut self.low_since);
        for threshold in settings.on(observation.layout) {
            let Some(left) = left(settings, observation, &threshold) else { continue };
            if !is_under(&threshold, &left, true) {
                continue;
            }
            let since = before.iter().find(|(of, _)| *of == threshold).map(|(_, since)| *since);
            self.low_since.push((threshold, since.unwrap_or(now)));
            self.low_at.insert(threshold.signal.condition(), now);
        }
    }

    /// Checks that the node's pressure agrees with the observations.
    pub fn says(&self, told: Pressure, settings: &Settings, seen: &Observation, now: Mono) {
        let all = [
            (Condition::MemoryPressure, told.memory),
            (Condition::DiskPressure, told.disk),
            (Condition::PidPressure, told.pid),
        ];
        for (condition, told) in all {
            let is_met = settings.on(seen.layout).iter().any(|threshold| {
                let left = left(settings, seen, threshold);
                threshold.signal.condition() == condition
                    && left.is_some_and(|left| is_under(threshold, &left, false))
            });
            assert!(told || !is_met, "seed {}: {condition:?} is met, not reported", self.seed);
            let low = self.low_at.get(&condition);
            let recent = low.is_some_and(|at| now.since(*at) < settings.transition);
            assert!(!told || recent || is_met, "seed {}: {condition:?} is reported", self.seed);
        }
    }

    /// Checks the eviction of a pod upon an observation that was requested at `asked`.
    pub fn evicts(
        &mut self,
        pods: &[SimPod],
        victim: &PodUid,
        signal: &str,
        asked: Mono,
        now: Mono,
    ) {
        let seed = self.seed;
        let signal = Signal::parse(signal).expect("a signal of a threshold");
        let of = pods.iter().find(|pod| pod.uid == *victim).expect("a pod of this node");
        assert!(of.is_evictable(), "seed {seed}: {victim} goes twice");
        if let Some((last, told, gone)) = &self.last {
            match gone {
                // The agent no longer waits for a stuck victim; it may end between an observation
                // and its answer.
                Some(gone) => {
                    let was_stuck = gone.since(*told) > STUCK_MIN;
                    assert!(
                        asked >= *gone || was_stuck,
                        "seed {seed}: no look since {last} is gone"
                    );
                }
                None => assert!(now.since(*told) > STUCK_MIN, "seed {seed}: {last} still goes"),
            }
        }
        let is_due = self.low_since.iter().any(|(threshold, since)| {
            threshold.signal == signal && now.since(*since) >= threshold.grace
        });
        assert!(is_due, "seed {seed}: {victim} goes for {signal}, {:?}", self.low_since);
        let key = |pod: &SimPod| {
            let used = if signal.is_of_disk() { pod.seen.disk } else { pod.seen.memory };
            (used == 0, pod.priority, std::cmp::Reverse(used))
        };
        let worse = pods.iter().find(|pod| pod.is_evictable() && key(pod) < key(of));
        assert!(worse.is_none(), "seed {seed}: {victim} goes before {worse:?}");
        self.last = Some((victim.clone(), now, None));
        self.idle_since = None;
    }

    /// A pod is gone.
    pub fn goes(&mut self, uid: &PodUid, now: Mono) {
        if let Some((last, _, gone)) = &mut self.last
            && last == uid
        {
            *gone = Some(now);
        }
    }

    /// The truth at this moment: if a hard threshold is met, and if a pod could be evicted.
    pub fn truth(&mut self, is_met: bool, could_go: bool, now: Mono) {
        if !is_met || !could_go {
            self.idle_since = None;
            return;
        }
        let since = *self.idle_since.get_or_insert(now);
        assert!(now.since(since) < IDLE_MAX, "seed {}: no eviction since {since:?}", self.seed);
    }
}
