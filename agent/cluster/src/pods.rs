//! The API server as a source: a watch of the pods that are bound to this node.
//!
//! Input: a client. Output: `Delivery`s, the first of which is a complete list and makes the
//! source ready; afterwards one for each change, and a complete list again when the watch lost
//! its place. Lists are consistent reads, so that the pods never go back in time. Bounds: a full
//! channel holds the watch back. A failed watch is repeated after `RETRY`, which grows. An outage
//! changes nothing: what was delivered stays wanted until the API server says otherwise.
// k8s: pkg/kubelet/config/apiserver.go NewSourceApiserver

use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use pintle_agent_core::api_health::{ApiHealth, Task};
use pintle_agent_core::source::{Delivery, Reading};
use pintle_agent_core::types::UnixNanos;
use pintle_daemon::clock;
use tokio::sync::mpsc;

/// First and longest wait before a failed list or watch is repeated.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Watches until nobody listens any more.
pub async fn run(
    client: Client,
    node_name: String,
    deliveries: mpsc::Sender<Delivery>,
    api_health: ApiHealth,
) {
    let config = watcher::Config::default().fields(&format!("spec.nodeName={node_name}"));
    let mut events = std::pin::pin!(watcher(Api::<Pod>::all(client), config));
    let mut listed = Vec::new();
    let mut wait = RETRY.0;
    let mut failing = false;
    while let Some(event) = events.next().await {
        let delivery = match event {
            // Said before anything is asked, so it proves nothing.
            Ok(Event::Init) => collect(Event::Init, &mut listed),
            Ok(event) => {
                if std::mem::take(&mut failing) {
                    tracing::info!("the API server delivers pods again");
                    api_health.works(Task::Pods);
                }
                wait = RETRY.0;
                collect(event, &mut listed)
            }
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "no pods from the API server; what runs goes on");
                }
                api_health.fails(Task::Pods, &crate::words(&error), clock::now());
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(RETRY.1);
                None
            }
        };
        if let Some(delivery) = delivery
            && deliveries.send(delivery).await.is_err()
        {
            return;
        }
    }
}

/// What an event delivers; the pods of a list are gathered until it is complete.
fn collect(event: Event<Pod>, listed: &mut Vec<(Pod, UnixNanos)>) -> Option<Delivery> {
    match event {
        Event::Init => {
            listed.clear();
            None
        }
        Event::InitApply(pod) => {
            listed.push((slim(pod), UnixNanos::NEVER));
            None
        }
        Event::InitDone => {
            let pods = std::mem::take(listed);
            Some(Delivery::All(Reading { pods, problems: Vec::new() }))
        }
        Event::Apply(pod) => Some(Delivery::Changed(Box::new(slim(pod)))),
        Event::Delete(pod) => Some(Delivery::Gone(Box::new(slim(pod)))),
    }
}

/// Without what nobody here reads: who wrote which field is a third of a pod's bytes.
fn slim(mut pod: Pod) -> Pod {
    pod.metadata.managed_fields = None;
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str) -> Pod {
        let fields = json!([{"manager": "kubectl", "operation": "Update"}]);
        let metadata = json!({"uid": name, "name": name, "managedFields": fields});
        serde_json::from_value(json!({"metadata": metadata})).expect("a pod")
    }

    #[test]
    fn a_list_is_delivered_when_it_is_complete_and_a_change_at_once() {
        let mut listed = Vec::new();
        assert_eq!(collect(Event::Init, &mut listed), None);
        assert_eq!(collect(Event::InitApply(pod("a")), &mut listed), None);
        // The watch broke while it was listed: it begins anew.
        assert_eq!(collect(Event::Init, &mut listed), None);
        assert_eq!(collect(Event::InitApply(pod("b")), &mut listed), None);
        let Some(Delivery::All(all)) = collect(Event::InitDone, &mut listed) else {
            panic!("no list");
        };
        assert_eq!(all.pods.len(), 1);
        assert_eq!(all.pods[0].0.metadata.name.as_deref(), Some("b"));
        let Some(Delivery::Changed(changed)) = collect(Event::Apply(pod("b")), &mut listed) else {
            panic!("no change");
        };
        assert_eq!(changed.metadata.managed_fields, None);
        let gone = collect(Event::Delete(pod("b")), &mut listed);
        assert!(matches!(gone, Some(Delivery::Gone(_))));
    }
}
