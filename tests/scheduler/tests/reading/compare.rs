//! Results of two readers for one file, and their comparison.

use serde_json::{Map, Value};

/// Result of a reader for a file.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// The object, without empty values.
    Read(Value),
    /// Why it is refused.
    Refused(String),
}

/// Structs without a pointer in the API: Go writes them also when they are empty.
const VALUES: [&str; 12] = [
    "resources",
    "status",
    "metadata",
    "labels",
    "annotations",
    "limits",
    "requests",
    "nodeSelector",
    "matchLabels",
    "overhead",
    "authentication",
    "strategy",
];

/// The same without nulls, empty texts and lists, zeros and `false`: Go leaves them out where they
/// are no pointers.
pub(crate) fn meagre(value: Value) -> Value {
    match value {
        Value::Object(entries) => {
            let entries = entries.into_iter();
            Value::Object(entries.filter_map(|(key, value)| kept(key, value)).collect())
        }
        Value::Array(items) => items.into_iter().map(meagre).collect(),
        other => other,
    }
}

fn kept(key: String, value: Value) -> Option<(String, Value)> {
    let value = meagre(value);
    let is_nothing = match &value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty() && VALUES.contains(&key.as_str()),
    };
    (!is_nothing).then_some((key, value))
}

/// Drops `apiVersion` and `kind` of a configuration.
pub(crate) fn bare_configuration(configuration: Value) -> Value {
    let mut configuration = meagre(configuration);
    if let Value::Object(fields) = &mut configuration {
        fields.retain(|field, _| !["apiVersion", "kind"].contains(&field.as_str()));
    }
    configuration
}

/// Logins by registry, without the form in which upstream's type writes user and password again.
pub(crate) fn bare_logins(logins: Value) -> Value {
    let mut logins = meagre(logins);
    match &mut logins {
        Value::Object(entries) => {
            for entry in entries.values_mut().filter_map(Value::as_object_mut) {
                entry.remove("auth");
            }
            logins
        }
        _ => Value::Object(Map::new()),
    }
}

/// Providers with fields in lower case: upstream's internal type has no JSON names.
pub(crate) fn bare_providers(providers: Value) -> Value {
    fn lower(value: Value) -> Value {
        match value {
            Value::Object(fields) => {
                let lowered =
                    fields.into_iter().map(|(key, value)| (key.to_lowercase(), lower(value)));
                Value::Object(lowered.collect())
            }
            Value::Array(items) => items.into_iter().map(lower).collect(),
            other => other,
        }
    }
    let mut providers = meagre(lower(providers));
    if let Value::Object(fields) = &mut providers {
        fields.retain(|field, _| field == "providers");
    }
    providers
}

/// Drops the fields of a pod that each agent generates.
pub(crate) fn bare_pod(pod: Value) -> Value {
    let mut pod = meagre(pod);
    if let Value::Object(fields) = &mut pod {
        // Neither reads a status from a file to act upon it.
        fields.retain(|field, _| !["status", "apiVersion", "kind"].contains(&field.as_str()));
    }
    if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        let own = ["kubernetes.io/config.hash", "kubernetes.io/config.source"];
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| !own.contains(&key.as_str()));
        }
        if metadata.get("annotations") == Some(&Value::Object(Map::new())) {
            metadata.remove("annotations");
        }
    }
    pod
}

/// Paths at which two objects differ, each with both values; none if they are equal.
pub(crate) fn differences(path: &str, kubelet: &Value, ours: &Value) -> Vec<String> {
    match (kubelet, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
            let of =
                |map: &Map<String, Value>, key: &str| map.get(key).cloned().unwrap_or_default();
            let each = keys
                .into_iter()
                .flat_map(|key| differences(&format!("{path}.{key}"), &of(a, key), &of(b, key)));
            each.collect()
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.flat_map(|(at, (a, b))| differences(&format!("{path}[{at}]"), a, b)).collect()
        }
        (a, b) if a == b || (a.is_number() && a.as_f64() == b.as_f64()) => Vec::new(),
        (a, b) => vec![format!("{path}: the kubelet has {a}, ours {b}")],
    }
}
