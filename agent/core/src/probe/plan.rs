//! The meaning of results of one container's probes, and the next due time of each.
//!
//! Pure. One `Machine` per container id. Times are durations since the prober began (monotonic),
//! given by the caller. Output: due times and `Change`s, a `Change` only when a published result is
//! no longer true. Rules: a failure counts after `failureThreshold` in a row, a success after
//! `successThreshold`; an attempt that ended in an internal error counts as neither. Liveness and
//! readiness wait until the container has started. A failed liveness probe and a decided startup
//! probe are not run again: the container is about to be replaced, or has started for good. While
//! the pod ends, only readiness probes continue.
//!
//! Liveness and startup run at the ticks of a clock that began with the pod, as the kubelet's
//! workers do, so that a container has as long to come up as it has there. A readiness probe that
//! does not succeed also runs at once when its pod changes, which restarts its clock. The counts of
//! a probe carry over to the next attempt of its container.
// k8s: pkg/kubelet/prober/worker.go run, doProbe; prober_manager.go UpdatePodStatus

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

use super::ProbeKind;

/// All kinds, in the order in which a container's probes are kept.
pub const KINDS: [ProbeKind; 3] = [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// The container is well.
    Success,
    /// It is not.
    Failure,
    /// Unknown: the attempt itself failed. Counts as neither.
    Unknown,
}

/// A result to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeChange {
    /// Which probe.
    pub kind: ProbeKind,
    /// Its result.
    pub healthy: bool,
}

/// Longest an attempt may take. The kubelet has no such bound; a year is beyond any use, and far
/// from where times overflow.
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A probe's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub(super) initial_delay: Duration,
    /// Time from one attempt to the next.
    pub period: Duration,
    /// How long an attempt may take.
    pub timeout: Duration,
    pub(crate) success_threshold: u32,
    pub(crate) failure_threshold: u32,
}

impl Settings {
    /// The numbers of a probe with applied defaults. Invalid numbers become the smallest sensible
    /// value, since a period of zero would starve everything else.
    pub fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, least: u64, default: u64| {
            let value = value.map_or(default, |v| u64::try_from(v).unwrap_or(0));
            Duration::from_secs(value.max(least))
        };
        let count = |value: Option<i32>, default: u32| {
            value.map_or(default, |v| u32::try_from(v).unwrap_or(0)).max(1)
        };
        Self {
            initial_delay: seconds(probe.initial_delay_seconds, 0, 0),
            period: seconds(probe.period_seconds, 1, 10),
            timeout: seconds(probe.timeout_seconds, 1, 1).min(TIMEOUT_MAX),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        }
    }
}

/// The container's probe of that kind.
pub fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// The clock of a probe: ticks a period apart, the first one at `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticker {
    base: Duration,
    period: Duration,
}

impl Ticker {
    /// The first tick that is not before this time.
    fn at_or_after(self, at: Duration) -> Duration {
        let since = at.saturating_sub(self.base).as_nanos();
        let over = u64::try_from(since % self.period.as_nanos().max(1)).unwrap_or(0);
        match over {
            0 => self.base.max(at),
            over => at.saturating_add(self.period.saturating_sub(Duration::from_nanos(over))),
        }
    }

    /// The first tick after this time.
    fn after(self, at: Duration) -> Duration {
        self.at_or_after(at.saturating_add(Duration::from_nanos(1)))
    }
}

/// The state of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Waits for the container to have started.
    Suspended,
    /// Due at this time.
    Due(Duration),
    /// An attempt is under way since this time.
    Running(Duration),
    /// Not run again for this container.
    Over,
}

/// The last result of a probe, and how often in a row it came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResultRun {
    last: Option<bool>,
    in_a_row: u32,
}

#[derive(Clone, Debug)]
struct Schedule {
    kind: ProbeKind,
    settings: Settings,
    ticker: Ticker,
    /// Not run before: the end of the initial delay, and of the spread after the agent's start.
    not_before: Duration,
    duty: Duty,
    /// To be run again as soon as the attempt under way is over.
    again: bool,
    /// The published result; `None` only for a startup probe that has not been decided.
    published: Option<bool>,
    run: ResultRun,
}

/// How a container's probes begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beginning {
    /// Time since the container started.
    pub age: Duration,
    /// It has passed its startup probe already.
    pub started: bool,
    /// It is known to be ready.
    pub ready: bool,
}

/// The probes of one container.
#[derive(Clone, Debug)]
pub struct ContainerProbes {
    started: bool,
    schedules: Vec<Schedule>,
}

impl ContainerProbes {
    /// The machine of a container that is seen running for the first time, and the changes to
    /// publish at once. `worker` gives the time at which a probe's clock began, and its counts.
    pub fn new(
        container: &Container,
        beginning: Beginning,
        now: Duration,
        worker: impl Fn(ProbeKind, &Settings) -> (Duration, ResultRun),
    ) -> (Self, Vec<ProbeChange>) {
        let has_startup = container.startup_probe.is_some();
        let started = beginning.started || !has_startup;
        let mut machine = Self { started, schedules: Vec::new() };
        let mut changes = Vec::new();
        for kind in KINDS {
            let Some(probe) = probe_of(container, kind) else { continue };
            let settings = Settings::of(probe);
            let (base, run) = worker(kind, &settings);
            let wait = settings.initial_delay.saturating_sub(beginning.age);
            let not_before = now.saturating_add(wait).max(base);
            let ticker = Ticker { base, period: settings.period };
            let (duty, published) = match kind {
                ProbeKind::Startup if started => (Duty::Over, Some(true)),
                ProbeKind::Startup => (Duty::Due(ticker.at_or_after(not_before)), None),
                ProbeKind::Readiness => (Duty::Suspended, Some(started && beginning.ready)),
                ProbeKind::Liveness => (Duty::Suspended, Some(true)),
            };
            // Absence already means "not started", "not ready" and "alive".
            if published == Some(true) && kind != ProbeKind::Liveness {
                changes.push(ProbeChange { kind, healthy: true });
            }
            let again = false;
            let schedule =
                Schedule { kind, settings, ticker, not_before, duty, again, published, run };
            machine.schedules.push(schedule);
        }
        machine.release(now);
        (machine, changes)
    }

    /// Starts liveness and readiness probes, once the container has started.
    fn release(&mut self, now: Duration) {
        if !self.started {
            return;
        }
        for schedule in self.schedules.iter_mut().filter(|s| s.duty == Duty::Suspended) {
            if schedule.kind == ProbeKind::Readiness {
                schedule.restart(now);
            } else {
                schedule.duty =
                    Duty::Due(schedule.ticker.at_or_after(schedule.not_before.max(now)));
            }
        }
    }

    /// The pod changed: a readiness probe that does not succeed runs at once.
    // k8s: pkg/kubelet/prober/prober_manager.go UpdatePodStatus (manualTriggerCh)
    pub fn trigger(&mut self, now: Duration) {
        let readiness = self.schedules.iter_mut().find(|s| s.kind == ProbeKind::Readiness);
        let Some(schedule) = readiness.filter(|s| s.published != Some(true)) else { return };
        match schedule.duty {
            Duty::Due(at) if at > schedule.not_before.max(now) => schedule.restart(now),
            Duty::Running(_) => schedule.again = true,
            Duty::Due(_) | Duty::Suspended | Duty::Over => {}
        }
    }

    /// The counts of the probes, for the next attempt of the container.
    pub fn runs(&self) -> impl Iterator<Item = (ProbeKind, ResultRun)> {
        self.schedules.iter().map(|schedule| (schedule.kind, schedule.run))
    }

    /// The pod ends: liveness and startup count as passed and are not run any more.
    pub fn terminate(&mut self, now: Duration) -> Vec<ProbeChange> {
        let mut changes = Vec::new();
        for schedule in &mut self.schedules {
            if schedule.kind == ProbeKind::Readiness {
                continue;
            }
            schedule.duty = Duty::Over;
            if schedule.published != Some(true) {
                schedule.published = Some(true);
                changes.push(ProbeChange { kind: schedule.kind, healthy: true });
            }
        }
        self.started = true;
        self.release(now);
        changes
    }

    /// When that probe is due; `None` while it runs, waits for the start, or is over.
    pub fn due(&self, kind: ProbeKind) -> Option<Duration> {
        match self.schedule(kind)?.duty {
            Duty::Due(at) => Some(at),
            Duty::Suspended | Duty::Running(_) | Duty::Over => None,
        }
    }

    /// True while an attempt of that probe is under way and its outcome still matters.
    pub fn is_running(&self, kind: ProbeKind) -> bool {
        self.schedule(kind).is_some_and(|s| matches!(s.duty, Duty::Running(_)))
    }

    /// That probe's numbers.
    pub fn settings(&self, kind: ProbeKind) -> Option<Settings> {
        self.schedule(kind).map(|s| s.settings)
    }

    /// An attempt begins; false when none is due.
    pub fn begin(&mut self, kind: ProbeKind, now: Duration) -> bool {
        let Some(schedule) = self.schedule_mut(kind) else { return false };
        if !matches!(schedule.duty, Duty::Due(_)) {
            return false;
        }
        schedule.duty = Duty::Running(now);
        true
    }

    /// An attempt ended. The next one is due at the next tick, or at once when a tick went by
    /// meanwhile; several count as one.
    pub fn end(
        &mut self,
        kind: ProbeKind,
        now: Duration,
        outcome: ProbeOutcome,
    ) -> Option<ProbeChange> {
        let schedule = self.schedule_mut(kind)?;
        let Duty::Running(began) = schedule.duty else { return None };
        schedule.duty = Duty::Due(schedule.ticker.after(began).max(now));
        let change = match outcome {
            ProbeOutcome::Success => schedule.count(true),
            ProbeOutcome::Failure => schedule.count(false),
            ProbeOutcome::Unknown => None,
        };
        if std::mem::take(&mut schedule.again) && schedule.published != Some(true) {
            schedule.restart(now);
        }
        let healthy = outcome == ProbeOutcome::Success;
        if kind == ProbeKind::Startup && change.is_some() && healthy {
            self.started = true;
            self.release(now);
        }
        change?.then_some(ProbeChange { kind, healthy })
    }

    fn schedule(&self, kind: ProbeKind) -> Option<&Schedule> {
        self.schedules.iter().find(|s| s.kind == kind)
    }

    fn schedule_mut(&mut self, kind: ProbeKind) -> Option<&mut Schedule> {
        self.schedules.iter_mut().find(|s| s.kind == kind)
    }
}

impl Schedule {
    /// Makes the probe due as soon as allowed, and restarts its clock.
    fn restart(&mut self, now: Duration) {
        self.ticker.base = now.max(self.not_before);
        self.duty = Duty::Due(self.ticker.base);
    }

    /// Counts a result; `None` below its threshold, else whether it is news.
    fn count(&mut self, healthy: bool) -> Option<bool> {
        let run = &mut self.run;
        run.in_a_row = if run.last == Some(healthy) { run.in_a_row.saturating_add(1) } else { 1 };
        run.last = Some(healthy);
        let threshold =
            if healthy { self.settings.success_threshold } else { self.settings.failure_threshold };
        if run.in_a_row < threshold {
            return None;
        }
        // Until there is a new container: attempts during its stop could only do harm.
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && !healthy) {
            self.duty = Duty::Over;
            self.run.in_a_row = 0;
        }
        Some(self.published.replace(healthy) != Some(healthy))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
