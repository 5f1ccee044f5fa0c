//! Validation of containers: names, ports, resources.
//!
//! Input: the specification of a pod with its defaults. Output: flaws. Pure.
// k8s: pkg/apis/core/validation/validation.go validateContainerCommon, validateResourceRequirements

use std::collections::{BTreeMap, HashSet};

use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use pintle_api_types::quantity::Amount;
use pintle_sched_core::names;

use super::flaws::{Flaws, Path, cut};
use crate::simulate::defaults::of_containers;

/// Amounts by the name of the resource.
type Resources = BTreeMap<String, Quantity>;

const PROTOCOLS: [&str; 3] = ["SCTP", "TCP", "UDP"];
const RESTARTS: [&str; 3] = ["Always", "OnFailure", "Never"];
const PULLS: [&str; 3] = ["Always", "IfNotPresent", "Never"];
/// Longest name of a port.
const PORT_NAME_BYTES_MAX: usize = 15;

/// Level of resources.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResourceLevel {
    Container,
    Pod,
}

pub(super) fn containers(spec: &PodSpec, root: &Path<'_>, flaws: &mut Flaws) {
    if spec.containers.is_empty() {
        flaws.required(&root.child("containers"), "");
    }
    let mut names = HashSet::new();
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let is_host = spec.host_network == Some(true);
    let mut host_ports = HashSet::new();
    for (list, field) in [(&spec.containers[..], "containers"), (init, "initContainers")] {
        let list_path = root.child(field);
        for (at, container) in list.iter().enumerate() {
            let path = list_path.index(at);
            if !container.name.is_empty() && !names.insert(container.name.as_str()) {
                flaws.duplicate(&path.child("name"), &container.name);
            }
            common(container, &path, flaws);
            // Init containers run one after the other: each has the host's ports to itself.
            let mut own = HashSet::new();
            let taken = if field == "containers" { &mut host_ports } else { &mut own };
            let ports = container.ports.as_deref().unwrap_or_default();
            unique_host_ports(ports, &path, taken, flaws);
            if is_host && field == "containers" {
                equal_host_ports(ports, &path, flaws);
            }
        }
    }
    if let Some(own) = &spec.resources {
        let path = root.child("resources");
        resources(own, ResourceLevel::Pod, &path, flaws);
        covers_containers(spec, own, &path.child("requests"), flaws);
    }
    if let Some(overhead) = &spec.overhead {
        list(overhead, ResourceLevel::Container, &root.child("overhead"), flaws);
    }
}

fn common(container: &Container, path: &Path<'_>, flaws: &mut Flaws) {
    let name_path = path.child("name");
    match container.name.as_str() {
        "" => flaws.required(&name_path, ""),
        name => flaws.text(&name_path, name, names::dns_label_mistake),
    }
    let restart = container.restart_policy.as_deref();
    flaws.one_of_given(&path.child("restartPolicy"), restart, &RESTARTS);
    let pull = container.image_pull_policy.as_deref().filter(|text| !text.is_empty());
    flaws.one_of_given(&path.child("imagePullPolicy"), pull, &PULLS);
    ports(container.ports.as_deref().unwrap_or_default(), &path.child("ports"), flaws);
    if let Some(all) = &container.resources {
        resources(all, ResourceLevel::Container, &path.child("resources"), flaws);
    }
}

fn ports(all: &[ContainerPort], path: &Path<'_>, flaws: &mut Flaws) {
    let mut names = HashSet::new();
    for (at, port) in all.iter().enumerate() {
        let path = path.index(at);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name_path = path.child("name");
            match port_name_mistake(name) {
                Some(why) => flaws.invalid(&name_path, name, why),
                None if !names.insert(name) => flaws.duplicate(&name_path, name),
                None => {}
            }
        }
        match port.container_port {
            0 => flaws.required(&path.child("containerPort"), ""),
            number => port_number(number, &path.child("containerPort"), flaws),
        }
        if let Some(number) = port.host_port.filter(|number| *number != 0) {
            port_number(number, &path.child("hostPort"), flaws);
        }
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        flaws.one_of(&path.child("protocol"), protocol, &PROTOCOLS);
    }
}

fn port_number(number: i32, path: &Path<'_>, flaws: &mut Flaws) {
    if !(1..=65_535).contains(&number) {
        flaws.out_of_range(path, number.into(), "must be between 1 and 65535, inclusive");
    }
}

// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsValidPortName
fn port_name_mistake(name: &str) -> Option<&'static str> {
    let is_part = |part: &str| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let has_letter = name.bytes().any(|c| c.is_ascii_lowercase());
    let is_good = name.len() <= PORT_NAME_BYTES_MAX && name.split('-').all(is_part) && has_letter;
    (!is_good).then_some(
        "must be 1 to 15 lower case letters, digits and single '-', with a letter in it and no '-' at \
         the ends",
    )
}

// k8s: validation.go AccumulateUniqueHostPorts
fn unique_host_ports(
    all: &[ContainerPort],
    path: &Path<'_>,
    taken: &mut HashSet<String>,
    flaws: &mut Flaws,
) {
    let path = path.child("ports");
    for (at, port) in all.iter().enumerate() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else { continue };
        let protocol = port.protocol.as_deref().unwrap_or("TCP");
        let address = port.host_ip.as_deref().unwrap_or_default();
        let socket = format!("{protocol}/{address}/{number}");
        if taken.contains(&socket) {
            flaws.duplicate(&path.index(at).child("hostPort"), &socket);
        }
        taken.insert(socket);
    }
}

// k8s: validation.go validatePodHostNetworkDeps
fn equal_host_ports(all: &[ContainerPort], path: &Path<'_>, flaws: &mut Flaws) {
    let path = path.child("ports");
    for (at, port) in all.iter().enumerate() {
        let host = port.host_port.unwrap_or(0);
        if host != port.container_port {
            let why = "must match `containerPort` when `hostNetwork` is true";
            flaws.out_of_range(&path.index(at).child("hostPort"), host.into(), why);
        }
    }
}

fn resources(all: &ResourceRequirements, level: ResourceLevel, path: &Path<'_>, flaws: &mut Flaws) {
    let empty = Resources::new();
    let limits = all.limits.as_ref().unwrap_or(&empty);
    let requests = all.requests.as_ref().unwrap_or(&empty);
    let (limits_path, requests_path) = (path.child("limits"), path.child("requests"));
    list(limits, level, &limits_path, flaws);
    list(requests, level, &requests_path, flaws);
    for (name, request) in requests {
        let Some(amount) = Amount::parse(&request.0) else { continue };
        let path = requests_path.key(name);
        match limits.get(name).map(|limit| (limit, Amount::parse(&limit.0))) {
            None if !may_overcommit(name) => {
                let why =
                    format!("a limit of {name} must be set, because it cannot be overcommitted");
                flaws.required(&limits_path, &why);
            }
            Some((limit, Some(most))) if amount != most && !may_overcommit(name) => {
                let why = format!("must be equal to the limit of {}", cut(&limit.0));
                flaws.invalid(&path, &request.0, why);
            }
            Some((limit, Some(most))) if amount > most => {
                let limit = cut(&limit.0);
                let why = format!("must be less than or equal to the limit of {limit}");
                flaws.invalid(&path, &request.0, why);
            }
            _ => {}
        }
    }
    let mut names = limits.keys().chain(requests.keys());
    if names.clone().any(|name| is_huge(name)) && !names.any(|name| is_main(name)) {
        flaws.forbidden(path, "huge pages require cpu or memory");
    }
}

/// Checks that requests at pod level cover those of the containers.
// k8s: validation.go validatePodResourceConsistency
fn covers_containers(
    spec: &PodSpec,
    own: &ResourceRequirements,
    path: &Path<'_>,
    flaws: &mut Flaws,
) {
    let Some(all) = of_containers(spec) else { return };
    for (name, quantity) in own.requests.iter().flatten() {
        let (Some(own), Some(sum)) = (Amount::parse(&quantity.0), all.requests.get(name)) else {
            continue;
        };
        if own < *sum {
            let sum = sum.canonical();
            let why = format!("must be greater than or equal to the containers' requests of {sum}");
            flaws.invalid(&path.key(name), &quantity.0, why);
        }
    }
}

/// Checks names and amounts of a list of a pod or container.
fn list(all: &Resources, level: ResourceLevel, path: &Path<'_>, flaws: &mut Flaws) {
    for (name, quantity) in all {
        let path = path.key(name);
        match (name_mistake(name), level) {
            (Some(why), _) => flaws.invalid(&path, name, why),
            (None, ResourceLevel::Container) => {}
            (None, ResourceLevel::Pod) if is_main(name) || is_huge(name) => {}
            (None, ResourceLevel::Pod) => {
                flaws.one_of(&path, name, &["cpu", "hugepages-*", "memory"]);
            }
        }
        amount(name, quantity, &path, flaws);
    }
}

/// Checks the amount of one resource, of a container or a node.
// k8s: validation.go ValidateResourceQuantityValue
pub(super) fn amount(name: &str, quantity: &Quantity, path: &Path<'_>, flaws: &mut Flaws) {
    let Some(amount) = Amount::parse(&quantity.0) else {
        return flaws.invalid(path, &quantity.0, "is not a quantity such as 500m, 2 or 100Mi");
    };
    if amount.is_negative() {
        flaws.invalid(path, &quantity.0, "must be greater than or equal to 0");
    } else if (name == "pods" || is_extended(name)) && !amount.is_whole() {
        flaws.invalid(path, &quantity.0, "must be an integer");
    }
}

/// Returns the reason a text is no valid name of a container's resource.
// k8s: validation.go validateContainerResourceName
fn name_mistake(name: &str) -> Option<&'static str> {
    if let Some(why) = names::mistake(name) {
        return Some(why);
    }
    match name.contains('/') {
        false if is_main(name) || is_huge(name) || name == "ephemeral-storage" => None,
        false => Some(
            "must be cpu, memory, ephemeral-storage, hugepages-SIZE, or the name of an extended \
             resource, which has a domain and a slash",
        ),
        true if is_native(name) || is_extended(name) => None,
        true => Some("must not begin with requests."),
    }
}

fn is_main(name: &str) -> bool {
    matches!(name, "cpu" | "memory")
}

fn is_huge(name: &str) -> bool {
    name.starts_with("hugepages-")
}

// k8s: pkg/apis/core/helper/helpers.go IsNativeResource
fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

// k8s: pkg/apis/core/helper/helpers.go IsExtendedResourceName
fn is_extended(name: &str) -> bool {
    !is_native(name) && !name.starts_with("requests.")
}

// k8s: pkg/apis/core/helper/helpers.go IsOvercommitAllowed
fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge(name)
}
