//! Strategic merge patches: made from two objects, and applied.

use pintle_api_types::strategic::{self, PatchError, Schema};
use serde_json::{Value, json};

use super::{check, compare};

fn question(seed: u64) -> Value {
    json!({"kind": "merge", "seed": seed})
}

/// Adds a difference unless upstream has the same result, or refuses the patch, too.
fn compare_result(
    what: &str,
    ours: Result<Value, PatchError>,
    answer: &Value,
    into: &mut Vec<String>,
) {
    let theirs = answer.as_object().map(|_| answer.to_string());
    let why = ours.as_ref().err().map(PatchError::to_string).unwrap_or_default();
    let ours = ours.ok().map(|value| value.to_string());
    let differs = ours != theirs;
    compare(what, &ours, &theirs, into);
    if differs {
        into.push(format!("ours is refused for: {why}"));
    }
}

fn differences(answer: &Value, into: &mut Vec<String>) -> u64 {
    let (version, kind) = (answer["apiVersion"].as_str(), answer["kind"].as_str());
    let (version, kind) = (version.expect("a version"), kind.expect("a kind"));
    let schema = Schema::of_kind(version, kind).expect("each kind has a schema");
    let (original, modified) = (&answer["original"], &answer["modified"]);
    let mut compared = 2;
    let ours = strategic::two_way_patch(original, modified, schema);
    compare_result("patch between both", ours, &answer["twoWay"], into);
    if answer["twoWay"].is_object() {
        let ours = strategic::apply(original, &answer["twoWay"], schema);
        compare_result("patch between both, applied", ours, &answer["twoWayMerged"], into);
        compared += 1;
    }
    let ours = strategic::apply(original, &answer["patch"], schema);
    compare_result("patch, applied", ours, &answer["merged"], into);
    if !into.is_empty() {
        into.push(answer.to_string());
    }
    compared
}

#[test]
fn patches_are_made_and_applied_as_upstream_does() {
    let (mut merged, mut refused) = (0, 0);
    let compared = check(question, |answer, into| {
        merged += u64::from(answer["merged"].is_object());
        refused += u64::from(answer["error"].is_string());
        differences(answer, into)
    });
    println!("{merged} patches are applied, {refused} are refused");
    assert!(compared > 2 * (merged + refused), "{compared} comparisons");
    assert!(merged > refused && refused * 50 > merged, "{merged} applied, {refused} refused");
}
