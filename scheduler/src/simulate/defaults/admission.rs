//! Admission: fields that an API server sets on a new pod, and pods that it rejects.
//!
//! Input: a dump. Output: its pods with the resources of LimitRanges, the overhead and the
//! scheduling of RuntimeClasses, priority and default tolerations, in the order of the API server's
//! plugins, or the first field for which a pod is rejected. Pure. A pod that an API server has
//! admitted keeps its fields; a running pod is never rejected.
// k8s: pkg/kubeapiserver/options/plugins.go AllOrderedPlugins

use k8s_openapi::api::core::v1::{Namespace, Pod, Toleration};
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use pintle_api_types::quantity::read_list;

use super::assumed::Assumed;
use super::{limits, of_namespace};
use crate::simulate::dump::{Dump, pod_name};
use crate::simulate::priority;
use crate::simulate::valid::flaws::cut;

/// Seconds that a pod tolerates a node that is not ready or unreachable.
// k8s: plugin/pkg/admission/defaulttolerationseconds/admission.go
const TOLERATED_S: i64 = 300;

/// A field, and the problem.
type Refused = (String, String);

/// A pod that admission rejects.
#[derive(Debug)]
pub(crate) struct NotAdmitted {
    /// Its place in the file, for messages.
    pub(crate) place: String,
    /// namespace/name.
    pub(crate) pod: String,
    pub(crate) field: String,
    pub(crate) problem: String,
}

/// Admits the pods of a dump.
///
/// # Errors
/// The first pod that is rejected.
pub(crate) fn admit(dump: &mut Dump) -> Result<(), NotAdmitted> {
    for range in dump.limit_ranges.values_mut() {
        super::of_limit_range(range);
    }
    let mut pods = std::mem::take(&mut dump.pods);
    let mut assumed = std::mem::take(&mut dump.assumed);
    let classes: Vec<_> = dump.priority_classes.values().cloned().collect();
    for (at, pod) in pods.iter_mut().enumerate() {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            continue;
        }
        let is_stored = dump.pod_sources[at].is_stored;
        let admitted = if is_stored { Ok(()) } else { admit_new(dump, pod, &mut assumed) };
        admitted.and_then(|()| prioritise(&classes, pod, &mut assumed)).map_err(
            |(field, problem)| {
                let place = dump.pod_sources[at].place.clone();
                NotAdmitted { place, pod: pod_name(pod), field, problem }
            },
        )?;
    }
    know_namespaces(dump, &pods, &mut assumed);
    (dump.pods, dump.assumed) = (pods, assumed);
    Ok(())
}

fn prioritise(
    classes: &[PriorityClass],
    pod: &mut Pod,
    assumed: &mut Assumed,
) -> Result<(), Refused> {
    if pod.spec.as_ref().is_some_and(|spec| spec.priority.is_some()) {
        return Ok(());
    }
    priority::admit(classes, pod).map_err(|(field, why)| (field.to_owned(), why))?;
    let spec = pod.spec.get_or_insert_default();
    let priority = spec.priority.unwrap_or(0);
    let value = match &spec.priority_class_name {
        Some(class) => format!("{priority}, of PriorityClass {class}"),
        None => format!("{priority}, because no PriorityClass is the default"),
    };
    assumed.add("spec.priority", value, &pod_name(pod));
    Ok(())
}

fn admit_new(dump: &Dump, pod: &mut Pod, assumed: &mut Assumed) -> Result<(), Refused> {
    let name = pod_name(pod);
    let namespace = pod.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
    let ranges = dump
        .limit_ranges
        .values()
        .filter(|range| range.metadata.namespace.as_deref().unwrap_or("default") == namespace);
    for range in ranges.clone() {
        if limits::give(range, pod) {
            let range = range.metadata.name.as_deref().unwrap_or_default();
            let value = format!("the defaults of LimitRange {namespace}/{range}");
            assumed.add("spec.containers[].resources", value, &name);
        }
    }
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
    let is_new = node.is_none_or(str::is_empty);
    tolerate(pod, assumed, &name);
    let overhead = run_with(dump, pod, assumed, &name);
    if is_new {
        overhead?;
        ranges.clone().try_for_each(|range| limits::check(range, pod))?;
    }
    Ok(())
}

// k8s: plugin/pkg/admission/defaulttolerationseconds/admission.go Admit
fn tolerate(pod: &mut Pod, assumed: &mut Assumed, name: &str) {
    let Some(spec) = &mut pod.spec else { return };
    let all = spec.tolerations.get_or_insert_default();
    let before = all.len();
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |one: &Toleration| {
            let (of, effect) = (one.key.as_deref(), one.effect.as_deref());
            (of.unwrap_or("").is_empty() || of == Some(key))
                && matches!(effect.unwrap_or(""), "" | "NoExecute")
        };
        if !all[..before].iter().any(covers) {
            all.push(Toleration {
                key: Some(key.to_owned()),
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                toleration_seconds: Some(TOLERATED_S),
                value: None,
            });
        }
    }
    if all.len() > before {
        let value = format!("not-ready and unreachable nodes for {TOLERATED_S} s (NoExecute)");
        assumed.add("spec.tolerations", value, name);
    }
}

/// Applies overhead and scheduling of the pod's RuntimeClass.
// k8s: plugin/pkg/admission/runtimeclass/admission.go setOverhead, setScheduling
fn run_with(dump: &Dump, pod: &mut Pod, assumed: &mut Assumed, name: &str) -> Result<(), Refused> {
    let Some(spec) = &mut pod.spec else { return Ok(()) };
    let class_name = spec.runtime_class_name.clone().filter(|class| !class.is_empty());
    let has_overhead = spec.overhead.as_ref().is_some_and(|overhead| !overhead.is_empty());
    let Some(class_name) = class_name else {
        let why = "must not be set without a RuntimeClass that defines it";
        return if has_overhead { Err(refused("overhead", why)) } else { Ok(()) };
    };
    let Some(class) = dump.runtime_classes.get(&class_name) else {
        if dump.has_all_runtime_classes {
            let why = format!("RuntimeClass {:?} does not exist", cut(&class_name));
            return Err(refused("runtimeClassName", &why));
        }
        if !has_overhead {
            let value = format!("nothing, because RuntimeClass {class_name} is not in the dump");
            assumed.add("spec.overhead", value, name);
        }
        return Ok(());
    };
    let fixed = class.overhead.as_ref().and_then(|overhead| overhead.pod_fixed.as_ref());
    if has_overhead {
        let read = |list| read_list(list).unwrap_or_default();
        if read(spec.overhead.as_ref()) != read(fixed) {
            let why = format!("must be the overhead that RuntimeClass {class_name} defines");
            return Err(refused("overhead", &why));
        }
    } else if let Some(fixed) = fixed {
        spec.overhead = Some(fixed.clone());
        let value = format!("the overhead of RuntimeClass {class_name}");
        assumed.add("spec.overhead", value, name);
    }
    schedule_with(class, pod, assumed, name)
}

fn schedule_with(
    class: &RuntimeClass,
    pod: &mut Pod,
    assumed: &mut Assumed,
    name: &str,
) -> Result<(), Refused> {
    let class_name = class.metadata.name.as_deref().unwrap_or_default();
    let (Some(scheduling), Some(spec)) = (&class.scheduling, &mut pod.spec) else { return Ok(()) };
    if let Some(wanted) = scheduling.node_selector.as_ref().filter(|wanted| !wanted.is_empty()) {
        let own = spec.node_selector.get_or_insert_default();
        for (key, value) in wanted {
            if let Some(given) = own.get(key).filter(|given| *given != value) {
                let why = format!(
                    "{key} is {:?}, but RuntimeClass {class_name} needs {:?}",
                    cut(given),
                    cut(value)
                );
                return Err(refused("nodeSelector", &why));
            }
            own.insert(key.clone(), value.clone());
        }
        let value = format!("with the node selector of RuntimeClass {class_name}");
        assumed.add("spec.nodeSelector", value, name);
    }
    if let Some(more) = scheduling.tolerations.as_ref().filter(|more| !more.is_empty()) {
        let all = spec.tolerations.get_or_insert_default();
        for toleration in more {
            if !all.contains(toleration) {
                all.push(toleration.clone());
            }
        }
        let value = format!("with the tolerations of RuntimeClass {class_name}");
        assumed.add("spec.tolerations", value, name);
    }
    Ok(())
}

fn refused(field: &str, why: &str) -> Refused {
    (format!("spec.{field}"), why.to_owned())
}

/// Adds namespaces missing in the dump, with the label that every namespace has.
fn know_namespaces(dump: &mut Dump, pods: &[Pod], assumed: &mut Assumed) {
    for namespace in dump.namespaces.values_mut() {
        of_namespace(namespace);
    }
    let mut missing: Vec<&str> = Vec::new();
    for pod in pods {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        if !dump.namespaces.contains_key(namespace) {
            let mut object = Namespace::default();
            object.metadata.name = Some(namespace.to_owned());
            of_namespace(&mut object);
            dump.namespaces.insert(namespace.to_owned(), object);
            missing.push(namespace);
        }
    }
    if missing.is_empty() {
        return;
    }
    for pod in pods.iter().filter(|pod| selects_namespaces(pod)) {
        let value = "namespaces that are not in the dump have no labels but their name";
        assumed.add("namespaceSelector", value, &pod_name(pod));
    }
}

fn selects_namespaces(pod: &Pod) -> bool {
    let Some(affinity) = pod.spec.as_ref().and_then(|spec| spec.affinity.as_ref()) else {
        return false;
    };
    let with = affinity.pod_affinity.as_ref().map(|of| {
        let preferred = &of.preferred_during_scheduling_ignored_during_execution;
        (&of.required_during_scheduling_ignored_during_execution, preferred)
    });
    let against = affinity.pod_anti_affinity.as_ref().map(|of| {
        let preferred = &of.preferred_during_scheduling_ignored_during_execution;
        (&of.required_during_scheduling_ignored_during_execution, preferred)
    });
    with.into_iter().chain(against).any(|(required, preferred)| {
        let preferred = preferred.iter().flatten().map(|one| &one.pod_affinity_term);
        let mut all = required.iter().flatten().chain(preferred);
        all.any(|term| term.namespace_selector.is_some())
    })
}
