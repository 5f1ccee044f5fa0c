//! The queue's rules, and that no key is lost or given out twice.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pintle_api_types::key::ObjectKey;
use proptest::prelude::*;

use super::queue::{KeyBackoff, WorkQueue};

#[test]
fn key_added_twice_comes_once() {
    let now = Instant::now();
    let mut state = WorkQueue::<u8>::new(KeyBackoff::DEFAULT);
    [1, 2, 1].into_iter().for_each(|key| state.add(key, now));
    assert_eq!([state.take(now), state.take(now), state.take(now)], [Some(1), Some(2), None]);
}

#[test]
fn key_added_while_worked_on_comes_again() {
    let now = Instant::now();
    let mut state = WorkQueue::<u8>::new(KeyBackoff::DEFAULT);
    state.add(1, now);
    assert_eq!(state.take(now), Some(1));
    state.add(1, now);
    assert_eq!(state.take(now), None, "one worker at a time");
    state.done(&1, now);
    assert_eq!(state.take(now), Some(1));
}

#[test]
fn key_added_with_several_waits_comes_after_the_shortest() {
    let now = Instant::now();
    let after = |seconds| now + Duration::from_secs(seconds);
    let mut state = WorkQueue::<u8>::new(KeyBackoff::DEFAULT);
    for seconds in [9, 3, 5] {
        state.add_after(1, now, Duration::from_secs(seconds));
    }
    assert_eq!(state.next_due(), Some(after(3)));
    assert_eq!((state.take(after(2)), state.take(after(3))), (None, Some(1)));
    state.done(&1, after(3));
    assert_eq!(state.take(after(100)), None, "later times are gone with the earliest");
    state.add_after(2, now, Duration::MAX);
    assert!(state.next_due().is_some(), "no wait is too long to be kept");
}

#[test]
fn failed_key_waits_longer_each_time_until_forgotten() {
    let now = Instant::now();
    let mut state = WorkQueue::<u8>::new(KeyBackoff::DEFAULT);
    let mut waits = Vec::new();
    for _ in 0..40 {
        state.add_rate_limited(1, now);
        let due = state.next_due().expect("it waits");
        waits.push(due - now);
        assert_eq!(state.take(due), Some(1));
        state.done(&1, due);
    }
    assert_eq!(waits[..3], [5, 10, 20].map(Duration::from_millis));
    assert!(waits.is_sorted() && waits[39] == Duration::from_secs(1000), "{waits:?}");
    assert_eq!(state.failures(&1), 40);
    state.forget(&1);
    state.add_rate_limited(1, now);
    assert_eq!(state.next_due(), Some(now + Duration::from_millis(5)));
}

#[test]
fn keys_failing_at_once_are_spread() {
    let now = Instant::now();
    let mut state = WorkQueue::<u32>::new(KeyBackoff::DEFAULT);
    (0..200).for_each(|key| state.add_rate_limited(key, now));
    let mut last = now;
    while let Some(due) = state.next_due() {
        last = due;
        while state.take(due).is_some() {}
    }
    assert_eq!((last - now).as_secs(), 10, "100 at once, the others ten a second");
}

#[test]
fn tenants_take_turns_and_failures_of_a_tenant_do_not_delay_other_tenants() {
    let now = Instant::now();
    let mut queue = WorkQueue::<ObjectKey>::new(KeyBackoff::DEFAULT);
    let key = |namespace: &str, at: u32| ObjectKey::new(namespace, &at.to_string());
    for at in 0..1_000 {
        queue.add_rate_limited(key("many", at), now);
    }
    queue.add_rate_limited(key("one", 0), now);
    let later = now + Duration::from_millis(5);
    assert_eq!(queue.take(later), Some(key("many", 0)));
    assert_eq!(queue.take(later), Some(key("one", 0)), "its retry is not behind 900 others");
}

/// An operation on a queue.
#[derive(Clone, Debug)]
enum QueueStep {
    Add(u8),
    After(u8, u64),
    Fail(u8),
    Take,
    Done,
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<QueueStep>> {
    let key = 0..5_u8;
    let step = prop_oneof![
        key.clone().prop_map(QueueStep::Add),
        (key.clone(), 0..50_u64).prop_map(|(key, wait)| QueueStep::After(key, wait)),
        key.prop_map(QueueStep::Fail),
        Just(QueueStep::Take),
        Just(QueueStep::Done),
        (0..50_u64).prop_map(QueueStep::Pass),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn key_is_neither_lost_nor_worked_on_twice_at_once(steps in steps()) {
        let mut now = Instant::now();
        let mut state = WorkQueue::<u8>::new(KeyBackoff::DEFAULT);
        let mut working = BTreeSet::new();
        // Keys with something that happened since they were last given out.
        let mut owed = BTreeSet::new();
        for step in steps {
            match step {
                QueueStep::Add(key) => {
                    state.add(key, now);
                    owed.insert(key);
                }
                QueueStep::After(key, wait) => {
                    state.add_after(key, now, Duration::from_millis(wait));
                    owed.insert(key);
                }
                QueueStep::Fail(key) => {
                    state.add_rate_limited(key, now);
                    owed.insert(key);
                }
                QueueStep::Take => {
                    if let Some(key) = state.take(now) {
                        prop_assert!(working.insert(key), "{key} was given out twice");
                        owed.remove(&key);
                    }
                }
                QueueStep::Done => {
                    if let Some(key) = working.pop_first() {
                        state.done(&key, now);
                    }
                }
                QueueStep::Pass(millis) => now += Duration::from_millis(millis),
            }
        }
        // A key may have been given out for an addition while a later time was still to come: that
        // is taken again, too, and counts as well as another.
        working.iter().for_each(|key| state.done(key, now));
        now += Duration::from_secs(10_000);
        while let Some(key) = state.take(now) {
            owed.remove(&key);
            state.done(&key, now);
        }
        prop_assert!(owed.is_empty(), "{owed:?} were lost");
    }
}
