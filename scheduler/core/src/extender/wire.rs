//! JSON of requests to extenders and their answers, with Go's field names.
//!
//! Names of answers are read as Go reads them, whatever their case.
// k8s: staging/src/k8s.io/kube-scheduler/extender/v1/types.go

use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{Node, Pod};
use serde_json::{Value, json};

use super::{ExtenderError, Victims};
use crate::pod_fields::PodRef;

/// Scores of extenders reach ten, those of plugins a hundred.
const SCALE: i64 = 10;

/// Builds the nodes sent to an extender: names, or whole objects.
pub fn nodes(pod: &Pod, names: &[Rc<str>], objects: Option<&[Rc<Node>]>) -> Value {
    let list = objects.map(|objects| {
        let items: Vec<&Node> = objects.iter().map(|node| &**node).collect();
        json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": items})
    });
    let names: Vec<&str> = names.iter().map(|name| &**name).collect();
    let names = list.is_none().then_some(names);
    json!({"Pod": pod, "Nodes": list, "NodeNames": names})
}

/// A binding.
pub fn binding(pod: &PodRef, node: &str) -> Value {
    json!({"PodName": pod.key.name(), "PodNamespace": pod.key.namespace(),
        "PodUID": &*pod.uid, "Node": node})
}

/// Builds the victims by node: uids alone, or whole pods.
pub fn victims(pod: &Pod, of: &BTreeMap<String, Victims>, uids_alone: bool) -> Value {
    let one = |victims: &Victims| {
        let pods: Vec<Value> = victims.pods.iter().map(|pod| victim(pod, uids_alone)).collect();
        json!({"Pods": pods, "NumPDBViolations": victims.violations})
    };
    let all: BTreeMap<&str, Value> = of.iter().map(|(node, v)| (node.as_str(), one(v))).collect();
    let (whole, meta) = if uids_alone { (None, Some(all)) } else { (Some(all), None) };
    json!({"Pod": pod, "NodeNameToVictims": whole, "NodeNameToMetaVictims": meta})
}

fn victim(pod: &PodRef, uid_alone: bool) -> Value {
    if uid_alone {
        return json!({"UID": &*pod.uid});
    }
    json!({"metadata": {"namespace": pod.key.namespace(), "name": pod.key.name(),
        "uid": &*pod.uid}})
}

/// Victims on a node, as an extender returns them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaVictims {
    /// Their uids.
    pub uids: Vec<String>,
    /// Number of victims that violate a disruption budget.
    pub violations: i64,
}

/// Answer of a filter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Nodes that it accepts.
    pub left: Vec<String>,
    /// Rejected nodes: true if preemption would not help, and the reason.
    pub failed: HashMap<String, (bool, String)>,
}

/// Returns a field of an object, ignoring case.
fn field<'a>(of: &'a Value, name: &str) -> Option<&'a Value> {
    let fields = of.as_object()?;
    let found = fields.get(name).or_else(|| {
        fields.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    });
    found.filter(|value| !value.is_null())
}

fn text(of: &Value, name: &str) -> String {
    field(of, name).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns the error that an answer reports.
pub fn error(answer: &Value) -> Result<(), ExtenderError> {
    match text(answer, "Error") {
        none if none.is_empty() => Ok(()),
        error => Err(ExtenderError::Answered(error)),
    }
}

/// Parses the answer of a filter; `by_name` says if nodes were sent as names or as objects.
///
/// # Errors
/// The error that the answer reports, or a node that was not sent.
// k8s: pkg/scheduler/extender.go Filter
pub fn filtered(
    answer: &Value,
    by_name: bool,
    asked: &[Rc<str>],
    url: &str,
) -> Result<Filtered, ExtenderError> {
    error(answer)?;
    let mut found = Filtered::default();
    let names = field(answer, "NodeNames").filter(|_| by_name).and_then(Value::as_array);
    if let Some(names) = names {
        let known: HashSet<&str> = asked.iter().map(|name| &**name).collect();
        for name in names {
            let name = name.as_str().unwrap_or_default();
            if !known.contains(name) {
                let (url, node) = (url.to_owned(), name.to_owned());
                return Err(ExtenderError::UnknownNode { url, node });
            }
            found.left.push(name.to_owned());
        }
    } else if let Some(list) = field(answer, "Nodes") {
        let items = list["items"].as_array().into_iter().flatten();
        let names = items.filter_map(|node| node["metadata"]["name"].as_str());
        found.left.extend(names.map(str::to_owned));
    }
    // Unresolvable nodes come second, and win.
    for (name, is_final) in [("FailedNodes", false), ("FailedAndUnresolvableNodes", true)] {
        let failed = field(answer, name).and_then(Value::as_object).into_iter().flatten();
        let failed = failed.map(|(node, why)| {
            (node.clone(), (is_final, why.as_str().unwrap_or_default().to_owned()))
        });
        found.failed.extend(failed);
    }
    Ok(found)
}

/// Parses scores to add to nodes.
// k8s: pkg/scheduler/schedule_one.go prioritizeNodes
pub fn scores(answer: &Value, weight: i64) -> Vec<(String, i64)> {
    let all = answer.as_array().into_iter().flatten();
    let one = |of: &Value| {
        let score = field(of, "Score").and_then(Value::as_i64).unwrap_or(0);
        (text(of, "Host"), score.saturating_mul(weight).saturating_mul(SCALE))
    };
    all.map(one).collect()
}

/// Parses the victims by node.
pub fn chosen_victims(answer: &Value) -> BTreeMap<String, MetaVictims> {
    let all = field(answer, "NodeNameToMetaVictims").and_then(Value::as_object);
    let one = |(node, victims): (&String, &Value)| {
        let pods = field(victims, "Pods").and_then(Value::as_array).into_iter().flatten();
        let uids = pods.map(|pod| text(pod, "UID")).collect();
        let violations = field(victims, "NumPDBViolations").and_then(Value::as_i64).unwrap_or(0);
        (node.clone(), MetaVictims { uids, violations })
    };
    all.into_iter().flatten().map(one).collect()
}
