//! The steps of handling a shortage: observe, reclaim unused data, observe again, evict one pod,
//! wait until it is gone, observe again.
//!
//! Input: observations and results of reclaims, with the time. Output: `EvictionStep`s for
//! `worker::Pods`. Pure. An observation requested before the last step ended is not used, so that
//! readings show the step's effect; nor is a reading used twice. Bounds: one question and one
//! reclaim under way, the victims of one step, `EVICTIONS_MAX` records.
// k8s: pkg/kubelet/eviction/eviction_manager.go synchronize, Start, waitForPodsCleanup

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use pintle_api_types::ids::{Mono, PodUid};
use pintle_api_types::pod;
use serde::{Deserialize, Serialize};

use super::local;
use super::message::{self, Notes};
use super::met::{self, Met};
use super::observed::{Freed, Observation, ResourceReading, Scope};
use super::rank::{self, EvictionRule, Uses};
use super::report::{Eviction, Runner, Trends};
use super::sight::{COUNT_MAX, Sight, UsageReport};
use super::signal::{Pressure, Signal, Starved};
use super::step::{EvictionSnapshot, EvictionStep, Victim};
use super::threshold::{IMMEDIATE_SECONDS, Threshold};

/// How often the node is observed.
// k8s: pkg/kubelet/kubelet.go evictionMonitoringPeriod
pub const PERIOD: Duration = Duration::from_secs(10);
/// How often while a change is expected.
// k8s: pkg/kubelet/eviction/eviction_manager.go podCleanupPollFreq
pub(super) const SOON: Duration = Duration::from_secs(1);
/// The kernel is listened to no more often.
const HEED_EVERY: Duration = Duration::from_millis(250);
/// How long a pod may take to be cleaned up, beyond the time that its end may take.
// k8s: pkg/kubelet/eviction/eviction_manager.go podCleanupTimeout
const CLEANUP_MAX: Duration = Duration::from_secs(30);
/// How long disks may take to show freed space.
pub const SETTLE_MAX: Duration = Duration::from_secs(30);
/// How long a reclaim may make no progress before pods are evicted all the same. The kubelet waits
/// for its end, and so does this as long as an image is removed from time to time.
pub const RECLAIM_MAX: Duration = Duration::from_secs(120);
/// How long stall does not count once a victim for memory is gone: the kernel's average of ten
/// seconds takes as long to fall from full to less than `threshold::STALL_MIN`.
const STALL_FORGOTTEN: Duration = Duration::from_secs(25);
/// When a look counts as lost.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Tenths of the freed amount that must show; concurrent writes may hide the rest.
const SEEN_TENTHS: u64 = 9;
/// Evictions that are remembered.
pub const EVICTIONS_MAX: usize = 32;

/// The step in progress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Doing {
    /// Only observations.
    #[default]
    Watching,
    /// A reclaim is under way.
    Reclaiming { ticket: u64, signal: Signal, before: u64 },
    /// The reclaim is done, and has to show, unless even all of it would not suffice.
    Settling {
        signal: Signal,
        expected: u64,
        emergency: u64,
        #[serde(default)]
        freed: u64,
        /// Upper bound of what can be available once all of it shows, where the total is known.
        #[serde(default)]
        most: Option<u64>,
    },
    /// A pod must be evicted: usage of pods is being collected.
    Weighing { signal: Signal },
    /// These pods are being evicted.
    Evicting { victims: Vec<PodUid>, starved: Option<Starved>, soft: bool },
}

/// A requested observation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PendingObservation {
    ticket: u64,
    at: Mono,
    pods: Scope,
    disks: bool,
    /// The pods present when usage of all pods was requested. A pod that starts later is not
    /// evicted for missing usage.
    #[serde(default)]
    known: BTreeSet<PodUid>,
}

/// See the module's header.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evictor {
    doing: Doing,
    /// Since when that is done.
    since: Mono,
    /// The latest end of the wait, which another event has to end earlier.
    until: Option<Mono>,
    met: Met,
    pressure: Pressure,
    asked: Option<PendingObservation>,
    look_at: Mono,
    heeded_at: Option<Mono>,
    /// Stall before this time is an effect of the last victim.
    #[serde(default)]
    stall_counts_at: Option<Mono>,
    /// The shortage last reported in an event, and when; nothing once a victim has gone since.
    #[serde(default)]
    told: Option<(Starved, Mono)>,
    /// When disks of pods with a disk limit were last measured.
    #[serde(default)]
    limits_at: Option<Mono>,
    #[serde(default)]
    sight: Sight,
    trends: Trends,
    evictions: VecDeque<Eviction>,
    /// Tickets that were given out.
    tickets: u64,
}

impl Evictor {
    /// The node's shortages, as reported.
    pub fn pressure(&self) -> Pressure {
        self.pressure
    }

    /// Pods that were evicted and have not ended yet.
    pub fn victims(&self) -> &[PodUid] {
        match &self.doing {
            Doing::Evicting { victims, .. } => victims,
            _ => &[],
        }
    }

    /// The victims are evicted for a disk, which has more room once nothing is left of them.
    pub fn frees_a_disk(&self) -> bool {
        match self.doing {
            Doing::Evicting { starved, .. } => {
                !matches!(starved, Some(Starved::Memory | Starved::Pids))
            }
            _ => false,
        }
    }

    /// The last evictions, oldest first.
    pub fn evictions(&self) -> impl Iterator<Item = &Eviction> {
        self.evictions.iter()
    }

    /// The last observations and their trends.
    pub fn trends(&self) -> &Trends {
        &self.trends
    }

    /// Which thresholds are met.
    pub fn met(&self) -> &Met {
        &self.met
    }

    /// When the next step is due at the latest.
    pub fn next_wake(&self) -> Mono {
        let look = match &self.asked {
            Some(pending) => pending.at.plus(ANSWER_MAX),
            None => self.look_at,
        };
        self.until.map_or(look, |until| until.min(look))
    }

    /// Time has passed, or the victims are all gone.
    pub fn pass(&mut self, all_gone: bool, now: Mono) {
        let late = self.until.is_some_and(|until| until <= now);
        match self.doing {
            Doing::Evicting { starved, .. } if all_gone || late => {
                // A stuck victim may be the cause of the stall.
                if all_gone && starved == Some(Starved::Memory) {
                    self.stall_counts_at = Some(now.plus(STALL_FORGOTTEN));
                }
                self.told = None;
                self.now_does(Doing::Watching, now);
            }
            Doing::Reclaiming { ticket, .. } if late => {
                self.reclaimed(ticket, &Freed::default(), now);
            }
            _ => {}
        }
        if self.asked.as_ref().is_some_and(|pending| pending.at.plus(ANSWER_MAX) <= now) {
            self.asked = None;
            self.look_at = now;
        }
    }

    /// The due observation, if there is one: the pods, and if their disks are included. `limited`
    /// are the pods with a disk limit, `all` the candidates.
    pub fn ask(
        &mut self,
        limited: impl FnOnce() -> BTreeSet<PodUid>,
        all: impl FnOnce() -> BTreeSet<PodUid>,
        now: Mono,
    ) -> Option<(u64, Scope, bool)> {
        if self.asked.is_some() || now < self.look_at {
            return None;
        }
        let (pods, disks) = match self.doing {
            Doing::Weighing { signal } => (Scope::All, signal.is_of_disk()),
            Doing::Evicting { .. } => (Scope::Nobody, false),
            _ if self.sight.counts(now) => (Scope::All, true),
            Doing::Watching if is_due(self.limits_at, now) => {
                let some = limited();
                self.limits_at = (!some.is_empty()).then_some(now);
                if some.is_empty() { (Scope::Nobody, false) } else { (Scope::These(some), true) }
            }
            _ => (Scope::Nobody, false),
        };
        let ticket = self.next_ticket();
        let known = if pods == Scope::All { all() } else { BTreeSet::new() };
        self.asked = Some(PendingObservation { ticket, at: now, pods: pods.clone(), disks, known });
        Some((ticket, pods, disks))
    }

    /// The kernel reports that memory gets short. While a victim ends as fast as it can, or a
    /// reclaim is under way, nothing is decided: the end of either triggers an observation as well.
    pub fn heed(&mut self, now: Mono) {
        if matches!(self.doing, Doing::Reclaiming { .. } | Doing::Evicting { soft: false, .. }) {
            return;
        }
        let again = self.heeded_at.map_or(now, |at| at.plus(HEED_EVERY).max(now));
        self.look_at = self.look_at.min(again);
        self.heeded_at = Some(again);
    }

    /// A reclaim has come further: it is waited for once more.
    pub fn reclaiming(&mut self, of: u64, now: Mono) {
        if matches!(self.doing, Doing::Reclaiming { ticket, .. } if ticket == of) {
            self.until = Some(now.plus(RECLAIM_MAX));
        }
    }

    /// A reclaim has ended.
    pub fn reclaimed(&mut self, of: u64, freed: &Freed, now: Mono) {
        let Doing::Reclaiming { ticket, signal, before } = self.doing else { return };
        if ticket != of {
            return;
        }
        // For inodes the number freed is unknown: any increase counts.
        let containers = freed.containers;
        let some = containers > 0 || freed.images > 0;
        let (more, freed) = match signal.starved() {
            Starved::Inodes if some => (1, u64::MAX),
            Starved::Inodes => (0, 0),
            _ => (freed.bytes / 10 * SEEN_TENTHS, freed.bytes),
        };
        let (expected, emergency) = (before.saturating_add(more), before / 2);
        // The size of dead containers is not reported.
        let most = (some && containers == 0).then(|| before.saturating_add(freed));
        self.now_does(Doing::Settling { signal, expected, emergency, freed, most }, now);
    }

    /// The answer to an observation; ignored when none was requested.
    pub fn observe(&mut self, of: u64, scene: &EvictionSnapshot<'_>) -> Vec<EvictionStep> {
        let Some(pending) = self.asked.take_if(|pending| pending.ticket == of) else {
            return Vec::new();
        };
        let (now, observation) = (scene.now.mono, scene.observation);
        self.look_at = self.next_look(now);
        if observation.readings.is_empty() {
            // Nothing could be read, so nothing follows: neither that there is enough of anything,
            // nor that a soft threshold is newly met.
            return Vec::new();
        }
        self.trends.add(observation, now);
        let conditions = self.met.update(scene.settings, observation, now);
        self.pressure = Pressure::of(&conditions);
        self.sight.see(scene.settings, observation);
        if pending.at < self.since {
            // It was begun before the last step had ended.
            self.look_at = now;
            return Vec::new();
        }
        // A pod above a limit of its own goes first, whatever is short: it may be the cause.
        let may_go = !matches!(self.doing, Doing::Reclaiming { .. } | Doing::Evicting { .. });
        let uses = observation.pods.as_ref().filter(|_| pending.disks && may_go);
        let exceeding = uses.map(|uses| self.limit(scene, uses)).unwrap_or_default();
        if !exceeding.is_empty() {
            return exceeding;
        }
        match self.doing.clone() {
            Doing::Watching => self.watch(scene, &pending),
            Doing::Reclaiming { .. } => Vec::new(),
            Doing::Settling { signal, expected, emergency, freed, most } => {
                self.settle(scene, signal, (expected, emergency, freed, most));
                Vec::new()
            }
            Doing::Weighing { .. } => self.weigh(scene, &pending),
            Doing::Evicting { victims, starved: Some(starved), soft: true } => {
                self.hurry(scene, victims, starved)
            }
            Doing::Evicting { .. } => Vec::new(),
        }
    }

    /// The thresholds to act upon; none that is met only by the stall that the last victim left behind.
    fn fresh(&self, scene: &EvictionSnapshot<'_>) -> Vec<Threshold> {
        let mut fresh = self.met.fresh(scene.observation);
        if self.stall_counts_at.is_some_and(|at| scene.now.mono < at) {
            let stall = scene.observation.stall.map(|_| 0);
            let calm = Observation { stall, ..scene.observation.clone() };
            fresh.retain(|of| scene.settings.is_met(of, &calm, true));
        }
        fresh
    }

    fn next_ticket(&mut self) -> u64 {
        self.tickets += 1;
        self.tickets
    }

    fn now_does(&mut self, doing: Doing, now: Mono) {
        (self.doing, self.since, self.until, self.look_at) = (doing, now, None, now);
    }

    fn watch(
        &mut self,
        scene: &EvictionSnapshot<'_>,
        pending: &PendingObservation,
    ) -> Vec<EvictionStep> {
        let (now, observation) = (scene.now.mono, scene.observation);
        let fresh = self.fresh(scene);
        let Some(first) = fresh.first() else {
            self.sight.rest();
            return Vec::new();
        };
        let (signal, starved) = (first.signal, first.signal.starved());
        // Some pods may have a limit on a disk, and this observation did not measure their usage.
        let is_unasked = self.limits_at.is_some_and(|at| at < pending.at);
        if signal.is_of_disk() && !pending.disks && is_unasked {
            (self.limits_at, self.look_at) = (None, now);
            return Vec::new();
        }
        let mut steps = Vec::new();
        if is_event_due(self.told, starved, now) {
            self.told = Some((starved, now));
            steps.push(EvictionStep::Tell(starved));
        }
        let (containers, images) = met::reclaims(signal, observation.layout);
        if containers || images {
            let before = observation.readings.get(&signal).map_or(0, |reading| reading.available);
            self.met.weigh(observation);
            let ticket = self.next_ticket();
            self.now_does(Doing::Reclaiming { ticket, signal, before }, now);
            self.until = Some(now.plus(RECLAIM_MAX));
            self.look_at = now.plus(PERIOD);
            steps.push(EvictionStep::Reclaim { ticket, signal, containers, images });
        } else if !scene.pods.is_empty() || scene.is_early {
            // Without a candidate, usage makes no difference.
            self.now_does(Doing::Weighing { signal }, now);
        }
        steps
    }

    /// Checks that the freed amount shows, and whether it suffices. Pods are evicted only for
    /// thresholds that are still met: a soft threshold within its grace period does not cause
    /// evictions for another.
    fn settle(
        &mut self,
        scene: &EvictionSnapshot<'_>,
        signal: Signal,
        bounds: (u64, u64, u64, Option<u64>),
    ) {
        let (now, (expected, emergency, freed, most)) = (scene.now.mono, bounds);
        if !met::is_short(scene.settings, scene.observation) {
            self.rest(now);
            return;
        }
        let fresh = self.fresh(scene);
        let reading = scene.observation.readings.get(&signal).copied().unwrap_or_default();
        let available = reading.available;
        // Concurrent writes hide what was freed. Part of it may already show. If even all of it
        // would not suffice, there is no wait.
        let best = available.saturating_add(freed).min(most.unwrap_or(u64::MAX));
        let best = ResourceReading { available: best, ..reading };
        let is_lacking =
            fresh.first().is_some_and(|of| of.signal == signal && of.is_met(&best, true));
        let is_seen = available >= expected || available < emergency || is_lacking;
        let is_stale = fresh.is_empty() && self.met.is_acting();
        if (is_stale || !is_seen) && now.since(self.since) < SETTLE_MAX {
            self.look_at = now.plus(SOON);
        } else if let Some(first) = fresh.first() {
            self.now_does(Doing::Weighing { signal: first.signal }, now);
        } else {
            self.rest(now);
        }
    }

    fn rest(&mut self, now: Mono) {
        self.now_does(Doing::Watching, now);
        self.look_at = self.next_look(now);
    }

    /// When to observe without an event: one of memory alone does not delay that of disks.
    fn next_look(&self, now: Mono) -> Mono {
        let usual = now.plus(PERIOD);
        let limits = self.limits_at.filter(|_| self.doing == Doing::Watching);
        limits.map_or(usual, |at| at.plus(PERIOD).clamp(now, usual))
    }

    /// Evicts the first-ranked pod.
    fn weigh(
        &mut self,
        scene: &EvictionSnapshot<'_>,
        pending: &PendingObservation,
    ) -> Vec<EvictionStep> {
        let (now, observation) = (scene.now, scene.observation);
        let fresh = self.fresh(scene);
        let Some(first) = fresh.first() else {
            self.rest(now.mono);
            return Vec::new();
        };
        let uses = observation.pods.as_ref().filter(|_| pending.pods == Scope::All);
        let has_disks = pending.disks || !first.signal.is_of_disk();
        let Some(uses) = uses.filter(|_| has_disks && !scene.is_early) else {
            self.doing = Doing::Weighing { signal: first.signal };
            self.look_at = now.mono.plus(SOON);
            return Vec::new();
        };
        let is_weighed = |uid| pending.known.contains(uid) || uses.contains_key(uid);
        let pods = scene.pods.iter().copied().filter(|pod| is_weighed(pod.uid));
        let pods: Vec<_> = pods.collect();
        let (disks, layout) = (pending.disks, observation.layout);
        let report = UsageReport { pods: &pods, uses, disks, layout };
        let first = match self.sight.first(&fresh, report, self.since, now.mono) {
            Ok(first) => first,
            Err(again) => {
                self.wait_to_see(again, now.mono);
                return Vec::new();
            }
        };
        let starved = first.signal.starved();
        let ranked = rank::rank(pods, uses, first.signal, layout);
        let Some((of, weight)) = ranked.first() else {
            self.rest(now.mono);
            return Vec::new();
        };
        let used = uses.get(of.uid);
        let (message, notes) =
            message::message(starved, of.pod, used, &fresh, &observation.readings);
        let victim = Victim {
            uid: of.uid.clone(),
            signal: first.signal.as_str(),
            message,
            notes,
            grace_seconds: scene.settings.grace_seconds(first, of.pod),
        };
        let second = ranked.get(1).map(|(_, weight)| weight);
        let rule = rank::rule(starved, weight, second);
        let others = ranked.iter().map(|(of, weight)| Runner::of(of, *weight)).collect();
        let stall = self.trends.stall(first.signal, scene.settings);
        self.note(Eviction { stall, ..Eviction::of(&victim, of, rule, others, now) });
        self.met.weigh(observation);
        self.now_does(
            Doing::Evicting {
                victims: vec![victim.uid.clone()],
                starved: Some(starved),
                soft: !first.is_hard(),
            },
            now.mono,
        );
        self.wait_for(victim.grace_seconds, now.mono);
        let ages = fresh.iter().filter_map(|threshold| {
            let at = observation.readings.get(&threshold.signal)?.at;
            at.is_set().then(|| EvictionStep::Age(threshold.signal, now.wall.since(at)))
        });
        ages.chain([EvictionStep::Evict(victim)]).collect()
    }

    /// Waits for the usage that ranking needs. After `COUNT_MAX` it returns to watching, because a
    /// reclaim may help again; but not while a count is under way.
    fn wait_to_see(&mut self, again: Duration, now: Mono) {
        if now.since(self.since) >= COUNT_MAX && !self.sight.is_counting(now) {
            self.now_does(Doing::Watching, now);
        }
        self.look_at = now.plus(again);
    }

    /// Ends all pods that use more of a disk than they may.
    fn limit(&mut self, scene: &EvictionSnapshot<'_>, uses: &Uses) -> Vec<EvictionStep> {
        if !scene.settings.local_storage {
            return Vec::new();
        }
        let mut steps = Vec::new();
        for of in scene.pods {
            let used = uses.get(of.uid);
            let excess =
                used.and_then(|used| local::excess(of.pod, used, scene.observation.layout));
            let Some(excess) = excess else { continue };
            let victim = Victim {
                uid: of.uid.clone(),
                signal: excess.signal,
                message: excess.message,
                notes: Notes::new(),
                grace_seconds: IMMEDIATE_SECONDS,
            };
            self.note(Eviction::of(&victim, of, EvictionRule::Limit, Vec::new(), scene.now));
            steps.push(victim);
        }
        if !steps.is_empty() {
            let victims = steps.iter().map(|victim| victim.uid.clone()).collect();
            let doing = Doing::Evicting { victims, starved: None, soft: false };
            self.now_does(doing, scene.now.mono);
            self.wait_for(IMMEDIATE_SECONDS, scene.now.mono);
        }
        steps.into_iter().map(EvictionStep::Evict).collect()
    }

    /// Ends the grace period of a victim when a hard threshold of the same kind is met, because a
    /// second victim might be one too many.
    fn hurry(
        &mut self,
        scene: &EvictionSnapshot<'_>,
        victims: Vec<PodUid>,
        starved: Starved,
    ) -> Vec<EvictionStep> {
        let fresh = self.fresh(scene);
        if !fresh.iter().any(|t| t.is_hard() && t.signal.starved() == starved) {
            return Vec::new();
        }
        if let Doing::Evicting { soft, .. } = &mut self.doing {
            *soft = false;
        }
        self.wait_for(IMMEDIATE_SECONDS, scene.now.mono);
        vec![EvictionStep::Hurry(victims)]
    }

    /// Nothing more is decided until the victims are gone, or this much later.
    fn wait_for(&mut self, grace_seconds: i64, now: Mono) {
        let patience = pod::patience(grace_seconds);
        self.until = Some(now.plus(patience + CLEANUP_MAX));
        self.look_at = now.plus(PERIOD);
    }

    fn note(&mut self, eviction: Eviction) {
        while self.evictions.len() >= EVICTIONS_MAX {
            self.evictions.pop_front();
        }
        self.evictions.push_back(eviction);
    }
}

/// True when a step that is limited to one each `PERIOD` is due.
fn is_due(last: Option<Mono>, now: Mono) -> bool {
    last.is_none_or(|last| now.since(last) >= PERIOD)
}

/// True when an event about this shortage is due, given the last one. The kubelet emits it at each
/// synchronization, one in `PERIOD`, and at the one after a victim. This agent also observes upon
/// kernel notices: an event each time would use up the node's rate limit (`events::Correlator`).
// k8s: pkg/kubelet/eviction/eviction_manager.go synchronize
fn is_event_due(last_event: Option<(Starved, Mono)>, starved: Starved, now: Mono) -> bool {
    last_event.is_none_or(|(of, at)| of != starved || is_due(Some(at), now))
}

#[cfg(test)]
#[path = "evictor_tests.rs"]
mod tests;
