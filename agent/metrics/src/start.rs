//! Durations of the steps of the node's start.
//!
//! Input: the steps of registration. Output: gauges, at zero on a node that was there before.
// k8s: pkg/kubelet/util/node_startup_latency_tracker.go

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use pintle_agent_core::types::UnixNanos;
use pintle_daemon::metrics::MetricNames;
use prometheus_client::metrics::gauge::Gauge;

type Seconds = Gauge<f64, AtomicU64>;

/// A step of the node's start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartStep {
    /// The Node object is about to be made or looked for.
    Registers,
    /// The Node object was created.
    Registered,
    /// Ready was reported.
    Ready,
}

/// Moments of the node's start, each the first of its kind.
#[derive(Debug, Default)]
struct Begun {
    machine: UnixNanos,
    agent: UnixNanos,
    registers: Option<UnixNanos>,
    registered: Option<UnixNanos>,
    ready: Option<UnixNanos>,
}

/// Handles of the families.
#[derive(Debug)]
pub(super) struct StartMetrics {
    before_agent: Seconds,
    before_registration: Seconds,
    registration: Seconds,
    after_registration: Seconds,
    whole_start: Seconds,
    begun: Mutex<Begun>,
}

impl StartMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>, booted: UnixNanos, now: UnixNanos) -> Self {
        let start = "[ALPHA] Duration in seconds of node startup";
        Self {
            before_agent: at.add(
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                &format!("{start} before kubelet starts."),
            ),
            before_registration: at.add(
                "kubelet_node_startup_pre_registration_duration_seconds",
                &format!("{start} before registration."),
            ),
            registration: at.add(
                "kubelet_node_startup_registration_duration_seconds",
                &format!("{start} during registration."),
            ),
            after_registration: at.add(
                "kubelet_node_startup_post_registration_duration_seconds",
                &format!("{start} after registration."),
            ),
            whole_start: at
                .add("kubelet_node_startup_duration_seconds", &format!("{start} in total.")),
            begun: Mutex::new(Begun { machine: booted, agent: now, ..Begun::default() }),
        }
    }

    /// A step of the node's start was reached; only the first of its kind counts, and only on a
    /// node that is new to the cluster.
    pub(super) fn step(&self, step: StartStep, now: UnixNanos) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        match (step, begun.registers, begun.registered, begun.ready) {
            (StartStep::Registers, None, ..) => begun.registers = Some(now),
            (StartStep::Registered, Some(registers), None, _) => {
                begun.registered = Some(now);
                if begun.machine > UnixNanos::NEVER {
                    self.before_agent.set(begun.agent.since(begun.machine).as_secs_f64());
                }
                self.before_registration.set(registers.since(begun.agent).as_secs_f64());
                self.registration.set(now.since(registers).as_secs_f64());
            }
            (StartStep::Ready, _, Some(registered), None) => {
                begun.ready = Some(now);
                self.after_registration.set(now.since(registered).as_secs_f64());
                if begun.machine > UnixNanos::NEVER {
                    self.whole_start.set(now.since(begun.machine).as_secs_f64());
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;

    #[test]
    fn steps_of_the_start_count_once_and_only_on_a_new_node() {
        let at = |seconds: i64| UnixNanos(seconds * 1_000_000_000);
        let mut registry = Registry::default();
        let node = StartMetrics::register(&mut MetricNames(&mut registry), at(10), at(30));
        node.step(StartStep::Ready, at(31));
        assert_eq!(node.whole_start.get(), 0.0, "it was there before");
        for (step, second) in [
            (StartStep::Registers, 32),
            (StartStep::Registered, 35),
            (StartStep::Registers, 36),
            (StartStep::Ready, 40),
            (StartStep::Ready, 99),
        ] {
            node.step(step, at(second));
        }
        assert_eq!(node.before_agent.get(), 20.0);
        assert_eq!(node.before_registration.get(), 2.0);
        assert_eq!(node.registration.get(), 3.0);
        assert_eq!(node.after_registration.get(), 5.0);
        assert_eq!(node.whole_start.get(), 30.0);
    }
}
