//! Bytes of a manifest to static pods.
//!
//! Input: YAML or JSON bytes from a file (one pod) or a URL (a pod or a list), and their origin.
//! Output: defaulted, validated pods with their static identity, or a `ManifestError` that says
//! line and field. Pure; never panics whatever the bytes (`fuzz_manifest`). Bounds: 10 MiB of
//! text, 64 levels of nesting, 1,000 anchors, 100,000 YAML events of which
//! aliases may make 20,000.

use k8s_openapi::api::core::v1::Pod;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use super::locate::{Outline, Position};
use super::references::first_reference;
use super::static_pod::{self, Origin};
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::validate::{self, FieldError};
use pintle_api_types::pod::{self, defaults};

/// Largest manifest in bytes.
// k8s: pkg/kubelet/config/file.go maxConfigLength
pub const MANIFEST_BYTES_MAX: usize = 10 << 20;
/// Deepest nesting of a manifest; a pod needs about 20.
const DEPTH_MAX: usize = 64;
/// Most YAML events of a manifest, or of a whole list of pods: a pod with a hundred containers has
/// some ten thousand. So few that their tree is smaller than the agent.
const EVENTS_MAX: usize = 100_000;
/// Most places of a manifest that aliases may name: the reader keeps what stands there, and takes
/// longer for each.
const ANCHORS_MAX: usize = 1_000;
/// Most YAML events that aliases may repeat: few bytes of nested aliases stand for billions.
const REPLAYS_MAX: usize = 20_000;

/// Why a manifest is no pod.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// More bytes than `MANIFEST_BYTES_MAX`.
    #[error("more than {MANIFEST_BYTES_MAX} bytes")]
    TooLarge,
    /// Nothing but white space.
    #[error("no content")]
    Empty,
    /// No YAML or JSON, or a value of the wrong type.
    #[error("{}couldn't parse as pod({message})", place(*.line, .field))]
    Syntax {
        /// Line, from 1.
        line: Option<u64>,
        /// Field, when the text itself could be read.
        field: String,
        /// What is wrong.
        message: String,
    },
    /// Another kind of object, or none.
    #[error("{found} is no v1 Pod")]
    Kind {
        /// What it says it is.
        found: String,
    },
    /// A pod that the API would refuse.
    #[error("invalid pod: {}", join(.0))]
    Invalid(Vec<LocatedError>),
    /// A pod that needs an API server.
    #[error("static pods may not reference {0}")]
    Reference(String),
}

/// A violation and the line of its field.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}{error}", place(*.line, ""))]
pub struct LocatedError {
    /// Line, from 1.
    pub line: Option<u64>,
    /// The violation.
    pub error: FieldError,
}

impl ManifestError {
    /// The first line that the error names.
    pub fn line(&self) -> Option<u64> {
        match self {
            Self::Syntax { line, .. } => *line,
            Self::Invalid(errors) => errors.iter().find_map(|error| error.line),
            _ => None,
        }
    }
}

fn place(line: Option<u64>, field: &str) -> String {
    let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
    if field.is_empty() { line } else { format!("{line}{field}: ") }
}

fn join(errors: &[LocatedError]) -> String {
    errors.iter().map(LocatedError::to_string).collect::<Vec<_>>().join("; ")
}

/// Limits of the YAML reader.
pub(super) fn yaml_options() -> serde_saphyr::Options {
    let budget = serde_saphyr::budget! {
        max_depth: DEPTH_MAX,
        flow_nesting_limit: DEPTH_MAX,
        max_events: EVENTS_MAX,
        max_nodes: EVENTS_MAX,
        max_anchors: ANCHORS_MAX,
        max_total_scalar_bytes: MANIFEST_BYTES_MAX,
    };
    let alias_limits = serde_saphyr::alias_limits! { max_total_replayed_events: REPLAYS_MAX };
    serde_saphyr::options! { budget: budget, alias_limits: alias_limits }
}

/// What every API object says of itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    api_version: Option<String>,
    kind: Option<String>,
}

/// The same before it is known that these are texts.
#[derive(Deserialize)]
#[serde(rename = "Header", rename_all = "camelCase")]
struct RawHeader {
    api_version: Option<Value>,
    kind: Option<Value>,
}

/// A list of pods; items carry no kind of their own.
#[derive(Deserialize)]
struct PodItems {
    #[serde(default)]
    items: Vec<Pod>,
}

/// The one pod of a file.
// k8s: pkg/kubelet/config/common.go tryDecodeSinglePod
pub fn decode_pod(bytes: &[u8], origin: &Origin, node: &str) -> Result<Pod, ManifestError> {
    let text = text_of(bytes)?;
    match kind_of(text)?.as_str() {
        "Pod" => prepare(parse(text)?, origin, node, &Located { text, prefix: String::new() }),
        other => Err(ManifestError::Kind { found: other.to_owned() }),
    }
}

/// The pods of a URL: one pod or a list of them.
// k8s: pkg/kubelet/config/common.go tryDecodePodList
pub fn decode_pods(bytes: &[u8], origin: &Origin, node: &str) -> Result<Vec<Pod>, ManifestError> {
    let text = text_of(bytes)?;
    if kind_of(text)? == "Pod" {
        return Ok(vec![decode_pod(bytes, origin, node)?]);
    }
    let list: PodItems = parse(text)?;
    let pods = list.items.into_iter().enumerate().map(|(index, pod)| {
        prepare(pod, origin, node, &Located { text, prefix: format!("items[{index}].") })
    });
    pods.collect()
}

/// Reads any bytes as manifest and as list; for fuzzing. Must never panic.
pub fn fuzz_manifest(bytes: &[u8]) {
    let origin = Origin {
        kind: super::SourceKind::File,
        place: "/fuzz".to_owned(),
        changed_at: pintle_api_types::ids::UnixNanos::NEVER,
    };
    let one = decode_pod(bytes, &origin, "node");
    let many = decode_pods(bytes, &origin, "node");
    for error in one.err().into_iter().chain(many.err()) {
        let _ = (error.to_string(), error.line());
    }
}

fn text_of(bytes: &[u8]) -> Result<&str, ManifestError> {
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
        syntax(Some(line), String::new(), "no UTF-8 text".to_owned())
    })?;
    if text.trim().is_empty() { Err(ManifestError::Empty) } else { Ok(text) }
}

/// The object's kind, after its version was checked. Nothing else of the text is kept: what is no
/// pod must not take a pod's memory.
fn kind_of(text: &str) -> Result<String, ManifestError> {
    let tree: RawHeader = read(text)?;
    let header = serde_json::json!({"apiVersion": tree.api_version, "kind": tree.kind});
    let header: Header = typed(&header, text)?;
    let missing = |field: &str| syntax(None, String::new(), format!("Object '{field}' is missing"));
    let kind = header.kind.filter(|kind| !kind.is_empty()).ok_or_else(|| missing("Kind"))?;
    let version = header.api_version.filter(|version| !version.is_empty());
    let version = version.ok_or_else(|| missing("apiVersion"))?;
    if version == "v1" && (kind == "Pod" || kind == "PodList" || kind == "List") {
        return Ok(kind);
    }
    Err(ManifestError::Kind { found: format!("{version} {kind}") })
}

/// YAML to JSON to the type, as the API's own decoder does it: a number is no text here. Straight
/// from YAML would also make the program 4 MB larger, with every type of a pod compiled once more.
fn parse<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ManifestError> {
    typed(&read(text)?, text)
}

/// What a YAML text says, as much of it as the type asks for.
fn read<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ManifestError> {
    serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| {
        let at = error.location().map(|at| Position { line: at.line(), column: at.column() });
        let field = at.and_then(|at| Outline::of(text).field(at).map(str::to_owned));
        let shown = error.without_snippet().to_string();
        syntax(at.map(|at| at.line), field.unwrap_or_default(), without_place(&shown))
    })
}

/// The tree of a text as a value of the type.
fn typed<T: serde::de::DeserializeOwned>(tree: &Value, text: &str) -> Result<T, ManifestError> {
    let unwritable = |error: serde_json::Error| syntax(None, String::new(), error.to_string());
    if let Ok(value) = serde_json::from_str(&serde_json::to_string(tree).map_err(unwritable)?) {
        return Ok(value);
    }
    // Where it is wrong: no line has two values, so that the line of an error names one field.
    let json = serde_json::to_string_pretty(tree).map_err(unwritable)?;
    serde_json::from_str(&json).map_err(|error| {
        let at = Position { line: error.line() as u64, column: u64::MAX };
        let field = Outline::of(&json).field(at).map(str::to_owned).unwrap_or_default();
        syntax(Outline::of(text).line(&field), field, without_place(&error.to_string()))
    })
}

/// The position is said once, in front.
fn without_place(message: &str) -> String {
    message.split(" at line ").next().unwrap_or_default().to_owned()
}

fn syntax(line: Option<u64>, field: String, message: String) -> ManifestError {
    ManifestError::Syntax { line, field, message }
}

/// A text and what stands in front of the pod's field paths in it.
struct Located<'a> {
    text: &'a str,
    prefix: String,
}

fn prepare(
    mut pod: Pod,
    origin: &Origin,
    node: &str,
    located: &Located,
) -> Result<Pod, ManifestError> {
    let located_all = |errors: Vec<FieldError>| {
        let outline = Outline::of(located.text);
        let line = |error: &FieldError| outline.line(&format!("{}{}", located.prefix, error.path));
        let errors = errors.into_iter().map(|error| LocatedError { line: line(&error), error });
        ManifestError::Invalid(errors.collect())
    };
    if pod::name(&pod).is_empty() {
        return Err(located_all(vec![FieldError::required("metadata.name", "")]));
    }
    if let Some(uid) = pod.metadata.uid.as_deref().filter(|uid| !uid.is_empty())
        && PodUid::parse(uid).is_none()
    {
        // It names the pod's directories, which are removed with it.
        let detail = format!(
            "Invalid value: {uid:?}: must be letters, digits, '-', '_' and '.' and not begin with \
             '.'; leave it out to have one made from the manifest"
        );
        return Err(located_all(vec![FieldError { path: "metadata.uid".to_owned(), detail }]));
    }
    static_pod::identify(&mut pod, origin, node);
    defaults::apply(&mut pod);
    let errors = validate::pod(&pod);
    if !errors.is_empty() {
        return Err(located_all(errors));
    }
    match first_reference(&pod) {
        Ok(None) => Ok(pod),
        Ok(Some(kind)) => Err(ManifestError::Reference(kind.to_owned())),
        Err(message) => Err(syntax(None, "spec.volumes".to_owned(), message)),
    }
}
