//! Static pods may not refer to API objects: they must start without an API server.
//!
//! Pure: a pod in, the plural name of the first kind of object it refers to out.

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};

use pintle_api_types::pod;

/// A volume of a source that no version of the API has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown source for projected volume \"{volume}\"")]
pub struct UnknownSource {
    /// The volume's name.
    pub volume: String,
}

/// The first kind of API object that the pod refers to, or an error about an unknown volume.
// k8s: pkg/api/pod/util.go HasAPIObjectReference
pub fn first_reference(pod: &Pod) -> Result<Option<&'static str>, UnknownSource> {
    let spec = pod::spec(pod);
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Ok(Some("serviceaccounts"));
    }
    // A reference without a name is none.
    // k8s: pkg/api/pod/util.go skipEmptyNames
    let pulls_with_secret =
        spec.image_pull_secrets.iter().flatten().any(|secret| !secret.name.is_empty());
    let volumes = || spec.volumes.iter().flatten();
    if pulls_with_secret || env_refers(pod, env_secret, from_secret) || volumes().any(has_secret) {
        return Ok(Some("secrets"));
    }
    if env_refers(pod, env_config_map, from_config_map) || volumes().any(has_config_map) {
        return Ok(Some("configmaps"));
    }
    if spec.resource_claims.iter().flatten().next().is_some() {
        return Ok(Some("resourceclaims"));
    }
    for volume in volumes() {
        if let Some(reference) = volume_reference(volume)? {
            return Ok(Some(reference));
        }
    }
    Ok(None)
}

fn env_secret(env: &EnvVar) -> bool {
    env.value_from.as_ref().is_some_and(|from| from.secret_key_ref.is_some())
}

fn env_config_map(env: &EnvVar) -> bool {
    env.value_from.as_ref().is_some_and(|from| from.config_map_key_ref.is_some())
}

fn from_secret(from: &EnvFromSource) -> bool {
    from.secret_ref.is_some()
}

fn from_config_map(from: &EnvFromSource) -> bool {
    from.config_map_ref.is_some()
}

fn env_refers(pod: &Pod, one: fn(&EnvVar) -> bool, all: fn(&EnvFromSource) -> bool) -> bool {
    let spec = pod::spec(pod);
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let lists = pod::containers::all(spec)
        .map(|(_, container)| (&container.env, &container.env_from))
        .chain(ephemeral.map(|container| (&container.env, &container.env_from)));
    let mut lists = lists.map(|(env, from)| (env.iter().flatten(), from.iter().flatten()));
    lists.any(|(mut env, mut from)| env.any(one) || from.any(all))
}

// k8s: pkg/api/pod/util.go VisitPodSecretNames
fn has_secret(volume: &Volume) -> bool {
    let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    volume.secret.is_some()
        || volume.azure_file.is_some()
        || projected.into_iter().any(|source| source.secret.is_some())
        || volume.cephfs.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.cinder.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.flex_volume.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.rbd.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.scale_io.is_some()
        || volume.iscsi.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.storageos.as_ref().is_some_and(|source| source.secret_ref.is_some())
        || volume.csi.as_ref().is_some_and(|source| source.node_publish_secret_ref.is_some())
}

fn has_config_map(volume: &Volume) -> bool {
    let projected = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
    volume.config_map.is_some() || projected.into_iter().any(|source| source.config_map.is_some())
}

fn volume_reference(volume: &Volume) -> Result<Option<&'static str>, UnknownSource> {
    if volume.csi.is_some() {
        return Ok(Some("csidrivers (via CSI volumes)"));
    }
    if volume.glusterfs.is_some() {
        return Ok(Some("endpoints (via glusterFS volumes)"));
    }
    if volume.persistent_volume_claim.is_some() {
        return Ok(Some("persistentvolumeclaims"));
    }
    if volume.ephemeral.is_some() {
        return Ok(Some("persistentvolumeclaims (via ephemeral volumes)"));
    }
    for source in volume.projected.iter().flat_map(|p| p.sources.iter().flatten()) {
        if source.service_account_token.is_some() {
            return Ok(Some("serviceaccounts (via projected volumes)"));
        }
        if source.cluster_trust_bundle.is_some() {
            return Ok(Some("clustertrustbundles"));
        }
        if source.pod_certificate.is_some() {
            return Ok(Some("podcertificates"));
        }
        if source.downward_api.is_none() {
            return Err(UnknownSource { volume: volume.name.clone() });
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn found(spec: Value) -> Option<&'static str> {
        let pod = serde_json::from_value(json!({ "spec": spec })).expect("a pod");
        first_reference(&pod).expect("known volumes")
    }

    #[test]
    fn every_way_to_refer_to_an_object_is_found() {
        let volume = |source: Value| {
            let mut volume = source;
            volume["name"] = json!("v");
            json!({"containers": [], "volumes": [volume]})
        };
        let env = |env: Value| json!({"containers": [{"name": "c", "env": [env]}]});
        let secret = json!({"name": "E", "valueFrom": {"secretKeyRef": {"key": "k"}}});
        let map = json!({"name": "E", "valueFrom": {"configMapKeyRef": {"key": "k"}}});
        for (spec, want) in [
            (json!({"containers": []}), None),
            (volume(json!({"hostPath": {"path": "/x"}})), None),
            (volume(json!({"downwardAPI": {}})), None),
            (json!({"containers": [], "serviceAccountName": "x"}), Some("serviceaccounts")),
            (json!({"containers": [], "imagePullSecrets": [{"name": "x"}]}), Some("secrets")),
            (json!({"containers": [], "imagePullSecrets": [{}]}), None),
            (env(secret), Some("secrets")),
            (env(map), Some("configmaps")),
            (volume(json!({"secret": {"secretName": "x"}})), Some("secrets")),
            (volume(json!({"configMap": {"name": "x"}})), Some("configmaps")),
            (volume(json!({"csi": {"driver": "d"}})), Some("csidrivers (via CSI volumes)")),
            (
                volume(json!({"persistentVolumeClaim": {"claimName": "c"}})),
                Some("persistentvolumeclaims"),
            ),
            (
                volume(json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}})),
                Some("serviceaccounts (via projected volumes)"),
            ),
            (json!({"containers": [], "resourceClaims": [{"name": "r"}]}), Some("resourceclaims")),
        ] {
            assert_eq!(found(spec.clone()), want, "{spec}");
        }
    }
}
