//! The real API server, over HTTP.
//!
//! Input: requests as data. Output: its answers, as data.

use anyhow::{Context, Result};
use http_body_util::BodyExt as _;
use hyper::{Method, Request as Http};
use kube::client::Body;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request};
use serde_json::{Value, json};

const METADATA_ONLY: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const LIST_METADATA_ONLY: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const JSON: &str = "application/json";

/// Asks the server.
pub async fn ask(client: &kube::Client, request: &Request) -> Result<Answer> {
    let parts = parts(request);
    let http = Http::builder()
        .method(parts.method)
        .uri(&parts.path)
        .header("Accept", parts.accept)
        .header("Content-Type", parts.content_type);
    let body = parts.body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
    let response = client.send(http.body(Body::from(body))?).await.context("send a request")?;
    let code = response.status();
    let bytes = response.into_body().collect().await.context("read an answer")?.to_bytes();
    let value: Value = serde_json::from_slice(&bytes)
        .unwrap_or_else(|_| json!({"message": String::from_utf8_lossy(&bytes)}));
    Ok(match code.is_success() {
        true => Ok(value),
        false => Err(ApiError::from_status(code.as_u16(), &value)),
    })
}

/// Seconds of one watch: the server may begin late on a busy machine.
const WATCH_SECONDS: [u64; 4] = [1, 4, 16, 60];

/// The events of a kind in a namespace after a version: those of a second, or of a longer watch
/// while there are fewer than `wanted`.
pub async fn watch(
    client: &kube::Client,
    kind: Kind,
    namespace: &str,
    version: &str,
    wanted: usize,
) -> Result<Vec<(String, Value)>> {
    let mut events = Vec::new();
    for seconds in WATCH_SECONDS {
        let path = kind.path(namespace);
        let uri = format!("{path}?watch=1&timeoutSeconds={seconds}&resourceVersion={version}");
        events = watch_once(client, &uri).await?;
        if events.len() >= wanted {
            break;
        }
    }
    Ok(events)
}

async fn watch_once(client: &kube::Client, uri: &str) -> Result<Vec<(String, Value)>> {
    let http = Http::builder().uri(uri).header("Accept", JSON).body(Body::empty())?;
    let response = client.send(http).await.context("send a watch")?;
    let bytes = response.into_body().collect().await.context("read events")?.to_bytes();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let mut event: Value = serde_json::from_slice(line)?;
            let change = event["type"].as_str().context("an event without a type")?.to_owned();
            Ok((change, event["object"].take()))
        })
        .collect()
}

struct Parts {
    method: Method,
    path: String,
    accept: &'static str,
    content_type: &'static str,
    body: Option<Value>,
}

fn parts(request: &Request) -> Parts {
    let of = |method, path, body| Parts { method, path, accept: JSON, content_type: JSON, body };
    match request {
        Request::Create { kind, namespace, below: None, body } => {
            of(Method::POST, kind.path(namespace), Some(body.clone()))
        }
        Request::Create { kind, namespace, below: Some(below), body } => {
            let path = format!("{}/{}/{}", kind.path(namespace), below.name, below.sub);
            of(Method::POST, path, Some(body.clone()))
        }
        Request::Replace { target, body } => of(Method::PUT, target.path(), Some(body.clone())),
        Request::Patch { target, form, body } => {
            let mut path = target.path();
            if let PatchForm::Apply { manager } = form {
                path.push_str(&format!("?fieldManager={manager}&force=true"));
            }
            let parts = of(Method::PATCH, path, Some(body.clone()));
            Parts { content_type: form.content_type(), ..parts }
        }
        Request::Delete { target, options } => {
            let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            if let Some(uid) = &options.uid {
                body["preconditions"]["uid"] = uid.as_str().into();
            }
            if let Some(version) = &options.version {
                body["preconditions"]["resourceVersion"] = version.as_str().into();
            }
            if let Some(propagation) = options.propagation {
                body["propagationPolicy"] = propagation.as_str().into();
            }
            if let Some(seconds) = options.grace_seconds {
                body["gracePeriodSeconds"] = seconds.into();
            }
            of(Method::DELETE, target.path(), Some(body))
        }
        Request::DeleteCollection { kind, namespace, propagation } => {
            let mut body = json!({"apiVersion": "v1", "kind": "DeleteOptions"});
            if let Some(propagation) = propagation {
                body["propagationPolicy"] = propagation.as_str().into();
            }
            of(Method::DELETE, kind.path(namespace), Some(body))
        }
        Request::Read { target, only_metadata } => {
            let parts = of(Method::GET, target.path(), None);
            Parts { accept: if *only_metadata { METADATA_ONLY } else { JSON }, ..parts }
        }
        Request::List { kind, namespace, labels, only_metadata } => {
            let labels = labels.replace('=', "%3D").replace(' ', "%20").replace('!', "%21");
            let path = format!("{}?labelSelector={labels}", kind.path(namespace));
            let parts = of(Method::GET, path, None);
            Parts { accept: if *only_metadata { LIST_METADATA_ONLY } else { JSON }, ..parts }
        }
        Request::Get { path } => of(Method::GET, path.clone(), None),
    }
}
