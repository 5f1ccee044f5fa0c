//! From files and flags to one typed configuration.
//!
//! Input: the flags that were given. Output: [`Sources`], which remembers where every setting came
//! from, and from it the typed configuration and the feature gates, checked, or all errors.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use crate::daemon::{Daemon, FeatureGates};
use crate::error::ConfigError;
use crate::file::{self, Document};
use crate::flag::{FlagKind, FlagTarget};
use crate::given::GivenFlags;

/// Merged settings and where they came from.
pub(crate) struct Sources<D: Daemon> {
    /// Settings of all sources, by the names of the API.
    tree: Map<String, Value>,
    /// File and line, or flag, of each top-level field.
    places: BTreeMap<String, String>,
    /// Settings that were ignored while reading.
    pub warnings: Vec<String>,
    /// The configuration when nothing is set.
    pub baseline: D::Configuration,
}

impl<D: Daemon> Sources<D> {
    /// Reads the files that the flags name and merges everything.
    pub(crate) fn read(given: &GivenFlags) -> Result<Self, Vec<ConfigError>> {
        let mut sources = match given.text("config") {
            Some(path) => {
                Self::of_document(file::read::<D>(Path::new(path)).map_err(|error| vec![error])?)?
            }
            None => Self::without_file(),
        };
        if let Some(folder) = given.text("config-dir") {
            sources.add_drop_ins(Path::new(folder))?;
        }
        sources.add_flags(given);
        Ok(sources)
    }

    /// The settings of the file of `--config`.
    pub(crate) fn of_document(document: Document) -> Result<Self, Vec<ConfigError>> {
        let Document { tree, places, warnings } = document;
        let whole = Value::Object(tree);
        let nulls = D::FIELDS.0.iter().filter(|field| field.is_refused_null(&whole));
        let nulls: Vec<_> = nulls.map(|field| null_error(field.path, &places)).collect();
        if !nulls.is_empty() {
            return Err(nulls);
        }
        let Value::Object(mut tree) = whole else { return Ok(Self::without_file()) };
        complete::<D>(&mut tree);
        D::complete_file(&mut tree);
        Ok(Self { tree, places, warnings, baseline: D::Configuration::default() })
    }

    fn without_file() -> Self {
        let tree = D::without_file();
        let baseline = serde_json::from_value(Value::Object(tree.clone())).unwrap_or_default();
        Self { tree, places: BTreeMap::new(), warnings: Vec::new(), baseline }
    }

    fn add_drop_ins(&mut self, folder: &Path) -> Result<(), Vec<ConfigError>> {
        let (files, ignored) = file::drop_ins(folder).map_err(|error| vec![error])?;
        self.warnings.extend(ignored);
        let read = files.iter().map(|path| file::read::<D>(path));
        let (documents, errors) = split(read);
        if !errors.is_empty() {
            return Err(errors);
        }
        D::settle(&mut self.tree);
        for document in documents {
            file::merge_patch(&mut self.tree, document.tree);
            self.places.extend(document.places);
            self.warnings.extend(document.warnings);
        }
        complete::<D>(&mut self.tree);
        Ok(())
    }

    /// Flags replace settings of files; feature gates add up.
    fn add_flags(&mut self, given: &GivenFlags) {
        for (flag, value) in given.iter() {
            let FlagTarget::Field(path) = flag.target else { continue };
            let top = path.split('.').next().unwrap_or_default();
            self.places.remove(top);
            set(&mut self.tree, path, value.clone(), matches!(flag.kind, FlagKind::Gates));
        }
    }

    /// The configuration, if all of it is right.
    pub(crate) fn typed(&self) -> Result<(D::Configuration, FeatureGates<D>), Vec<ConfigError>> {
        let mut tree = self.tree.clone();
        let (asked, mut errors) = asked_gates(&mut tree);
        let gates = FeatureGates::<D>::new(&asked);
        D::complete_for_gates(&mut tree, gates.as_ref().unwrap_or(&FeatureGates::default()));
        errors.extend(gates.as_ref().err().into_iter().flatten().cloned());
        let (config, found) = typed::<D>(tree);
        errors.extend(found);
        let known = gates.unwrap_or_default();
        errors.extend(D::check(&config, &known));
        if errors.is_empty() { Ok((config, known)) } else { Err(self.placed(errors)) }
    }

    /// Adds file and line, or else the flag's name, to errors about fields.
    fn placed(&self, errors: Vec<ConfigError>) -> Vec<ConfigError> {
        let place = |error: ConfigError| {
            let top = error.field.split(['.', ' ']).next().unwrap_or_default();
            match self.places.get(top).cloned() {
                Some(place) if error.place.is_none() => error.at(place),
                _ => error,
            }
        };
        errors.into_iter().map(place).map(named_with_flag::<D>).collect()
    }
}

/// Removes values that count as "not set" and adds the defaults that depend on other fields.
fn complete<D: Daemon>(tree: &mut Map<String, Value>) {
    D::FIELDS.drop_unset(tree);
    D::complete(tree);
}

/// `maxPods` becomes `maxPods (--max-pods)`, so that users of flags find it, too.
fn named_with_flag<D: Daemon>(mut error: ConfigError) -> ConfigError {
    let mut flags = D::FLAGS.flags();
    let flag = flags.find(|f| matches!(f.target, FlagTarget::Field(path) if path == error.field));
    if let Some(flag) = flag {
        error.field = format!("{} (--{})", error.field, flag.name);
    }
    error
}

fn null_error(path: &str, places: &BTreeMap<String, String>) -> ConfigError {
    let problem = "it is no duration".to_owned();
    let error = ConfigError::new(path, "null", problem, "write one such as 10s, or leave it out");
    match places.get(path.split('.').next().unwrap_or_default()) {
        Some(place) => error.at(place),
        None => error,
    }
}

fn split<T>(results: impl Iterator<Item = Result<T, ConfigError>>) -> (Vec<T>, Vec<ConfigError>) {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => bad.push(error),
        }
    }
    (good, bad)
}

fn set(tree: &mut Map<String, Value>, path: &str, value: Value, merge: bool) {
    let Some((head, rest)) = path.split_once('.') else {
        match (tree.get_mut(path), value) {
            (Some(Value::Object(old)), Value::Object(new)) if merge => old.extend(new),
            (_, value) => {
                tree.insert(path.to_owned(), value);
            }
        }
        return;
    };
    let slot = tree.entry(head).or_insert_with(|| Value::Object(Map::new()));
    if let Value::Object(inner) = slot {
        set(inner, rest, value, merge);
    }
}

/// The gates that were set, and an error for each with an invalid value; these are removed from the
/// tree, so that the rest can still be checked.
fn asked_gates(tree: &mut Map<String, Value>) -> (BTreeMap<String, bool>, Vec<ConfigError>) {
    let remedy = "write a map from gate names to true or false";
    let is_map = tree.get("featureGates").is_some_and(Value::is_object);
    if !is_map && let Some(other) = tree.remove("featureGates").filter(|value| !value.is_null()) {
        let error = ConfigError::new("featureGates", other, "it is no map", remedy);
        return (BTreeMap::new(), vec![error]);
    }
    let Some(Value::Object(gates)) = tree.get_mut("featureGates") else {
        return Default::default();
    };
    let (mut asked, mut errors) = (BTreeMap::new(), Vec::new());
    gates.retain(|name, value| {
        if value.is_null() {
            *value = Value::Bool(false);
        }
        if let Some(on) = value.as_bool() {
            asked.insert(name.clone(), on);
            return true;
        }
        let field = format!("featureGates.{name}");
        let remedy = "write true or false without quotes";
        errors.push(ConfigError::new(field, &*value, "it must be true or false", remedy));
        false
    });
    (asked, errors)
}

/// The typed configuration, and one error for each field with a value of the wrong type; such
/// fields keep their default, so that the rest can still be checked.
fn typed<D: Daemon>(tree: Map<String, Value>) -> (D::Configuration, Vec<ConfigError>) {
    let mut whole = Value::Object(tree);
    if let Ok(config) = serde_json::from_value(whole.clone()) {
        return (config, Vec::new());
    }
    let mut errors: Vec<ConfigError> = Vec::new();
    for field in D::FIELDS.0 {
        let Some(error) = leaf::<D>(&whole, field.path) else { continue };
        remove(&mut whole, &error.field);
        errors.push(error);
    }
    match serde_json::from_value(whole) {
        Ok(config) => (config, errors),
        Err(error) => {
            errors.push(ConfigError::new("configuration", "", error.to_string(), ""));
            (D::Configuration::default(), errors)
        }
    }
}

fn remove(node: &mut Value, path: &str) {
    let Some(map) = node.as_object_mut() else { return };
    match path.split_once('.') {
        None => drop(map.remove(path)),
        Some((head, rest)) => {
            if let Some(inner) = map.get_mut(head) {
                remove(inner, rest);
            }
        }
    }
}

/// The error that this leaf alone would cause.
fn leaf<D: Daemon>(whole: &Value, path: &str) -> Option<ConfigError> {
    let mut node = whole;
    let mut walked = 0;
    for key in path.split('.') {
        if !node.is_object() {
            let at = &path[..walked];
            let problem = "it must be a map of fields";
            return Some(ConfigError::new(at, node, problem, format!("see the fields of {at}")));
        }
        node = node.get(key)?;
        walked += key.len() + usize::from(walked > 0);
    }
    let alone = path.rsplit('.').fold(node.clone(), |inner, key| serde_json::json!({ key: inner }));
    let error = serde_json::from_value::<D::Configuration>(alone).err()?;
    let (problem, remedy) = in_words(&error.to_string());
    Some(ConfigError::new(path, node, problem, remedy))
}

/// The expected form of a value, in terms of YAML instead of Rust.
fn in_words(error: &str) -> (String, String) {
    let expected = error.rsplit_once("expected ").map(|(_, expected)| expected);
    let (kind, remedy) = match expected.unwrap_or_default() {
        "a sequence" => ("a list", "write each value on a line of its own that begins with -"),
        "a map" => ("a map of fields", "write NAME: VALUE for each"),
        text if text.starts_with("struct ") => ("a map of fields", "write NAME: VALUE for each"),
        "a boolean" => ("true or false", "write it without quotes"),
        "a string" => ("text", "put it into quotes"),
        "f32" | "f64" => ("a number", "write it without quotes"),
        "i32" => return whole_number(i32::MIN.into(), i32::MAX.into()),
        "u32" => return whole_number(0, u32::MAX.into()),
        "i64" => return whole_number(i64::MIN, i64::MAX),
        _ => return (error.to_owned(), "correct its value".to_owned()),
    };
    (format!("it must be {kind}"), remedy.to_owned())
}

fn whole_number(least: i64, most: i64) -> (String, String) {
    let problem = "it must be a whole number".to_owned();
    (problem, format!("write one from {least} to {most} without quotes"))
}
