//! The answer that opens a WebSocket (RFC 6455). Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, UPGRADE,
};
use hyper::{Response, StatusCode};
use pintle_daemon::serve::body::{Reply, whole};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};

/// Appended to the client's key before it is hashed.
const KEY_SUFFIX: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The answer that opens a WebSocket with that sub-protocol; `None` when the request has no key.
pub(super) fn accept(headers: &HeaderMap, protocol: &str) -> Option<Reply> {
    let key = headers.get(SEC_WEBSOCKET_KEY)?.to_str().ok()?;
    let mut response = Response::new(whole(hyper::body::Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::from_str(&accept_key(key)).ok()?);
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(protocol).ok()?);
    Some(response)
}

fn accept_key(key: &str) -> String {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{}{KEY_SUFFIX}", key.trim()).as_bytes());
    STANDARD.encode(hash.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_answered_as_in_the_specification() {
        assert_eq!(accept_key("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
