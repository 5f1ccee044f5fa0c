//! The defaults of the API server, for handwritten objects.
//!
//! Input: objects of a file, from `kubectl create --dry-run=client` or written by hand. Output: the
//! same objects as an API server would store them, as far as decisions read it. Pure. A stored
//! object has its defaults already: setting them again changes nothing. Admission and label keys
//! would change it, and are skipped for such an object.
// k8s: pkg/apis/core/v1/defaults.go

pub(crate) mod admission;
pub(crate) mod assumed;
mod label_keys;
mod limits;

use std::collections::BTreeMap;

use assumed::Assumed;
use k8s_openapi::api::core::v1::{
    Container, LimitRange, Namespace, Node, Pod, PodSpec, ReplicationController,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
pub(super) use label_keys::merge as merge_label_keys;
use pintle_sched_core::requests::declared::Declared;

use super::dump::pod_name;
use super::valid::is_stored;

/// Amounts by the name of the resource.
type Resources = BTreeMap<String, Quantity>;

const REQUESTS: &str = "spec.containers[].resources.requests";
const HOST_PORT: &str = "spec.containers[].ports[].hostPort";

/// A node without allocatable resources gets its capacity.
// k8s: defaults.go SetDefaults_NodeStatus
pub(super) fn of_node(node: &mut Node) {
    if let Some(status) = &mut node.status
        && status.allocatable.is_none()
    {
        status.allocatable.clone_from(&status.capacity);
    }
}

// k8s: defaults.go SetDefaults_Namespace
pub(super) fn of_namespace(namespace: &mut Namespace) {
    let name = namespace.metadata.name.clone().unwrap_or_default();
    let labels = namespace.metadata.labels.get_or_insert_default();
    labels.entry("kubernetes.io/metadata.name".to_owned()).or_insert(name);
}

// k8s: defaults.go SetDefaults_ReplicationController
pub(super) fn of_controller(controller: &mut ReplicationController) {
    let Some(spec) = &mut controller.spec else { return };
    let template = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
    let labels = template.and_then(|metadata| metadata.labels.as_ref());
    if spec.selector.as_ref().is_none_or(BTreeMap::is_empty) {
        spec.selector = labels.cloned();
    }
}

// k8s: defaults.go SetDefaults_LimitRangeItem
pub(super) fn of_limit_range(range: &mut LimitRange) {
    let limits = range.spec.iter_mut().flat_map(|spec| &mut spec.limits);
    for limit in limits.filter(|limit| limit.type_ == "Container") {
        let default = limit.default.get_or_insert_default();
        fill(default, limit.max.as_ref());
        let request = limit.default_request.get_or_insert_default();
        fill(request, Some(default));
        fill(request, limit.min.as_ref());
    }
}

/// Sets each missing resource to its amount in `from`; true if any was missing.
fn fill(into: &mut Resources, from: Option<&Resources>) -> bool {
    let before = into.len();
    for (name, amount) in from.into_iter().flatten() {
        into.entry(name.clone()).or_insert_with(|| amount.clone());
    }
    into.len() > before
}

/// Sets the name of a pod with `generateName`, with a number instead of a random suffix.
pub(super) fn name_generated(metadata: &mut ObjectMeta, number: usize) -> bool {
    let is_named = metadata.name.as_ref().is_some_and(|name| !name.is_empty());
    let prefix = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty());
    let Some(prefix) = prefix.filter(|_| !is_named) else { return false };
    metadata.name = Some(format!("{prefix}{number:05}"));
    true
}

/// Sets the defaults of decoding a pod, and of its creation.
// k8s: defaults.go SetDefaults_Pod, SetDefaults_PodSpec
pub(super) fn of_pod(pod: &mut Pod, assumed: &mut Assumed) {
    if pod.metadata.namespace.as_ref().is_none_or(String::is_empty) {
        pod.metadata.namespace = Some("default".to_owned());
        assumed.add("metadata.namespace", "default", &pod_name(pod));
    }
    let name = pod_name(pod);
    let Some(spec) = &mut pod.spec else { return };
    if spec.scheduler_name.as_ref().is_some_and(String::is_empty) {
        spec.scheduler_name = None;
    }
    let is_host = spec.host_network == Some(true);
    let (mut has_limits, mut has_ports) = (false, false);
    let init = spec.init_containers.iter_mut().flatten();
    for container in spec.containers.iter_mut().chain(init) {
        has_limits |= limits_as_requests(container);
        has_ports |= container_ports(container, is_host);
    }
    if has_limits {
        assumed.add(REQUESTS, "the limits, for resources without a request", &name);
    }
    if has_ports {
        let value = "the container's port, because the pod uses the host's network";
        assumed.add(HOST_PORT, value, &name);
    }
    if pod_level(spec) {
        let value = "those of the containers, or else the pod's limits";
        assumed.add("spec.resources.requests", value, &name);
    }
    if !is_stored(&pod.metadata) && merge_label_keys(pod) {
        let value = "with the pod's values of matchLabelKeys and mismatchLabelKeys";
        assumed.add("labelSelector", value, &name);
    }
}

/// Copies limits to missing requests; true if any was copied.
fn limits_as_requests(container: &mut Container) -> bool {
    let Some(resources) = &mut container.resources else { return false };
    let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return false;
    };
    fill(resources.requests.get_or_insert_default(), Some(limits))
}

/// Sets the defaults of ports; true if a host port was set.
fn container_ports(container: &mut Container, is_host: bool) -> bool {
    let mut any = false;
    for port in container.ports.iter_mut().flatten() {
        if port.protocol.as_ref().is_none_or(String::is_empty) {
            port.protocol = Some("TCP".to_owned());
        }
        if is_host && port.host_port.unwrap_or(0) == 0 && port.container_port != 0 {
            port.host_port = Some(port.container_port);
            any = true;
        }
    }
    any
}

/// Sets requests at pod level; true if any was set.
// k8s: defaults.go defaultHugePagePodLimits, defaultPodRequests
fn pod_level(spec: &mut PodSpec) -> bool {
    let Some(of_containers) = of_containers(spec) else { return false };
    let Some(resources) = &mut spec.resources else { return false };
    let given = |list: &Option<Resources>| list.as_ref().is_some_and(|list| !list.is_empty());
    if !given(&resources.limits) && !given(&resources.requests) {
        return false;
    }
    let mut limits = resources.limits.take().unwrap_or_default();
    let mut requests = resources.requests.take().unwrap_or_default();
    for (name, amount) in &of_containers.limits {
        if name.starts_with("hugepages-") && !requests.contains_key(name) {
            limits.entry(name.clone()).or_insert_with(|| Quantity(amount.canonical()));
        }
    }
    let before = requests.len();
    if !limits.is_empty() {
        for (name, amount) in &of_containers.requests {
            if matches!(name.as_str(), "cpu" | "memory") {
                requests.entry(name.clone()).or_insert_with(|| Quantity(amount.canonical()));
            }
        }
        for (name, amount) in &limits {
            if matches!(name.as_str(), "cpu" | "memory") || name.starts_with("hugepages-") {
                requests.entry(name.clone()).or_insert_with(|| amount.clone());
            }
        }
    }
    let is_set = requests.len() > before;
    resources.limits = Some(limits).filter(|list| !list.is_empty());
    resources.requests = Some(requests).filter(|list| !list.is_empty());
    is_set
}

/// Returns the sum of the containers' resources, if the pod has resources at pod level and every
/// quantity is valid.
pub(super) fn of_containers(spec: &PodSpec) -> Option<Declared> {
    spec.resources.as_ref()?;
    let spec = PodSpec {
        containers: spec.containers.clone(),
        init_containers: spec.init_containers.clone(),
        ..PodSpec::default()
    };
    Declared::of(&Pod { spec: Some(spec), ..Pod::default() }).ok()
}

#[cfg(test)]
mod tests;
