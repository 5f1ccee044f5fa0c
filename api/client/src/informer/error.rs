//! Errors of a list or a watch, as far as the next step depends on them.

use http::StatusCode;
use serde::Deserialize;

use crate::breakage::{Breakage, chain};

/// The server's words for a version that is ahead of it; before 1.18.6 it has no other form.
// k8s: staging/src/k8s.io/client-go/tools/cache/reflector.go isTooLargeResourceVersionError
const TOO_LARGE: &str = "Too large resource version";

/// Error of a list or a watch. Display is the server's message, or why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InformerError {
    /// 410: the server no longer has the version, or the place in a list.
    #[error("{0}")]
    Expired(String),
    /// The server is not as far as the version: its cache is behind, or its store was restored.
    #[error("{0}")]
    TooLarge(String),
    /// 429.
    #[error("{0}")]
    Busy(String),
    /// No connection can be made: the server does not listen at its address, it is not trusted, or
    /// there is no credential.
    #[error("{0}")]
    Unreachable(String),
    /// A connection that broke, or no connection or answer in time.
    #[error("{0}")]
    Lost(String),
    /// 404: there is no such kind.
    #[error("{0}")]
    NotFound(String),
    /// Anything else: rights, an error of the server, words that cannot be read.
    #[error("{0}")]
    Failed(String),
}

/// The `Status` object of an API error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct StatusWire {
    message: String,
    reason: String,
    code: u16,
    details: Option<Details>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Details {
    causes: Option<Vec<Cause>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
}

impl From<StatusWire> for InformerError {
    fn from(status: StatusWire) -> Self {
        let StatusWire { message, reason, code, details } = status;
        let causes = details.and_then(|details| details.causes).unwrap_or_default();
        let too_large = |cause: &Cause| {
            cause.reason == "ResourceVersionTooLarge" || cause.message.contains(TOO_LARGE)
        };
        match (code, reason.as_str()) {
            (410, _) | (_, "Expired" | "Gone") => Self::Expired(message),
            _ if causes.iter().any(too_large) || message.contains(TOO_LARGE) => {
                Self::TooLarge(message)
            }
            (429, _) | (_, "TooManyRequests") => Self::Busy(message),
            (404, _) => Self::NotFound(message),
            _ => Self::Failed(message),
        }
    }
}

impl InformerError {
    /// The error in an answer other than 2xx.
    pub(super) fn answered(status: StatusCode, body: &[u8]) -> Self {
        let mut told: StatusWire = serde_json::from_slice(body).unwrap_or_default();
        if told.message.is_empty() {
            told.message = status.to_string();
        }
        told.code = status.as_u16();
        told.into()
    }

    /// A request that got no answer, or a body that broke off.
    pub(super) fn transport(error: &(dyn std::error::Error + 'static)) -> Self {
        let mut words = error.to_string();
        for more in chain(error).map(ToString::to_string) {
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
        }
        match Breakage::of(error) {
            Breakage::Broken | Breakage::Late => Self::Lost(words),
            Breakage::Otherwise => Self::Unreachable(words),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn error_status_of_a_server_maps_to_an_error_kind() {
        use InformerError::{Busy, Expired, Failed, NotFound, TooLarge};
        let words = || "words".to_owned();
        let cause = json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "x"}]});
        for (status, want) in [
            (json!({"message": "words", "code": 410}), Expired(words())),
            (json!({"message": "words", "code": 500, "reason": "Expired"}), Expired(words())),
            (json!({"message": "words", "code": 504, "details": cause}), TooLarge(words())),
            (
                json!({"message": "words", "code": 504, "details": {"causes": null}}),
                Failed(words()),
            ),
            (json!({"message": TOO_LARGE, "code": 504}), TooLarge(TOO_LARGE.to_owned())),
            (json!({"message": "words", "code": 429}), Busy(words())),
            (json!({"message": "words", "code": 404}), NotFound(words())),
            (json!({"message": "words", "code": 403}), Failed(words())),
        ] {
            let told: StatusWire = serde_json::from_value(status.clone()).expect("a status");
            assert_eq!(InformerError::from(told), want, "{status}");
        }
        let proxy = InformerError::answered(StatusCode::BAD_GATEWAY, b"<html>");
        assert_eq!(proxy, Failed("502 Bad Gateway".to_owned()));
    }

    #[test]
    fn refused_connection_is_distinguished_from_a_lost_connection() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let wrapped = std::io::Error::other(refused);
        assert!(matches!(InformerError::transport(&wrapped), InformerError::Unreachable(_)));
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        assert!(matches!(InformerError::transport(&reset), InformerError::Lost(_)));
    }
}
