//! Answers to writes that are not made: a copy of the object with the write applied.
//!
//! Input: a request, the tables. Output: an answer, or `None` for what the API server has to
//! answer. Versions of such answers are no numbers, so nothing waits for them. Reads of objects
//! that a table has are answered from it: the frame lives a little earlier than the API server.
//! Pure.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request, Target};
use pintle_controllers_core::frame::is_write;
use pintle_controllers_core::meta::Meta;
use pintle_controllers_core::tables::Tables;
use serde_json::{Map, Value, json};

/// The version of objects that were not written.
const VERSION: &str = "shadow";

/// Answers writes.
#[derive(Debug, Default)]
pub struct Oracle {
    created: u64,
}

impl Oracle {
    /// The answer; `None` when the API server has to answer.
    pub fn answer(&mut self, request: &Request, tables: &Tables) -> Option<Answer> {
        match request {
            Request::Create { kind, namespace, body, .. } => {
                Some(self.created(*kind, namespace, body, tables))
            }
            Request::Replace { body, .. } => Some(Ok(with_version(body.clone()))),
            Request::Patch { target, form, body } => {
                let object = object(target, tables);
                let mut object = object.unwrap_or_else(|| json!({"metadata": {}}));
                if *form == PatchForm::Merge {
                    merge(&mut object, body);
                }
                Some(Ok(with_version(object)))
            }
            Request::Delete { .. } | Request::DeleteCollection { .. } => {
                Some(Ok(json!({"kind": "Status", "status": "Success"})))
            }
            Request::Read { target, only_metadata: true } => {
                tables.meta(target.kind, &target.key).map(|meta| Ok(metadata(target.kind, meta)))
            }
            Request::Read { target, .. } => tables.value(target.kind, &target.key).map(Ok),
            Request::List { .. } | Request::Get { .. } => None,
        }
    }

    /// The answer to requests that write; `None` when none of them does.
    pub fn answer_writes(&mut self, requests: &[Request], tables: &Tables) -> Option<Vec<Answer>> {
        if !requests.iter().any(is_write) {
            return None;
        }
        let unread = || {
            let message = "a read beside writes is not answered".to_owned();
            Err(ApiError { code: 503, message, ..ApiError::default() })
        };
        let answers = requests.iter().map(|request| self.answer(request, tables));
        Some(answers.map(|answer| answer.unwrap_or_else(unread)).collect())
    }

    fn created(&mut self, kind: Kind, namespace: &str, body: &Value, tables: &Tables) -> Answer {
        self.created += 1;
        let mut object = with_version(body.clone());
        let meta = &mut object["metadata"];
        if meta["name"].is_null() {
            let start = meta["generateName"].as_str().unwrap_or_default().to_owned();
            meta["name"] = json!(format!("{start}shadow{}", self.created));
        }
        let key = ObjectKey::new(namespace, meta["name"].as_str().unwrap_or_default());
        if tables.meta(kind, &key).is_some() {
            return Err(ApiError {
                code: 409,
                reason: "AlreadyExists".to_owned(),
                message: format!("{kind:?} {:?} already exists", key.name()),
                ..ApiError::default()
            });
        }
        meta["uid"] = json!(format!("shadow-{}", self.created));
        meta["namespace"] = json!(namespace);
        Ok(object)
    }
}

fn with_version(mut object: Value) -> Value {
    object["metadata"]["resourceVersion"] = json!(VERSION);
    object
}

/// The object as tables have it; of a kind that is not kept whole, its metadata.
fn object(target: &Target, tables: &Tables) -> Option<Value> {
    let whole = tables.value(target.kind, &target.key);
    whole.or_else(|| {
        let meta = tables.meta(target.kind, &target.key)?;
        Some(metadata(target.kind, meta))
    })
}

fn metadata(kind: Kind, meta: &Meta) -> Value {
    let owners = meta.owner_references.iter().map(|owner| {
        json!({"apiVersion": &*owner.api_version, "kind": &*owner.kind, "name": &*owner.name,
            "uid": owner.uid.as_str(), "controller": owner.controller,
            "blockOwnerDeletion": owner.block_owner_deletion})
    });
    let finalizers = meta.finalizers.iter().map(|finalizer| &**finalizer);
    let mut value = json!({
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "metadata": {
            "name": &*meta.name,
            "namespace": &*meta.namespace,
            "uid": meta.uid.as_str(),
            "resourceVersion": meta.version.to_string(),
            "ownerReferences": owners.collect::<Vec<_>>(),
            "finalizers": finalizers.collect::<Vec<_>>(),
        },
    });
    if let Some(at) = meta.deletion_timestamp {
        value["metadata"]["deletionTimestamp"] = json!(at.to_string());
    }
    value
}

/// Applies a merge patch.
// RFC 7386
fn merge(object: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else { return *object = patch.clone() };
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    for (name, value) in fields {
        match value {
            Value::Null => {
                object.as_object_mut().map(|fields| fields.remove(name));
            }
            value => merge(&mut object[name.as_str()], value),
        }
    }
}
