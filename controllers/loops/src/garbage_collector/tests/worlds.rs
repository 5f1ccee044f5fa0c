//! Random clusters: the collector deletes only what has no live owner, and in the end all of that.
//!
//! Users create, delete and re-own objects, also between two requests of one examination, and
//! watches lag behind by any amount. Some references name wrong kinds, names or namespaces.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, Kind, NODES, PODS};
use pintle_api_types::request::{DeleteOptions, Propagation, Target};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{Controller, Wakes};
use super::server::{GarbageServer, Happening};
use super::{CollectorWorld, foos, kind_of, object, owned};
use crate::testing::at;

/// A step of a user or a watch.
#[derive(Clone, Debug)]
enum Act {
    Create { kind: usize, namespace: usize, name: usize, owners: Vec<usize>, is_blocking: bool },
    Delete { object: usize, manner: usize },
    Disown { object: usize },
    Show { kind: usize },
    Process,
    ProcessWhile(Box<Act>),
}

const MANNERS: [Option<Propagation>; 4] =
    [None, Some(Propagation::Background), Some(Propagation::Foreground), Some(Propagation::Orphan)];

fn user_act() -> impl Strategy<Value = Act> {
    let owners = prop::collection::vec(0..40_usize, 0..3);
    let create = (0..4_usize, 0..2_usize, 0..6_usize, owners, any::<bool>());
    prop_oneof![
        4 => create.prop_map(|(kind, namespace, name, owners, is_blocking)| {
            Act::Create { kind, namespace, name, owners, is_blocking }
        }),
        2 => (0..20_usize, 0..4_usize).prop_map(|(object, manner)| Act::Delete { object, manner }),
        1 => (0..20_usize).prop_map(|object| Act::Disown { object }),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => user_act(),
        4 => (0..4_usize).prop_map(|kind| Act::Show { kind }),
        3 => Just(Act::Process),
        1 => user_act().prop_map(|act| Act::ProcessWhile(Box::new(act))),
    ]
}

fn kinds() -> [Kind; 4] {
    [PODS, NODES, DEPLOYMENTS, foos()]
}

/// Changes what a user asks for.
fn change(server: &mut GarbageServer, act: &Act, uids: &mut usize) {
    match act {
        Act::Create { kind, namespace, name, owners, is_blocking } => {
            let kind = kinds()[*kind];
            let namespace = if kind.is_namespaced { ["m", "n"][*namespace] } else { "" };
            let path = format!("{}/o{name}", kind.path(namespace));
            if server.objects.contains_key(&path) {
                return;
            }
            *uids += 1;
            let mut new = object(kind, namespace, &format!("o{name}"), &format!("u{uids}"));
            for owner in owners {
                let owner = claimed(server, *owner);
                // An object of the whole cluster with a namespaced owner is judged only once.
                if kind.is_namespaced || owner["kind"] == "Node" {
                    new = owned(new, &owner);
                }
            }
            if *is_blocking && new["metadata"]["ownerReferences"].is_array() {
                new = super::blocking(new);
            }
            server.put(new);
        }
        Act::Delete { object, manner } => {
            let Some(object) = server.objects.values().nth(*object) else { return };
            let key = ObjectKey::new(
                object["metadata"]["namespace"].as_str().unwrap_or_default(),
                object["metadata"]["name"].as_str().unwrap_or_default(),
            );
            let target = Target::object(kind_of(object), key);
            let options = DeleteOptions { propagation: MANNERS[*manner], ..Default::default() };
            server.delete(&target, &options).expect("it is there");
        }
        Act::Disown { object } => {
            let Some(object) = server.objects.values().nth(*object).cloned() else { return };
            let mut object = object;
            object["metadata"]["ownerReferences"] = Value::Null;
            server.put(object);
        }
        _ => unreachable!("no act of a user"),
    }
}

/// An owner that a user claims: a live one, one with a wrong name or namespace, or none at all.
fn claimed(server: &GarbageServer, owner: usize) -> Value {
    let live = server.objects.values().nth(owner % 20);
    match (live, owner % 7) {
        (Some(live), 0) => {
            let mut wrong = live.clone();
            wrong["metadata"]["name"] = "wrong".into();
            wrong
        }
        (Some(live), 1) => {
            let uid = live["metadata"]["uid"].as_str().unwrap_or_default();
            object(DEPLOYMENTS, "n", "o1", uid)
        }
        (Some(live), _) => live.clone(),
        (None, _) => object(DEPLOYMENTS, "n", "o1", "never"),
    }
}

fn show(world: &mut CollectorWorld, kind: Kind) -> bool {
    let happening =
        world.server.unseen.get_mut(&kind).and_then(std::collections::VecDeque::pop_front);
    match happening {
        Some(Happening::Set(object)) => world.observe(&object),
        Some(Happening::Gone(object)) => world.observe_gone(&object),
        None => return false,
    }
    true
}

/// Examines the next key, while a user acts before the last request.
fn process_while(world: &mut CollectorWorld, act: &Act, uids: &mut usize) {
    let Some(key) = world.pending.pop_front() else { return };
    let Some(snapshot) = world.collector.snapshot(&key, &world.tables, at(0)) else { return };
    let server = &mut world.server;
    let mut count = 0;
    let driven = super::drive::<super::GarbageCollector>(&snapshot, at(0).wall, |request| {
        count += 1;
        if count == 2 {
            change(server, act, uids);
        }
        server.answer(request)
    });
    let Ok(outcome) = driven.outcome else { return world.pending.push_back(key) };
    for note in outcome.notes {
        world.collector.remember(&key, note, at(0));
    }
    let mut wakes = Wakes::default();
    world.collector.wake_after_notes(&mut wakes);
    world.wake(&wakes);
}

fn run(acts: &[Act]) -> CollectorWorld {
    let mut world = CollectorWorld::new();
    let mut uids = 0;
    for act in acts {
        match act {
            Act::Show { kind } => drop(show(&mut world, kinds()[*kind])),
            Act::Process if world.pending.is_empty() => {}
            Act::Process => drop(world.process()),
            Act::ProcessWhile(act) => process_while(&mut world, act, &mut uids),
            act => change(&mut world.server, act, &mut uids),
        }
    }
    for _ in 0..3000 {
        while kinds().into_iter().any(|kind| show(&mut world, kind)) {}
        if world.pending.is_empty() {
            return world;
        }
        world.process();
    }
    panic!("it does not come to rest: {:?}", world.pending);
}

fn has_owners(object: &Value) -> bool {
    object["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn only_objects_without_a_live_owner_are_deleted(acts in prop::collection::vec(act(), 0..80)) {
        let world = run(&acts);
        prop_assert_eq!(&world.server.wrong, &Vec::<String>::new());
        for object in world.server.objects.values() {
            let metadata = &object["metadata"];
            prop_assert!(
                !has_owners(object) || world.server.has_solid_owner(object),
                "{} has no live owner", metadata
            );
            prop_assert!(metadata["deletionTimestamp"].is_null(), "{} stays", metadata);
            let uid = metadata["uid"].as_str().unwrap_or_default();
            prop_assert!(world.collector.view().has_uid(uid));
        }
    }
}

#[test]
fn world_of_this_file_can_fail() {
    let mut server = GarbageServer::default();
    let owner = server.put(object(DEPLOYMENTS, "n", "o1", "o"));
    let pod = server.put(owned(object(PODS, "n", "o2", "p"), &owner));
    assert!(has_owners(&pod) && server.has_solid_owner(&pod));
    server.objects.retain(|_, object| object["kind"] == "Pod");
    assert!(!server.has_solid_owner(&pod));
    assert!(!has_owners(&json!({"kind": "Pod", "metadata": {}})));
}
