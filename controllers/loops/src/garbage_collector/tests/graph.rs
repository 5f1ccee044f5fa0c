//! The graph alone: events, and which identity is tried next.
// k8s: pkg/controller/garbagecollector/garbagecollector_test.go TestProcessEvent
// k8s: pkg/controller/garbagecollector/graph_builder_test.go TestGetAlternateOwnerIdentity

use std::collections::BTreeSet;

use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::meta::{Meta, OwnerReference, Uid};
use proptest::prelude::*;

use super::super::graph::{Graph, GraphNode};
use super::super::identity::ObjectIdentity;
use super::super::partition::{Fit, alternative, fit};

fn identity(text: &str) -> ObjectIdentity {
    let parts: Vec<_> = text.split(' ').map(Symbol::of).collect();
    let [api_version, kind, namespace, name, uid] = &*parts else { panic!("{text}") };
    let namespace = if &**namespace == "-" { Symbol::default() } else { namespace.clone() };
    let (api_version, kind, name) = (api_version.clone(), kind.clone(), name.clone());
    ObjectIdentity { kind, api_version, namespace, name, uid: Uid::of(uid) }
}

fn reference(owner: &ObjectIdentity) -> OwnerReference {
    OwnerReference {
        api_version: owner.api_version.clone(),
        kind: owner.kind.clone(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
        ..OwnerReference::default()
    }
}

fn child(namespace: &str, owner: &str) -> GraphNode {
    GraphNode {
        identity: identity(&format!("v1 Child {namespace} c u")),
        dependents: BTreeSet::new(),
        owners: [reference(&identity(owner))].into(),
        is_deleting_dependents: false,
        is_being_deleted: false,
        is_virtual: false,
    }
}

#[test]
fn next_claimed_identity_after_the_absent_identity_is_chosen() {
    for (claims, absent, expected) in [
        (&[("n", "v1 P n p u"), ("n", "xx P n p u")][..], "v1 P n p u", Some("xx P n p u")),
        (&[("n", "v1 P n p u"), ("n", "v1 X n p u")], "v1 P n p u", Some("v1 X n p u")),
        (&[("n", "v1 P n p u"), ("m", "v1 P m p u")], "v1 P n p u", Some("v1 P m p u")),
        (&[("n", "v1 P n p u"), ("n", "v1 P n x u")], "v1 P n p u", Some("v1 P n x u")),
        (&[("n", "v1 C - p u"), ("n", "xx C - p u")], "v1 C - p u", Some("xx C n p u")),
        (&[("n", "v1 C - p u"), ("n", "v1 C - x u")], "v1 C - p u", Some("v1 C - x u")),
        (&[("n", "v1 P n p u")], "v1 P n p u", None),
        (&[("n", "v1 P n p other")], "v1 P n p u", None),
        (&[("n", "v1 P n p u"), ("n", "v3 P n p u")], "v5 P n p u", Some("v1 P n p u")),
        (&[("n", "v1 P n p u"), ("n", "v3 P n p u")], "v2 P n p u", Some("v3 P n p u")),
    ] {
        let children: Vec<_> =
            claims.iter().map(|(namespace, owner)| child(namespace, owner)).collect();
        let next = alternative(children.iter(), &identity(absent));
        assert_eq!(next, expected.map(identity), "{claims:?} without {absent}");
    }
}

#[test]
fn dependent_matches_an_owner_only_with_all_its_coordinates() {
    let (yes, no) =
        (Fit { matches: true, mismatches: false }, Fit { matches: false, mismatches: true });
    for (namespace, claimed, owner, expected) in [
        ("n", "v1 P n p u", "v1 P n p u", yes),
        ("n", "v1 P n p u", "v1 P m p u", no),
        ("n", "v1 P n p u", "v1 P - p u", yes),
        ("n", "v2 P n p u", "v1 P n p u", no),
        ("n", "v1 P n x u", "v1 P n p u", no),
        ("n", "v1 P n p other", "v1 P n p u", Fit::default()),
    ] {
        assert_eq!(fit(&child(namespace, claimed), &identity(owner)), expected);
    }
}

#[derive(Clone, Debug)]
struct GraphStep {
    uid: usize,
    owners: Vec<usize>,
    is_gone: bool,
}

fn step() -> impl Strategy<Value = GraphStep> {
    let owners = prop::collection::vec(0..8_usize, 0..4);
    (0..8_usize, owners, any::<bool>()).prop_map(|(uid, owners, is_gone)| GraphStep {
        uid,
        owners,
        is_gone,
    })
}

fn name(at: usize) -> ObjectIdentity {
    identity(&format!("v1 P n p{at} u{at}"))
}

/// Each node is a dependent of exactly the owners that it names, and virtual nodes have dependents.
fn check(graph: &Graph) {
    for node in graph.nodes() {
        let uid = &node.identity.uid;
        for owner in node.owners.iter() {
            // Dependents of a deleted owner were examined; a later one may reference it again.
            if let Some(owner) = graph.get(&owner.uid).filter(|owner| !owner.is_virtual) {
                assert!(owner.dependents.contains(uid), "{uid} is no dependent of its owner");
            }
        }
        for dependent in &node.dependents {
            let dependent = graph.get(dependent).expect("dependents are in the graph");
            assert!(dependent.owners.iter().any(|owner| owner.uid == *uid));
        }
    }
}

proptest! {
    #[test]
    fn graph_agrees_with_the_references_after_any_events(
        steps in prop::collection::vec(step(), 0..60)
    ) {
        let mut graph = Graph::default();
        let mut known: [Option<Meta>; 8] = Default::default();
        let mut gone = BTreeSet::new();
        for step in steps {
            let identity = name(step.uid);
            // A UID never comes back.
            if gone.contains(&step.uid) {
                continue;
            }
            if step.is_gone {
                known[step.uid] = None;
                gone.insert(step.uid);
                graph.remove(&identity);
            } else {
                let owners = step.owners.iter().map(|at| reference(&name(*at))).collect();
                let meta = Meta {
                    uid: identity.uid.clone(),
                    owner_references: owners,
                    ..Meta::default()
                };
                let old = known[step.uid].replace(meta.clone());
                graph.set(identity, old.as_ref(), &meta);
            }
            check(&graph);
        }
        for (at, meta) in known.iter().enumerate() {
            let node = graph.get(&name(at).uid);
            prop_assert_eq!(node.is_some_and(|node| !node.is_virtual), meta.is_some());
        }
    }
}
