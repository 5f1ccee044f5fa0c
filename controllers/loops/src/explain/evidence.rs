//! The objects that an explanation needs, as the API server shows them now.
//!
//! Input: answers to lists. Output: [`Evidence`]. Lists are by selector, and what another object
//! controls is left out. All of them are lists, because the manager may list every kind and read
//! few. Pure: the caller sends the requests.

use std::collections::BTreeMap;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{CRON_JOBS, DEPLOYMENTS, JOBS, Kind, PODS, REPLICA_SETS};
use pintle_api_types::request::Request;
use serde_json::Value;

use super::subject::ExplainedKind;

/// The objects that an explanation needs.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// The object; `None` when there is none.
    pub object: Option<Value>,
    /// The ReplicaSets of a Deployment, the Jobs of a CronJob.
    pub children: Vec<Value>,
    /// The pods.
    pub pods: Vec<Value>,
    /// The objects that remain in a namespace.
    pub remaining: Vec<Remaining>,
    /// API groups that discovery cannot read, with the error.
    pub failed_groups: BTreeMap<String, String>,
    /// The lease of the managers, where it is known.
    pub lease: Option<LeaseState>,
    /// Objects in the queue of the garbage collector, where it runs.
    pub collector_queue: Option<usize>,
}

/// Objects of one kind in a namespace.
#[derive(Clone, Debug, Default)]
pub struct Remaining {
    /// The plural with the group, such as `widgets.example.com`.
    pub kind: String,
    /// How many there are.
    pub count: usize,
    /// The name of one of them.
    pub example: String,
    /// The finalizers that objects have, with their number.
    pub finalizers: BTreeMap<String, usize>,
    /// Why they cannot be listed.
    pub failure: Option<String>,
}

impl Remaining {
    /// From the answer to a list.
    pub fn of_list(kind: Kind, list: &Value) -> Self {
        let mut found = Self { kind: format!("{kind:?}"), ..Self::default() };
        for item in list["items"].as_array().into_iter().flatten() {
            found.count += 1;
            found.example = text(&item["metadata"]["name"]).to_owned();
            for finalizer in item["metadata"]["finalizers"].as_array().into_iter().flatten() {
                *found.finalizers.entry(text(finalizer).to_owned()).or_default() += 1;
            }
        }
        found
    }
}

/// The lease of the managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseState {
    /// The namespace and name.
    pub name: String,
    /// The process that holds it; empty when it was released.
    pub holder: String,
    /// It expired so long ago.
    pub expired_seconds: Option<i64>,
}

impl LeaseState {
    /// Nothing is written while no manager leads.
    pub(super) fn sentence(&self) -> Option<String> {
        let Self { name, holder, .. } = self;
        if holder.is_empty() {
            return Some(format!("No controller manager leads: the lease {name} has no holder."));
        }
        let ago = self.expired_seconds?;
        Some(format!(
            "No controller manager leads: the lease {name} of {holder} expired {ago} s ago."
        ))
    }
}

/// The list that has the object alone.
pub fn object(subject: &ExplainedKind, key: &ObjectKey) -> Request {
    let path = subject.kind.path(key.namespace());
    Request::Get { path: format!("{path}?fieldSelector=metadata.name%3D{}", key.name()) }
}

/// The lists of the objects below it: children first, pods second; `None` where there are none.
pub fn dependents(
    subject: &ExplainedKind,
    key: &ObjectKey,
    object: &Value,
) -> (Option<Request>, Option<Request>) {
    let list = |kind, labels: &str| Request::List {
        kind,
        namespace: key.namespace().to_owned(),
        labels: labels.to_owned(),
        only_metadata: false,
    };
    let selector = &object["spec"]["selector"];
    let labels =
        match selector["matchLabels"].is_object() || selector["matchExpressions"].is_array() {
            true => selector_text(selector),
            // Of a ReplicationController.
            false => labels_text(selector),
        };
    match subject.kind {
        kind if kind == DEPLOYMENTS => {
            (Some(list(REPLICA_SETS, &labels)), Some(list(PODS, &labels)))
        }
        kind if kind == CRON_JOBS => (Some(list(JOBS, "")), None),
        _ if selector.is_object() => (None, Some(list(PODS, &labels))),
        _ => (None, None),
    }
}

/// The objects of a list that this one controls.
pub fn owned_by(list: &Value, owners: &[&str]) -> Vec<Value> {
    let is_owned = |item: &&Value| {
        let references = item["metadata"]["ownerReferences"].as_array();
        references
            .into_iter()
            .flatten()
            .any(|owner| owner["controller"] == true && owners.contains(&text(&owner["uid"])))
    };
    list["items"].as_array().into_iter().flatten().filter(is_owned).cloned().collect()
}

fn labels_text(labels: &Value) -> String {
    let labels = labels.as_object().into_iter().flatten();
    let labels = labels.filter_map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
    labels.collect::<Vec<_>>().join(",")
}

/// A label selector as queries have it.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/helpers.go FormatLabelSelector
fn selector_text(selector: &Value) -> String {
    let mut terms = vec![labels_text(&selector["matchLabels"])];
    for term in selector["matchExpressions"].as_array().into_iter().flatten() {
        let key = text(&term["key"]);
        let values = term["values"].as_array().into_iter().flatten().map(text);
        let values = values.collect::<Vec<_>>().join(",");
        terms.push(match text(&term["operator"]) {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "Exists" => key.to_owned(),
            _ => format!("!{key}"),
        });
    }
    terms.retain(|term| !term.is_empty());
    terms.join(",")
}

pub(super) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A number; absent is 0.
pub(super) fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

/// A condition of an object's status.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == kind)
}

/// The condition, if it is true.
pub(super) fn true_condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    condition(object, kind).filter(|condition| condition["status"] == "True")
}
