//! Field selectors such as `metadata.name=a,spec.nodeName!=b`.
//!
//! Input: the text of a selector, an object. Output: whether the object is selected. Pure; any
//! field that is a text can be selected by, while the real server has a list of them.
// k8s: staging/src/k8s.io/apimachinery/pkg/fields/selector.go ParseSelector

use serde_json::Value;

/// True if the object has the fields.
pub(crate) fn are_selected(selector: &str, object: &Value) -> bool {
    selector.split(',').filter(|term| !term.is_empty()).all(|term| {
        let (path, value, wants_equal) = match term.split_once("!=") {
            Some((path, value)) => (path, value, false),
            None => {
                let (path, value) = term.split_once('=').unwrap_or((term, ""));
                (path, value.trim_start_matches('='), true)
            }
        };
        let found = path.split('.').fold(object, |value, field| &value[field]);
        (found.as_str().unwrap_or_default() == value) == wants_equal
    })
}
