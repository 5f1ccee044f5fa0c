//! The node's conditions: three pressures and Ready, with their times and events.
//!
//! Input: the conditions that the Node object has, the current facts, the time. Output: the changed
//! conditions and the events about changes. Pure.
// k8s: pkg/kubelet/nodestatus/setters.go MemoryPressureCondition, ReadyCondition

pub use crate::eviction::signal::Pressure;
use k8s_openapi::api::core::v1::NodeCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;

/// An event about the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeEvent {
    /// A warning, not a notice.
    pub warning: bool,
    /// The kubelet's reason.
    pub reason: &'static str,
    /// The kubelet's words.
    pub message: String,
}

/// Emits an event about the node.
pub type NodeEvents = std::rc::Rc<dyn Fn(NodeEvent)>;

impl NodeEvent {
    /// The usual event about a change of the node's status.
    pub fn status(name: &str, reason: &'static str) -> Self {
        let message = format!("Node {name} status is now: {reason}");
        Self { warning: false, reason, message }
    }
}

struct Words {
    kind: &'static str,
    reasons: [&'static str; 2],
    messages: [&'static str; 2],
    events: [&'static str; 2],
}

/// Each pressure's words: without it, with it.
const MEMORY: Words = Words {
    kind: "MemoryPressure",
    reasons: ["KubeletHasSufficientMemory", "KubeletHasInsufficientMemory"],
    messages: [
        "kubelet has sufficient memory available",
        "kubelet has insufficient memory available",
    ],
    events: ["NodeHasSufficientMemory", "NodeHasInsufficientMemory"],
};
const DISK: Words = Words {
    kind: "DiskPressure",
    reasons: ["KubeletHasNoDiskPressure", "KubeletHasDiskPressure"],
    messages: ["kubelet has no disk pressure", "kubelet has disk pressure"],
    events: ["NodeHasNoDiskPressure", "NodeHasDiskPressure"],
};
const PID: Words = Words {
    kind: "PIDPressure",
    reasons: ["KubeletHasSufficientPID", "KubeletHasInsufficientPID"],
    messages: ["kubelet has sufficient PID available", "kubelet has insufficient PID available"],
    events: ["NodeHasSufficientPID", "NodeHasInsufficientPID"],
};
const READY: &str = "Ready";

/// Sets all four conditions. `errors` are the reasons why the node is not ready.
pub fn set(
    conditions: &mut Vec<NodeCondition>,
    name: &str,
    pressure: Pressure,
    errors: &[String],
    now: &Time,
) -> Vec<NodeEvent> {
    let pressures = [(&MEMORY, pressure.memory), (&DISK, pressure.disk), (&PID, pressure.pid)];
    let changed = pressures.map(|(words, under)| set_pressure(conditions, words, under, now));
    let ready = set_ready(conditions, errors, now);
    let reasons = changed.into_iter().chain([ready]).flatten();
    reasons.map(|reason| NodeEvent::status(name, reason)).collect()
}

fn set_pressure(
    conditions: &mut Vec<NodeCondition>,
    words: &Words,
    under: bool,
    now: &Time,
) -> Option<&'static str> {
    let at = position(conditions, words.kind).unwrap_or_else(|| {
        conditions.push(NodeCondition {
            type_: words.kind.to_owned(),
            status: "Unknown".to_owned(),
            ..NodeCondition::default()
        });
        conditions.len() - 1
    });
    let condition = &mut conditions[at];
    condition.last_heartbeat_time = Some(now.clone());
    let status = if under { "True" } else { "False" };
    if condition.status == status {
        return None;
    }
    let side = usize::from(under);
    condition.status = status.to_owned();
    condition.reason = Some(words.reasons[side].to_owned());
    condition.message = Some(words.messages[side].to_owned());
    condition.last_transition_time = Some(now.clone());
    Some(words.events[side])
}

/// Ready comes last in the list.
// k8s: https://github.com/kubernetes/kubernetes/issues/16961
fn set_ready(
    conditions: &mut Vec<NodeCondition>,
    errors: &[String],
    now: &Time,
) -> Option<&'static str> {
    let (status, reason, message) = match aggregate(errors) {
        None => ("True", "KubeletReady", "kubelet is posting ready status".to_owned()),
        Some(message) => ("False", "KubeletNotReady", message),
    };
    let mut ready = NodeCondition {
        type_: READY.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: Some(now.clone()),
    };
    let Some(at) = position(conditions, READY) else {
        conditions.push(ready);
        return None;
    };
    let changed = conditions[at].status != ready.status;
    if !changed {
        ready.last_transition_time = conditions[at].last_transition_time.clone();
    }
    let event = if errors.is_empty() { "NodeReady" } else { "NodeNotReady" };
    conditions[at] = ready;
    changed.then_some(event)
}

/// Several errors in one message; a repeated error appears once.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/errors/errors.go aggregate.Error
fn aggregate(errors: &[String]) -> Option<String> {
    let mut seen: Vec<&str> = Vec::new();
    for error in errors {
        if !seen.contains(&error.as_str()) {
            seen.push(error);
        }
    }
    match seen[..] {
        [] => None,
        [one] => Some(one.to_owned()),
        _ => Some(format!("[{}]", seen.join(", "))),
    }
}

fn position(conditions: &[NodeCondition], kind: &str) -> Option<usize> {
    conditions.iter().position(|condition| condition.type_ == kind)
}

/// True if the condition Ready is True.
pub fn is_ready(conditions: &[NodeCondition]) -> bool {
    conditions.iter().any(|condition| condition.type_ == READY && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time(jiff::Timestamp::from_second(seconds).expect("a time"))
    }

    fn reasons(events: &[NodeEvent]) -> Vec<&str> {
        events.iter().map(|event| event.reason).collect()
    }

    #[test]
    fn new_node_emits_events_for_its_pressures_but_not_for_ready() {
        let mut conditions = Vec::new();
        let events = set(&mut conditions, "n", Pressure::default(), &[], &at(1));
        let want = ["NodeHasSufficientMemory", "NodeHasNoDiskPressure", "NodeHasSufficientPID"];
        assert_eq!(reasons(&events), want);
        assert_eq!(events[0].message, "Node n status is now: NodeHasSufficientMemory");
        let kinds: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(kinds, ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"]);
        assert!(is_ready(&conditions));
    }

    #[test]
    fn times_of_transition_move_with_the_status_only() {
        let mut conditions = Vec::new();
        set(&mut conditions, "n", Pressure::default(), &[], &at(1));
        assert!(set(&mut conditions, "n", Pressure::default(), &[], &at(2)).is_empty());
        assert!(conditions.iter().all(|c| c.last_transition_time == Some(at(1))));
        assert!(conditions.iter().all(|c| c.last_heartbeat_time == Some(at(2))));
        let short = Pressure { disk: true, ..Pressure::default() };
        let errors = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        let events = set(&mut conditions, "n", short, &errors, &at(3));
        assert_eq!(reasons(&events), ["NodeHasDiskPressure", "NodeNotReady"]);
        assert_eq!(conditions[1].last_transition_time, Some(at(3)));
        assert_eq!(conditions[0].last_transition_time, Some(at(1)));
        assert_eq!(conditions[3].message.as_deref(), Some("[a, b]"));
        let events = set(&mut conditions, "n", short, &[], &at(4));
        assert_eq!(reasons(&events), ["NodeReady"]);
    }

    #[test]
    fn foreign_conditions_keep_their_position() {
        let other = NodeCondition { type_: "KernelDeadlock".to_owned(), ..Default::default() };
        let mut conditions = vec![other.clone()];
        set(&mut conditions, "n", Pressure::default(), &[], &at(1));
        assert_eq!((conditions.len(), &conditions[0]), (5, &other));
    }
}
