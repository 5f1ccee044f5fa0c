//! Defaults that the API server sets for absent fields.
//!
//! Input: an object of any kind. Output: the same with the defaults that controllers read. It is
//! applied to every object that is written, because decoding does so in the real server; applying
//! it twice changes nothing. Pure.

mod core;
mod template;
mod workloads;

use pintle_api_types::kind::{self, Kind};
use serde_json::{Map, Value};

/// Sets the defaults of an object.
pub(crate) fn apply(kind: Kind, object: &mut Value) {
    match (kind.group, kind.plural) {
        ("apps", "deployments") => workloads::deployment(object),
        ("apps", "replicasets") => workloads::replica_set(object),
        ("apps", "statefulsets") => workloads::stateful_set(object),
        ("apps", "daemonsets") => workloads::daemon_set(object),
        ("batch", "jobs") => workloads::job(object),
        ("batch", "cronjobs") => workloads::cron_job(object),
        ("", "replicationcontrollers") => workloads::replication_controller(object),
        ("", "pods") => template::pod(object),
        ("coordination.k8s.io", "leases") => drop(spec(object)),
        ("autoscaling", "horizontalpodautoscalers") => {
            or(spec(object), "minReplicas", 1);
        }
        _ if kind == kind::NODES => core::node(object),
        ("", _) => core::apply(kind.plural, object),
        _ => {}
    }
}

/// The spec, made if it is absent.
fn spec(object: &mut Value) -> &mut Map<String, Value> {
    crate::meta::child(object, "spec")
}

/// Sets a field that is absent; an empty text is absence.
fn or<'a>(
    fields: &'a mut Map<String, Value>,
    name: &str,
    value: impl Into<Value>,
) -> &'a mut Value {
    let field = fields.entry(name).or_insert(Value::Null);
    if field.is_null() || field.as_str() == Some("") {
        *field = value.into();
    }
    field
}

/// A field that is an object, made if it is absent.
fn within<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let field = fields.entry(name).or_insert(Value::Null);
    if !field.is_object() {
        *field = Value::Object(Map::new());
    }
    field.as_object_mut().expect("made an object above")
}
