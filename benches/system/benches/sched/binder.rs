//! A client that binds each pod as soon as its watch event arrives, emits an Event, and decides
//! nothing: a lower bound for every scheduler with kube-scheduler's writes.

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use serde_json::Value;

/// Bindings under way.
const AT_ONCE: usize = 64;

/// Binds new pods of a namespace to the nodes in turn, until this number is bound.
pub(crate) async fn bind(
    client: &kube::Client,
    namespace: &str,
    node: impl Fn(usize) -> String,
    pods: usize,
) -> Result<()> {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let told = all.watch(&WatchParams::default().timeout(290), "0").await?;
    let new = told.try_filter_map(async |event| match event {
        WatchEvent::Added(pod) => Ok(Some(pod.metadata)),
        WatchEvent::Error(status) => Err(kube::Error::Api(status)),
        _ => Ok(None),
    });
    let mut count = 0;
    let bound = new.map_ok(|pod| {
        count += 1;
        one(&all, &events, pod, node(count))
    });
    bound.try_buffer_unordered(AT_ONCE).take(pods).try_for_each(async |()| Ok(())).await?;
    Ok(())
}

async fn one(
    all: &Api<Pod>,
    events: &Api<Event>,
    pod: ObjectMeta,
    node: String,
) -> kube::Result<()> {
    let name = pod.name.clone().unwrap_or_default();
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let target = ObjectReference { name: Some(node.clone()), ..ObjectReference::default() };
    let binding = Binding { metadata, target };
    // The answer is a status.
    let params = PostParams::default();
    all.create_subresource::<_, Value>("binding", &name, &params, &binding).await?;
    events.create(&params, &scheduled(pod, &name, &node)).await.map(drop)
}

/// The Event that kube-scheduler emits for a bound pod.
fn scheduled(pod: ObjectMeta, name: &str, node: &str) -> Event {
    let namespace = pod.namespace.clone().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.scheduled")),
            namespace: pod.namespace.clone(),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(Timestamp::now())),
        action: Some("Binding".to_owned()),
        reason: Some("Scheduled".to_owned()),
        type_: Some("Normal".to_owned()),
        note: Some(format!("Successfully assigned {namespace}/{name} to {node}")),
        reporting_controller: Some("default-scheduler".to_owned()),
        reporting_instance: Some("default-scheduler-bench".to_owned()),
        regarding: Some(ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: pod.name,
            namespace: pod.namespace,
            resource_version: pod.resource_version,
            uid: pod.uid,
            ..ObjectReference::default()
        }),
        ..Event::default()
    }
}
