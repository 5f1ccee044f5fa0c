//! Values and texts without what differs from run to run: UIDs, versions, times, certificates and
//! the ends of names that the server completed.

use serde_json::{Map, Value};

/// Fields with random values.
const CHANCE: &[&str] = &[
    "apiVersion",
    "batch.kubernetes.io/controller-uid",
    "ca.crt",
    "completionTime",
    "controller-uid",
    "creationTimestamp",
    "kind",
    "lastProbeTime",
    "lastSuccessfulTime",
    "lastTransitionTime",
    "lastUpdateTime",
    "managedFields",
    "resourceVersion",
    "startTime",
    "token",
    "uid",
];

/// Letters at the end of a name that the server completed.
const SUFFIX: usize = 5;

/// The start of a name that the server completed.
pub(super) fn family(name: &str) -> String {
    name.rsplit_once('-').map_or(name, |(prefix, _)| prefix).to_owned()
}

/// The starts of the names that the server completed, each with its dash.
#[derive(Default)]
pub(super) struct Families(Vec<String>);

impl Families {
    pub(super) fn new(prefixes: impl Iterator<Item = String>) -> Self {
        let mut all: Vec<_> = prefixes.filter(|prefix| !prefix.is_empty()).collect();
        all.sort_unstable();
        all.dedup();
        Self(all)
    }

    /// The text with `*` for the ends of completed names.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for prefix in &self.0 {
            let mut done = String::new();
            let mut rest = text.as_str();
            while let Some(at) = rest.find(prefix.as_str()) {
                let (before, found) = rest.split_at(at + prefix.len());
                done += before;
                let end: String = found.chars().take(SUFFIX).collect();
                let after = found.get(end.len()..).unwrap_or_default();
                let is_end = end.len() == SUFFIX
                    && end.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
                    && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
                if is_end {
                    done.push('*');
                }
                rest = if is_end { after } else { found };
            }
            text = done + rest;
        }
        text
    }

    /// The value without chance; conditions are sorted by their type.
    pub(super) fn value(&self, value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let kept = fields.iter().filter(|(key, _)| !CHANCE.contains(&key.as_str()));
                let kept = kept.map(|(key, value)| (key.clone(), self.field(key, value)));
                kept.collect::<Map<_, _>>().into()
            }
            Value::Array(items) => {
                let mut items: Vec<_> = items.iter().map(|item| self.value(item)).collect();
                items.sort_by_key(|item| item["type"].as_str().map(str::to_owned));
                items.into()
            }
            Value::String(text) => self.text(text).into(),
            other => other.clone(),
        }
    }

    fn field(&self, key: &str, value: &Value) -> Value {
        match (key, value) {
            // UIDs of pods: how many there are is no chance.
            ("uncountedTerminatedPods", Value::Object(lists)) => {
                let count = |list: &Value| Value::from(list.as_array().map_or(0, Vec::len));
                let counts = lists.iter().map(|(key, list)| (key.clone(), count(list)));
                counts.collect::<Map<_, _>>().into()
            }
            _ => self.value(value),
        }
    }
}
