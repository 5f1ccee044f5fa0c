//! The pods that a Job creates: the template with the tracking finalizer and, of an indexed Job,
//! with the completion index as annotation, label, environment variable and host name.
//!
//! Input: the whole Job, and the index. Output: the pod's JSON. Pure.
// k8s: pkg/controller/job/job_controller.go manageJob, indexed_job_utils.go

use pintle_api_types::kind::JOBS;
use pintle_controllers_core::common::pods::pod_from_template;
use pintle_controllers_core::kinds::Job;
use serde_json::{Value, json};

use super::pods::{
    FAILURES_ANNOTATION, IGNORED_ANNOTATION, INDEX_ANNOTATION, IndexFailures, TRACKING_FINALIZER,
};

/// The environment variable with the completion index.
const INDEX_VARIABLE: &str = "JOB_COMPLETION_INDEX";
/// Longest start of a generated name of an indexed pod.
// k8s: staging/src/k8s.io/apiserver/pkg/storage/names/generate.go MaxGeneratedNameLength
const GENERATED_NAME_MAX: usize = 58;

/// A completion index that a pod is created for.
#[derive(Clone, Copy, Debug)]
pub(super) struct PodIndex {
    pub(super) index: i64,
    /// Failures of the index so far, if the Job limits them by index.
    pub(super) failures: Option<IndexFailures>,
}

/// The pod that all pods of the Job are made from.
pub(super) fn base_pod(job: &Job, whole: &Value, is_indexed: bool) -> Value {
    let mut template = whole["spec"]["template"].clone();
    if is_indexed {
        for list in ["initContainers", "containers"] {
            let containers = template["spec"][list].as_array_mut();
            containers.into_iter().flatten().for_each(add_index_variable);
        }
    }
    add_finalizer(&mut template);
    pod_from_template(&template, JOBS, &job.metadata)
}

/// The pod of an index, made from the base pod.
pub(super) fn indexed_pod(base: &Value, job: &Job, of: PodIndex) -> Value {
    let mut pod = base.clone();
    let (name, index) = (&job.metadata.name, of.index.to_string());
    let metadata = &mut pod["metadata"];
    metadata["generateName"] = generate_name(name, &index).into();
    metadata["annotations"][INDEX_ANNOTATION] = (&*index).into();
    metadata["labels"][INDEX_ANNOTATION] = (&*index).into();
    if let Some(failures) = of.failures {
        metadata["annotations"][FAILURES_ANNOTATION] = failures.counted.to_string().into();
        if failures.ignored > 0 {
            metadata["annotations"][IGNORED_ANNOTATION] = failures.ignored.to_string().into();
        }
    }
    pod["spec"]["hostname"] = format!("{name}-{index}").into();
    pod
}

/// The start of the name of an indexed pod; a long Job name is cut, the index never.
// k8s: pkg/controller/job/indexed_job_utils.go podGenerateNameWithIndex
pub(super) fn generate_name(job: &str, index: &str) -> String {
    let room = GENERATED_NAME_MAX.saturating_sub(index.len() + 2);
    // Names are ASCII; a cut elsewhere falls back to the whole name.
    let name = job.get(..room.min(job.len())).unwrap_or(job);
    format!("{name}-{index}-")
}

// k8s: pkg/controller/job/job_controller.go appendJobCompletionFinalizerIfNotFound
fn add_finalizer(template: &mut Value) {
    if !template["metadata"].is_object() {
        template["metadata"] = json!({});
    }
    let finalizers = &mut template["metadata"]["finalizers"];
    match finalizers.as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|one| one == TRACKING_FINALIZER) => {}
        Some(finalizers) => finalizers.push(TRACKING_FINALIZER.into()),
        None => *finalizers = json!([TRACKING_FINALIZER]),
    }
}

// k8s: pkg/controller/job/indexed_job_utils.go addCompletionIndexEnvVariable
fn add_index_variable(container: &mut Value) {
    let variable = json!({"name": INDEX_VARIABLE, "valueFrom": {"fieldRef": {
        "fieldPath": format!("metadata.labels['{INDEX_ANNOTATION}']"),
    }}});
    let variables = &mut container["env"];
    match variables.as_array_mut() {
        Some(variables) if variables.iter().any(|one| one["name"] == INDEX_VARIABLE) => {}
        Some(variables) => variables.push(variable),
        None => *variables = json!([variable]),
    }
}
