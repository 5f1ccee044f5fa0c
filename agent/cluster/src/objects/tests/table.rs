//! Notified pods, and the copy of an object that wins.

use std::collections::BTreeMap;

use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::references::{ObjectName, ReferenceKind, ReferenceUse, References};
use pintle_agent_core::types::PodUid;
use proptest::prelude::*;
use serde_json::json;

use crate::objects::object::{ConfigMapWire, KeptObject, WrittenObject};
use crate::objects::table::{ENTRIES_MAX, ObjectTable, Orders, WaitingReader};

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

fn key(name: &str) -> ObjectName {
    ObjectName::new(ReferenceKind::ConfigMap, "ns", name)
}

fn refers(list: &[(&str, bool)]) -> References {
    list.iter()
        .map(|(name, files)| (key(name), ReferenceUse { files: *files, pulls: false }))
        .collect()
}

fn object(version: u64, value: &str) -> KeptObject {
    let meta = json!({"name": "a", "namespace": "ns", "resourceVersion": version.to_string()});
    let wire = json!({"metadata": meta, "data": {"k": value}});
    serde_json::from_value::<ConfigMapWire>(wire).expect("a config map").keep()
}

fn told(list: &[(&str, bool)]) -> Vec<WaitingReader> {
    list.iter().map(|(name, files)| WaitingReader { uid: uid(name), files: *files }).collect()
}

/// The object of a pod now: the value, `missing`, or the error.
fn value(table: &mut ObjectTable, pod: &str, name: &str) -> String {
    match table.settle(&uid(pod), &key(name)) {
        Ok(object) => String::from_utf8_lossy(&object.values()["k"]).into_owned(),
        Err(LookupError::NotFound) => "missing".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

fn answer(table: &mut ObjectTable, name: &str, found: Option<KeptObject>) -> Vec<WaitingReader> {
    let due = table.due(&key(name)).expect("due");
    table.answered(&key(name), due, found)
}

#[test]
fn an_object_is_opened_for_the_first_pod_and_closed_after_the_last() {
    let mut table = ObjectTable::default();
    let orders = table.register(&uid("p"), refers(&[("a", true), ("b", false)]));
    assert_eq!(orders, Orders { open: vec![key("a"), key("b")], ..Orders::default() });
    let orders = table.register(&uid("q"), refers(&[("a", false)]));
    assert_eq!(orders, Orders { read: vec![key("a")], ..Orders::default() });
    // The same again: nothing to do.
    assert_eq!(table.register(&uid("q"), refers(&[("a", false)])), Orders::default());
    // A changed pod.
    let orders = table.register(&uid("p"), refers(&[("b", false), ("c", false)]));
    assert_eq!(orders, Orders { open: vec![key("c")], ..Orders::default() });
    assert_eq!(table.forget(&uid("q")).close, [key("a")]);
    assert_eq!(table.forget(&uid("p")).close, [key("b"), key("c")]);
    assert_eq!(table.forget(&uid("p")), Orders::default());
    assert!(table.is_empty());
}

#[test]
fn later_pod_waits_for_a_read_that_began_after_its_registration() {
    let mut table = ObjectTable::default();
    table.register(&uid("p"), refers(&[("a", false)]));
    let first = table.want(&key("a"), false).expect("registered");
    let due = table.due(&key("a")).expect("due");
    table.register(&uid("q"), refers(&[("a", false)]));
    let second = table.want(&key("a"), false).expect("registered");
    // The read that began before the second pod came is no answer for it.
    table.answered(&key("a"), due, Some(object(1, "x")));
    assert!(table.look(&uid("p"), &key("a"), first).is_some());
    assert!(table.look(&uid("q"), &key("a"), second).is_none());
    answer(&mut table, "a", Some(object(1, "x")));
    assert!(table.look(&uid("q"), &key("a"), second).is_some());
    assert_eq!(table.due(&key("a")), None);
}

#[test]
fn pods_are_notified_of_changes_in_their_volumes_and_of_objects_they_wait_for() {
    let mut table = ObjectTable::default();
    table.register(&uid("env"), refers(&[("a", false)]));
    table.register(&uid("files"), refers(&[("a", true)]));
    // The requesting pods await the first answer, so no pod is notified.
    assert_eq!(answer(&mut table, "a", Some(object(5, "x"))), []);
    // Another value: pods whose volumes show it are notified.
    assert_eq!(table.changed(&key("a"), object(6, "y")), told(&[("files", true)]));
    // The same value, or an older version: no pod is notified.
    assert_eq!(table.changed(&key("a"), object(7, "y")), []);
    assert_eq!(table.changed(&key("a"), object(6, "x")), []);
    assert_eq!(value(&mut table, "env", "a"), "y");
    // Deleted, seen by a pod that starts a container, and created again.
    assert_eq!(table.deleted(&key("a"), 8), told(&[("files", true)]));
    assert_eq!(value(&mut table, "env", "a"), "missing");
    let both = told(&[("env", false), ("files", true)]);
    assert_eq!(table.changed(&key("a"), object(9, "z")), both);
    assert_eq!(value(&mut table, "env", "a"), "z");
    // The pod has the object that it waited for: it is not notified again.
    assert_eq!(table.deleted(&key("a"), 10), told(&[("files", true)]));
    assert_eq!(table.changed(&key("a"), object(11, "z")), told(&[("files", true)]));
}

#[test]
fn pod_is_notified_when_its_image_pull_secret_appears_changes_or_is_deleted() {
    let mut table = ObjectTable::default();
    let pulls = References::from([(key("a"), ReferenceUse { pulls: true, files: false })]);
    table.register(&uid("p"), pulls);
    assert_eq!(answer(&mut table, "a", None), []);
    let p = told(&[("p", false)]);
    assert_eq!(table.changed(&key("a"), object(2, "x")), p, "it came");
    assert_eq!(table.changed(&key("a"), object(3, "x")), [], "its content is the same");
    assert_eq!(table.changed(&key("a"), object(4, "y")), p);
    assert_eq!(table.deleted(&key("a"), 5), p);
    assert_eq!(table.with_files(), []);
}

#[test]
fn a_read_that_was_overtaken_does_not_bring_back_the_past() {
    let mut table = ObjectTable::default();
    table.register(&uid("p"), refers(&[("a", true)]));
    let due = table.due(&key("a")).expect("due");
    table.changed(&key("a"), object(5, "new"));
    // Not found, as it was before the watch saw it: to be asked again.
    assert_eq!(table.answered(&key("a"), due, None), []);
    assert_eq!(value(&mut table, "p", "a"), "new");
    assert!(table.due(&key("a")).is_some());
    // An older copy answers the question but does not replace the newer one.
    let due = table.due(&key("a")).expect("due");
    table.changed(&key("a"), object(6, "new"));
    assert_eq!(table.answered(&key("a"), due, Some(object(4, "old"))), []);
    assert_eq!(value(&mut table, "p", "a"), "new");
    assert_eq!(table.due(&key("a")), None);
    // Neither does a deletion that came before.
    assert_eq!(table.deleted(&key("a"), 4), []);
    assert_eq!(value(&mut table, "p", "a"), "new");
}

#[test]
fn read_without_a_later_watch_event_wins_with_a_lower_resource_version() {
    let mut table = ObjectTable::default();
    table.register(&uid("p"), refers(&[("a", true)]));
    answer(&mut table, "a", Some(object(900, "late")));
    // The store was restored from a backup. The watch alone cannot distinguish that from a late
    // event; the read can.
    assert_eq!(table.changed(&key("a"), object(400, "restored")), []);
    table.want(&key("a"), true);
    let all = told(&[("p", true)]);
    assert_eq!(answer(&mut table, "a", Some(object(400, "restored"))), all);
    assert_eq!(table.changed(&key("a"), object(401, "changed since")), all);
    assert_eq!(value(&mut table, "p", "a"), "changed since");
}

#[test]
fn pod_with_very_many_references_leaves_half_of_the_entries_to_other_pods() {
    let mut table = ObjectTable::default();
    let names: Vec<String> = (0..20_000).map(|n| format!("n{n}")).collect();
    let greedy: Vec<(&str, bool)> = names.iter().map(|name| (name.as_str(), false)).collect();
    assert_eq!(table.register(&uid("greedy"), refers(&greedy)).open.len(), ENTRIES_MAX / 2);
    let orders = table.register(&uid("p"), refers(&[("a", true), ("b", true)]));
    assert_eq!(orders.open.len(), 2);
    assert_eq!(table.payer(&key("a")), Some(&uid("p")));
    // An object of both pods is read at the expense of the pod with fewer references.
    let name = table.register(&uid("q"), refers(&[(names[0].as_str(), true)]));
    assert_eq!(name.read.len() + name.open.len(), 1);
    assert_eq!(table.payer(&key(&names[0])), Some(&uid("q")));
}

#[test]
fn failed_read_reports_its_reason_and_waiting_pods_are_notified_of_a_later_success() {
    let mut table = ObjectTable::default();
    table.register(&uid("p"), refers(&[("a", false)]));
    table.register(&uid("q"), refers(&[("a", false)]));
    let text = value(&mut table, "p", "a");
    assert!(text.contains("failed to sync configmap cache: timed out waiting"), "{text}");
    table.failed(&key("a"), "configmaps \"a\" is forbidden".to_owned());
    let text = value(&mut table, "p", "a");
    assert!(text.contains("cache: configmaps \\\"a\\\" is forbidden"), "{text}");
    assert!(!table.is_known(&key("a")));
    assert_eq!(answer(&mut table, "a", Some(object(1, "x"))), told(&[("p", false)]));
    let text = value(&mut table, "p", "other");
    assert!(text.contains("object \\\"ns\\\"/\\\"other\\\" not registered"), "{text}");
    assert_eq!(table.want(&key("other"), false), None);
}

#[test]
fn only_pods_with_file_references_are_resynced_without_a_watch() {
    let mut table = ObjectTable::default();
    table.register(&uid("env"), refers(&[("a", false)]));
    table.register(&uid("files"), refers(&[("a", true), ("b", true)]));
    table.register(&uid("none"), refers(&[]));
    assert_eq!(table.with_files(), told(&[("files", true)]));
}

#[test]
fn an_immutable_object_is_known_as_such() {
    let mut table = ObjectTable::default();
    table.register(&uid("p"), refers(&[("a", true)]));
    assert!(!table.is_immutable(&key("a")));
    answer(&mut table, "a", Some(KeptObject { immutable: true, ..object(1, "x") }));
    assert!(table.is_immutable(&key("a")));
}

/// One step of a run; see `whatever_happens`.
#[derive(Clone, Debug)]
enum TableStep {
    Register(usize, Vec<(usize, bool)>),
    Forget(usize),
    Answer(usize, bool),
    Change(usize, bool),
}

fn any_step() -> impl Strategy<Value = TableStep> {
    let references = prop::collection::vec((0..3_usize, any::<bool>()), 0..3);
    prop_oneof![
        (0..3_usize, references).prop_map(|(pod, list)| TableStep::Register(pod, list)),
        (0..3_usize).prop_map(TableStep::Forget),
        (0..3_usize, any::<bool>()).prop_map(|(name, there)| TableStep::Answer(name, there)),
        (0..3_usize, any::<bool>()).prop_map(|(name, there)| TableStep::Change(name, there)),
    ]
}

proptest! {
    /// Followed are exactly the objects that some pod refers to, and after the last word of the
    /// server every pod that reads finds just that.
    #[test]
    fn whatever_happens(steps in prop::collection::vec(any_step(), 0..60)) {
        const PODS: [&str; 3] = ["p", "q", "r"];
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let mut table = ObjectTable::default();
        let mut open = std::collections::BTreeSet::new();
        let mut wanted: BTreeMap<usize, References> = BTreeMap::new();
        let mut last: BTreeMap<usize, Option<u64>> = BTreeMap::new();
        let mut version = 0;
        for step in steps {
            version += 1;
            let orders = match step {
                TableStep::Register(pod, list) => {
                    let mut references = References::new();
                    for (name, files) in list {
                        references.entry(key(NAMES[name])).or_default().files |= files;
                    }
                    wanted.insert(pod, references.clone());
                    table.register(&uid(PODS[pod]), references)
                }
                TableStep::Forget(pod) => {
                    wanted.remove(&pod);
                    table.forget(&uid(PODS[pod]))
                }
                TableStep::Answer(name, there) => {
                    if let Some(due) = table.due(&key(NAMES[name])) {
                        let found = there.then(|| object(version, "v"));
                        table.answered(&key(NAMES[name]), due, found);
                        last.insert(name, there.then_some(version));
                    }
                    Orders::default()
                }
                TableStep::Change(name, there) => {
                    match there {
                        true => table.changed(&key(NAMES[name]), object(version, "v")),
                        false => table.deleted(&key(NAMES[name]), version),
                    };
                    if open.contains(&key(NAMES[name])) {
                        last.insert(name, there.then_some(version));
                    }
                    Orders::default()
                }
            };
            for key in orders.open {
                prop_assert!(open.insert(key), "opened twice");
            }
            for key in orders.close {
                prop_assert!(open.remove(&key), "closed twice");
                last.retain(|name, _| NAMES[*name] != key.name);
            }
            let referred: std::collections::BTreeSet<ObjectName> =
                wanted.values().flat_map(|references| references.keys().cloned()).collect();
            prop_assert_eq!(&open, &referred);
            prop_assert_eq!(table.is_empty(), wanted.is_empty());
            for (name, version) in &last {
                let found = table.settle(&uid("p"), &key(NAMES[*name]));
                prop_assert_eq!(found.ok().map(|object| object.version), *version);
            }
        }
    }
}
