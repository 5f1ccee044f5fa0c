//! What people are told of shortages: tables.

use super::*;

fn see(trends: &mut Trends, seconds: u64, available: u64) {
    let reading = Reading { available, capacity: 1_000, ..Reading::default() };
    let readings = [(Signal::MemoryAvailable, reading)].into();
    let look = Observation { readings, ..Observation::default() };
    trends.add(&look, Mono::default().plus(Duration::from_secs(seconds)));
}

#[test]
fn how_fast_it_goes_is_the_slope_of_the_last_samples() {
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
    // What cannot be read any more has no slope.
    trends.add(&Observation::default(), Mono::default());
    assert_eq!(trends.per_second(Signal::MemoryAvailable), None);
}

#[test]
fn a_threshold_is_reached_only_when_it_goes_and_is_not_there() {
    assert_eq!(reaches(600, 100, -50.0), Some(Duration::from_secs(10)));
    for (available, slope) in [(600, 0.0), (600, 5.0), (100, -5.0), (50, -5.0)] {
        assert_eq!(reaches(available, 100, slope), None, "{available} {slope}");
    }
    assert_eq!(reaches(u64::MAX, 0, -f64::MIN_POSITIVE), None, "beyond all time");
}
