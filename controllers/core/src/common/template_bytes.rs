//! What Kubernetes computes from the bytes that Go prints for a pod template: the data of revisions
//! and hashes.
//!
//! Input: a set or a template as JSON. Output: texts.

use serde_json::{Value, json};

/// The data of a StatefulSet's revision: the patch that restores its template.
// k8s: pkg/controller/statefulset/stateful_set_utils.go getPatch
pub fn stateful_set_revision_data(set: &Value) -> String {
    restoring(&set["spec"]["template"])
}

/// The data of a DaemonSet's revision: the patch that restores its template.
// k8s: pkg/controller/daemon/update.go getPatch
pub fn daemon_set_revision_data(set: &Value) -> String {
    restoring(&set["spec"]["template"])
}

/// The hash of a pod template.
// k8s: pkg/controller/controller_utils.go ComputeHash
pub fn pod_template_hash(template: &Value, collision_count: Option<i32>) -> String {
    super::history::hash(&template.to_string(), collision_count)
}

/// The object with a strategic merge patch applied.
pub fn apply_strategic(mut object: Value, patch: &Value) -> Value {
    if let Some(template) = patch["spec"]["template"].as_object() {
        let mut template = template.clone();
        template.remove("$patch");
        object["spec"]["template"] = Value::Object(template);
    }
    object
}

fn restoring(template: &Value) -> String {
    let mut template = template.clone();
    template["$patch"] = "replace".into();
    json!({"spec": {"template": template}}).to_string()
}

/// Sets the defaults that the API server sets in a template; `None` when it is no pod template.
// k8s: pkg/apis/apps/v1/zz_generated.defaults.go SetObjectDefaults_StatefulSet
pub fn with_defaults(mut template: Value) -> Option<Value> {
    let mut spec = serde_json::from_value(template["spec"].take()).ok()?;
    pintle_api_types::pod::defaults::apply_to_template(&mut spec);
    template["spec"] = serde_json::to_value(spec).ok()?;
    Some(template)
}
