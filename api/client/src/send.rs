//! Sends requests that are data, and returns their answers as data.
//!
//! Input: a [`Request`]. Output: an [`Answer`]: the object, or the error that the server or the
//! connection gave. An error without an answer has code 0, since the request may have taken effect.
//! Bounds: `ANSWER_BYTES_MAX` of an answer, `ANSWER_WAIT_MAX` until it begins, by default.

use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, StatusCode};
use http_body::Body as _;
use kube::Client;
use kube::client::Body;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Propagation, Request, Target};
use pintle_api_types::url::escaped;
use serde_json::{Value, json};

use crate::{AnswerWithin, Share};

/// The longest answer: lists of a namespace's objects are the longest ones.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The longest wait for the head of an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

const JSON: &str = "application/json";

/// A request as HTTP carries it.
#[derive(Debug, PartialEq)]
struct Wire {
    method: Method,
    path: String,
    content_type: Option<&'static str>,
    accept: &'static str,
    body: Option<Value>,
}

impl Wire {
    fn of(request: &Request) -> Self {
        match request {
            Request::Create { kind, namespace, below, body } => {
                let mut path = kind.path(namespace);
                if let Some(below) = below {
                    path = format!("{path}/{}/{}", below.name, below.sub);
                }
                Self::with_body(Method::POST, path, JSON, body.clone())
            }
            Request::Replace { target, body } => {
                Self::with_body(Method::PUT, target.path(), JSON, body.clone())
            }
            Request::Patch { target, form, body } => Self::patch(target, form, body),
            Request::Delete { target, options } => {
                let mut preconditions = json!({});
                if let Some(uid) = &options.uid {
                    preconditions["uid"] = json!(uid);
                }
                if let Some(version) = &options.version {
                    preconditions["resourceVersion"] = json!(version);
                }
                let mut body = delete_options(options.propagation);
                if preconditions != json!({}) {
                    body["preconditions"] = preconditions;
                }
                if let Some(seconds) = options.grace_seconds {
                    body["gracePeriodSeconds"] = json!(seconds);
                }
                Self::with_body(Method::DELETE, target.path(), JSON, body)
            }
            Request::DeleteCollection { kind, namespace, propagation } => {
                let body = delete_options(*propagation);
                Self::with_body(Method::DELETE, kind.path(namespace), JSON, body)
            }
            Request::Read { target, only_metadata } => {
                let accept = match only_metadata {
                    true => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                    false => JSON,
                };
                Self::read(target.path(), accept)
            }
            Request::List { kind, namespace, labels, only_metadata } => {
                let accept = match only_metadata {
                    true => "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                    false => JSON,
                };
                let mut path = kind.path(namespace);
                if !labels.is_empty() {
                    path = format!("{path}?labelSelector={}", escaped(labels));
                }
                Self::read(path, accept)
            }
            Request::Get { path } => Self::read(path.clone(), JSON),
        }
    }

    fn patch(target: &Target, form: &PatchForm, body: &Value) -> Self {
        let mut path = target.path();
        if let PatchForm::Apply { manager } = form {
            path = format!("{path}?fieldManager={}&force=true", escaped(manager));
        }
        Self::with_body(Method::PATCH, path, form.content_type(), body.clone())
    }

    fn with_body(method: Method, path: String, content_type: &'static str, body: Value) -> Self {
        Self { method, path, content_type: Some(content_type), accept: JSON, body: Some(body) }
    }

    fn read(path: String, accept: &'static str) -> Self {
        Self { method: Method::GET, path, content_type: None, accept, body: None }
    }
}

fn delete_options(propagation: Option<Propagation>) -> Value {
    let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if let Some(propagation) = propagation {
        body["propagationPolicy"] = json!(propagation.as_str());
    }
    body
}

/// On whose behalf a request is made: tenants take turns for the client's limit.
fn share_of(request: &Request) -> Share {
    let of = |target: &Target| Share::of(target.key.namespace());
    match request {
        Request::Create { namespace, .. }
        | Request::DeleteCollection { namespace, .. }
        | Request::List { namespace, .. } => Share::of(namespace),
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. }
        | Request::Read { target, .. } => of(target),
        Request::Get { .. } => Share::default(),
    }
}

/// Sends a request and returns its answer. Of a client's bulk requests, namespaces take turns.
pub async fn send(client: &Client, request: &Request) -> Answer {
    let wire = Wire::of(request);
    let mut builder = http::Request::builder()
        .method(wire.method)
        .uri(wire.path)
        .header(ACCEPT, wire.accept)
        .extension(AnswerWithin(ANSWER_WAIT_MAX))
        .extension(share_of(request));
    if let Some(content_type) = wire.content_type {
        builder = builder.header(CONTENT_TYPE, content_type);
    }
    let body = wire.body.map_or_else(Body::empty, |body| Body::from(go_text(&body).into_bytes()));
    let unknown =
        |error: &dyn std::error::Error| ApiError { message: chain(error), ..ApiError::default() };
    let request = builder.body(body).map_err(|error| ApiError {
        code: StatusCode::BAD_REQUEST.as_u16(),
        message: error.to_string(),
        ..ApiError::default()
    })?;
    let answer = client.send(request).await.map_err(|error| unknown(&error))?;
    let status = answer.status();
    let bytes = read(answer.into_body()).await.map_err(|error| unknown(&*error))?;
    let value = serde_json::from_slice::<Value>(&bytes);
    if status.is_success() {
        return value.map_err(|error| unknown(&error));
    }
    let code = status.as_u16();
    Err(match value {
        Ok(value) if value["kind"] == "Status" => ApiError::from_status(code, &value),
        _ => ApiError { code, message: status.to_string(), ..ApiError::default() },
    })
}

/// The text that Go prints: the revision of a set is kept as it was sent, and compared with what
/// upstream's controllers would have sent. These characters occur only inside of texts.
// k8s: encoding/json HTMLEscape
fn go_text(body: &Value) -> String {
    let text = body.to_string();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    let mut escaped = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                escaped.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => escaped.push(c),
        }
    }
    escaped
}

type AnyError = Box<dyn std::error::Error + Send + Sync>;

async fn read(body: Body) -> Result<Vec<u8>, AnyError> {
    let mut body = std::pin::pin!(body);
    let mut bytes = Vec::new();
    while let Some(frame) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await
    {
        if let Ok(data) = frame?.into_data() {
            if bytes.len() + data.len() > ANSWER_BYTES_MAX {
                return Err("the answer is too long".into());
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes)
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use pintle_api_types::key::ObjectKey;
    use pintle_api_types::kind::{JOBS, PODS};
    use pintle_api_types::request::{DeleteOptions, Subresource};

    use super::*;

    #[test]
    fn requests_have_the_method_and_path_of_the_api() {
        let pod = Target::object(PODS, ObjectKey::new("n", "a"));
        let body = || json!({});
        let token = Some(Subresource { name: "a".to_owned(), sub: "token" });
        let create = |below| {
            let namespace = "n".to_owned();
            Request::Create { kind: PODS, namespace, below, body: body() }
        };
        let apply = PatchForm::Apply { manager: "m" };
        let list = Request::List {
            kind: PODS,
            namespace: String::new(),
            labels: "a=b".to_owned(),
            only_metadata: false,
        };
        let status = Target { sub: "status", ..pod.clone() };
        for (request, method, path) in [
            (create(None), "POST", "/api/v1/namespaces/n/pods"),
            (create(token), "POST", "/api/v1/namespaces/n/pods/a/token"),
            (
                Request::Replace { target: status, body: body() },
                "PUT",
                "/api/v1/namespaces/n/pods/a/status",
            ),
            (
                Request::Patch { target: pod.clone(), form: apply, body: body() },
                "PATCH",
                "/api/v1/namespaces/n/pods/a?fieldManager=m&force=true",
            ),
            (list, "GET", "/api/v1/pods?labelSelector=a%3Db"),
        ] {
            let wire = Wire::of(&request);
            assert_eq!((wire.method.as_str(), &*wire.path), (method, path));
        }
    }

    #[test]
    fn body_is_printed_as_go_prints_it() {
        assert_eq!(
            go_text(&json!({"a": "<b> & \u{2028}"})),
            r#"{"a":"\u003cb\u003e \u0026 \u2028"}"#
        );
    }

    #[test]
    fn deletion_states_its_preconditions_and_propagation() {
        let target = Target::object(JOBS, ObjectKey::new("n", "a"));
        let options = DeleteOptions {
            uid: Some("u".to_owned()),
            propagation: Some(Propagation::Foreground),
            ..Default::default()
        };
        let body = Wire::of(&Request::Delete { target, options }).body.expect("a body");
        assert_eq!(body["preconditions"], json!({"uid": "u"}));
        assert_eq!(body["propagationPolicy"], "Foreground");
    }
}
