//! Events of the lease: which process leads, and which one stopped leading.
//!
//! Input: the lease as it was written last. Output: events of core/v1, as upstream's. Effects. Owner:
//! the thread of the lease. Bounds: `TRIES_MAX` requests an event, `ANSWER_MAX` each.
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/resourcelock/leaselock.go RecordEvent

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::api::core::v1::{EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::api::{Api, PostParams};
use pintle_api_types::jitter;

/// Attempts for an event when no answer comes.
// k8s: staging/src/k8s.io/client-go/tools/record/event.go maxTriesPerEvent
const TRIES_MAX: u32 = 12;
/// Pause between two attempts; the first one is a random part of it.
// k8s: event.go defaultSleepDuration, recordToSink
const RETRY_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Writes events of the lease.
pub(super) struct LeaderEvents {
    client: kube::Client,
    identity: String,
    reporter: String,
}

impl LeaderEvents {
    /// Events of the process with this identity; `reporter` is the component that they name.
    pub(super) fn new(client: kube::Client, identity: String, reporter: String) -> Self {
        Self { client, identity, reporter }
    }

    /// The event for the last change of the lease.
    pub(super) fn event(&self, lease: Option<&Lease>, what: &str) -> Event {
        let of = lease.map(|lease| lease.metadata.clone()).unwrap_or_default();
        let now = Timestamp::now();
        let name = of.name.as_deref().unwrap_or_default();
        let name = format!("{name}.{:x}", now.as_nanosecond());
        Event {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: of.namespace.clone(),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                kind: Some("Lease".to_owned()),
                api_version: Some("coordination.k8s.io/v1".to_owned()),
                namespace: of.namespace,
                name: of.name,
                uid: of.uid,
                resource_version: of.resource_version,
                ..ObjectReference::default()
            },
            reason: Some("LeaderElection".to_owned()),
            message: Some(format!("{} {what}", self.identity)),
            source: Some(EventSource { component: Some(self.reporter.clone()), host: None }),
            reporting_component: Some(self.reporter.clone()),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            count: Some(1),
            type_: Some("Normal".to_owned()),
            ..Event::default()
        }
    }

    /// Writes the event as soon as it can be written. The future never ends.
    pub(super) async fn write_for_ever(&self, event: &Event) {
        let mut wait = RETRY_AFTER.mul_f64(jitter::random());
        for _ in 0..TRIES_MAX {
            if self.write(event).await {
                break;
            }
            tokio::time::sleep(wait).await;
            wait = RETRY_AFTER;
        }
        std::future::pending().await
    }

    /// Writes the event unless that takes longer.
    pub(super) async fn write_within(&self, event: &Event, most: Duration) {
        // The process ends, written or not.
        let _ = tokio::time::timeout(most, self.write(event)).await;
    }

    /// Returns true if the event was written or refused, so that another attempt is of no use.
    async fn write(&self, event: &Event) -> bool {
        let namespace = event.metadata.namespace.as_deref().unwrap_or_default();
        let events = Api::<Event>::namespaced(self.client.clone(), namespace);
        let params = PostParams::default();
        match tokio::time::timeout(ANSWER_MAX, events.create(&params, event)).await {
            Ok(Ok(_)) => true,
            Ok(Err(error)) => {
                tracing::debug!(%error, "the event of the lease is not written");
                matches!(error, kube::Error::Api(_))
            }
            Err(_) => false,
        }
    }
}
