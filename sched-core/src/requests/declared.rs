//! Declared resources of a pod: requests and limits from its spec alone.
//!
//! Input: a pod. Output: amounts by resource, of all resources. Owner: a pure function. Bounds:
//! none beyond the pod's own size. Unlike what the filters count, no status raises anything.
// k8s: staging/src/k8s.io/component-helpers/resource/helpers.go PodRequests, PodLimits

use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};
use pintle_api_types::quantity::Amounts;

use super::{RequestError, add, amounts_of, is_pod_level_resource, sum_of};

/// Requests and limits of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Declared {
    /// Requests, including overhead.
    pub requests: Amounts,
    /// Limits; overhead counts if there is a limit.
    pub limits: Amounts,
}

impl Declared {
    /// Returns the declared resources of a pod.
    ///
    /// # Errors
    /// A quantity of the pod is invalid.
    pub fn of(pod: &Pod) -> Result<Self, RequestError> {
        let overhead = pod.spec.as_ref().and_then(|spec| spec.overhead.as_ref());
        let overhead = amounts_of(overhead, || "spec.overhead".to_owned())?;
        let mut requests = summed(pod, "requests", |r| r.requests.as_ref())?;
        add(&mut requests, &overhead);
        let mut limits = summed(pod, "limits", |r| r.limits.as_ref())?;
        for (name, limit) in &mut limits {
            if let Some(more) = overhead.get(name).filter(|_| !limit.is_zero()) {
                *limit = *limit + *more;
            }
        }
        Ok(Self { requests, limits })
    }
}

type List =
    std::collections::BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

/// Sums up requests or limits, of the containers, then at pod level.
fn summed(
    pod: &Pod,
    name: &str,
    list: impl Fn(&ResourceRequirements) -> Option<&List>,
) -> Result<Amounts, RequestError> {
    let Some(spec) = pod.spec.as_ref() else { return Ok(Amounts::new()) };
    let mut total = sum_of(spec, |container, _| {
        let of = container.resources.as_ref().and_then(&list);
        amounts_of(of, || format!("spec.containers[{:?}].resources.{name}", container.name))
    })?;
    let of_pod = spec.resources.as_ref().and_then(&list);
    for (resource, amount) in amounts_of(of_pod, || format!("spec.resources.{name}"))? {
        if is_pod_level_resource(&resource) {
            total.insert(resource, amount);
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn declared(spec: Value) -> [String; 2] {
        let pod = serde_json::from_value(json!({"metadata": {}, "spec": spec,
            "status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "",
                "ready": true, "restartCount": 0, "resources": {"requests": {"cpu": "9"}}}]}}));
        let of = Declared::of(&pod.expect("a pod")).expect("quantities");
        [of.requests, of.limits].map(|all| {
            let all = all.iter().map(|(name, amount)| format!("{name}={}", amount.canonical()));
            all.collect::<Vec<_>>().join(" ")
        })
    }

    fn one(name: &str, requests: Value, limits: Value) -> Value {
        json!({"name": name, "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn containers_add_up_and_init_containers_raise() {
        let mut sidecar = one("s", json!({"cpu": "1"}), json!({"cpu": "2"}));
        sidecar["restartPolicy"] = json!("Always");
        let init = one("i", json!({"cpu": "3", "a.b/c": "2"}), json!({"memory": "1Gi"}));
        let main = one("a", json!({"cpu": "500m", "memory": "64Mi"}), json!({"cpu": "1"}));
        let spec = json!({"containers": [main, main], "initContainers": [sidecar, init]});
        assert_eq!(declared(spec), ["a.b/c=2 cpu=4 memory=128Mi", "cpu=4 memory=1Gi"]);
    }

    #[test]
    fn overhead_adds_to_all_requests_and_to_limits_that_are_there() {
        let main = one("a", json!({"cpu": "1"}), json!({"cpu": "2", "memory": "0"}));
        let spec = json!({"containers": [main],
            "overhead": {"cpu": "250m", "memory": "1Mi", "storage": "1"}});
        assert_eq!(declared(spec), ["cpu=1250m memory=1Mi storage=1", "cpu=2250m memory=0"]);
    }

    #[test]
    fn pod_level_resources_override_container_resources_where_supported() {
        let main = one("a", json!({"cpu": "1", "ephemeral-storage": "1Gi"}), json!({}));
        let of_pod = json!({
            "requests": {"cpu": "3", "ephemeral-storage": "5Gi", "hugepages-2Mi": "2Mi"},
            "limits": {"memory": "1Gi", "ephemeral-storage": "5Gi"}});
        let spec = json!({"containers": [main], "resources": of_pod, "overhead": {"cpu": "1"}});
        let requests = "cpu=4 ephemeral-storage=1Gi hugepages-2Mi=2Mi";
        assert_eq!(declared(spec), [requests, "memory=1Gi"]);
    }

    #[test]
    fn invalid_limit_error_names_its_field_path() {
        let pod = json!({"metadata": {}, "spec": {"containers": [
            one("a", json!({}), json!({"cpu": "lots"}))]}});
        let error = Declared::of(&serde_json::from_value(pod).expect("a pod")).expect_err("bad");
        assert_eq!(error.to_string(), r#"spec.containers["a"].resources.limits.cpu"#);
    }
}
