//! What people are told of shortages: what is left, how fast it goes, who is next, who went and why.
//!
//! Pure. Input: what the evictor remembers, and what pods use when somebody asked for it. Bounds:
//! `SAMPLES_MAX` samples of each signal, `RUNNERS_MAX` pods of each decision.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};
use pintle_api_types::pod;
use serde::{Deserialize, Serialize};

use super::evictor::{Evictor, Victim};
use super::observed::{Layout, Observation, Reading};
use super::rank::{self, Evictable, EvictionRule, Uses, Weight};
use super::signal::Signal;
use super::threshold::{Settings, Threshold};

/// Samples of each signal that are kept.
pub const SAMPLES_MAX: usize = 12;
/// Pods of a decision that are kept, the first ones.
pub const RUNNERS_MAX: usize = 5;

/// What was seen of each signal, the last samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trends {
    samples: BTreeMap<Signal, VecDeque<(Mono, u64)>>,
    last: BTreeMap<Signal, Reading>,
    layout: Layout,
}

/// A pod of a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Runner {
    /// Namespace and name.
    pub pod: String,
    /// What its place follows from.
    pub weight: Weight,
}

/// A pod that had to go.
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
    /// What it was given, in seconds.
    pub grace_seconds: i64,
    /// What it was told.
    pub message: String,
    /// Those that came into question, the first to go first; not all of them.
    pub runners: Vec<Runner>,
    /// How many came into question.
    pub of: usize,
}

/// One threshold and how far the node is from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gauge {
    /// Of what.
    pub signal: Signal,
    /// What is left.
    pub available: u64,
    /// All there is.
    pub capacity: u64,
    /// Less than this is too little.
    pub least: i64,
    /// How long less has to be left until pods go; zero is at once.
    pub grace: Duration,
    /// Since when less is left, if it is.
    pub met_for: Option<Duration>,
    /// How much more is left each second; negative when it goes.
    pub per_second: Option<f64>,
    /// When the threshold is met if it goes on like this.
    pub met_in: Option<Duration>,
    /// Who would have to go, when somebody asked what pods use.
    pub next: Option<Next>,
}

/// The pod that would have to go next.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Next {
    /// Namespace and name.
    pub pod: String,
    /// What its place follows from.
    pub weight: Weight,
    /// Why it and no other one.
    pub rule: EvictionRule,
}

/// All of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// One for each threshold.
    pub gauges: Vec<Gauge>,
    /// The last evictions, oldest first.
    pub evictions: Vec<Eviction>,
}

impl Runner {
    /// A pod with what its place follows from.
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
        }
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        format!("{} was evicted for {}", self.pod, self.why())
    }

    /// For what it had to go, and why it and no other one.
    pub fn why(&self) -> String {
        let (rule, others) = (self.rule.words(), self.of.saturating_sub(1));
        let among = match self.rule {
            EvictionRule::Limit | EvictionRule::Alone => String::new(),
            _ => format!(" ({others} more came into question)"),
        };
        format!("{}: {rule}{among}", self.signal)
    }

    /// Those that came into question beside it, the next one first, a line each.
    pub fn others(&self) -> impl Iterator<Item = String> {
        self.runners.iter().filter(|runner| runner.pod != self.pod).map(|runner| {
            let Weight { known, exceeds, priority, over } = &runner.weight;
            let uses = match (known, exceeds) {
                (false, _) => "nothing is known of what it uses".to_owned(),
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
    /// Takes a look at the node.
    pub fn add(&mut self, observation: &Observation, now: Mono) {
        self.layout = observation.layout;
        for (signal, reading) in &observation.readings {
            let samples = self.samples.entry(*signal).or_default();
            while samples.len() >= SAMPLES_MAX {
                samples.pop_front();
            }
            samples.push_back((now, reading.available));
        }
        self.last.clone_from(&observation.readings);
        self.samples.retain(|signal, _| observation.readings.contains_key(signal));
    }

    /// How much more of it is left each second: the slope of a line through the samples.
    #[allow(clippy::cast_precision_loss)]
    pub fn per_second(&self, signal: Signal) -> Option<f64> {
        let samples = self.samples.get(&signal).filter(|samples| samples.len() > 1)?;
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
}

/// See the module's header. `pods` are those that may be evicted.
pub fn report(
    evictor: &Evictor,
    settings: &Settings,
    pods: &[Evictable<'_>],
    uses: Option<&Uses>,
    now: Now,
) -> Report {
    let trends = evictor.trends();
    let gauge = |threshold: Threshold| {
        let reading = trends.last.get(&threshold.signal)?;
        let per_second = trends.per_second(threshold.signal);
        let since = evictor.met().since().iter().find(|(of, _)| *of == threshold);
        let least = threshold.least(reading).units();
        let next = uses.and_then(|uses| next(threshold.signal, trends.layout, pods, uses));
        Some(Gauge {
            signal: threshold.signal,
            available: reading.available,
            capacity: reading.capacity,
            least,
            grace: threshold.grace,
            met_for: since.map(|(_, since)| now.mono.since(*since)),
            per_second,
            met_in: per_second.and_then(|slope| reaches(reading.available, least, slope)),
            next,
        })
    };
    Report {
        gauges: settings.on(trends.layout).into_iter().filter_map(gauge).collect(),
        evictions: evictor.evictions().cloned().collect(),
    }
}

/// When so much is left if it goes on like this; nothing when it does not go, or is gone.
#[allow(clippy::cast_precision_loss)]
fn reaches(available: u64, least: i64, per_second: f64) -> Option<Duration> {
    let left = available as f64 - least as f64;
    let seconds = -left / per_second;
    (left > 0.0 && per_second < 0.0).then_some(())?;
    Duration::try_from_secs_f64(seconds).ok()
}

fn next(signal: Signal, layout: Layout, pods: &[Evictable<'_>], uses: &Uses) -> Option<Next> {
    let ranked = rank::rank(pods.iter().copied(), uses, signal, layout);
    let (of, weight) = ranked.first()?;
    let second = ranked.get(1).map(|(_, weight)| weight);
    let rule = rank::rule(signal.starved(), weight, second);
    Some(Next { pod: name(of), weight: *weight, rule })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
