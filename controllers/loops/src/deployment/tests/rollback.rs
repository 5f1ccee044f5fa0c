//! Rollbacks by annotation.
// k8s: pkg/controller/deployment/deployment_controller_test.go TestReentrantRollback

use pintle_api_types::request::Request;
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::Deployment;
use serde_json::{Value, json};

use super::super::annotations::ROLLBACK_TO;
use super::super::rollback::rollback_to;
use super::super::sets::REVISION;
use super::{annotated, deployment, now, rollout, set, template};
use crate::stub_api::{StepRun, agree, kept, messages, run, verbs};

/// Rolls a Deployment at revision 2 back; it has an old set of revision 1.
fn roll_back(revision: i64, values: &[Value]) -> StepRun<()> {
    let mut value = annotated(deployment(1, json!(1), json!(0)), ROLLBACK_TO, "1");
    value["metadata"]["annotations"][REVISION] = "2".into();
    let deployment: KeptObject<Deployment> = kept(&value);
    run(now(), agree, |transcript| {
        rollout(&deployment, values).roll_back(revision, transcript).map(drop)
    })
}

fn old_and_new() -> [Value; 2] {
    [
        annotated(annotated(set("old", "old", 0, 9), REVISION, "1"), "cause", "create"),
        annotated(annotated(set("new", "new", 1, 1), REVISION, "2"), "mine", "1"),
    ]
}

fn written(ran: &StepRun<()>) -> &Value {
    let Some(Request::Replace { target, body }) = ran.requests.last() else { panic!("an update") };
    assert_eq!((target.kind.plural, target.sub), ("deployments", ""));
    body
}

#[test]
fn revision_in_the_annotation_is_a_number() {
    for (text, expected) in [("1", Some(1)), ("0", Some(0)), ("", None), ("x", None)] {
        let value = annotated(deployment(1, json!(1), json!(0)), ROLLBACK_TO, text);
        assert_eq!(rollback_to(&kept::<Deployment>(&value)), expected, "{text}");
    }
    assert_eq!(rollback_to(&kept::<Deployment>(&deployment(1, json!(1), json!(0)))), None);
}

#[test]
fn rollback_copies_template_and_annotations_of_the_revision() {
    for revision in [1, 0] {
        let ran = roll_back(revision, &old_and_new());
        assert_eq!(verbs(&ran.requests), ["update deployments"]);
        let body = written(&ran);
        assert_eq!(body["spec"]["template"], template("old"), "without the hash");
        assert_eq!(body["metadata"]["annotations"], json!({"cause": "create", REVISION: "2"}));
        assert_eq!(
            messages(&ran.events),
            ["DeploymentRollback: Rolled back deployment \"foo\" to revision 1"]
        );
    }
}

#[test]
fn rollback_that_is_not_possible_is_given_up() {
    let one = [old_and_new()[1].clone()];
    for (revision, values, event) in [
        (
            7,
            &old_and_new()[..],
            "DeploymentRollbackRevisionNotFound: Unable to find the revision to rollback to.",
        ),
        (0, &one[..], "DeploymentRollbackRevisionNotFound: Unable to find last revision."),
        (
            2,
            &old_and_new()[..],
            "DeploymentRollbackTemplateUnchanged: The rollback revision contains the same \
             template as current deployment \"foo\"",
        ),
    ] {
        let ran = roll_back(revision, values);
        assert_eq!(messages(&ran.events), [event]);
        let body = written(&ran);
        assert_eq!(body["spec"]["template"], template("new"));
        assert_eq!(body["metadata"]["annotations"].get(ROLLBACK_TO), None);
    }
}
