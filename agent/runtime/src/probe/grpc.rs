//! gRPC probes: `grpc.health.v1.Health/Check` without TLS, well when the answer is SERVING.
//!
//! A connection that is refused is tried again within the limit, as upstream's client does. Every
//! error is a failure. The two messages are written here: the protocol has not changed since 2016.
// k8s: pkg/probe/grpc/grpc.go

use std::cell::Cell;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::GRPCAction;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use super::attempt::Verdict;
use super::http::USER_AGENT;
use super::patience::patiently;
use super::target::Target;
use super::words::{self, Spent};

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// Wait before a connection that failed is tried again.
const RECONNECT: Duration = Duration::from_secs(1);
/// The method.
const CHECK: &str = "/grpc.health.v1.Health/Check";
/// What a server answers when all is well.
pub(super) const SERVING: i32 = 1;

/// What is asked.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckRequest {
    /// Name of the service; empty for the whole server.
    #[prost(string, tag = "1")]
    pub(super) service: String,
}

/// What is answered.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct CheckResponse {
    /// A `ServingStatus`.
    #[prost(int32, tag = "1")]
    pub(super) status: i32,
}

/// Asks once.
pub(super) async fn probe(target: &Target, grpc: &GRPCAction, limit: Duration) -> Verdict {
    let host = match target.host_or(None) {
        Ok(host) => host,
        Err(message) => return Verdict::unknown(message),
    };
    let address = match u16::try_from(grpc.port) {
        Ok(port) => words::address(&host, port),
        Err(_) => return Verdict::unknown(format!("invalid port number: {}", grpc.port)),
    };
    let service = grpc.service.clone().unwrap_or_default();
    let connected = Cell::new(None);
    let began = Instant::now();
    let work = async {
        let channel = connect(&address).await?;
        connected.set(Some(Instant::now()));
        Ok(check(channel, service).await)
    };
    let waited = patiently(limit, work).await;
    let text = words::seconds(limit);
    match (waited.done, connected.get()) {
        (Some(Ok(Ok(answer))), _) => judge(answer.status),
        (Some(Ok(Err(status))), _) => Verdict::Failure(refusal(&status)),
        (Some(Err(error)), _) => {
            let error: tonic::transport::Error = error;
            let address = format!("{address:?}");
            Verdict::Failure(format!("error: failed to connect service at {address}: {error}"))
        }
        (None, connected) => {
            let connect = connected.map(|at| at.duration_since(began).min(limit));
            let answer = limit.saturating_sub(connect.unwrap_or_default());
            let spent = Spent { connect, answer, delay: waited.delay };
            let what = match connect {
                Some(_) => format!("timeout: health rpc did not complete within {text}"),
                None => format!(
                    "timeout: failed to connect service {address:?} within {text}: context \
                     deadline exceeded"
                ),
            };
            Verdict::TimedOut(what, spent)
        }
    }
}

/// Tries until it succeeds; only an address that is none is an error.
async fn connect(address: &str) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))?.user_agent(USER_AGENT)?;
    loop {
        match endpoint.connect().await {
            Ok(channel) => return Ok(channel),
            Err(error) => tracing::trace!(address, %error, "no connection for a probe"),
        }
        tokio::time::sleep(RECONNECT).await;
    }
}

async fn check(channel: Channel, service: String) -> Result<CheckResponse, Status> {
    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let codec = ProstCodec::<CheckRequest, CheckResponse>::default();
    let request = Request::new(CheckRequest { service });
    let answer = grpc.unary(request, PathAndQuery::from_static(CHECK), codec).await?;
    Ok(answer.into_inner())
}

fn judge(status: i32) -> Verdict {
    let name = match status {
        SERVING => return Verdict::Success,
        0 => "UNKNOWN".to_owned(),
        2 => "NOT_SERVING".to_owned(),
        3 => "SERVICE_UNKNOWN".to_owned(),
        other => other.to_string(),
    };
    Verdict::Failure(format!("service unhealthy (responded with {name:?})"))
}

fn refusal(status: &Status) -> String {
    let message = status.message();
    match status.code() {
        Code::Unimplemented => format!(
            "error: this server does not implement the grpc health protocol \
             (grpc.health.v1.Health): {message}"
        ),
        code => {
            let code = pintle_cri::code_name(code);
            format!("error: health rpc probe failed: rpc error: code = {code} desc = {message}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_serving_is_well_and_the_others_are_named() {
        assert_eq!(judge(SERVING), Verdict::Success);
        for (status, name) in [(0, "UNKNOWN"), (2, "NOT_SERVING"), (3, "SERVICE_UNKNOWN"), (7, "7")]
        {
            let text = format!("service unhealthy (responded with \"{name}\")");
            assert_eq!(judge(status), Verdict::Failure(text));
        }
    }

    #[test]
    fn errors_are_told_in_upstreams_words() {
        for (status, text) in [
            (
                Status::unimplemented("unknown service grpc.health.v1.Health"),
                "error: this server does not implement the grpc health protocol \
                 (grpc.health.v1.Health): unknown service grpc.health.v1.Health",
            ),
            (
                Status::not_found("unknown service"),
                "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service",
            ),
        ] {
            assert_eq!(refusal(&status), text);
        }
    }
}
