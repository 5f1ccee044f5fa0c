//! Creating objects: names, UIDs, first state, checks of the namespace.
//!
//! Input: an object of a client. Output: the stored object, or the server's error. The order of
//! checks is the server's, because it decides which error a client sees. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go Create

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::pod::qos;
use pintle_api_types::request::{Answer, ApiError};
use serde_json::{Value, json};

use crate::change::daemon_set;
use crate::errors::{self, FieldProblem};
use crate::rules::{self, GenerationRule, StatusKeeps};
use crate::server::Server;
use crate::{admission, canonical, defaults, meta, validate};

/// How often another name is tried when a generated one is taken.
// k8s: store.go maxNameGenerationCreateAttempts
const NAME_ATTEMPTS: usize = 8;
/// How much of generateName is used.
// k8s: staging/src/k8s.io/apiserver/pkg/storage/names/generate.go
const GENERATE_NAME_MAX: usize = 58;
const SUFFIX_LEN: usize = 5;
const SUFFIX_LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Where the name of a new object is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Naming {
    /// The client.
    Given,
    /// The server, from `generateName`.
    Generated,
}

impl Server {
    pub(crate) fn create(
        &mut self,
        kind: Kind,
        namespace: &str,
        body: &Value,
        now: Timestamp,
    ) -> Answer {
        let mut object = body.clone();
        place(kind, namespace, &mut object)?;
        for field in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
            meta::set(&mut object, field, Value::Null);
        }
        self.check_namespace_for_create(kind, namespace, &object)?;
        let prefix = meta::text(&object, "generateName").to_owned();
        let has_name = !meta::name(&object).is_empty();
        if has_name || prefix.is_empty() {
            return self.create_named(kind, object, Naming::Given, now);
        }
        let mut answer = Err(errors::internal("no name was tried"));
        for _ in 0..NAME_ATTEMPTS {
            let name = self.generated_name(&prefix);
            let mut named = object.clone();
            meta::set(&mut named, "name", name.into());
            answer = self.create_named(kind, named, Naming::Generated, now);
            if !answer.as_ref().is_err_and(ApiError::is_already_exists) {
                break;
            }
        }
        answer
    }

    /// Creates an object that has its final name, in a namespace that takes it.
    pub(crate) fn create_named(
        &mut self,
        kind: Kind,
        object: Value,
        naming: Naming,
        now: Timestamp,
    ) -> Answer {
        let mut object = object;
        let rules = rules::of(kind);
        meta::set(&mut object, "uid", self.new_uid().into());
        meta::set(&mut object, "creationTimestamp", meta::time(now).into());
        canonical::settle(kind, &rules, &mut object);
        let is_unsettled = is_unsettled(kind, &object);
        // In Go the labels of a Job and of its template are one map, unless a generated name makes
        // the server copy the object: then the Job does not get the labels that are generated.
        if naming == Naming::Given {
            generate_selector(kind, &mut object);
        }
        defaults::apply(kind, &mut object);
        generate_selector(kind, &mut object);
        admission::admit(kind, &mut object);
        prepare(kind, &mut object, now);
        daemon_set::count_template(kind, &mut object, None);
        defaults::apply(kind, &mut object);
        canonical::settle(kind, &rules, &mut object);
        validate::created(kind, &object)?;
        if !meta::version(&object).is_empty() {
            return Err(errors::internal(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if let Some(old) = self.store.object(kind, &meta::key(&object)) {
            let (name, is_deleting) = (meta::name(&object), meta::is_deleting(old));
            return Err(match meta::text(&object, "generateName") {
                "" => errors::already_exists(kind, name, is_deleting),
                _ => errors::generated_name_exists(kind, name),
            });
        }
        let stored = Value::clone(&*self.write(kind, object));
        let key = (kind, meta::key(&stored));
        self.scaled.remove(&key);
        if is_unsettled {
            self.unsettled.insert(key);
        }
        Ok(stored)
    }

    fn generated_name(&mut self, prefix: &str) -> String {
        let mut name: String = prefix.chars().take(GENERATE_NAME_MAX).collect();
        for _ in 0..SUFFIX_LEN {
            name.push(char::from(*self.rng.pick(SUFFIX_LETTERS)));
        }
        name
    }

    /// A UID as version 4 of RFC 9562 has it.
    pub(crate) fn new_uid(&mut self) -> String {
        let (high, low) = (self.rng.number(), self.rng.number());
        let high = (high & 0xffff_ffff_ffff_0fff) | 0x4000;
        let low = (low & 0x3fff_ffff_ffff_ffff) | 0x8000_0000_0000_0000;
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// Objects are created only in namespaces that exist and stay.
    // k8s: staging/src/k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go Admit
    pub(crate) fn check_namespace_for_create(
        &self,
        kind: Kind,
        namespace: &str,
        object: &Value,
    ) -> Result<(), ApiError> {
        if namespace.is_empty() || kind == kind::NAMESPACES {
            return Ok(());
        }
        let key = ObjectKey::new("", namespace);
        let Some(stored) = self.store.object(kind::NAMESPACES, &key) else {
            return Err(errors::not_found(kind::NAMESPACES, namespace));
        };
        if stored["status"]["phase"] != "Terminating" {
            return Ok(());
        }
        let why = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut error = errors::forbidden(&errors::resource(kind), admitted_name(object), &why);
        error.causes.push("NamespaceTerminating".to_owned());
        Err(error)
    }
}

// k8s: staging/src/k8s.io/apiserver/pkg/admission/errors.go extractResourceName
fn admitted_name(object: &Value) -> &str {
    match (meta::name(object), meta::text(object, "generateName")) {
        ("", "") => "Unknown",
        ("", prefix) => prefix,
        (name, _) => name,
    }
}

/// Gives the object the namespace of the request.
// k8s: staging/src/k8s.io/apiserver/pkg/registry/rest/meta.go
pub(crate) fn place(kind: Kind, namespace: &str, object: &mut Value) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(errors::bad_request("the object provided is unrecognized"));
    }
    let stated = meta::text(object, "namespace");
    let is_other = !stated.is_empty() && stated != namespace;
    if kind.is_namespaced && is_other {
        let why = "the namespace of the provided object does not match the namespace sent on the \
                   request";
        return Err(errors::bad_request(why));
    }
    let namespace = if kind.is_namespaced { namespace } else { "" };
    meta::set(object, "namespace", Value::from(namespace));
    if namespace.is_empty() {
        meta::set(object, "namespace", Value::Null);
    }
    Ok(())
}

/// The first state: what clients may not choose.
// k8s: pkg/registry/*/*/strategy.go PrepareForCreate
fn prepare(kind: Kind, object: &mut Value, now: Timestamp) {
    let rules = rules::of(kind);
    if rules.counts != GenerationRule::Nothing {
        meta::set(object, "generation", 1.into());
    }
    // A node's own status is accepted.
    if rules.status != StatusKeeps::None && kind != kind::NODES {
        meta::copy_field(object, "status", &Value::Null);
    }
    let status = match (kind.group, kind.plural) {
        ("", "pods") => pod_status(object),
        ("", "persistentvolumes") => {
            json!({"phase": "Pending", "lastPhaseTransitionTime": meta::time(now)})
        }
        ("", "persistentvolumeclaims") => json!({"phase": "Pending"}),
        ("", "namespaces") => {
            add_kubernetes_finalizer(object);
            json!({"phase": "Active"})
        }
        _ => return,
    };
    object["status"] = status;
}

/// True if the real server stores the object without fields that it returns: the first update
/// writes them, also one that changes nothing else.
fn is_unsettled(kind: Kind, object: &Value) -> bool {
    let labels = meta::labels(object);
    let of_template = meta::labels(&object["spec"]["template"]);
    kind == kind::PERSISTENT_VOLUME_CLAIMS
        || (kind == kind::JOBS && labels.is_empty() && of_template.is_empty())
}

fn pod_status(pod: &Value) -> Value {
    let typed = serde_json::from_value(pod.clone()).unwrap_or_default();
    let mut status = json!({"phase": "Pending", "qosClass": qos::compute(&typed).as_str()});
    let gates = pod["spec"]["schedulingGates"].as_array();
    if gates.is_some_and(|gates| !gates.is_empty()) {
        status["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }]);
    }
    status
}

fn add_kubernetes_finalizer(namespace: &mut Value) {
    let spec = meta::child(namespace, "spec");
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    let list = finalizers.as_array_mut();
    if let Some(list) = list.filter(|list| !list.iter().any(|one| *one == "kubernetes")) {
        list.push("kubernetes".into());
    }
}

// k8s: pkg/registry/batch/job/strategy.go generateSelector
fn generate_selector(kind: Kind, job: &mut Value) {
    if kind != kind::JOBS || job["spec"]["manualSelector"] == true {
        return;
    }
    let (name, uid) = (job["metadata"]["name"].clone(), job["metadata"]["uid"].clone());
    let spec = meta::child(job, "spec");
    let template = spec.entry("template").or_insert_with(|| json!({}));
    meta::of(template);
    let labels = meta::child(&mut template["metadata"], "labels");
    for (label, value) in [
        ("job-name", &name),
        ("batch.kubernetes.io/job-name", &name),
        ("controller-uid", &uid),
        ("batch.kubernetes.io/controller-uid", &uid),
    ] {
        labels.entry(label).or_insert_with(|| value.clone());
    }
    let selector = spec.entry("selector").or_insert_with(|| json!({}));
    let labels = meta::child(selector, "matchLabels");
    labels.entry("batch.kubernetes.io/controller-uid").or_insert(uid);
}

/// The problem with the name of an object to be created.
pub(crate) fn missing_name(object: &Value) -> Option<FieldProblem> {
    let is_missing = meta::name(object).is_empty();
    is_missing.then(|| FieldProblem::required("metadata.name", "name or generateName is required"))
}
