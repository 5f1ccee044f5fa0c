//! `merged`: the new status of the API server's copy, given ours.
//!
//! Pure. Most of a status is ours alone. Other writers own the conditions that we do not know, the
//! claims and the nomination, and those stay as they are. Two fields never go back, whichever
//! writer set them: a terminal phase and the start time. A mirror pod's phase does: the static pod
//! behind it runs again after a boot of the node, which the mirror pod outlives.
// k8s: pkg/kubelet/status/status_manager.go mergePodStatus

use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use crate::status::conditions::{DISRUPTION_TARGET, OWNED};
use crate::status::phase::is_terminal;

/// The status to write for a pod of the API server.
// k8s: pkg/kubelet/kubelet_pods.go generateAPIPodStatus
pub fn merged(api: &PodStatus, ours: &PodStatus) -> PodStatus {
    let mut status = mirrored(api, ours);
    if is_terminal(api.phase.as_deref()) {
        // Another writer may have ended the pod; the worker learns it by the same watch.
        status.phase.clone_from(&api.phase);
        if ours.phase != api.phase {
            status.reason.clone_from(&api.reason);
            status.message.clone_from(&api.message);
        }
    }
    status
}

/// The status to write for the mirror pod of a static pod.
pub fn mirrored(api: &PodStatus, ours: &PodStatus) -> PodStatus {
    let was_over = is_terminal(api.phase.as_deref());
    let is_over = is_terminal(ours.phase.as_deref());
    PodStatus {
        conditions: Some(conditions(api, ours, !was_over && is_over)).filter(|all| !all.is_empty()),
        resource_claim_statuses: api.resource_claim_statuses.clone(),
        extended_resource_claim_status: api.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: api
            .node_allocatable_resource_claim_statuses
            .clone(),
        nominated_node_name: api.nominated_node_name.clone(),
        start_time: api.start_time.clone().or_else(|| ours.start_time.clone()),
        observed_generation: ours.observed_generation.max(api.observed_generation),
        qos_class: ours.qos_class.clone().or_else(|| api.qos_class.clone()),
        ..ours.clone()
    }
}

/// Conditions of other writers as the API server has them, then ours. The disruption condition is
/// set together with the terminal phase, and kept afterwards.
fn conditions(api: &PodStatus, ours: &PodStatus, ends: bool) -> Vec<PodCondition> {
    let is_owned = |condition: &&PodCondition| OWNED.contains(&&*condition.type_);
    let foreign = api.conditions.iter().flatten().filter(|c| !is_owned(c));
    let mut all: Vec<PodCondition> = foreign.cloned().collect();
    let mine = ours.conditions.iter().flatten();
    if ends && let Some(disrupted) = mine.clone().find(|c| c.type_ == DISRUPTION_TARGET) {
        match all.iter_mut().find(|c| c.type_ == DISRUPTION_TARGET) {
            Some(old) => *old = disrupted.clone(),
            None => all.push(disrupted.clone()),
        }
    }
    all.extend(mine.filter(is_owned).cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(value: Value) -> PodStatus {
        serde_json::from_value(value).expect("a status")
    }

    fn condition(type_: &str, status: &str) -> Value {
        json!({"type": type_, "status": status})
    }

    fn types(status: &PodStatus) -> Vec<(&str, &str)> {
        let all = status.conditions.iter().flatten();
        all.map(|c| (c.type_.as_str(), c.status.as_str())).collect()
    }

    #[test]
    fn merge_takes_foreign_conditions_from_the_api_server_and_own_ones_from_the_agent() {
        let api = status(json!({"conditions":
            [condition("Ready", "False"), condition("gate.example/ok", "True")]}));
        let ours = status(json!({"conditions":
            [condition("gate.example/ok", "False"), condition("Ready", "True")]}));
        assert_eq!(types(&merged(&api, &ours)), [("gate.example/ok", "True"), ("Ready", "True")]);
    }

    #[test]
    fn disruption_target_is_written_only_with_a_terminal_phase() {
        let disrupted = [condition("DisruptionTarget", "True")];
        let api = status(json!({"phase": "Running"}));
        let running = status(json!({"phase": "Running", "conditions": disrupted}));
        assert_eq!(types(&merged(&api, &running)), []);
        let failed = status(json!({"phase": "Failed", "conditions": disrupted}));
        let written = merged(&api, &failed);
        assert_eq!(types(&written), [("DisruptionTarget", "True")]);
        assert_eq!(types(&merged(&written, &failed)), [("DisruptionTarget", "True")]);
    }

    #[test]
    fn a_terminal_phase_and_the_start_time_stay() {
        let api = status(json!({"phase": "Failed", "reason": "Evicted", "observedGeneration": 3,
            "startTime": "2026-11-21T02:27:13Z", "qosClass": "Burstable"}));
        let ours = status(json!({"phase": "Running", "startTime": "2026-11-21T02:30:00Z",
            "observedGeneration": 2}));
        let written = merged(&api, &ours);
        assert_eq!(written, api);
        let succeeded = status(json!({"phase": "Succeeded"}));
        assert_eq!(merged(&api, &succeeded).phase.as_deref(), Some("Failed"));
    }

    #[test]
    fn mirror_pod_of_a_restarted_static_pod_leaves_its_terminal_phase() {
        let api = status(json!({"phase": "Failed", "reason": "Terminated",
            "message": "Pod was terminated in response to imminent node shutdown.",
            "startTime": "2026-11-21T02:27:13Z",
            "conditions": [condition("DisruptionTarget", "True"), condition("Ready", "False")]}));
        let ours = status(json!({"phase": "Running", "startTime": "2026-11-21T02:30:00Z",
            "conditions": [condition("Ready", "True")]}));
        let written = mirrored(&api, &ours);
        let conditions = [condition("DisruptionTarget", "True"), condition("Ready", "True")];
        let expected = json!({"phase": "Running", "startTime": "2026-11-21T02:27:13Z",
            "conditions": conditions});
        assert_eq!(written, status(expected));
    }

    #[test]
    fn fields_of_other_controllers_survive_the_merge() {
        let api = status(json!({"nominatedNodeName": "n", "qosClass": "Guaranteed",
            "resourceClaimStatuses": [{"name": "gpu"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "gpus", "requestMappings": []},
            "nodeAllocatableResourceClaimStatuses": [
                {"resourceClaimName": "gpu", "containers": ["c"], "resources": {"cpu": "1"}}]}));
        assert_eq!(merged(&api, &PodStatus::default()), api);
    }
}
