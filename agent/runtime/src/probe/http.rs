//! HTTP and HTTPS probes: a GET, well when its status is 200 to 399.
//!
//! The request is made by `crate::http`. An answer with a body that breaks off or does not end
//! within the limit counts as neither, as upstream has it. Events never contain the body, because
//! it may hold secrets; a redirect that is not followed is the exception, as upstream prints it.
// k8s: pkg/probe/http/http.go, pkg/probe/http/request.go

use std::time::Duration;

use k8s_openapi::api::core::v1::HTTPGetAction;

use super::attempt::AttemptVerdict;
use super::patience::patiently;
use super::target::{ProbeTarget, TargetError};
use super::words::{self, Spent};
use crate::http;
use crate::http::words::failed;
use crate::http::{Get, RequestProgress};
use crate::resolver::Resolver;

/// Longest body that is read, in bytes.
const BODY_BYTES_MAX: usize = 10 * 1024;
/// The name that servers see.
pub(super) const USER_AGENT: &str = "kube-probe/1.36";

/// Makes one attempt.
pub(super) async fn probe(
    resolver: &Resolver,
    target: &ProbeTarget,
    action: &HTTPGetAction,
    limit: Duration,
) -> AttemptVerdict {
    let request = match request(resolver, target, action) {
        Ok(request) => request,
        Err(error) => return AttemptVerdict::unknown(error.to_string()),
    };
    let (url, address) = (request.url(), words::address(&request.host, request.port));
    let watch = RequestProgress::default();
    let began = std::time::Instant::now();
    let waited = patiently(limit, http::get_watched(&request, &watch)).await;
    match waited.done {
        Some(Ok(answer)) => judge(answer),
        Some(Err(error @ http::Error::Url { .. })) => {
            AttemptVerdict::unknown(failed(&request, &error))
        }
        Some(Err(error)) => AttemptVerdict::Failure(failed(&request, &error)),
        None if watch.answered.get().is_some() => AttemptVerdict::Error {
            state: "failure",
            message: "context deadline exceeded (Client.Timeout or context cancellation while \
                      reading body)"
                .to_owned(),
        },
        None => {
            let connect = watch.connected.get().map(|at| at.duration_since(began).min(limit));
            let answer = limit.saturating_sub(connect.unwrap_or_default());
            let spent = Spent { connect, answer, delay: waited.delay };
            let what = match connect {
                Some(_) => "context deadline exceeded".to_owned(),
                None => format!("dial tcp {address}: i/o timeout"),
            };
            let limit = "(Client.Timeout exceeded while awaiting headers)";
            AttemptVerdict::TimedOut(format!("Get {url:?}: {what} {limit}"), spent)
        }
    }
}

fn request(
    resolver: &Resolver,
    target: &ProbeTarget,
    action: &HTTPGetAction,
) -> Result<Get, TargetError> {
    let host = target.host_or(action.host.as_deref())?;
    let port = target.port(&action.port)?;
    let request = Get::of(action, host, port, USER_AGENT);
    let (resolver, body_bytes_max) = (resolver.clone(), BODY_BYTES_MAX);
    // k8s: pkg/probe/http/http.go NewWithTLSConfig (SetTransportDefaults); hooks do not have it
    Ok(Get { resolver, body_bytes_max, http2: true, ..request })
}

// k8s: pkg/probe/http/http.go DoHTTPProbe
fn judge(answer: http::HttpAnswer) -> AttemptVerdict {
    if !answer.body_error.is_empty() {
        return AttemptVerdict::Error { state: "failure", message: answer.body_error };
    }
    match answer.status {
        200..300 => AttemptVerdict::Success,
        300..400 => {
            let body = String::from_utf8_lossy(&answer.body);
            AttemptVerdict::Warning(format!("Probe terminated redirects, Response body: {body}"))
        }
        status => AttemptVerdict::Failure(format!("HTTP probe failed with statuscode: {status}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_below_400_are_well_and_a_redirect_that_stays_is_a_warning() {
        for (status, expected) in [
            (200, AttemptVerdict::Success),
            (299, AttemptVerdict::Success),
            (
                304,
                AttemptVerdict::Warning("Probe terminated redirects, Response body: x".to_owned()),
            ),
            (404, AttemptVerdict::Failure("HTTP probe failed with statuscode: 404".to_owned())),
            (500, AttemptVerdict::Failure("HTTP probe failed with statuscode: 500".to_owned())),
        ] {
            let answer = http::HttpAnswer {
                status,
                body: b"x".to_vec(),
                reason: "",
                body_error: String::new(),
            };
            assert_eq!(judge(answer), expected);
        }
    }
}
