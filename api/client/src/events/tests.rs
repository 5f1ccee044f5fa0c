//! The correlator as client-go's own tests describe it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
use serde_json::json;

use super::recent::{EventKey, Recent};
use super::*;

fn correlator() -> Correlator {
    Correlator::new(EventSource { component: Some("kubelet".into()), host: Some("n1".into()) })
}

fn about(name: &str) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: Some("ns".into()),
        name: Some(name.into()),
        uid: Some(format!("uid-{name}")),
        api_version: Some("v1".into()),
        field_path: Some("spec.containers{c}".into()),
        resource_version: None,
    }
}

/// An event `seconds` after the first one.
fn said(name: &str, message: &str, seconds: i64) -> Happened {
    Happened {
        about: about(name),
        kind: EventKind::Warning,
        reason: "BackOff".into(),
        message: message.into(),
        annotations: Default::default(),
        at: Timestamp::from_second(1_795_228_033 + seconds).expect("a time"),
    }
}

#[test]
fn first_event_has_name_source_reporter_count_and_timestamps() {
    let told = correlator().correlate(&said("web", "no", 0)).expect("an event");
    assert_eq!(told.patch, None);
    let event = serde_json::to_value(&told.event).expect("JSON");
    let nanos = 1_795_228_033_i128 * 1_000_000_000;
    assert_eq!(event["metadata"], json!({"name": format!("web.{nanos:x}"), "namespace": "ns"}));
    assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{c}");
    assert_eq!(event["source"], json!({"component": "kubelet", "host": "n1"}));
    assert_eq!(event["reportingComponent"], "kubelet");
    assert_eq!(event["reportingInstance"], "n1");
    assert_eq!((&event["count"], &event["type"]), (&json!(1), &json!("Warning")));
    assert_eq!(event["firstTimestamp"], "2026-11-21T02:27:13Z");
}

#[test]
fn repeated_event_increments_the_count_under_its_existing_name() {
    let mut correlator = correlator();
    let first = correlator.correlate(&said("web", "no", 0)).expect("an event");
    correlator.sent(&first, "web.1".into());
    let second = correlator.correlate(&said("web", "no", 7)).expect("an event");
    let patch = json!({"count": 2, "lastTimestamp": "2026-11-21T02:27:20Z", "message": "no"});
    assert_eq!(second.patch, Some(patch));
    assert_eq!(second.event.metadata.name.as_deref(), Some("web.1"));
    assert_eq!(second.event.first_timestamp, first.event.first_timestamp);
    let other = correlator.correlate(&said("web", "yes", 8)).expect("an event");
    assert_eq!(other.patch, None);
}

#[test]
fn ten_similar_events_are_aggregated_into_a_combined_event() {
    let mut correlator = correlator();
    let annotated = |n: i64| {
        let annotations = [("of".to_owned(), n.to_string())].into();
        Happened { annotations, ..said("web", &format!("no {n}"), n) }
    };
    for n in 0..9 {
        let told = correlator.correlate(&annotated(n)).expect("an event");
        assert_eq!(told.patch, None);
        assert!(told.event.metadata.annotations.is_some());
    }
    let tenth = correlator.correlate(&annotated(9)).expect("an event");
    let message = "(combined from similar events): no 9";
    assert_eq!(tenth.event.message.as_deref(), Some(message));
    assert_eq!(tenth.patch, None);
    // Annotations and reporter belong to one event and are dropped; the source is kept.
    let of_one = (tenth.event.metadata.annotations, tenth.event.reporting_component);
    assert_eq!((of_one, tenth.event.reporting_instance), ((None, None), None));
    assert!(tenth.event.source.is_some());
    let next = correlator.correlate(&said("web", "no 10", 10)).expect("an event");
    assert_eq!(next.patch.expect("a patch")["count"], 2);
    // After ten minutes of silence each event is sent on its own again.
    let later = correlator.correlate(&said("web", "no 11", 700)).expect("an event");
    assert_eq!(later.event.message.as_deref(), Some("no 11"));
}

#[test]
fn first_retry_after_an_outage_is_jittered() {
    assert_eq!(
        [pause(1, 0.25), pause(2, 0.25), pause(9, 0.5)],
        [TRY_AGAIN / 4, TRY_AGAIN, TRY_AGAIN]
    );
}

#[test]
fn events_over_the_rate_limit_of_an_object_are_dropped_and_counted_later() {
    let mut correlator = correlator();
    let heard = (0..40).filter(|_| correlator.correlate(&said("web", "no", 0)).is_some()).count();
    assert_eq!(heard, 25);
    assert!(
        correlator.correlate(&said("other", "no", 0)).is_some(),
        "other objects are not limited"
    );
    assert!(correlator.correlate(&said("web", "no", 299)).is_none());
    let next = correlator.correlate(&said("web", "no", 301)).expect("an event");
    assert_eq!(next.patch.expect("a patch")["count"], 42, "dropped events are counted");
}

/// The limit is per event type: a node that is short of memory all the time can still report its
/// shutdown.
#[test]
fn normal_events_have_a_rate_limit_apart_from_warnings() {
    let mut correlator = correlator();
    let normal = |seconds| Happened { kind: EventKind::Normal, ..said("web", "fine", seconds) };
    while correlator.correlate(&said("web", "no", 0)).is_some() {}
    let heard = (0..40).filter(|_| correlator.correlate(&normal(1)).is_some()).count();
    assert_eq!(heard, 25);
}

#[test]
fn least_recently_used_key_is_evicted() {
    let mut recent = Recent::new(2);
    let [a, b, c] = ["a", "b", "c"].map(|name| EventKey::of(&[name]));
    *recent.entry(a, || 0) = 1;
    recent.entry(b, || 0);
    recent.entry(a, || 0);
    recent.entry(c, || 0);
    assert_eq!(recent.len(), 2);
    assert_eq!(*recent.entry(a, || 7), 1);
    assert_eq!(*recent.entry(b, || 7), 7, "b was forgotten");
}
