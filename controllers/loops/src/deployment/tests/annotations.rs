//! Annotations, revisions and names of sets.

use serde_json::{Value, json};

use super::super::annotations::{
    Annotations, extend_history, roll_back, set_replicas, text, update_set,
};
use super::super::new_set::set_name;
use super::super::sets::{
    DESIRED_REPLICAS, MAX_REPLICAS, REVISION, REVISION_HISTORY, by_revision, last_revision,
    max_replicas, max_revision, revision,
};
use super::{annotated, set, sets};

fn map(value: Value) -> Annotations {
    value.as_object().cloned().expect("a map")
}

#[test]
fn set_copies_deployment_annotations_except_reserved_ones() {
    let deployment = map(json!({"mine": "1", REVISION: "7", MAX_REPLICAS: "9",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "deprecated.deployment.rollback.to": "3"}));
    let mut set = map(json!({"other": "2"}));
    assert!(update_set(&mut set, &deployment, 3));
    assert_eq!(set, map(json!({"mine": "1", "other": "2", REVISION: "3"})));
    assert!(!update_set(&mut set, &deployment, 3), "nothing is new the second time");
}

#[test]
fn revision_never_decreases_and_earlier_revisions_are_history() {
    let mut set = map(json!({REVISION: "5"}));
    assert!(!update_set(&mut set, &Annotations::new(), 4));
    assert_eq!(text(&set, REVISION), "5");
    for revision in 6..9 {
        assert!(update_set(&mut set, &Annotations::new(), revision));
    }
    assert_eq!((text(&set, REVISION), text(&set, REVISION_HISTORY)), ("8", "5,6,7"));
    let mut broken = map(json!({REVISION: "x"}));
    assert!(!update_set(&mut broken, &map(json!({"mine": "1"})), 4));
    assert_eq!(text(&broken, REVISION), "x");
}

#[test]
fn history_drops_the_oldest_revisions_at_its_limit() {
    let mut set = Annotations::new();
    for revision in 10..20 {
        extend_history(&mut set, &revision.to_string(), 5);
        let expected = match revision {
            10 => "10".to_owned(),
            _ => format!("{},{revision}", revision - 1),
        };
        assert_eq!(text(&set, REVISION_HISTORY), expected);
    }
    extend_history(&mut set, "123456", 5);
    assert_eq!(text(&set, REVISION_HISTORY), "18,19", "a revision longer than the limit");
}

#[test]
fn rollback_restores_the_annotations_of_the_set() {
    let deployment = map(json!({"cause": "edit", "gone": "1", REVISION: "2"}));
    let of_set = map(json!({"cause": "create", REVISION: "1", DESIRED_REPLICAS: "3"}));
    assert_eq!(roll_back(deployment, of_set), map(json!({"cause": "create", REVISION: "2"})));
}

#[test]
fn replicas_are_recorded_once() {
    let mut set = Annotations::new();
    assert!(set_replicas(&mut set, 10, 11));
    assert_eq!((text(&set, DESIRED_REPLICAS), text(&set, MAX_REPLICAS)), ("10", "11"));
    assert!(!set_replicas(&mut set, 10, 11));
    assert!(set_replicas(&mut set, 10, 12));
}

#[test]
fn count_in_an_annotation_is_a_number_that_is_not_negative() {
    for (text, expected) in [
        ("invalid", None),
        ("", None),
        ("-1", None),
        ("+1", None),
        ("0", Some(0)),
        ("13", Some(13)),
        ("2147483647", Some(i32::MAX)),
        ("2147483648", None),
        ("4294967296", None),
    ] {
        let all = sets(&[annotated(set("a", "a", 1, 1), MAX_REPLICAS, text)]);
        assert_eq!(max_replicas(&all[0]), expected, "{text}");
    }
}

#[test]
fn highest_and_second_highest_revision_are_found() {
    for (revisions, highest, last) in [
        (vec![], 0, 0),
        (vec!["3"], 3, 0),
        (vec!["1", "3", "2"], 3, 2),
        (vec!["3", "x", "3"], 3, 3),
        (vec!["2", "9", "5"], 9, 5),
    ] {
        let values: Vec<_> =
            revisions.iter().map(|text| annotated(set("a", "a", 1, 1), REVISION, text)).collect();
        let all = sets(&values);
        assert_eq!((max_revision(&all), last_revision(&all)), (highest, last), "{revisions:?}");
    }
    let all = sets(&[set("a", "a", 1, 1), annotated(set("b", "b", 1, 1), REVISION, "x")]);
    assert_eq!((revision(&all[0]), revision(&all[1])), (Some(0), None));
}

#[test]
fn sets_of_equal_revision_are_ordered_by_age() {
    let mut all = sets(&[
        annotated(set("young", "a", 1, 1), REVISION, "2"),
        annotated(set("old", "b", 1, 9), REVISION, "2"),
        annotated(set("first", "c", 1, 1), REVISION, "1"),
    ]);
    all.sort_by(by_revision);
    let names: Vec<_> = all.iter().map(|set| &*set.metadata.name).collect();
    assert_eq!(names, ["first", "old", "young"]);
}

#[test]
fn name_of_a_set_is_cut_so_that_the_hash_fits() {
    for (name, hash, expected) in [
        ("my-deployment".to_owned(), "abcde12345".to_owned(), "my-deployment".to_owned()),
        ("a".repeat(242), "abcde12345".to_owned(), "a".repeat(242)),
        ("b".repeat(250), "abcde12345".to_owned(), "b".repeat(242)),
        ("d".repeat(252), "h".repeat(252), "d".repeat(252)),
    ] {
        assert_eq!(set_name(&name, &hash), format!("{expected}-{hash}"));
    }
}
