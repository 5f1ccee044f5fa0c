//! Reads configuration files: the one of `--config` and the drop-ins of `--config-dir`.
//!
//! Input: YAML or JSON text and the folder it came from. Output: [`Document`]: a tree of known
//! fields with relative paths made absolute, the line of every top-level field, and warnings.
//! Reading is strict first; a file that only has unknown or repeated fields is read leniently with
//! a warning for each, as the kubelet does. Nothing in a file can make this panic; its size and
//! its YAML aliases are bounded.
//!
//! // k8s: pkg/kubelet/kubeletconfig/configfiles/configfiles.go Load

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pintle_api_types::yaml::{self, Json, Outline, ReadLimits, Repeated, SyntaxError};
use serde_json::{Map, Value};

use crate::daemon::Daemon;
use crate::error::ConfigError;
use crate::field::{self, Field};
use crate::suggest;

/// Largest configuration file that is read.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Values in one file, and as many that aliases repeat; a full configuration has a few hundred.
const NODES_MAX: usize = 20_000;
/// Collections one in another; a configuration needs five.
const LIMITS: ReadLimits =
    ReadLimits { depth_max: 64, nodes_max: NODES_MAX, replayed_max: NODES_MAX };
/// Most drop-in files that are read.
const DROP_IN_FILES_MAX: usize = 1000;
/// Folders below `--config-dir` that are entered, one in another.
const DROP_IN_DEPTH_MAX: usize = 32;
/// Ending of drop-in files; others are left alone.
const DROP_IN_ENDING: &str = "conf";

/// One configuration file, read.
#[derive(Clone, Debug, Default)]
pub struct Document {
    /// Known fields as they were written.
    pub tree: Map<String, Value>,
    /// `file:line` of each top-level field.
    pub places: BTreeMap<String, String>,
    /// Ignored settings.
    pub warnings: Vec<String>,
}

/// Reads the file at `path`.
pub fn read<D: Daemon>(path: &Path) -> Result<Document, ConfigError> {
    let shown = path.display().to_string();
    let unreadable = |problem: String| {
        ConfigError::new(shown.clone(), "", problem, "check the path and its rights")
    };
    let size = std::fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if size > FILE_BYTES_MAX {
        let problem = format!("the file has {size} bytes, more than the {FILE_BYTES_MAX} allowed");
        return Err(ConfigError::new(shown, "", problem, "make it smaller"));
    }
    let bytes = std::fs::read(path).map_err(|error| unreadable(error.to_string()))?;
    let folder = std::path::absolute(path).ok().and_then(|p| p.parent().map(Path::to_owned));
    parse::<D>(&bytes, &shown, folder.as_deref().unwrap_or(Path::new("/")))
}

/// Reads the text of a file named `shown` that lies in `folder`.
pub fn parse<D: Daemon>(bytes: &[u8], shown: &str, folder: &Path) -> Result<Document, ConfigError> {
    let read = yaml::read(bytes, &LIMITS).map_err(|error| syntax_error::<D>(error, shown))?;
    let entries = match read.value {
        Json::Object(entries) => entries,
        Json::Null => {
            return Err(ConfigError::new(shown, "", "the file is empty", "write a configuration"));
        }
        _ => {
            let error = SyntaxError { line: Some(1), message: "it is no map of fields".to_owned() };
            return Err(syntax_error::<D>(error, shown));
        }
    };
    let mut document = Document::default();
    for repeated in read.repeated {
        let Repeated { line, key } = repeated;
        let warning = format!("{shown}:{line}: repeated field {key}; the last one is used");
        document.warnings.push(warning);
    }
    let outline = Outline::of(bytes, &LIMITS);
    for (key, value) in entries {
        let place = match outline.line(&key) {
            Some(line) => format!("{shown}:{line}"),
            None => shown.to_owned(),
        };
        document.places.insert(key.clone(), place);
        document.tree.insert(key, value.into());
    }
    check_kind::<D>(&document, shown)?;
    check_maps::<D>(&document, shown)?;
    let mut unknown = Vec::new();
    D::FIELDS.drop_unknown(&mut document.tree, "", &mut unknown);
    for path in unknown {
        let top = path.split('.').next().unwrap_or_default();
        let place = document.places.get(top).map_or(shown, String::as_str);
        let hint = suggest::did_you_mean(&path, D::FIELDS.0.iter().map(|field| field.path));
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        document.warnings.push(format!("{place}: unknown field {path} is ignored{hint}"));
    }
    resolve_paths(&mut document.tree, D::PATH_FIELDS, folder);
    Ok(document)
}

/// File, line and fault.
fn syntax_error<D: Daemon>(error: SyntaxError, shown: &str) -> ConfigError {
    let remedy = format!("correct the file; `kind: {}` in YAML or JSON is expected", D::KIND);
    match error.line {
        Some(line) => ConfigError::new("configuration file", "", error.message, remedy)
            .at(format!("{shown}:{line}")),
        None => ConfigError::new(shown, "", error.message, remedy),
    }
}

fn check_kind<D: Daemon>(document: &Document, shown: &str) -> Result<(), ConfigError> {
    for (field, wanted) in [("apiVersion", D::API_VERSION), ("kind", D::KIND)] {
        // The case of these two names alone does not matter, and the last of several counts.
        // k8s: staging/src/k8s.io/apimachinery/pkg/runtime/serializer/json/meta.go Interpret
        let mut named = document.tree.iter().filter(|(key, _)| key.eq_ignore_ascii_case(field));
        let value = named.rfind(|(_, value)| !value.is_null());
        let value = value.and_then(|(_, value)| value.as_str()).unwrap_or_default();
        if value != wanted {
            let place = document.places.get(field).map_or(shown, String::as_str);
            let problem = "this file is not read".to_owned();
            let remedy = format!("write {field}: {wanted}");
            return Err(ConfigError::new(field, format!("{value:?}"), problem, remedy).at(place));
        }
    }
    Ok(())
}

/// Checks that a field with fields below it is a map: a list would pass for one.
fn check_maps<D: Daemon>(document: &Document, shown: &str) -> Result<(), ConfigError> {
    let tree = Value::Object(document.tree.clone());
    let inner =
        |field: &'static Field| field.path.match_indices('.').map(|(at, _)| &field.path[..at]);
    for path in D::FIELDS.0.iter().flat_map(inner) {
        let found = field::at(&tree, path).filter(|found| !found.is_object() && !found.is_null());
        if let Some(found) = found {
            let top = path.split('.').next().unwrap_or_default();
            let place = document.places.get(top).map_or(shown, String::as_str);
            let remedy = "write a map of fields";
            let error = ConfigError::new(path, found, "it must be a map".to_owned(), remedy);
            return Err(error.at(place));
        }
    }
    Ok(())
}

fn resolve_paths(tree: &mut Map<String, Value>, fields: &[&str], folder: &Path) {
    for path in fields {
        if let Some(Value::String(text)) = leaf_mut(tree, path)
            && !text.is_empty()
            && Path::new(text).is_relative()
        {
            *text = clean(&folder.join(&*text)).display().to_string();
        }
    }
}

/// Removes `.` and `..` without looking at the disk.
fn clean(path: &Path) -> PathBuf {
    use std::path::Component;
    path.components().fold(PathBuf::new(), |mut clean, component| {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
        clean
    })
}

fn leaf_mut<'a>(tree: &'a mut Map<String, Value>, path: &str) -> Option<&'a mut Value> {
    match path.split_once('.') {
        None => tree.get_mut(path),
        Some((head, rest)) => leaf_mut(tree.get_mut(head)?.as_object_mut()?, rest),
    }
}

/// The drop-in files below `folder` in lexical order, and a warning for each file left alone.
// k8s: cmd/kubelet/app/server.go mergeKubeletConfigurations
pub(crate) fn drop_ins(folder: &Path) -> Result<(Vec<PathBuf>, Vec<String>), ConfigError> {
    let mut found = DropIns::default();
    walk(folder, 0, &mut found)?;
    Ok((found.files, found.warnings))
}

#[derive(Default)]
struct DropIns {
    files: Vec<PathBuf>,
    warnings: Vec<String>,
}

fn walk(folder: &Path, depth: usize, found: &mut DropIns) -> Result<(), ConfigError> {
    let failed = |problem: String| {
        let remedy = "check the path and its rights";
        ConfigError::new("--config-dir", folder.display(), problem, remedy)
    };
    if depth > DROP_IN_DEPTH_MAX {
        return Err(failed(format!("folders are nested deeper than {DROP_IN_DEPTH_MAX}")));
    }
    let entries = std::fs::read_dir(folder).map_err(|error| failed(error.to_string()))?;
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let mut paths =
        paths.collect::<Result<Vec<_>, _>>().map_err(|error| failed(error.to_string()))?;
    paths.sort();
    for path in paths {
        // A link to a folder is not entered, as the kubelet's walk does not enter it.
        let is_folder = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_folder {
            walk(&path, depth + 1, found)?;
        } else if path.extension().is_some_and(|ending| ending == DROP_IN_ENDING) {
            found.files.push(path);
        } else {
            let name = path.display();
            found.warnings.push(format!("{name}: ignored, drop-ins end in .{DROP_IN_ENDING}"));
        }
        if found.files.len() > DROP_IN_FILES_MAX {
            return Err(failed(format!("there are more than {DROP_IN_FILES_MAX} drop-in files")));
        }
    }
    Ok(())
}

/// Applies `patch` to `target`: objects merge, null deletes, everything else replaces (RFC 7386).
pub(crate) fn merge_patch(target: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                target.remove(&key);
            }
            Value::Object(inner) => {
                let slot = target.entry(key).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(old) = slot {
                    merge_patch(old, inner);
                }
            }
            value => {
                target.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
