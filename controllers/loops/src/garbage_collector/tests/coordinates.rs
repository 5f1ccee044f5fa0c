//! References that name the wrong kind, version, name or namespace.
// k8s: pkg/controller/garbagecollector/garbagecollector_test.go TestConflictingData

use pintle_api_types::kind::{DEPLOYMENTS, NODES, PODS, SECRETS};
use serde_json::Value;

use super::{CollectorWorld, foos, object, old_foos, owned};

fn put(world: &mut CollectorWorld, objects: &[&Value]) {
    for object in objects {
        world.server.put((*object).clone());
    }
}

#[test]
fn cluster_scoped_owner_gets_its_namespace_corrected() {
    let node = object(NODES, "", "node", "node");
    let pod = owned(object(PODS, "n", "pod", "p"), &node);
    let mut world = CollectorWorld::new();
    put(&mut world, &[&node, &pod]);
    world.observe(&pod);
    assert_eq!(world.nodes(), ["v1 Node n/node?", "v1 Pod n/pod"]);
    assert_eq!(world.process(), ["get nodes node"]);
    assert_eq!(world.pending(), ["node"], "it was not observed yet");
    world.observe(&node);
    assert_eq!(world.nodes(), ["v1 Node /node", "v1 Pod n/pod"]);
    world.process();
    assert!(world.pending().is_empty() && world.server.deleted.is_empty());
}

#[test]
fn dependent_of_an_owner_in_another_namespace_is_reported_and_deleted() {
    for is_owner_first in [true, false] {
        let owner = object(PODS, "m", "owner", "o");
        let pod = owned(object(PODS, "n", "pod", "p"), &owner);
        let mut world = CollectorWorld::new();
        put(&mut world, &[&owner, &pod]);
        let order = if is_owner_first { [&owner, &pod] } else { [&pod, &owner] };
        order.into_iter().for_each(|object| world.observe(object));
        while !world.pending().is_empty() {
            world.process();
        }
        let message = "ownerRef [v1/Pod, namespace: n, name: owner, uid: o] does not exist in \
                       namespace \"n\"";
        assert_eq!(world.events, [message], "owner first: {is_owner_first}");
        assert_eq!(world.server.deleted, ["p"]);
    }
}

#[test]
fn dependent_of_the_whole_cluster_with_a_namespaced_owner_is_reported_and_kept() {
    for is_owner_first in [true, false] {
        let owner = object(PODS, "n", "owner", "o");
        let node = owned(object(NODES, "", "node", "node"), &owner);
        let mut world = CollectorWorld::new();
        put(&mut world, &[&owner, &node]);
        let order = if is_owner_first { [&owner, &node] } else { [&node, &owner] };
        for object in order {
            world.observe(object);
            for _ in 0..world.pending.len() {
                world.process();
            }
        }
        assert_eq!(world.events.len(), 1);
        assert!(world.server.deleted.is_empty() && world.pending().is_empty());
    }
}

#[test]
fn owner_in_another_served_version_counts_and_its_deletion_is_observed() {
    let owner = object(foos(), "n", "owner", "o");
    let named = object(old_foos(), "n", "owner", "o");
    let pod = owned(object(PODS, "n", "pod", "p"), &named);
    let mut world = CollectorWorld::new();
    put(&mut world, &[&owner, &pod]);
    world.observe(&pod);
    assert_eq!(world.process(), ["get foos.example.com n/owner"]);
    assert_eq!(world.pending(), ["o"]);
    world.observe(&owner);
    assert_eq!(world.nodes(), ["example.com/v1 Foo n/owner", "v1 Pod n/pod"]);
    assert_eq!(world.pending(), ["o", "p"], "the pod disagrees with what was observed");
    world.process();
    world.process();
    assert!(world.pending().is_empty() && world.server.deleted.is_empty());
    world.server.objects.retain(|_, object| object["kind"] != "Foo");
    world.observe_gone(&owner);
    assert_eq!(world.pending(), ["p"]);
    world.process();
    assert_eq!(world.server.deleted, ["p"]);
}

#[test]
fn wrong_owner_kind_of_a_dependent_does_not_harm_other_dependents() {
    let owner = object(DEPLOYMENTS, "n", "owner", "o");
    let wrong = object(SECRETS, "n", "secret", "o");
    let bad = owned(object(PODS, "n", "bad", "bad"), &wrong);
    let good = owned(object(PODS, "n", "good", "good"), &owner);
    for order in [[&bad, &good, &owner], [&bad, &owner, &good], [&owner, &bad, &good]] {
        let mut world = CollectorWorld::new();
        put(&mut world, &[&owner, &bad, &good]);
        for object in order {
            world.observe(object);
            for _ in 0..world.pending.len() {
                world.process();
            }
        }
        for _ in 0..20 {
            if !world.pending().is_empty() {
                world.process();
            }
        }
        assert_eq!(world.server.deleted, ["bad"]);
        assert!(world.nodes().contains(&"apps/v1 Deployment n/owner".to_owned()));
    }
}

#[test]
fn absent_owner_is_tried_under_all_names_that_dependents_claim() {
    let mut world = CollectorWorld::new();
    for (name, kind) in [("a", DEPLOYMENTS), ("b", SECRETS), ("c", foos())] {
        let pod = owned(object(PODS, "n", name, name), &object(kind, "n", name, "o"));
        let pod = world.server.put(pod);
        world.observe(&pod);
    }
    for _ in 0..30 {
        if !world.pending().is_empty() {
            world.process();
            let gone = std::mem::take(&mut world.server.unseen);
            for happening in gone.into_values().flatten() {
                if let super::server::Happening::Gone(object) = happening {
                    world.observe_gone(&object);
                }
            }
        }
    }
    let mut deleted = world.server.deleted.clone();
    deleted.sort_unstable();
    assert_eq!(deleted, ["a", "b", "c"]);
    assert_eq!(world.nodes(), [""; 0]);
}
