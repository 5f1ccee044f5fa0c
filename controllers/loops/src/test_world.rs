//! A cluster of a few objects for tests of one controller: it answers requests and feeds tables.
//!
//! Input: objects as JSON, and requests. Output: tables, answers, and the state afterwards. A
//! deleted pod that runs stays, marked as deleting, until the test removes it, as a kubelet would.

use std::collections::BTreeMap;
use std::time::Instant;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request, Target};
use pintle_controllers_core::frame::{Controller, Driven, Now, drive};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use serde_json::{Value, json};

type Refuse = Box<dyn Fn(&Request) -> Option<ApiError>>;

pub(crate) struct LoopWorld {
    objects: BTreeMap<(Kind, ObjectKey), Value>,
    version: u64,
    pub(crate) now: Timestamp,
    /// Refuses requests.
    pub(crate) refuse: Refuse,
}

impl LoopWorld {
    pub(crate) fn new() -> Self {
        let now = "2026-01-01T00:00:00Z".parse().expect("a time");
        Self { objects: BTreeMap::new(), version: 100, now, refuse: Box::new(|_| None) }
    }

    /// Adds an object; gives it a UID, a version and a namespace.
    pub(crate) fn add(&mut self, kind: Kind, mut object: Value) -> Value {
        self.version += 1;
        let metadata = &mut object["metadata"];
        if metadata["uid"].is_null() {
            metadata["uid"] = format!("uid-{}", self.version).into();
        }
        if kind.is_namespaced {
            metadata["namespace"] = "n".into();
        }
        if metadata["creationTimestamp"].is_null() {
            metadata["creationTimestamp"] = self.now.to_string().into();
        }
        metadata["resourceVersion"] = self.version.to_string().into();
        self.objects.insert((kind, key_of(kind, &object)), object.clone());
        object
    }

    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.objects.get(&(kind, key(kind, name)))
    }

    /// Changes an object.
    pub(crate) fn edit(&mut self, kind: Kind, name: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.get(kind, name).expect("the object is there").clone();
        edit(&mut object);
        self.add(kind, object);
    }

    pub(crate) fn remove(&mut self, kind: Kind, name: &str) {
        self.objects.remove(&(kind, key(kind, name))).expect("the object is there");
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<&str> {
        let of_kind = self.objects.keys().filter(|(known, _)| *known == kind);
        of_kind.map(|(_, key)| key.name()).collect()
    }

    pub(crate) fn all(&self, kind: Kind) -> impl Iterator<Item = &Value> {
        self.objects.iter().filter(move |((known, _), _)| *known == kind).map(|(_, object)| object)
    }

    /// Makes a pod run, ready since now.
    pub(crate) fn run_pod(&mut self, name: &str) {
        let now = self.now.to_string();
        self.edit(PODS, name, |pod| {
            let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": now});
            pod["status"] = json!({"phase": "Running", "conditions": [ready]});
            let required = "requiredDuringSchedulingIgnoredDuringExecution";
            let terms = &pod["spec"]["affinity"]["nodeAffinity"][required]["nodeSelectorTerms"];
            let node = terms[0]["matchFields"][0]["values"][0].clone();
            if !node.is_null() {
                pod["spec"]["nodeName"] = node;
            }
        });
    }

    /// Makes all pods run that are pending, and removes those that are being deleted. Returns
    /// whether there were any.
    pub(crate) fn run_kubelets(&mut self) -> bool {
        let before = self.version;
        let count = self.objects.len();
        let pods: Vec<_> = self.all(PODS).cloned().collect();
        for pod in pods {
            let name = pod["metadata"]["name"].as_str().expect("a name");
            if !pod["metadata"]["deletionTimestamp"].is_null() {
                self.remove(PODS, name);
            } else if pod["status"]["phase"] == "Pending" {
                self.run_pod(name);
            }
        }
        self.version != before || self.objects.len() != count
    }

    pub(crate) fn tables(&self) -> Tables {
        let mut tables = Tables::default();
        for ((kind, _), object) in &self.objects {
            let object = Decoded::typed(*kind, &object.to_string()).expect("a good object");
            tables.apply(WatchEvent::Set(object));
        }
        tables
    }

    /// Syncs a key of a controller to the end.
    pub(crate) fn sync<C>(&mut self, controller: &mut C, name: &str) -> Driven<C::Note>
    where
        C: Controller<Key = ObjectKey>,
    {
        let tables = self.tables();
        let now = Now { instant: Instant::now(), wall: self.now };
        let key = ObjectKey::new("n", name);
        let snapshot = controller.snapshot(&key, &tables, now).expect("the object is there");
        let wall = self.now;
        let mut driven = drive::<C>(&snapshot, wall, |request| self.answer(request));
        let notes = match &mut driven.outcome {
            Ok(outcome) => &mut outcome.notes,
            Err(_) => &mut driven.failed_notes,
        };
        notes.drain(..).for_each(|note| controller.remember(&key, note, now));
        driven
    }

    /// Answers a request.
    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        if let Some(error) = (self.refuse)(request) {
            return Err(error);
        }
        match request {
            Request::Create { kind, body, .. } => self.create(*kind, body.clone()),
            Request::Read { target, .. } => self.find(target),
            Request::Replace { target, body } => {
                let known = self.find(target)?;
                if known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"] {
                    return Err(error(409, "Conflict"));
                }
                let mut object = body.clone();
                if target.sub == "status" {
                    object = known;
                    object["status"] = body["status"].clone();
                }
                Ok(self.add(target.kind, object))
            }
            Request::Patch { target, form, body } => {
                let mut object = self.find(target)?;
                patch(&mut object, form, body);
                Ok(self.add(target.kind, object))
            }
            Request::Delete { target, .. } => self.delete(target),
            other => panic!("no such request is expected: {other:?}"),
        }
    }

    fn create(&mut self, kind: Kind, mut body: Value) -> Answer {
        if body["metadata"]["name"].is_null() {
            let start = body["metadata"]["generateName"].as_str().expect("a name or its start");
            body["metadata"]["name"] = format!("{start}{}", self.version + 1).into();
        }
        if self.objects.contains_key(&(kind, key_of(kind, &body))) {
            return Err(error(409, "AlreadyExists"));
        }
        if kind == PODS {
            body["status"] = json!({"phase": "Pending"});
        }
        Ok(self.add(kind, body))
    }

    fn delete(&mut self, target: &Target) -> Answer {
        let mut object = self.find(target)?;
        let is_running = object["status"]["phase"] == "Running";
        if target.kind == PODS && is_running {
            object["metadata"]["deletionTimestamp"] = self.now.to_string().into();
            return Ok(self.add(target.kind, object));
        }
        self.objects.remove(&(target.kind, target.key.clone()));
        Ok(object)
    }

    fn find(&self, target: &Target) -> Answer {
        let object = self.objects.get(&(target.kind, target.key.clone()));
        object.cloned().ok_or_else(|| error(404, "NotFound"))
    }
}

/// Owners are merged by UID, labels by key.
fn patch(object: &mut Value, form: &PatchForm, body: &Value) {
    if let Some(owners) = body["metadata"]["ownerReferences"].as_array() {
        assert_eq!(*form, PatchForm::Strategic);
        let known = object["metadata"]["ownerReferences"].as_array().cloned();
        let mut known = known.unwrap_or_default();
        for owner in owners {
            known.retain(|one| one["uid"] != owner["uid"]);
            if owner["$patch"] != "delete" {
                known.push(owner.clone());
            }
        }
        object["metadata"]["ownerReferences"] = known.into();
    }
    for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
}

/// A refusal.
pub(crate) fn error(code: u16, reason: &str) -> ApiError {
    ApiError { code, reason: reason.into(), message: reason.into(), ..ApiError::default() }
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::new(if kind.is_namespaced { "n" } else { "" }, name)
}

fn key_of(kind: Kind, object: &Value) -> ObjectKey {
    key(kind, object["metadata"]["name"].as_str().expect("a name"))
}
