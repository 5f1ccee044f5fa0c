//! YAML and JSON as the daemons of Kubernetes read them.
//!
//! Input: the bytes of a manifest or a configuration file. Output: a [`Json`] value, exactly the
//! one that sigs.k8s.io/yaml makes of them, and where in the text each value begins. That is YAML
//! 1.1 as go-yaml v2 knows it: `yes` is a boolean, `0400` an octal number, `83e2010` a text, the
//! last of repeated keys wins, `<<` merges, UTF-16 is read, and only the first document counts.
//! A text that begins with `{` is JSON where [`read`] is used, as for the kubelet's decoders.
//!
//! ```text
//!   bytes ─ text ─> UTF-8 ─ scanner ─> tokens ─ parser ─> YamlTree ─ compose ─> Json ─ decode ─> T
//! ```
//! Pure; never panics whatever the bytes. Bounds are the caller's [`ReadLimits`]: depth, nodes, and
//! nodes that aliases repeat. go-yaml's own bounds lie far above them.
//!
//! It is a parser of its own because a YAML 1.2 parser differs from this one in what it accepts as
//! well as in what it reads, and a node has to read the files that the kubelet read before it.
// k8s: vendor/sigs.k8s.io/yaml YAMLToJSON, vendor/go.yaml.in/yaml/v2

mod block;
mod compose;
mod decode;
mod json;
mod meta;
mod number;
mod outline;
mod parser;
mod quoted;
mod resolve;
mod scanner;
mod tag;
mod text;
mod timestamp;

pub use compose::Repeated;
pub use decode::{DecodeError, from_json};
pub use json::{Json, parse_json, utf8_of};
pub use meta::TypeMeta;
pub use outline::Outline;

use text::FileText;

/// Limits of reading a file.
#[derive(Clone, Copy, Debug)]
pub struct ReadLimits {
    /// Collections, one in another.
    pub depth_max: usize,
    /// Values and keys of the file as it is written.
    pub nodes_max: usize,
    /// Values and keys that aliases repeat.
    pub replayed_max: usize,
}

/// Reason why bytes are no YAML or JSON.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SyntaxError {
    /// Line, from 1, where it is known.
    pub line: Option<u64>,
    /// The fault.
    pub message: String,
}

impl SyntaxError {
    fn new(message: impl Into<String>) -> Self {
        Self { line: None, message: message.into() }
    }

    /// An error at a line, counted from 0.
    fn at(line: usize, message: impl Into<String>) -> Self {
        Self { line: Some(line as u64 + 1), message: message.into() }
    }
}

/// A file, read.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Its value.
    pub value: Json,
    /// Keys that stand twice in one map.
    pub repeated: Vec<Repeated>,
}

/// Reads YAML, and JSON when the first character is a brace.
pub fn read(bytes: &[u8], limits: &ReadLimits) -> Result<Document, SyntaxError> {
    if is_json(bytes) { parse_json(bytes, limits) } else { read_yaml(bytes, limits) }
}

/// Reads YAML, of which JSON is a part as far as YAML 1.1 goes.
pub fn read_yaml(bytes: &[u8], limits: &ReadLimits) -> Result<Document, SyntaxError> {
    let text = FileText::of(bytes);
    let tree = parser::parse(&text, limits)?;
    compose::document(&tree, limits)
}

/// True if the decoders that distinguish the two read it as JSON.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/yaml/decoder.go IsJSONBuffer
fn is_json(bytes: &[u8]) -> bool {
    let valid = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    };
    valid.trim_start_matches(char::is_whitespace).starts_with('{')
}

/// Any bytes as YAML, as JSON and as an outline; for fuzzing. A document that was read must be
/// equal when it is read again from its JSON.
pub fn fuzz_yaml(bytes: &[u8]) {
    let limits = ReadLimits { depth_max: 64, nodes_max: 20_000, replayed_max: 20_000 };
    let _ = (parse_json(bytes, &limits), Outline::of(bytes, &limits)); // any answer is fine
    if let Ok(document) = read_yaml(bytes, &limits) {
        let written = document.value.to_string();
        let wide = ReadLimits { depth_max: 128, nodes_max: usize::MAX, replayed_max: 0 };
        let again = parse_json(written.as_bytes(), &wide).expect("our own text is read");
        assert_eq!(again.value, document.value, "{written}");
    }
}

#[cfg(test)]
mod tests;
