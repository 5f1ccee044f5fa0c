//! Redaction: values that may be secret are recorded as digests under a key of the node.
//!
//! Redacted are values of environment variables and of annotations, commands and their arguments,
//! headers and the commands of hooks and probes: all texts that may hold tokens and passwords.
//! Equal values have equal digests, and an empty value stays empty, so the decisions can detect a
//! change. Where a decision looks for a value that it knows, that value is no secret and is not
//! redacted (`PLAIN`).
//!
//! A digest is 128 bits of HMAC-SHA-256. Without the key a password cannot be guessed by trying.
//! The key is the node's own and stays on it; a copied record can be replayed as well, and reveals
//! nothing more.
//!
//! Pure: values in, JSON out. It works on JSON as it is written and not on types, so that it
//! redacts a pod within any frame, and a field that a later version of the API adds below a known
//! one. An annotation name with escapes is not compared with the known ones.

use std::fmt::Write as _;
use std::io;

use ring::hmac;
use serde::Serialize;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

use crate::labels;
use pintle_api_types::pod;

/// Prefix of a redacted value.
pub const MARK: &str = "redacted:";
/// Bytes of the HMAC that are kept.
const DIGEST_BYTES: usize = 16;
/// Annotations that decisions read, or that only number or name objects of this agent; their values
/// stay.
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

/// Writes JSON without secrets.
pub trait Seal {
    /// Writes the JSON of this value.
    fn write(&self, of: &impl Serialize, out: impl io::Write);

    /// The same as bytes.
    fn json(&self, of: &impl Serialize) -> Vec<u8> {
        let mut json = Vec::new();
        self.write(of, &mut json);
        json
    }
}

/// For values that were redacted before they were recorded.
#[derive(Clone, Copy, Debug)]
pub struct Sealed;

impl Seal for Sealed {
    fn write(&self, of: &impl Serialize, out: impl io::Write) {
        serde_json::to_writer(out, of).expect("plain data serialises");
    }
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
}

impl Seal for Redactor {
    fn write(&self, of: &impl Serialize, out: impl io::Write) {
        let redacting = Redacting {
            redactor: self,
            open: Vec::new(),
            next: RedactedPlace::Plain,
            is_key: false,
            name: String::new(),
            secret: None,
        };
        let mut json = serde_json::Serializer::with_formatter(out, redacting);
        of.serialize(&mut json).expect("plain data serialises");
    }
}

/// The kind of a value, by its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedactedPlace {
    /// Nothing that is redacted by itself.
    Plain,
    /// An object of annotations.
    Annotations,
    /// A list of `{"name": …, "value": …}`.
    Values,
    /// One of it.
    Value,
    /// A list of texts.
    Texts,
    /// If it is a text, it is redacted.
    Secret,
}

/// Redacts while it serializes, so that the whole never exists as a tree.
struct Redacting<'a> {
    redactor: &'a Redactor,
    /// Lists and objects around the next value.
    open: Vec<RedactedPlace>,
    /// The place of the next value.
    next: RedactedPlace,
    /// A name of a field is being written.
    is_key: bool,
    /// The last one.
    name: String,
    /// A text that is redacted at its end.
    secret: Option<String>,
}

impl Redacting<'_> {
    fn of_field(&self) -> RedactedPlace {
        let is_plain = |name: &str| PLAIN.contains(&name) || name.starts_with(PLAIN_PREFIX);
        match (self.open.last(), self.name.as_str()) {
            (Some(RedactedPlace::Annotations), name) if is_plain(name) => RedactedPlace::Plain,
            (Some(RedactedPlace::Annotations), _) | (Some(RedactedPlace::Value), "value") => {
                RedactedPlace::Secret
            }
            (_, "annotations" | "userAnnotations") => RedactedPlace::Annotations,
            (_, "env" | "httpHeaders") => RedactedPlace::Values,
            (_, "command" | "args") => RedactedPlace::Texts,
            _ => RedactedPlace::Plain,
        }
    }

    fn opens(&mut self, those: [RedactedPlace; 2]) {
        let is_one = those.contains(&self.next);
        self.open.push(if is_one { self.next } else { RedactedPlace::Plain });
    }
}

impl Formatter for Redacting<'_> {
    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.is_key = true;
        self.name.clear();
        CompactFormatter.begin_object_key(out, first)
    }

    fn end_object_key<W: ?Sized + io::Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.is_key = false;
        Ok(())
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.next = self.of_field();
        CompactFormatter.begin_object_value(out)
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next = match self.open.last() {
            Some(RedactedPlace::Values) => RedactedPlace::Value,
            Some(RedactedPlace::Texts) => RedactedPlace::Secret,
            _ => RedactedPlace::Plain,
        };
        CompactFormatter.begin_array_value(out, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.opens([RedactedPlace::Annotations, RedactedPlace::Value]);
        CompactFormatter.begin_object(out)
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open.pop();
        CompactFormatter.end_object(out)
    }

    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.opens([RedactedPlace::Values, RedactedPlace::Texts]);
        CompactFormatter.begin_array(out)
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open.pop();
        CompactFormatter.end_array(out)
    }

    fn begin_string<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        if !self.is_key && self.next == RedactedPlace::Secret {
            self.secret = Some(String::new());
        }
        CompactFormatter.begin_string(out)
    }

    fn end_string<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        if let Some(secret) = self.secret.take().filter(|secret| !secret.is_empty()) {
            write!(out, "{MARK}{}", self.redactor.digest(&secret))?;
        }
        CompactFormatter.end_string(out)
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        match &mut self.secret {
            Some(secret) => {
                secret.push_str(fragment);
                return Ok(());
            }
            None if self.is_key => self.name.push_str(fragment),
            None => {}
        }
        CompactFormatter.write_string_fragment(out, fragment)
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let Some(secret) = &mut self.secret else {
            return CompactFormatter.write_char_escape(out, escape);
        };
        secret.push(match escape {
            CharEscape::Quote => '"',
            CharEscape::ReverseSolidus => '\\',
            CharEscape::Solidus => '/',
            CharEscape::Backspace => '\u{8}',
            CharEscape::FormFeed => '\u{c}',
            CharEscape::LineFeed => '\n',
            CharEscape::CarriageReturn => '\r',
            CharEscape::Tab => '\t',
            CharEscape::AsciiControl(byte) => char::from(byte),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn redacted(key: u8, value: Value) -> Value {
        let json = Redactor::new(&[key; 32]).json(&value);
        serde_json::from_slice(&json).expect("JSON")
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
    fn secret_values_are_redacted_and_fields_used_for_decisions_are_kept() {
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
        // The same secret has the same digest in every field.
        assert_eq!(env[0]["value"], annotations["a"]);
        assert_eq!(env[0]["value"], pod["spec"]["containers"][0]["command"][2]);
    }

    #[test]
    fn digests_are_equal_only_for_equal_values_under_the_same_key() {
        assert_eq!(redacted(1, pod("a")), redacted(1, pod("a")));
        assert_ne!(redacted(1, pod("a")), redacted(1, pod("b")));
        assert_ne!(redacted(1, pod("a")), redacted(2, pod("a")));
        assert_ne!(Redactor::new(&[1; 32]).key_id(), Redactor::new(&[2; 32]).key_id());
    }

    #[test]
    fn redaction_ignores_json_escaping_and_matches_exact_paths_only() {
        let odd = "a \"quoted\" \\ text\n\t\u{1} with \u{8} all / of ü it";
        let redactor = Redactor::new(&[1; 32]);
        let value = redacted(
            1,
            json!({"args": [odd, 7, null, {"value": "plain"}], "env": "prod",
            "annotations": {"a": odd, "b": {"command": ["x"]}}, "command": {"value": "plain"},
            "env2": [{"value": "plain"}], "httpHeaders": [["value", "plain"], {"value": 7}]}),
        );
        let sealed = format!("{MARK}{}", redactor.digest(odd));
        assert_eq!(value["args"][0], sealed.as_str());
        assert_eq!(value["annotations"]["a"], sealed.as_str());
        assert_ne!(value["annotations"]["b"]["command"][0], "x");
        assert_eq!(value["args"][3]["value"], "plain");
        assert_eq!(value["command"]["value"], "plain");
        assert_eq!(value["env2"][0]["value"], "plain");
        assert_eq!(value["env"], "prod");
        assert_eq!(value["httpHeaders"], json!([["value", "plain"], {"value": 7}]));
        assert_eq!(value["args"][1], 7);
    }
}
