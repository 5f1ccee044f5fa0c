//! Defaults of pods, and of the templates that pods are made from.
//!
//! Input: a pod or template as JSON. Output: the same, by way of the typed defaults that static
//! pods get. Fields that only pods get are taken back from templates.
// k8s: pkg/apis/core/v1/defaults.go SetDefaults_Pod, SetDefaults_PodSpec

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use pintle_api_types::pod::defaults;
use serde_json::{Map, Value, json};

/// Sets the defaults of a pod. One that cannot be decoded stays as it is.
pub(super) fn pod(pod: &mut Value) {
    let Some(decoded) = decode(&pod["spec"]) else { return };
    let mut typed = Pod { spec: Some(decoded), ..Pod::default() };
    defaults::apply(&mut typed);
    encode(pod, typed);
}

/// Sets the defaults of the pod template among the fields of a spec.
pub(super) fn template(fields: &mut Map<String, Value>) {
    let template = super::within(fields, "template");
    let template = template_value(template);
    fields.insert("template".to_owned(), template);
}

fn template_value(fields: &Map<String, Value>) -> Value {
    let mut template = Value::Object(fields.clone());
    let Some(before) = decode(&template["spec"]) else { return template };
    let mut typed = Pod { spec: Some(before.clone()), ..Pod::default() };
    defaults::apply(&mut typed);
    if let Some(spec) = typed.spec.as_mut() {
        take_back(spec, &before);
    }
    encode(&mut template, typed);
    super::within(template.as_object_mut().expect("made an object above"), "metadata");
    template
}

/// Removes what a pod gets and a template does not.
fn take_back(spec: &mut PodSpec, before: &PodSpec) {
    spec.enable_service_links = before.enable_service_links;
    spec.resources.clone_from(&before.resources);
    containers(&mut spec.containers, &before.containers);
    if let (Some(containers_now), Some(containers_before)) =
        (spec.init_containers.as_mut(), before.init_containers.as_ref())
    {
        containers(containers_now, containers_before);
    }
}

fn containers(now: &mut [Container], before: &[Container]) {
    for (now, before) in now.iter_mut().zip(before) {
        let had = before.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let Some(requests) = now.resources.as_mut().and_then(|own| own.requests.as_mut()) else {
            continue;
        };
        requests.retain(|name, _| had.is_some_and(|had| had.contains_key(name)));
        if requests.is_empty()
            && let Some(resources) = now.resources.as_mut()
        {
            resources.requests = None;
        }
    }
}

fn decode(spec: &Value) -> Option<PodSpec> {
    let spec = if spec.is_null() { json!({"containers": []}) } else { spec.clone() };
    serde_json::from_value(spec).ok()
}

fn encode(object: &mut Value, typed: Pod) {
    if let Ok(spec) = serde_json::to_value(typed.spec) {
        object["spec"] = spec;
    }
}
