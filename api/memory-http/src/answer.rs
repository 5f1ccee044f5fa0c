//! Answers: one request of HTTP in, one response out.
//!
//! Input: a request with its body. Output: an object, a list or a page of one, a `Status`, or the
//! stream of a watch. Every client is an administrator.

use axum::body::Body;
use axum::extract::Query;
use axum::http::{Method, Request, Response, StatusCode, header};
use pintle_api_types::request::{self as api, ApiError};
use serde_json::{Value, json};

use crate::request::{self, HttpCall, Parameters, refusal};
use crate::route::Route;
use crate::shared::SharedServer;
use crate::{fields, watch};

/// Answers a request.
pub(crate) fn answer(server: &SharedServer, request: &Request<Vec<u8>>) -> Response<Body> {
    let (uri, method) = (request.uri(), request.method());
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    if let Some(error) = server.receive(method.as_str(), path) {
        return failure(&error);
    }
    let query = Query::<Parameters>::try_from_uri(uri);
    let query = query.map(|query| query.0).unwrap_or_default();
    let (headers, body) = (request.headers(), request.body().as_slice());
    let call = HttpCall { method, query: &query, headers, body };
    let Some(route) = Route::parse(uri.path()) else {
        let get = api::Request::Get { path: path.to_owned() };
        return server.handle(&get).map_or_else(|error| failure(&error), |v| success(200, &v));
    };
    let is_watch = ["true", "1"].contains(&call.parameter("watch")) && *method == Method::GET;
    let answered = match is_watch {
        true => watch::open(server, route, &call).map(|body| respond(200, body)),
        false => unary(server, route, &call),
    };
    answered.unwrap_or_else(|error| failure(&error))
}

fn unary(
    server: &SharedServer,
    route: Route,
    call: &HttpCall<'_>,
) -> Result<Response<Body>, ApiError> {
    let request = request::of(route, call)?;
    let mut object = server.handle(&request)?;
    if matches!(request, api::Request::List { .. }) {
        select(&mut object, call);
        divide(&mut object, call)?;
    }
    let is_create = matches!(request, api::Request::Create { .. });
    Ok(success(if is_create { 201 } else { 200 }, &object))
}

/// Keeps the items of a list that a field selector selects.
fn select(list: &mut Value, call: &HttpCall<'_>) {
    if let Some(items) = list["items"].as_array_mut() {
        items.retain(|item| fields::are_selected(call.parameter("fieldSelector"), item));
    }
}

/// Cuts a list into pages. A list of any version is read from the cache, whole.
// k8s: staging/src/k8s.io/apiserver/pkg/storage/cacher/delegator/interface.go ShouldDelegateList
fn divide(list: &mut Value, call: &HttpCall<'_>) -> Result<(), ApiError> {
    let number = |name: &str| match call.parameter(name) {
        "" => Ok(0),
        text => text.parse::<usize>().map_err(|_| refusal(400, &format!("no number: {name}"))),
    };
    let (begin, limit) = (number("continue")?, number("limit")?);
    let is_whole = limit == 0 || call.parameter("resourceVersion") == "0";
    let Some(items) = list["items"].as_array_mut() else { return Ok(()) };
    items.drain(..begin.min(items.len()));
    if !is_whole && items.len() > limit {
        items.truncate(limit);
        list["metadata"]["continue"] = json!((begin + limit).to_string());
    }
    Ok(())
}

fn success(code: u16, object: &Value) -> Response<Body> {
    respond(code, Body::from(object.to_string()))
}

pub(crate) fn failure(error: &ApiError) -> Response<Body> {
    let mut response = respond(error.code, Body::from(watch::status(error).to_string()));
    if let Some(after) = error.retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, after.as_secs().into());
    }
    response
}

fn respond(code: u16, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).expect("codes of errors are of HTTP");
    let json = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
