//! Sends requests that are data, and returns their answers as data.
//!
//! Input: a [`Request`]. Output: an [`Answer`]: the object, or the error that the server or the
//! connection gave. An error without an answer has code 0, since the request may have taken effect.
//! Bounds: `ANSWER_BYTES_MAX` of an answer, `ANSWER_WAIT_MAX` until it begins, by default.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, StatusCode};
use http_body::Body as _;
use kube::Client;
use kube::client::Body;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Propagation, Request, Target};
use pintle_api_types::url::escaped;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::{AnswerWithin, TenantShare};

/// The longest answer: lists of a namespace's objects are the longest ones.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// The longest wait for the head of an answer.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(60);

const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// A request as HTTP carries it.
#[derive(Debug, PartialEq)]
struct WireRequest<'a> {
    method: Method,
    path: String,
    content_type: Option<&'static str>,
    body: Option<Cow<'a, Value>>,
}

impl<'a> WireRequest<'a> {
    fn of(request: &'a Request) -> Self {
        match request {
            Request::Create { kind, namespace, below, body } => {
                let mut path = kind.path(namespace);
                if let Some(below) = below {
                    path = format!("{path}/{}/{}", below.name, below.sub);
                }
                Self::with_body(Method::POST, path, JSON, Cow::Borrowed(body))
            }
            Request::Replace { target, body } => {
                Self::with_body(Method::PUT, target.path(), JSON, Cow::Borrowed(body))
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
                Self::with_body(Method::DELETE, target.path(), JSON, Cow::Owned(body))
            }
            Request::DeleteCollection { kind, namespace, propagation } => {
                let body = Cow::Owned(delete_options(*propagation));
                Self::with_body(Method::DELETE, kind.path(namespace), JSON, body)
            }
            Request::Read { target, .. } => Self::read(target.path()),
            Request::List { kind, namespace, labels, .. } => {
                let mut path = kind.path(namespace);
                if !labels.is_empty() {
                    path = format!("{path}?labelSelector={}", escaped(labels));
                }
                Self::read(path)
            }
            Request::Get { path } => Self::read(path.clone()),
        }
    }

    fn patch(target: &Target, form: &PatchForm, body: &'a Value) -> Self {
        let mut path = target.path();
        if let PatchForm::Apply { manager } = form {
            path = format!("{path}?fieldManager={}&force=true", escaped(manager));
        }
        Self::with_body(Method::PATCH, path, form.content_type(), Cow::Borrowed(body))
    }

    fn with_body(
        method: Method,
        path: String,
        content_type: &'static str,
        body: Cow<'a, Value>,
    ) -> Self {
        Self { method, path, content_type: Some(content_type), body: Some(body) }
    }

    fn read(path: String) -> Self {
        Self { method: Method::GET, path, content_type: None, body: None }
    }
}

/// The `Accept` header of a request.
fn accept_of(request: &Request) -> &'static str {
    match request {
        request if !request.wants_only_metadata() => JSON,
        Request::List { .. } => METADATA_LIST,
        _ => METADATA,
    }
}

fn delete_options(propagation: Option<Propagation>) -> Value {
    let mut body = json!({"kind": "DeleteOptions", "apiVersion": "v1"});
    if let Some(propagation) = propagation {
        body["propagationPolicy"] = json!(propagation.as_str());
    }
    body
}

/// The share of a request: tenants take turns for the client's limit.
fn share_of(request: &Request) -> TenantShare {
    let of = |target: &Target| TenantShare::of(target.key.namespace());
    match request {
        Request::Create { namespace, .. }
        | Request::DeleteCollection { namespace, .. }
        | Request::List { namespace, .. } => TenantShare::of(namespace),
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. }
        | Request::Read { target, .. } => of(target),
        Request::Get { .. } => TenantShare::default(),
    }
}

/// Sends a request and returns its answer. Of a client's bulk requests, namespaces take turns.
pub async fn send(client: &Client, request: &Request) -> Answer {
    let wire = WireRequest::of(request);
    let mut builder = http::Request::builder()
        .method(wire.method)
        .uri(wire.path)
        .header(ACCEPT, accept_of(request))
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
    let value = serde_json::from_slice::<AnswerObject>(&bytes).map(|object| object.0);
    if status.is_success() {
        return value.map_err(|error| unknown(&error));
    }
    let code = status.as_u16();
    Err(match value {
        Ok(value) if value["kind"] == "Status" => ApiError::from_status(code, &value),
        _ => ApiError { code, message: status.to_string(), ..ApiError::default() },
    })
}

/// The text that Go prints: the revision of a set is kept as it was sent, and compared with the
/// text of upstream's controllers. These characters occur only inside of texts.
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

/// An object without `metadata.managedFields`. They are half of many objects, no controller reads
/// them, and the API server keeps its own when a request has none.
struct AnswerObject(Value);

impl<'de> Deserialize<'de> for AnswerObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(ObjectEntries { is_metadata: false }).map(Self)
    }
}

/// The entries of an object, or of its metadata.
struct ObjectEntries {
    is_metadata: bool,
}

impl<'de> DeserializeSeed<'de> for ObjectEntries {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ObjectEntries {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = match &*key {
                "metadata" if !self.is_metadata => {
                    entries.next_value_seed(ObjectEntries { is_metadata: true })?
                }
                "managedFields" if self.is_metadata => {
                    entries.next_value::<IgnoredAny>()?;
                    continue;
                }
                _ => entries.next_value()?,
            };
            object.insert(key, value);
        }
        Ok(object.into())
    }
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
            let wire = WireRequest::of(&request);
            assert_eq!((wire.method.as_str(), &*wire.path), (method, path));
        }
    }

    #[test]
    fn managed_fields_of_an_answer_are_left_out() {
        let text = r#"{"metadata":{"name":"a","managedFields":[{}]},"managedFields":1,
            "spec":{"metadata":{"managedFields":2}}}"#;
        let found: AnswerObject = serde_json::from_str(text).expect("an object");
        let expected = json!({"metadata": {"name": "a"}, "managedFields": 1,
            "spec": {"metadata": {"managedFields": 2}}});
        assert_eq!(found.0, expected);
        assert!(serde_json::from_str::<AnswerObject>(r#"{"metadata":null}"#).is_ok());
        assert!(serde_json::from_str::<AnswerObject>("[]").is_err());
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
        let request = Request::Delete { target, options };
        let body = WireRequest::of(&request).body.expect("a body");
        assert_eq!(body["preconditions"], json!({"uid": "u"}));
        assert_eq!(body["propagationPolicy"], "Foreground");
    }
}
