//! Strategic merge patches: applied as the API server applies them, made as clients make them.
//!
//! Input: objects as JSON and the [`Schema`] of their kind, with the merge keys of its lists.
//! Output: the merged object of [`apply`], or the patch of [`two_way_patch`]; both equal to
//! upstream's `strategicpatch`, directives and quirks included.
//!
//! ```text
//!   schema   the generated table of merge keys
//!   items    identity, kinds and order of items
//!   special  items that are directives
//!   apply    a patch into an object
//!   diff     two objects into a patch
//! ```
// k8s: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch

mod apply;
mod diff;
mod items;
mod schema;
mod special;

use serde_json::{Value, json};

pub use self::schema::Schema;

/// Reason why a patch cannot be applied or made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The schema does not have the field as an object or a list.
    #[error("unable to find api field {field:?} in {of}")]
    UnknownField {
        /// The struct.
        of: String,
        /// The field's name in JSON.
        field: String,
    },
    /// A value of `$patch`, or a directive's name, that is not known here.
    #[error("unknown patch directive {directive}")]
    BadDirective {
        /// The directive.
        directive: String,
    },
    /// A list that merges has an item without the key.
    #[error("an item does not contain its declared merge key {key:?}")]
    NoMergeKey {
        /// The key.
        key: String,
    },
    /// A patch changes a field that `$retainKeys` does not name.
    #[error("invalid patch format of retainKeys")]
    BadRetainKeys,
    /// The items of a patch are not in the order of `$setElementOrder`.
    #[error("the order in the patch list does not match its $setElementOrder")]
    BadOrder,
    /// Items of a list that merges are of several kinds.
    #[error("list element types are not identical")]
    MixedItems,
    /// A list that merges has lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
    /// An order is set for a list without items.
    #[error("no elements in any of the given lists")]
    NoItems,
    /// Another value is where an object must be.
    #[error("expected an object")]
    NotAnObject,
    /// Another value is where a list must be.
    #[error("expected a list")]
    NotAList,
}

/// Applies a strategic merge patch to an object.
///
/// # Errors
/// If the API server would refuse the patch.
// k8s: patch.go StrategicMergeMapPatch
pub fn apply(original: &Value, patch: &Value, schema: Schema) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(patch)) = (original, patch) else {
        return Err(PatchError::NotAnObject);
    };
    apply::merge_object(original.clone(), patch.clone(), schema).map(Value::Object)
}

/// Makes the patch that turns one object into another.
///
/// # Errors
/// If a list that merges has items without a distinct identity.
// k8s: patch.go CreateTwoWayMergeMapPatch
pub fn two_way_patch(
    original: &Value,
    modified: &Value,
    schema: Schema,
) -> Result<Value, PatchError> {
    let (Value::Object(original), Value::Object(modified)) = (original, modified) else {
        return Err(PatchError::NotAnObject);
    };
    diff::diff_objects(original, modified, schema, false).map(Value::Object)
}

/// A strategic merge patch, as far as statuses need it: lists of conditions and addresses merge by
/// key, other lists are replaced, null removes.
pub fn merge(target: &mut Value, patch: &Value) {
    let (Some(target), Some(patch)) = (target.as_object_mut(), patch.as_object()) else {
        return;
    };
    for (key, value) in patch.iter().filter(|(key, _)| !key.starts_with('$')) {
        let merge_key = match &**key {
            "conditions" => Some("type"),
            "podIPs" | "hostIPs" => Some("ip"),
            _ => None,
        };
        match (merge_key, value) {
            (_, Value::Null) => drop(target.remove(key)),
            (Some(merge_key), Value::Array(items)) => {
                let list = target.entry(key.clone()).or_insert_with(|| json!([]));
                for item in items {
                    merge_item(list.as_array_mut().expect("a list"), merge_key, item);
                }
            }
            (None, Value::Object(_)) => {
                let entry = target.entry(key.clone()).or_insert_with(|| json!({}));
                merge(entry, value);
            }
            _ => drop(target.insert(key.clone(), value.clone())),
        }
    }
}

fn merge_item(list: &mut Vec<Value>, merge_key: &str, item: &Value) {
    let at = list.iter().position(|old| old[merge_key] == item[merge_key]);
    match (at, item["$patch"] == "delete") {
        (Some(at), true) => drop(list.remove(at)),
        (Some(at), false) => merge(&mut list[at], item),
        (None, true) => {}
        (None, false) => list.push(item.clone()),
    }
}

#[cfg(test)]
mod tests;
