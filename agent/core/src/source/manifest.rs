//! Bytes of a manifest to static pods.
//!
//! Input: YAML or JSON bytes from a file (one pod) or a URL (a pod or a list), and their origin.
//! Output: defaulted, validated pods with their static identity, or a `ManifestError` with line and
//! field. Pure; never panics whatever the bytes (`fuzz_manifest`). Bounds: 10 MiB of text, 128
//! levels of nesting, 100,000 values, and 20,000 that aliases repeat.

use k8s_openapi::api::core::v1::Pod;
use thiserror::Error;

use super::references::first_reference;
use super::static_pod::{self, ManifestOrigin};
use pintle_api_types::ids::PodUid;
use pintle_api_types::pod::validate::{self, FieldError};
use pintle_api_types::pod::{self, defaults};
use pintle_api_types::yaml::{self, Json, Outline, ReadLimits, TypeMeta};

/// Largest manifest in bytes.
// k8s: pkg/kubelet/config/file.go maxConfigLength
pub const MANIFEST_BYTES_MAX: usize = 10 << 20;
/// How much of a manifest, or of a whole list of pods, is read. A pod needs about 20 levels, and
/// one with a hundred containers has some ten thousand values; so few that their tree is smaller
/// than the agent. Few bytes of nested aliases stand for billions of values.
const LIMITS: ReadLimits = ReadLimits { depth_max: 128, nodes_max: 100_000, replayed_max: 20_000 };

/// Why a manifest is no pod.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// More bytes than `MANIFEST_BYTES_MAX`.
    #[error("more than {MANIFEST_BYTES_MAX} bytes")]
    TooLarge,
    /// Only white space.
    #[error("no content")]
    Empty,
    /// No YAML or JSON, or a value of the wrong type.
    #[error("{}couldn't parse as pod({message})", place(*.line, .field))]
    Syntax {
        /// Line, from 1.
        line: Option<u64>,
        /// Field, when the text itself could be read.
        field: String,
        /// The error.
        message: String,
    },
    /// Another kind of object, or none.
    #[error("{found} is no v1 Pod")]
    Kind {
        /// The kind that it names.
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

/// The one pod of a file.
// k8s: pkg/kubelet/config/common.go tryDecodeSinglePod
pub fn decode_pod(bytes: &[u8], origin: &ManifestOrigin, node: &str) -> Result<Pod, ManifestError> {
    let json = read(bytes)?;
    let located = Located { bytes, prefix: String::new() };
    match kind_of(&json)?.as_str() {
        "Pod" => prepare(typed(&json, &located)?, origin, node, &located),
        other => Err(ManifestError::Kind { found: other.to_owned() }),
    }
}

/// The pods of a URL: one pod or a list of them.
// k8s: pkg/kubelet/config/common.go tryDecodePodList
pub fn decode_pods(
    bytes: &[u8],
    origin: &ManifestOrigin,
    node: &str,
) -> Result<Vec<Pod>, ManifestError> {
    let json = read(bytes)?;
    if kind_of(&json)? == "Pod" {
        return Ok(vec![decode_pod(bytes, origin, node)?]);
    }
    let items: Vec<Json> = match json.get("items") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(items)) => items.clone(),
        Some(_) => return Err(syntax(None, "items".to_owned(), "a list is expected")),
    };
    let pods = items.iter().enumerate().map(|(index, item)| {
        let located = Located { bytes, prefix: format!("items[{index}]") };
        prepare(typed(item, &located)?, origin, node, &located)
    });
    pods.collect()
}

/// Reads any bytes as manifest and as list; for fuzzing. Must never panic.
pub fn fuzz_manifest(bytes: &[u8]) {
    let origin = ManifestOrigin {
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

fn read(bytes: &[u8]) -> Result<Json, ManifestError> {
    if bytes.len() > MANIFEST_BYTES_MAX {
        return Err(ManifestError::TooLarge);
    }
    match yaml::read(bytes, &LIMITS) {
        Ok(document) if document.value == Json::Null => Err(ManifestError::Empty),
        Ok(document) => Ok(document.value),
        Err(error) => Err(syntax(error.line, String::new(), error.message)),
    }
}

/// The object's kind, after its version was checked.
fn kind_of(json: &Json) -> Result<String, ManifestError> {
    let TypeMeta { kind, api_version } =
        TypeMeta::of(json).map_err(|error| syntax(None, error.path, error.message))?;
    let missing = |field: &str| syntax(None, String::new(), format!("Object '{field}' is missing"));
    if kind.is_empty() {
        return Err(missing("Kind"));
    }
    if api_version.is_empty() {
        return Err(missing("apiVersion"));
    }
    if api_version == "v1" && (kind == "Pod" || kind == "PodList" || kind == "List") {
        return Ok(kind);
    }
    Err(ManifestError::Kind { found: format!("{api_version} {kind}") })
}

/// A value as one of the type.
fn typed<T: serde::de::DeserializeOwned>(
    json: &Json,
    located: &Located<'_>,
) -> Result<T, ManifestError> {
    yaml::from_json(json).map_err(|error| {
        let path = located.path(&error.path);
        syntax(Outline::of(located.bytes, &LIMITS).line(&path), path, error.message)
    })
}

fn syntax(line: Option<u64>, field: String, message: impl Into<String>) -> ManifestError {
    ManifestError::Syntax { line, field, message: message.into() }
}

/// A manifest and the prefix of the pod's field paths in it.
struct Located<'a> {
    bytes: &'a [u8],
    prefix: String,
}

impl Located<'_> {
    /// Path of a pod's field in the manifest.
    fn path(&self, field: &str) -> String {
        let dot = if self.prefix.is_empty() || field.is_empty() { "" } else { "." };
        format!("{}{dot}{field}", self.prefix)
    }
}

fn prepare(
    mut pod: Pod,
    origin: &ManifestOrigin,
    node: &str,
    located: &Located,
) -> Result<Pod, ManifestError> {
    let located_all = |errors: Vec<FieldError>| {
        let outline = Outline::of(located.bytes, &LIMITS);
        let line = |error: &FieldError| outline.line(&located.path(&error.path));
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
        Err(error) => Err(syntax(None, "spec.volumes".to_owned(), error.to_string())),
    }
}
