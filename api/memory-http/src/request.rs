//! A request of HTTP as a request of the server in memory.
//!
//! Input: method, route, query, headers and body. Output: the request, or the server's refusal of
//! its form. Pure.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, Method, header};
use pintle_api_types::request::{
    ApiError, DeleteOptions, PatchForm, Propagation, Request, Subresource,
};
use serde_json::Value;

use crate::route::Route;

/// The parameters of a request, decoded.
pub(crate) type Parameters = BTreeMap<String, String>;

/// The parts of a request of HTTP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpCall<'a> {
    pub(crate) method: &'a Method,
    pub(crate) query: &'a Parameters,
    pub(crate) headers: &'a HeaderMap,
    pub(crate) body: &'a [u8],
}

impl HttpCall<'_> {
    /// The parameter; empty when it is absent.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    fn header(&self, name: header::HeaderName) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    fn object(&self) -> Result<Value, ApiError> {
        serde_json::from_slice(self.body).map_err(|error| refusal(400, &error.to_string()))
    }
}

/// An error of the form of a request, or one that a test wants.
pub(crate) fn refusal(code: u16, message: &str) -> ApiError {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        415 => "UnsupportedMediaType",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        _ => "",
    };
    let (reason, message) = (reason.to_owned(), message.to_owned());
    ApiError { code, reason, message, ..ApiError::default() }
}

/// The request of the server in memory.
pub(crate) fn of(route: Route, call: &HttpCall<'_>) -> Result<Request, ApiError> {
    let only_metadata = call.header(header::ACCEPT).contains("as=PartialObjectMetadata");
    let is_collection = route.name.is_empty();
    Ok(match *call.method {
        Method::GET if is_collection => {
            let labels = call.parameter("labelSelector").to_owned();
            Request::List { kind: route.kind, namespace: route.namespace, labels, only_metadata }
        }
        Method::GET => Request::Read { target: route.target(), only_metadata },
        Method::POST => create(route, call.object()?)?,
        Method::PUT if !is_collection => {
            Request::Replace { target: route.target(), body: call.object()? }
        }
        Method::PATCH if !is_collection => {
            let form = form(call.header(header::CONTENT_TYPE))?;
            Request::Patch { target: route.target(), form, body: call.object()? }
        }
        Method::DELETE => delete(route, call)?,
        _ => return Err(refusal(405, "the server does not allow this method on the resource")),
    })
}

fn create(route: Route, body: Value) -> Result<Request, ApiError> {
    let below = match (route.name.is_empty(), route.sub) {
        (true, _) => None,
        (false, "") => return Err(refusal(405, "POST is for collections and subresources")),
        (false, sub) => Some(Subresource { name: route.name, sub }),
    };
    Ok(Request::Create { kind: route.kind, namespace: route.namespace, below, body })
}

fn form(content_type: &str) -> Result<PatchForm, ApiError> {
    match content_type {
        "application/strategic-merge-patch+json" => Ok(PatchForm::Strategic),
        "application/merge-patch+json" => Ok(PatchForm::Merge),
        "application/json-patch+json" => Ok(PatchForm::Json),
        "application/apply-patch+yaml" => Ok(PatchForm::Apply { manager: "" }),
        other => Err(refusal(415, &format!("no form of patches: {other:?}"))),
    }
}

fn delete(route: Route, call: &HttpCall<'_>) -> Result<Request, ApiError> {
    let body = if call.body.is_empty() { Value::Null } else { call.object()? };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let propagation = match body["propagationPolicy"].as_str() {
        None => None,
        Some("Background") => Some(Propagation::Background),
        Some("Foreground") => Some(Propagation::Foreground),
        Some("Orphan") => Some(Propagation::Orphan),
        Some(other) => return Err(refusal(400, &format!("no propagation policy: {other:?}"))),
    };
    if route.name.is_empty() {
        let (kind, namespace) = (route.kind, route.namespace);
        return Ok(Request::DeleteCollection { kind, namespace, propagation });
    }
    let options = DeleteOptions {
        uid: text(&body["preconditions"]["uid"]),
        version: text(&body["preconditions"]["resourceVersion"]),
        propagation,
        grace_seconds: body["gracePeriodSeconds"].as_i64(),
    };
    Ok(Request::Delete { target: route.target(), options })
}
