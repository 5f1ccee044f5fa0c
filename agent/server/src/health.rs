//! Is the agent alive? A heartbeat of the driver and the sentence for when it has stopped.
//!
//! The driver beats at each turn of its loop; `/healthz` and the systemd watchdog read. Shared by
//! both threads through one atomic. A loop that has not turned for `max(2 x syncFrequency, 5 min)`
//! counts as hung, as for the kubelet.
// k8s: pkg/kubelet/server/server.go syncLoopHealthCheck

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest silence after which the main loop counts as hung.
const SILENCE_MIN: Duration = Duration::from_secs(5 * 60);

/// The heartbeat.
#[derive(Debug)]
pub struct Health {
    born: Instant,
    /// Milliseconds from `born` to the last turn.
    last_beat_ms: AtomicU64,
    silence_max: Duration,
    checks: Checks,
}

/// How often the check was asked for, and what came of it.
#[derive(Debug, Default)]
struct Checks {
    good: AtomicU64,
    bad: AtomicU64,
}

impl Health {
    /// A heart that beats now; `sync_frequency` is the configuration's.
    pub fn new(sync_frequency: Duration) -> Self {
        let silence_max = (sync_frequency * 2).max(SILENCE_MIN);
        let (born, last_beat_ms) = (Instant::now(), AtomicU64::new(0));
        Self { born, last_beat_ms, silence_max, checks: Checks::default() }
    }

    /// When this agent began, as the wall clock says.
    pub fn born(&self) -> jiff::Timestamp {
        let age = jiff::SignedDuration::try_from(self.born.elapsed()).unwrap_or_default();
        jiff::Timestamp::now().checked_sub(age).unwrap_or(jiff::Timestamp::UNIX_EPOCH)
    }

    /// The main loop has turned.
    pub fn beat(&self) {
        self.last_beat_ms.store(millis(self.born.elapsed()), Ordering::Relaxed);
    }

    /// `Ok`, or what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(self.born.elapsed())
    }

    /// The same, for somebody who asked: it is counted.
    pub fn asked(&self) -> Result<(), String> {
        let outcome = self.check();
        let counter = if outcome.is_ok() { &self.checks.good } else { &self.checks.bad };
        counter.fetch_add(1, Ordering::Relaxed);
        outcome
    }

    /// What checks have come to, as metrics; empty before somebody asked.
    // k8s: staging/src/k8s.io/component-base/metrics/prometheus/slis/metrics.go
    pub fn slis(&self) -> String {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (good, bad) = (count(&self.checks.good), count(&self.checks.bad));
        if good + bad == 0 {
            return String::new();
        }
        let mut out = "# HELP kubernetes_healthcheck [STABLE] This metric records the result of a \
            single healthcheck.\n# TYPE kubernetes_healthcheck gauge\n"
            .to_owned();
        let fine = u8::from(self.check().is_ok());
        for (name, fine) in [("log", 1), ("ping", 1), ("syncloop", fine)] {
            let labels = format!("name=\"{name}\",type=\"healthz\"");
            out.push_str(&format!("kubernetes_healthcheck{{{labels}}} {fine}\n"));
        }
        out.push_str(
            "# HELP kubernetes_healthchecks_total [STABLE] This metric records the results of all \
             healthcheck.\n# TYPE kubernetes_healthchecks_total counter\n",
        );
        let all = good + bad;
        for (name, status, count) in [
            ("log", "success", all),
            ("ping", "success", all),
            ("syncloop", "error", bad),
            ("syncloop", "success", good),
        ] {
            if count > 0 {
                let labels = format!("name=\"{name}\",status=\"{status}\",type=\"healthz\"");
                out.push_str(&format!("kubernetes_healthchecks_total{{{labels}}} {count}\n"));
            }
        }
        out
    }

    fn check_at(&self, age: Duration) -> Result<(), String> {
        let last = Duration::from_millis(self.last_beat_ms.load(Ordering::Relaxed));
        let silence = age.saturating_sub(last);
        if silence <= self.silence_max {
            return Ok(());
        }
        Err(format!(
            "sync Loop took longer than expected: the main loop has not turned for {} s, \
             {} s are allowed",
            silence.as_secs(),
            self.silence_max.as_secs()
        ))
    }
}

fn millis(age: Duration) -> u64 {
    u64::try_from(age.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_has_not_turned_for_too_long_is_unhealthy_until_it_turns() {
        let health = Health::new(Duration::from_secs(60));
        assert_eq!(health.check_at(Duration::from_secs(300)), Ok(()));
        let error = health.check_at(Duration::from_secs(301)).expect_err("hung");
        assert!(error.contains("has not turned for 301 s, 300 s are allowed"), "{error}");
        health.last_beat_ms.store(200_000, Ordering::Relaxed);
        assert_eq!(health.check_at(Duration::from_secs(301)), Ok(()));
    }

    #[test]
    fn checks_are_counted_once_somebody_asks() {
        let health = Health::new(Duration::from_secs(60));
        assert_eq!(health.slis(), "");
        health.asked().expect("alive");
        let text = health.slis();
        for line in [
            "kubernetes_healthcheck{name=\"syncloop\",type=\"healthz\"} 1\n",
            "kubernetes_healthchecks_total{name=\"syncloop\",status=\"success\",type=\"healthz\"} 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(!text.contains("error"), "{text}");
    }

    #[test]
    fn a_rare_resync_allows_a_longer_silence() {
        let health = Health::new(Duration::from_secs(600));
        assert_eq!(health.check_at(Duration::from_secs(1200)), Ok(()));
        assert!(health.check_at(Duration::from_secs(1201)).is_err());
    }
}
