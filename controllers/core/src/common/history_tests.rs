//! Tests of the history of templates by the cases of upstream's table.
// k8s: pkg/controller/history/controller_history_test.go

use pintle_api_types::kind::STATEFUL_SETS;
use pintle_api_types::request::{Answer, ApiError};

use super::*;

fn revision(name: &str, number: i64, created: &str) -> Revision {
    let metadata = json!({"name": name, "namespace": "n", "uid": name, "creationTimestamp": created,
        "labels": {"app": "a"}, "resourceVersion": "7"});
    let revision = json!({"metadata": metadata, "revision": number, "data": {"b": 1, "a": "<"}});
    decode(&revision).expect("a revision")
}

fn owner() -> Meta {
    serde_json::from_value(json!({"name": "web", "namespace": "n", "uid": "u"})).expect("metadata")
}

/// Runs a task to its end; returns its requests and its outcome.
fn run<T>(
    task: impl Fn(History<'_>, &mut Transcript) -> Result<T, TranscriptStop>,
    answer: impl Fn(&Request) -> Answer,
) -> Ran<T> {
    let owner = owner();
    let mut transcript = Transcript::new(jiff::Timestamp::UNIX_EPOCH);
    loop {
        match task(History { owner_kind: STATEFUL_SETS, owner: &owner }, &mut transcript) {
            Err(TranscriptStop::Pending) => {
                let answers = transcript.wanted().iter().map(&answer).collect();
                transcript.answer(answers);
            }
            end => {
                let requests = transcript.steps().iter().flat_map(|step| step.requests.clone());
                return Ran { requests: requests.collect(), end };
            }
        }
    }
}

struct Ran<T> {
    requests: Vec<Request>,
    end: Result<T, TranscriptStop>,
}

fn refusal(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.to_owned(), ..ApiError::default() }
}

fn new_revision() -> NewRevision {
    NewRevision {
        labels: json!({"app": "a"}),
        annotations: json!({"note": "kept"}),
        data: r#"{"spec":{"a":"\u003c"}}"#.to_owned(),
        number: 3,
    }
}

#[test]
fn name_is_cut_before_its_hash() {
    for (owner, name) in
        [("web", "web-hash".to_owned()), (&"a".repeat(230), format!("{}-hash", "a".repeat(223)))]
    {
        assert_eq!(revision_name(owner, "hash"), name);
    }
}

#[test]
fn revisions_are_sorted_by_number_then_age_then_name() {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    let mut revisions = vec![
        revision("d", 3, early),
        revision("c", 2, late),
        revision("b", 2, early),
        revision("a", 2, late),
    ];
    sort(&mut revisions);
    let names: Vec<_> = revisions.iter().map(|one| &*one.metadata.name).collect();
    assert_eq!(names, ["b", "a", "c", "d"]);
    assert_eq!((next_number(&revisions), next_number(&[])), (4, 1));
}

#[test]
fn revision_data_is_equal_regardless_of_escaping() {
    for (one, other, is_same) in [
        (r#"{"a":"<"}"#, r#"{"a":"\u003c"}"#, true),
        (r#"{"a":1}"#, r#"{"a":1}"#, true),
        (r#"{"a":1}"#, r#"{"a":2}"#, false),
        (r#"{"a":null}"#, r#"{}"#, false),
        ("", "", true),
        ("", "{}", false),
    ] {
        assert_eq!(is_same_data(one, other), is_same, "{one} {other}");
    }
    assert_eq!(revision("a", 1, "2026-01-01T00:00:00Z").data(), r#"{"a":"<","b":1}"#);
}

#[test]
fn own_revisions_and_orphans_that_are_selected_belong_to_the_history() {
    let owned = |name: &str, owner: &str, app: &str| {
        let owners = match owner {
            "" => json!([]),
            uid => json!([{"uid": uid, "controller": true}]),
        };
        let metadata = json!({"name": name, "labels": {"app": app}, "ownerReferences": owners});
        decode(&json!({ "metadata": metadata })).expect("a revision")
    };
    let revisions = [
        owned("own", "u", "a"),
        owned("orphan", "", "a"),
        owned("foreign", "x", "a"),
        owned("other", "u", "b"),
    ];
    let selector =
        serde_json::from_value(json!({"matchLabels": {"app": "a"}})).expect("a selector");
    let owner = owner();
    let history = History { owner_kind: STATEFUL_SETS, owner: &owner };
    let found = history.select(&revisions, &selector);
    let names: Vec<_> = found.iter().map(|one| &*one.metadata.name).collect();
    assert_eq!(names, ["own", "orphan"]);
}

#[test]
fn created_revision_has_owner_labels_and_hash() {
    let create = |history: History<'_>, transcript: &mut Transcript| {
        history.create(&new_revision(), &mut 0, transcript)
    };
    let ran = run(create, |request| match request {
        Request::Create { body, .. } => Ok(body.clone()),
        other => panic!("{other:?}"),
    });
    let created = ran.end.expect("it was created");
    let [Request::Create { body, .. }] = &*ran.requests else { panic!("{:?}", ran.requests) };
    let hash = body["metadata"]["labels"][HASH_LABEL].as_str().expect("a hash");
    assert_eq!(&*created.metadata.name, format!("web-{hash}"));
    assert_eq!(body["metadata"]["labels"]["app"], "a");
    assert_eq!(body["metadata"]["annotations"], json!({"note": "kept"}));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "u");
    assert_eq!((&body["data"], &body["revision"]), (&json!({"spec": {"a": "<"}}), &json!(3)));
}

#[test]
fn taken_name_is_used_again_for_the_same_data_and_passed_over_for_other_data() {
    for (data, created, collisions) in
        [(json!({"spec": {"a": "<"}}), 1, 0), (json!({"spec": {"a": "other"}}), 2, 1)]
    {
        let create = |history: History<'_>, transcript: &mut Transcript| {
            let mut count = 0;
            let revision = history.create(&new_revision(), &mut count, transcript)?;
            Ok((revision, count))
        };
        let first = std::cell::RefCell::new(None);
        let ran = run(create, |request| match request {
            Request::Create { body, .. } => {
                let name = body["metadata"]["name"].clone();
                match first.borrow_mut().get_or_insert_with(|| name.clone()) == &name {
                    true => Err(refusal(409, "AlreadyExists")),
                    false => Ok(body.clone()),
                }
            }
            Request::Read { .. } => Ok(json!({"metadata": {"name": "taken"}, "data": data})),
            other => panic!("{other:?}"),
        });
        let is_create = |one: &&Request| matches!(one, Request::Create { .. });
        assert_eq!(ran.requests.iter().filter(is_create).count(), created, "{data}");
        let (revision, count) = ran.end.expect("a name was found");
        assert_eq!((count, &*revision.metadata.name == "taken"), (collisions, collisions == 0));
    }
}

#[test]
fn renumbering_keeps_the_data_and_is_retried_on_conflicts() {
    let old = revision("r", 1, "2026-01-01T00:00:00Z");
    let renumber = |number: i64| {
        let old = Rc::clone(&old);
        move |history: History<'_>, transcript: &mut Transcript| {
            history.renumber(&old, number, transcript)
        }
    };
    assert!(run(renumber(1), |other| panic!("{other:?}")).requests.is_empty());
    let ran = run(renumber(5), |request| match request {
        Request::Replace { body, .. } if body["metadata"]["resourceVersion"] == "7" => {
            Err(refusal(409, "Conflict"))
        }
        Request::Replace { body, .. } => Ok(body.clone()),
        Request::Read { .. } => {
            let mut fresh = old.value();
            fresh["metadata"]["resourceVersion"] = "8".into();
            Ok(fresh)
        }
        other => panic!("{other:?}"),
    });
    let renumbered = ran.end.expect("the second attempt succeeds");
    assert_eq!((renumbered.revision, renumbered.data()), (5, old.data()));
    assert_eq!(ran.requests.len(), 3);
}

#[test]
fn conflicts_and_other_refusals_end_a_renumbering() {
    let old = revision("r", 1, "2026-01-01T00:00:00Z");
    for (code, reason, requests) in [(409, "Conflict", 7), (500, "InternalError", 1)] {
        let renumber = |history: History<'_>, transcript: &mut Transcript| {
            history.renumber(&old, 2, transcript)
        };
        let ran = run(renumber, |request| match request {
            Request::Replace { .. } => Err(refusal(code, reason)),
            _ => Ok(old.value()),
        });
        assert_eq!((ran.requests.len(), ran.end.is_err()), (requests, true), "{reason}");
    }
}

#[test]
fn only_an_orphan_is_adopted() {
    let orphan = revision("r", 1, "2026-01-01T00:00:00Z");
    let adopt =
        |history: History<'_>, transcript: &mut Transcript| history.adopt(&orphan, transcript);
    let ran = run(adopt, |_| Ok(json!({})));
    let [Request::Patch { target, form, body }] = &*ran.requests else {
        panic!("{:?}", ran.requests)
    };
    assert_eq!((target.key.as_str(), form), ("n/r", &PatchForm::Strategic));
    assert_eq!(body["metadata"]["ownerReferences"][0]["controller"], true);
    assert_eq!(body["metadata"]["uid"], "r");
    let mut owned = orphan.value();
    owned["metadata"]["ownerReferences"] = json!([{"uid": "x", "name": "x", "controller": true}]);
    let owned = decode(&owned).expect("a revision");
    let adopt =
        |history: History<'_>, transcript: &mut Transcript| history.adopt(&owned, transcript);
    assert!(run(adopt, |other| panic!("{other:?}")).end.is_err());
}

#[test]
fn deletion_reports_a_refusal() {
    let old = revision("r", 1, "2026-01-01T00:00:00Z");
    let delete =
        |history: History<'_>, transcript: &mut Transcript| history.delete(&old, transcript);
    assert!(run(delete, |_| Ok(json!({}))).end.is_ok());
    assert!(run(delete, |_| Err(refusal(404, "NotFound"))).end.is_err());
}
