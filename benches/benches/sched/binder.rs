//! Who binds each pod as soon as a watch tells it, and decides nothing: what no scheduler beats.

use anyhow::Result;
use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{Binding, ObjectReference, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{PostParams, WatchEvent, WatchParams};
use serde_json::Value;

/// Bindings under way.
const AT_ONCE: usize = 64;

/// Binds pods that come to a namespace to its nodes in turn, until so many are bound.
pub(crate) async fn bind(
    client: &kube::Client,
    namespace: &str,
    node: impl Fn(usize) -> String,
    pods: usize,
) -> Result<()> {
    let all: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let told = all.watch(&WatchParams::default().timeout(290), "0").await?;
    let new = told.try_filter_map(async |event| match event {
        WatchEvent::Added(pod) => Ok(pod.metadata.name),
        WatchEvent::Error(status) => Err(kube::Error::Api(status)),
        _ => Ok(None),
    });
    let mut count = 0;
    let bound = new.map_ok(|name| {
        count += 1;
        one(&all, name, node(count))
    });
    bound.try_buffer_unordered(AT_ONCE).take(pods).try_for_each(async |()| Ok(())).await?;
    Ok(())
}

async fn one(all: &Api<Pod>, name: String, node: String) -> kube::Result<()> {
    let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
    let target = ObjectReference { name: Some(node), ..ObjectReference::default() };
    let binding = Binding { metadata, target };
    // The answer is a status.
    let params = PostParams::default();
    let answer = all.create_subresource::<_, Value>("binding", &name, &params, &binding);
    answer.await.map(drop)
}
