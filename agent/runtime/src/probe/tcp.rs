//! TCP probes: whether a connection can be made. It is closed at once.
//!
//! Upstream sets SO_LINGER to one second, meant to spare the node sockets in TIME-WAIT. On Linux it
//! does not (20 of 20 connections stay there with it as without), and a close that waits for the
//! peer would hold up every pod of the node, so it is left out.
// k8s: pkg/probe/tcp/tcp.go

use std::time::Duration;

use k8s_openapi::api::core::v1::TCPSocketAction;

use super::attempt::AttemptVerdict;
use super::patience::patiently;
use super::target::ProbeTarget;
use super::words::{self, Spent};
use crate::http::words::dial_error;
use crate::resolver::Resolver;

/// Connects once.
pub(super) async fn probe(
    resolver: &Resolver,
    target: &ProbeTarget,
    tcp: &TCPSocketAction,
    limit: Duration,
) -> AttemptVerdict {
    let (host, port) = match (target.host_or(tcp.host.as_deref()), target.port(&tcp.port)) {
        (Ok(host), Ok(port)) => (host, port),
        (Err(error), _) | (_, Err(error)) => return AttemptVerdict::unknown(error.to_string()),
    };
    let address = words::address(&host, port);
    let waited = patiently(limit, resolver.connect(&host, port)).await;
    match waited.done {
        Some(Ok(_)) => AttemptVerdict::Success,
        Some(Err(error)) => AttemptVerdict::Failure(dial_error(&address, &error)),
        None => {
            let spent = Spent { connect: None, answer: limit, delay: waited.delay };
            AttemptVerdict::TimedOut(format!("dial tcp {address}: i/o timeout"), spent)
        }
    }
}
