//! Defaults of kinds of the core group other than pods and workloads.
// k8s: pkg/apis/core/v1/defaults.go

use serde_json::{Value, json};

use super::{or, spec, within};
use crate::meta;

/// Texts that are written although they are empty.
const NODE_INFO: [&str; 10] = [
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
];

pub(super) fn apply(plural: &str, object: &mut Value) {
    match plural {
        "namespaces" => namespace(object),
        "services" => service(object),
        "secrets" => drop(or(fields(object), "type", "Opaque")),
        "persistentvolumes" => {
            let spec = spec(object);
            or(spec, "persistentVolumeReclaimPolicy", "Retain");
            or(spec, "volumeMode", "Filesystem");
        }
        "persistentvolumeclaims" => {
            or(spec(object), "volumeMode", "Filesystem");
            or(meta::child(object, "status"), "phase", "Pending");
        }
        "endpoints" => {
            for subset in object["subsets"].as_array_mut().into_iter().flatten() {
                ports(&mut subset["ports"]);
            }
        }
        _ => {}
    }
}

/// A node can give all that it has, unless it says otherwise.
pub(super) fn node(object: &mut Value) {
    let status = meta::child(object, "status");
    if let Some(capacity) = status.get("capacity").cloned() {
        or(status, "allocatable", capacity);
    }
    or(status, "daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
    let system = within(status, "nodeInfo");
    for field in NODE_INFO {
        system.entry(field).or_insert_with(|| "".into());
    }
}

fn fields(object: &mut Value) -> &mut serde_json::Map<String, Value> {
    object.as_object_mut().expect("objects are checked before defaults are set")
}

fn namespace(object: &mut Value) {
    let name = meta::name(object).to_owned();
    if !name.is_empty() {
        let labels = within(meta::of(object), "labels");
        labels.insert("kubernetes.io/metadata.name".to_owned(), name.into());
    }
}

fn service(object: &mut Value) {
    let spec = spec(object);
    or(spec, "sessionAffinity", "None");
    let kind = or(spec, "type", "ClusterIP").as_str().unwrap_or_default().to_owned();
    if kind != "ExternalName" {
        or(spec, "internalTrafficPolicy", "Cluster");
    }
    if kind == "LoadBalancer" {
        or(spec, "allocateLoadBalancerNodePorts", true);
    }
    if ["LoadBalancer", "NodePort"].contains(&&*kind) {
        or(spec, "externalTrafficPolicy", "Cluster");
    }
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port["port"].clone();
        if let Some(port) = port.as_object_mut() {
            or(port, "protocol", "TCP");
            or(port, "targetPort", number);
        }
    }
}

fn ports(ports: &mut Value) {
    for port in ports.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        or(port, "protocol", "TCP");
    }
}
