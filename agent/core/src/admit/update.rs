//! Features of the agent that a change of a pod needs.
//!
//! Pure. Input: the features that the node declares, the pod before and after. Output: the sentence
//! of the kubelet's event about the missing feature. An API server that knows the node's features
//! refuses such a change; other API servers and manifests do not.
// k8s: pkg/kubelet/kubelet.go HandlePodUpdates

use k8s_openapi::api::core::v1::{Pod, PodSpec, ResourceRequirements};

use super::{Features, unavailable};
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::pod;
use pintle_api_types::pod::containers;
use pintle_api_types::pod::resources::amounts;

/// Reason of the event.
// k8s: pkg/kubelet/events/event.go FailedNodeDeclaredFeaturesCheck
pub const LACKING: &str = "FailedNodeDeclaredFeaturesCheck";

/// The feature that the change needs and the node does not declare; `None` when none is missing.
pub fn lacking(features: Features, old: &Pod, new: &Pod) -> Option<String> {
    if !features.declared {
        return None;
    }
    let (old, new) = (pod::spec(old), pod::spec(new));
    let needs = [
        (
            "InPlacePodLevelResourcesVerticalScaling",
            features.pod_level_resize,
            resizes_pod(old, new),
        ),
        (
            "InPlacePodVerticalScalingInitContainers",
            features.init_container_resize,
            resizes_init(old, new),
        ),
    ];
    let missing = needs.iter().filter(|(_, declared, needed)| *needed && !declared);
    let missing: Vec<&str> = missing.map(|(name, ..)| *name).collect();
    (!missing.is_empty()).then(|| unavailable(&missing))
}

// k8s: staging/src/k8s.io/component-helpers/nodedeclaredfeatures/features/inplacepodresize
//      pod_level_resource_resize.go InferForUpdate
fn resizes_pod(old: &PodSpec, new: &PodSpec) -> bool {
    let meaning = |spec: &PodSpec| {
        let own = spec.resources.as_ref()?;
        let sides = [&own.requests, &own.limits].map(|side| amounts(side.as_ref()));
        Some((sides, own.claims.clone().unwrap_or_default()))
    };
    meaning(old) != meaning(new)
}

/// Sidecars may be resized everywhere.
// k8s: staging/src/k8s.io/component-helpers/nodedeclaredfeatures/features/inplacepodresize
//      nonsidecar_initcontainers_resize.go InferForUpdate
fn resizes_init(old: &PodSpec, new: &PodSpec) -> bool {
    let of = |resources: &Option<ResourceRequirements>| resources.clone().unwrap_or_default();
    let pairs = containers::init(old).zip(new.init_containers.iter().flatten());
    let mut plain = pairs.filter(|((kind, _), _)| *kind == ContainerKind::Init);
    plain.any(|((_, old), new)| of(&old.resources) != of(&new.resources))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const POD: &str = "InPlacePodLevelResourcesVerticalScaling";
    const INIT: &str = "InPlacePodVerticalScalingInitContainers";

    fn made(of_pod: Value, of_init: Value, of_sidecar: Value) -> Pod {
        let init = json!([
            {"name": "i", "resources": of_init},
            {"name": "s", "resources": of_sidecar, "restartPolicy": "Always"}]);
        let spec = json!({"containers": [], "initContainers": init, "resources": of_pod});
        serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).expect("a pod")
    }

    fn cpu(amount: &str) -> Value {
        json!({"requests": {"cpu": amount}})
    }

    #[test]
    fn a_resize_needs_its_feature() {
        let old = made(cpu("1"), cpu("1"), cpu("1"));
        for (new, want) in [
            (old.clone(), vec![]),
            (made(cpu("1000m"), cpu("1"), cpu("1")), vec![]),
            (made(cpu("2"), cpu("1"), cpu("1")), vec![POD]),
            (made(json!(null), cpu("1"), cpu("1")), vec![POD]),
            (made(cpu("1"), cpu("2"), cpu("1")), vec![INIT]),
            (made(cpu("1"), json!({}), cpu("1")), vec![INIT]),
            (made(cpu("1"), cpu("1"), cpu("2")), vec![]),
            (made(cpu("2"), cpu("2"), cpu("2")), vec![POD, INIT]),
        ] {
            let declares = |names: &[&str]| Features {
                declared: true,
                pod_level_resize: names.contains(&POD),
                init_container_resize: names.contains(&INIT),
                ..Features::default()
            };
            let text = "Pod requires node features that are not available: ";
            let told = (!want.is_empty()).then(|| format!("{text}{}", want.join(", ")));
            assert_eq!(lacking(declares(&[]), &old, &new), told, "{new:?}");
            assert_eq!(lacking(declares(&want), &old, &new), None, "{new:?}");
            assert_eq!(lacking(Features::default(), &old, &new), None, "{new:?}");
        }
    }
}
