//! One attempt of one probe: runs its handler, tries again on internal errors, writes the event.
//!
//! Effects. Output: the `Outcome` that the container's machine counts.
// k8s: pkg/kubelet/prober/prober.go probe, runProbeWithRetries

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;
use pintle_agent_core::explain::PROBE_TIMED_OUT;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::worker::ProbeKind;
use pintle_cri::Client;

use super::plan::{ProbeOutcome, probe_of};
use super::target::ProbeTarget;
use super::words::Spent;
use super::{exec, grpc, http, tcp};
use crate::resolver::Resolver;

/// Tries of an attempt that ends in internal errors.
// k8s: pkg/kubelet/prober/prober.go maxProbeRetries
const TRIES_MAX: u32 = 3;

/// The result of one try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptVerdict {
    /// Well.
    Success,
    /// Well, but worth an event.
    Warning(String),
    /// Not well.
    Failure(String),
    /// Not well, as there was no answer in time, and where the time went.
    TimedOut(String, Spent),
    /// The probe itself did not work.
    Error {
        /// Upstream's word for the result that it throws away.
        state: &'static str,
        /// Why.
        message: String,
    },
}

impl AttemptVerdict {
    /// The probe could not even be begun.
    pub(super) fn unknown(message: String) -> Self {
        Self::Error { state: "unknown", message }
    }
}

/// The clients that attempts need besides their target.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    /// Runs commands in containers.
    pub(super) client: Client,
    /// Takes events.
    pub(super) recorder: Recorder,
    /// Looks up the hosts that probes name.
    pub(super) resolver: Resolver,
}

impl Tools {
    /// Runs one attempt to its end.
    pub(super) async fn attempt(
        &self,
        target: &ProbeTarget,
        kind: ProbeKind,
        limit: Duration,
    ) -> ProbeOutcome {
        let Some(probe) = probe_of(&target.container, kind) else { return ProbeOutcome::Unknown };
        let mut verdict = self.once(target, probe, limit).await;
        for _ in 1..TRIES_MAX {
            if !matches!(verdict, AttemptVerdict::Error { .. }) {
                break;
            }
            verdict = self.once(target, probe, limit).await;
        }
        self.conclude(target, kind, verdict)
    }

    /// Each kind is boxed, so that an attempt that waits is as large as its own kind, not as the
    /// largest: hundreds may wait.
    async fn once(&self, target: &ProbeTarget, probe: &Probe, limit: Duration) -> AttemptVerdict {
        if let Some(exec) = &probe.exec {
            Box::pin(exec::probe(&self.client, target, exec, limit)).await
        } else if let Some(get) = &probe.http_get {
            Box::pin(http::probe(&self.resolver, target, get, limit)).await
        } else if let Some(socket) = &probe.tcp_socket {
            Box::pin(tcp::probe(&self.resolver, target, socket, limit)).await
        } else if let Some(grpc) = &probe.grpc {
            Box::pin(grpc::probe(target, grpc, limit)).await
        } else {
            let name = &target.container.name;
            AttemptVerdict::unknown(format!("missing probe handler for {}:{name}", target.uid))
        }
    }

    fn conclude(
        &self,
        target: &ProbeTarget,
        kind: ProbeKind,
        verdict: AttemptVerdict,
    ) -> ProbeOutcome {
        let event = |reason: &str, message: &str| {
            let container = Some(target.container.name.as_str());
            self.recorder.event(&target.uid, true, reason, message, container);
        };
        let kind = name_of(kind);
        let spent = match &verdict {
            AttemptVerdict::TimedOut(_, spent) => Some(*spent),
            _ => None,
        };
        let outcome = match verdict {
            AttemptVerdict::Success => ProbeOutcome::Success,
            AttemptVerdict::Warning(output) => {
                event("ProbeWarning", &format!("{kind} probe warning: {output}"));
                ProbeOutcome::Success
            }
            AttemptVerdict::Failure(output) | AttemptVerdict::TimedOut(output, _) => {
                event("Unhealthy", &format!("{kind} probe failed: {output}"));
                ProbeOutcome::Failure
            }
            AttemptVerdict::Error { state, message } => {
                let text = format!("{kind} probe errored and resulted in {state} state: {message}");
                event("Unhealthy", &text);
                ProbeOutcome::Unknown
            }
        };
        if let Some(spent) = spent {
            let text = format!("{kind} probe: {}", spent.text());
            let container = Some(target.container.name.as_str());
            self.recorder.trouble(&target.uid, PROBE_TIMED_OUT, container, &text);
        }
        outcome
    }
}

/// A probe's name in events.
fn name_of(kind: ProbeKind) -> &'static str {
    match kind {
        ProbeKind::Liveness => "Liveness",
        ProbeKind::Readiness => "Readiness",
        ProbeKind::Startup => "Startup",
    }
}

#[cfg(test)]
#[path = "attempt_tests.rs"]
mod tests;
