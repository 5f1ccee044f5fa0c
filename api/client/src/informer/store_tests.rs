//! The store, its indexes and its subscribers, in tables.

use pintle_api_types::object::PrunedMeta;
use serde::Deserialize;

use super::*;
use crate::informer::{ObjectChange, Subscription};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct StoredThing {
    metadata: PrunedMeta,
    node: String,
    owners: Vec<String>,
}
pintle_api_types::pruned_object!(StoredThing);

fn thing(name: &str, version: u32, node: &str, owners: &[&str]) -> StoredThing {
    let metadata = PrunedMeta {
        name: name.into(),
        namespace: Symbol::of("n"),
        uid: name.into(),
        resource_version: version.to_string().into(),
    };
    StoredThing {
        metadata,
        node: node.to_owned(),
        owners: owners.iter().map(|&o| o.into()).collect(),
    }
}

const INDEXES: [IndexBy<StoredThing>; 2] = [
    ("node", |thing, add| add(&thing.node)),
    ("owner", |thing, add| thing.owners.iter().for_each(|owner| add(owner))),
];

fn names(found: &[Arc<StoredThing>]) -> Vec<&str> {
    found.iter().map(|thing| &*thing.metadata.name).collect()
}

#[test]
fn indexes_follow_their_objects() {
    let store = ObjectStore::new(&INDEXES);
    store.apply(thing("b", 1, "n1", &["x", "y"]));
    store.apply(thing("a", 2, "n1", &["y"]));
    assert_eq!(names(&store.by_index("node", "n1")), ["a", "b"]);
    assert_eq!(names(&store.by_index("owner", "y")), ["a", "b"]);
    store.apply(thing("b", 3, "n2", &["z"]));
    assert_eq!(names(&store.by_index("node", "n1")), ["a"]);
    assert_eq!(names(&store.by_index("owner", "x")), [""; 0]);
    assert_eq!(names(&store.by_index("owner", "z")), ["b"]);
    store.delete(thing("b", 4, "elsewhere", &[]));
    store.replace(Listed::default());
    assert!(store.is_empty());
    assert!(store.read().indexes.iter().all(|index| index.keys.is_empty()));
}

#[test]
fn what_did_not_change_stays_as_it_is_and_what_cannot_be_read_stays_as_it_was() {
    let store = Arc::new(ObjectStore::new(&INDEXES));
    let objects = vec![thing("a", 1, "", &[]), thing("b", 1, "", &[]), thing("c", 1, "", &[])];
    store.replace(Listed { objects, ..Listed::default() });
    let before = store.get("n", "a").expect("listed");
    let mut subscription = Subscription::new(&store);
    while subscription.try_next().is_some() {}
    // A restored server may have the same version with another content.
    let objects = vec![thing("a", 1, "", &[]), thing("b", 1, "moved", &[])];
    let unreadable = HashSet::from([ObjectKey::new("n", "c"), ObjectKey::new("n", "d")]);
    store.replace(Listed { objects, unreadable, nameless: false });
    assert!(Arc::ptr_eq(&before, &store.get("n", "a").expect("listed")));
    assert!(store.get("n", "c").is_some() && store.get("n", "d").is_none());
    let told: Vec<_> = std::iter::from_fn(|| subscription.try_next()).collect();
    let [ObjectChange::Updated { new, .. }] = &told[..] else { panic!("{told:?}") };
    assert_eq!(new.node, "moved");
    store.replace(Listed::default());
    let told: Vec<_> = std::iter::from_fn(|| subscription.try_next()).collect();
    let missed =
        |change: &ObjectChange<_>| matches!(change, ObjectChange::Deleted { is_final: false, .. });
    assert!(told.len() == 3 && told.iter().all(missed), "{told:?}");
}

#[test]
fn nothing_is_gone_while_a_listed_object_has_no_name_that_can_be_read() {
    let store = ObjectStore::new(&INDEXES);
    store.apply(thing("a", 1, "", &[]));
    store.apply(thing("b", 1, "", &[]));
    let some = || vec![thing("a", 2, "", &[])];
    store.replace(Listed { objects: some(), nameless: true, ..Listed::default() });
    assert!(store.get("n", "b").is_some());
    store.replace(Listed { objects: some(), ..Listed::default() });
    assert!(store.get("n", "b").is_none());
}

#[tokio::test]
async fn each_subscriber_has_synced_when_it_has_dealt_with_the_beginning() {
    let store = Arc::new(ObjectStore::new(&INDEXES));
    let mut early = Subscription::new(&store);
    assert!(early.try_next().is_none() && !early.has_synced());
    let objects = vec![thing("a", 1, "", &[]), thing("b", 1, "", &[])];
    store.replace(Listed { objects, ..Listed::default() });
    store.apply(thing("c", 2, "", &[]));
    for is_initial in [true, true, false] {
        assert!(!early.has_synced());
        let change = early.next().await;
        assert!(matches!(change, ObjectChange::Added { initial, .. } if initial == is_initial));
    }
    assert!(early.has_synced(), "the third was no part of the beginning");
    let mut late = Subscription::new(&store).resync(std::time::Duration::ZERO);
    for _ in 0..3 {
        let change = late.next().await;
        assert!(!late.has_synced() && matches!(change, ObjectChange::Added { initial: true, .. }));
    }
    let change = late.next().await;
    assert!(late.has_synced(), "what was told was dealt with before the resync");
    assert!(matches!(change, ObjectChange::Updated { old, new } if Arc::ptr_eq(&old, &new)));
    // A dropped subscriber receives nothing.
    drop(early);
    store.apply(thing("a", 3, "", &[]));
    assert_eq!(store.queues.lock().expect("not poisoned").len(), 1);
    let empty = Arc::new(ObjectStore::<StoredThing>::new(&[]));
    let none = Subscription::new(&empty);
    empty.replace(Listed::default());
    assert!(none.has_synced(), "there is nothing to deal with");
}
