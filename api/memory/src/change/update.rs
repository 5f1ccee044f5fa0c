//! Updates and patches: one way for all that change an object that exists.
//!
//! Input: the request's target and a function from the stored object to the wanted one. Output: the
//! stored result. An update that changes nothing keeps the version; one that removes the last
//! finalizer of an object that is being deleted removes the object. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go Update

use std::sync::Arc;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, Target};
use serde_json::Value;

use crate::change::{daemon_set, scale, status};
use crate::create::Naming;
use crate::rules::{self, GenerationRule, KindRules, StatusKeeps};
use crate::server::Server;
use crate::{canonical, create, defaults, errors, meta, validate};

/// The function from the stored object to the requested one.
pub(crate) type Wanted<'a> = dyn Fn(&Value) -> Result<Value, ApiError> + 'a;

impl Server {
    /// `PUT`: the body is the wanted object.
    pub(crate) fn replace(&mut self, target: &Target, body: &Value, now: Timestamp) -> Answer {
        let mut wanted = body.clone();
        create::place(target.kind, target.key.namespace(), &mut wanted)?;
        check_name(target, &wanted)?;
        let stored = self.store.object(target.kind, &target.key);
        let uid = meta::text(&wanted, "uid");
        let is_creating = stored.is_none() && creates(target);
        if stored.is_none() && !is_creating {
            return Err(errors::not_found(target.kind, target.key.name()));
        }
        let stored_uid = stored.map_or("", |stored| meta::text(stored, "uid"));
        if !uid.is_empty() && uid != stored_uid {
            return Err(storage_conflict(target, "UID", uid, stored_uid));
        }
        if is_creating {
            let namespace = target.key.namespace();
            self.check_namespace_for_create(target.kind, namespace, &wanted)?;
            // Unlike a creation, an update that creates may state any version.
            meta::set(&mut wanted, "resourceVersion", Value::Null);
            return self.create_named(target.kind, wanted, Naming::Given, now);
        }
        if target.sub == "scale" {
            return self.update_scale(target, &|_| Ok(wanted.clone()));
        }
        self.update(target, &|_| Ok(wanted.clone()))
    }

    /// Changes a stored object into the wanted one.
    pub(crate) fn update(&mut self, target: &Target, wanted: &Wanted<'_>) -> Answer {
        let kind = target.kind;
        let Some(old) = self.store.object(kind, &target.key).map(Arc::clone) else {
            return Err(errors::not_found(kind, target.key.name()));
        };
        let rules = rules::of(kind);
        let mut new = wanted(&old)?;
        self.check_namespace_exists(target)?;
        check_version(kind, &rules, &new, &old)?;
        canonical::settle(kind, &rules, &mut new);
        defaults::apply(kind, &mut new);
        match target.sub {
            "" | "scale" => prepare(kind, &rules, &mut new, &old),
            sub => status::prepare(kind, &rules, sub, &mut new, &old)?,
        }
        daemon_set::count_template(kind, &mut new, Some(&old));
        keep_system_fields(&mut new, &old);
        canonical::settle(kind, &rules, &mut new);
        validate::updated(kind, &new, &old)?;
        if is_deleted_by(kind, &new, &old) {
            self.store.remove(kind, &target.key);
            return Ok(new);
        }
        let object = (kind, target.key.clone());
        let owner = self.scaled.get(&object).copied();
        let (is_same, changes_replicas) = (new == *old, replicas(&new) != replicas(&old));
        let next = scale::owner_after(target.sub, owner, is_same, changes_replicas);
        let is_unsettled = self.unsettled.contains(&object);
        if is_same && !is_unsettled && next == owner {
            return Ok(new);
        }
        let written = self.write(kind, new);
        match next {
            Some(next) => drop(self.scaled.insert(object, next)),
            None => drop(self.scaled.remove(&object)),
        }
        Ok(Value::clone(&*written))
    }

    // k8s: staging/src/k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle/admission.go Admit
    fn check_namespace_exists(&self, target: &Target) -> Result<(), ApiError> {
        let namespace = target.key.namespace();
        let stored = self.store.object(kind::NAMESPACES, &ObjectKey::new("", namespace));
        match namespace.is_empty() || stored.is_some() {
            true => Ok(()),
            false => Err(errors::not_found(kind::NAMESPACES, namespace)),
        }
    }
}

fn replicas(object: &Value) -> &Value {
    &object["spec"]["replicas"]
}

fn creates(target: &Target) -> bool {
    target.sub.is_empty() && rules::of(target.kind).creates_on_update
}

fn check_name(target: &Target, wanted: &Value) -> Result<(), ApiError> {
    let (name, stated) = (target.key.name(), meta::name(wanted));
    if stated == name {
        return Ok(());
    }
    let why = match stated {
        "" => "name must be provided".to_owned(),
        stated => {
            format!("the name of the object ({stated}) does not match the name on the URL ({name})")
        }
    };
    Err(errors::bad_request(&why))
}

/// A precondition that the store checks does not hold.
pub(crate) fn storage_conflict(
    target: &Target,
    field: &str,
    asked: &str,
    stored: &str,
) -> ApiError {
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{}, ResourceVersion: 0, \
         AdditionalErrorMsg: Precondition failed: {field} in precondition: {asked}, {field} in \
         object meta: {stored}",
        rules::storage_prefix(target.kind),
        target.key
    );
    errors::conflict(&errors::resource(target.kind), target.key.name(), &why)
}

fn check_version(kind: Kind, rules: &KindRules, new: &Value, old: &Value) -> Result<(), ApiError> {
    match meta::version(new) {
        "" if rules.updates_any_version => Ok(()),
        "" => {
            let why = "must be specified for an update";
            let problem = errors::FieldProblem::invalid("metadata.resourceVersion", "0", why);
            Err(errors::invalid(&errors::resource(kind), meta::name(old), &[problem]))
        }
        version if version == meta::version(old) => Ok(()),
        _ => Err(errors::modified(kind, meta::name(old))),
    }
}

/// Restores what an update of the object may not change, and counts the generation.
// k8s: pkg/registry/*/*/strategy.go PrepareForUpdate
fn prepare(kind: Kind, rules: &KindRules, new: &mut Value, old: &Value) {
    meta::copy(new, "generation", old);
    if rules.status != StatusKeeps::None {
        meta::copy_field(new, "status", old);
    }
    if kind == kind::NAMESPACES {
        meta::copy_field(new, "spec", old);
    }
    if has_new_generation(rules, new, old) {
        let generation = meta::number(old, "generation").unwrap_or(0) + 1;
        meta::set(new, "generation", generation.into());
    }
}

fn has_new_generation(rules: &KindRules, new: &Value, old: &Value) -> bool {
    let differs = |field: &str| new[field] != old[field];
    let differs_in =
        |field: &str| meta::texts(&new["metadata"][field]) != meta::texts(&old["metadata"][field]);
    match rules.counts {
        GenerationRule::Nothing | GenerationRule::Once => false,
        GenerationRule::Field(field) => differs(field),
        GenerationRule::SpecAndAnnotations => differs("spec") || differs_in("annotations"),
        GenerationRule::Content => content(new) != content(old),
        GenerationRule::ContentAndLabels => content(new) != content(old) || differs_in("labels"),
    }
}

fn content(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !["metadata", "status"].contains(&name.as_str())).collect()
}

// k8s: staging/src/k8s.io/apiserver/pkg/registry/rest/update.go BeforeUpdate
fn keep_system_fields(new: &mut Value, old: &Value) {
    if meta::text(new, "uid").is_empty() {
        meta::copy(new, "uid", old);
    }
    meta::copy(new, "resourceVersion", old);
    meta::copy(new, "creationTimestamp", old);
    meta::copy(new, "deletionTimestamp", old);
    meta::copy(new, "deletionGracePeriodSeconds", old);
}

/// True if an update removed the last finalizer of a terminating object.
// k8s: store.go ShouldDeleteDuringUpdate; core/namespace/storage ShouldDeleteNamespaceDuringUpdate
fn is_deleted_by(kind: Kind, new: &Value, old: &Value) -> bool {
    let holds = new["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
    meta::finalizers(new).is_empty()
        && meta::is_deleting(old)
        && meta::number(old, "deletionGracePeriodSeconds").unwrap_or(0) == 0
        && !(kind == kind::NAMESPACES && holds)
}
