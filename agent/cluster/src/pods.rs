//! The API server as a source: a watch of the pods that are bound to this node.
//!
//! Input: a client. Output: `Delivery`s, the first of which is a complete list and makes the source
//! ready; afterwards one for each change, and a complete list again when the watch lost its
//! version. The first list is a consistent read and the others are at least as new as the known
//! state, so that the pods never go back in time. Bounds: a full channel holds the watch back. A
//! failed watch is repeated after `RETRY`, which grows. An outage changes nothing: delivered pods
//! stay wanted until the API server reports a change. The list names pods that cannot be read, so
//! that they are left as they are and no other pod waits for them.
// k8s: pkg/kubelet/config/apiserver.go NewSourceApiserver

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use pintle_agent_core::api_health::{ApiHealth, Task};
use pintle_agent_core::source::{Delivery, SourceReading};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_api::informer::{
    FirstList, FollowSpec, InformerError, InformerObserver, ObjectSink, follow,
};
use pintle_api_types::object::UnreadableObject;
use pintle_daemon::clock;
use tokio::sync::mpsc;

/// First and longest wait before a failed list or watch is repeated: shorter than for other
/// informers, because a node learns of new pods by nothing else.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Watches until the receiver is dropped.
pub async fn run(
    client: Client,
    node_name: String,
    deliveries: mpsc::Sender<Delivery>,
    api_health: ApiHealth,
) {
    let mut spec = FollowSpec::new("pods", "/api/v1/pods");
    spec.source.field_selector = format!("spec.nodeName={node_name}");
    spec.first_list = FirstList::Newest;
    spec.retry = RETRY;
    spec.observer = Arc::new(TellsHealth(api_health));
    let sink = PodSink::new(deliveries.clone());
    tokio::select! {
        () = follow(client, spec, sink) => {}
        () = deliveries.closed() => {}
    }
}

/// Lists and watches are how the API server is reached for pods.
struct TellsHealth(ApiHealth);

impl InformerObserver for TellsHealth {
    fn fails(&self, _: &str, error: &InformerError) {
        self.0.fails(Task::Pods, &error.to_string(), clock::now());
    }

    fn works(&self, _: &str) {
        self.0.works(Task::Pods);
    }
}

/// Makes deliveries of the pods of lists and watches.
struct PodSink {
    deliveries: mpsc::Sender<Delivery>,
    list: SourceReading,
    /// The list has a pod of which not even the uid can be read.
    partial: bool,
    /// Logged as unreadable.
    said: BTreeSet<PodUid>,
}

impl PodSink {
    fn new(deliveries: mpsc::Sender<Delivery>) -> Self {
        Self { deliveries, list: SourceReading::default(), partial: false, said: BTreeSet::new() }
    }

    /// Once for each pod, until it can be read.
    fn log_unreadable(&mut self, unreadable: &BTreeSet<PodUid>) {
        for uid in unreadable.difference(&self.said) {
            tracing::warn!(
                %uid,
                "a pod of the API server cannot be read: nothing of it is started, changed or \
                 stopped until it can, or is deleted"
            );
        }
        self.said.clone_from(unreadable);
    }

    async fn deliver(&self, delivery: Delivery) {
        // Without a receiver the watch ends.
        let _ = self.deliveries.send(delivery).await;
    }
}

impl ObjectSink<Pod> for PodSink {
    fn begin(&mut self) {
        (self.list, self.partial) = (SourceReading::default(), false);
    }

    fn listed(&mut self, pod: Pod) {
        self.list.pods.push((Arc::new(slim(pod)), UnixNanos::NEVER));
    }

    fn listed_unreadable(&mut self, lost: Option<UnreadableObject>) {
        match lost.filter(|lost| !lost.uid.is_empty()) {
            Some(lost) => self.list.unreadable.extend([PodUid::from(&*lost.uid)]),
            None => self.partial = true,
        }
    }

    async fn complete(&mut self) {
        let list = std::mem::take(&mut self.list);
        self.log_unreadable(&list.unreadable);
        if !self.partial {
            return self.deliver(Delivery::All(list)).await;
        }
        // It is no complete list: a pod without a name may run and must not be stopped.
        for (pod, _) in list.pods {
            self.deliver(Delivery::Changed(Box::new(Arc::unwrap_or_clone(pod)))).await;
        }
    }

    async fn applied(&mut self, pod: Pod) {
        self.deliver(Delivery::Changed(Box::new(slim(pod)))).await;
    }

    async fn deleted(&mut self, pod: Pod) {
        self.deliver(Delivery::Gone(Box::new(slim(pod)))).await;
    }

    async fn deleted_unreadable(&mut self, lost: UnreadableObject) {
        let metadata = ObjectMeta {
            namespace: Some(lost.key.namespace().to_owned()),
            name: Some(lost.key.name().to_owned()),
            uid: Some(lost.uid.into()),
            ..ObjectMeta::default()
        };
        self.deliver(Delivery::Gone(Box::new(Pod { metadata, ..Pod::default() }))).await;
    }
}

/// Removes unused fields: `managedFields` are a third of a pod's bytes.
fn slim(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod
}

#[cfg(test)]
mod tests {
    use pintle_api_types::key::ObjectKey;
    use serde_json::json;

    use super::*;

    fn pod(name: &str) -> Pod {
        let fields = json!([{"manager": "kubectl", "operation": "Update"}]);
        let metadata = json!({"uid": name, "name": name, "managedFields": fields});
        serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
    }

    #[tokio::test]
    async fn a_list_is_delivered_when_it_is_complete_and_a_change_at_once() {
        let (deliveries, mut told) = mpsc::channel(8);
        let mut sink = PodSink::new(deliveries);
        sink.begin();
        sink.listed(pod("a"));
        // The list broke off: it starts over.
        sink.begin();
        sink.listed(pod("b"));
        assert_eq!(told.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        sink.complete().await;
        let Ok(Delivery::All(all)) = told.try_recv() else { panic!("no list") };
        assert_eq!(all.pods.len(), 1);
        assert_eq!(all.pods[0].0.metadata.name.as_deref(), Some("b"));
        sink.applied(pod("b")).await;
        let Ok(Delivery::Changed(changed)) = told.try_recv() else { panic!("no change") };
        assert_eq!(changed.metadata.managed_fields, None);
        sink.deleted(pod("b")).await;
        assert!(matches!(told.try_recv(), Ok(Delivery::Gone(_))));
    }

    #[tokio::test]
    async fn a_pod_that_cannot_be_read_keeps_no_list_from_being_complete() {
        let (deliveries, mut told) = mpsc::channel(8);
        let mut sink = PodSink::new(deliveries);
        let lost = |uid: &str| UnreadableObject { key: ObjectKey::new("n", "b"), uid: uid.into() };
        sink.begin();
        sink.listed(pod("a"));
        sink.listed_unreadable(Some(lost("u")));
        sink.complete().await;
        let Ok(Delivery::All(all)) = told.try_recv() else { panic!("no list") };
        assert_eq!((all.pods.len(), all.unreadable), (1, BTreeSet::from([PodUid::from("u")])));
        // Its deletion is one although it cannot be read either.
        sink.deleted_unreadable(lost("u")).await;
        let Ok(Delivery::Gone(gone)) = told.try_recv() else { panic!("not gone") };
        assert_eq!(gone.metadata.uid.as_deref(), Some("u"));
        // The next list does not remember it.
        sink.begin();
        sink.complete().await;
        assert_eq!(told.try_recv(), Ok(Delivery::All(SourceReading::default())));
    }

    #[tokio::test]
    async fn list_with_a_pod_without_name_or_uid_deletes_no_pods() {
        let (deliveries, mut told) = mpsc::channel(8);
        let mut sink = PodSink::new(deliveries);
        let no_uid = UnreadableObject { key: ObjectKey::new("n", "b"), uid: "".into() };
        for unreadable in [Some(no_uid), None] {
            sink.begin();
            sink.listed(pod("a"));
            sink.listed_unreadable(unreadable);
            sink.complete().await;
            assert!(matches!(told.try_recv(), Ok(Delivery::Changed(_))));
            assert_eq!(told.try_recv(), Err(mpsc::error::TryRecvError::Empty));
        }
        sink.begin();
        sink.complete().await;
        assert!(matches!(told.try_recv(), Ok(Delivery::All(_))));
    }
}
