//! Messages of decoding errors: the field, and the expected type.
//!
//! Input: the text or its tree, and the decoder's error. Output: a `ConfigError` in one line. Pure.
//! Bounds: at most `TRIED_MAX` fields of one level are tried to find the invalid one.

use serde_json::Value;

use super::{ConfigError, ConfigFile};

/// Fields of one level, or items of a list, that are tried.
const TRIED_MAX: usize = 100;
/// The decoder's advice to programmers, which is cut off.
const TO_PROGRAMMERS: &str = ", set DuplicateKeyPolicy";
/// The decoders' names of types, and YAML's.
const TYPES: [(&str, &str); 5] = [
    ("expected i32", "expected a whole number"),
    ("expected i64", "expected a whole number"),
    ("expected u32", "expected a whole number"),
    ("expected f64", "expected a number"),
    ("expected a sequence", "expected a list"),
];

/// The error of text that is not YAML.
pub(super) fn of_text(error: &serde_saphyr::Error) -> ConfigError {
    let message = error.without_snippet().to_string();
    let message = message.lines().next().unwrap_or_default();
    let message = message.split(TO_PROGRAMMERS).next().unwrap_or(message);
    let message = message.strip_prefix("error: ").unwrap_or(message);
    match error.location() {
        Some(at) if !message.contains("line ") => {
            ConfigError::Syntax(format!("line {}: {message}", at.line()))
        }
        _ => ConfigError::Syntax(message.to_owned()),
    }
}

/// The error of a tree that is not a configuration.
pub(super) fn of_tree(tree: &Value, error: &serde_json::Error) -> ConfigError {
    let message = error.to_string();
    if tree.is_null() {
        return ConfigError::Syntax("the file is empty: write a configuration".to_owned());
    }
    let problem = in_words(&message);
    match culprit(tree, &message) {
        field if field.is_empty() => ConfigError::Syntax(problem),
        field => ConfigError::Field { field, problem },
    }
}

fn in_words(message: &str) -> String {
    if let Some((before, _)) = message.split_once("expected struct ") {
        return format!("{before}expected fields");
    }
    let known = TYPES.iter().find(|(theirs, _)| message.contains(theirs));
    known.map_or_else(|| message.to_owned(), |(theirs, ours)| message.replace(theirs, ours))
}

/// Returns the path of a field that causes the error, such as `profiles[0].plugins`: without it the
/// error is another one.
fn culprit(tree: &Value, message: &str) -> String {
    let (mut pointer, mut path) = (String::new(), String::new());
    while let Some((next, shown)) = children(tree, &pointer).into_iter().find(|(name, _)| {
        let mut without = tree.clone();
        remove(&mut without, &pointer, name);
        match serde_json::from_value::<ConfigFile>(without) {
            Ok(_) => true,
            Err(other) => {
                let other = other.to_string();
                other != message && !other.starts_with("missing field")
            }
        }
    }) {
        pointer = format!("{pointer}/{}", next.replace('~', "~0").replace('/', "~1"));
        path.push_str(&shown);
    }
    path.trim_start_matches('.').to_owned()
}

/// Returns the names of the children, and their form in a path.
fn children(tree: &Value, pointer: &str) -> Vec<(String, String)> {
    match tree.pointer(pointer) {
        Some(Value::Object(fields)) => {
            let names = fields.keys().take(TRIED_MAX);
            names.map(|name| (name.clone(), format!(".{name}"))).collect()
        }
        Some(Value::Array(items)) => {
            let numbers = 0..items.len().min(TRIED_MAX);
            numbers.map(|at| (at.to_string(), format!("[{at}]"))).collect()
        }
        _ => Vec::new(),
    }
}

fn remove(tree: &mut Value, pointer: &str, name: &str) {
    match tree.pointer_mut(pointer) {
        Some(Value::Object(fields)) => drop(fields.remove(name)),
        Some(Value::Array(items)) => {
            if let Some(at) = name.parse().ok().filter(|at| *at < items.len()) {
                items.remove(at);
            }
        }
        _ => {}
    }
}
