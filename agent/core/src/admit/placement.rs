//! Does the pod belong here? Node name, node affinity, host ports, taints.
//!
//! Pure. The refusals come in the kubelet's order; each check decides like the scheduler's plugin
//! of that name.
// k8s: pkg/scheduler/eventhandlers.go AdmissionCheck, pkg/kubelet/lifecycle/predicate.go
//      generalFilter

use k8s_openapi::api::core::v1::{ContainerPort, Pod, Taint};

use super::{AdmissionNode, AdmissionRefusal, Others};
use pintle_api_types::ids::ContainerKind;
use pintle_api_types::node_match::{TolerationFields, selects};
use pintle_api_types::pod;

/// Reason when the node's labels do not match the pod's node selector or affinity.
pub(super) const AFFINITY: &str = "NodeAffinity";

/// All reasons why the pod does not belong on this node.
pub(super) fn mismatches(
    node: &AdmissionNode,
    others: &Others<'_>,
    pod: &Pod,
) -> Vec<AdmissionRefusal> {
    let mut found = Vec::new();
    let mut fail = |name: &str, why: &str| {
        found.push(AdmissionRefusal::new(name, format!("Predicate {name} failed: {why}")));
    };
    if !has_affinity(node, pod) {
        fail(AFFINITY, "node(s) didn't match Pod's node affinity/selector");
    }
    let wanted = pod::spec(pod).node_name.as_deref().unwrap_or_default();
    if !wanted.is_empty() && wanted != node.name {
        fail("NodeName", "node(s) didn't match the requested node name");
    }
    if ports_taken(others, pod) {
        fail("NodePorts", "node(s) didn't have free ports for the requested pod ports");
    }
    if !pod::is_static(pod) && !tolerates_all(node, pod) {
        fail("TaintToleration", "node(s) had taints that the pod didn't tolerate");
    }
    found
}

// k8s: staging/src/k8s.io/component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go
//      RequiredNodeAffinity.Match
fn has_affinity(node: &AdmissionNode, pod: &Pod) -> bool {
    let spec = pod::spec(pod);
    let mut selector = spec.node_selector.iter().flatten();
    if !selector.all(|(key, value)| node.labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity
        .and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|selector| selects(selector, &node.name, &node.labels))
}

/// True when another pod has one of the pod's host ports.
// k8s: pkg/scheduler/framework/plugins/nodeports/node_ports.go Fits
fn ports_taken(others: &Others<'_>, pod: &Pod) -> bool {
    host_ports(pod).any(|wanted| {
        let port = wanted.host_port.unwrap_or_default();
        others.on_port(port).any(|used| conflict(wanted, used))
    })
}

/// Host ports of main containers and sidecars.
// k8s: pkg/scheduler/util/utils.go GetHostPorts
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let lasting = pod::containers::all(pod::spec(pod))
        .filter(|(kind, _)| *kind != ContainerKind::Init)
        .flat_map(|(_, container)| container.ports.iter().flatten());
    lasting.filter(|port| port.host_port.is_some_and(|port| port > 0))
}

fn conflict(a: &ContainerPort, b: &ContainerPort) -> bool {
    const ANY: &str = "0.0.0.0";
    fn ip(port: &ContainerPort) -> &str {
        port.host_ip.as_deref().filter(|ip| !ip.is_empty()).unwrap_or(ANY)
    }
    fn protocol(port: &ContainerPort) -> &str {
        port.protocol.as_deref().filter(|name| !name.is_empty()).unwrap_or("TCP")
    }
    let same_ip = ip(a) == ANY || ip(b) == ANY || ip(a) == ip(b);
    a.host_port == b.host_port && protocol(a) == protocol(b) && same_ip
}

/// Only taints that end running pods count here; the others are the scheduler's.
fn tolerates_all(node: &AdmissionNode, pod: &Pod) -> bool {
    let mut taints = node.taints.iter().filter(|taint| taint.effect == "NoExecute");
    taints.all(|taint| tolerates(pod, taint))
}

/// True when the pod tolerates that the node is short of memory.
pub(super) fn tolerates_memory_pressure(pod: &Pod) -> bool {
    let (key, effect) = ("node.kubernetes.io/memory-pressure".to_owned(), "NoSchedule".to_owned());
    tolerates(pod, &Taint { key, effect, ..Taint::default() })
}

fn tolerates(pod: &Pod, taint: &Taint) -> bool {
    let mut tolerations = pod::spec(pod).tolerations.iter().flatten();
    tolerations.any(|toleration| TolerationFields::from(toleration).tolerates(taint.into()))
}
