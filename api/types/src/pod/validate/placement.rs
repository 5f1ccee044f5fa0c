//! Fields that a node does not use, and that the kubelet validates all the same.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::{Errors, FieldError, Path, names};

// k8s: pkg/apis/core/validation/validation.go ValidatePodSpec
pub(crate) fn check(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    if let Some(policy) = spec.preemption_policy.as_deref() {
        let policies = ["PreemptLowerPriority", "Never"];
        errors.one_of(&path.child("preemptionPolicy"), Some(policy), &policies);
    }
    if spec.runtime_class_name.as_deref() == Some("") {
        errors.check(&path.child("runtimeClassName"), "", names::subdomain);
    }
    if let Some(os) = &spec.os {
        errors.one_of(&path.child("os").child("name"), Some(&os.name), &["linux", "windows"]);
    }
    check_gates(errors, path, spec);
    for (index, constraint) in spec.topology_spread_constraints.iter().flatten().enumerate() {
        let path = path.child("topologySpreadConstraints").index(index);
        if constraint.max_skew <= 0 {
            let path = path.child("maxSkew");
            errors.push(FieldError::invalid(
                path,
                constraint.max_skew,
                "must be greater than zero",
            ));
        }
        if constraint.topology_key.is_empty() {
            errors.push(FieldError::required(path.child("topologyKey"), "can not be empty"));
        }
        let what = Some(constraint.when_unsatisfiable.as_str());
        let known = ["DoNotSchedule", "ScheduleAnyway"];
        errors.one_of(&path.child("whenUnsatisfiable"), what, &known);
    }
}

/// A pod that has a node is not to be held back.
fn check_gates(errors: &mut Errors, path: &Path, spec: &PodSpec) {
    let gates = spec.scheduling_gates.as_deref().unwrap_or_default();
    if !gates.is_empty() && spec.node_name.as_ref().is_some_and(|name| !name.is_empty()) {
        let detail = "cannot be set until all schedulingGates have been cleared";
        errors.push(FieldError::forbidden(path.child("nodeName"), detail));
    }
    for (index, gate) in gates.iter().enumerate() {
        errors.check(&path.child("schedulingGates").index(index), &gate.name, names::qualified);
    }
}

// k8s: pkg/apis/core/validation/validation.go validateResizePolicy, validateLifecycle
pub(crate) fn check_container(
    errors: &mut Errors,
    path: &Path,
    container: &Container,
    has_os: bool,
) {
    let mut seen = BTreeSet::new();
    for policy in container.resize_policy.iter().flatten() {
        let path = path.child("resizePolicy");
        errors.one_of(&path, Some(&policy.resource_name), &["cpu", "memory"]);
        let policies = ["NotRequired", "RestartContainer"];
        errors.one_of(&path, Some(&policy.restart_policy), &policies);
        if !seen.insert(policy.resource_name.as_str()) {
            errors.push(FieldError::duplicate(&path, policy.resource_name.as_str()));
        }
    }
    let signal = container.lifecycle.as_ref().and_then(|it| it.stop_signal.as_deref());
    if signal.is_some() && !has_os {
        let path = path.child("lifecycle").child("stopSignal");
        let detail = "may not be set for containers with empty `spec.os.name`";
        errors.push(FieldError::forbidden(path, detail));
    }
}
