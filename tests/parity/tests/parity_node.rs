//! Writes about the Node object against what the Go kubelet wrote.
//!
//! The recording holds what one node sent: its registration, and patches of its status. The facts
//! are rebuilt from the registration and every write is made again from them:
//!   create           the object for registration, with the conditions' errors of that moment
//!   patch            the change from the object before it to the one after it
//!   create, refused  a restart; the existing object has conditions that another client set
//! `PINTLE_RECORDED=DIR` replays another folder of recordings. A missing file fails
//! unless the folder says that it was not recorded.
//! An empty patch is what the kubelet sends when nothing changed but the period is over within one
//! second; ours sends nothing then.

use k8s_openapi::api::core::v1::{Node, NodeCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pintle_agent_cluster::node::csi_node;
use pintle_agent_core::eviction::threshold::ThresholdLevel;
use pintle_agent_core::node::machine::{HostAddresses, MachineFacts};
use pintle_agent_core::node::patch;
use pintle_agent_core::node::settings::{CapacitySettings, NodeSettings};
use pintle_agent_core::node::status;
use pintle_agent_core::node::status::{NodeImage, StatusFacts};
use pintle_agent_core::types::{Mono, Now, UnixNanos};
use pintle_api_types::quantity::Amount;
use pintle_cri::v1;
use pintle_testbed::recorded;
use serde_json::{Value, json};

#[test]
fn every_recorded_write_about_the_node_is_made_again() {
    let Some(writes) = recorded::json("node-writes.json") else { return };
    let writes = writes.as_array().expect("a list of writes");
    let mut node: Option<Node> = None;
    let mut compared = 0;
    for (index, write) in writes.iter().enumerate() {
        let body = &write["body"];
        match (write["verb"].as_str(), &node) {
            (Some("create"), _) => {
                let made = registration(body);
                let left = serde_json::to_value(&made).expect("JSON");
                assert_eq!(&without_nulls(left), body, "write {index}: registration");
                let refused = write["code"] == 409;
                node = Some(if refused { unheard(made) } else { made });
                compared += 1;
            }
            (Some("patch"), Some(old)) => {
                let new = patched(old, body);
                if body != &json!({}) {
                    let beat = beat(body).expect("a heartbeat");
                    let mut ours = old.clone();
                    status::update(&facts(old, None), &mut ours, at(beat));
                    let said = patch::status(old, &ours).expect("a patch");
                    assert_eq!(&said, body, "write {index}: patch");
                    compared += 1;
                }
                node = Some(new);
            }
            (verb, _) => panic!("write {index}: {verb:?} of nothing"),
        }
    }
    println!("{compared} of {} writes compared", writes.len());
    assert!(compared > 0, "a recording without a single write");
}

/// The object for registration, from the facts that the recorded one shows.
fn registration(body: &Value) -> Node {
    let recorded: Node = serde_json::from_value(body.clone()).expect("a node");
    let ready = body["status"]["conditions"].as_array().expect("conditions").last().expect("Ready");
    let error = (ready["status"] == "False").then(|| ready["message"].as_str().expect("why"));
    let now = time(ready["lastHeartbeatTime"].as_str().expect("a time"));
    status::initial(&facts(&recorded, error), at(now)).0
}

/// A node after an outage of its agent: the node controller has set all conditions to Unknown.
fn unheard(mut node: Node) -> Node {
    let conditions = node.status.as_mut().and_then(|status| status.conditions.as_mut());
    for condition in conditions.expect("conditions") {
        *condition = NodeCondition {
            type_: condition.type_.clone(),
            status: "Unknown".to_owned(),
            reason: Some("NodeStatusUnknown".to_owned()),
            message: Some("Kubelet stopped posting node status.".to_owned()),
            last_heartbeat_time: Some(Time("2020-01-01T00:00:00Z".parse().expect("a time"))),
            last_transition_time: Some(Time("2020-01-01T00:00:00Z".parse().expect("a time"))),
        };
    }
    node
}

/// Facts from which a recorded node was built.
fn facts(node: &Node, error: Option<&str>) -> StatusFacts {
    let status = node.status.clone().expect("a status");
    let info = status.node_info.expect("info");
    let amount = |name: &str| {
        let capacity = status.capacity.as_ref().expect("capacity");
        Amount::parse(&capacity.get(name)?.0).map(Amount::units)
    };
    let address = |kind: &str| {
        let addresses = status.addresses.as_ref().expect("addresses");
        addresses.iter().find(|a| a.type_ == kind).map(|a| a.address.clone()).expect("one")
    };
    let ip = address("InternalIP").parse().expect("an address");
    let handlers = status.runtime_handlers.unwrap_or_default();
    let features = status.features.and_then(|features| features.supplemental_groups_policy);
    let mut facts = StatusFacts {
        settings: NodeSettings {
            name: address("Hostname"),
            node_ips: vec![ip],
            controller_attach_detach: true,
            capacity: CapacitySettings {
                pods_max: amount("pods").expect("pods"),
                storage_isolation: true,
                eviction: [
                    ("memory", ThresholdLevel::Amount(Amount::from_bytes(100 << 20))),
                    ("ephemeral-storage", ThresholdLevel::Part(0.1)),
                ]
                .into(),
                ..CapacitySettings::default()
            },
            port: status.daemon_endpoints.and_then(|d| d.kubelet_endpoint).expect("a port").port,
            version: info.kubelet_version,
            declared_features: status.declared_features.unwrap_or_default(),
            report_handlers: true,
            ..NodeSettings::default()
        },
        machine: MachineFacts {
            machine_id: info.machine_id,
            system_uuid: info.system_uuid,
            boot_id: info.boot_id,
            kernel_version: info.kernel_version,
            os_image: info.os_image,
            architecture: "amd64",
            cpus: amount("cpu").expect("cpu"),
            cpu_list: String::new(),
            tasks_max: None,
            memory_bytes: amount("memory").expect("memory"),
            swap_bytes: 0,
            hugepages: vec![(2 << 20, 0), (1 << 30, 0)],
            storage_bytes: amount("ephemeral-storage"),
            plugin_resources: Vec::new(),
        },
        runtime_version: info.container_runtime_version,
        host: HostAddresses { interfaces: vec![ip], ..HostAddresses::default() },
        images: status
            .images
            .unwrap_or_default()
            .into_iter()
            .map(|image| NodeImage {
                id: String::new(),
                names: image.names.unwrap_or_default(),
                bytes: image.size_bytes.unwrap_or(0),
            })
            .collect(),
        storage_error: error.map(str::to_owned),
        ..StatusFacts::default()
    };
    if let Some(error) = error {
        assert_eq!(error, csi_node::NOT_YET, "an error that the replay does not know");
    }
    facts.runtime.observe(&runtime_answer(&handlers, features), Mono::default());
    facts
}

fn runtime_answer(
    handlers: &[k8s_openapi::api::core::v1::NodeRuntimeHandler],
    groups: Option<bool>,
) -> v1::StatusResponse {
    let ready = |kind: &str| v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status: true,
        ..Default::default()
    };
    let conditions = vec![ready("RuntimeReady"), ready("NetworkReady")];
    let handlers = handlers.iter().rev().map(|handler| {
        let features = handler.features.clone().unwrap_or_default();
        v1::RuntimeHandler {
            name: handler.name.clone().unwrap_or_default(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: features.recursive_read_only_mounts.unwrap_or(false),
                user_namespaces: features.user_namespaces.unwrap_or(false),
            }),
        }
    });
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus { conditions }),
        runtime_handlers: handlers.collect(),
        features: groups.map(|groups| v1::RuntimeFeatures {
            supplemental_groups_policy: groups,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// The node after a recorded patch, as far as patches of this recording go: conditions by type.
fn patched(old: &Node, body: &Value) -> Node {
    let mut node = serde_json::to_value(old).expect("JSON");
    let changes = body["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array_mut().expect("conditions");
    for change in changes {
        let kind = &change["type"];
        let condition = conditions.iter_mut().find(|c| &c["type"] == kind).expect("the condition");
        for (field, value) in change.as_object().expect("an object") {
            condition[field] = value.clone();
        }
    }
    serde_json::from_value(node).expect("a node")
}

fn beat(body: &Value) -> Option<UnixNanos> {
    let first = body["status"]["conditions"].as_array()?.first()?;
    first["lastHeartbeatTime"].as_str().map(time)
}

/// The runtime answered at the start of the monotonic clock, which does not go on here.
fn at(wall: UnixNanos) -> Now {
    Now { wall, mono: Mono::default() }
}

fn time(text: &str) -> UnixNanos {
    let time: k8s_openapi::jiff::Timestamp = text.parse().expect("a time");
    UnixNanos(i64::try_from(time.as_nanosecond()).expect("this century"))
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(fields.map(|(name, value)| (name, without_nulls(value))).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}
