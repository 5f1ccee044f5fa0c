//! An answer of the server before it becomes HTTP: status, content type, body.
//!
//! Pure data, so that routes are plain functions and tests need no socket.

use std::borrow::Cow;

use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{
    CONTENT_ENCODING, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WARNING, X_CONTENT_TYPE_OPTIONS,
};
use serde::Serialize;
use serde_json::json;

/// The kubelet's content type of health checks and errors.
const TEXT: &str = "text/plain; charset=utf-8";
/// The kubelet's content type of objects.
const JSON: &str = "application/json";
/// The kubelet's content type of metrics.
// k8s: prometheus/common expfmt, FmtText
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Status code of HTTP.
    pub status: u16,
    /// Media type of the body.
    pub content_type: Cow<'static, str>,
    /// A warning that clients show to their users.
    pub warning: Option<String>,
    /// The client should retry after so long.
    pub retry_after_seconds: Option<u32>,
    /// The body is compressed.
    pub is_gzip: bool,
    /// The body.
    pub body: Bytes,
}

impl HttpAnswer {
    fn of(status: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self {
            status,
            content_type: content_type.into(),
            warning: None,
            retry_after_seconds: None,
            is_gzip: false,
            body: Bytes::from(body),
        }
    }

    /// Text for people.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Self::of(status, TEXT, body.into().into_bytes())
    }

    /// Metrics in text form.
    pub fn metrics(body: String) -> Self {
        Self::of(200, METRICS, body.into_bytes())
    }

    /// Bytes that are JSON already.
    pub fn json_bytes(body: Vec<u8>) -> Self {
        Self::of(200, JSON, body)
    }

    /// A value as JSON.
    pub fn json(value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::json_bytes(body),
            Err(error) => Self::text(500, format!("internal server error: {error}\n")),
        }
    }

    /// A refusal as JSON, for the agent's own commands.
    pub fn refusal(status: u16, error: &str, more: &[String]) -> Self {
        Self { status, ..Self::json(&json!({"error": error, "more": more})) }
    }

    /// No such path, in the words of the kubelet's router.
    pub fn not_found() -> Self {
        Self::of(404, "text/plain", b"404: Page Not Found".to_vec())
    }

    /// A method that is not taken there.
    pub fn not_allowed() -> Self {
        Self::of(405, "text/plain", b"405: Method Not Allowed".to_vec())
    }
}

impl From<HttpAnswer> for Response<Bytes> {
    fn from(answer: HttpAnswer) -> Self {
        let mut response = Response::new(answer.body);
        *response.status_mut() =
            hyper::StatusCode::from_u16(answer.status).expect("answers have known status codes");
        let headers = response.headers_mut();
        let value = |text: &str| HeaderValue::from_str(text).ok();
        headers.extend(value(&answer.content_type).map(|value| (CONTENT_TYPE, value)));
        let warning = answer.warning.as_deref().and_then(value);
        headers.extend(warning.map(|value| (WARNING, value)));
        let wait = answer.retry_after_seconds.map(HeaderValue::from);
        headers.extend(wait.map(|value| (RETRY_AFTER, value)));
        if answer.is_gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        response
    }
}
