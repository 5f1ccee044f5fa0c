//! The correlator: decides which events are sent, counted, aggregated, or dropped.
//!
//! Pure but for its cache, which is bounded by `REMEMBERED_MAX`. Three steps, in this order: many
//! events of one object that differ in their message only become one; an event that was sent before
//! is patched with a higher count; an object that emits too many events is cut off.
// k8s: staging/src/k8s.io/client-go/tools/record/events_cache.go

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use pintle_api_types::rate::{Bucket, Rate};
use serde_json::{Value, json};

use super::Happened;
use super::recent::{EventKey, Recent};

/// Objects and events in the cache.
// k8s: maxLruCacheEntries
const REMEMBERED_MAX: usize = 4096;
/// This many different messages of one reason within `SIMILAR_WITHIN` become one event.
// k8s: defaultAggregateMaxEvents, defaultAggregateIntervalInSeconds
const SIMILAR_MAX: usize = 10;
const SIMILAR_WITHIN: Duration = Duration::from_secs(600);
/// Limit for one object and one event type: a burst, then one event in five minutes.
// k8s: defaultSpamBurst, defaultSpamQPS, getSpamKey
const SPAM: Rate = Rate { per_second: 1.0 / 300.0, burst: 25 };

/// An event to send.
#[derive(Clone, Debug, PartialEq)]
pub struct Correlated {
    /// The event; whole, in case the one to patch is gone.
    pub event: Event,
    /// The patch of an event that was sent before.
    pub patch: Option<Value>,
    key: KeyOf,
}

/// Opaque: the key under which the correlator finds the event again.
#[derive(Clone, Copy, Debug, PartialEq)]
struct KeyOf(EventKey);

#[derive(Debug)]
struct Similar {
    messages: BTreeSet<u64>,
    last: Timestamp,
}

#[derive(Debug, Default)]
struct CorrelatedEvent {
    count: i32,
    first: Timestamp,
    name: String,
}

/// Caches the events that were sent.
#[derive(Debug)]
pub struct Correlator {
    source: EventSource,
    similar: Recent<Similar>,
    counts: Recent<CorrelatedEvent>,
    spam: Recent<Bucket>,
    began: Instant,
    began_at: Timestamp,
}

impl Correlator {
    /// A correlator with an empty cache.
    pub fn new(source: EventSource) -> Self {
        Self {
            source,
            similar: Recent::new(REMEMBERED_MAX),
            counts: Recent::new(REMEMBERED_MAX),
            spam: Recent::new(REMEMBERED_MAX),
            began: Instant::now(),
            began_at: Timestamp::UNIX_EPOCH,
        }
    }

    /// The event to send; `None` when the object is over its limit.
    // k8s: EventCorrelate
    pub fn correlate(&mut self, happened: &Happened) -> Option<Correlated> {
        let (key, combined) = self.aggregate(happened);
        let known = self.counts.entry(key, CorrelatedEvent::default);
        known.count += 1;
        if known.count == 1 {
            let nanos = happened.at.as_nanosecond();
            let name = happened.about.name.as_deref().unwrap_or_default();
            (known.first, known.name) = (happened.at, format!("{name}.{nanos:x}"));
        }
        let (count, first, name) = (known.count, known.first, known.name.clone());
        let mut event = self.event(happened, name, count, first);
        if let Some(message) = combined {
            speak_for_many(&mut event, message);
        }
        let patch = (count > 1).then(|| {
            let last = happened.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            json!({"count": count, "lastTimestamp": last, "message": event.message})
        });
        let parts = object_parts(&self.source, &happened.about);
        let spam = EventKey::of(&[&parts[..], &[happened.kind.as_str()]].concat());
        let now = self.clock(happened.at);
        let admitted = self.spam.entry(spam, || Bucket::new(SPAM)).try_take(now);
        admitted.then_some(Correlated { event, patch, key: KeyOf(key) })
    }

    /// The event was sent and has this name.
    // k8s: UpdateState
    pub fn sent(&mut self, correlated: &Correlated, name: String) {
        self.counts.entry(correlated.key.0, CorrelatedEvent::default).name = name;
    }

    /// The key under which the event is sent, and its message if it stands for several events.
    // k8s: EventAggregate
    fn aggregate(&mut self, happened: &Happened) -> (EventKey, Option<String>) {
        let parts = object_parts(&self.source, &happened.about);
        let kind = [happened.kind.as_str(), happened.reason.as_str()];
        let path = happened.about.field_path.as_deref().unwrap_or_default();
        let alike = EventKey::of(&[&parts[..], &kind].concat());
        let fresh = || Similar { messages: BTreeSet::new(), last: happened.at };
        let similar = self.similar.entry(alike, fresh);
        let pause = happened.at.duration_since(similar.last);
        if pause.unsigned_abs() > SIMILAR_WITHIN {
            similar.messages.clear();
        }
        similar.last = happened.at;
        similar.messages.insert(hash_of(&happened.message));
        if similar.messages.len() < SIMILAR_MAX {
            let own = EventKey::of(&[&parts[..], &kind, &[path, &happened.message]].concat());
            return (own, None);
        }
        similar.messages.pop_first();
        (alike, Some(format!("(combined from similar events): {}", happened.message)))
    }

    fn event(&self, happened: &Happened, name: String, count: i32, first: Timestamp) -> Event {
        let about = happened.about.clone();
        let namespace = about.namespace.clone().filter(|namespace| !namespace.is_empty());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: namespace.or_else(|| Some("default".to_owned())),
                annotations: Some(happened.annotations.clone()).filter(|all| !all.is_empty()),
                ..ObjectMeta::default()
            },
            involved_object: about,
            reason: Some(happened.reason.clone()),
            message: Some(happened.message.clone()),
            first_timestamp: Some(Time(first)),
            last_timestamp: Some(Time(happened.at)),
            count: Some(count),
            type_: Some(happened.kind.as_str().to_owned()),
            reporting_component: self.source.component.clone(),
            reporting_instance: self.source.host.clone(),
            source: Some(self.source.clone()),
            ..Event::default()
        }
    }

    /// The spam filter's clock: the time stamps of the events.
    fn clock(&mut self, at: Timestamp) -> Instant {
        if self.began_at == Timestamp::UNIX_EPOCH {
            self.began_at = at;
        }
        self.began + Duration::try_from(at.duration_since(self.began_at)).unwrap_or_default()
    }
}

/// Removes the fields that belong to only one of several events.
// k8s: EventAggregate
fn speak_for_many(event: &mut Event, message: String) {
    event.message = Some(message);
    event.metadata.annotations = None;
    (event.reporting_component, event.reporting_instance) = (None, None);
}

/// The fields that identify an object and the source of its events.
fn object_parts<'a>(source: &'a EventSource, about: &'a ObjectReference) -> [&'a str; 7] {
    let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
    [
        text(&source.component),
        text(&source.host),
        text(&about.kind),
        text(&about.namespace),
        text(&about.name),
        text(&about.uid),
        text(&about.api_version),
    ]
}

fn hash_of(text: &str) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
