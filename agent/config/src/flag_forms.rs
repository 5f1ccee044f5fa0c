//! Forms of values that only flags of the kubelet have: thresholds, headers, taints, reservations.

use serde_json::{Map, Value, json};

use pintle_config::flag::Form;
use pintle_config::forms::{FormError, add_to, items, number, pairs};

/// signal<quantity,…
pub(super) const THRESHOLDS: Form = Form {
    name: "signal<quantity,...",
    example: "memory.available<1Gi",
    read: |text| Ok(json!(pairs(items(text), '<')?)),
};

/// name:value,…; the same name may come again
pub(super) const HEADERS: Form = Form { name: "name:value,...", example: "a:b", read: headers };

/// key=value:effect,…
pub(super) const TAINTS: Form =
    Form { name: "key=value:effect,...", example: "a=b:NoSchedule", read: taints };

/// node:type=quantity,…
pub(super) const RESERVED_MEMORY: Form =
    Form { name: "node:type=quantity,...", example: "0:memory=1Gi", read: reserved_memory };

fn unlike(item: &str, form: &'static str) -> FormError {
    FormError::Item { item: item.to_owned(), form }
}

fn headers(text: &str) -> Result<Value, FormError> {
    let mut headers = Map::new();
    for item in items(text) {
        let (name, value) = item.split_once(':').ok_or_else(|| unlike(item, "name:value"))?;
        add_to(&mut headers, name.trim().to_owned(), json!([value.trim()]));
    }
    Ok(Value::Object(headers))
}

fn taints(text: &str) -> Result<Value, FormError> {
    let taint = |item: &str| {
        let problem = || unlike(item, "key=value:effect");
        let (key, effect) = item.rsplit_once(':').ok_or_else(problem)?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        Ok(json!({ "key": key, "value": value, "effect": effect }))
    };
    items(text).map(taint).collect::<Result<Vec<_>, FormError>>().map(Value::Array)
}

fn reserved_memory(text: &str) -> Result<Value, FormError> {
    let reservation = |part: &str| {
        let problem = || unlike(part, "node:type=quantity");
        let (node, limits) = part.split_once(':').ok_or_else(problem)?;
        let node = number(node.trim(), 0, i32::MAX.into())?;
        Ok(json!({ "numaNode": node, "limits": pairs(items(limits), '=')? }))
    };
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(reservation).collect::<Result<Vec<_>, FormError>>().map(Value::Array)
}
