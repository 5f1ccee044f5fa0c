//! Items of lists under a strategic merge patch: their kind, identity and order.
//!
//! Input: lists of JSON. Output: positions, partitions and sorted lists. Go compares items by their
//! dynamic type first, so 1 and 1.0 differ. Where upstream sorts by a comparison that is no order,
//! its algorithm decides: short lists are sorted by insertion, as Go's `sort` does it.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch.go normalizeElementOrder

use serde_json::{Map, Value};

use super::PatchError;

/// The directive of an object or an item.
pub(super) const DIRECTIVE: &str = "$patch";
/// Go's `sort.SliceStable` sorts blocks of so many items by insertion.
const STABLE_BLOCK: usize = 20;
/// Go's `sort.Sort` sorts up to so many items by insertion.
const INSERTION_MAX: usize = 12;

/// The dynamic type of a value in Go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ItemKind {
    Null,
    Bool,
    Whole,
    Float,
    Text,
    List,
    Object,
}

/// The identity of items of a list.
#[derive(Clone, Copy)]
pub(super) struct ItemIdentity {
    pub(super) kind: ItemKind,
    /// The merge key of objects; empty for scalars.
    pub(super) key: &'static str,
}

impl ItemKind {
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.as_i64().is_some() => Self::Whole,
            Value::Number(_) => Self::Float,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::List,
            Value::Object(_) => Self::Object,
        }
    }

    /// The one kind of all items of two lists.
    // k8s: patch.go sliceElementType
    pub(super) fn of_items(one: &[Value], other: &[Value]) -> Result<Self, PatchError> {
        let mut items = one.iter().chain(other).map(Self::of);
        let first = items.next().ok_or(PatchError::NoItems)?;
        if first == Self::List {
            return Err(PatchError::ListOfLists);
        }
        if items.all(|kind| kind == first) { Ok(first) } else { Err(PatchError::MixedItems) }
    }
}

impl ItemIdentity {
    /// The value that identifies an item.
    fn of(self, item: &Value) -> &Value {
        if self.kind == ItemKind::Object {
            item.get(self.key).unwrap_or(&Value::Null)
        } else {
            item
        }
    }

    /// The index of an item in a list.
    // k8s: patch.go index
    fn index(self, list: &[Value], item: &Value) -> Option<usize> {
        list.iter().position(|other| self.of(other) == self.of(item))
    }

    /// Orders items that the patch has and others by their orders, and joins them.
    // k8s: patch.go normalizeElementOrder
    pub(super) fn ordered(
        self,
        lists: Partition,
        patch_order: &[Value],
        server_order: &[Value],
    ) -> Result<Vec<Value>, PatchError> {
        let patch = self.sorted(lists.present, patch_order)?;
        let server = self.sorted(lists.absent, server_order)?;
        Ok(self.interleaved(server, patch, server_order))
    }

    /// Sorts a list by the order of another one; items to delete go to the end.
    // k8s: patch.go normalizeSliceOrder
    pub(super) fn sorted(
        self,
        items: Vec<Value>,
        order: &[Value],
    ) -> Result<Vec<Value>, PatchError> {
        let (mut items, deleted) = if self.kind == ItemKind::Object {
            for item in items.iter().chain(order) {
                key_of(item, self.key)?;
            }
            items.into_iter().partition(|item| item[DIRECTIVE] != "delete")
        } else {
            (items, Vec::new())
        };
        if items.len() <= STABLE_BLOCK {
            let is_before = |one: &Value, other: &Value| match (
                self.index(order, one),
                self.index(order, other),
            ) {
                (Some(one), Some(other)) => one < other,
                _ => true,
            };
            sort_by_insertion(&mut items, is_before);
        } else {
            items.sort_by_cached_key(|item| self.index(order, item).unwrap_or(usize::MAX));
        }
        items.extend(deleted);
        Ok(items)
    }

    // k8s: patch.go mergeSortedSlice
    fn interleaved(self, left: Vec<Value>, right: Vec<Value>, order: &[Value]) -> Vec<Value> {
        let mut all = Vec::with_capacity(left.len() + right.len());
        let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
        loop {
            let is_left_next = match (left.peek(), right.peek()) {
                (Some(one), Some(other)) => {
                    match (self.index(order, one), self.index(order, other)) {
                        (Some(one), Some(other)) => one < other,
                        _ => false,
                    }
                }
                (one, _) => one.is_some(),
            };
            match if is_left_next { left.next() } else { right.next() } {
                Some(item) => all.push(item),
                None => return all,
            }
        }
    }
}

/// Items of a list by whether another list has them.
pub(super) struct Partition {
    pub(super) present: Vec<Value>,
    pub(super) absent: Vec<Value>,
}

impl Partition {
    /// Splits a list by an order; `key` is empty for scalars.
    // k8s: patch.go partitionPrimitivesByPresentInList, partitionMapsByPresentInList
    pub(super) fn of(items: Vec<Value>, by: &[Value], key: &str) -> Result<Self, PatchError> {
        let mut found = Self { present: Vec::new(), absent: Vec::new() };
        for item in items {
            let is_present = if key.is_empty() {
                by.contains(&item)
            } else {
                position(by, key, key_of(&item, key)?)?.is_some()
            };
            let part = if is_present { &mut found.present } else { &mut found.absent };
            part.push(item);
        }
        Ok(found)
    }
}

/// The value of an item's merge key.
pub(super) fn key_of<'a>(item: &'a Value, key: &str) -> Result<&'a Value, PatchError> {
    let object = item.as_object().ok_or(PatchError::NotAnObject)?;
    object.get(key).ok_or_else(|| PatchError::NoMergeKey { key: key.to_owned() })
}

/// The index of the object with this value of the merge key.
// k8s: patch.go findMapInSliceBasedOnKeyValue
pub(super) fn position(
    list: &[Value],
    key: &str,
    value: &Value,
) -> Result<Option<usize>, PatchError> {
    for (at, item) in list.iter().enumerate() {
        let object: &Map<_, _> = item.as_object().ok_or(PatchError::NotAnObject)?;
        if object.get(key) == Some(value) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Drops repeated scalars; the last one takes the place of each.
// k8s: patch.go deduplicateScalars
pub(super) fn without_repeated(mut items: Vec<Value>) -> Vec<Value> {
    let mut at = 0;
    while at < items.len() {
        let mut other = at + 1;
        while other < items.len() {
            if items[at] == items[other] {
                items.swap_remove(other);
            } else {
                other += 1;
            }
        }
        at += 1;
    }
    items
}

/// Sorts items by a text.
// k8s: patch.go sortScalars, sortMapsBasedOnField: "less" is "not greater"
pub(super) fn sort_by_text(items: &mut [Value], text: impl Fn(&Value) -> String) {
    if items.len() <= INSERTION_MAX {
        sort_by_insertion(items, |one, other| text(one) <= text(other));
    } else {
        items.sort_by_cached_key(text);
    }
}

/// The text of a scalar by which upstream sorts.
// Go: fmt's %v
pub(super) fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "<nil>".to_owned(),
        other => other.to_string(),
    }
}

fn sort_by_insertion(items: &mut [Value], is_before: impl Fn(&Value, &Value) -> bool) {
    for end in 1..items.len() {
        let mut at = end;
        while at > 0 && is_before(&items[at], &items[at - 1]) {
            items.swap(at, at - 1);
            at -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn list(value: Value) -> Vec<Value> {
        value.as_array().expect("a list").clone()
    }

    #[test]
    fn server_items_keep_their_positions_between_patch_items() {
        let identity = ItemIdentity { kind: ItemKind::Text, key: "" };
        let (patch, server) = (list(json!(["c", "a"])), list(json!(["a", "b", "c", "d"])));
        let lists = Partition::of(server.clone(), &patch, "").expect("scalars have no keys");
        let ordered = identity.ordered(lists, &patch, &server).expect("scalars have no keys");
        assert_eq!(json!(ordered), json!(["b", "c", "a", "d"]));
    }

    #[test]
    fn item_kinds_match_go() {
        let kind = |items: Value| ItemKind::of_items(&list(items), &[]);
        assert!(matches!(kind(json!([1, 1.5])), Err(PatchError::MixedItems)));
        assert!(matches!(kind(json!([[1]])), Err(PatchError::ListOfLists)));
        assert!(matches!(kind(json!([])), Err(PatchError::NoItems)));
        assert_eq!(kind(json!([1, -2])).ok(), Some(ItemKind::Whole));
    }

    #[test]
    fn repeated_scalar_is_kept_once_at_its_first_place() {
        let items = without_repeated(list(json!(["a", "b", "a", "c"])));
        assert_eq!(json!(items), json!(["a", "b", "c"]));
    }
}
