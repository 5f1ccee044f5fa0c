//! What is kept from the record: values that may be secret, as digests under a key of the node.
//!
//! Redacted are values of environment variables and of annotations, commands and their arguments,
//! headers and what hooks and probes run: all texts in which people put tokens and passwords. Equal
//! values have equal digests, and an empty value stays empty, so the decisions can tell what they
//! ask of them: whether one changed. Where a decision looks for a value that it knows, that value
//! is no secret and is not redacted (`PLAIN`).
//!
//! A digest is 128 bits of HMAC-SHA-256. Without the key nobody can try which password it stands
//! for. The key is the node's own and stays on it; a record that was carried away is as good for a
//! replay and tells nothing more.
//!
//! Pure: JSON in, JSON out. It works on JSON and not on types, so that a pod within whatever frame
//! is redacted, and a field that a later version of the API has below a known one too.

use std::fmt::Write as _;

use ring::hmac;
use serde_json::{Map, Value};

use crate::labels;
use pintle_api_types::pod;

/// What a redacted value begins with.
pub const MARK: &str = "redacted:";
/// Bytes of the HMAC that are kept.
const DIGEST_BYTES: usize = 16;
/// Annotations whose values decisions look for, or that only number or name things of ours.
const PLAIN: [&str; 6] = [
    pod::ANNOTATION_SOURCE,
    pod::ANNOTATION_SEEN,
    pod::ANNOTATION_HASH,
    pod::ANNOTATION_MIRROR,
    labels::HASH,
    labels::RESTART_COUNT,
];
/// The same, followed by a container's name.
const PLAIN_PREFIX: &str = crate::admit::APPARMOR_ANNOTATION;

/// Takes secrets out of JSON.
pub trait Seal {
    /// Replaces what is secret.
    fn redact(&self, value: &mut Value);
}

/// For what has been redacted before it was recorded.
#[derive(Clone, Copy, Debug)]
pub struct Sealed;

impl Seal for Sealed {
    fn redact(&self, _: &mut Value) {}
}

/// The node's key.
#[derive(Clone, Debug)]
pub struct Redactor(hmac::Key);

impl Redactor {
    /// With these bytes as the key, 32 of chance.
    pub fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// Names the key without telling it.
    pub fn key_id(&self) -> String {
        self.digest("pintle flight recorder key id")
    }

    fn digest(&self, text: &str) -> String {
        let tag = hmac::sign(&self.0, text.as_bytes());
        let bytes = tag.as_ref().iter().take(DIGEST_BYTES);
        bytes.fold(String::with_capacity(2 * DIGEST_BYTES), |mut out, byte| {
            // Writing to a text cannot fail.
            let _ = write!(out, "{byte:02x}");
            out
        })
    }

    fn text(&self, value: &mut Value) {
        if let Value::String(text) = value
            && !text.is_empty()
        {
            *text = format!("{MARK}{}", self.digest(text));
        }
    }

    /// `[{"name": …, "value": …}]`.
    fn values(&self, list: &mut [Value]) {
        let values = list.iter_mut().filter_map(|entry| entry.get_mut("value"));
        values.for_each(|value| self.text(value));
    }

    fn annotations(&self, all: &mut Map<String, Value>) {
        let is_plain = |name: &str| PLAIN.contains(&name) || name.starts_with(PLAIN_PREFIX);
        all.iter_mut().filter(|(name, _)| !is_plain(name)).for_each(|(_, value)| self.text(value));
    }
}

impl Seal for Redactor {
    fn redact(&self, value: &mut Value) {
        match value {
            Value::Array(list) => list.iter_mut().for_each(|value| self.redact(value)),
            Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| {
                match (name.as_str(), &mut *value) {
                    ("annotations" | "userAnnotations", Value::Object(all)) => {
                        self.annotations(all);
                    }
                    ("env" | "httpHeaders", Value::Array(list)) => self.values(list),
                    ("command" | "args", Value::Array(list)) => {
                        list.iter_mut().for_each(|value| self.text(value));
                    }
                    _ => {}
                }
                // Below `env` there are references, below annotations only texts.
                self.redact(value);
            }),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn redacted(key: u8, mut value: Value) -> Value {
        Redactor::new(&[key; 32]).redact(&mut value);
        value
    }

    fn pod(secret: &str) -> Value {
        let hook = json!({"exec": {"command": ["x", secret]}});
        json!({"Desired": {"pod": {
            "metadata": {"labels": {"env": "prod", "command": "c"}, "annotations": {
                "a": secret, "empty": "", "kubernetes.io/config.source": "file",
                "container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
            "spec": {"containers": [{"name": "c", "image": "i", "command": ["sh", "-c", secret],
                "args": [secret], "lifecycle": {"preStop": hook}, "livenessProbe": {"httpGet":
                    {"path": "/", "httpHeaders": [{"name": "Authorization", "value": secret}]}},
                "env": [{"name": "A", "value": secret}, {"name": "B", "valueFrom":
                    {"secretKeyRef": {"name": "s", "key": "k"}}}, {"name": "C", "value": ""}]}]},
        }}})
    }

    #[test]
    fn nothing_of_a_secret_is_left_and_what_is_decided_upon_is() {
        let value = redacted(1, pod("hunter2"));
        assert!(!value.to_string().contains("hunter2"), "{value}");
        let pod = &value["Desired"]["pod"];
        let meta = &pod["metadata"];
        assert_eq!(meta["labels"], json!({"env": "prod", "command": "c"}));
        let annotations = &meta["annotations"];
        assert_eq!(annotations["empty"], "");
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
        assert_eq!(annotations["container.apparmor.security.beta.kubernetes.io/c"], "unconfined");
        let env = &pod["spec"]["containers"][0]["env"];
        assert_eq!(env[1]["valueFrom"]["secretKeyRef"]["name"], "s");
        assert_eq!(env[2]["value"], "");
        // The same secret is the same digest wherever it stands.
        assert_eq!(env[0]["value"], annotations["a"]);
        assert_eq!(env[0]["value"], pod["spec"]["containers"][0]["command"][2]);
    }

    #[test]
    fn equal_values_are_equal_and_others_differ_under_one_key_only() {
        assert_eq!(redacted(1, pod("a")), redacted(1, pod("a")));
        assert_ne!(redacted(1, pod("a")), redacted(1, pod("b")));
        assert_ne!(redacted(1, pod("a")), redacted(2, pod("a")));
        assert_ne!(Redactor::new(&[1; 32]).key_id(), Redactor::new(&[2; 32]).key_id());
    }
}
