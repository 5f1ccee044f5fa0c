//! Claims by tables, after the cases of the kubelet's node_expander_test.go.

use serde_json::{from_value, json};

use super::*;

/// A claim that asks for `asks`, has `has`, and whose expansion to `allocated` is at `progress`.
fn claim(asks: &str, has: &str, allocated: &str, progress: &str) -> PersistentVolumeClaim {
    let mut claim = json!({
        "metadata": {"name": "claim", "resourceVersion": "7"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": asks}}},
        "status": {"capacity": {"storage": has}},
    });
    if !allocated.is_empty() {
        claim["status"]["allocatedResources"] = json!({"storage": allocated});
    }
    if !progress.is_empty() {
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": progress});
    }
    from_value(claim).expect("a claim")
}

fn shared(mut claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    let spec = claim.spec.as_mut().expect("a spec");
    spec.access_modes = Some(vec!["ReadWriteMany".to_owned()]);
    claim
}

fn size(volume: &str) -> ClaimSize {
    let (namespace, name) = ("ns".to_owned(), "claim".to_owned());
    ClaimSize { namespace, name, volume: volume.to_owned(), claimed_bytes: 1 << 30 }
}

fn order(size: &str) -> Order {
    let size = size.to_owned();
    Order { size, has_status: true, is_claimed: false, is_outdated: false }
}

fn refusal(kind: RefusalKind) -> Refusal {
    Refusal { kind, text: "no".to_owned() }
}

const NOW: UnixNanos = UnixNanos(1_700_000_000_000_000_000);

#[test]
fn claim_status_decides_if_the_node_expands_the_volume() {
    let call = |order| Plan::Call(order);
    let claimed = || Order { is_claimed: true, ..order("2Gi") };
    let not_required = || {
        let mut claim = shared(claim("2Gi", "2Gi", "2Gi", ""));
        let key = NODE_EXPANSION_NOT_REQUIRED.to_owned();
        claim.metadata.annotations = Some([(key, "true".to_owned())].into());
        claim
    };
    let table = [
        ("pending", claim("2Gi", "1Gi", "2Gi", PENDING), call(order("2Gi"))),
        ("in progress", claim("2Gi", "1Gi", "2Gi", IN_PROGRESS), call(order("2Gi"))),
        ("infeasible", claim("2Gi", "1Gi", "2Gi", INFEASIBLE), Plan::Later),
        (
            "the controller is at it",
            claim("2Gi", "1Gi", "2Gi", "ControllerResizeInProgress"),
            Plan::Later,
        ),
        ("no status yet", claim("2Gi", "1Gi", "2Gi", ""), Plan::Later),
        ("has it", claim("2Gi", "2Gi", "2Gi", ""), Plan::Done),
        ("shared, has it", shared(claim("2Gi", "2Gi", "2Gi", "")), call(claimed())),
        ("shared, has it by the controller alone", not_required(), Plan::Done),
        ("shared, pending", shared(claim("2Gi", "1Gi", "2Gi", PENDING)), call(order("2Gi"))),
    ];
    for (name, claim, expected) in table {
        assert_eq!(plan(&claim, &size("2Gi"), false), expected, "{name}");
    }
}

#[test]
fn claim_of_an_older_resizer_is_expanded_to_its_volumes_size() {
    let expected = Order { has_status: false, ..order("3G") };
    assert_eq!(plan(&claim("2Gi", "1Gi", "", ""), &size("3G"), true), Plan::Call(expected));
    let expected = Order { has_status: false, is_claimed: true, ..order("1Gi") };
    assert_eq!(plan(&claim("2Gi", "1Gi", "", ""), &size("1Gi"), false), Plan::Call(expected));
}

#[test]
fn other_request_after_a_final_refusal_makes_the_expansion_infeasible() {
    let claim = claim("3Gi", "1Gi", "2Gi", PENDING);
    assert_eq!(plan(&claim, &size("2Gi"), false), Plan::Call(order("2Gi")));
    let outdated = Order { is_outdated: true, ..order("2Gi") };
    assert_eq!(plan(&claim, &size("2Gi"), true), Plan::Call(outdated.clone()));
    let verdict = conclude(&claim, &outdated, Err(refusal(RefusalKind::Failed)), NOW);
    let patch = verdict.patch.expect("a patch");
    assert_eq!(patch["status"]["allocatedResourceStatuses"]["storage"], INFEASIBLE);
    let verdict = conclude(&claim, &outdated, Err(refusal(RefusalKind::Open)), NOW);
    assert_eq!(verdict.patch, None, "the driver may still do it");
}

#[test]
fn progress_is_marked_once_with_the_claims_version() {
    let patch = mark_begun(&claim("2Gi", "1Gi", "2Gi", PENDING), &order("2Gi"));
    let expected = json!({"metadata": {"resourceVersion": "7"},
        "status": {"allocatedResourceStatuses": {"storage": IN_PROGRESS}}});
    assert_eq!(patch, Some(expected));
    assert_eq!(mark_begun(&claim("2Gi", "1Gi", "2Gi", IN_PROGRESS), &order("2Gi")), None);
    let older = Order { has_status: false, ..order("2Gi") };
    assert_eq!(mark_begun(&claim("2Gi", "1Gi", "", ""), &older), None);
}

#[test]
fn successful_expansion_updates_the_capacity_and_removes_resize_conditions() {
    let mut claim = claim("2Gi", "1Gi", "2Gi", IN_PROGRESS);
    let status = claim.status.as_mut().expect("a status");
    let condition = |kind: &str| json!({"type": kind, "status": "True"});
    let conditions = [RESIZE_PENDING, "ModifyingVolume", NODE_RESIZE_ERROR].map(condition);
    status.conditions = Some(from_value(json!(conditions)).expect("conditions"));
    let verdict = conclude(&claim, &order("2Gi"), Ok(()), NOW);
    let expected = json!({"metadata": {"resourceVersion": "7"}, "status": {
        "capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": null,
        "conditions": [{"$patch": "delete", "type": RESIZE_PENDING},
            {"$patch": "delete", "type": NODE_RESIZE_ERROR}]}});
    assert_eq!(verdict, Verdict { patch: Some(expected), is_success: true, failure: None });
    let claimed = Order { is_claimed: true, ..order("2Gi") };
    assert_eq!(conclude(&claim, &claimed, Ok(()), NOW).patch, None, "another node has written it");
}

#[test]
fn refusal_becomes_a_condition_and_a_problem() {
    let begun = claim("2Gi", "1Gi", "2Gi", IN_PROGRESS);
    let table = [
        (RefusalKind::Open, false, false, Problem::Uncertain),
        (RefusalKind::NotSupported, true, false, Problem::Final),
        (RefusalKind::InUse, true, false, Problem::InUse),
        (RefusalKind::Infeasible, true, true, Problem::Final),
        (RefusalKind::Failed, true, false, Problem::Final),
    ];
    for (kind, has_patch, is_infeasible, problem) in table {
        let verdict = conclude(&begun, &order("2Gi"), Err(refusal(kind)), NOW);
        assert_eq!(verdict.failure.map(|failure| failure.problem), Some(problem), "{kind:?}");
        let patch = verdict.patch.unwrap_or_default();
        let condition = &patch["status"]["conditions"][0];
        let expected = json!({"type": NODE_RESIZE_ERROR, "status": "True",
            "lastTransitionTime": "2023-11-14T22:13:20Z", "message": "failed to expand pvc with no"});
        assert_eq!(*condition == expected, has_patch, "{kind:?}: {condition}");
        let status = &patch["status"]["allocatedResourceStatuses"]["storage"];
        assert_eq!(status == INFEASIBLE, is_infeasible, "{kind:?}");
        assert_eq!(patch.get("metadata"), None, "it may be late");
    }
}

#[test]
fn driver_without_expansion_is_no_error_if_the_claim_has_its_capacity() {
    let claim = claim("2Gi", "2Gi", "2Gi", "");
    for done in
        [Order { is_claimed: true, ..order("2Gi") }, Order { has_status: false, ..order("2Gi") }]
    {
        let called = Err(refusal(RefusalKind::NotSupported));
        assert_eq!(conclude(&claim, &done, called, NOW), Verdict::default());
    }
}

#[test]
fn persistent_volume_is_read_again_only_if_its_claim_may_have_grown() {
    let known = size("1Gi");
    assert!(!is_growing(&claim("1Gi", "1Gi", "", ""), &known));
    assert!(is_growing(&claim("2Gi", "1Gi", "", ""), &known));
    assert!(is_growing(&claim("1Gi", "1Gi", "1Gi", PENDING), &known));
    assert!(is_growing(&claim("2Gi", "2Gi", "2Gi", ""), &known));
    let mut pending = claim("1Gi", "1Gi", "", "");
    let conditions = json!([{"type": RESIZE_PENDING, "status": "True"}]);
    let status = pending.status.as_mut().expect("a status");
    status.conditions = Some(from_value(conditions).expect("conditions"));
    assert!(is_growing(&pending, &known));
}
