//! One expansion of a volume: reads the claim, marks it, calls the driver, writes what came of it.
//!
//! Input: a volume that its pod has, larger than its claim. Output: the outcome for the machine, the
//! claim's status, events of pod and claim. `expansion` decides everything; here is only the order
//! of reads, calls and writes. Bounds: the driver's call and three requests to the API server.
// k8s: pkg/volume/util/operationexecutor/node_expander.go, pkg/volume/csi/expander.go

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use pintle_agent_core::storage::csi::ClaimSize;
use pintle_agent_core::storage::expansion::{self, Order, Plan, Refusal, RefusalKind, Verdict};
use pintle_agent_core::storage::request::{self, Extras, Places};
use pintle_agent_core::storage::{Failure, Known, Outcome, Problem, Wanted};
use pintle_agent_core::types::PodUid;
use pintle_agent_plugins::CallError;
use pintle_agent_plugins::error::{Code, ErrorSide};
use pintle_api::events::EventKind;
use pintle_api_types::reference::to_core_object;
use pintle_daemon::clock;

use super::Shared;
use super::calls::{extras, not_asked, of_driver};

/// The timeline's entry of an expansion.
const EXPANDING: &str = "ExpandingVolume";
/// The event of one that went well.
// k8s: pkg/kubelet/events/event.go
const SUCCESS: &str = "FileSystemResizeSuccessful";

/// A volume that is expanded.
#[derive(Clone, Copy)]
pub(super) struct Growing<'a> {
    /// A pod that has it.
    pub(super) pod: &'a PodUid,
    /// Name of the PersistentVolume.
    pub(super) name: &'a str,
    /// How large it is to be, and its claim.
    pub(super) size: &'a ClaimSize,
    /// The last refusal was final.
    pub(super) had_final_error: bool,
}

impl Shared {
    pub(super) async fn expand(&self, wanted: &Wanted, had_final_error: bool) -> Outcome {
        let Some(size) = &wanted.volume.size else { return Ok(()) };
        let (pod, name) = (&wanted.pod, &*wanted.volume.name);
        let growing = Growing { pod, name, size, had_final_error };
        self.expand_by(growing, async |order| self.node_expand(wanted, order).await).await
    }

    /// `call` expands the volume once the claim allows it.
    pub(super) async fn expand_by(
        &self,
        growing: Growing<'_>,
        call: impl AsyncFnOnce(&Order) -> Result<(), Refusal>,
    ) -> Outcome {
        let Growing { pod, size, had_final_error, .. } = growing;
        let claim = self.parts.objects.claim(pod, size).await.map_err(|why| {
            not_asked(format!("mountVolume.NodeExpandVolume get PVC failed : {why}"))
        })?;
        let order = match expansion::plan(&claim, size, had_final_error) {
            Plan::Done => return Ok(()),
            Plan::Later => return Err(later()),
            Plan::Call(order) => order,
        };
        let claim = self.mark_begun(growing, claim, &order).await?;
        let called = call(&order).await;
        let verdict = expansion::conclude(&claim, &order, called, clock::now());
        self.write(growing, &claim, verdict, &order).await
    }

    async fn mark_begun(
        &self,
        Growing { pod, size, .. }: Growing<'_>,
        claim: PersistentVolumeClaim,
        order: &Order,
    ) -> Result<PersistentVolumeClaim, Failure> {
        let Some(patch) = expansion::mark_begun(&claim, order) else { return Ok(claim) };
        let patched = self.parts.objects.patch_claim_status(pod, size, &patch).await;
        patched.map_err(not_asked)
    }

    async fn node_expand(&self, wanted: &Wanted, order: &Order) -> Result<(), Refusal> {
        let refuse = |kind, text| Refusal { kind, text };
        let volume = &wanted.volume;
        let driver = self.parts.drivers.find(&volume.driver).ok_or_else(|| {
            let name = &volume.driver;
            let text =
                format!("driver name {name} not found in the list of registered CSI drivers");
            refuse(RefusalKind::Open, text)
        })?;
        if !driver.capabilities.expands {
            let name = &volume.driver;
            let text = format!("NodeExpand is not supported by the CSI driver {name}");
            return Err(refuse(RefusalKind::NotSupported, text));
        }
        let secrets = self.secrets(wanted, volume.secrets.expand.as_ref()).await;
        let secrets = secrets.map_err(|failure| refuse(RefusalKind::Failed, failure.text))?;
        let extras = Extras { secrets, ..extras(&driver) };
        let known = Known::of(wanted);
        let (staging, target) = (self.staging(&known), self.target(&wanted.pod, &known));
        let places = Places { staging: &staging, target: &target };
        let sent = request::expand(wanted, order.bytes(), places, extras);
        self.note_expansion(&wanted.pod, &volume.name, order, &volume.driver);
        let called = self
            .timed(of_driver(&wanted.volume), "NodeExpandVolume", driver.node.expand(&sent))
            .await;
        called.map(drop).map_err(|error| refusal(&error))
    }

    /// `by` is the driver or plugin.
    pub(super) fn note_expansion(&self, pod: &PodUid, name: &str, order: &Order, by: &str) {
        let text = format!("volume {name} to {} by {by}", order.size);
        self.parts.recorder.stage(pod, EXPANDING, None, &text);
    }

    async fn write(
        &self,
        growing: Growing<'_>,
        claim: &PersistentVolumeClaim,
        verdict: Verdict,
        order: &Order,
    ) -> Outcome {
        let Verdict { patch, is_success, failure } = verdict;
        if is_success {
            self.report_success(growing, claim);
        }
        let Growing { pod, size, .. } = growing;
        let written = match patch {
            None => Ok(()),
            Some(patch) => {
                let objects = &self.parts.objects;
                objects.patch_claim_status(pod, size, &patch).await.map(drop)
            }
        };
        match (failure, written) {
            (Some(failure), written) => {
                if let Err(why) = written {
                    tracing::warn!(%pod, %why, "a claim does not say why it is not expanded");
                }
                Err(failure)
            }
            // The driver is called again, and has nothing to do then.
            (None, Err(why)) => {
                let what = if order.has_status { "pvc" } else { "PVC" };
                let text =
                    format!("mountVolume.NodeExpandVolume update {what} status failed: {why}");
                Err(not_asked(text))
            }
            (None, Ok(())) => Ok(()),
        }
    }

    fn report_success(
        &self,
        Growing { pod, name, .. }: Growing<'_>,
        claim: &PersistentVolumeClaim,
    ) {
        let node = &self.parts.node_name;
        let text = format!("MountVolume.NodeExpandVolume succeeded for volume {name:?} {node}");
        self.parts.recorder.event(pod, false, SUCCESS, &text, None);
        if let Some(events) = &self.parts.events {
            let about = to_core_object("PersistentVolumeClaim", &claim.metadata);
            events.event(about, EventKind::Normal, SUCCESS, &text);
        }
    }
}

fn later() -> Failure {
    let text = "the claim does not allow the expansion yet".to_owned();
    Failure { problem: Problem::Later, is_of_attachment: false, text }
}

/// What a driver's error means. One that is not its own, or leaves the outcome open, means nothing.
// k8s: pkg/volume/csi/expander.go inUseError, isInfeasibleError
fn refusal(error: &CallError) -> Refusal {
    let kind = match error.code {
        _ if !error.is_final() || error.origin != ErrorSide::Plugin => RefusalKind::Open,
        Code::FailedPrecondition => RefusalKind::InUse,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => RefusalKind::Infeasible,
        _ => RefusalKind::Failed,
    };
    let colon = if kind == RefusalKind::Infeasible { "" } else { " :" };
    let text = format!("Expander.NodeExpand failed to expand the volume{colon} {error}");
    Refusal { kind, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expansion_error_codes_are_classified_as_by_the_kubelet() {
        let refusal_of = |code, origin| {
            let (method, message) = ("NodeExpandVolume", "no".to_owned());
            refusal(&CallError { method, code, message, origin })
        };
        let table = [
            (Code::FailedPrecondition, RefusalKind::InUse),
            (Code::InvalidArgument, RefusalKind::Infeasible),
            (Code::OutOfRange, RefusalKind::Infeasible),
            (Code::NotFound, RefusalKind::Infeasible),
            (Code::Internal, RefusalKind::Failed),
            (Code::DeadlineExceeded, RefusalKind::Open),
            (Code::Aborted, RefusalKind::Open),
        ];
        for (code, kind) in table {
            assert_eq!(refusal_of(code, ErrorSide::Plugin).kind, kind, "{code:?}");
            assert_eq!(refusal_of(code, ErrorSide::Agent).kind, RefusalKind::Open, "{code:?}");
        }
        let text = "Expander.NodeExpand failed to expand the volume : rpc error: code = Internal \
                    desc = no";
        assert_eq!(refusal_of(Code::Internal, ErrorSide::Plugin).text, text);
    }
}
