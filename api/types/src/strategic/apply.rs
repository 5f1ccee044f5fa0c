//! A strategic merge patch, applied as the API server applies it.
//!
//! Input: an object, a patch and the schema of the kind. Output: the merged object, or why the
//! patch is refused. Directives: `$patch` on objects and items, `$retainKeys`,
//! `$setElementOrder/LIST`, `$deleteFromPrimitiveList/LIST`; null deletes a field.
//!
//! Where upstream's result depends on Go's order of a map's keys, such as a list that is both added
//! to and deleted from, directives come first here.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go mergeMap

use serde_json::{Map, Value};

use super::items::{
    DIRECTIVE, ItemIdentity, ItemKind, Partition, key_of, position, without_repeated,
};
use super::schema::{PatchStrategy, Schema, SchemaField};
use super::{PatchError, special};

const RETAIN_KEYS: &str = "$retainKeys";
const SET_ORDER: &str = "$setElementOrder";
const DELETE_SCALARS: &str = "$deleteFromPrimitiveList";

type Object = Map<String, Value>;

/// Merges a patch into an object.
pub(super) fn merge_object(
    mut original: Object,
    mut patch: Object,
    schema: Schema,
) -> Result<Object, PatchError> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Object::new()),
            _ => Err(PatchError::BadDirective { directive: directive.to_string() }),
        };
    }
    apply_retained_keys(&mut original, &mut patch)?;
    apply_orders(&mut original, &mut patch, schema)?;
    for (key, value) in patch {
        if key.starts_with(DELETE_SCALARS) {
            merge_field(&mut original, list_key(&key, DELETE_SCALARS)?, value, schema, true)?;
        } else {
            merge_field(&mut original, &key, value, schema, false)?;
        }
    }
    Ok(original)
}

/// Deletes the fields that the patch does not retain.
// k8s: patch.go applyRetainKeysDirective
fn apply_retained_keys(original: &mut Object, patch: &mut Object) -> Result<(), PatchError> {
    let Some(retained) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let retained = retained.as_array().ok_or(PatchError::BadRetainKeys)?;
    let is_retained = |key: &str| retained.iter().any(|other| other == key);
    let is_directive = |key: &str| key.starts_with(DELETE_SCALARS) || key.starts_with(SET_ORDER);
    let mut named = patch.iter().filter(|(key, value)| !value.is_null() && !is_directive(key));
    if !named.all(|(key, _)| is_retained(key)) {
        return Err(PatchError::BadRetainKeys);
    }
    original.retain(|key, _| is_retained(key));
    Ok(())
}

/// Merges the lists that the patch has an order for, and takes them out of the patch.
// k8s: patch.go mergePatchIntoOriginal
fn apply_orders(
    original: &mut Object,
    patch: &mut Object,
    schema: Schema,
) -> Result<(), PatchError> {
    let keys: Vec<_> = patch.keys().filter(|key| key.starts_with(SET_ORDER)).cloned().collect();
    for key in keys {
        let order = items_of(patch.remove(&key))?.expect("the patch has the key");
        let name = list_key(&key, SET_ORDER)?;
        let old = items_of(original.get(name).cloned())?;
        let new = items_of(patch.get(name).cloned())?;
        let field = schema.list(name)?;
        check_order(new.as_deref().unwrap_or_default(), &order, field.merge_key)?;
        let kind = ItemKind::of_items(
            old.as_deref().unwrap_or_default(),
            new.as_deref().unwrap_or_default(),
        );
        let mut server_order = old.clone().unwrap_or_default();
        let merged = match (old, new) {
            (None, None) => continue,
            (Some(old), None) => old,
            (None, Some(new)) => new.into_iter().filter_map(without_directives).collect(),
            (Some(old), Some(new)) => {
                if field.strategy == PatchStrategy::Merge && !field.merge_key.is_empty() {
                    server_order = special::order_after_merge(&old, &new, field.merge_key);
                }
                merge_list(old, new, field, false)?
            }
        };
        let lists = Partition::of(merged, &order, field.merge_key)?;
        let identity = ItemIdentity { kind: kind?, key: field.merge_key };
        original.insert(name.to_owned(), identity.ordered(lists, &order, &server_order)?.into());
        patch.remove(name);
    }
    Ok(())
}

fn items_of(value: Option<Value>) -> Result<Option<Vec<Value>>, PatchError> {
    match value {
        None => Ok(None),
        Some(Value::Array(items)) => Ok(Some(items)),
        Some(_) => Err(PatchError::NotAList),
    }
}

/// The name of the list that a directive is for.
// k8s: patch.go extractKey
fn list_key<'a>(key: &'a str, directive: &str) -> Result<&'a str, PatchError> {
    let name = key.strip_prefix(directive).and_then(|rest| rest.strip_prefix('/'));
    name.ok_or_else(|| PatchError::BadDirective { directive: key.to_owned() })
}

/// Are the items of a patch in the order that it sets?
// k8s: patch.go validatePatchWithSetOrderList
fn check_order(items: &[Value], order: &[Value], key: &str) -> Result<(), PatchError> {
    if items.is_empty() || order.is_empty() {
        return Ok(());
    }
    let mut order = order.iter().peekable();
    for item in items {
        let directive = if key.is_empty() {
            None
        } else {
            item.as_object().ok_or(PatchError::NotAnObject)?.get(DIRECTIVE)
        };
        match directive {
            Some(directive) if directive == "delete" => continue,
            // Upstream stops at the end of the order.
            Some(_) if order.peek().is_some() => continue,
            Some(_) => return Err(PatchError::BadOrder),
            None => skip_to(&mut order, item, key)?,
        }
    }
    Ok(())
}

/// Takes an order's entries up to that of an item.
fn skip_to<'a>(
    order: &mut impl Iterator<Item = &'a Value>,
    item: &Value,
    key: &str,
) -> Result<(), PatchError> {
    for next in order {
        let is_equal =
            if key.is_empty() { item == next } else { key_of(item, key)? == key_of(next, key)? };
        if is_equal {
            return Ok(());
        }
    }
    Err(PatchError::BadOrder)
}

/// Merges one field; `deletes` if the value is a list of scalars to delete.
fn merge_field(
    original: &mut Object,
    key: &str,
    value: Value,
    schema: Schema,
    deletes: bool,
) -> Result<(), PatchError> {
    if value.is_null() {
        original.remove(key);
        return Ok(());
    }
    let old = original.get(key);
    if old.is_none_or(|old| ItemKind::of(old) != ItemKind::of(&value)) {
        if !deletes {
            set_field(original, key, without_directives(without_nulls(value)));
        }
        return Ok(());
    }
    let merged = match (original.remove(key), value) {
        (Some(Value::Object(old)), Value::Object(new)) => {
            let field = schema.field(key)?;
            if field.strategy == PatchStrategy::Replace {
                new.into()
            } else {
                merge_object(old, new, field.inner)?.into()
            }
        }
        (Some(Value::Array(old)), Value::Array(new)) => {
            merge_list(old, new, schema.list(key)?, deletes)?.into()
        }
        (_, scalar) => scalar,
    };
    original.insert(key.to_owned(), merged);
    Ok(())
}

fn set_field(original: &mut Object, key: &str, value: Option<Value>) {
    match value {
        Some(value) => drop(original.insert(key.to_owned(), value)),
        None => drop(original.remove(key)),
    }
}

/// A value of the patch without fields that are null.
// k8s: patch.go discardNullValuesFromPatch
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key, without_nulls(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        scalar => scalar,
    }
}

/// A value of the patch without objects that have a directive; nothing if it is one.
// k8s: patch.go removeDirectives
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(DIRECTIVE) => None,
        Value::Object(fields) => {
            let kept = fields
                .into_iter()
                .filter_map(|(key, value)| without_directives(value).map(|value| (key, value)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(without_directives).collect()),
        scalar => Some(scalar),
    }
}

/// Merges two lists, or deletes scalars from the first one.
// k8s: patch.go mergeSliceHandler, mergeSlice
fn merge_list(
    original: Vec<Value>,
    patch: Vec<Value>,
    field: SchemaField,
    deletes: bool,
) -> Result<Vec<Value>, PatchError> {
    if field.strategy != PatchStrategy::Merge && !deletes {
        return Ok(patch);
    }
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    let kind = ItemKind::of_items(&original, &patch)?;
    if kind != ItemKind::Object && deletes {
        return Ok(original.into_iter().filter(|item| !patch.contains(item)).collect());
    }
    let identity = ItemIdentity { kind, key: field.merge_key };
    if kind != ItemKind::Object {
        let both = original.iter().chain(&patch).cloned().collect();
        let lists = Partition::of(without_repeated(both), &patch, field.merge_key)?;
        return identity.ordered(lists, &patch, &original);
    }
    if field.merge_key.is_empty() {
        return Err(PatchError::NoMergeKey { key: String::new() });
    }
    let (original, patch) = special::without_special_items(original, patch, field.merge_key)?;
    let merged = merge_items(original.clone(), &patch, field)?;
    let lists = Partition::of(merged, &patch, field.merge_key)?;
    identity.ordered(lists, &patch, &original)
}

// k8s: patch.go mergeSliceWithoutSpecialElements
fn merge_items(
    mut original: Vec<Value>,
    patch: &[Value],
    field: SchemaField,
) -> Result<Vec<Value>, PatchError> {
    for item in patch {
        let value = key_of(item, field.merge_key)?;
        match position(&original, field.merge_key, value)? {
            None => original.push(item.clone()),
            Some(at) => {
                let (Value::Object(old), Value::Object(new)) = (original[at].take(), item.clone())
                else {
                    return Err(PatchError::NotAnObject);
                };
                original[at] = merge_object(old, new, field.inner)?.into();
            }
        }
    }
    Ok(original)
}
