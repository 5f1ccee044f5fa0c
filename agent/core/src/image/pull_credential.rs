//! The credential of a pull: user and password, their source, and a hash of them.
//!
//! Pure. The hash is part of records on disk that either agent reads, so it is the kubelet's:
//! SHA-256 over the JSON that Go writes. Logs never contain passwords.
// k8s: pkg/credentialprovider/keyring.go TrackedAuthConfig, hashAuthConfig

use std::fmt;
use std::fmt::Write as _;

use pintle_cri_v1 as v1;
use serde_json::Value;

/// Names an object of the API, and which one of that name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Coordinates {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The owner of a credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CredentialSource {
    /// Every pod of the node may use it.
    Node,
    /// Pods that may read this secret.
    Secret(Coordinates),
    /// Pods of this service account.
    ServiceAccount(Coordinates),
}

/// A user with a password.
#[derive(Clone, PartialEq)]
pub struct Credential {
    /// The credential as the runtime receives it.
    pub auth: v1::AuthConfig,
    /// Part of the hash only.
    pub email: String,
    /// Its source.
    pub source: CredentialSource,
}

impl fmt::Debug for Credential {
    /// Shows only the source.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}

impl Credential {
    /// Hexadecimal SHA-256 of the credential; equal ones are equal in the kubelet, too.
    pub fn hash(&self) -> String {
        // `identitytoken` is read by this agent only: the kubelet leaves it out of files.
        let fields = [
            ("username", &self.auth.username),
            ("password", &self.auth.password),
            ("email", &self.email),
            ("identitytoken", &self.auth.identity_token),
        ];
        let filled = fields.into_iter().filter(|(_, value)| !value.is_empty());
        let fields: Vec<_> =
            filled.map(|(name, value)| format!("\"{name}\":{}", go_json(value))).collect();
        sha256_hex(format!("{{{}}}", fields.join(",")).as_bytes())
    }
}

/// SHA-256 in lower-case hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, bytes);
    digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A text in JSON as Go writes it: with the characters escaped that mean something in HTML.
// Go: encoding/json appendString
fn go_json(text: &str) -> String {
    let plain = Value::from(text).to_string();
    plain.chars().fold(String::with_capacity(plain.len()), |mut json, c| {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(json, "\\u{:04x}", u32::from(c));
            }
            c => json.push(c),
        }
        json
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(username: &str, password: &str, email: &str) -> Credential {
        let auth = v1::AuthConfig {
            username: username.to_owned(),
            password: password.to_owned(),
            ..v1::AuthConfig::default()
        };
        Credential { auth, email: email.to_owned(), source: CredentialSource::Node }
    }

    #[test]
    fn credential_hash_is_the_sha256_of_gos_json_encoding() {
        let table = [
            (credential("", "", ""), "{}".to_owned()),
            (credential("u", "p", ""), r#"{"username":"u","password":"p"}"#.to_owned()),
            (
                credential("u", "a<b>&\"\\\u{8}\n\u{1}\u{7f}\u{2028}ä", "e@x"),
                "{\"username\":\"u\",\"password\":\"a\\u003cb\\u003e\\u0026\\\"\\\\\\b\\n\\u0001\
                 \u{7f}\\u2028ä\",\"email\":\"e@x\"}"
                    .to_owned(),
            ),
        ];
        for (credential, json) in table {
            assert_eq!(credential.hash(), sha256_hex(json.as_bytes()), "{json}");
        }
        let empty = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a";
        assert_eq!(sha256_hex(b"{}"), empty);
    }

    #[test]
    fn debug_output_of_a_credential_contains_no_password() {
        assert_eq!(format!("{:?}", credential("u", "hunter2", "")), "Node");
    }
}
