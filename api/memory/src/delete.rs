//! Deletions: preconditions, graces, finalizers of the garbage collector.
//!
//! Input: a target and DeleteOptions. Output: the object, or a `Status` of success. An object with
//! finalizers, or a pod with a grace period, stays and is marked; any other pod is marked and
//! removed, which are two versions. Pure.
// k8s: staging/src/k8s.io/apiserver/pkg/registry/generic/registry/store.go Delete
// k8s: staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go BeforeDelete

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Propagation, Target};
use serde_json::{Value, json};

use crate::change::update::storage_conflict;
use crate::rules::{self, Dependents};
use crate::server::Server;
use crate::{errors, meta};

/// The garbage collector's finalizer for orphaning dependents.
const ORPHAN: &str = "orphan";
/// The garbage collector's finalizer for deleting dependents first.
const FOREGROUND: &str = "foregroundDeletion";

/// The effect of a deletion's grace period on the object.
enum Grace {
    /// It is marked for so many seconds.
    Marked(i64),
    /// A deletion with the same or a shorter grace is under way.
    Pending,
    /// The kind has no graces, or the grace is over.
    Over,
}

impl Server {
    pub(crate) fn delete(
        &mut self,
        target: &Target,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Answer {
        if target.kind == kind::NAMESPACES {
            return self.delete_namespace(target, options, now);
        }
        self.delete_stored(target, options, now)
    }

    /// Deletes an object as every kind is deleted.
    pub(crate) fn delete_stored(
        &mut self,
        target: &Target,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Answer {
        let (kind, key) = (target.kind, &target.key);
        let old = Arc::clone(self.existing(target)?);
        check_preconditions(kind, &old, options)?;
        let mut object = Value::clone(&*old);
        let grace = mark_graceful(kind, &mut object, options, now);
        if matches!(grace, Grace::Pending) {
            return Ok(answer(kind, &old));
        }
        let finalizers = finalizers_after(kind, &old, options);
        meta::set(&mut object, "finalizers", finalizers.clone().into());
        if finalizers.is_empty() {
            meta::set(&mut object, "finalizers", Value::Null);
        }
        match grace {
            Grace::Over if finalizers.is_empty() => {
                let had_finalizers = !meta::finalizers(&old).is_empty();
                check_stale_version(target, &old, options, had_finalizers)?;
                return Ok(self.remove(kind, key));
            }
            Grace::Over => mark_now(&mut object, now),
            Grace::Marked(_) | Grace::Pending => {}
        }
        let is_unsettled = self.unsettled.contains(&(kind, key.clone()));
        let written = match object == *old && !is_unsettled {
            true => old,
            false => self.write(kind, object),
        };
        match grace {
            Grace::Marked(0) if finalizers.is_empty() => Ok(self.remove(kind, key)),
            _ => Ok(Value::clone(&written)),
        }
    }

    fn remove(&mut self, kind: Kind, key: &ObjectKey) -> Value {
        let removed = self.store.remove(kind, key).expect("the caller has read the object");
        answer(kind, &removed)
    }

    /// Deletes all objects of a kind in a namespace; answers with what there was.
    pub(crate) fn delete_collection(
        &mut self,
        kind: Kind,
        namespace: &str,
        propagation: Option<Propagation>,
        now: Timestamp,
    ) -> Answer {
        let list = self.list(kind, namespace, "", false)?;
        let keys: Vec<ObjectKey> =
            self.store.objects(kind, namespace).map(|(key, _)| key.clone()).collect();
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        for key in keys {
            self.delete(&Target::object(kind, key), &options, now)?;
        }
        Ok(list)
    }
}

/// The answer to a deletion.
// k8s: store.go finalizeDelete
fn answer(kind: Kind, object: &Value) -> Value {
    if rules::of(kind).answers_with_object {
        return object.clone();
    }
    let mut details = json!({"name": meta::name(object), "kind": kind.plural,
        "uid": meta::text(object, "uid")});
    if !kind.group.is_empty() {
        details["group"] = kind.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": details})
}

fn check_preconditions(
    kind: Kind,
    object: &Value,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let check = |expected: &Option<String>, stored: &str, what: &str, hint: &str| match expected {
        Some(expected) if expected != stored => {
            let why = format!(
                "the {what} in the precondition ({expected}) does not match the {what} in record \
                 ({stored}). The object might have been {hint}"
            );
            Err(errors::conflict(&errors::kind_name(kind), meta::name(object), &why))
        }
        _ => Ok(()),
    };
    check(&options.uid, meta::text(object, "uid"), "UID", "deleted and then recreated")?;
    check(&options.version, meta::version(object), "ResourceVersion", "modified")
}

/// A deletion that states a version and takes the last finalizer fails: upstream then compares the
/// version with that of an object it has not filled in.
// k8s: store.go Delete, where preconditions.ResourceVersion is updated
fn check_stale_version(
    target: &Target,
    object: &Value,
    options: &DeleteOptions,
    had_finalizers: bool,
) -> Result<(), ApiError> {
    match had_finalizers && options.version.is_some() {
        true => Err(storage_conflict(target, "ResourceVersion", "", meta::version(object))),
        false => Ok(()),
    }
}

// k8s: rest/delete.go BeforeDelete; pkg/registry/core/pod/strategy.go CheckGracefulDelete
fn mark_graceful(kind: Kind, object: &mut Value, options: &DeleteOptions, now: Timestamp) -> Grace {
    if kind != kind::PODS {
        return Grace::Over;
    }
    let requested = options.grace_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds });
    if meta::is_deleting(object) {
        return shorten(object, requested, now);
    }
    let grace = pod_grace(object, requested);
    mark(object, now + SignedDuration::from_secs(grace), grace);
    count_deletion(object);
    Grace::Marked(grace)
}

fn pod_grace(pod: &Value, requested: Option<i64>) -> i64 {
    let is_unscheduled = pod["spec"]["nodeName"].as_str().unwrap_or_default().is_empty();
    let is_finished = ["Failed", "Succeeded"].iter().any(|phase| pod["status"]["phase"] == *phase);
    if is_unscheduled || is_finished {
        return 0;
    }
    let own = pod["spec"]["terminationGracePeriodSeconds"].as_i64().unwrap_or(0);
    match requested.unwrap_or(own) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

/// A grace that runs can only be shortened.
fn shorten(object: &mut Value, requested: Option<i64>, now: Timestamp) -> Grace {
    let running = meta::number(object, "deletionGracePeriodSeconds").unwrap_or(0);
    if running == 0 {
        return Grace::Over;
    }
    let Some(requested) = requested.filter(|requested| *requested < running) else {
        return Grace::Pending;
    };
    let until = meta::parse_time(meta::text(object, "deletionTimestamp")).unwrap_or(now);
    let until = until - SignedDuration::from_secs(running) + SignedDuration::from_secs(requested);
    let (until, seconds) = match until < now {
        true => (now, requested.min(1)),
        false => (until, requested),
    };
    mark(object, until, seconds);
    // The caller looks at what was asked for, not at what is left of it.
    Grace::Marked(requested)
}

fn mark(object: &mut Value, until: Timestamp, seconds: i64) {
    meta::set(object, "deletionTimestamp", meta::time(until).into());
    meta::set(object, "deletionGracePeriodSeconds", seconds.into());
}

/// Marks an object that only finalizers hold.
// k8s: store.go markAsDeleting
fn mark_now(object: &mut Value, now: Timestamp) {
    if !meta::is_deleting(object) {
        count_deletion(object);
    }
    let marked = meta::parse_time(meta::text(object, "deletionTimestamp"));
    let until = marked.filter(|marked| *marked <= now).unwrap_or(now);
    mark(object, until, 0);
}

/// The first mark counts as a change of the object.
fn count_deletion(object: &mut Value) {
    if let Some(generation @ 1..) = meta::number(object, "generation") {
        meta::set(object, "generation", (generation + 1).into());
    }
}

/// The finalizers with those of the garbage collector that the deletion asks for.
// k8s: store.go deletionFinalizersForGarbageCollection
fn finalizers_after(kind: Kind, object: &Value, options: &DeleteOptions) -> Vec<String> {
    let old = meta::finalizers(object);
    let dependents = rules::of(kind).dependents;
    let wanted = match (dependents, options.propagation) {
        (Dependents::Unsupported, _) | (_, Some(Propagation::Background)) => None,
        (_, Some(Propagation::Orphan)) => Some(ORPHAN),
        (_, Some(Propagation::Foreground)) => Some(FOREGROUND),
        (dependents, None) => {
            let mut collector = old.iter().filter(|one| [ORPHAN, FOREGROUND].contains(&&***one));
            match collector.next() {
                Some(one) if one == ORPHAN => Some(ORPHAN),
                Some(_) => Some(FOREGROUND),
                None if dependents == Dependents::Orphaned => Some(ORPHAN),
                None => None,
            }
        }
    };
    let mut finalizers: Vec<String> =
        old.iter().filter(|one| ![ORPHAN, FOREGROUND].contains(&&***one)).cloned().collect();
    finalizers.extend(wanted.map(str::to_owned));
    let is_same = finalizers.len() == old.len() && finalizers.iter().all(|one| old.contains(one));
    if is_same { old } else { finalizers }
}
