//! A bearer token among the sub-protocols of a WebSocket: browsers cannot set headers of their own.
//!
//! Pure. Input: a request's headers. Output: the token, or why there is none; the headers without
//! it. A token that is malformed, doubled or alone is refused, never overlooked.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/request/websocket/protocol.go

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hyper::header::{CONNECTION, HeaderMap, HeaderValue, SEC_WEBSOCKET_PROTOCOL, UPGRADE};

/// Prefix of a token.
const PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

/// Reason why a token is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WebsocketTokenError {
    #[error("multiple base64.bearer.authorization tokens specified")]
    Several,
    #[error("invalid base64.bearer.authorization token encoding")]
    Encoding,
    #[error("invalid base64.bearer.authorization token")]
    NoText,
    /// The answer has to choose another protocol.
    #[error("missing additional subprotocol")]
    Alone,
}

/// The token; `None` without a WebSocket or a token.
pub(super) fn token(headers: &HeaderMap) -> Result<Option<String>, WebsocketTokenError> {
    if !is_websocket(headers) {
        return Ok(None);
    }
    let (tokens, others): (Vec<_>, Vec<_>) =
        protocols(headers).partition(|protocol| protocol.starts_with(PREFIX));

    let token = match tokens.as_slice() {
        [] => return Ok(None),
        [one] => one.trim_start_matches(PREFIX),
        _ => return Err(WebsocketTokenError::Several),
    };
    let Ok(token) = URL_SAFE_NO_PAD.decode(token) else {
        return Err(WebsocketTokenError::Encoding);
    };
    let Ok(token) = String::from_utf8(token) else {
        return Err(WebsocketTokenError::NoText);
    };
    if !token.is_empty() && others.is_empty() {
        return Err(WebsocketTokenError::Alone);
    }
    Ok(Some(token).filter(|token| !token.is_empty()))
}

/// Takes tokens out of the sub-protocols.
pub(super) fn strip(headers: &mut HeaderMap) {
    let has_token = protocols(headers).any(|protocol| protocol.starts_with(PREFIX));
    let is_text = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().all(|v| v.to_str().is_ok());
    if !has_token && is_text {
        return;
    }
    let left: Vec<&str> = protocols(headers).filter(|p| !p.starts_with(PREFIX)).collect();
    let left = HeaderValue::from_str(&left.join(",")).ok().filter(|value| !value.is_empty());
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    headers.extend(left.map(|value| (SEC_WEBSOCKET_PROTOCOL, value)));
}

/// Reads any bytes as a list of sub-protocols, for fuzzing: none is left once the token is taken.
pub fn fuzz(bytes: &[u8]) {
    let Ok(value) = HeaderValue::from_bytes(bytes) else { return };
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    let before = token(&headers);
    strip(&mut headers);
    assert_eq!(token(&headers), Ok(None), "after {before:?}");
}

fn protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|v| v.split(',')).map(str::trim)
}

// k8s: staging/src/k8s.io/apimachinery/pkg/util/httpstream/wsstream/conn.go IsWebSocketRequest
fn is_websocket(headers: &HeaderMap) -> bool {
    let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let upgrades = text(CONNECTION).is_some_and(|value| {
        value.split(',').any(|word| word.trim().eq_ignore_ascii_case("upgrade"))
    });
    upgrades && text(UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(protocols: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        for value in protocols {
            headers.append(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    #[test]
    fn a_token_is_taken_once_well_formed_and_beside_another_protocol() {
        let of = |encoded: &str| format!("{PREFIX}{encoded}");
        let good = of("YWJj");
        for (protocols, expected) in [
            (vec!["v4.channel.k8s.io"], Ok(None)),
            (vec!["v4.channel.k8s.io", &good], Ok(Some("abc"))),
            (vec![&*format!("v4.channel.k8s.io, {good}")], Ok(Some("abc"))),
            (vec!["a", PREFIX], Ok(None)),
            (vec!["a", &good, &good], Err("multiple base64.bearer.authorization tokens specified")),
            (vec![&*good], Err("missing additional subprotocol")),
            (vec!["a", &*of("YWJj=")], Err("invalid base64.bearer.authorization token encoding")),
            (vec!["a", &*of("/w")], Err("invalid base64.bearer.authorization token encoding")),
            (vec!["a", &*of("_w")], Err("invalid base64.bearer.authorization token")),
        ] {
            let found = token(&headers(&protocols)).map_err(|error| error.to_string());
            let expected = expected.map(|t| t.map(str::to_owned)).map_err(str::to_owned);
            assert_eq!(found, expected, "{protocols:?}");
        }
        let mut plain = headers(&["a", &good]);
        plain.remove(UPGRADE);
        assert_eq!(token(&plain), Ok(None), "no WebSocket");
    }

    #[test]
    fn tokens_are_taken_out_and_the_rest_stays() {
        let token = format!("{PREFIX}YWJj");
        let both = format!("v5.channel.k8s.io,{token}");
        for (before, after) in [
            (
                vec!["v4.channel.k8s.io, v5.channel.k8s.io"],
                Some("v4.channel.k8s.io, v5.channel.k8s.io"),
            ),
            (vec!["v4.channel.k8s.io", &both], Some("v4.channel.k8s.io,v5.channel.k8s.io")),
            (vec![&*token], None),
        ] {
            let mut headers = headers(&before);
            strip(&mut headers);
            let left: Vec<_> = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().collect();
            assert_eq!(left, after.into_iter().collect::<Vec<_>>(), "{before:?}");
        }
    }
}
