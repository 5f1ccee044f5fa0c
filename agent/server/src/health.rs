//! Liveness of the agent: a heartbeat of the driver and the sentence for when it has stopped.
//!
//! The driver beats at each turn of its loop; `/healthz` and the systemd watchdog read. Both
//! threads share one atomic. Until that loop begins, `starting` names the step that the start waits
//! for: the agent's own commands show it, and for the checks it is no fault, as for the kubelet. A
//! loop that has not turned for `max(2 x syncFrequency, 5 min)` counts as hung, as for the kubelet.
// k8s: pkg/kubelet/server/server.go syncLoopHealthCheck

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use pintle_daemon::serve::checks::{CheckFault, Checks};

/// Shortest silence after which the main loop counts as hung.
const SILENCE_MIN: Duration = Duration::from_secs(5 * 60);

/// The heartbeat and the health checks.
#[derive(Debug)]
pub struct HealthState {
    heart: Arc<Heart>,
    checks: Checks,
    /// The step that the start waits for.
    awaited: ArcSwapOption<String>,
}

#[derive(Debug)]
struct Heart {
    born: Instant,
    /// Milliseconds from `born` to the last turn.
    last_beat_ms: AtomicU64,
    silence_max: Duration,
}

impl HealthState {
    /// A heart that beats now; `sync_frequency` is the configuration's.
    pub fn new(sync_frequency: Duration) -> Self {
        let silence_max = (sync_frequency * 2).max(SILENCE_MIN);
        let (born, last_beat_ms) = (Instant::now(), AtomicU64::new(0));
        let heart = Arc::new(Heart { born, last_beat_ms, silence_max });
        let listened = Arc::clone(&heart);
        let checks = Checks::new("healthz")
            .with("ping", || Ok(()))
            .with("log", || Ok(()))
            .with("syncloop", move || listened.check());
        Self { heart, checks, awaited: ArcSwapOption::empty() }
    }

    /// The main loop has not begun: it waits for this.
    pub fn starting(&self, awaited: String) {
        self.awaited.store(Some(Arc::new(awaited)));
    }

    /// The main loop begins.
    pub fn started(&self) {
        self.awaited.store(None);
    }

    /// The step that the start waits for, until the main loop begins.
    pub fn awaited(&self) -> Option<Arc<String>> {
        self.awaited.load_full()
    }

    /// The wall clock's time at which this agent began.
    pub fn born(&self) -> jiff::Timestamp {
        let age = jiff::SignedDuration::try_from(self.heart.born.elapsed()).unwrap_or_default();
        jiff::Timestamp::now().checked_sub(age).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// The main loop has turned.
    pub fn beat(&self) {
        self.heart.last_beat_ms.store(millis(self.heart.born.elapsed()), Ordering::Relaxed);
    }

    /// `Ok`, or the fault.
    pub fn check(&self) -> Result<(), CheckFault> {
        self.heart.check()
    }

    /// The pages at and below `/healthz`.
    pub fn checks(&self) -> &Checks {
        &self.checks
    }
}

impl Heart {
    fn check(&self) -> Result<(), CheckFault> {
        self.check_at(self.born.elapsed())
    }

    fn check_at(&self, age: Duration) -> Result<(), CheckFault> {
        let last = Duration::from_millis(self.last_beat_ms.load(Ordering::Relaxed));
        let silence = age.saturating_sub(last);
        if silence <= self.silence_max {
            return Ok(());
        }
        let (silence, allowed) = (silence.as_secs(), self.silence_max.as_secs());
        Err(CheckFault::SilentLoop { silence, allowed })
    }
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalled_loop_is_unhealthy_until_its_next_iteration() {
        let health = HealthState::new(Duration::from_secs(60));
        assert_eq!(health.heart.check_at(Duration::from_secs(300)), Ok(()));
        let error = health.heart.check_at(Duration::from_secs(301)).expect_err("hung");
        let error = error.to_string();
        assert!(error.contains("has not turned for 301 s, 300 s are allowed"), "{error}");
        health.heart.last_beat_ms.store(200_000, Ordering::Relaxed);
        assert_eq!(health.heart.check_at(Duration::from_secs(301)), Ok(()));
    }

    #[test]
    fn a_rare_resync_allows_a_longer_silence() {
        let health = HealthState::new(Duration::from_secs(600));
        assert_eq!(health.heart.check_at(Duration::from_secs(1200)), Ok(()));
        assert!(health.heart.check_at(Duration::from_secs(1201)).is_err());
    }
}
