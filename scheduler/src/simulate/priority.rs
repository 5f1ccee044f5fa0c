//! Priorities of pods not admitted yet, by the classes of the cluster or the dump.
//!
//! Input: PriorityClasses, a pod. Output: the pod with the priority and the preemption policy that
//! admission would set, or the message with which it would be rejected. Pure.
// k8s: plugin/pkg/admission/priority/admission.go admitPod, establishPriority

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::valid::flaws::cut;

/// Priority classes of every cluster.
// k8s: pkg/apis/scheduling/v1/helpers.go systemPriorityClasses
pub(super) const OF_SYSTEM: [(&str, i32); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

/// Fields that a pod gets: the name of its class, the priority, the policy.
type Given<'a> = (Option<&'a str>, i32, Option<&'a str>);

/// Sets a pod's priority from its class, unless it has one.
///
/// # Errors
/// The field, and the problem.
pub(crate) fn admit(
    classes: &[PriorityClass],
    pod: &mut Pod,
) -> Result<(), (&'static str, String)> {
    match pod.spec.as_ref().and_then(|spec| spec.priority) {
        Some(_) => Ok(()),
        None => admit_new(classes, pod),
    }
}

/// The same for a new pod: its priority must match its class.
///
/// # Errors
/// The field, and the problem.
pub(crate) fn admit_new(
    classes: &[PriorityClass],
    pod: &mut Pod,
) -> Result<(), (&'static str, String)> {
    let spec = pod.spec.get_or_insert_default();
    let named = spec.priority_class_name.as_deref().filter(|name| !name.is_empty());
    let (class, priority, policy) = match named {
        Some(name) => of_class(classes, name)?,
        None => without_class(classes),
    };
    if let Some(given) = spec.priority.filter(|given| *given != priority) {
        let problem = format!("is {given}, but must not be given: by its class it is {priority}");
        return Err(("spec.priority", problem));
    }
    if let (Some(given), Some(policy)) = (spec.preemption_policy.as_deref(), policy)
        && given != policy
    {
        let problem = format!("is {given}, but must not be given: by its class it is {policy}");
        return Err(("spec.preemptionPolicy", problem));
    }
    let class = class.map(str::to_owned);
    spec.priority = Some(priority);
    spec.preemption_policy = policy.map(str::to_owned).or(spec.preemption_policy.take());
    spec.priority_class_name = class;
    Ok(())
}

fn of_class<'a>(
    classes: &'a [PriorityClass],
    name: &str,
) -> Result<Given<'a>, (&'static str, String)> {
    let found = classes.iter().find(|class| class.metadata.name.as_deref() == Some(name));
    let of_system = || OF_SYSTEM.iter().find(|(system, _)| *system == name);
    let of_system = || of_system().map(|(name, value)| (Some(*name), *value, None));
    found.map(given).or_else(of_system).ok_or_else(|| {
        let problem = format!(
            "no PriorityClass with name {name} was found: add it to what is read, or give \
             spec.priority",
            name = cut(name)
        );
        ("spec.priorityClassName", problem)
    })
}

/// Returns the values of a pod without a class: the default class, the lowest if there are several.
fn without_class(classes: &[PriorityClass]) -> Given<'_> {
    let default = classes.iter().filter(|class| class.global_default == Some(true));
    default.min_by_key(|class| class.value).map_or((None, 0, Some("PreemptLowerPriority")), given)
}

fn given(class: &PriorityClass) -> Given<'_> {
    let value = class.value.unwrap_or(0);
    (class.metadata.name.as_deref(), value, class.preemption_policy.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn classes() -> Vec<PriorityClass> {
        let class = |name: &str, value: i32, default: bool, policy: &str| {
            let class = json!({"metadata": {"name": name}, "value": value,
                "globalDefault": default, "preemptionPolicy": policy});
            serde_json::from_value(class).expect("a class")
        };
        vec![
            class("high", 1_000_000, false, "PreemptLowerPriority"),
            class("calm", 1000, false, "Never"),
            class("usual", 20, true, "Never"),
            class("usual-too", 10, true, "PreemptLowerPriority"),
        ]
    }

    fn pod(spec: Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"spec": spec})).expect("a pod")
    }

    /// Class, priority and policy, or the field that is wrong.
    fn admitted(classes: &[PriorityClass], spec: Value) -> Result<Value, &'static str> {
        let mut pod = pod(spec);
        admit_new(classes, &mut pod).map_err(|(field, _)| field)?;
        let spec = pod.spec.expect("a spec");
        Ok(json!([spec.priority_class_name, spec.priority, spec.preemption_policy]))
    }

    #[test]
    fn new_pod_gets_the_priority_that_admission_would_set() {
        let classes = classes();
        for (spec, wanted) in [
            (
                json!({"priorityClassName": "high"}),
                json!(["high", 1_000_000, "PreemptLowerPriority"]),
            ),
            (json!({"priorityClassName": "calm"}), json!(["calm", 1000, "Never"])),
            (
                json!({"priorityClassName": "calm", "priority": 1000}),
                json!(["calm", 1000, "Never"]),
            ),
            (json!({}), json!(["usual-too", 10, "PreemptLowerPriority"])),
            (
                json!({"priorityClassName": "system-node-critical"}),
                json!(["system-node-critical", 2_000_001_000, null]),
            ),
        ] {
            assert_eq!(admitted(&classes, spec.clone()), Ok(wanted), "{spec}");
        }
        assert_eq!(admitted(&[], json!({})), Ok(json!([null, 0, "PreemptLowerPriority"])));
        for (spec, field) in [
            (json!({"priorityClassName": "none"}), "spec.priorityClassName"),
            (json!({"priorityClassName": "high", "priority": 5}), "spec.priority"),
            (json!({"priority": 5}), "spec.priority"),
            (
                json!({"priorityClassName": "high", "preemptionPolicy": "Never"}),
                "spec.preemptionPolicy",
            ),
        ] {
            assert_eq!(admitted(&classes, spec.clone()), Err(field), "{spec}");
        }
    }

    #[test]
    fn admitted_pod_keeps_its_priority_after_its_class_is_deleted() {
        let mut old = pod(json!({"priorityClassName": "gone", "priority": 7}));
        let before = old.clone();
        assert_eq!(admit(&classes(), &mut old), Ok(()));
        assert_eq!(old, before);
        let mut new = pod(json!({"priorityClassName": "calm"}));
        assert_eq!(admit(&classes(), &mut new), Ok(()));
        assert_eq!(new.spec.and_then(|spec| spec.priority), Some(1000));
    }
}
