//! Names of the PersistentVolumeClaims behind a pod's volumes.

use k8s_openapi::api::core::v1::{Pod, Volume};

/// Returns the name of the claim behind a volume, if there is one: the claim that the volume names,
/// or the one that is created for the pod from the volume's template.
// k8s: staging/src/k8s.io/component-helpers/storage/ephemeral/ephemeral.go VolumeClaimName
pub fn volume_claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    if let Some(source) = &volume.persistent_volume_claim {
        return Some(source.claim_name.clone());
    }
    volume.ephemeral.as_ref()?;
    Some(format!("{}-{}", super::name(pod), volume.name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volume_claim_is_named_in_the_volume_or_after_pod_and_volume() {
        let pod = json!({"metadata": {"name": "p"}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        for (volume, name) in [
            (json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}}), Some("c")),
            (json!({"name": "v", "ephemeral": {}}), Some("p-v")),
            (json!({"name": "v", "emptyDir": {}}), None),
        ] {
            let volume: Volume = serde_json::from_value(volume).expect("a volume");
            assert_eq!(volume_claim_name(&pod, &volume).as_deref(), name);
        }
    }
}
