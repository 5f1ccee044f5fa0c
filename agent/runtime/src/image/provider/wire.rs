//! Request and answer of a plugin: CredentialProviderRequest and -Response.
//!
//! Pure. An answer is read strictly, and errors never quote it.
// k8s: staging/src/k8s.io/kubelet/pkg/apis/credentialprovider/v1/types.go

use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_api_types::duration::GoDuration;
use serde::Deserialize;
use serde_json::json;

use super::Logins;

/// The versions, of which v1 alone knows service accounts.
pub(super) const VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
/// The version of plugins that take tokens.
pub(super) const V1: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A request to a plugin.
#[derive(Clone)]
pub(super) struct ProviderRequest {
    /// A repository with its registry.
    pub(super) image: String,
    pub(super) token: Option<Rc<str>>,
    pub(super) annotations: BTreeMap<String, String>,
}

/// A plugin's answer.
#[derive(Clone)]
pub(super) struct Response {
    pub(super) cache_key_type: String,
    /// `None`: as configured.
    pub(super) cache_duration: Option<GoDuration>,
    pub(super) logins: Logins,
}

/// The scope of an answer in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

impl CacheKeyType {
    pub(super) fn of(text: &str) -> Option<Self> {
        match text {
            "Image" => Some(Self::Image),
            "Registry" => Some(Self::Registry),
            "Global" => Some(Self::Global),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TypeWire {
    #[serde(default)]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResponseWire {
    #[serde(rename = "apiVersion")]
    _api_version: String,
    kind: String,
    #[serde(default)]
    cache_key_type: String,
    #[serde(default)]
    cache_duration: Option<GoDuration>,
    #[serde(default)]
    auth: Option<BTreeMap<String, AuthWire>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AuthWire {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

impl ProviderRequest {
    /// The text that the plugin reads.
    pub(super) fn text(&self, version: &str) -> String {
        let mut request = json!({
            "kind": "CredentialProviderRequest",
            "apiVersion": version,
            "image": self.image,
        });
        if version == V1 {
            if let Some(token) = &self.token {
                request["serviceAccountToken"] = json!(**token);
            }
            if !self.annotations.is_empty() {
                request["serviceAccountAnnotations"] = json!(self.annotations);
            }
        }
        format!("{request}\n")
    }
}

/// Output of a plugin that is no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ResponseError {
    #[error("error reading GVK from response: it is no JSON at {line}:{column}")]
    NoJson { line: usize, column: usize },
    #[error(
        "apiVersion from credential plugin response did not match expected \
         apiVersion:{expected}, actual apiVersion:{actual}"
    )]
    Version { expected: String, actual: String },
    #[error("error decoding credential provider plugin response from stdout")]
    Malformed,
}

/// Reads an answer to a request of this version.
// k8s: pkg/credentialprovider/plugin/plugin.go ExecPlugin, decodeResponse
pub(super) fn parse(answer: &[u8], version: &str) -> Result<Response, ResponseError> {
    let typed: TypeWire = serde_json::from_slice(answer)
        .map_err(|error| ResponseError::NoJson { line: error.line(), column: error.column() })?;
    if typed.api_version != version {
        let (expected, actual) = (version.to_owned(), typed.api_version);
        return Err(ResponseError::Version { expected, actual });
    }
    let wire: ResponseWire =
        serde_json::from_slice(answer).map_err(|_| ResponseError::Malformed)?;
    if wire.kind != "CredentialProviderResponse" {
        return Err(ResponseError::Malformed);
    }
    let logins = wire.auth.into_iter().flatten();
    Ok(Response {
        cache_key_type: wire.cache_key_type,
        cache_duration: wire.cache_duration,
        logins: logins.map(|(at, auth)| (at, (auth.username, auth.password))).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn only_v1_requests_carry_service_account_token_and_annotations() {
        let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let request =
            ProviderRequest { image: "reg/a".to_owned(), token: Some("t".into()), annotations };
        for version in VERSIONS {
            let text: Value = serde_json::from_str(&request.text(version)).expect("JSON");
            let mut want = json!({"kind": "CredentialProviderRequest", "apiVersion": version,
                "image": "reg/a"});
            if version == V1 {
                want["serviceAccountToken"] = json!("t");
                want["serviceAccountAnnotations"] = json!({"a": "b"});
            }
            assert_eq!(text, want);
        }
    }

    #[test]
    fn answers_are_read_strictly_and_never_quoted() {
        let answer = |rest: &str| {
            let head = "\"kind\":\"CredentialProviderResponse\"";
            let text = format!("{{\"apiVersion\":\"{V1}\",{head}{rest}}}");
            parse(text.as_bytes(), V1)
        };
        let good = r#","cacheKeyType":"Registry","cacheDuration":"5m","auth":{"reg":{"username":"u","password":"p"}}"#;
        let Ok(read) = answer(good) else { panic!("no answer") };
        assert_eq!(CacheKeyType::of(&read.cache_key_type), Some(CacheKeyType::Registry));
        assert_eq!(read.cache_duration, Some(GoDuration::from_secs(300)));
        assert_eq!(read.logins["reg"], ("u".to_owned(), "p".to_owned()));
        let Ok(read) = answer(r#","cacheDuration":null,"auth":null"#) else { panic!("no answer") };
        assert!(read.cache_duration.is_none() && read.logins.is_empty());
        assert_eq!(CacheKeyType::of(&read.cache_key_type), None);
        for rest in [
            r#","auth":{"reg":{"user":"hunter2"}}"#,
            r#","cacheDuration":"hunter2""#,
            r#","more":"hunter2""#,
        ] {
            assert_eq!(answer(rest).err(), Some(ResponseError::Malformed));
        }
        let beta = VERSIONS[2];
        let text = format!("{{\"apiVersion\":\"{beta}\",\"kind\":\"CredentialProviderResponse\"}}");
        let error = parse(text.as_bytes(), V1).err().expect("another version").to_string();
        assert!(error.contains("expected apiVersion:credentialprovider.kubelet.k8s.io/v1,"));
        assert!(error.ends_with("actual apiVersion:credentialprovider.kubelet.k8s.io/v1beta1"));
        let text = parse(b"hunter2", V1).err().expect("no JSON").to_string();
        assert_eq!(text, "error reading GVK from response: it is no JSON at 1:1");
    }
}
