//! Names, ordinals and what makes a pod a member of a set.
// k8s: pkg/controller/statefulset/stateful_set_utils_test.go

use pintle_controllers_core::kinds::{Pod, StatefulSet, StatefulSetStatus};
use serde_json::json;

use super::super::identity::{has_identity, is_in_range, is_member, parent_and_ordinal};
use super::super::rollout::max_unavailable;
use super::super::status::{complete_rolling_update, is_inconsistent};
use super::set;

fn decoded(replicas: i32) -> StatefulSet {
    let mut set = set(replicas);
    set["metadata"]["namespace"] = "n".into();
    serde_json::from_value(set).expect("a set")
}

#[test]
fn name_is_split_at_its_last_dash_before_digits() {
    for (name, parent) in [
        ("web-0", Some(("web", Some(0)))),
        ("web-0-12", Some(("web-0", Some(12)))),
        ("web-99999999999", Some(("web", None))),
        ("web-", None),
        ("web-a", None),
        ("web", None),
        ("web-+1", None),
        ("-1", Some(("", Some(1)))),
    ] {
        assert_eq!(parent_and_ordinal(name), parent, "{name}");
    }
}

#[test]
fn pod_has_identity_by_name_namespace_and_label() {
    let set = decoded(3);
    for (name, namespace, label, is_one_of, is_identical) in [
        ("web-1", "n", "web-1", true, true),
        ("web-01", "n", "web-01", true, false),
        ("web-1", "n", "web-2", true, false),
        ("web-1", "other", "web-1", true, false),
        ("app-1", "n", "app-1", false, false),
        ("web", "n", "web", false, false),
    ] {
        let labels = json!({"statefulset.kubernetes.io/pod-name": label});
        let metadata = json!({"name": name, "namespace": namespace, "labels": labels});
        let pod: Pod = serde_json::from_value(json!({ "metadata": metadata })).expect("a pod");
        assert_eq!(
            (is_member(&set, &pod), has_identity(&set, &pod)),
            (is_one_of, is_identical),
            "{name}"
        );
    }
}

#[test]
fn range_begins_at_the_first_ordinal() {
    let mut set = decoded(3);
    set.spec.first_ordinal = 2;
    let inside: Vec<_> = (0..7).filter(|at| is_in_range(&set, &format!("web-{at}"))).collect();
    assert_eq!(inside, [2, 3, 4]);
}

#[test]
fn rolling_update_is_complete_when_all_counts_equal_the_replicas() {
    let set = decoded(3);
    let of = |updated, ready, replicas| StatefulSetStatus {
        updated_replicas: updated,
        ready_replicas: ready,
        replicas,
        current_revision: "old".into(),
        update_revision: "new".into(),
        ..StatefulSetStatus::default()
    };
    for (mut status, revision) in
        [(of(3, 3, 3), "new"), (of(2, 3, 3), "old"), (of(3, 2, 3), "old"), (of(3, 3, 2), "old")]
    {
        complete_rolling_update(&set, &mut status);
        assert_eq!(&*status.current_revision, revision, "{status:?}");
    }
}

#[test]
fn status_is_written_when_a_count_revision_or_newer_generation_differs() {
    let set = decoded(3);
    let known = set.status.clone();
    for (status, is_different) in [
        (known.clone(), false),
        (StatefulSetStatus { observed_generation: 1, ..known.clone() }, true),
        (StatefulSetStatus { observed_generation: -1, ..known.clone() }, false),
        (StatefulSetStatus { replicas: 1, ..known.clone() }, true),
        (StatefulSetStatus { ready_replicas: 1, ..known.clone() }, true),
        (StatefulSetStatus { available_replicas: 1, ..known.clone() }, true),
        (StatefulSetStatus { current_replicas: 1, ..known.clone() }, true),
        (StatefulSetStatus { updated_replicas: 1, ..known.clone() }, true),
        (StatefulSetStatus { current_revision: "a".into(), ..known.clone() }, true),
        (StatefulSetStatus { update_revision: "a".into(), ..known.clone() }, true),
        (StatefulSetStatus { collision_count: Some(1), ..known.clone() }, false),
    ] {
        assert_eq!(is_inconsistent(&set, &status), is_different, "{status:?}");
    }
}

#[test]
fn at_least_one_pod_may_be_unavailable() {
    for (limit, replicas, wanted) in [
        (json!(null), 10, 1),
        (json!(0), 10, 1),
        (json!(3), 10, 3),
        (json!("25%"), 10, 2),
        (json!("1%"), 10, 1),
    ] {
        let mut set = decoded(replicas);
        let limits = set.spec.update_strategy.rolling_update.as_mut().expect("limits");
        limits.max_unavailable = limit.clone();
        assert_eq!(max_unavailable(&set), Ok(wanted), "{limit}");
    }
}
