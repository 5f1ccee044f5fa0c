//! Changes that accumulate while a subscriber is slow, in tables.

use pintle_api_types::object::{PrunedMeta, key_of};
use serde::Deserialize;

use super::*;

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct PendingThing {
    metadata: PrunedMeta,
    content: u32,
}
pintle_api_types::pruned_object!(PendingThing);

fn thing(name: &str, uid: &str, content: u32) -> Arc<PendingThing> {
    let metadata = PrunedMeta { name: name.into(), uid: uid.into(), ..PrunedMeta::default() };
    Arc::new(PendingThing { metadata, content })
}

type Known<'a> = Option<&'a Arc<PendingThing>>;

fn change(
    old: Known<'_>,
    new: Known<'_>,
    last: Option<(&Arc<PendingThing>, bool)>,
) -> StoreChange<PendingThing> {
    let key = key_of(&**old.or(new).expect("something changed"));
    let gone = last.map(|(last, is_final)| (Arc::clone(last), is_final));
    StoreChange { key, old: old.cloned(), new: new.cloned(), gone }
}

/// The delivered changes in short form: `+` added, `!` added initially, `>` updated, `-` deleted,
/// `?` deleted without a final state.
fn delivered(pending: &mut PendingChanges<PendingThing>) -> Vec<String> {
    let shown = |thing: &PendingThing| format!("{}{}", thing.metadata.uid, thing.content);
    let all = std::iter::from_fn(|| pending.pop()).map(|change| match change {
        ObjectChange::Added { object, initial: false } => format!("+{}", shown(&object)),
        ObjectChange::Added { object, initial: true } => format!("!{}", shown(&object)),
        ObjectChange::Updated { old, new } => format!("{}>{}", shown(&old), shown(&new)),
        ObjectChange::Deleted { object, is_final: true } => format!("-{}", shown(&object)),
        ObjectChange::Deleted { object, is_final: false } => format!("?{}", shown(&object)),
    });
    all.collect()
}

#[test]
fn pending_changes_are_merged_consistently_with_delivered_changes() {
    let (a1, a2, a3, b1, b2) = (
        &thing("x", "a", 1),
        &thing("x", "a", 2),
        &thing("x", "a", 3),
        &thing("x", "b", 1),
        &thing("x", "b", 2),
    );
    let add = |new| change(None, Some(new), None);
    let update = |old, new| change(Some(old), Some(new), None);
    let delete = |old, last| change(Some(old), None, Some((last, true)));
    let lost = |old| change(Some(old), None, Some((old, false)));
    for (changes, want) in [
        (vec![add(a1)], vec!["+a1"]),
        (vec![add(a1), update(a1, a2)], vec!["+a2"]),
        (vec![update(a1, a2), update(a2, a3)], vec!["a1>a3"]),
        (vec![delete(a1, a2)], vec!["-a2"]),
        (vec![lost(a1)], vec!["?a1"]),
        (vec![update(a1, a2), lost(a2)], vec!["?a2"]),
        (vec![add(a1), delete(a1, a2)], vec!["+a2", "-a2"]),
        (vec![add(a1), delete(a1, a2), add(b1)], vec!["+b1"]),
        (vec![delete(a1, a2), add(b1)], vec!["-a2", "+b1"]),
        (vec![delete(a1, a2), add(b1), update(b1, b2)], vec!["-a2", "+b2"]),
        (vec![delete(a1, a2), add(b1), delete(b1, b2)], vec!["-a2"]),
        (vec![update(a1, b1), delete(b1, b2)], vec!["?a1"]),
        (vec![update(a1, b1)], vec!["?a1", "+b1"]),
    ] {
        let mut pending = PendingChanges::default();
        changes.iter().for_each(|change| pending.push(change, false));
        assert_eq!(delivered(&mut pending), want, "{changes:?}");
        assert_eq!((pending.len(), pending.order.len(), pending.passed.len()), (0, 0, 0));
    }
}

#[test]
fn pending_changes_are_delivered_in_order_and_initial_changes_counted() {
    let (a, b, c) = (&thing("a", "a", 1), &thing("b", "b", 1), &thing("c", "c", 1));
    let mut pending = PendingChanges::default();
    pending.push(&change(None, Some(b), None), true);
    pending.push(&change(None, Some(a), None), true);
    pending.push(&change(None, Some(c), None), false);
    let b2 = &thing("b", "b", 2);
    pending.push(&change(Some(b), Some(b2), None), false);
    pending.push(&change(Some(a), None, Some((a, true))), false);
    pending.push_again(&key_of(&**c), c);
    assert_eq!((pending.len(), pending.initial()), (3, 2));
    assert_eq!(delivered(&mut pending), ["!b2", "!a1", "-a1", "+c1"]);
    assert_eq!(pending.initial(), 0);
    pending.push_again(&key_of(&**c), c);
    assert_eq!(delivered(&mut pending), ["c1>c1"]);
}

#[test]
fn stalled_subscriber_queues_a_change_per_object_plus_a_fixed_number() {
    let mut pending = PendingChanges::default();
    let stays = &thing("stays", "s", 1);
    pending.push(&change(None, Some(stays), None), false);
    for n in 0..3 * PASSED_MAX {
        let passing = &thing(&format!("p{n}"), "p", 1);
        pending.push(&change(None, Some(passing), None), false);
        pending.push(&change(Some(passing), None, Some((passing, true))), false);
        assert!(pending.len() <= PASSED_MAX + 2);
    }
    assert_eq!(pending.skipped(), 2 * PASSED_MAX as u64);
    assert_eq!(delivered(&mut pending).len(), 1 + 2 * PASSED_MAX);
}
