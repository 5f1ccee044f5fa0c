//! Forms of values that only flags of the kubelet have: thresholds, headers, taints, reservations.

use serde_json::{Map, Value, json};

use pintle_config::flag::Form;
use pintle_config::forms::{add_to, items, number, pairs};

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

fn headers(text: &str) -> Result<Value, String> {
    let mut headers = Map::new();
    for item in items(text) {
        let (name, value) = item
            .split_once(':')
            .ok_or_else(|| format!("{item:?} is not of the form name:value"))?;
        add_to(&mut headers, name.trim().to_owned(), json!([value.trim()]));
    }
    Ok(Value::Object(headers))
}

fn taints(text: &str) -> Result<Value, String> {
    let taint = |item: &str| {
        let problem = || format!("{item:?} is not of the form key=value:effect");
        let (key, effect) = item.rsplit_once(':').ok_or_else(problem)?;
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        Ok(json!({ "key": key, "value": value, "effect": effect }))
    };
    items(text).map(taint).collect::<Result<Vec<_>, String>>().map(Value::Array)
}

fn reserved_memory(text: &str) -> Result<Value, String> {
    let reservation = |part: &str| {
        let problem = || format!("{part:?} is not of the form node:type=quantity");
        let (node, limits) = part.split_once(':').ok_or_else(problem)?;
        let node = number(node.trim(), 0, i32::MAX.into())?;
        Ok(json!({ "numaNode": node, "limits": pairs(items(limits), '=')? }))
    };
    let parts = text.split(';').map(str::trim).filter(|part| !part.is_empty());
    parts.map(reservation).collect::<Result<Vec<_>, String>>().map(Value::Array)
}
