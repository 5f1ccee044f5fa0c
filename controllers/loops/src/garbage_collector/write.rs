//! The requests by which the collector changes and deletes objects.
// k8s: pkg/controller/garbagecollector/operations.go
// k8s: pkg/controller/garbagecollector/patch.go

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{
    Answer, ApiError, DeleteOptions, PatchForm, Propagation, Request, Target,
};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::meta::Uid;
use serde_json::{Value, json};

use super::graph::FOREGROUND;
use super::identity::ObjectIdentity;

/// Attempts to remove a finalizer upon conflicts.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultBackoff
const ATTEMPTS: usize = 4;

/// An object and the resource that it is read from.
#[derive(Debug)]
pub(super) struct MappedObject {
    pub(super) identity: ObjectIdentity,
    pub(super) kind: Kind,
}

impl MappedObject {
    pub(super) fn target(&self) -> Target {
        let namespace = if self.kind.is_namespaced { self.identity.namespace.as_str() } else { "" };
        Target::object(self.kind, ObjectKey::new(namespace, &self.identity.name))
    }

    pub(super) fn patch(&self, form: PatchForm, body: Value) -> Request {
        Request::Patch { target: self.target(), form, body }
    }
}

/// The finalizers of an object that was read.
pub(super) fn finalizers(object: &Value) -> impl Iterator<Item = &str> {
    let finalizers = object["metadata"]["finalizers"].as_array();
    finalizers.into_iter().flatten().filter_map(Value::as_str)
}

/// The object is being deleted and waits for its dependents.
pub(super) fn is_waiting_for_dependents(object: &Value) -> bool {
    let is_deleting = object["metadata"]["deletionTimestamp"].is_string();
    is_deleting && finalizers(object).any(|finalizer| finalizer == FOREGROUND)
}

/// Deletes exactly the object that was read; false when it no longer exists.
// k8s: pkg/controller/garbagecollector/operations.go deleteObject
pub(super) fn delete(
    object: &MappedObject,
    latest: &Value,
    propagation: Propagation,
    transcript: &mut Transcript,
) -> Result<bool, TranscriptStop> {
    let version = latest["metadata"]["resourceVersion"].as_str().filter(|text| !text.is_empty());
    let request = |version: Option<&str>| Request::Delete {
        target: object.target(),
        options: DeleteOptions {
            uid: Some(object.identity.uid.as_str().to_owned()),
            version: version.map(str::to_owned),
            propagation: Some(propagation),
            grace_seconds: None,
        },
    };
    let mut answer = transcript.send(request(version))?;
    if let Err(error) = &answer
        && error.is_conflict()
        && version.is_some()
    {
        // Changes that leave the owners alone must not keep the object for ever.
        match transcript.send(object.read())? {
            Err(error) if error.is_not_found() => return Ok(false),
            Ok(live) if is_other_version_with_same_owners(&live, latest) => {
                answer = transcript.send(request(None))?;
            }
            _ => {}
        }
    }
    match answer {
        Ok(_) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn is_other_version_with_same_owners(live: &Value, latest: &Value) -> bool {
    let (live, latest) = (&live["metadata"], &latest["metadata"]);
    live["uid"] == latest["uid"]
        && live["resourceVersion"] != latest["resourceVersion"]
        && live["ownerReferences"] == latest["ownerReferences"]
}

/// A kind of which the API server does not know how its lists are merged: custom resources.
pub(super) fn is_unsupported_form(error: &ApiError) -> bool {
    error.code == 415 || error.reason == "UnsupportedMediaType"
}

/// The patch that drops owners, where lists are merged by keys.
// k8s: pkg/controller/controller_ref_manager.go GenerateDeleteOwnerRefStrategicMergeBytes
pub(super) fn strategic_drop(uid: &Uid, owners: &[Uid]) -> Value {
    let deletions = owners.iter().map(|owner| json!({"$patch": "delete", "uid": owner.as_str()}));
    let deletions: Vec<_> = deletions.collect();
    json!({"metadata": {"uid": uid.as_str(), "ownerReferences": deletions}})
}

/// The patch that drops owners, where a list is replaced as a whole.
// k8s: pkg/controller/garbagecollector/patch.go deleteOwnerRefJSONMergePatch
pub(super) fn merge_drop(latest: &Value, owners: &[Uid]) -> Value {
    let kept = references(latest)
        .filter(|known| !owners.iter().any(|owner| known["uid"] == owner.as_str()));
    merge(latest, kept.cloned().collect())
}

fn references(latest: &Value) -> impl Iterator<Item = &Value> {
    latest["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn merge(latest: &Value, references: Vec<Value>) -> Value {
    let references = if references.is_empty() { Value::Null } else { references.into() };
    let version = &latest["metadata"]["resourceVersion"];
    json!({"metadata": {"resourceVersion": version, "ownerReferences": references}})
}

/// Drops owners from an object.
pub(super) fn drop_owners(
    object: &MappedObject,
    latest: &Value,
    owners: &[Uid],
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let strategic = strategic_drop(&object.identity.uid, owners);
    patch(object, strategic, merge_drop(latest, owners), transcript)
}

/// Makes an object's references stop blocking the deletion of its owners.
// k8s: pkg/controller/garbagecollector/patch.go unblockOwnerReferencesStrategicMergePatch
pub(super) fn unblock_owners(
    object: &MappedObject,
    latest: &Value,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let unblocked = |reference: &Value| {
        let mut reference = reference.clone();
        reference["blockOwnerDeletion"] = false.into();
        reference
    };
    let blocking = references(latest).filter(|known| known["blockOwnerDeletion"] == true);
    let blocking: Vec<_> = blocking.map(unblocked).collect();
    let strategic = json!({"metadata": {
        "uid": object.identity.uid.as_str(),
        "ownerReferences": blocking,
    }});
    let merged = merge(latest, references(latest).map(unblocked).collect());
    patch(object, strategic, merged, transcript)
}

// k8s: pkg/controller/garbagecollector/patch.go patch
fn patch(
    object: &MappedObject,
    strategic: Value,
    merged: Value,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let answer: Answer = match transcript.send(object.patch(PatchForm::Strategic, strategic))? {
        Err(error) if is_unsupported_form(&error) => {
            transcript.send(object.patch(PatchForm::Merge, merged))?
        }
        answer => answer,
    };
    answer?;
    Ok(())
}

/// Removes a finalizer from an object, again after conflicts.
// k8s: pkg/controller/garbagecollector/operations.go removeFinalizer
pub(super) fn remove_finalizer(
    object: &MappedObject,
    finalizer: &str,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let identity = &object.identity;
    for _ in 0..ATTEMPTS {
        let live = match transcript.send(object.read())? {
            Ok(live) => live,
            Err(error) if error.is_not_found() => return Ok(()),
            Err(error) => {
                return Err(TranscriptStop::failed(format!(
                    "cannot finalize owner {identity}, because cannot get it: {error}. The \
                     garbage collector will retry later"
                )));
            }
        };
        if !finalizers(&live).any(|known| known == finalizer) {
            return Ok(());
        }
        let kept: Vec<_> = finalizers(&live).filter(|known| *known != finalizer).collect();
        let kept = if kept.is_empty() { Value::Null } else { json!(kept) };
        let version = &live["metadata"]["resourceVersion"];
        let body = json!({"metadata": {"resourceVersion": version, "finalizers": kept}});
        match transcript.send(object.patch(PatchForm::Merge, body))? {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(TranscriptStop::failed(format!(
        "updateMaxRetries({ATTEMPTS}) has reached. The garbage collector will retry later for \
         owner {identity}"
    )))
}
