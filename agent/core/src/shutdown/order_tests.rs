//! A shutdown on its own: it advances group by group, and gives no pod more time than there is.

use std::time::Duration;

use proptest::prelude::*;

use super::{Shutdown, ShutdownRecord, Window};
use pintle_api_types::ids::{Mono, Now, UnixNanos};

fn windows(seconds: &[i64]) -> Vec<Window> {
    let each = seconds.iter().enumerate();
    let window = |(at, seconds): (usize, &i64)| Window {
        priority: i32::try_from(at).expect("few") * 10,
        seconds: *seconds,
    };
    each.map(window).collect()
}

fn at(millis: u64) -> Now {
    let begin = Now { wall: UnixNanos(1_800_000_000_000_000_000), mono: Mono::default() };
    begin.plus(Duration::from_millis(millis))
}

#[test]
fn shutdown_group_ends_when_its_pods_have_ended_or_its_time_is_up() {
    let mut shutdown = Shutdown::begin(windows(&[5, 3]), None, at(0));
    assert_eq!(shutdown.ends(0, at(0).mono).map(|(_, grace)| grace), Some(5));
    assert_eq!(shutdown.ends(10, at(0).mono), None, "not its turn");
    assert!(!shutdown.advance(false, at(4_999)));
    assert!(shutdown.advance(true, at(2_000)), "nothing is left of it");
    assert_eq!(shutdown.until(), Some(at(5_000).mono));
    // A pod of a group that is over ends with this one, with the least grace period.
    assert_eq!(shutdown.ends(0, at(2_000).mono).map(|(_, grace)| grace), Some(1));
    assert_eq!(shutdown.ends(10, at(2_500).mono).map(|(_, grace)| grace), Some(3));
    assert_eq!(shutdown.ends(10, at(3_500).mono).map(|(_, grace)| grace), Some(2));
    assert!(shutdown.advance(false, at(5_000)), "its time is up");
    assert!(shutdown.is_over() && shutdown.until().is_none());
    assert!(!shutdown.advance(true, at(9_000)), "over is over");
    let record = shutdown.record(at(9_000));
    assert_eq!((record.started_at, record.ended_at), (at(0).wall, Some(at(5_000).wall)));
}

#[test]
fn restarted_agent_resumes_the_shutdown_group_with_its_remaining_time() {
    let mut old = Shutdown::begin(windows(&[5, 8, 3]), None, at(0));
    assert!(old.advance(true, at(1_000)));
    let record = old.record(at(1_000));
    for (name, record, now, until, waits_for_first) in [
        ("in time", record.clone(), at(4_000), Some(at(9_000).mono), true),
        ("late", record.clone(), at(30_000), Some(at(30_000).mono), true),
        (
            "nothing is known",
            ShutdownRecord { group: None, ..record.clone() },
            at(4_000),
            Some(at(9_000).mono),
            true,
        ),
        (
            "it was over",
            ShutdownRecord { ended_at: Some(at(2_000).wall), ..record.clone() },
            at(4_000),
            None,
            false,
        ),
    ] {
        let new = Shutdown::begin(windows(&[5, 8, 3]), Some(&record), now);
        assert_eq!(new.until(), until, "{name}");
        assert_eq!(new.record(now).started_at, at(0).wall, "{name}");
        // Pods left of the first group are waited for together with the second.
        assert_eq!(new.is_waited_for(0), waits_for_first, "{name}");
        assert!(new.ends(0, now.mono).is_some(), "{name}");
    }
    // A clock that was set back meanwhile gives no pod more time than the group has.
    let set_back = Now { wall: UnixNanos(at(0).wall.0 - 3_600_000_000_000), ..at(2_000) };
    let new = Shutdown::begin(windows(&[5, 8, 3]), Some(&record), set_back);
    assert_eq!(new.until(), Some(at(10_000).mono));
}

#[test]
fn cancelled_shutdown_is_recorded_as_cancelled() {
    let shutdown = Shutdown::begin(windows(&[5]), None, at(0));
    let record = shutdown.cancelled(at(700));
    assert_eq!(record.ended_at, Some(at(700).wall));
    assert!(record.cancelled && record.group.is_none());
}

proptest! {
    #[test]
    fn shutdown_ends_within_the_sum_of_its_windows(
        seconds in prop::collection::vec(0..9_i64, 1..5),
        steps in prop::collection::vec((1..4_000_u64, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let total: i64 = seconds.iter().sum();
        let mut shutdown = Shutdown::begin(windows(&seconds), None, at(0));
        let (mut now, mut before) = (0, 0);
        for (wait, all_ended, dies) in steps {
            now += wait.min(shutdown.until().map_or(wait, |until| {
                u64::try_from(until.since(at(now).mono).as_millis()).expect("small")
            }));
            while shutdown.advance(all_ended, at(now)) {}
            if dies {
                let record = shutdown.record(at(now));
                shutdown = Shutdown::begin(windows(&seconds), Some(&record), at(now));
            }
            let order: Vec<_> = (0..seconds.len())
                .map(|group| shutdown.ends(i32::try_from(group).expect("few") * 10, at(now).mono))
                .collect();
            let told = order.iter().take_while(|told| told.is_some()).count();
            prop_assert!(order.iter().skip(told).all(Option::is_none), "{:?}", order);
            prop_assert!(told >= before, "it goes back");
            before = told;
            for (window, grace) in order.into_iter().flatten() {
                prop_assert!(grace <= window.seconds.max(1));
            }
        }
        if now >= u64::try_from(total).expect("small") * 1_000 {
            prop_assert!(shutdown.is_over());
        }
    }
}
