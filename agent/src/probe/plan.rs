//! What the results of one container's probes mean, and when each is due next.
//!
//! Pure. One `Machine` per container id, so nothing leaks into the next attempt of a container.
//! Times are durations since the prober began (monotonic), given by the caller. Output: due times
//! and `Change`s, a `Change` only when a result that others were told is no longer true.
//! Rules: a failure counts after `failureThreshold` in a row, a success after `successThreshold`;
//! an attempt that ended in an internal error counts as neither. Liveness and readiness wait until
//! the container has started. A failed liveness probe and a decided startup probe are not run
//! again: the container is about to be replaced, or has started for good. While the pod ends,
//! only readiness goes on.
// k8s: pkg/kubelet/prober/worker.go doProbe

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Probe};

use crate::worker::ProbeKind;

/// All kinds, in the order in which a container's probes are kept.
pub(super) const KINDS: [ProbeKind; 3] =
    [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness];

/// What an attempt came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The container is well.
    Success,
    /// It is not.
    Failure,
    /// Nobody knows: the attempt itself failed. Counts as neither.
    Unknown,
}

/// A result to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Which probe.
    pub(super) kind: ProbeKind,
    /// Its result.
    pub(super) healthy: bool,
}

/// A probe's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) initial_delay: Duration,
    pub(super) period: Duration,
    pub(super) timeout: Duration,
    pub(super) success_threshold: u32,
    pub(super) failure_threshold: u32,
}

impl Settings {
    /// The numbers of a probe whose defaults were applied; nonsense becomes the least sensible
    /// value, since a period of zero would never let anything else run.
    pub(super) fn of(probe: &Probe) -> Self {
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
            timeout: seconds(probe.timeout_seconds, 1, 1),
            success_threshold: count(probe.success_threshold, 1),
            failure_threshold: count(probe.failure_threshold, 3),
        }
    }
}

/// The container's probe of that kind.
pub(super) fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// Where a probe stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Duty {
    /// Waits for the container to have started; then due, but not before this time.
    Suspended(Duration),
    /// Due at this time.
    Due(Duration),
    /// An attempt is under way since this time.
    Running(Duration),
    /// Not run again for this container.
    Over,
}

#[derive(Clone, Debug)]
struct Schedule {
    kind: ProbeKind,
    settings: Settings,
    duty: Duty,
    /// What others believe; `None` only for a startup probe that has not been decided.
    told: Option<bool>,
    last: Option<bool>,
    in_a_row: u32,
}

/// How a container's probes begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beginning {
    /// Time since the container started.
    pub(super) age: Duration,
    /// It has passed its startup probe already.
    pub(super) started: bool,
    /// It is known to be ready.
    pub(super) ready: bool,
}

/// The probes of one container.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    started: bool,
    schedules: Vec<Schedule>,
}

impl Machine {
    /// The machine of a container that is seen running for the first time, and what is to be told
    /// of it at once. `delay_of` gives a probe's extra delay before its first attempt.
    pub(super) fn new(
        container: &Container,
        beginning: Beginning,
        now: Duration,
        delay_of: impl Fn(ProbeKind, &Settings) -> Duration,
    ) -> (Self, Vec<Change>) {
        let has_startup = container.startup_probe.is_some();
        let started = beginning.started || !has_startup;
        let mut machine = Self { started, schedules: Vec::new() };
        let mut changes = Vec::new();
        for kind in KINDS {
            let Some(probe) = probe_of(container, kind) else { continue };
            let settings = Settings::of(probe);
            let wait = settings.initial_delay.saturating_sub(beginning.age);
            let first = now.saturating_add(wait).saturating_add(delay_of(kind, &settings));
            let (duty, told) = match kind {
                ProbeKind::Startup if started => (Duty::Over, Some(true)),
                ProbeKind::Startup => (Duty::Due(first), None),
                ProbeKind::Readiness => (Duty::Suspended(first), Some(started && beginning.ready)),
                ProbeKind::Liveness => (Duty::Suspended(first), Some(true)),
            };
            // Absence already says "not started", "not ready" and "alive".
            if told == Some(true) && kind != ProbeKind::Liveness {
                changes.push(Change { kind, healthy: true });
            }
            machine.schedules.push(Schedule {
                kind,
                settings,
                duty,
                told,
                last: None,
                in_a_row: 0,
            });
        }
        machine.release(now);
        (machine, changes)
    }

    /// Lets liveness and readiness go, once the container has started.
    fn release(&mut self, now: Duration) {
        if !self.started {
            return;
        }
        for schedule in &mut self.schedules {
            if let Duty::Suspended(not_before) = schedule.duty {
                schedule.duty = Duty::Due(not_before.max(now));
            }
        }
    }

    /// The pod ends: liveness and startup count as passed and are not run any more.
    pub(super) fn terminate(&mut self, now: Duration) -> Vec<Change> {
        let mut changes = Vec::new();
        for schedule in &mut self.schedules {
            if schedule.kind == ProbeKind::Readiness {
                continue;
            }
            schedule.duty = Duty::Over;
            if schedule.told != Some(true) {
                schedule.told = Some(true);
                changes.push(Change { kind: schedule.kind, healthy: true });
            }
        }
        self.started = true;
        self.release(now);
        changes
    }

    /// When that probe is due; `None` while it runs, waits for the start, or is over.
    pub(super) fn due(&self, kind: ProbeKind) -> Option<Duration> {
        match self.schedule(kind)?.duty {
            Duty::Due(at) => Some(at),
            Duty::Suspended(_) | Duty::Running(_) | Duty::Over => None,
        }
    }

    /// True while an attempt of that probe is under way and its outcome still matters.
    pub(super) fn is_running(&self, kind: ProbeKind) -> bool {
        self.schedule(kind).is_some_and(|s| matches!(s.duty, Duty::Running(_)))
    }

    /// That probe's numbers.
    pub(super) fn settings(&self, kind: ProbeKind) -> Option<Settings> {
        self.schedule(kind).map(|s| s.settings)
    }

    /// An attempt begins; false when none is due.
    pub(super) fn begin(&mut self, kind: ProbeKind, now: Duration) -> bool {
        let Some(schedule) = self.schedule_mut(kind) else { return false };
        if !matches!(schedule.duty, Duty::Due(_)) {
            return false;
        }
        schedule.duty = Duty::Running(now);
        true
    }

    /// An attempt ended. The next one is due a period after this one began.
    pub(super) fn end(
        &mut self,
        kind: ProbeKind,
        now: Duration,
        outcome: Outcome,
    ) -> Option<Change> {
        let schedule = self.schedule_mut(kind)?;
        let Duty::Running(began) = schedule.duty else { return None };
        let next = began.saturating_add(schedule.settings.period);
        schedule.duty = Duty::Due(next.max(now));
        let healthy = match outcome {
            Outcome::Success => true,
            Outcome::Failure => false,
            Outcome::Unknown => return None,
        };
        let change = schedule.count(healthy)?;
        if kind == ProbeKind::Startup && healthy {
            self.started = true;
            self.release(now);
        }
        change.then_some(Change { kind, healthy })
    }

    fn schedule(&self, kind: ProbeKind) -> Option<&Schedule> {
        self.schedules.iter().find(|s| s.kind == kind)
    }

    fn schedule_mut(&mut self, kind: ProbeKind) -> Option<&mut Schedule> {
        self.schedules.iter_mut().find(|s| s.kind == kind)
    }
}

impl Schedule {
    /// Counts a result; `None` below its threshold, else whether it is news.
    fn count(&mut self, healthy: bool) -> Option<bool> {
        self.in_a_row =
            if self.last == Some(healthy) { self.in_a_row.saturating_add(1) } else { 1 };
        self.last = Some(healthy);
        let threshold =
            if healthy { self.settings.success_threshold } else { self.settings.failure_threshold };
        if self.in_a_row < threshold {
            return None;
        }
        // Until there is a new container: attempts during its stop could only do harm.
        if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && !healthy) {
            self.duty = Duty::Over;
        }
        Some(self.told.replace(healthy) != Some(healthy))
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
