//! The requests of one examination.
// k8s: pkg/controller/garbagecollector/garbagecollector_test.go

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, NODES, PODS};
use pintle_api_types::request::{DeleteOptions, Propagation, Target};
use serde_json::json;

use super::super::{Change, Controller, Kind};
use super::{CollectorWorld, blocking, foos, object, owned};

const POD: &str = "get pods n/pod";

fn world_of(objects: &[serde_json::Value]) -> CollectorWorld {
    let mut world = CollectorWorld::new();
    for object in objects {
        let object = world.server.put(object.clone());
        world.observe(&object);
    }
    world
}

fn delete(world: &mut CollectorWorld, kind: Kind, name: &str, propagation: Propagation) {
    let target = Target::object(kind, ObjectKey::new("n", name));
    let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
    world.server.delete(&target, &options).expect("it is there");
}

/// Watches show everything.
fn observe_all(world: &mut CollectorWorld) {
    let unseen = std::mem::take(&mut world.server.unseen);
    for happening in unseen.into_values().flatten() {
        match happening {
            super::server::Happening::Set(object) => world.observe(&object),
            super::server::Happening::Gone(object) => world.observe_gone(&object),
        }
    }
}

/// Processes until nothing is left; returns the requests that write.
fn settle(world: &mut CollectorWorld) -> Vec<String> {
    let mut writes = Vec::new();
    observe_all(world);
    for _ in 0..100 {
        if world.pending.is_empty() {
            return writes;
        }
        let requests = world.process();
        writes.extend(requests.into_iter().filter(|text| !text.starts_with("get")));
        observe_all(world);
    }
    panic!("it does not come to rest: {:?}", world.pending);
}

#[test]
fn object_is_deleted_when_its_only_owner_is_deleted() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let mut world = world_of(&[owner.clone(), owned(object(PODS, "n", "pod", "p"), &owner)]);
    assert!(world.pending().is_empty());
    delete(&mut world, DEPLOYMENTS, "owner", Propagation::Background);
    assert_eq!(settle(&mut world), ["delete pods n/pod Background"]);
    assert!(world.server.objects.is_empty() && world.collector.view().is_empty());
}

#[test]
fn object_with_another_live_owner_only_loses_the_reference() {
    let owners = ["a", "b"].map(|name| object(DEPLOYMENTS, "n", name, name));
    let pod = owned(owned(object(PODS, "n", "pod", "p"), &owners[0]), &owners[1]);
    let mut world = world_of(&[owners[0].clone(), owners[1].clone(), pod]);
    delete(&mut world, DEPLOYMENTS, "a", Propagation::Background);
    assert_eq!(settle(&mut world), ["patch pods n/pod strategic"]);
    let pod = &world.server.objects["/api/v1/namespaces/n/pods/pod"];
    assert_eq!(pod["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
}

#[test]
fn custom_object_is_patched_in_the_form_that_its_kind_supports() {
    let owners = ["a", "b"].map(|name| object(DEPLOYMENTS, "n", name, name));
    let foo = owned(owned(object(foos(), "n", "foo", "f"), &owners[0]), &owners[1]);
    let mut world = world_of(&[owners[0].clone(), owners[1].clone(), foo]);
    delete(&mut world, DEPLOYMENTS, "a", Propagation::Background);
    let expected = ["patch foos.example.com n/foo strategic", "patch foos.example.com n/foo merge"];
    assert_eq!(settle(&mut world), expected);
}

#[test]
fn foreground_deletion_waits_for_blocking_dependents() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let pod = blocking(owned(object(PODS, "n", "pod", "p"), &owner));
    let mut world = world_of(&[owner, pod]);
    delete(&mut world, DEPLOYMENTS, "owner", Propagation::Foreground);
    let expected = ["delete pods n/pod Background", "patch deployments.apps n/owner merge"];
    assert_eq!(settle(&mut world), expected);
    assert!(world.server.objects.is_empty());
}

#[test]
fn orphaning_deletion_keeps_the_dependents() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let pod = owned(object(PODS, "n", "pod", "p"), &owner);
    let foo = owned(object(foos(), "n", "foo", "f"), &owner);
    let mut world = world_of(&[owner, pod, foo]);
    delete(&mut world, DEPLOYMENTS, "owner", Propagation::Orphan);
    let writes = settle(&mut world);
    assert_eq!(writes.len(), 4, "{writes:?}");
    assert_eq!(world.server.objects.len(), 2);
    for object in world.server.objects.values() {
        assert!(object["metadata"]["ownerReferences"].is_null());
    }
}

// k8s: garbagecollector_test.go TestOrphanDependentsFailure
#[test]
fn failed_orphaning_keeps_the_finalizer() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let mut pod = owned(object(PODS, "n", "pod", "p"), &owner);
    let mut world = world_of(&[owner, pod.clone()]);
    delete(&mut world, DEPLOYMENTS, "owner", Propagation::Orphan);
    observe_all(&mut world);
    // Another pod took the name, so that the patch is refused.
    pod["metadata"]["uid"] = "other".into();
    world.server.put(pod);
    assert_eq!(world.process(), ["patch pods n/pod strategic"]);
    assert_eq!(world.pending(), ["o"]);
}

#[test]
fn cycle_that_is_deleted_in_the_foreground_is_unblocked() {
    let (mut first, mut second) = (object(PODS, "n", "a", "a"), object(PODS, "n", "b", "b"));
    first = blocking(owned(first, &second));
    second = blocking(owned(second, &object(PODS, "n", "a", "a")));
    let mut world = world_of(&[first, second]);
    settle(&mut world);
    delete(&mut world, PODS, "a", Propagation::Foreground);
    settle(&mut world);
    assert!(world.server.objects.is_empty(), "{:?}", world.server.objects);
}

// k8s: garbagecollector_test.go TestAbsentOwnerCache
#[test]
fn absent_owner_is_read_once_for_all_dependents() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let mut world = CollectorWorld::new();
    for name in ["a", "b", "c"] {
        let pod = world.server.put(owned(object(PODS, "n", name, name), &owner));
        world.observe(&pod);
    }
    assert_eq!(world.process(), ["get deployments.apps n/owner"]);
    let writes = settle(&mut world);
    assert_eq!(writes.len(), 3);
    assert_eq!(world.server.deleted, ["a", "b", "c"]);
}

#[test]
fn deletion_names_uid_and_version_and_survives_unrelated_changes() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let mut world = world_of(&[owned(object(PODS, "n", "pod", "p"), &owner)]);
    assert_eq!(world.process(), ["get deployments.apps n/owner"]);
    let key = world.pending.pop_front().expect("the pod");
    let snapshot = world.collector.snapshot(&key, &world.tables, crate::testing::at(0));
    let server = &mut world.server;
    let mut conflicts = 0;
    let driven = super::drive::<super::GarbageCollector>(
        &snapshot.expect("a pod"),
        crate::testing::at(0).wall,
        |request| {
            if let super::Request::Delete { options, .. } = request {
                assert_eq!(options.uid.as_deref(), Some("p"));
                conflicts += 1;
                // The status of the pod changes all the time.
                let pod = server.objects["/api/v1/namespaces/n/pods/pod"].clone();
                server.put(pod);
            }
            server.answer(request)
        },
    );
    assert!(driven.outcome.is_ok());
    assert_eq!(conflicts, 2);
    assert!(world.server.objects.is_empty());
}

#[test]
fn owner_of_a_kind_that_is_not_listed_counts_as_present() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let mut world = CollectorWorld::unlisted();
    let pod = world.server.put(owned(object(PODS, "n", "pod", "p"), &owner));
    world.observe(&pod);
    world.list(PODS);
    assert_eq!(world.pending(), ["o"]);
    assert!(world.process().is_empty(), "nothing is read before the list is complete");
    assert!(world.pending().is_empty());
    world.list(DEPLOYMENTS);
    assert_eq!(settle(&mut world), ["delete pods n/pod Background"]);
}

#[test]
fn owner_of_an_unlisted_kind_keeps_a_dependent_with_another_owner_missing() {
    let unlisted = object(DEPLOYMENTS, "n", "owner", "o");
    let gone = object(NODES, "", "gone", "g");
    let pod = owned(owned(object(PODS, "n", "pod", "p"), &unlisted), &gone);
    let mut world = CollectorWorld::unlisted();
    world.list(PODS);
    world.list(NODES);
    let pod = world.server.put(pod);
    world.observe(&pod);
    assert_eq!(settle(&mut world), ["patch pods n/pod strategic"]);
    assert_eq!(world.server.objects.len(), 1);
}

#[test]
fn dropped_kind_does_not_mark_its_objects_as_deleted() {
    let owner = object(foos(), "n", "owner", "o");
    let mut world = world_of(&[owner.clone(), owned(object(PODS, "n", "pod", "p"), &owner)]);
    world.apply(super::WatchEvent::Dropped(foos()));
    assert_eq!(world.pending(), ["o"]);
    assert_eq!(world.process(), ["get foos.example.com n/owner"]);
    assert!(world.nodes().contains(&"example.com/v1 Foo n/owner?".to_owned()));
    assert!(world.collector.graph.borrow().absent.clone().is_empty());
}

#[test]
fn unknown_kind_waits_for_discovery() {
    let mut owner = object(foos(), "n", "owner", "o");
    owner["kind"] = "Unknown".into();
    let mut world = world_of(&[owned(object(PODS, "n", "pod", "p"), &owner)]);
    assert!(world.process().is_empty());
    assert!(world.pending().is_empty());
    world.change(&Change::Discovered);
    assert_eq!(world.pending(), ["o"]);
}

#[test]
fn object_without_owners_is_left_alone_also_when_a_virtual_node_was_examined() {
    let mut world = world_of(&[object(PODS, "n", "pod", "p")]);
    let (reason, namespace) = (super::NodeReason::Delete, super::Symbol::of("n"));
    world.pending.push_back(super::NodeKey { uid: super::Uid::of("p"), reason, namespace });
    assert_eq!(world.process(), [POD]);
    assert_eq!(world.server.deleted, [""; 0]);
}

// k8s: garbagecollector_test.go TestUnblockOwnerReference
#[test]
fn finalizers_of_the_object_choose_its_deletion_propagation() {
    for (finalizers, manner) in [
        (json!(["orphan", "foregroundDeletion"]), "Orphan"),
        (json!(["foregroundDeletion", "x/y"]), "Foreground"),
        (json!(["x/y"]), "Background"),
    ] {
        let owner = object(DEPLOYMENTS, "n", "owner", "o");
        let mut pod = owned(object(PODS, "n", "pod", "p"), &owner);
        pod["metadata"]["finalizers"] = finalizers;
        let mut world = world_of(&[pod]);
        world.process();
        assert!(world.process().contains(&format!("delete pods n/pod {manner}")));
    }
}

#[test]
fn debug_pages_name_the_nodes_that_the_graph_has() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let world = world_of(&[owned(object(PODS, "n", "pod", "p"), &owner)]);
    let page = |name: &str| world.collector.debug_page(name, &["p", "x", "o"]);
    assert_eq!(page("nodes").as_deref(), Some("p\no\n"));
    assert_eq!(page("synced").as_deref(), Some("true\n"));
    assert!(page("graph").is_some_and(|graph| graph.contains("\"p\" -> \"o\"")));
    assert_eq!(page("other"), None);
}

// k8s: dump_test.go TestMarshalDOT
#[test]
fn graph_is_shown_with_its_virtual_owners_and_edges() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let lone = object(PODS, "n", "lone", "l");
    let world = world_of(&[owned(object(PODS, "n", "pod", "p"), &owner), lone]);
    let view = world.collector.view();
    let expected = r#"strict digraph full {
  // Node definitions.
  "o" [
    label="uid=o\nnamespace=n\nDeployment.v1.apps/owner\nvirtual\n"
    group="apps"
    version="v1"
    kind="Deployment"
    namespace="n"
    name="owner"
    uid="o"
    missing="false"
    beingDeleted="false"
    deletingDependents="false"
    virtual="true"
  ];
  "p" [
    label="uid=p\nnamespace=n\nPod.v1/pod\n"
    group=""
    version="v1"
    kind="Pod"
    namespace="n"
    name="pod"
    uid="p"
    missing="false"
    beingDeleted="false"
    deletingDependents="false"
    virtual="false"
  ];
  // Edge definitions.
  "p" -> "o";
}
"#;
    assert_eq!(view.to_dot(&[]), expected);
    assert_eq!(view.to_dot(&["o"]), expected);
    assert_eq!(view.to_dot(&["l"]), "strict digraph full {\n}\n");
    assert!(view.is_synced());
}
