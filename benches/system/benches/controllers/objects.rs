//! Objects in the API server: creates many at once, and simulates a kubelet.
//!
//! Input: a client, and how many there are to be. Bounds: `AT_ONCE` requests at the same time.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use hyper::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// Requests at the same time.
const AT_ONCE: usize = 32;
/// Polling period, and limit.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_MAX: Duration = Duration::from_secs(600);
/// How long a watch of the kubelet that is played lasts.
const WATCH_SECONDS: u32 = 30;
/// Namespaces of the objects that are only there.
const NAMESPACES: usize = 20;

/// How many objects there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    pub(crate) pods: usize,
    pub(crate) deployments: usize,
    pub(crate) services: usize,
}

/// Sends a request; the answer's object.
pub(crate) async fn call(
    client: &Client,
    method: Method,
    path: &str,
    body: Value,
) -> Result<Value> {
    let kind = match method {
        Method::PATCH => "application/merge-patch+json",
        _ => "application/json",
    };
    let text = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let request = Request::builder().method(method).uri(path).header("content-type", kind);
    client.request(request.body(text)?).await.with_context(|| path.to_owned())
}

/// Sends many requests: `each` makes the one of a number.
pub(crate) async fn call_all(
    client: &Client,
    method: Method,
    count: usize,
    each: impl Fn(usize) -> (String, Value),
) -> Result<()> {
    let calls = (0..count).map(|at| {
        let (path, body) = each(at);
        let method = method.clone();
        async move { call(client, method, &path, body).await.map(drop) }
    });
    stream::iter(calls).buffer_unordered(AT_ONCE).try_collect().await
}

/// Polls an object until it is as it should be; returns the duration.
pub(crate) async fn wait_for(
    client: &Client,
    path: &str,
    is_done: impl Fn(&Value) -> bool,
) -> Result<Duration> {
    let begun = Instant::now();
    loop {
        let found = match call(client, Method::GET, path, Value::Null).await {
            Ok(found) => found,
            Err(error) if is_not_found(&error) => Value::Null,
            Err(error) => return Err(error),
        };
        if is_done(&found) {
            return Ok(begun.elapsed());
        }
        ensure!(begun.elapsed() < LOOK_MAX, "{path} stays as it is: {found}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn is_not_found(error: &anyhow::Error) -> bool {
    has_code(error, 404)
}

fn has_code(error: &anyhow::Error, code: u16) -> bool {
    let cause = error.downcast_ref::<kube::Error>();
    matches!(cause, Some(kube::Error::Api(status)) if status.code == code)
}

pub(crate) async fn namespace(client: &Client, name: &str) -> Result<()> {
    let body = json!({"metadata": {"name": name}});
    call(client, Method::POST, "/api/v1/namespaces", body).await?;
    // Pods are refused until their service account exists.
    let body = json!({"metadata": {"name": "default"}});
    let path = format!("/api/v1/namespaces/{name}/serviceaccounts");
    match call(client, Method::POST, &path, body).await {
        // A manager that runs may have been quicker.
        Err(error) if has_code(&error, 409) => Ok(()),
        made => made.map(drop),
    }
}

/// Pods that run, Deployments without pods and Services, in some namespaces.
pub(crate) async fn fill(client: &Client, amounts: Amounts) -> Result<()> {
    let of = |at: usize| format!("fill{}", at % NAMESPACES);
    for at in 0..NAMESPACES {
        namespace(client, &of(at)).await?;
    }
    let pods = |at: usize| format!("/api/v1/namespaces/{}/pods", of(at));
    call_all(client, Method::POST, amounts.pods, |at| (pods(at), pod(at))).await?;
    let statuses = |at| (format!("{}/p{at}/status", pods(at)), ready());
    call_all(client, Method::PATCH, amounts.pods, statuses).await?;
    let deployments = |at| {
        let body = deployment(&format!("d{at}"), 0);
        (format!("/apis/apps/v1/namespaces/{}/deployments", of(at)), body)
    };
    call_all(client, Method::POST, amounts.deployments, deployments).await?;
    let services = |at| {
        let body = json!({"metadata": {"name": format!("s{at}")}, "spec": {
            "clusterIP": "None", "selector": {"app": format!("a{at}")}, "ports": [{"port": 80}]}});
        (format!("/api/v1/namespaces/{}/services", of(at)), body)
    };
    call_all(client, Method::POST, amounts.services, services).await
}

fn pod(at: usize) -> Value {
    let env: Vec<_> = (0..8).map(|n| json!({"name": format!("E{n}"), "value": "v"})).collect();
    json!({
        "metadata": {"name": format!("p{at}"), "labels": {
            "app": format!("a{}", at % 500), "pod-template-hash": format!("{:09}", at % 500)}},
        "spec": {"nodeName": format!("n{}", at % 200), "containers": [
            {"name": "c", "image": "registry.test/app:1", "env": env,
                "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}}},
            {"name": "side", "image": "registry.test/side:1"}]},
    })
}

fn ready() -> Value {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let types = ["Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions =
        types.map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}));
    json!({"status": {"phase": "Running", "podIP": "10.1.2.3", "startTime": now,
        "conditions": conditions}})
}

/// A Deployment with pods that have a node from the beginning.
pub(crate) fn deployment(name: &str, replicas: usize) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {
            "nodeName": "played", "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "registry.test/app:1"}]}},
    }})
}

/// A new template, by a merge patch.
pub(crate) fn new_template() -> Value {
    let changed = json!({"annotations": {"round": "2"}});
    json!({"spec": {"template": {"metadata": changed}}})
}

/// All of it is rolled out.
pub(crate) fn is_rolled_out(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    let wanted = number(&spec["replicas"]);
    number(&status["observedGeneration"]) >= number(&deployment["metadata"]["generation"])
        && ["replicas", "updatedReplicas", "availableReplicas"]
            .iter()
            .all(|field| number(&status[*field]) == wanted)
}

/// Waits until all Deployments of a namespace are rolled out.
pub(crate) async fn all_rolled_out(client: &Client, namespace: &str) -> Result<()> {
    let path = format!("/apis/apps/v1/namespaces/{namespace}/deployments?resourceVersion=0");
    let all = |list: &Value| {
        let items = list["items"].as_array();
        items.is_some_and(|items| items.iter().all(is_rolled_out))
    };
    wait_for(client, &path, all).await.map(drop)
}

/// Simulates the kubelet of a namespace's pods: each is ready at once, and removed when it is
/// deleted. A watch that ends is restarted with all pods, so no event is lost for good.
pub(crate) async fn play_kubelet(client: &Client, namespace: &str) -> Result<()> {
    loop {
        play_until_watch_ends(client, namespace).await?;
    }
}

async fn play_until_watch_ends(client: &Client, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let told = pods.watch(&WatchParams::default().timeout(WATCH_SECONDS), "0").await?;
    let wanted = told.try_filter_map(async |event| match event {
        WatchEvent::Added(pod) if !is_ready(&pod) => Ok(Some(pod)),
        WatchEvent::Added(pod) | WatchEvent::Modified(pod)
            if pod.metadata.deletion_timestamp.is_some() =>
        {
            Ok(Some(pod))
        }
        WatchEvent::Error(status) => Err(kube::Error::Api(status)),
        _ => Ok(None),
    });
    let done = wanted.map_ok(|pod| async move {
        let name = pod.metadata.name.unwrap_or_default();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let done = match pod.metadata.deletion_timestamp {
            Some(_) => {
                let now = json!({"gracePeriodSeconds": 0});
                call(client, Method::DELETE, &path, now).await
            }
            None => call(client, Method::PATCH, &format!("{path}/status"), ready()).await,
        };
        // A pod may be gone before it is ready, and may be deleted twice.
        if let Err(error) = done
            && !is_not_found(&error)
        {
            eprintln!("the kubelet that is played: {error:#}");
        }
        Ok(())
    });
    done.try_buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    Ok(())
}

fn is_ready(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
}
