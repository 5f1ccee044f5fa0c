//! Texts of a resize's events: a sentence and the requested resources, as JSON.
// k8s: pkg/kubelet/events/resize.go

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Serialize;

use pintle_api_types::pod;

/// Reason of the event when a resize was granted.
pub const STARTED: &str = "ResizeStarted";
/// Reason when it is in force.
pub const COMPLETED: &str = "ResizeCompleted";
/// Reason when it has to wait.
pub const DEFERRED: &str = "ResizeDeferred";
/// Reason when it will never be granted.
pub const INFEASIBLE: &str = "ResizeInfeasible";
/// Reason when it failed.
pub const ERROR: &str = "ResizeError";

type List<'a> = Option<&'a BTreeMap<String, Quantity>>;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<NamedAmount<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<NamedAmount<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct NamedAmount<'a> {
    name: &'a str,
    resources: Resources<'a>,
}

/// In Go's order.
#[derive(Serialize)]
struct Resources<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: List<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    requests: List<'a>,
}

/// The text: `sentence: {…}`.
pub fn text(sentence: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    fn named(container: &Container) -> NamedAmount<'_> {
        let own = container.resources.as_ref();
        let limits = own.and_then(|own| own.limits.as_ref());
        let requests = own.and_then(|own| own.requests.as_ref());
        NamedAmount { name: &container.name, resources: Resources { limits, requests } }
    }
    let spec = pod::spec(pod);
    let summary = Summary {
        init_containers: spec.init_containers.iter().flatten().map(named).collect(),
        containers: spec.containers.iter().map(named).collect(),
        generation: generation.unwrap_or(0),
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(json) => format!("{sentence}: {json}"),
        Err(_) => sentence.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn resize_event_lists_the_requested_resources() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {}, "spec": {"containers": [
            {"name": "c1", "resources": {"requests": {"memory": "1Mi", "cpu": "5m"},
                "limits": {"cpu": "6m"}}}, {"name": "c2"}]}}))
        .expect("a pod");
        let want = "Pod resize OutOfcpu: {\"containers\":[{\"name\":\"c1\",\"resources\":\
            {\"limits\":{\"cpu\":\"6m\"},\"requests\":{\"cpu\":\"5m\",\"memory\":\"1Mi\"}}},\
            {\"name\":\"c2\",\"resources\":{}}],\"generation\":2,\"error\":\"no cpu\"}";
        assert_eq!(text("Pod resize OutOfcpu", &pod, Some(2), "no cpu"), want);
    }
}
