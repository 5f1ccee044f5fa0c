//! When thresholds are met, and for how long: tables.

use std::time::Duration;

use super::*;
use crate::eviction::observed::ResourceReading;
use crate::eviction::threshold::{STALL_MIN, ThresholdLevel};

const MI: u64 = 1 << 20;

fn seconds(count: u64) -> Mono {
    Mono::default().plus(Duration::from_secs(count))
}

fn settings() -> Settings {
    let one = |level: &str, grace, min_reclaim: Option<&str>| Threshold {
        signal: Signal::MemoryAvailable,
        level: ThresholdLevel::parse(level).expect("a level"),
        grace: Duration::from_secs(grace),
        min_reclaim: min_reclaim.and_then(ThresholdLevel::parse),
    };
    let disk = Threshold { signal: Signal::NodeFsAvailable, ..one("10%", 0, None) };
    Settings {
        thresholds: vec![disk, one("100Mi", 0, Some("50Mi")), one("200Mi", 30, None)],
        transition: Duration::from_secs(300),
        ..Settings::default()
    }
}

fn look(memory: u64, disk: u64, at: u64) -> Observation {
    let of =
        |available, capacity| ResourceReading { available, capacity, at: UnixNanos(at as i64 + 1) };
    let readings = [
        (Signal::MemoryAvailable, of(memory * MI, 4096 * MI)),
        (Signal::NodeFsAvailable, of(disk, 100)),
    ];
    Observation { readings: readings.into(), ..Observation::default() }
}

fn levels(thresholds: &[Threshold]) -> Vec<String> {
    let one = |t: &Threshold| match t.level {
        ThresholdLevel::Amount(amount) => amount.canonical(),
        ThresholdLevel::Part(_) => t.signal.to_string(),
    };
    thresholds.iter().map(one).collect()
}

#[test]
fn soft_threshold_sets_the_condition_at_once_and_acts_after_its_grace_period() {
    let (mut met, settings) = (Met::default(), settings());
    let mut see = |memory, at| {
        let look = look(memory, 50, at);
        let conditions = met.update(&settings, &look, seconds(at));
        (conditions.contains(&Condition::MemoryPressure), levels(&met.fresh(&look)))
    };
    assert_eq!(see(500, 0), (false, vec![]));
    assert_eq!(see(150, 10), (true, vec![]));
    assert_eq!(see(150, 39), (true, vec![]));
    assert_eq!(see(150, 40), (true, vec!["200Mi".to_owned()]));
    // Above it for a moment: the grace period starts over, and the pressure is still reported for
    // some time.
    assert_eq!(see(201, 50), (true, vec![]));
    assert_eq!(see(150, 60), (true, vec![]));
    assert_eq!(see(201, 89), (true, vec![]));
    assert_eq!(see(201, 359), (true, vec![]));
    assert_eq!(see(201, 360), (false, vec![]));
}

#[test]
fn threshold_stays_met_until_its_minimum_reclaim_is_reached() {
    let (mut met, settings) = (Met::default(), settings());
    for (memory, at, want) in [(120, 0, false), (90, 10, true), (149, 20, true), (150, 30, false)] {
        let look = look(memory, 50, at);
        met.update(&settings, &look, seconds(at));
        let hard = met.fresh(&look).iter().any(Threshold::is_hard);
        assert_eq!(hard, want, "{memory} at {at}");
    }
}

#[test]
fn memory_comes_first_and_the_same_reading_is_acted_upon_once() {
    let (mut met, settings) = (Met::default(), settings());
    let first = look(90, 5, 0);
    met.update(&settings, &first, seconds(0));
    assert_eq!(levels(&met.fresh(&first)), ["100Mi", "nodefs.available"]);
    met.weigh(&first);
    assert!(met.fresh(&first).is_empty());
    // The disk has not been read since.
    let mut second = look(90, 5, 10);
    let old = first.readings[&Signal::NodeFsAvailable];
    second.readings.insert(Signal::NodeFsAvailable, old);
    met.update(&settings, &second, seconds(10));
    assert_eq!(levels(&met.fresh(&second)), ["100Mi"]);
}

#[test]
fn unreadable_signal_does_not_meet_a_threshold() {
    let (mut met, settings) = (Met::default(), settings());
    met.update(&settings, &look(90, 5, 0), seconds(0));
    assert!(met.is_acting());
    let conditions = met.update(&settings, &Observation::default(), seconds(10));
    assert!(!met.is_acting() && conditions.len() == 2, "both conditions stay for a while");
}

#[test]
fn reclaim_frees_only_the_filesystem_of_the_signal() {
    use Signal::*;
    let apart = |images_apart, layers_apart| DiskLayout { images_apart, layers_apart };
    for (signal, layout, want) in [
        (MemoryAvailable, apart(false, false), (false, false)),
        (PidAvailable, apart(false, false), (false, false)),
        (NodeFsAvailable, apart(false, false), (true, true)),
        (ImageFsInodesFree, apart(false, false), (true, true)),
        (ContainerFsAvailable, apart(false, false), (true, true)),
        (NodeFsAvailable, apart(true, false), (false, false)),
        (ImageFsAvailable, apart(true, false), (true, true)),
        (ContainerFsInodesFree, apart(true, false), (true, true)),
        (NodeFsInodesFree, apart(true, true), (true, false)),
        (ImageFsAvailable, apart(true, true), (false, true)),
        (ContainerFsAvailable, apart(true, true), (true, false)),
    ] {
        assert_eq!(reclaims(signal, layout), want, "{signal} {layout:?}");
    }
}

#[test]
fn where_stall_decides_page_cache_is_no_shortage_of_memory() {
    let by_stall = Settings { stall_min: Some(STALL_MIN), ..settings() };
    let hard = || vec!["100Mi".to_owned()];
    for (case, settings, memory, cache, stall, want) in [
        ("the kubelet's rule", settings(), 90, 400, Some(0), hard()),
        ("page cache", by_stall.clone(), 90, 400, Some(0), vec![]),
        ("all that is left is page cache", by_stall.clone(), 0, 400, Some(0), vec![]),
        ("no cache to be had back", by_stall.clone(), 90, 9, Some(0), hard()),
        ("none left, no stall", by_stall.clone(), 0, 0, Some(0), hard()),
        ("just below", by_stall.clone(), 90, 400, Some(STALL_MIN - 1), vec![]),
        ("at it", by_stall.clone(), 90, 400, Some(STALL_MIN), hard()),
        ("a pod at its own limit", by_stall.clone(), 500, 0, Some(10_000), vec![]),
        ("a kernel that counts none", by_stall.clone(), 90, 400, None, hard()),
    ] {
        let mut met = Met::default();
        let cache = [(Signal::MemoryAvailable, cache * MI)].into();
        let look = Observation { stall, cache, ..look(memory, 50, 0) };
        let conditions = met.update(&settings, &look, seconds(0));
        assert_eq!(levels(&met.fresh(&look)), want, "{case}");
        assert_eq!(conditions.contains(&Condition::MemoryPressure), !want.is_empty(), "{case}");
        assert_eq!(is_short(&settings, &look), !want.is_empty(), "{case}");
    }
}

#[test]
fn disks_do_not_ask_for_stall_and_a_grace_period_needs_stall_all_along() {
    let settings = Settings { stall_min: Some(STALL_MIN), ..settings() };
    let disk = Observation { stall: Some(0), ..look(500, 5, 0) };
    assert!(Met::default().update(&settings, &disk, seconds(0)).contains(&Condition::DiskPressure));
    let mut met = Met::default();
    for (at, stall, want) in [(0, 2000, 0), (29, 2000, 0), (30, 2000, 1), (40, 0, 0), (50, 2000, 0)]
    {
        let cache = [(Signal::MemoryAvailable, 400 * MI)].into();
        let look = Observation { stall: Some(stall), cache, ..look(150, 50, at) };
        met.update(&settings, &look, seconds(at));
        assert_eq!(met.fresh(&look).len(), want, "at {at}");
    }
}
