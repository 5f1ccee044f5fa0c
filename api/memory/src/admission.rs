//! Fields that the default admission plugins add to new objects.
//!
//! Input and output: an object that is about to be created. Plugins that refuse (quota, limits,
//! webhooks) are played by [`crate::Refusal`]. A service account's token volume is left out, and so
//! is the check that the account exists. Pure.
// k8s: pkg/kubeapiserver/options/plugins.go

use pintle_api_types::kind::Kind;
use serde_json::{Value, json};

use crate::meta;

/// Seconds that a pod stays on a node that is not ready or not reachable.
// k8s: plugin/pkg/admission/defaulttolerationseconds/admission.go
const TOLERATION_SECONDS: i64 = 300;

pub(crate) fn admit(kind: Kind, object: &mut Value) {
    match (kind.group, kind.plural) {
        ("", "pods") => pod(object),
        ("", "nodes") => taint(object),
        ("", "persistentvolumeclaims") => protect(object, "kubernetes.io/pvc-protection"),
        ("", "persistentvolumes") => protect(object, "kubernetes.io/pv-protection"),
        _ => {}
    }
}

fn pod(pod: &mut Value) {
    let is_mirror = pod["metadata"]["annotations"].get("kubernetes.io/config.mirror").is_some();
    let spec = meta::child(pod, "spec");
    // k8s: plugin/pkg/admission/priority/admission.go
    spec.entry("priority").or_insert_with(|| 0.into());
    spec.entry("preemptionPolicy").or_insert_with(|| "PreemptLowerPriority".into());
    if !is_mirror {
        // k8s: plugin/pkg/admission/serviceaccount/admission.go
        let account = spec.entry("serviceAccountName").or_insert_with(|| "default".into()).clone();
        spec.insert("serviceAccount".to_owned(), account);
    }
    let tolerations = spec.entry("tolerations").or_insert_with(|| json!([]));
    let Some(tolerations) = tolerations.as_array_mut() else { return };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covers = |toleration: &Value| {
            let matches = |field: &str, value: &str| {
                let stated = toleration[field].as_str().unwrap_or_default();
                stated.is_empty() || stated == value
            };
            matches("key", key) && matches("effect", "NoExecute")
        };
        if !tolerations.iter().any(covers) {
            tolerations.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": TOLERATION_SECONDS}));
        }
    }
}

/// A new node takes no pods until its conditions are known.
// k8s: plugin/pkg/admission/nodetaint/admission.go
fn taint(node: &mut Value) {
    let taint = json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"});
    let taints = meta::child(node, "spec").entry("taints").or_insert_with(|| json!([]));
    let Some(taints) = taints.as_array_mut() else { return };
    if !taints.iter().any(|has| has["key"] == taint["key"] && has["effect"] == taint["effect"]) {
        taints.push(taint);
    }
}

// k8s: plugin/pkg/admission/storage/storageobjectinuseprotection/admission.go
fn protect(object: &mut Value, finalizer: &str) {
    let mut finalizers = meta::finalizers(object);
    if !finalizers.iter().any(|has| has == finalizer) {
        finalizers.push(finalizer.to_owned());
        meta::set(object, "finalizers", finalizers.into());
    }
}
