//! The report on shortages: what is left, how fast it falls, the next victim, past victims and
//! reasons.
//!
//! Pure. Input: the evictor's records, and the usage of pods when it was collected. Bounds:
//! `SAMPLES_MAX` samples of each signal, `RUNNERS_MAX` pods of each decision.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};
use pintle_api_types::pod;
use pintle_api_types::quantity::Amount;
use serde::{Deserialize, Serialize};

use super::evictor::Evictor;
use super::observed::{DiskLayout, Observation, ResourceReading};
use super::rank::{self, Evictable, EvictionRule, Uses, Weight};
use super::signal::{Signal, Starved};
use super::step::Victim;
use super::threshold::{Settings, Threshold, signed};

/// Samples of each signal that are kept.
pub const SAMPLES_MAX: usize = 12;
/// Pods of a decision that are kept, the first ones.
pub const RUNNERS_MAX: usize = 5;

/// The last samples of each signal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trends {
    samples: BTreeMap<Signal, VecDeque<(Mono, u64)>>,
    /// The same when page cache counts as available; for memory alone.
    #[serde(default)]
    with_cache: BTreeMap<Signal, VecDeque<(Mono, u64)>>,
    last: BTreeMap<Signal, ResourceReading>,
    /// Stall and page cache of the last observation, as `Observation` has them.
    #[serde(default)]
    stall: Option<u16>,
    #[serde(default)]
    cache: BTreeMap<Signal, u64>,
    layout: DiskLayout,
}

/// A pod of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runner {
    /// Namespace and name.
    pub pod: String,
    /// The facts that decide its rank.
    pub weight: Weight,
}

/// A pod that was evicted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Eviction {
    /// When.
    pub at: UnixNanos,
    /// Its uid.
    pub uid: PodUid,
    /// Namespace and name.
    pub pod: String,
    /// For which signal.
    pub signal: String,
    /// Why it and no other one.
    pub rule: EvictionRule,
    /// Its grace period, in seconds.
    pub grace_seconds: i64,
    /// The message of its status and event.
    pub message: String,
    /// The candidates, in order of eviction; not all of them.
    pub runners: Vec<Runner>,
    /// How many came into question.
    pub of: usize,
    /// The stall reading that contributed to the decision, if one did.
    #[serde(default)]
    pub stall: Option<Stall>,
}

/// One threshold and how far the node is from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gauge {
    /// The signal.
    pub signal: Signal,
    /// The amount left.
    pub available: u64,
    /// All there is.
    pub capacity: u64,
    /// Less than this is too little.
    pub least: i64,
    /// How long the amount has to stay below until pods are evicted; zero is at once.
    pub grace: Duration,
    /// Since when less is left, if it is.
    pub met_for: Option<Duration>,
    /// How much more is left each second; negative when it falls.
    pub per_second: Option<f64>,
    /// When the threshold is met at this rate.
    pub met_in: Option<Duration>,
    /// The stall reading that contributes to the decision, for memory with `--pintle-psi-eviction`.
    pub stall: Option<Stall>,
    /// The first-ranked pod, when usage was collected and all that counts could be read.
    pub next: Option<NextVictim>,
    /// A figure that counts could not be read, or is being counted.
    pub is_blind: bool,
}

/// How much the node waits for memory, in hundredths of a percent of the last ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stall {
    /// Now; `None` where the kernel does not count it, and the available amount decides alone.
    pub now: Option<u16>,
    /// The stall from which on page cache counts as used.
    pub least: u16,
    /// Bytes of page cache that are left as well while it is less.
    pub cache: u64,
}

/// The pod that would be evicted next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NextVictim {
    /// Namespace and name.
    pub pod: String,
    /// The facts that decide its rank.
    pub weight: Weight,
    /// Why it and no other one.
    pub rule: EvictionRule,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EvictionReport {
    /// One for each threshold.
    pub gauges: Vec<Gauge>,
    /// The last evictions, oldest first.
    pub evictions: Vec<Eviction>,
}

impl Runner {
    /// A pod with the facts that decide its rank.
    pub fn of(of: &Evictable<'_>, weight: Weight) -> Self {
        Self { pod: name(of), weight }
    }
}

impl Eviction {
    pub(super) fn of(
        victim: &Victim,
        of: &Evictable<'_>,
        rule: EvictionRule,
        mut runners: Vec<Runner>,
        now: Now,
    ) -> Self {
        let count = runners.len().max(1);
        runners.truncate(RUNNERS_MAX);
        Self {
            at: now.wall,
            uid: victim.uid.clone(),
            pod: name(of),
            signal: victim.signal.to_owned(),
            rule,
            grace_seconds: victim.grace_seconds,
            message: victim.message.clone(),
            runners,
            of: count,
            stall: None,
        }
    }

    /// One sentence for users.
    pub fn sentence(&self) -> String {
        format!("{} was evicted for {}", self.pod, self.why())
    }

    /// The reason of the eviction, and why this pod was chosen.
    pub fn why(&self) -> String {
        let (rule, others) = (self.rule.words(self.starved()), self.of.saturating_sub(1));
        let among = match self.rule {
            EvictionRule::Limit | EvictionRule::Alone => String::new(),
            _ => format!(" ({others} more came into question)"),
        };
        let stall = self.stall.map(|stall| format!("; {}", stall.words())).unwrap_or_default();
        format!("{}: {rule}{among}{stall}", self.signal)
    }

    /// The shortage; nothing where the pod exceeded a limit of its own.
    fn starved(&self) -> Option<Starved> {
        Signal::parse(&self.signal).map(Signal::starved)
    }

    /// The other candidates, the next one first, a line each.
    pub fn others(&self) -> impl Iterator<Item = String> {
        let is_of_pids = self.starved() == Some(Starved::Pids);
        self.runners.iter().filter(|runner| runner.pod != self.pod).map(move |runner| {
            let Weight { known, exceeds, priority, over } = &runner.weight;
            let uses = match (known, exceeds) {
                (false, _) => "nothing is known of what it uses".to_owned(),
                (true, _) if is_of_pids => format!("{} processes", over.canonical()),
                (true, true) => format!("{} more than it requests", over.canonical()),
                (true, false) => "no more than it requests".to_owned(),
            };
            format!("came into question as well: {}, priority {priority}, {uses}", runner.pod)
        })
    }
}

fn name(of: &Evictable<'_>) -> String {
    format!("{}/{}", pod::namespace(of.pod), pod::name(of.pod))
}

impl Trends {
    /// Takes an observation.
    pub fn add(&mut self, observation: &Observation, now: Mono) {
        self.layout = observation.layout;
        for (signal, reading) in &observation.readings {
            sample(&mut self.samples, *signal, (now, reading.available));
            if let Some(cache) = observation.cache.get(signal) {
                let left = reading.available.saturating_add(*cache);
                sample(&mut self.with_cache, *signal, (now, left));
            }
        }
        self.last.clone_from(&observation.readings);
        (self.stall, self.cache) = (observation.stall, observation.cache.clone());
        self.samples.retain(|signal, _| observation.readings.contains_key(signal));
        self.with_cache.retain(|signal, _| observation.cache.contains_key(signal));
    }

    /// The stall reading that contributes to a decision, if one does.
    pub(super) fn stall(&self, signal: Signal, settings: &Settings) -> Option<Stall> {
        let least = settings.stall_min.filter(|_| signal.starved() == Starved::Memory)?;
        let cache = self.cache.get(&signal).copied().unwrap_or(0);
        Some(Stall { now: self.stall, least, cache })
    }

    /// How much more of it is left each second: the slope of a line through the samples.
    pub fn per_second(&self, signal: Signal) -> Option<f64> {
        slope(self.samples.get(&signal)?)
    }

    /// When only this much is left, at this rate.
    fn met_in(&self, signal: Signal, least: i64, stall: Option<Stall>) -> Option<Duration> {
        let available = self.last.get(&signal)?.available;
        match stall.filter(Stall::spares_cache) {
            Some(stall) => {
                let slope = slope(self.with_cache.get(&signal)?)?;
                reaches(available.saturating_add(stall.cache), least, slope)
            }
            None => reaches(available, least, self.per_second(signal)?),
        }
    }
}

impl Stall {
    /// Page cache counts as left.
    pub fn spares_cache(&self) -> bool {
        self.now.is_some_and(|now| now < self.least)
    }

    /// The effect of stall on how page cache counts.
    pub fn words(&self) -> String {
        let percent = |hundredths: u16| format!("{}.{:02}%", hundredths / 100, hundredths % 100);
        let cache = Amount::from_bytes(signed(self.cache)).canonical();
        let Some(now) = self.now else {
            return format!("the kernel counts no stall, so {cache} of page cache count as used");
        };
        let (now, least) = (percent(now), percent(self.least));
        match self.spares_cache() {
            true => format!("stall {now}, less than {least}: {cache} of page cache count as left"),
            false => format!("stall {now}, {least} or more: {cache} of page cache count as used"),
        }
    }
}

/// Keeps the last ones.
fn sample(of: &mut BTreeMap<Signal, VecDeque<(Mono, u64)>>, signal: Signal, sample: (Mono, u64)) {
    let samples = of.entry(signal).or_default();
    while samples.len() >= SAMPLES_MAX {
        samples.pop_front();
    }
    samples.push_back(sample);
}

#[allow(clippy::cast_precision_loss)]
fn slope(samples: &VecDeque<(Mono, u64)>) -> Option<f64> {
    let samples = Some(samples).filter(|samples| samples.len() > 1)?;
    let (first, from) = *samples.front()?;
    let points = samples
        .iter()
        .map(|(at, left)| (at.since(first).as_secs_f64(), *left as f64 - from as f64));
    let points: Vec<_> = points.collect();
    let count = points.len() as f64;
    let mean_at = points.iter().map(|(at, _)| at).sum::<f64>() / count;
    let mean_left = points.iter().map(|(_, left)| left).sum::<f64>() / count;
    let spread: f64 = points.iter().map(|(at, _)| (at - mean_at).powi(2)).sum();
    let both: f64 = points.iter().map(|(at, left)| (at - mean_at) * (left - mean_left)).sum();
    (spread > 0.0).then(|| both / spread)
}

/// See the module's header. `pods` are the candidates for eviction.
pub fn report(
    evictor: &Evictor,
    settings: &Settings,
    pods: &[Evictable<'_>],
    uses: Option<&Uses>,
    now: Now,
) -> EvictionReport {
    let trends = evictor.trends();
    let gauge = |threshold: Threshold| {
        let reading = trends.last.get(&threshold.signal)?;
        let per_second = trends.per_second(threshold.signal);
        let since = evictor.met().since().iter().find(|(of, _)| *of == threshold);
        let least = threshold.least(reading).units();
        let stall = trends.stall(threshold.signal, settings);
        let met_in = trends.met_in(threshold.signal, least, stall);
        let (signal, layout) = (threshold.signal, trends.layout);
        let unread = uses.map(|uses| rank::unread(pods, uses, signal, layout));
        let lacks = uses.is_some_and(|uses| !uses.is_empty() && !rank::has_usage(uses, signal));
        let is_blind = lacks || unread.is_some_and(|unread| !unread.is_none());
        let next = uses.filter(|_| !is_blind).and_then(|uses| next(signal, layout, pods, uses));
        Some(Gauge {
            signal: threshold.signal,
            available: reading.available,
            capacity: reading.capacity,
            least,
            grace: threshold.grace,
            met_for: since.map(|(_, since)| now.mono.since(*since)),
            per_second,
            met_in,
            stall,
            next,
            is_blind,
        })
    };
    EvictionReport {
        gauges: settings.on(trends.layout).into_iter().filter_map(gauge).collect(),
        evictions: evictor.evictions().cloned().collect(),
    }
}

/// When only this much is left at this rate; nothing when it does not fall, or is used up.
#[allow(clippy::cast_precision_loss)]
fn reaches(available: u64, least: i64, per_second: f64) -> Option<Duration> {
    let left = available as f64 - least as f64;
    let seconds = -left / per_second;
    (left > 0.0 && per_second < 0.0).then_some(())?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn next(
    signal: Signal,
    layout: DiskLayout,
    pods: &[Evictable<'_>],
    uses: &Uses,
) -> Option<NextVictim> {
    let ranked = rank::rank(pods.iter().copied(), uses, signal, layout);
    let (of, weight) = ranked.first()?;
    let second = ranked.get(1).map(|(_, weight)| weight);
    let rule = rank::rule(signal.starved(), weight, second);
    Some(NextVictim { pod: name(of), weight: *weight, rule })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
