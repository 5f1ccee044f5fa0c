//! Message of a pod that fits no node: parts in addition to the reasons by node.

use k8s_openapi::api::resource::v1::ResourceClaim;
use pintle_sched_core::filter::status::{Code, Status};
use pintle_sched_core::preempt::{DryRun, NOT_HELPFUL};
use pintle_sched_core::snapshot::{Cluster, View};
use pintle_sched_core::{Plugin, explain};

use crate::plugins::dynamicresources::extended::is_of_resources;

/// Message of DynamicResources if its PreFilter did not run.
// k8s: staging/src/k8s.io/kube-scheduler/framework/cycle_state.go ErrNotFound
pub(super) const NO_CLAIMS: &str = "not found";

/// Returns the part of the message about a pod's ResourceClaims; the inner `Option` is a claim to
/// deallocate.
// k8s: dynamicresources/dynamicresources.go PostFilter
pub(super) fn of_claims(view: &View, gives_back: Option<Option<&ResourceClaim>>) -> &'static str {
    match gives_back {
        _ if !view.profile().filters(Plugin::DynamicResources) => "",
        None => "no new claims to deallocate, ",
        Some(None) => "still not schedulable, ",
        Some(Some(claim)) if is_of_resources(claim) => "deletion of ResourceClaim completed, ",
        Some(Some(_)) => "deallocation of ResourceClaim completed, ",
    }
}

/// Returns the message for a pod without candidates left by extenders.
// k8s: pkg/scheduler/framework/preemption/preemption.go Preempt
pub fn without_candidate(text: &str, of_claims: &str) -> String {
    format!("{text} {of_claims}preemption: no candidate node for preemption")
}

/// Returns the message for a pod after a failed preemption.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPostFilterPlugins
pub fn without_preemption(text: &str, mistake: &str) -> String {
    format!("{text} preemption: {mistake}")
}

/// Reason in a profile without DefaultPreemption.
pub(super) const DISABLED: &str = "DefaultPreemption is disabled.";

/// Returns the message with the parts of PostFilter plugins.
// k8s: pkg/scheduler/framework/runtime/framework.go RunPostFilterPlugins,
//      defaultpreemption/default_preemption.go PostFilter
pub(super) fn with_preemption(
    cluster: &Cluster,
    nodes: usize,
    text: &str,
    claims: &str,
    run: &DryRun,
) -> String {
    if run.chosen.is_some() {
        return text.to_owned();
    }
    if let Some(mistake) = run.mistake(cluster) {
        return without_preemption(text, &mistake);
    }
    if let Some(ineligible) = &run.ineligible {
        if ineligible == DISABLED {
            // The last part, which would follow the comma, is empty.
            return format!("{text} {claims}").trim_end_matches([' ', ',']).to_owned();
        }
        return format!("{text} {claims}preemption: {ineligible}");
    }
    let helpless = Status {
        plugin: None,
        code: Code::UnschedulableAndUnresolvable,
        reasons: vec![NOT_HELPFUL.to_owned()],
    };
    let others = nodes.saturating_sub(run.rejected.len());
    let all = run.rejected.iter().map(|(_, status)| status);
    let all = all.chain(std::iter::repeat_n(&helpless, others));
    format!("{text} {claims}preemption: {}", explain::summary(nodes, all))
}
