//! The kind and the version that an object names.
//!
//! Input: a decoded object. Output: the texts of `kind` and `apiVersion`, empty where they are not
//! given. These two fields alone are found whatever the case of their names, and the last of
//! several that is not null counts.
// k8s: staging/src/k8s.io/apimachinery/pkg/runtime/serializer/json/meta.go Interpret

use super::decode::DecodeError;
use super::json::Json;

/// An object's kind and version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeMeta {
    /// The kind, such as `Pod`.
    pub kind: String,
    /// The group and version, such as `v1`; the empty group may be written as `/v1`.
    pub api_version: String,
}

impl TypeMeta {
    /// Reads both fields of an object or of null.
    ///
    /// # Errors
    /// When the value is no object, or one of the fields is no text.
    pub fn of(json: &Json) -> Result<Self, DecodeError> {
        let entries = match json {
            Json::Null => return Ok(Self::default()),
            Json::Object(entries) => entries,
            _ => {
                let message = "an object is expected".to_owned();
                return Err(DecodeError { path: String::new(), message });
            }
        };
        let field = |name: &str| {
            let named = entries.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            named.filter(|(_, value)| **value != Json::Null).try_fold(
                String::new(),
                |_, (key, value)| {
                    let message = "invalid type: a string is expected".to_owned();
                    let text = value.as_str().map(str::to_owned);
                    text.ok_or_else(|| DecodeError { path: key.clone(), message })
                },
            )
        };
        let (kind, version) = (field("kind")?, field("apiVersion")?);
        let version = version.strip_prefix('/').unwrap_or(&version);
        Ok(Self { kind, api_version: version.to_owned() })
    }
}
