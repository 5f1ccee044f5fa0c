//! Crash-loop back-off of one pod's containers: how long a dead container has to wait.
//!
//! Pure table, keyed by container name and a fingerprint of the fields that a user may change to
//! fix the crash (image, resources), so that a changed container starts afresh. Bounded by the
//! number of containers of the pod: an entry replaces the one of the same name. A wait is measured
//! from the container's end, as upstream does.
// k8s: staging/src/k8s.io/client-go/util/flowcontrol/backoff.go, pkg/kubelet/kuberuntime doBackOff

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use pintle_api_types::ids::Mono;

/// A container that ended this long after its last start is no longer in a crash loop.
// k8s: pkg/kubelet/kubelet.go crashLoopBackOff.HasExpiredFunc
const FORGOTTEN_AFTER: Duration = Duration::from_secs(600);
/// The longest time that a start may take after its wait, with a pull. A gap longer than that plus
/// the longest wait has another cause: the agent was away.
const START_MAX: Duration = Duration::from_secs(60);

/// The wait of a failed attempt before the next one; independent actions continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Not before this.
    pub until: Mono,
    /// Failures in a row.
    pub failures: u32,
}

impl Pause {
    /// The pause after one more failure, between the first and the longest wait.
    pub fn after(before: Option<Self>, bounds: WaitBounds, now: Mono) -> Self {
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        Self { until: now.plus(grown(bounds, failures)), failures }
    }
}

/// The first and the longest of waits that grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitBounds {
    /// First wait.
    pub first: Duration,
    /// Longest wait.
    pub longest: Duration,
}

impl WaitBounds {
    /// Waits that do not grow.
    pub const fn constant(wait: Duration) -> Self {
        Self { first: wait, longest: wait }
    }
}

/// The wait after that many failures: the first one doubled each time, up to the longest.
pub fn grown(bounds: WaitBounds, failures: u32) -> Duration {
    bounds.first.saturating_mul(2_u32.pow(failures.clamp(1, 16) - 1)).min(bounds.longest)
}

/// Containers that could not be started, by name.
pub type Pauses = BTreeMap<String, Pause>;

/// Bounds of the curve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// First wait.
    pub initial: Duration,
    /// Longest wait.
    pub max: Duration,
}

impl Curve {
    /// From 10 s to 300 s; where waits are `reduced`, from 1 s to 60 s. A configured `max` replaces
    /// the longest wait, and the first one if that is longer.
    // k8s: pkg/kubelet/kubelet.go newCrashLoopBackOff
    pub fn new(reduced: bool, max: Option<Duration>) -> Self {
        let (initial, usual_max) = if reduced { (1, 60) } else { (10, 300) };
        let max = max.unwrap_or(Duration::from_secs(usual_max));
        Self { initial: Duration::from_secs(initial).min(max), max }
    }
}

impl Default for Curve {
    fn default() -> Self {
        Self::new(false, None)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct BackoffEntry {
    fingerprint: u64,
    wait: Duration,
    updated_at: Mono,
    /// Ends up to then are not waited for.
    #[serde(default)]
    forgiven: Option<Mono>,
}

impl BackoffEntry {
    fn new(key: BackoffKey<'_>, wait: Duration, updated_at: Mono) -> Self {
        Self { fingerprint: key.fingerprint, wait, updated_at, forgiven: None }
    }
}

/// The back-off state of one pod's containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashLoop {
    curve: Curve,
    entries: BTreeMap<String, BackoffEntry>,
}

impl CrashLoop {
    /// An empty table.
    pub fn new(curve: Curve) -> Self {
        Self { curve, entries: BTreeMap::new() }
    }

    /// Records a start of a container with the previous attempt's end at `ended_at`.
    pub fn started(&mut self, key: BackoffKey<'_>, ended_at: Mono, now: Mono) {
        let wait = match self.live(key, ended_at) {
            Some(entry) => (entry.wait * 2).min(self.curve.max),
            None => self.curve.initial,
        };
        self.entries.insert(key.name.to_owned(), BackoffEntry::new(key, wait, now));
    }

    /// Takes over a crash loop of an earlier run of the agent, from the gap between the last two
    /// attempts, unless no loop has one of that length. Does nothing for a known container.
    pub fn adopt(&mut self, key: BackoffKey<'_>, gap: Duration, started_at: Mono) {
        if self.entries.contains_key(key.name) {
            return;
        }
        let mut wait = self.curve.initial;
        let is_kept = gap <= self.curve.max.saturating_add(START_MAX);
        while is_kept && wait <= gap && wait < self.curve.max {
            wait = (wait * 2).min(self.curve.max);
        }
        self.entries.insert(key.name.to_owned(), BackoffEntry::new(key, wait, started_at));
    }

    /// Ends the waits under way. They count as if they had passed: a container that crashes again
    /// waits longer.
    pub fn forgive(&mut self, now: Mono) {
        self.entries.values_mut().for_each(|entry| entry.forgiven = Some(now));
    }

    /// Until when the container has to wait, and the wait's length, or `None` when it may start.
    pub fn held_until(
        &self,
        key: BackoffKey<'_>,
        ended_at: Mono,
        now: Mono,
    ) -> Option<(Mono, Duration)> {
        let entry = self.live(key, ended_at)?;
        if entry.forgiven.is_some_and(|at| ended_at <= at) {
            return None;
        }
        let until = ended_at.plus(entry.wait);
        (now < until).then_some((until, entry.wait))
    }

    /// An entry that nothing renewed for a long time does not count any more.
    fn live(&self, key: BackoffKey<'_>, event_at: Mono) -> Option<&BackoffEntry> {
        let entry = self.entries.get(key.name).filter(|e| e.fingerprint == key.fingerprint)?;
        (event_at.since(entry.updated_at) <= FORGOTTEN_AFTER).then_some(entry)
    }
}

/// Which container, and which version of it.
#[derive(Clone, Copy, Debug)]
pub struct BackoffKey<'a> {
    /// Container name.
    pub name: &'a str,
    /// Fingerprint of image and resources.
    pub fingerprint: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const C: BackoffKey<'static> = BackoffKey { name: "c", fingerprint: 1 };

    fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn waits_double_from_ten_seconds_to_five_minutes() {
        let mut table = CrashLoop::default();
        let (mut now, mut waits) = (0, Vec::new());
        for _ in 0..8 {
            let finished = at(now);
            if let Some((until, wait)) = table.held_until(C, finished, at(now)) {
                waits.push(wait.as_secs());
                assert_eq!(until, finished.plus(wait));
                now += i64::try_from(wait.as_secs()).expect("small");
            }
            assert_eq!(table.held_until(C, finished, at(now)), None);
            table.started(C, finished, at(now));
            now += 1;
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn forgiven_backoff_ends_and_the_next_backoff_is_longer() {
        let mut table = CrashLoop::default();
        table.started(C, at(0), at(0));
        table.started(C, at(10), at(20));
        let held = |table: &CrashLoop, ended| {
            table.held_until(C, at(ended), at(ended + 5)).map(|h| h.1.as_secs())
        };
        assert_eq!(held(&table, 30), Some(20));
        table.forgive(at(35));
        assert_eq!(held(&table, 30), None);
        assert_eq!(held(&table, 36), Some(20), "an end that came later");
        table.started(C, at(30), at(35));
        assert_eq!(held(&table, 36), Some(40));
    }

    #[test]
    fn a_container_that_ran_ten_minutes_starts_afresh() {
        let mut table = CrashLoop::default();
        table.started(C, at(0), at(0));
        table.started(C, at(10), at(20));
        assert_eq!(table.held_until(C, at(620), at(620)).map(|h| h.1.as_secs()), Some(20));
        assert_eq!(table.held_until(C, at(621), at(621)), None);
    }

    #[test]
    fn a_changed_image_starts_afresh() {
        let mut table = CrashLoop::default();
        table.started(C, at(0), at(0));
        assert!(table.held_until(C, at(1), at(1)).is_some());
        assert!(table.held_until(BackoffKey { name: "c", fingerprint: 2 }, at(1), at(1)).is_none());
    }

    #[test]
    fn a_lower_maximum_is_also_the_first_wait() {
        let curve = Curve::new(false, Some(Duration::from_secs(3)));
        assert_eq!(curve.initial, Duration::from_secs(3));
    }

    #[test]
    fn backoff_curve_is_the_default_the_reduced_or_the_configured_curve() {
        let seconds = |curve: Curve| (curve.initial.as_secs(), curve.max.as_secs());
        for (reduced, max, want) in [
            (false, None, (10, 300)),
            (true, None, (1, 60)),
            (false, Some(60), (10, 60)),
            (false, Some(3), (3, 3)),
            (true, Some(300), (1, 300)),
            (true, Some(1), (1, 1)),
        ] {
            let curve = Curve::new(reduced, max.map(Duration::from_secs));
            assert_eq!(seconds(curve), want, "{reduced} {max:?}");
        }
    }

    #[test]
    fn a_loop_is_taken_over_from_the_gap_between_two_attempts() {
        let table = [(0, 10), (9, 10), (11, 20), (41, 80), (299, 300), (301, 300), (360, 300)];
        for (gap, wait) in table.into_iter().chain([(361, 10), (3600, 10)]) {
            let mut table = CrashLoop::default();
            table.adopt(C, Duration::from_secs(gap), at(0));
            let held = table.held_until(C, at(1), at(1)).map(|h| h.1.as_secs());
            assert_eq!(held, Some(wait), "gap {gap}");
        }
    }
}
