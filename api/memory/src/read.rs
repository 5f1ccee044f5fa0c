//! Reads and lists: whole objects or only their metadata, by label selector.
//!
//! Input: a target or a kind and a selector's text. Output: objects and lists as the server encodes
//! them, lists with the version of everything. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, ApiError, Target};
use serde_json::{Value, json};

use crate::change::daemon_set;
use crate::server::Server;
use crate::{errors, meta, rules};

const METADATA_VERSION: &str = "meta.k8s.io/v1";

impl Server {
    /// The stored object, or the error that it is not there.
    pub(crate) fn existing(&self, target: &Target) -> Result<&Arc<Value>, ApiError> {
        let object = self.store.object(target.kind, &target.key);
        object.ok_or_else(|| errors::not_found(target.kind, target.key.name()))
    }

    pub(crate) fn read(&self, target: &Target, only_metadata: bool) -> Answer {
        if target.sub == "scale" {
            return self.read_scale(target);
        }
        let object = self.existing(target)?;
        Ok(if only_metadata { metadata_of(target.kind, object) } else { Value::clone(object) })
    }

    pub(crate) fn list(
        &self,
        kind: Kind,
        namespace: &str,
        labels: &str,
        only_metadata: bool,
    ) -> Answer {
        let selector = parse(labels).ok_or_else(|| {
            errors::bad_request(&format!("unable to parse requirement: {labels:?}"))
        })?;
        let is_custom = rules::of(kind).is_custom;
        let objects = self.store.objects(kind, namespace).map(|(_, object)| object);
        let selected = objects.filter(|object| selects(&selector, &meta::labels(object)));
        let items: Vec<Value> = selected
            .map(|object| match (only_metadata, is_custom) {
                (true, _) => metadata_of(kind, object),
                (false, true) => Value::clone(object),
                (false, false) => without_kind(object),
            })
            .collect();
        let (api_version, name) = match only_metadata {
            true => (METADATA_VERSION.to_owned(), "PartialObjectMetadataList".to_owned()),
            false => (kind.api_version(), format!("{}List", kind.kind)),
        };
        let version = self.store.version().to_string();
        // Go's nil, which only this list has.
        let items = if only_metadata && items.is_empty() { Value::Null } else { items.into() };
        Ok(json!({"kind": name, "apiVersion": api_version, "items": items,
            "metadata": {"resourceVersion": version}}))
    }
}

/// An object's metadata alone, as reads and watches of metadata have it.
pub fn metadata_of(kind: Kind, object: &Value) -> Value {
    let mut answer = json!({"kind": "PartialObjectMetadata", "apiVersion": METADATA_VERSION,
        "metadata": object["metadata"]});
    daemon_set::hide_count(kind, &mut answer);
    answer
}

/// Items of typed lists do not repeat their kind.
fn without_kind(object: &Value) -> Value {
    let fields = object.as_object().into_iter().flatten();
    let rest = fields.filter(|(name, _)| *name != "kind" && *name != "apiVersion");
    rest.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// One requirement of a selector's text.
enum Requirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Absent(String),
}

fn selects(selector: &[Requirement], labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|requirement| match requirement {
        Requirement::In(key, values) => labels.get(key).is_some_and(|is| values.contains(is)),
        Requirement::NotIn(key, values) => labels.get(key).is_none_or(|is| !values.contains(is)),
        Requirement::Exists(key) => labels.contains_key(key),
        Requirement::Absent(key) => !labels.contains_key(key),
    })
}

/// Reads a selector such as `a=b,c in (d, e),!f`.
// k8s: staging/src/k8s.io/apimachinery/pkg/labels/selector.go Parse
fn parse(text: &str) -> Option<Vec<Requirement>> {
    let mut parts = vec![String::new()];
    let mut is_inside = false;
    for letter in text.chars() {
        is_inside = (is_inside || letter == '(') && letter != ')';
        match letter {
            ',' if !is_inside => parts.push(String::new()),
            letter => parts.last_mut()?.push(letter),
        }
    }
    let parts = parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty());
    parts.map(parse_one).collect()
}

fn parse_one(text: &str) -> Option<Requirement> {
    let one = |text: &str| vec![text.trim_start_matches('=').trim().to_owned()];
    if let Some(key) = text.strip_prefix('!') {
        return Some(Requirement::Absent(key.trim().to_owned()));
    }
    if let Some((key, value)) = text.split_once("!=") {
        return Some(Requirement::NotIn(key.trim().to_owned(), one(value)));
    }
    if let Some((key, value)) = text.split_once('=') {
        return Some(Requirement::In(key.trim().to_owned(), one(value)));
    }
    let Some((head, values)) = text.split_once('(') else {
        let is_key = !text.contains(char::is_whitespace);
        return is_key.then(|| Requirement::Exists(text.to_owned()));
    };
    let values = values.trim_end().strip_suffix(')')?;
    let values = values.split(',').map(|value| value.trim().to_owned()).collect();
    let (key, operator) = head.trim().split_once(char::is_whitespace)?;
    match operator.trim() {
        "in" => Some(Requirement::In(key.to_owned(), values)),
        "notin" => Some(Requirement::NotIn(key.to_owned(), values)),
        _ => None,
    }
}
