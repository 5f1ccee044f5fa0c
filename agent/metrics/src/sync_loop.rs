//! Counts of the sync loop: starts, relists, decisions.
//!
//! Input: ends of actions, reads and lists of the runtime, decisions. Output: the families of
//! [`Starts`], [`Relists`] and [`Decisions`]. Bounds: those of their labels, which are of fixed
//! sets or the names of resources and failures.
// k8s: pkg/kubelet/kubelet.go syncLoop

use std::time::Duration;

use pintle_agent_core::resize::ResizeRequest;
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::types::{ContainerKind, UnixNanos};
use pintle_agent_core::worker::{DecisionCount, Failure, NO_SANDBOX_STATUS};
use pintle_daemon::metrics::MetricNames;

use super::families::{
    Decisions, EvictionSignal, ReasonDetail, Relists, Resize, RetryTrigger, Signal, StartError,
    StartOf, Starts, Static, reason_label,
};
use super::raise;

/// Metrics of the sync loop.
#[derive(Debug)]
pub(super) struct SyncLoopMetrics {
    starts: Starts,
    relists: Relists,
    decisions: Decisions,
}

impl SyncLoopMetrics {
    pub(super) fn register(at: &mut MetricNames<'_>) -> Self {
        Self {
            starts: Starts::register(at),
            relists: Relists::register(at),
            decisions: Decisions::register(at),
        }
    }

    /// An action of a sync ended.
    pub(super) fn action_ended(&self, action: &Action, failure: Option<&Failure>) {
        match (action, failure) {
            (Action::CreateSandbox { .. }, failure) => {
                self.starts.pods.inc();
                // Not errors: a start that was cancelled because the pod ends, and a missing status of a
                // sandbox that was created.
                // k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go SyncPod
                let bad =
                    |failure: &Failure| !failure.cancelled && failure.reason != NO_SANDBOX_STATUS;
                self.starts.pod_errors.inc_by(u64::from(failure.is_some_and(bad)));
            }
            (Action::StartContainer { kind, .. }, failure) => {
                let container_type = container_type(*kind).to_owned();
                let label = StartOf { container_type: container_type.clone() };
                self.starts.containers.get_or_create(&label).inc();
                if let Some(failure) = failure.filter(|f| !f.cancelled) {
                    let error = StartError { container_type, code: failure.reason.clone() };
                    self.starts.container_errors.get_or_create(&error).inc();
                }
            }
            _ => {}
        }
    }

    /// A decision that is counted.
    pub(super) fn counted(&self, count: &DecisionCount) {
        match count {
            DecisionCount::Refused(reason) => {
                self.decisions.refused.get_or_create(&reason_label(reason)).inc();
            }
            DecisionCount::Preempted(resource) => {
                let signal = Signal { preemption_signal: resource.clone() };
                self.decisions.preempted.get_or_create(&signal).inc();
            }
            DecisionCount::Evicted(signal) => {
                let signal = EvictionSignal { eviction_signal: (*signal).to_owned() };
                self.decisions.evicted.get_or_create(&signal).inc();
            }
            DecisionCount::EvictionAge(signal, age) => {
                let signal = EvictionSignal { eviction_signal: signal.as_str().to_owned() };
                self.decisions.eviction_age.get_or_create(&signal).observe(age.as_secs_f64());
            }
            DecisionCount::Infeasible(why) => {
                let detail = ReasonDetail { reason_detail: (*why).to_owned() };
                self.decisions.infeasible.get_or_create(&detail).inc();
            }
            DecisionCount::Accepted(why) => {
                let trigger = RetryTrigger { retry_trigger: (*why).to_owned() };
                self.decisions.accepted.get_or_create(&trigger).inc();
            }
            DecisionCount::Asked(asked) => {
                let ResizeRequest { resource, requirement, operation } = asked;
                let label = Resize {
                    operation: (*operation).to_owned(),
                    requirement: (*requirement).to_owned(),
                    resource: (*resource).to_owned(),
                };
                self.decisions.asked.get_or_create(&label).inc();
            }
            DecisionCount::Orphan => {
                self.relists.orphans.inc();
            }
            DecisionCount::Restarted(is_static) => {
                let r#static = if *is_static { "true" } else { "" }.to_owned();
                self.relists.restarted.get_or_create(&Static { r#static }).inc();
            }
        }
    }

    /// One pod was read.
    pub(super) fn pod_read(&self, took: Duration) {
        self.relists.pod_seconds.observe(took.as_secs_f64());
    }

    /// The runtime's stream of events was opened, or could not be.
    pub(super) fn event_stream(&self, good: bool) {
        let counter = if good { &self.relists.streams } else { &self.relists.stream_errors };
        counter.inc();
    }

    /// An event of the runtime came in, this long after it happened.
    pub(super) fn event_came(&self, took: Duration) {
        self.relists.stream_seconds.observe(took.as_secs_f64());
    }

    /// All pods were listed at `now`.
    pub(super) fn relisted(&self, now: UnixNanos, took: Duration) {
        self.relists.seconds.observe(took.as_secs_f64());
        let last = self.relists.last.get();
        if last > 0.0 {
            let interval = Duration::from_nanos(now.0.max(0).unsigned_abs()).as_secs_f64() - last;
            self.relists.interval_seconds.observe(interval.max(0.0));
        }
        self.relists.last.set(Duration::from_nanos(now.0.max(0).unsigned_abs()).as_secs_f64());
    }

    /// So many events were lost since the start.
    pub(super) fn events_dropped(&self, count: u64) {
        raise(&self.relists.discarded, count);
    }
}

// k8s: pkg/kubelet/metrics/metrics.go Container, InitContainer, EphemeralContainer
fn container_type(kind: ContainerKind) -> &'static str {
    match kind {
        ContainerKind::Init | ContainerKind::Sidecar => "init_container",
        ContainerKind::Main => "container",
        ContainerKind::Ephemeral => "ephemeral_container",
    }
}
