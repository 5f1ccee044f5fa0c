//! Drop-ins and merging, for any daemon.

use proptest::prelude::*;

use super::*;
use crate::any_json::any_json;

#[test]
fn drop_ins_are_found_in_lexical_order_through_folders() {
    let dir = tempfile::tempdir().expect("folder");
    for name in ["b.conf", "a/z.conf", "a/y.conf", "c.txt", ".d.conf"] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("folder")).expect("folder");
        std::fs::write(path, "").expect("file");
    }
    let (files, warnings) = drop_ins(dir.path()).expect("readable");
    let names: Vec<_> =
        files.iter().map(|path| path.strip_prefix(dir.path()).expect("below")).collect();
    assert_eq!(names, [".d.conf", "a/y.conf", "a/z.conf", "b.conf"].map(Path::new));
    assert_eq!(warnings.len(), 1);
    assert!(drop_ins(&dir.path().join("missing")).is_err());
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    prop::collection::btree_map("[a-d]", any_json(3), 0..4)
        .prop_map(|map| map.into_iter().collect())
}

/// RFC 7386, section 2, word for word.
fn reference_merge(target: Value, patch: &Value) -> Value {
    let Value::Object(patch) = patch else { return patch.clone() };
    let mut target = match target {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            let old = target.remove(name).unwrap_or(Value::Null);
            target.insert(name.clone(), reference_merge(old, value));
        }
    }
    Value::Object(target)
}

proptest! {
    #[test]
    fn merging_is_a_json_merge_patch(base in object(), patch in object()) {
        let expected = reference_merge(Value::Object(base.clone()), &Value::Object(patch.clone()));
        let mut merged = base;
        merge_patch(&mut merged, patch);
        prop_assert_eq!(Value::Object(merged), expected);
    }

    #[test]
    fn merging_the_same_patch_again_changes_nothing(base in object(), patch in object()) {
        let mut once = base;
        merge_patch(&mut once, patch.clone());
        let mut twice = once.clone();
        merge_patch(&mut twice, patch);
        prop_assert_eq!(once, twice);
    }
}
