//! Every flag with its value in force, as `/flagz` lists them.
//!
//! Input: the table, the given flags, the configuration. Output: texts by flag, written as Go's
//! flags print theirs. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/server/flagz

use std::collections::BTreeMap;

use serde_json::Value;

use crate::daemon::Daemon;
use crate::field::at;
use crate::flag::{Flag, FlagKind, FlagTarget};
use crate::given::GivenFlags;

/// Texts by flag.
pub type Listed = BTreeMap<&'static str, String>;

/// The flags without a field: each one's given value, or its default.
pub fn of_own<D: Daemon>(given: &GivenFlags) -> Listed {
    let own = D::FLAGS.flags().filter(|flag| matches!(flag.target, FlagTarget::Own(_)));
    let value = |flag: &Flag| match (given.value(flag.name), flag.default) {
        // Upstream has no type for addresses: the flag is a text.
        (Some(Value::Array(ips)), _) if matches!(flag.kind, FlagKind::Ips) => {
            ips.iter().map(text).collect::<Vec<_>>().join(",")
        }
        (Some(value), _) => text(value),
        (None, "") => flag.kind.zero().to_owned(),
        (None, default) => default.to_owned(),
    };
    own.map(|flag| (flag.name, value(flag))).collect()
}

/// The flags that set a field, with the field's value, wherever that came from.
pub fn of_fields<D: Daemon>(configuration: &D::Configuration) -> Listed {
    let tree = serde_json::to_value(configuration).unwrap_or_default();
    let mut values = BTreeMap::new();
    for flag in D::FLAGS.flags() {
        let FlagTarget::Field(path) = flag.target else { continue };
        let value = at(&tree, path).filter(|value| !value.is_null());
        values.insert(flag.name, value.map_or_else(|| flag.kind.zero().to_owned(), text));
    }
    values
}

/// A value as Go's flags print theirs: `[a,b]`, `k=v,l=w`.
pub fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(","))
        }
        Value::Object(fields) => {
            let pairs = fields.iter().map(|(name, value)| format!("{name}={}", text(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_printed_as_flags_are() {
        for (value, printed) in [
            (json!("x"), "x"),
            (json!(true), "true"),
            (json!(["a", "b"]), "[a,b]"),
            (json!([]), "[]"),
            (json!({"cpu": "1", "memory": "2Gi"}), "cpu=1,memory=2Gi"),
            (Value::Null, ""),
        ] {
            assert_eq!(text(&value), printed);
        }
    }
}
