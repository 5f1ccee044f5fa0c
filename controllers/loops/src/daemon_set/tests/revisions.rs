//! Revisions: found by bytes and by meaning, labeled, merged, collided and deleted.

use pintle_api_types::kind::{CONTROLLER_REVISIONS, PODS};
use serde_json::json;

use super::*;

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
    let mut world = world(set(), 1);
    settle(&mut world);
    let first = revisions(&world);
    set_image(&mut world, "two");
    settle(&mut world);
    set_image(&mut world, "one");
    settle(&mut world);
    let last = revisions(&world);
    assert_eq!((last.len(), &last[1].0, last[1].1), (2, &first[0].0, 3));
    assert_eq!(images(&world)["node-0"], "one");
}

#[test]
fn revision_has_labels_annotations_and_the_hash_in_its_name() {
    let mut world = world(set(), 0);
    sync(&mut world);
    let revision = world.all(CONTROLLER_REVISIONS).next().expect("a revision");
    let metadata = &revision["metadata"];
    let hash = metadata["labels"]["controller-revision-hash"].as_str().expect("a hash");
    assert_eq!(metadata["name"], format!("ds-{hash}"));
    assert_eq!(metadata["labels"]["app"], "ds");
    assert_eq!(metadata["annotations"]["deprecated.daemonset.template.generation"], "1");
    assert_eq!(revision["data"]["spec"]["template"]["$patch"], "replace");
}

#[test]
fn oldest_revisions_beyond_the_limit_are_deleted_unless_a_pod_uses_them() {
    let mut manual = set();
    manual["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    let mut world = world(manual, 1);
    settle(&mut world);
    let first = revisions(&world)[0].0.clone();
    for image in ["two", "three", "four", "five"] {
        set_image(&mut world, image);
        settle(&mut world);
    }
    let left = revisions(&world);
    assert_eq!(left.len(), 3, "{left:?}");
    assert_eq!(left[0].0, first, "the pod still has it");
}

#[test]
fn revision_that_restores_the_set_stays_current_though_its_bytes_differ() {
    let mut world = world(set(), 1);
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
        // What earlier releases printed (k#134773).
        template["metadata"]["creationTimestamp"] = Value::Null;
        template["spec"].as_object_mut().expect("a spec").remove("schedulerName");
    });
    let driven = sync(&mut world);
    assert!(driven.requests.is_empty(), "{:?}", driven.requests);
    assert_eq!(revisions(&world), before);
}

#[test]
fn doubles_of_the_current_revision_are_merged_and_pods_are_labeled() {
    let mut world = world(set(), 2);
    settle(&mut world);
    let first = revisions(&world)[0].0.clone();
    let mut double = world.get(CONTROLLER_REVISIONS, &first).expect("it is there").clone();
    double["metadata"]["name"] = "ds-double".into();
    double["metadata"]["uid"] = "double".into();
    double["metadata"]["labels"]["controller-revision-hash"] = "double".into();
    double["revision"] = 2.into();
    world.add(CONTROLLER_REVISIONS, double);
    settle(&mut world);
    assert_eq!(world.names(CONTROLLER_REVISIONS), ["ds-double"]);
    for pod in world.all(PODS) {
        assert_eq!(pod["metadata"]["labels"]["controller-revision-hash"], "double");
    }
}

#[test]
fn revision_without_its_label_is_labeled_with_its_name() {
    let mut world = world(set(), 0);
    settle(&mut world);
    let name = revisions(&world)[0].0.clone();
    world.edit(CONTROLLER_REVISIONS, &name, |one| one["metadata"]["labels"] = json!({"app": "ds"}));
    settle(&mut world);
    let revision = world.get(CONTROLLER_REVISIONS, &name).expect("it is there");
    assert_eq!(revision["metadata"]["labels"]["controller-revision-hash"], *name);
}

#[test]
fn taken_name_raises_the_collision_count_in_the_status() {
    let mut world = world(set(), 1);
    let mut probe = super::world(set(), 1);
    sync(&mut probe);
    let name = revisions(&probe)[0].0.clone();
    world.add(
        CONTROLLER_REVISIONS,
        json!({"metadata": {"name": name}, "revision": 1,
        "data": {"spec": {"template": {"$patch": "replace"}}}}),
    );
    let failure = sync(&mut world).outcome.expect_err("the name is taken");
    assert_eq!(failure.message, "failed to construct revisions of DaemonSet: AlreadyExists");
    assert_eq!(status(&world)["collisionCount"], 1);
    settle(&mut world);
    assert_eq!(world.names(CONTROLLER_REVISIONS).len(), 2);
    assert_eq!(status(&world)["collisionCount"], 1);
}

#[test]
fn orphaned_revision_is_adopted() {
    let mut world = world(set(), 0);
    settle(&mut world);
    let name = revisions(&world)[0].0.clone();
    world.edit(CONTROLLER_REVISIONS, &name, |one| one["metadata"]["ownerReferences"] = json!([]));
    settle(&mut world);
    let revision = world.get(CONTROLLER_REVISIONS, &name).expect("it is there");
    assert_eq!(revision["metadata"]["ownerReferences"][0]["uid"], "set");
    assert_eq!(revisions(&world).len(), 1);
}
