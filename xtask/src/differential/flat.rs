//! Objects as lines: a path and a value each, so that two of them can be compared and read.
//!
//! Pure. Elements of a list are called by what identifies them (`containers[main].image`), and the
//! order of a list is a line of its own, `containers[order]`. It is compared for the elements that
//! both sides have, so that one more element is one difference.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

/// Values by aspect and path.
pub(super) type Lines = BTreeMap<(String, String), String>;

/// Fields that identify an element of a list; the first present one counts.
const KEYS: [&str; 8] =
    ["name", "type", "key", "container_path", "mountPath", "hostname", "resource", "topologyKey"];

/// Stands between the names of a list's order: no message has it.
const THEN: &str = " → ";
/// How the path of an order ends.
const ORDER: &str = "[order]";

/// A line that one side lacks or has with another value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    pub(super) aspect: String,
    pub(super) path: String,
    /// With the kubelet.
    pub(super) theirs: Option<String>,
    /// With our agent.
    pub(super) ours: Option<String>,
}

/// Adds the value's lines to `lines`.
pub(super) fn flatten(lines: &mut Lines, aspect: &str, value: &Value) {
    walk(value, String::new(), &mut |path, text| {
        lines.insert((aspect.to_owned(), path), text);
    });
}

/// The value's lines without an aspect.
pub(super) fn paths(value: &Value) -> BTreeMap<String, String> {
    let mut paths = BTreeMap::new();
    walk(value, String::new(), &mut |path, text| {
        paths.insert(path, text);
    });
    paths
}

/// A value that has no parts, as text.
pub(super) fn show(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn walk(value: &Value, path: String, put: &mut impl FnMut(String, String)) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(value, path, put);
            }
        }
        Value::Array(elements) if is_words(elements) => {
            let words: Vec<String> = elements.iter().map(show).collect();
            put(format!("{path}[]"), words.join(" | "));
        }
        Value::Array(elements) if !elements.is_empty() => {
            let names = names(elements);
            if elements.len() > 1 {
                put(format!("{path}{ORDER}"), names.join(THEN));
            }
            for (name, element) in names.iter().zip(elements) {
                walk(element, format!("{path}[{name}]"), put);
            }
        }
        leaf => put(path, show(leaf)),
    }
}

/// Texts are one line, whatever their number.
fn is_words(elements: &[Value]) -> bool {
    !elements.is_empty() && elements.iter().all(Value::is_string)
}

/// Names of the elements; a number tells two of one name apart.
fn names(elements: &[Value]) -> Vec<String> {
    let key = KEYS.iter().find(|k| elements.iter().all(|e| e[**k].is_string()));
    let mut taken = BTreeSet::new();
    let name = |(at, element): (usize, &Value)| {
        let mut name = match key {
            Some(key) => show(&element[*key]),
            None => at.to_string(),
        };
        while !taken.insert(name.clone()) {
            name += "'";
        }
        name
    };
    elements.iter().enumerate().map(name).collect()
}

/// Differences, in order. An element that one side lacks as a whole is one difference.
pub(super) fn differences(theirs: &Lines, ours: &Lines) -> Vec<Difference> {
    let (their_groups, our_groups) = (groups(theirs), groups(ours));
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    let mut found: Vec<Difference> = Vec::new();
    for key in keys.into_iter().filter(|k| !is_same(k, theirs.get(k), ours.get(k))) {
        let (aspect, path) = key.clone();
        let at = (key.0.as_str(), group(&key.1));
        let difference = match (their_groups.get(&at), our_groups.get(&at)) {
            (Some(n), None) if *n > 1 => absent(at, Some(*n), None),
            (None, Some(n)) if *n > 1 => absent(at, None, Some(*n)),
            _ => {
                let (theirs, ours) = (theirs.get(key).cloned(), ours.get(key).cloned());
                Difference { aspect, path, theirs, ours }
            }
        };
        if found.last() != Some(&difference) {
            found.push(difference);
        }
    }
    found
}

/// Returns whether both sides have the same value; an order is compared for the elements of both.
fn is_same(key: &(String, String), theirs: Option<&String>, ours: Option<&String>) -> bool {
    if !key.1.ends_with(ORDER) {
        return theirs == ours;
    }
    let names = |side: Option<&'_ String>| -> Vec<String> {
        side.into_iter().flat_map(|s| s.split(THEN)).map(str::to_owned).collect()
    };
    let (theirs, ours) = (names(theirs), names(ours));
    let theirs_in_both = theirs.iter().filter(|name| ours.contains(name));
    theirs_in_both.eq(ours.iter().filter(|name| theirs.contains(name)))
}

fn absent(at: (&str, &str), theirs: Option<usize>, ours: Option<usize>) -> Difference {
    let lines = |n: usize| format!("{n} lines");
    let (theirs, ours) = (theirs.map(lines), ours.map(lines));
    Difference { aspect: at.0.to_owned(), path: at.1.to_owned(), theirs, ours }
}

/// The beginning of a path that names one element: up to the first `]` or `.`.
fn group(path: &str) -> &str {
    match path.split_once(']') {
        Some((name, _)) if path.starts_with('[') => &path[..=name.len()],
        _ => path.split('.').next().unwrap_or(path),
    }
}

/// How many lines each element has.
fn groups(lines: &Lines) -> BTreeMap<(&str, &str), usize> {
    let mut groups = BTreeMap::new();
    for (aspect, path) in lines.keys() {
        *groups.entry((aspect.as_str(), group(path))).or_default() += 1;
    }
    groups
}

/// Every compared aspect.
pub(super) fn aspects<'a>(theirs: &'a Lines, ours: &'a Lines) -> BTreeSet<&'a str> {
    theirs.keys().chain(ours.keys()).map(|(aspect, _)| aspect.as_str()).collect()
}

/// All lines as a file.
pub(super) fn text(lines: &Lines) -> String {
    let mut text = String::new();
    for ((aspect, path), value) in lines {
        let _ = writeln!(text, "{aspect}  {path}: {value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_are_called_by_their_names_and_their_order_is_a_line() {
        let value = json!({"c": [{"name": "b", "n": 1}, {"name": "a"}], "e": [], "s": ["x", "y"]});
        let paths = paths(&value);
        assert_eq!(paths["c[order]"], "b → a");
        assert_eq!(paths["c[b].n"], "1");
        assert_eq!(paths["e"], "[]");
        assert_eq!(paths["s[]"], "x | y");
    }

    #[test]
    fn two_elements_of_one_name_are_both_seen() {
        let value = json!([{"name": "x", "n": 1}, {"name": "x", "n": 2}]);
        let paths = paths(&value);
        assert_eq!((paths["[x].n"].as_str(), paths["[x'].n"].as_str()), ("1", "2"));
    }

    #[test]
    fn an_element_that_one_side_lacks_is_one_difference() {
        let (mut a, mut b) = (Lines::new(), Lines::new());
        flatten(&mut a, "cri", &json!({"main#0": {"x": 1, "y": 1}, "side#0": {"x": 1}}));
        flatten(&mut b, "cri", &json!({"side#0": {"x": 1}}));
        let found = differences(&a, &b);
        let [one] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((one.path.as_str(), one.theirs.as_deref()), ("main#0", Some("2 lines")));
    }

    #[test]
    fn order_of_elements_common_to_both_sides_is_compared() {
        for (theirs, ours, is_same) in [
            (json!(["a", "b", "c"]), json!(["a", "c"]), true),
            (json!(["a", "b"]), json!(["b", "a"]), false),
            (json!(["a", "b"]), json!(["b", "x", "a"]), false),
            (json!(["a", "b"]), json!(["b"]), true),
        ] {
            let named = |names: &Value| -> Value {
                let names = names.as_array().into_iter().flatten();
                names.map(|name| json!({"name": name})).collect()
            };
            let (mut a, mut b) = (Lines::new(), Lines::new());
            flatten(&mut a, "events", &named(&theirs));
            flatten(&mut b, "events", &named(&ours));
            let found = differences(&a, &b);
            let is_about_order = |d: &Difference| d.path == "[order]";
            assert_eq!(!found.iter().any(is_about_order), is_same, "{theirs} {ours} {found:?}");
        }
    }

    #[test]
    fn field_missing_on_one_side_is_a_difference() {
        let (mut a, mut b) = (Lines::new(), Lines::new());
        flatten(&mut a, "pod", &json!({"x": 1, "y": 1}));
        flatten(&mut b, "pod", &json!({"y": 2, "z": 3}));
        let found = differences(&a, &b);
        let found: Vec<_> = found
            .iter()
            .map(|d| (d.path.as_str(), d.theirs.as_deref(), d.ours.as_deref()))
            .collect();
        let expected =
            [("x", Some("1"), None), ("y", Some("1"), Some("2")), ("z", None, Some("3"))];
        assert_eq!(found, expected);
    }
}
