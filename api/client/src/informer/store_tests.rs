//! The store, its indexes and its subscribers, in tables.

use pintle_api_types::object::PrunedMeta;
use serde::Deserialize;

use super::*;
use crate::informer::{ObjectChange, Subscription};

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct StoredTestObject {
    metadata: PrunedMeta,
    node: String,
    owners: Vec<String>,
}
pintle_api_types::pruned_object!(StoredTestObject);

fn test_object(name: &str, version: u32, node: &str, owners: &[&str]) -> StoredTestObject {
    let metadata = PrunedMeta {
        name: name.into(),
        namespace: Symbol::of("n"),
        uid: name.into(),
        resource_version: version.to_string().into(),
    };
    StoredTestObject {
        metadata,
        node: node.to_owned(),
        owners: owners.iter().map(|&o| o.into()).collect(),
    }
}

const INDEXES: [IndexBy<StoredTestObject>; 2] = [
    ("node", |object, add| add(&object.node)),
    ("owner", |object, add| object.owners.iter().for_each(|owner| add(owner))),
];

fn names(found: &[Arc<StoredTestObject>]) -> Vec<&str> {
    found.iter().map(|object| &*object.metadata.name).collect()
}

#[test]
fn indexes_follow_their_objects() {
    let store = ObjectStore::new(&INDEXES);
    store.apply(test_object("b", 1, "n1", &["x", "y"]));
    store.apply(test_object("a", 2, "n1", &["y"]));
    assert_eq!(names(&store.by_index("node", "n1")), ["a", "b"]);
    assert_eq!(names(&store.by_index("owner", "y")), ["a", "b"]);
    store.apply(test_object("b", 3, "n2", &["z"]));
    assert_eq!(names(&store.by_index("node", "n1")), ["a"]);
    assert_eq!(names(&store.by_index("owner", "x")), [""; 0]);
    assert_eq!(names(&store.by_index("owner", "z")), ["b"]);
    store.delete(test_object("b", 4, "elsewhere", &[]));
    store.replace(Listed::default());
    assert!(store.is_empty());
    assert!(store.read().indexes.iter().all(|index| index.keys.is_empty()));
}

#[test]
fn replace_keeps_unchanged_and_unreadable_objects() {
    let store = Arc::new(ObjectStore::new(&INDEXES));
    let objects = vec![
        test_object("a", 1, "", &[]),
        test_object("b", 1, "", &[]),
        test_object("c", 1, "", &[]),
    ];
    store.replace(Listed { objects, ..Listed::default() });
    let before = store.get("n", "a").expect("listed");
    let mut subscription = Subscription::new(&store);
    while subscription.try_next().is_some() {}
    // A restored server may have the same version with another content.
    let objects = vec![test_object("a", 1, "", &[]), test_object("b", 1, "moved", &[])];
    let unreadable = HashSet::from([ObjectKey::new("n", "c"), ObjectKey::new("n", "d")]);
    store.replace(Listed { objects, unreadable, nameless: false });
    assert!(Arc::ptr_eq(&before, &store.get("n", "a").expect("listed")));
    assert!(store.get("n", "c").is_some() && store.get("n", "d").is_none());
    let changes: Vec<_> = std::iter::from_fn(|| subscription.try_next()).collect();
    let [ObjectChange::Updated { new, .. }] = &changes[..] else { panic!("{changes:?}") };
    assert_eq!(new.node, "moved");
    store.replace(Listed::default());
    let changes: Vec<_> = std::iter::from_fn(|| subscription.try_next()).collect();
    let missed =
        |change: &ObjectChange<_>| matches!(change, ObjectChange::Deleted { is_final: false, .. });
    assert!(changes.len() == 3 && changes.iter().all(missed), "{changes:?}");
}

#[test]
fn a_list_with_an_unreadable_name_deletes_nothing() {
    let store = ObjectStore::new(&INDEXES);
    store.apply(test_object("a", 1, "", &[]));
    store.apply(test_object("b", 1, "", &[]));
    let some = || vec![test_object("a", 2, "", &[])];
    store.replace(Listed { objects: some(), nameless: true, ..Listed::default() });
    assert!(store.get("n", "b").is_some());
    store.replace(Listed { objects: some(), ..Listed::default() });
    assert!(store.get("n", "b").is_none());
}

#[tokio::test]
async fn a_subscriber_has_synced_after_its_initial_objects() {
    let store = Arc::new(ObjectStore::new(&INDEXES));
    let mut early = Subscription::new(&store);
    assert!(early.try_next().is_none() && !early.has_synced());
    let objects = vec![test_object("a", 1, "", &[]), test_object("b", 1, "", &[])];
    store.replace(Listed { objects, ..Listed::default() });
    store.apply(test_object("c", 2, "", &[]));
    for is_initial in [true, true, false] {
        assert!(!early.has_synced());
        let change = early.next().await;
        assert!(matches!(change, ObjectChange::Added { initial, .. } if initial == is_initial));
    }
    assert!(early.has_synced(), "the third object was not an initial one");
    let mut late = Subscription::new(&store).resync(std::time::Duration::ZERO);
    for _ in 0..3 {
        let change = late.next().await;
        assert!(!late.has_synced() && matches!(change, ObjectChange::Added { initial: true, .. }));
    }
    let change = late.next().await;
    assert!(late.has_synced(), "the initial objects are before the resync");
    assert!(matches!(change, ObjectChange::Updated { old, new } if Arc::ptr_eq(&old, &new)));
    // A dropped subscriber receives nothing.
    drop(early);
    store.apply(test_object("a", 3, "", &[]));
    assert_eq!(store.queues.lock().expect("not poisoned").len(), 1);
    let empty = Arc::new(ObjectStore::<StoredTestObject>::new(&[]));
    let none = Subscription::new(&empty);
    empty.replace(Listed::default());
    assert!(none.has_synced(), "there are no initial objects");
}
