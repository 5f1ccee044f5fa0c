//! Refusals against those of the Go kubelet.
//!
//! The message of a recorded refusal names the requested, used and allocatable amounts. The same
//! pod on such a node must be refused with the same reason and message, and an admitted pod must be
//! admitted here, too. `PINTLE_RECORDED=DIR` replays another folder of recordings.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::admit;
use pintle_agent_core::admit::{
    AdmissionCandidate, AdmissionNode, AdmissionRefusal, Admitted, TakenResources,
};
use pintle_agent_core::request::sysctl::AllowList;
use pintle_agent_core::types::PodUid;
use pintle_api_types::pod::resources::{Amounts, pod_requests};
use pintle_testbed::recorded;
use serde_json::{Value, json};

/// The kernel's version of the recorded node, new enough for every safe sysctl.
const KERNEL: (u32, u32) = (6, 12);

#[test]
fn recorded_pods_are_admitted_or_rejected_as_by_the_kubelet() {
    let Some(recordings) = recorded::pods() else { return };
    let (mut refused, mut admitted) = (0, 0);
    for (name, recording) in &recordings {
        match replay(name, recording) {
            true => refused += 1,
            false => admitted += 1,
        }
    }
    println!("{refused} refused, {admitted} let in");
    assert!(refused + admitted > 0, "recordings without a single pod");
}

/// Compares; returns whether the pod was refused. A pod that was gone before it was read again is
/// the one of its manifest, admitted if the runtime was asked for a sandbox.
fn replay(name: &str, recording: &Value) -> bool {
    let seen = match &recording["pod_when_seen"] {
        Value::Object(_) => &recording["pod_when_seen"],
        _ => &recording["manifest"],
    };
    let mut object = seen.clone();
    object["status"] = json!({"phase": "Pending"});
    let pod: Pod = serde_json::from_value(object).expect("a pod");
    let said = seen["status"]["message"].as_str().unwrap_or_default();
    let Some(said) = said.strip_prefix("Pod was rejected: ") else {
        let node = node(&pod);
        assert_eq!(admit(&node, &pod, None), Ok(()), "{name} was let in");
        return false;
    };
    let events = recording["events"].as_array().expect("events");
    let mut node = node(&pod);
    let short = MessageFigures::parse(said);
    if let Some(short) = &short {
        match short.resource.as_str() {
            "cpu" => node.allocatable.cpu_millis = short.capacity,
            "memory" => node.allocatable.memory_bytes = short.capacity,
            "ephemeral-storage" => node.allocatable.storage_bytes = short.capacity,
            "pods" => node.allocatable.pods = short.capacity,
            other => {
                node.allocatable.scalar.insert(other.to_owned(), short.capacity);
            }
        }
    }
    let refusal = admit(&node, &pod, short.as_ref()).expect_err("it was refused");
    assert_eq!(refusal.message, said, "{name}");
    assert_eq!(Some(refusal.reason.as_str()), seen["status"]["reason"].as_str(), "{name}");
    assert_eq!(refusal.verdict().message, seen["status"]["message"], "{name}");
    let told = events.iter().any(|event| {
        event["reason"] == refusal.reason.as_str() && event["message"] == refusal.message.as_str()
    });
    assert!(told, "{name}: no such event");
    true
}

fn node(pod: &Pod) -> AdmissionNode {
    let name = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
    // The sysctls that are safe on any node of today.
    let sysctls = AllowList::new(KERNEL, &[]).expect("nothing is allowed besides");
    AdmissionNode { sysctls, ..AdmissionNode::roomy(&name) }
}

fn admit(
    node: &AdmissionNode,
    pod: &Pod,
    short: Option<&MessageFigures>,
) -> Result<(), AdmissionRefusal> {
    let requests = pod_requests(pod);
    let other = short.map(MessageFigures::user);
    let uid = PodUid::from("other");
    let others = TakenResources::of(other.iter().map(|(pod, requests)| Admitted {
        uid: &uid,
        pod,
        requests,
    }));
    admit::admit(node, &others.all(), &AdmissionCandidate { pod, requests: &requests }).map(drop)
}

/// Figures in the message.
struct MessageFigures {
    resource: String,
    used: i64,
    capacity: i64,
}

impl MessageFigures {
    fn parse(message: &str) -> Option<Self> {
        let rest = message.strip_prefix("Node didn't have enough resource: ")?;
        let mut parts = rest.split(", ");
        let resource = parts.next()?.to_owned();
        let mut number = |name: &str| parts.find_map(|part| part.strip_prefix(name)?.parse().ok());
        number("requested: ").map(|_: i64| ())?;
        Some(Self { resource, used: number("used: ")?, capacity: number("capacity: ")? })
    }

    /// A pod that requests the used amount.
    fn user(&self) -> (Arc<Pod>, Amounts) {
        let amount = match self.resource.as_str() {
            "cpu" => format!("{}m", self.used),
            _ => self.used.to_string(),
        };
        let resources = json!({"requests": {self.resource.clone(): amount}});
        let containers = json!([{"name": "c", "resources": resources}]);
        let pod = json!({"metadata": {}, "spec": {"containers": containers}});
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let requests = pod_requests(&pod);
        (Arc::new(pod), requests)
    }
}
