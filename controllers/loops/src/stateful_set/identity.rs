//! The identity of a StatefulSet's pods (ordinals, names, labels), and the pod that a template
//! describes for an ordinal.
//!
//! Input: a set and pods. Output: ordinals, whether a pod has its identity, and new pods. Pure.
// k8s: pkg/controller/statefulset/stateful_set_utils.go

use pintle_api_types::kind::STATEFUL_SETS;
use pintle_controllers_core::common::pods::pod_from_template;
use pintle_controllers_core::kinds::{Pod, StatefulSet};
use serde_json::{Value, json};

use super::claims;

/// The label with a pod's name.
pub(super) const POD_NAME_LABEL: &str = "statefulset.kubernetes.io/pod-name";
/// The label with a pod's ordinal.
pub(super) const POD_INDEX_LABEL: &str = "apps.kubernetes.io/pod-index";
/// The label with the name of a pod's revision.
pub(super) const REVISION_LABEL: &str = "controller-revision-hash";

/// The set that a pod's name names, and its ordinal.
// k8s: stateful_set_utils.go getParentNameAndOrdinal
pub(super) fn parent_and_ordinal(name: &str) -> Option<(&str, Option<i64>)> {
    let (parent, digits) = name.rsplit_once('-')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| (parent, digits.parse::<i32>().ok().map(i64::from)))
}

/// A pod's ordinal; `None` when its name has none.
pub(super) fn ordinal(name: &str) -> Option<i64> {
    parent_and_ordinal(name)?.1
}

/// The name of the pod with an ordinal.
pub(super) fn pod_name(set: &StatefulSet, ordinal: i64) -> String {
    format!("{}-{ordinal}", set.metadata.name)
}

/// A pod's name names the set.
// k8s: stateful_set_utils.go isMemberOf
pub(super) fn is_member(set: &StatefulSet, pod: &Pod) -> bool {
    parent_and_ordinal(&pod.metadata.name).is_some_and(|(parent, _)| *parent == *set.metadata.name)
}

/// The ordinals that the set should have pods for.
pub(super) fn ordinals(set: &StatefulSet) -> std::ops::Range<i64> {
    let first = i64::from(set.spec.first_ordinal);
    first..first + set.spec.replicas_wanted()
}

/// The pod has one of the ordinals that the set should have pods for.
// k8s: stateful_set_utils.go podInOrdinalRange
pub(super) fn is_in_range(set: &StatefulSet, pod_name: &str) -> bool {
    ordinal(pod_name).is_some_and(|ordinal| ordinals(set).contains(&ordinal))
}

/// The pod has the name and labels of its ordinal.
// k8s: stateful_set_utils.go identityMatches
pub(super) fn has_identity(set: &StatefulSet, pod: &Pod) -> bool {
    let meta = &pod.metadata;
    let Some(ordinal) = ordinal(&meta.name).filter(|_| is_member(set, pod)) else { return false };
    *meta.name == *pod_name(set, ordinal)
        && meta.namespace == set.metadata.namespace
        && meta.labels.get(POD_NAME_LABEL).is_some_and(|label| **label == *meta.name)
}

/// The name of a pod's revision; empty when it has none.
pub(super) fn revision_of(pod: &Pod) -> &str {
    pod.metadata.labels.get(REVISION_LABEL).map_or("", |label| label.as_str())
}

/// Gives a pod the name and labels of its ordinal.
// k8s: stateful_set_utils.go updateIdentity
pub(super) fn set_identity(set: &StatefulSet, ordinal: i64, pod: &mut Value) {
    let name = pod_name(set, ordinal);
    let metadata = &mut pod["metadata"];
    metadata["name"] = name.as_str().into();
    metadata["namespace"] = set.metadata.namespace.as_str().into();
    metadata["labels"][POD_NAME_LABEL] = name.into();
    metadata["labels"][POD_INDEX_LABEL] = ordinal.to_string().into();
}

/// The templates that pods are created from.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Templates {
    /// The template of the current revision.
    pub(super) current: RevisionTemplate,
    /// The template of the update revision.
    pub(super) update: RevisionTemplate,
}

/// The template of a revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RevisionTemplate {
    /// The revision's name.
    pub(super) revision: String,
    /// The template.
    pub(super) template: Value,
}

impl Templates {
    /// The pod of an ordinal; below the partition it is of the current revision.
    // k8s: stateful_set_utils.go newVersionedStatefulSetPod
    pub(super) fn pod(&self, set: &StatefulSet, ordinal: i64) -> Value {
        let first = i64::from(set.spec.first_ordinal);
        let strategy = &set.spec.update_strategy;
        let is_current = match &strategy.rolling_update {
            Some(limits) => ordinal < first + i64::from(limits.partition.unwrap_or(0)),
            None => {
                &*strategy.kind == "RollingUpdate"
                    && ordinal < first + i64::from(set.status.current_replicas)
            }
        };
        let from = if is_current { &self.current } else { &self.update };
        let mut pod = new_pod(set, &from.template, ordinal);
        pod["metadata"]["labels"][REVISION_LABEL] = from.revision.as_str().into();
        pod
    }
}

// k8s: stateful_set_utils.go newStatefulSetPod
fn new_pod(set: &StatefulSet, template: &Value, ordinal: i64) -> Value {
    let mut pod = pod_from_template(template, STATEFUL_SETS, &set.metadata);
    if pod["spec"].is_null() {
        pod["spec"] = json!({});
    }
    set_identity(set, ordinal, &mut pod);
    pod["spec"]["hostname"] = pod_name(set, ordinal).into();
    if !set.spec.service_name.is_empty() {
        pod["spec"]["subdomain"] = set.spec.service_name.as_str().into();
    }
    claims::set_volumes(set, ordinal, &mut pod);
    pod
}
