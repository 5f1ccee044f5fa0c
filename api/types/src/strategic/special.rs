//! Items of a patch that are directives: `$patch: delete` and `$patch: replace` in a list.
//!
//! Input: the old items and those of the patch. Output: the rest of both, and the order that
//! upstream takes for the old one. Go deletes and appends within the old list's memory, and reads
//! that memory afterwards: new items can be in it, in the places of deleted ones.

use serde_json::Value;

use super::PatchError;
use super::items::{DIRECTIVE, key_of, position};

/// Deletes and replaces items as the patch directs, and returns the rest of both lists.
// k8s: patch.go mergeSliceWithSpecialElements
pub(super) fn without_special_items(
    mut original: Vec<Value>,
    patch: Vec<Value>,
    key: &str,
) -> Result<(Vec<Value>, Vec<Value>), PatchError> {
    let (mut usual, mut replaces) = (Vec::new(), false);
    for item in patch {
        let Some(directive) = item.get(DIRECTIVE) else {
            usual.push(item);
            continue;
        };
        match directive.as_str() {
            Some("delete") => {
                let deleted = key_of(&item, key)?;
                while let Some(at) = position(&original, key, deleted)? {
                    original.remove(at);
                }
            }
            Some("replace") => replaces = true,
            _ => return Err(PatchError::BadDirective { directive: directive.to_string() }),
        }
    }
    Ok(if replaces { (usual, Vec::new()) } else { (original, usual) })
}

/// The old items as Go's memory has them after the merge.
// k8s: patch.go mergePatchIntoOriginal, which passes originalFieldValue to normalizeElementOrder
pub(super) fn order_after_merge(original: &[Value], patch: &[Value], key: &str) -> Vec<Value> {
    let mut memory = original.to_vec();
    let mut count = memory.len();
    let is = |item: &Value, other: &Value| item.get(key) == other.get(key);
    let is_directive = |item: &&Value| item.get(DIRECTIVE).is_some();
    for deleted in patch.iter().filter(is_directive).filter(|item| item[DIRECTIVE] == "delete") {
        while let Some(at) = memory[..count].iter().position(|item| is(item, deleted)) {
            // The items behind it move; the last place keeps what it had.
            let last = memory[count - 1].clone();
            memory[at..count].rotate_left(1);
            memory[count - 1] = last;
            count -= 1;
        }
    }
    if patch.iter().any(|item| item[DIRECTIVE] == "replace") {
        return memory;
    }
    let mut added: Vec<&Value> = Vec::new();
    for item in patch.iter().filter(|item| !is_directive(item)) {
        let is_old = memory[..count].iter().any(|old| is(old, item));
        if !is_old && !added.iter().any(|other| is(other, item)) {
            added.push(item);
        }
    }
    // Items beyond the old list's length are not seen.
    for (place, item) in memory[count..].iter_mut().zip(added) {
        place.clone_from(item);
    }
    memory
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn named(names: &[&str]) -> Vec<Value> {
        names.iter().map(|name| json!({"name": name})).collect()
    }

    #[test]
    fn an_added_item_takes_the_place_of_a_deleted_one() {
        let mut patch = named(&["a", "new"]);
        patch[0][DIRECTIVE] = "delete".into();
        let order = order_after_merge(&named(&["a", "b", "c"]), &patch, "name");
        assert_eq!(order, named(&["b", "c", "new"]));
        let order = order_after_merge(&named(&["a", "b", "c"]), &patch[..1], "name");
        assert_eq!(order, named(&["b", "c", "c"]));
    }

    #[test]
    fn a_list_that_is_replaced_keeps_the_items_of_the_patch() {
        let mut patch = named(&["new"]);
        patch.push(json!({DIRECTIVE: "replace"}));
        let left = without_special_items(named(&["a"]), patch, "name").expect("both are objects");
        assert_eq!(left, (named(&["new"]), Vec::new()));
    }
}
