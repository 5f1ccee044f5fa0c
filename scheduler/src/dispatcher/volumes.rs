//! Writes volumes and claims of a pod that has a node, each at the version the decision is based
//! on.
//!
//! Why patches: the cache has only the fields that decisions read, so objects cannot be written
//! whole.
// k8s: pkg/scheduler/framework/plugins/volumebinding/binder.go bindAPIUpdate

use std::cell::Cell;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{Patch, PatchParams};
use pintle_scheduler_core::plugins::volumes::bind::{BY_CONTROLLER, Write, WriteTarget};
use serde_json::{Value, json};

/// Writes them, while that is wanted. Returns their new versions, fewer if one failed, and the
/// error.
pub(super) async fn write(
    client: kube::Client,
    writes: &[Write],
    is_wanted: &Cell<bool>,
) -> (Vec<String>, Option<String>) {
    let mut versions = Vec::new();
    for write in writes {
        if !is_wanted.get() {
            return (versions, Some("the pod no longer needs them".to_owned()));
        }
        match one(&client, write).await {
            Ok(metadata) => versions.push(metadata.resource_version.unwrap_or_default()),
            Err(error) => {
                let error = match error {
                    kube::Error::Api(status) => status.message,
                    other => other.to_string(),
                };
                return (versions, Some(error));
            }
        }
    }
    (versions, None)
}

async fn one(client: &kube::Client, write: &Write) -> kube::Result<ObjectMeta> {
    let params = PatchParams::default();
    let patch = patch(write);
    match &write.target {
        WriteTarget::Volume { name, .. } => {
            let volumes = Api::<PersistentVolume>::all(client.clone());
            Ok(volumes.patch(name, &params, &Patch::Merge(patch)).await?.metadata)
        }
        WriteTarget::Claim { key, .. } => {
            let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), key.namespace());
            Ok(claims.patch(key.name(), &params, &Patch::Merge(patch)).await?.metadata)
        }
    }
}

fn patch(write: &Write) -> Value {
    let mut metadata = json!({"resourceVersion": write.version});
    match &write.target {
        WriteTarget::Volume { claim, marks, .. } => {
            if *marks {
                metadata["annotations"] = json!({BY_CONTROLLER: "yes"});
            }
            json!({"metadata": metadata, "spec": {"claimRef": claim}})
        }
        WriteTarget::Claim { node, .. } => {
            metadata["annotations"] = json!({"volume.kubernetes.io/selected-node": node});
            json!({ "metadata": metadata })
        }
    }
}
