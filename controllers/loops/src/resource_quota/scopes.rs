//! Which objects a quota with scopes counts.
// k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go CalculateUsageStats

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::kinds::{PersistentVolumeClaim, Pod, QuotaSpec, ScopeRequirement};

/// All requirements of a quota.
fn requirements(spec: &QuotaSpec) -> Vec<ScopeRequirement> {
    let exists = |scope: &Symbol| ScopeRequirement {
        scope_name: scope.clone(),
        operator: Symbol::of("Exists"),
        values: Box::default(),
    };
    let scopes = spec.scopes.iter().map(exists);
    scopes.chain(spec.scope_selector.match_expressions.iter().cloned()).collect()
}

/// The quota counts only some objects.
pub(super) fn is_scoped(spec: &QuotaSpec) -> bool {
    !spec.scopes.is_empty() || !spec.scope_selector.match_expressions.is_empty()
}

/// The quota counts this pod.
// k8s: pkg/quota/v1/evaluator/core/pods.go podMatchesScopeFunc
pub(super) fn selects_pod(spec: &QuotaSpec, pod: &Pod) -> bool {
    let charge = &pod.charge;
    requirements(spec).iter().all(|requirement| match &*requirement.scope_name {
        "Terminating" => charge.has_deadline,
        "NotTerminating" => !charge.has_deadline,
        "BestEffort" => charge.is_best_effort,
        "NotBestEffort" => !charge.is_best_effort,
        "PriorityClass" => {
            let class = Some(&*charge.priority_class).filter(|class| !class.is_empty());
            is_satisfied(requirement, class)
        }
        "CrossNamespacePodAffinity" => charge.crosses_namespaces,
        _ => false,
    })
}

/// The quota counts this claim.
// k8s: pkg/quota/v1/evaluator/core/persistent_volume_claims.go pvcMatchesScopeFunc
pub(super) fn selects_claim(spec: &QuotaSpec, claim: &PersistentVolumeClaim) -> bool {
    let classes = claim.attribute_classes();
    requirements(spec).iter().all(|requirement| {
        if &*requirement.scope_name != "VolumeAttributesClass" {
            return false;
        }
        match classes.is_empty() {
            true => is_satisfied(requirement, None),
            false => classes.iter().any(|class| is_satisfied(requirement, Some(class))),
        }
    })
}

/// An object with this value, or with none, satisfies the requirement.
// k8s: pkg/apis/core/v1/helper/helpers.go ScopedResourceSelectorRequirementsAsSelector
fn is_satisfied(requirement: &ScopeRequirement, value: Option<&str>) -> bool {
    let is_named = value.is_some_and(|value| requirement.values.iter().any(|v| &**v == value));
    match &*requirement.operator {
        "In" => is_named,
        "NotIn" => !is_named,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}
