//! One of the two servers, and its answers so far.
//!
//! Input: steps. Output: requests with the versions and UIDs of this server, and its answers in a
//! form in which those of two servers can be compared. Pure.

use std::collections::{BTreeMap, HashMap};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, DeleteOptions, Request, Subresource, Target};
use serde_json::{Value, json};

use super::bodies;
use super::generate::{Act, Edit, Stated, Step};

const WRONG_UID: &str = "99999999-9999-4999-8999-999999999999";
const WRONG_VERSION: &str = "999999999";

/// A server's answers to one sequence.
#[derive(Default)]
pub struct Side {
    /// States of objects, oldest first.
    seen: HashMap<(Kind, String), Vec<Value>>,
    uids: BTreeMap<String, usize>,
    versions: BTreeMap<String, usize>,
    /// Names that the server generated.
    generated: BTreeMap<String, usize>,
}

impl Side {
    /// The request that a step is for this server.
    pub fn request(&self, step: &Step, namespace: &str) -> Request {
        let (kind, name) = (step.kind, &step.name);
        let namespace = if kind.is_namespaced { namespace } else { "" }.to_owned();
        let at = |sub| Target { kind, key: ObjectKey::new(&namespace, name), sub };
        match &step.act {
            Act::Create { body } => {
                Request::Create { kind, namespace, below: None, body: body.clone() }
            }
            Act::Replace { sub, edits, version, uid } => {
                let mut body = self.base(step, sub);
                // Field managers of an older state would come back with it.
                bodies::set(&mut body, &no_managers(), false);
                edits.iter().for_each(|edit| bodies::set(&mut body, edit, false));
                self.state(step, &mut body, "resourceVersion", *version, WRONG_VERSION);
                self.state(step, &mut body, "uid", *uid, WRONG_UID);
                Request::Replace { target: at(sub), body }
            }
            Act::Patch { sub, form, body, version } => {
                let mut body = body.clone();
                if body.is_object() && *version != Stated::Nothing {
                    self.state(step, &mut body, "resourceVersion", *version, WRONG_VERSION);
                }
                Request::Patch { target: at(sub), form: form.clone(), body }
            }
            Act::Delete { propagation, grace, uid, version } => {
                let options = DeleteOptions {
                    uid: self.stated(step, "uid", *uid, WRONG_UID),
                    version: self.stated(step, "resourceVersion", *version, WRONG_VERSION),
                    propagation: *propagation,
                    grace_seconds: *grace,
                };
                Request::Delete { target: at(""), options }
            }
            Act::DeleteCollection { propagation } => {
                Request::DeleteCollection { kind, namespace, propagation: *propagation }
            }
            Act::Read { sub, only_metadata } => {
                let only_metadata = *only_metadata && sub.is_empty();
                Request::Read { target: at(sub), only_metadata }
            }
            Act::List { labels, only_metadata } => Request::List {
                kind,
                namespace,
                labels: (*labels).to_owned(),
                only_metadata: *only_metadata,
            },
            Act::Below { sub, body } => {
                let below = Some(Subresource { name: name.clone(), sub });
                Request::Create { kind, namespace, below, body: body.clone() }
            }
        }
    }

    /// The newest state that is known, or a bare object.
    fn base(&self, step: &Step, sub: &str) -> Value {
        if sub == "scale" {
            return json!({"kind": "Scale", "apiVersion": "autoscaling/v1",
                "metadata": {"name": step.name}, "spec": {}});
        }
        let newest = self.states(step).last().cloned();
        newest.unwrap_or_else(|| {
            json!({"apiVersion": step.kind.api_version(), "kind": step.kind.kind,
                "metadata": {"name": step.name}})
        })
    }

    fn states(&self, step: &Step) -> &[Value] {
        self.seen.get(&(step.kind, step.name.clone())).map_or(&[], Vec::as_slice)
    }

    fn state(&self, step: &Step, body: &mut Value, field: &str, stated: Stated, wrong: &str) {
        let value = self.stated(step, field, stated, wrong);
        body["metadata"][field] = value.map_or(Value::Null, Value::from);
    }

    fn stated(&self, step: &Step, field: &str, stated: Stated, wrong: &str) -> Option<String> {
        let states = self.states(step);
        let state = match stated {
            Stated::Nothing => return None,
            Stated::Wrong => None,
            Stated::Newest => states.last(),
            Stated::Oldest => states.first(),
        };
        let value = state.and_then(|state| state["metadata"][field].as_str());
        Some(value.unwrap_or(wrong).to_owned())
    }

    /// Takes note of the events of a watch, and brings them into the form that is compared.
    pub fn note_events(&mut self, events: &[(String, Value)]) -> Value {
        let mut list = Vec::new();
        for (change, object) in events {
            self.name(object);
            let mut object = object.clone();
            self.normalise(&mut object);
            list.push(json!([change, object]));
        }
        list.into()
    }

    /// Takes note of an answer, and brings it into the form that is compared.
    pub fn note(&mut self, step: &Step, answer: &Answer) -> Value {
        match answer {
            Ok(value) => {
                self.remember(step, value);
                let mut value = value.clone();
                if value["kind"].as_str().is_some_and(|kind| kind.ends_with("List")) {
                    value["metadata"] = Value::Null;
                }
                self.normalise(&mut value);
                // Generated names sort at random.
                if let Some(items) = value["items"].as_array_mut() {
                    items.sort_by_key(Value::to_string);
                }
                value
            }
            Err(error) => {
                // The following lines are a diff for people.
                let message = error.message.lines().next().unwrap_or_default();
                let message = self.words(message);
                // Metadata is validated twice for most kinds, which says everything twice.
                let mut causes = error.causes.clone();
                causes.dedup();
                json!({"code": error.code, "reason": error.reason, "message": message,
                    "causes": causes, "retry": error.retry_after.map(|d| d.as_secs())})
            }
        }
    }

    fn remember(&mut self, step: &Step, value: &Value) {
        let is_list = value["kind"].as_str().is_some_and(|kind| kind.ends_with("List"));
        let is_object = value["kind"] == step.kind.kind;
        let named = value["metadata"]["name"] == *step.name;
        if is_object && named {
            self.seen.entry((step.kind, step.name.clone())).or_default().push(value.clone());
        }
        for item in value["items"].as_array().into_iter().flatten() {
            self.name(item);
        }
        if !is_list {
            self.name(value);
        }
    }

    /// Takes note of an object that was there before the first step.
    pub fn know(&mut self, object: &Value) {
        self.name(object);
    }

    /// Gives UIDs and versions numbers in the order in which they appear.
    fn name(&mut self, object: &Value) {
        for (field, names) in [("uid", &mut self.uids), ("resourceVersion", &mut self.versions)] {
            if let Some(text) = object["metadata"][field].as_str() {
                let next = names.len();
                names.entry(text.to_owned()).or_insert(next);
            }
        }
        let metadata = &object["metadata"];
        if let (Some(name), Some(_)) =
            (metadata["name"].as_str(), metadata["generateName"].as_str())
        {
            let next = self.generated.len();
            self.generated.entry(name.to_owned()).or_insert(next);
        }
    }

    fn normalise(&self, value: &mut Value) {
        match value {
            Value::Object(fields) => {
                // The model keeps no field managers.
                fields.remove("managedFields");
                // Typed decoding in both servers makes null of these two.
                fields.retain(|_, value| !value.is_null());
                for (name, value) in fields.iter_mut() {
                    match (name.as_str(), value.as_str()) {
                        (
                            "creationTimestamp" | "deletionTimestamp" | "lastTransitionTime",
                            Some(_),
                        ) => {
                            *value = "TIME".into();
                        }
                        ("resourceVersion", Some(version)) => {
                            let number = self.versions.get(version);
                            *value = number.map_or("?".to_owned(), |n| format!("v{n}")).into();
                        }
                        _ => self.normalise(value),
                    }
                }
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.normalise(item)),
            Value::String(text) => *text = self.words(text),
            _ => {}
        }
    }

    /// Replaces UIDs, generated suffixes and numbers of versions.
    fn words(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (uid, number) in &self.uids {
            text = text.replace(uid, &format!("uid-{number}"));
        }
        for (name, number) in &self.generated {
            text = text.replace(name, &format!("generated-{number}"));
        }
        for (version, number) in &self.versions {
            for before in ["precondition: ", "meta: ", "precondition (", "record ("] {
                for after in [",", ")", ".", ""] {
                    let is_end = after.is_empty() && text.ends_with(&format!("{before}{version}"));
                    if !after.is_empty() || is_end {
                        let from = format!("{before}{version}{after}");
                        text = text.replace(&from, &format!("{before}v{number}{after}"));
                    }
                }
            }
        }
        for before in ["meta: ", "record ("] {
            // A version that no answer had: of an object in a collection that was deleted.
            if let Some((head, tail)) = text.split_once(before)
                && tail.starts_with(|first: char| first.is_ascii_digit())
            {
                let rest = tail.trim_start_matches(|digit: char| digit.is_ascii_digit());
                text = format!("{head}{before}v?{rest}");
            }
        }
        text
    }
}

fn no_managers() -> Edit {
    Edit { pointer: "/metadata/managedFields".to_owned(), value: Value::Null }
}

/// The namespace of a sequence, and what every namespace needs.
pub fn set_up(namespace: &str) -> [Request; 2] {
    let create = |kind: Kind, namespace: &str, name: &str| Request::Create {
        kind,
        namespace: namespace.to_owned(),
        below: None,
        body: json!({"apiVersion": "v1", "kind": kind.kind, "metadata": {"name": name}}),
    };
    [
        create(kind::NAMESPACES, "", namespace),
        // A controller would create it, but none runs.
        create(kind::SERVICE_ACCOUNTS, namespace, "default"),
    ]
}
