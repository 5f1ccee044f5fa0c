//! The generation of a DaemonSet's template, which its pods carry as a label.
//!
//! Input: a DaemonSet, and the stored one for updates. Output: the same with the annotation that
//! counts changes of the template; clients cannot change it. Pure.
// k8s: pkg/apis/apps/v1/conversion.go Convert_apps_DaemonSet_To_v1_DaemonSet
// k8s: pkg/registry/apps/daemonset/strategy.go PrepareForUpdate

use pintle_api_types::kind::{self, Kind};
use serde_json::Value;

use crate::meta;

const ANNOTATION: &str = "deprecated.daemonset.template.generation";

pub(crate) fn count_template(kind: Kind, object: &mut Value, old: Option<&Value>) {
    if kind != kind::DAEMON_SETS {
        return;
    }
    let generation = match old {
        None => of(object).max(1),
        Some(old) => {
            let is_changed = old["spec"]["template"] != object["spec"]["template"];
            of(old) + i64::from(is_changed)
        }
    };
    let annotations = meta::child(&mut object["metadata"], "annotations");
    annotations.insert(ANNOTATION.to_owned(), generation.to_string().into());
}

fn of(object: &Value) -> i64 {
    let text = object["metadata"]["annotations"][ANNOTATION].as_str();
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Removes the annotation from metadata that is answered alone: only conversion adds it.
pub(crate) fn hide_count(kind: Kind, object: &mut Value) {
    if kind != kind::DAEMON_SETS {
        return;
    }
    let annotations = meta::child(&mut object["metadata"], "annotations");
    annotations.remove(ANNOTATION);
    if annotations.is_empty() {
        meta::set(object, "annotations", Value::Null);
    }
}
