//! Revisions: found by bytes and by meaning, renumbered, adopted, collided and truncated.

use pintle_api_types::kind::CONTROLLER_REVISIONS;
use pintle_api_types::request::Request;
use serde_json::json;

use super::*;
use crate::test_world::error;

fn revisions(world: &LoopWorld) -> Vec<(String, i64)> {
    let revision = |one: &Value| {
        let name = one["metadata"]["name"].as_str().expect("a name").to_owned();
        (name, one["revision"].as_i64().expect("a number"))
    };
    let mut revisions: Vec<_> = world.all(CONTROLLER_REVISIONS).map(revision).collect();
    revisions.sort_by_key(|(_, number)| *number);
    revisions
}

#[test]
fn each_template_gets_one_revision_and_a_roll_back_renumbers_it() {
    let mut world = world(set(1));
    settle(&mut world);
    let first = revisions(&world);
    assert_eq!(first.len(), 1);
    set_image(&mut world, "two");
    settle(&mut world);
    assert_eq!(revisions(&world).iter().map(|(_, number)| *number).collect::<Vec<_>>(), [1, 2]);
    set_image(&mut world, "one");
    settle(&mut world);
    let last = revisions(&world);
    assert_eq!((last.len(), &last[1].0, last[1].1), (2, &first[0].0, 3));
    assert_eq!(status(&world)["updateRevision"], *last[1].0);
}

#[test]
fn revision_has_the_labels_of_the_template_and_annotations_of_the_set() {
    let mut annotated = set(1);
    annotated["metadata"]["annotations"] = json!({"note": "kept"});
    let mut world = world(annotated);
    sync(&mut world);
    let revision = world.all(CONTROLLER_REVISIONS).next().expect("a revision");
    let metadata = &revision["metadata"];
    assert_eq!(metadata["labels"]["app"], "web");
    assert_eq!(metadata["annotations"], json!({"note": "kept"}));
    let hash = metadata["labels"]["controller.kubernetes.io/hash"].as_str().expect("a hash");
    assert_eq!(metadata["name"], format!("web-{hash}"));
    assert_eq!(revision["data"]["spec"]["template"]["$patch"], "replace");
}

#[test]
fn newest_revision_that_restores_the_set_is_kept_though_its_bytes_differ() {
    let mut world = world(set(2));
    // Defaults are set, as the API server does.
    edit(&mut world, |set| {
        let template = set["spec"]["template"].take();
        set["spec"]["template"] =
            pintle_controllers_core::common::template_defaults::with_defaults(template)
                .expect("a template");
    });
    settle(&mut world);
    let before = revisions(&world);
    world.edit(CONTROLLER_REVISIONS, &before[0].0, |revision| {
        let template = &mut revision["data"]["spec"]["template"];
        // What earlier releases printed, and what they did not print yet (k#134773).
        template["metadata"]["creationTimestamp"] = Value::Null;
        template["spec"]
            .as_object_mut()
            .expect("a spec")
            .remove("schedulerName")
            .expect("a default");
    });
    let driven = sync(&mut world);
    assert!(driven.requests.is_empty(), "{:?}", driven.requests);
    assert_eq!(revisions(&world), before);
    set_image(&mut world, "two");
    sync(&mut world);
    assert_eq!(revisions(&world).len(), 2, "another template is not equal");
}

#[test]
fn taken_name_raises_the_collision_count() {
    let mut world = world(set(1));
    let mut probe = super::world(set(1));
    sync(&mut probe);
    let name = revisions(&probe)[0].0.clone();
    world.add(
        CONTROLLER_REVISIONS,
        json!({"metadata": {"name": name}, "revision": 1,
        "data": {"spec": {"template": {"$patch": "replace"}}}}),
    );
    sync(&mut world);
    assert_eq!(status(&world)["collisionCount"], 1);
    assert_eq!(world.names(CONTROLLER_REVISIONS).len(), 2);
    assert_ne!(status(&world)["updateRevision"], name);
}

#[test]
fn existing_revision_with_the_same_data_is_taken() {
    let mut world = world(set(1));
    sync(&mut world);
    let name = revisions(&world)[0].0.clone();
    // Its labels do not match any more: it is not listed, but its name is taken.
    world.edit(CONTROLLER_REVISIONS, &name, |one| one["metadata"]["labels"] = json!({}));
    let driven = sync(&mut world);
    assert!(driven.requests.iter().any(|one| matches!(one, Request::Read { .. })));
    assert_eq!(status(&world)["updateRevision"], name);
    assert_eq!(status(&world)["collisionCount"], 0);
}

#[test]
fn orphaned_revision_is_adopted_after_a_live_read_of_the_set() {
    let mut world = world(set(1));
    settle(&mut world);
    let name = revisions(&world)[0].0.clone();
    world.edit(CONTROLLER_REVISIONS, &name, |one| one["metadata"]["ownerReferences"] = json!([]));
    let driven = sync(&mut world);
    let [Request::Read { target: read, .. }, Request::Patch { target, body, .. }] =
        &driven.requests[..]
    else {
        panic!("{:?}", driven.requests)
    };
    assert_eq!((read.key.name(), target.key.name()), ("web", &*name));
    assert_eq!(body["metadata"]["ownerReferences"][0]["uid"], "set");
    assert!(sync(&mut world).requests.is_empty());
}

#[test]
fn oldest_revisions_beyond_the_limit_are_deleted_except_the_live_revision() {
    let mut world = world(set(1));
    let mut names = Vec::new();
    for image in ["one", "two", "three", "four", "five"] {
        set_image(&mut world, image);
        settle(&mut world);
        names.push(status(&world)["updateRevision"].as_str().expect("a name").to_owned());
    }
    let left: Vec<_> = revisions(&world).into_iter().map(|(name, _)| name).collect();
    assert_eq!(left, names[2..], "two old ones and the live one");
}

#[test]
fn history_is_truncated_also_after_a_failure_and_both_are_reported() {
    let mut world = world(set(1));
    for image in ["one", "two", "three"] {
        set_image(&mut world, image);
        settle(&mut world);
    }
    edit(&mut world, |set| {
        set["spec"]["revisionHistoryLimit"] = 0.into();
        set["spec"]["replicas"] = 2.into();
    });
    world.refuse = Box::new(|request| match request {
        Request::Create { .. } => Some(error(403, "NoPod")),
        Request::Delete { .. } => Some(error(403, "NoDelete")),
        _ => None,
    });
    let failure = sync(&mut world).outcome.expect_err("both were refused");
    assert_eq!(failure.message, "[NoPod, NoDelete]");
}
