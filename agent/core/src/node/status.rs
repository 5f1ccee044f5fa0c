//! The intended Node object: its status, labels and annotations.
//!
//! Input: [`StatusFacts`], the Node object that the API server has (or a new one), the time. Output:
//! the object changed in place, in the kubelet's order of setters, and events. Pure.
// k8s: pkg/kubelet/kubelet_node_status.go defaultNodeStatusFuncs, updateNode, initialNode

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSwapStatus, NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::addresses;
use super::capacity;
use super::conditions::{self, NodeEvent, Pressure};
use super::machine::HostAddresses;
use super::machine::MachineFacts;
use super::runtime_state::RuntimeState;
use super::settings::NodeSettings;
use pintle_api_types::ids::Now;
use serde::{Deserialize, Serialize};

/// Annotation of a node for which the attach-detach controller works.
pub const CONTROLLER_ATTACH: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
/// Names of one image in the status.
const NAMES_PER_IMAGE_MAX: usize = 5;
const LABEL_HOSTNAME: &str = "kubernetes.io/hostname";
const LABEL_OS: &str = "kubernetes.io/os";
const LABEL_ARCH: &str = "kubernetes.io/arch";

/// An image of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeImage {
    /// Id in the runtime; orders images of one size.
    pub id: String,
    /// Digests, then tags.
    pub names: Vec<String>,
    /// Size in bytes.
    pub bytes: i64,
}

/// The intended `volumesInUse` of the Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InUse {
    /// Counts the reports. The use of a volume is reported once a report is written that came
    /// not before the volume: an earlier one may name it from an earlier use, and a write on its way
    /// take it off.
    pub number: u64,
    /// Names of volumes.
    pub names: BTreeSet<String>,
}

/// Everything that the status is made of.
#[derive(Clone, Debug, Default)]
pub struct StatusFacts {
    /// The configuration.
    pub settings: NodeSettings,
    /// The machine.
    pub machine: MachineFacts,
    /// `containerd://2.1.9`.
    pub runtime_version: String,
    /// The last state that the runtime reported.
    pub runtime: RuntimeState,
    /// The host's addresses.
    pub host: HostAddresses,
    /// Images, largest first.
    pub images: Vec<NodeImage>,
    /// The node's pressure conditions.
    pub pressure: Pressure,
    /// Why no volume can be mounted yet.
    pub storage_error: Option<String>,
    /// Why no pod is taken any more: the node shuts down.
    pub shutdown_error: Option<String>,
    /// Attached volumes in use; `None` until they are known.
    pub volumes_in_use: Option<InUse>,
}

/// A Node object for registration.
pub fn initial(facts: &StatusFacts, now: Now) -> (Node, Vec<NodeEvent>) {
    let settings = &facts.settings;
    let arch = facts.machine.architecture.to_owned();
    let linux = "linux".to_owned();
    let mut labels: BTreeMap<String, String> = [
        (LABEL_HOSTNAME, settings.name.clone()),
        (LABEL_OS, linux.clone()),
        (LABEL_ARCH, arch.clone()),
        ("beta.kubernetes.io/os", linux),
        ("beta.kubernetes.io/arch", arch),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into();
    labels.extend(settings.labels.clone());
    let mut node = Node::default();
    node.metadata.name = Some(settings.name.clone());
    node.metadata.labels = Some(labels);
    if settings.controller_attach_detach {
        let annotation = (CONTROLLER_ATTACH.to_owned(), "true".to_owned());
        node.metadata.annotations = Some([annotation].into());
    }
    node.spec = Some(NodeSpec {
        taints: Some(settings.taints.clone()).filter(|taints| !taints.is_empty()),
        provider_id: settings.provider_id.clone(),
        ..NodeSpec::default()
    });
    let events = set(facts, &mut node, now);
    (node, events)
}

/// Brings labels, annotations and status of a Node object up to date.
pub fn update(facts: &StatusFacts, node: &mut Node, now: Now) -> Vec<NodeEvent> {
    let labels = node.metadata.labels.get_or_insert_default();
    let required = [(LABEL_OS, "linux"), (LABEL_ARCH, facts.machine.architecture)];
    for (label, value) in required {
        if labels.get(label).is_none_or(|present| present != value) {
            labels.insert(label.to_owned(), value.to_owned());
        }
    }
    set(facts, node, now)
}

/// Runs every setter, in upstream's order.
fn set(facts: &StatusFacts, node: &mut Node, now: Now) -> Vec<NodeEvent> {
    let mut status = node.status.take().unwrap_or_default();
    set_addresses(facts, node, &mut status);
    let mut events = Vec::new();
    set_machine(facts, &mut status, &mut events);
    let system = status.node_info.get_or_insert_default();
    system.kernel_version.clone_from(&facts.machine.kernel_version);
    system.os_image.clone_from(&facts.machine.os_image);
    system.container_runtime_version.clone_from(&facts.runtime_version);
    system.kubelet_version.clone_from(&facts.settings.version);
    system.kube_proxy_version.clear();
    system.operating_system = "linux".to_owned();
    system.architecture = facts.machine.architecture.to_owned();
    let port = DaemonEndpoint { port: facts.settings.port };
    status.daemon_endpoints = Some(NodeDaemonEndpoints { kubelet_endpoint: Some(port) });
    status.images = images(facts);
    if facts.settings.report_handlers {
        let handlers = facts.runtime.handlers.clone();
        status.runtime_handlers = Some(handlers).filter(|handlers| !handlers.is_empty());
    }
    if facts.runtime.features.is_some() {
        status.features.clone_from(&facts.runtime.features);
    }
    let mut errors = facts.runtime.errors(now.mono);
    errors.extend(facts.storage_error.clone());
    errors.extend(facts.shutdown_error.clone());
    errors.extend(missing(facts, &status));
    let conditions = status.conditions.get_or_insert_default();
    let name = &facts.settings.name;
    let time = Time(now.wall.to_seconds());
    events.extend(conditions::set(conditions, name, facts.pressure, &errors, &time));
    if let Some(volumes) = &facts.volumes_in_use {
        let names: Vec<String> = volumes.names.iter().cloned().collect();
        status.volumes_in_use = Some(names).filter(|names| !names.is_empty());
    }
    let declared = facts.settings.declared_features.clone();
    if !declared.is_empty() {
        status.declared_features = Some(declared);
    }
    node.status = Some(status);
    events
}

/// Sets the addresses. Unknown addresses leave those of the object; the reader of the addresses
/// reports the failure.
fn set_addresses(facts: &StatusFacts, node: &mut Node, status: &mut NodeStatus) {
    let present = status.addresses.clone().unwrap_or_default();
    let Ok(decided) = addresses::decide(&facts.settings, &facts.host, &present) else { return };
    match addresses::provided_ip(&facts.settings) {
        Some(ip) => {
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(addresses::PROVIDED_IP.to_owned(), ip);
        }
        None => {
            if let Some(annotations) = &mut node.metadata.annotations {
                annotations.remove(addresses::PROVIDED_IP);
            }
        }
    }
    if let Some(addresses) = decided {
        status.addresses = Some(addresses);
    }
}

fn set_machine(facts: &StatusFacts, status: &mut NodeStatus, events: &mut Vec<NodeEvent>) {
    let machine = &facts.machine;
    let system: &mut NodeSystemInfo = status.node_info.get_or_insert_default();
    system.machine_id.clone_from(&machine.machine_id);
    system.system_uuid.clone_from(&machine.system_uuid);
    if !system.boot_id.is_empty() && system.boot_id != machine.boot_id {
        let (name, boot) = (&facts.settings.name, &machine.boot_id);
        let message = format!("Node {name} has been rebooted, boot id: {boot}");
        events.push(NodeEvent { warning: true, reason: "Rebooted", message });
    }
    system.boot_id.clone_from(&machine.boot_id);
    if machine.swap_bytes > 0 {
        system.swap = Some(NodeSwapStatus { capacity: Some(machine.swap_bytes) });
    }
    let settings = &facts.settings.capacity;
    let capacity = capacity::capacity(settings, machine);
    let allocatable = capacity::allocatable(settings, &capacity);
    let all = capacity::merged(status.capacity.take(), &capacity);
    let mut left = status.allocatable.take().unwrap_or_default();
    left.retain(|resource, _| all.contains_key(resource) || !capacity::is_extended(resource));
    // Resources advertised by hand are allocatable in full.
    let others = all.iter().filter(|(resource, _)| !capacity.contains_key(*resource));
    left.extend(others.map(|(resource, amount)| (resource.clone(), amount.clone())));
    status.allocatable = Some(capacity::merged(Some(left), &allocatable));
    status.capacity = Some(all);
}

fn images(facts: &StatusFacts) -> Option<Vec<ContainerImage>> {
    let limit = facts.settings.images_max.unwrap_or(usize::MAX);
    // Empty or zero fields are left out, because an API server returns them as absent.
    let of = |image: &NodeImage| {
        let names: Vec<_> = image.names.iter().take(NAMES_PER_IMAGE_MAX).cloned().collect();
        ContainerImage {
            names: Some(names).filter(|names| !names.is_empty()),
            size_bytes: Some(image.bytes).filter(|bytes| *bytes != 0),
        }
    };
    let images: Vec<_> = facts.images.iter().take(limit).map(of).collect();
    Some(images).filter(|images| !images.is_empty())
}

/// Resources that a node must have.
fn missing(facts: &StatusFacts, status: &NodeStatus) -> Option<String> {
    let mut needed = vec!["cpu", "memory", "pods"];
    if facts.settings.capacity.storage_isolation {
        needed.push("ephemeral-storage");
    }
    let has = |resource: &&str| status.capacity.as_ref().is_some_and(|c| c.contains_key(*resource));
    needed.retain(|resource| !has(resource));
    (!needed.is_empty())
        .then(|| format!("missing node capacity for resources: {}", needed.join(", ")))
}

/// Sorts as the kubelet does: by size, then by id, both falling.
// k8s: pkg/kubelet/util/sliceutils/sliceutils.go ByImageSize
pub fn sort_images(images: &mut [NodeImage]) {
    images.sort_by(|a, b| (b.bytes, &b.id).cmp(&(a.bytes, &a.id)));
}

/// True if two objects differ in a field that this agent writes, heartbeat times apart.
// k8s: pkg/kubelet/kubelet_node_status.go nodeStatusHasChanged
pub fn differs(old: &Node, new: &Node) -> bool {
    let quiet = |node: &Node| {
        let mut status = node.status.clone().unwrap_or_default();
        let mut conditions = status.conditions.take().unwrap_or_default();
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        conditions.iter_mut().for_each(|condition| condition.last_heartbeat_time = None);
        (status, conditions)
    };
    old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || quiet(old) != quiet(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_api_types::ids::Mono;
    use serde_json::Value;

    /// As Go's encoding leaves them out, but for `names` of images, which is null.
    fn drop_empty(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.values_mut().for_each(drop_empty);
                fields.retain(|_, value| {
                    let none = [Value::Null, Value::from(0), Value::Array(Vec::new())];
                    !none.contains(value)
                });
            }
            Value::Array(items) => items.iter_mut().for_each(drop_empty),
            _ => {}
        }
    }

    #[test]
    fn node_status_read_back_from_the_api_server_has_no_difference() {
        let image = |id: &str, names: &[&str], bytes| NodeImage {
            id: id.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes,
        };
        let images = vec![image("b", &["b:1"], 7), image("untagged", &[], 5), image("a", &[], 0)];
        let facts = StatusFacts { images, ..StatusFacts::default() };
        let now = Now { mono: Mono(0), ..Now::default() };
        let (node, _) = initial(&facts, now);
        let mut text = serde_json::to_value(&node).expect("JSON");
        drop_empty(&mut text["status"]["images"]);
        let old: Node = serde_json::from_value(text).expect("a node");
        let mut new = old.clone();
        update(&facts, &mut new, now);
        assert!(!differs(&old, &new), "{new:?}");
        let count = new.status.and_then(|status| status.images).map(|images| images.len());
        assert_eq!(count, Some(3));
    }
}
