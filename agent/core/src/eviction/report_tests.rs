//! The report on shortages: tables.

use super::super::observed::PodUse;
use super::super::step::EvictionSnapshot;
use super::super::threshold::ThresholdLevel;
use super::*;

fn see(trends: &mut Trends, seconds: u64, available: u64) {
    let reading = ResourceReading { available, capacity: 1_000, ..ResourceReading::default() };
    let readings = [(Signal::MemoryAvailable, reading)].into();
    let look = Observation { readings, ..Observation::default() };
    trends.add(&look, Mono::default().plus(Duration::from_secs(seconds)));
}

#[test]
fn trend_of_a_signal_is_the_slope_of_the_last_samples() {
    let mut trends = Trends::default();
    assert_eq!(trends.per_second(Signal::MemoryAvailable), None);
    see(&mut trends, 0, 900);
    assert_eq!(trends.per_second(Signal::MemoryAvailable), None, "one is no slope");
    for at in 1..100 {
        see(&mut trends, at * 10, 900 - at * 5);
    }
    let slope = trends.per_second(Signal::MemoryAvailable).expect("a slope");
    assert!((slope + 0.5).abs() < 1e-9, "{slope}");
    assert_eq!(trends.samples[&Signal::MemoryAvailable].len(), SAMPLES_MAX);
    // A signal that cannot be read any more has no slope.
    trends.add(&Observation::default(), Mono::default());
    assert_eq!(trends.per_second(Signal::MemoryAvailable), None);
}

#[test]
fn time_to_a_threshold_is_known_only_for_a_falling_signal_above_the_threshold() {
    assert_eq!(reaches(600, 100, -50.0), Some(Duration::from_secs(10)));
    for (available, slope) in [(600, 0.0), (600, 5.0), (100, -5.0), (50, -5.0)] {
        assert_eq!(reaches(available, 100, slope), None, "{available} {slope}");
    }
    assert_eq!(reaches(u64::MAX, 0, -f64::MIN_POSITIVE), None, "beyond all time");
}

#[test]
fn page_cache_that_counts_as_left_is_no_way_to_the_threshold() {
    let (mut trends, signal) = (Trends::default(), Signal::MemoryAvailable);
    for (seconds, available) in [(0_u32, 900_u64), (10, 500), (20, 100)] {
        let reading = ResourceReading { available, capacity: 1_000, ..ResourceReading::default() };
        let look = Observation {
            readings: [(signal, reading)].into(),
            cache: [(signal, 900 - available)].into(),
            stall: Some(50),
            ..Observation::default()
        };
        trends.add(&look, Mono::default().plus(Duration::from_secs(seconds.into())));
    }
    let least = |stall_min| Settings { stall_min, ..Settings::default() };
    assert_eq!(trends.stall(signal, &least(None)), None, "the kubelet's rule");
    assert_eq!(trends.stall(Signal::NodeFsAvailable, &least(Some(1000))), None);
    let stall = trends.stall(signal, &least(Some(1000))).expect("it decides");
    assert_eq!(stall, Stall { now: Some(50), least: 1000, cache: 800 });
    assert_eq!(trends.met_in(signal, 50, Some(stall)), None, "what is left stays at 900");
    let stalled = Stall { now: Some(1000), ..stall };
    let soon = Some(Duration::from_millis(1250));
    assert_eq!(trends.met_in(signal, 50, Some(stalled)), soon);
    assert_eq!(trends.met_in(signal, 50, None), soon);
}

#[test]
fn next_victim_is_not_reported_without_any_pod_usage() {
    let threshold = Threshold {
        signal: Signal::MemoryAvailable,
        level: ThresholdLevel::parse("10%").expect("a level"),
        grace: Duration::ZERO,
        min_reclaim: None,
    };
    let settings = Settings { thresholds: vec![threshold], ..Settings::default() };
    let mut evictor = Evictor::default();
    let (ticket, ..) =
        evictor.ask(Default::default, Default::default, Mono::default()).expect("a look");
    let reading = ResourceReading { available: 500, capacity: 1_000, ..ResourceReading::default() };
    let readings = [(Signal::MemoryAvailable, reading)].into();
    let observation = &Observation { readings, ..Observation::default() };
    let (uid, pod) = (PodUid::from("a"), k8s_openapi::api::core::v1::Pod::default());
    let pods = &[Evictable { uid: &uid, pod: &pod }];
    let (settings, now) = (&settings, Now::default());
    evictor
        .observe(ticket, &EvictionSnapshot { settings, observation, pods, is_early: false, now });
    let told = |working_set| {
        let used = PodUse { working_set, ..PodUse::default() };
        let uses = [(uid.clone(), used)].into();
        let gauge = report(&evictor, settings, pods, Some(&uses), now).gauges.remove(0);
        (gauge.is_blind, gauge.next.is_some())
    };
    assert_eq!((told(Some(7)), told(None)), ((false, true), (true, false)));
}

#[test]
fn pid_eviction_report_does_not_mention_requests() {
    let runner = |pod: &str, over: i64| Runner {
        pod: pod.to_owned(),
        weight: Weight {
            known: true,
            exceeds: over > 0,
            priority: 0,
            over: Amount::from_millis(over * 1000),
        },
    };
    let eviction = Eviction {
        at: UnixNanos::NEVER,
        uid: "a".into(),
        pod: "ns/a".to_owned(),
        signal: "pid.available".to_owned(),
        rule: EvictionRule::Usage,
        grace_seconds: 1,
        message: String::new(),
        runners: vec![runner("ns/a", 600), runner("ns/b", 4), runner("ns/c", 0)],
        of: 3,
        stall: None,
    };
    let why = "pid.available: it has most processes (2 more came into question)";
    assert_eq!(eviction.why(), why);
    let others = ["ns/b, priority 0, 4 processes", "ns/c, priority 0, 0 processes"];
    let others = others.map(|told| format!("came into question as well: {told}"));
    assert!(eviction.others().eq(others));
    let of_memory = Eviction { signal: "memory.available".to_owned(), ..eviction };
    assert!(of_memory.why().contains("it uses most over its request"));
    assert!(of_memory.others().all(|told| told.ends_with("than it requests")));
}

#[test]
fn stall_report_states_how_page_cache_is_counted() {
    for (now, least, said) in [
        (Some(7), 1000, "stall 0.07%, less than 10.00%: 2Ki of page cache count as left"),
        (Some(1000), 1000, "stall 10.00%, 10.00% or more: 2Ki of page cache count as used"),
        (None, 1000, "the kernel counts no stall, so 2Ki of page cache count as used"),
    ] {
        assert_eq!(Stall { now, least, cache: 2048 }.words(), said);
    }
}
