//! Pods that a workload creates from its template and deletes, with the events about that.
// k8s: pkg/controller/controller_utils.go RealPodControl

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Request, Target};
use serde_json::{Value, json};

use super::owner::controller_reference;
use crate::frame::{EventTarget, ObjectEvent, Transcript, TranscriptStop};
use crate::meta::Meta;

/// Longest start of a generated name that the API server does not cut.
const NAME_MAX: usize = 253;

/// The pod that a template describes, without a name of its own: the API server completes
/// `generateName`.
// k8s: pkg/controller/controller_utils.go GetPodFromTemplate
pub fn pod_from_template(template: &Value, owner_kind: Kind, owner: &Meta) -> Value {
    let mut metadata = json!({
        "generateName": generate_name(&owner.name),
        "ownerReferences": [controller_reference(owner_kind, owner)],
    });
    for field in ["labels", "annotations", "finalizers"] {
        let value = &template["metadata"][field];
        if !value.is_null() {
            metadata[field] = value.clone();
        }
    }
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
}

/// The start of the names of an owner's pods.
// k8s: pkg/controller/controller_utils.go getPodsPrefix
pub fn generate_name(owner: &str) -> String {
    let prefix = format!("{owner}-");
    // A prefix is valid if the name would be without its dash; only the length can be wrong here.
    if prefix.len() <= NAME_MAX { prefix } else { owner.to_owned() }
}

/// The request that creates a pod.
///
/// # Errors
/// When the pod has no labels, because no selector would match it.
// k8s: pkg/controller/controller_utils.go createPods
pub fn create(namespace: &str, pod: Value) -> Result<Request, TranscriptStop> {
    let labels = pod["metadata"]["labels"].as_object();
    if labels.is_none_or(serde_json::Map::is_empty) {
        return Err(no_labels());
    }
    Ok(create_request(namespace, pod))
}

/// The error for a pod without labels, which is not created.
pub fn no_labels() -> TranscriptStop {
    TranscriptStop::failed("unable to create pods, no labels")
}

/// The request that creates a pod, which has labels.
pub fn create_request(namespace: &str, pod: Value) -> Request {
    Request::Create { kind: PODS, namespace: namespace.to_owned(), below: None, body: pod }
}

/// The request that deletes a pod.
pub fn delete(pod: &ObjectKey) -> Request {
    let target = Target::object(PODS, pod.clone());
    Request::Delete { target, options: DeleteOptions::default() }
}

/// Records the event about an attempt to create a pod.
pub fn record_created(answer: &Answer, about: &EventTarget, transcript: &mut Transcript) {
    match answer {
        Ok(pod) => {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let message = format!("Created pod: {name}");
            transcript.event(ObjectEvent::normal(about.clone(), "SuccessfulCreate", message));
        }
        // Every create in a terminating namespace fails, so an event adds nothing.
        Err(error) if error.is_namespace_terminating() => {}
        Err(error) => {
            let message = format!("Error creating: {error}");
            transcript.event(ObjectEvent::warning(about.clone(), "FailedCreate", message));
        }
    }
}

/// Records the event about an attempt to delete a pod; returns the error unless the pod was already
/// deleted.
pub fn record_deleted(
    name: &str,
    answer: Answer,
    about: &EventTarget,
    transcript: &mut Transcript,
) -> Result<(), ApiError> {
    match answer {
        Ok(_) => {
            let message = format!("Deleted pod: {name}");
            transcript.event(ObjectEvent::normal(about.clone(), "SuccessfulDelete", message));
            Ok(())
        }
        Err(error) if error.is_not_found() => Ok(()),
        Err(error) => {
            let message = format!("Error deleting: {error}");
            transcript.event(ObjectEvent::warning(about.clone(), "FailedDelete", message));
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_of_a_template_has_its_labels_and_one_controller() {
        let name = pintle_api_types::symbol::Symbol::of("r");
        let owner = Meta { name, ..Meta::default() };
        let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}});
        let pod = pod_from_template(&template, pintle_api_types::kind::REPLICA_SETS, &owner);
        let metadata = &pod["metadata"];
        assert_eq!(metadata["generateName"], "r-");
        assert_eq!(metadata["labels"], json!({"a": "b"}));
        assert_eq!(metadata["annotations"], Value::Null);
        let owner = &metadata["ownerReferences"][0];
        assert_eq!((&owner["kind"], &owner["controller"]), (&json!("ReplicaSet"), &json!(true)));
        assert_eq!(pod["spec"], json!({"containers": []}));
    }

    #[test]
    fn pod_without_labels_is_not_created() {
        assert!(create("n", json!({"metadata": {}})).is_err());
    }
}
