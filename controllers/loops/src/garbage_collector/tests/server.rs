//! An API server in memory that has what the collector needs: preconditions, finalizers of
//! deletions, and two forms of patches.

use std::collections::{BTreeMap, VecDeque};

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{
    Answer, ApiError, DeleteOptions, PatchForm, Propagation, Request, Target,
};
use serde_json::{Value, json};

use super::super::graph::{FOREGROUND, ORPHAN};
use super::{foos, kind_of, old_foos};

/// A change that watches have yet to show.
pub(super) enum Happening {
    Set(Value),
    Gone(Value),
}

/// The objects, by path.
#[derive(Default)]
pub(super) struct GarbageServer {
    pub(super) objects: BTreeMap<String, Value>,
    version: u64,
    pub(super) unseen: BTreeMap<Kind, VecDeque<Happening>>,
    /// UIDs of objects that the collector asked to delete.
    pub(super) deleted: Vec<String>,
    /// A deletion that would break an owner's promise.
    pub(super) wrong: Vec<String>,
}

fn error(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.into(), message: reason.into(), ..ApiError::default() }
}

/// Objects of two versions of a kind are the same.
fn stored(kind: Kind) -> Kind {
    if kind == old_foos() { foos() } else { kind }
}

fn path_of(object: &Value) -> String {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    format!("{}/{name}", kind_of(object).path(namespace))
}

impl GarbageServer {
    pub(super) fn put(&mut self, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path_of(&object), object.clone());
        let unseen = self.unseen.entry(kind_of(&object)).or_default();
        unseen.push_back(Happening::Set(object.clone()));
        object
    }

    fn take(&mut self, path: &str) {
        let mut object = self.objects.remove(path).expect("it was there");
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let unseen = self.unseen.entry(kind_of(&object)).or_default();
        unseen.push_back(Happening::Gone(object));
    }

    fn find(&self, target: &Target) -> Result<(String, Value), ApiError> {
        let kind = stored(target.kind);
        let path = Target::object(kind, target.key.clone()).path();
        let object = self.objects.get(&path).cloned().ok_or_else(|| error(404, "NotFound"))?;
        Ok((path, object))
    }

    /// Answers a request of the collector.
    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read { target, .. } => Ok(self.find(target)?.1),
            Request::Delete { target, options } => {
                let before = self.find(target);
                let answer = self.delete(target, options);
                if let (Ok((path, object)), Ok(_)) = (before, &answer) {
                    self.note_deletion(path, &object);
                }
                answer
            }
            Request::Patch { target, form, body } => self.patch(target, form, body),
            other => panic!("{other:?}"),
        }
    }

    /// The owner of a reference, if it is where the reference says.
    pub(super) fn owner(&self, namespace: &Value, reference: &Value) -> Option<&Value> {
        let is_it = |object: &&Value| {
            let metadata = &object["metadata"];
            let is_near = metadata["namespace"].is_null() || metadata["namespace"] == *namespace;
            let group = |value: &Value| {
                let text = value.as_str().unwrap_or_default();
                text.split_once('/').map_or("", |(group, _)| group).to_owned()
            };
            metadata["uid"] == reference["uid"]
                && metadata["name"] == reference["name"]
                && object["kind"] == reference["kind"]
                && group(&object["apiVersion"]) == group(&reference["apiVersion"])
                && is_near
        };
        self.objects.values().find(is_it)
    }

    /// The object has an owner that neither is absent nor waits for it.
    pub(super) fn has_solid_owner(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let references = metadata["ownerReferences"].as_array().into_iter().flatten();
        let mut owners =
            references.filter_map(|reference| self.owner(&metadata["namespace"], reference));
        owners.any(|owner| {
            let finalizers = owner["metadata"]["finalizers"].as_array().into_iter().flatten();
            let waits = finalizers.into_iter().any(|known| known == FOREGROUND);
            !(waits && owner["metadata"]["deletionTimestamp"].is_string())
        })
    }

    fn note_deletion(&mut self, path: String, object: &Value) {
        self.deleted.push(object["metadata"]["uid"].as_str().unwrap_or_default().to_owned());
        let has_owners = object["metadata"]["ownerReferences"].is_array();
        if !has_owners || self.has_solid_owner(object) {
            self.wrong.push(path);
        }
    }

    pub(super) fn delete(&mut self, target: &Target, options: &DeleteOptions) -> Answer {
        let (path, mut object) = self.find(target)?;
        let metadata = &object["metadata"];
        let differs = |wanted: &Option<String>, field: &str| {
            wanted.as_ref().is_some_and(|wanted| metadata[field] != wanted.as_str())
        };
        if differs(&options.uid, "uid") || differs(&options.version, "resourceVersion") {
            return Err(error(409, "Conflict"));
        }
        let known = metadata["finalizers"].as_array().into_iter().flatten();
        let known = known.filter_map(Value::as_str);
        let mut finalizers: Vec<&str> = match options.propagation {
            Some(_) => known.filter(|name| ![FOREGROUND, ORPHAN].contains(name)).collect(),
            None => known.collect(),
        };
        match options.propagation {
            Some(Propagation::Foreground) => finalizers.push(FOREGROUND),
            Some(Propagation::Orphan) => finalizers.push(ORPHAN),
            _ => {}
        }
        if finalizers.is_empty() {
            self.take(&path);
            return Ok(object);
        }
        let finalizers = json!(finalizers);
        object["metadata"]["finalizers"] = finalizers;
        object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        Ok(self.put(object))
    }

    fn patch(&mut self, target: &Target, form: &PatchForm, body: &Value) -> Answer {
        let (path, mut object) = self.find(target)?;
        if *form == PatchForm::Strategic && stored(target.kind) == foos() {
            return Err(error(415, "UnsupportedMediaType"));
        }
        let wanted = &body["metadata"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != object["metadata"][field] {
                return Err(error(409, "Conflict"));
            }
        }
        for field in ["finalizers", "ownerReferences"] {
            let Some(new) = wanted.get(field) else { continue };
            let old = &object["metadata"][field];
            let new = match form {
                PatchForm::Strategic => merged(old, new),
                _ => new.clone(),
            };
            object["metadata"][field] = new;
        }
        let finalizers = object["metadata"]["finalizers"].as_array();
        let is_final = finalizers.is_none_or(Vec::is_empty);
        if object["metadata"]["deletionTimestamp"].is_string() && is_final {
            self.take(&path);
            return Ok(object);
        }
        Ok(self.put(object))
    }
}

/// A list of references, merged by UID.
fn merged(old: &Value, patch: &Value) -> Value {
    let mut list = old.as_array().cloned().unwrap_or_default();
    for item in patch.as_array().into_iter().flatten() {
        if item["$patch"] == "delete" {
            list.retain(|known| known["uid"] != item["uid"]);
        } else if let Some(known) = list.iter_mut().find(|known| known["uid"] == item["uid"]) {
            *known = item.clone();
        } else {
            list.push(item.clone());
        }
    }
    if list.is_empty() { Value::Null } else { list.into() }
}
