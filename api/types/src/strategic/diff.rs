//! The strategic merge patch that makes one object of another.
//!
//! Input: two objects and the schema of the kind. Output: the patch that clients such as the
//! recorder of events and the node controllers send: changed fields, null for deleted ones,
//! `$patch: delete` for items, `$setElementOrder` and `$deleteFromPrimitiveList` beside lists that
//! merge, `$retainKeys` where the schema has it.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go CreateTwoWayMergePatch

use std::cmp::Ordering;

use serde_json::{Map, Value, json};

use super::PatchError;
use super::items::{
    DIRECTIVE, ItemIdentity, ItemKind, key_of, scalar_text, sort_by_text, without_repeated,
};
use super::schema::{PatchStrategy, Schema, SchemaField};

type Object = Map<String, Value>;

/// The changes of a list.
#[derive(Default)]
struct ListChanges {
    changed: Vec<Value>,
    deleted: Vec<Value>,
    order: Vec<Value>,
}

/// The patch between two objects; `retains` if it has to name the keys that stay.
// k8s: patch.go diffMaps
pub(super) fn diff_objects(
    original: &Object,
    modified: &Object,
    schema: Schema,
    retains: bool,
) -> Result<Object, PatchError> {
    let mut patch = Object::new();
    for (key, new) in modified {
        match original.get(key) {
            Some(old) if ItemKind::of(old) == ItemKind::of(new) => {
                diff_field(&mut patch, key, FieldChange { old, new }, schema)?;
            }
            _ => drop(patch.insert(key.clone(), new.clone())),
        }
    }
    for key in original.keys().filter(|key| !modified.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    let kept = modified.iter().filter(|(_, value)| !value.is_null());
    let kept: Vec<_> = kept.map(|(key, _)| key.as_str()).collect();
    if retains && !kept.is_empty() && !patch.is_empty() {
        patch.insert("$retainKeys".to_owned(), json!(kept));
    }
    Ok(patch)
}

/// A field's value before and after.
#[derive(Clone, Copy)]
struct FieldChange<'a> {
    old: &'a Value,
    new: &'a Value,
}

fn diff_field(
    patch: &mut Object,
    key: &str,
    change: FieldChange<'_>,
    schema: Schema,
) -> Result<(), PatchError> {
    let FieldChange { old, new } = change;
    match (old, new) {
        (Value::Object(before), Value::Object(after)) => match schema.field(key) {
            // A field that stays as it is needs no schema.
            Err(_) if old == new => {}
            Err(unknown) => return Err(unknown),
            Ok(field) if field.strategy == PatchStrategy::Replace => {
                patch.insert(key.to_owned(), new.clone());
            }
            Ok(field) => {
                let inner = diff_objects(before, after, field.inner, field.retains_keys)?;
                if !inner.is_empty() {
                    patch.insert(key.to_owned(), inner.into());
                }
            }
        },
        (Value::Array(before), Value::Array(after)) => match schema.list(key) {
            Err(_) if old == new => {}
            Err(unknown) => return Err(unknown),
            Ok(field) if field.strategy == PatchStrategy::Merge => {
                let changes = diff_lists(before, after, field)?;
                changes.add_to(patch, key);
            }
            Ok(_) if old == new => {}
            Ok(_) => drop(patch.insert(key.to_owned(), new.clone())),
        },
        _ if old == new => {}
        _ => drop(patch.insert(key.to_owned(), new.clone())),
    }
    Ok(())
}

impl ListChanges {
    fn add_to(self, patch: &mut Object, key: &str) {
        let lists = [
            (key.to_owned(), self.changed),
            (format!("$deleteFromPrimitiveList/{key}"), self.deleted),
            (format!("$setElementOrder/{key}"), self.order),
        ];
        for (key, list) in lists {
            if !list.is_empty() {
                patch.insert(key, list.into());
            }
        }
    }
}

// k8s: patch.go diffLists
fn diff_lists(
    original: &[Value],
    modified: &[Value],
    field: SchemaField,
) -> Result<ListChanges, PatchError> {
    if original.is_empty() {
        return Ok(ListChanges { changed: modified.to_vec(), ..ListChanges::default() });
    }
    let kind = ItemKind::of_items(original, modified)?;
    let identity = ItemIdentity { kind, key: field.merge_key };
    if kind != ItemKind::Object {
        return diff_scalars(original, modified, identity);
    }
    let (changed, deleted) = diff_items(original, modified, field)?;
    let mut changed = identity.sorted(changed, modified)?;
    let is_order_same = has_same_order(original, modified, field.merge_key)?;
    changed.extend(deleted);
    let mut order = Vec::new();
    if !changed.is_empty() || !is_order_same {
        let only_key = |item: &Value| json!({field.merge_key: item[field.merge_key]});
        order = modified.iter().map(only_key).collect();
    }
    Ok(ListChanges { changed, deleted: Vec::new(), order })
}

// k8s: patch.go isOrderSame
fn has_same_order(original: &[Value], modified: &[Value], key: &str) -> Result<bool, PatchError> {
    if original.len() != modified.len() {
        return Ok(false);
    }
    for (old, new) in original.iter().zip(modified) {
        if key_of(old, key)? != key_of(new, key)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Changed and deleted items of two lists of objects.
// k8s: patch.go diffListsOfMaps
fn diff_items(
    original: &[Value],
    modified: &[Value],
    field: SchemaField,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let key = field.merge_key;
    let sorted = |items: &[Value]| {
        let mut items = items.to_vec();
        sort_by_text(&mut items, |item| scalar_text(&item[key]));
        items
    };
    let (old, new) = (sorted(original), sorted(modified));
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    let (mut changed, mut deleted) = (Vec::new(), Vec::new());
    loop {
        let next = match (old.peek(), new.peek()) {
            (None, None) => return Ok((changed, deleted)),
            (Some(old), Some(new)) => {
                scalar_text(key_of(old, key)?).cmp(&scalar_text(key_of(new, key)?))
            }
            (Some(old), None) => key_of(old, key).map(|_| Ordering::Less)?,
            (None, Some(new)) => key_of(new, key).map(|_| Ordering::Greater)?,
        };
        let before = if next == Ordering::Greater { None } else { old.next() };
        let after = if next == Ordering::Less { None } else { new.next() };
        match (before, after) {
            (Some(before), Some(after)) => changed.extend(diff_item(before, after, field)?),
            (Some(before), None) => deleted.push(json!({key: before[key], DIRECTIVE: "delete"})),
            (None, added) => changed.extend(added.cloned()),
        }
    }
}

fn diff_item(
    before: &Value,
    after: &Value,
    field: SchemaField,
) -> Result<Option<Value>, PatchError> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return Err(PatchError::NotAnObject);
    };
    let mut patch = diff_objects(before, after, field.inner, field.retains_keys)?;
    if patch.is_empty() {
        return Ok(None);
    }
    patch.insert(field.merge_key.to_owned(), after[field.merge_key].clone());
    Ok(Some(patch.into()))
}

// k8s: patch.go diffListsOfScalars
fn diff_scalars(
    original: &[Value],
    modified: &[Value],
    identity: ItemIdentity,
) -> Result<ListChanges, PatchError> {
    let sorted = |items: &[Value]| {
        let mut items = items.to_vec();
        sort_by_text(&mut items, scalar_text);
        items
    };
    let (old, new) = (sorted(original), sorted(modified));
    // Upstream compares the order with the original after it has sorted that in place.
    let is_order_same = old == modified;
    let (mut added, mut deleted) = (Vec::new(), Vec::new());
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    loop {
        let next = match (old.peek(), new.peek()) {
            (None, None) => break,
            (Some(old), Some(new)) => scalar_text(old).cmp(&scalar_text(new)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
        };
        let before = if next == Ordering::Greater { None } else { old.next() };
        let after = if next == Ordering::Less { None } else { new.next() };
        match (before, after) {
            (Some(_), Some(_)) => {}
            (before, after) => {
                deleted.extend(before);
                added.extend(after);
            }
        }
    }
    let deleted = without_repeated(deleted);
    let is_ordered = !deleted.is_empty() || !is_order_same;
    let order = if is_ordered { modified.to_vec() } else { Vec::new() };
    Ok(ListChanges { changed: identity.sorted(added, modified)?, deleted, order })
}
