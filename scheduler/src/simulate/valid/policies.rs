//! Validation of other objects: budgets, priority classes, limit ranges, runtime classes, and the
//! owners of pods.
//!
//! Input: an object of a file. Output: flaws. Pure.
// k8s: pkg/apis/policy/validation/validation.go, pkg/apis/scheduling/validation/validation.go

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::LimitRange;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::affinity::AffinityChecker;
use super::containers::amount;
use super::flaws::{Flaws, Path};
use super::{PREEMPTIONS, is_stored, metadata, tolerates};
use crate::simulate::priority::OF_SYSTEM;

/// Largest priority of a class that is not a system class.
// k8s: pkg/apis/scheduling/types.go HighestUserDefinablePriority
const PRIORITY_MAX: i32 = 1_000_000_000;

pub(in crate::simulate) fn budget(budget: &PodDisruptionBudget) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&budget.metadata, &mut flaws);
    let Some(spec) = &budget.spec else { return flaws };
    let path = Path::root("spec");
    if spec.min_available.is_some() && spec.max_unavailable.is_some() {
        flaws.forbidden(&path, "minAvailable and maxUnavailable cannot be both set");
    }
    let amounts =
        [(&spec.min_available, "minAvailable"), (&spec.max_unavailable, "maxUnavailable")];
    for (amount, field) in amounts {
        if let Some(amount) = amount {
            share(amount, &path.child(field), &mut flaws);
        }
    }
    let policy = spec.unhealthy_pod_eviction_policy.as_deref();
    let policies = ["AlwaysAllow", "IfHealthyBudget"];
    flaws.one_of_given(&path.child("unhealthyPodEvictionPolicy"), policy, &policies);
    selector(&budget.metadata, spec.selector.as_ref(), &mut flaws);
    let status = Path::root("status");
    let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or(0);
    if allowed < 0 {
        let why = "must be greater than or equal to 0";
        flaws.out_of_range(&status.child("disruptionsAllowed"), allowed.into(), why);
    }
    flaws
}

// k8s: pkg/apis/apps/validation/validation.go ValidatePositiveIntOrPercent, IsNotMoreThan100Percent
fn share(amount: &IntOrString, path: &Path<'_>, flaws: &mut Flaws) {
    match amount {
        IntOrString::Int(count) if *count < 0 => {
            flaws.out_of_range(path, (*count).into(), "must be greater than or equal to 0");
        }
        IntOrString::Int(_) => {}
        IntOrString::String(text) => {
            let digits = text.strip_suffix('%').unwrap_or_default();
            if digits.is_empty() || !digits.bytes().all(|c| c.is_ascii_digit()) {
                flaws.invalid(path, text, "must be an integer or percentage (e.g '5%')");
            } else if digits.parse::<u32>().is_ok_and(|percent| percent > 100)
                || digits.parse::<u32>().is_err()
            {
                flaws.invalid(path, text, "must not be greater than 100%");
            }
        }
    }
}

pub(in crate::simulate) fn priority_class(class: &PriorityClass) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&class.metadata, &mut flaws);
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let value = class.value.unwrap_or(0);
    let path = Path::root("value");
    if name.starts_with("system-") {
        match OF_SYSTEM.iter().find(|(system, _)| *system == name) {
            Some((_, known)) if *known == value => {}
            Some((_, known)) => {
                let why = format!("the priority of {name} is {known}");
                flaws.forbidden(&path, &why);
            }
            None => flaws.forbidden(
                &Path::root("metadata").child("name"),
                "priority class names with 'system-' prefix are reserved for system use only",
            ),
        }
    } else if value > PRIORITY_MAX {
        let why = format!("maximum allowed value of a user defined priority is {PRIORITY_MAX}");
        flaws.forbidden(&path, &why);
    }
    let policy = class.preemption_policy.as_deref();
    flaws.one_of_given(&Path::root("preemptionPolicy"), policy, &PREEMPTIONS);
    flaws
}

pub(in crate::simulate) fn limit_range(range: &LimitRange) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&range.metadata, &mut flaws);
    let path = Path::root("spec");
    let path = path.child("limits");
    for (at, limit) in range.spec.iter().flat_map(|spec| &spec.limits).enumerate() {
        let path = path.index(at);
        let lists = [
            (&limit.default, "default"),
            (&limit.default_request, "defaultRequest"),
            (&limit.max, "max"),
            (&limit.min, "min"),
            (&limit.max_limit_request_ratio, "maxLimitRequestRatio"),
        ];
        for (list, field) in lists {
            let path = path.child(field);
            for (name, quantity) in list.iter().flatten() {
                // A ratio need not be whole.
                let name_of = if field == "maxLimitRequestRatio" { "cpu" } else { name };
                amount(name_of, quantity, &path.key(name), &mut flaws);
            }
        }
    }
    flaws
}

pub(in crate::simulate) fn runtime_class(class: &RuntimeClass) -> Flaws {
    let mut flaws = Flaws::default();
    metadata(&class.metadata, &mut flaws);
    if class.handler.is_empty() {
        flaws.required(&Path::root("handler"), "");
    }
    let path = Path::root("overhead");
    let path = path.child("podFixed");
    let fixed = class.overhead.iter().flat_map(|overhead| overhead.pod_fixed.iter().flatten());
    fixed.for_each(|(name, quantity)| amount(name, quantity, &path.key(name), &mut flaws));
    let path = Path::root("scheduling");
    let scheduling = class.scheduling.as_ref();
    let selector = scheduling.and_then(|scheduling| scheduling.node_selector.as_ref());
    super::labels(selector, &path.child("nodeSelector"), &mut flaws);
    let path = path.child("tolerations");
    let all = scheduling.and_then(|scheduling| scheduling.tolerations.as_ref());
    for (at, toleration) in all.into_iter().flatten().enumerate() {
        tolerates(toleration, &path.index(at), &mut flaws);
    }
    flaws
}

pub(in crate::simulate) fn replica_set(set: &ReplicaSet) -> Flaws {
    let mut flaws = Flaws::default();
    let of = set.spec.as_ref().map(|spec| &spec.selector);
    selector(&set.metadata, of, &mut flaws);
    flaws
}

pub(in crate::simulate) fn stateful_set(set: &StatefulSet) -> Flaws {
    let mut flaws = Flaws::default();
    let of = set.spec.as_ref().map(|spec| &spec.selector);
    selector(&set.metadata, of, &mut flaws);
    flaws
}

fn selector(metadata: &ObjectMeta, of: Option<&LabelSelector>, flaws: &mut Flaws) {
    let mut checker = AffinityChecker { flaws, is_stored: is_stored(metadata) };
    checker.selector(of, &Path::root("spec").child("selector"));
}
