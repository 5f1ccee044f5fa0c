//! The history of a workload's templates, kept as ControllerRevisions.
//!
//! Input: the revisions of a namespace, and what a new revision contains. Output: the owner's
//! revisions in order, and requests that create, renumber, adopt, release and delete them.
// k8s: pkg/controller/history/controller_history.go

use std::rc::Rc;

use pintle_api_types::kind::{CONTROLLER_REVISIONS, Kind};
use pintle_api_types::request::{DeleteOptions, PatchForm, Request, Target};
use serde_json::{Value, json};

use super::owner::controller_reference;
use crate::frame::{Transcript, TranscriptStop};
use crate::golang::hash::controller_revision_hash;
use crate::kept::KeptObject;
use crate::kinds::ControllerRevision;
use crate::meta::Meta;
use crate::selector::PodSelector;

/// The label with the hash of a revision's data.
pub const HASH_LABEL: &str = "controller.kubernetes.io/hash";
/// Longest start of a revision's name, in bytes.
const PREFIX_MAX: usize = 223;
/// How often a renumbering is retried after conflicts.
// k8s: staging/src/k8s.io/client-go/util/retry/util.go DefaultBackoff
const CONFLICTS_MAX: u32 = 3;

/// A revision as tables and answers have it.
pub type Revision = Rc<KeptObject<ControllerRevision>>;

/// The owner of a history of revisions.
#[derive(Clone, Copy, Debug)]
pub struct History<'a> {
    /// The owner's kind.
    pub owner_kind: Kind,
    /// The owner.
    pub owner: &'a Meta,
}

/// A revision that does not exist yet.
#[derive(Clone, Debug, PartialEq)]
pub struct NewRevision {
    /// Labels of the template.
    pub labels: Value,
    /// Annotations of the owner.
    pub annotations: Value,
    /// The patch that restores the template.
    pub data: String,
    /// Its place in the history.
    pub number: i64,
}

/// The name of an owner's revision.
// k8s: controller_history.go ControllerRevisionName
pub fn revision_name(owner: &str, hash: &str) -> String {
    let end = owner.floor_char_boundary(PREFIX_MAX);
    format!("{}-{hash}", &owner[..end])
}

/// The hash of a revision's data.
// k8s: controller_history.go HashControllerRevision
fn hash(new: &NewRevision, collision_count: i32) -> String {
    controller_revision_hash(new.data.as_bytes(), Some(collision_count))
}

/// Sorts revisions by number, then age, then name.
// k8s: controller_history.go byRevision
pub fn sort(revisions: &mut [Revision]) {
    revisions.sort_by(|one, other| {
        let key = |it: &Revision| (it.revision, it.metadata.creation_timestamp);
        key(one).cmp(&key(other)).then_with(|| one.metadata.name.cmp(&other.metadata.name))
    });
}

/// The number after that of the last one of sorted revisions.
// k8s: pkg/controller/statefulset/stateful_set_utils.go nextRevision
pub fn next_number(revisions: &[Revision]) -> i64 {
    revisions.last().map_or(1, |last| last.revision + 1)
}

/// True if two texts are the same JSON. Escapes do not count, because the API server always escapes
/// `<` in its answers.
// k8s: controller_history.go EqualRevision
pub fn is_same_data(one: &str, other: &str) -> bool {
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    one == other || parse(one).is_some_and(|one| Some(one) == parse(other))
}

impl History<'_> {
    /// The owner's revisions and orphans that the selector selects.
    // k8s: controller_history.go ListControllerRevisions
    pub fn select(&self, revisions: &[Revision], selector: &PodSelector) -> Vec<Revision> {
        let is_own = |revision: &&Revision| {
            let meta = &revision.metadata;
            let is_foreign = meta.controller().is_some_and(|it| it.uid != self.owner.uid);
            !is_foreign && selector.matches(&meta.labels)
        };
        revisions.iter().filter(is_own).cloned().collect()
    }

    /// Creates a revision; a name that is taken by other data raises the collision count.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: controller_history.go CreateControllerRevision
    pub fn create(
        &self,
        new: &NewRevision,
        collision_count: &mut i32,
        transcript: &mut Transcript,
    ) -> Result<Revision, TranscriptStop> {
        let mut body = self.body(new, *collision_count);
        loop {
            let name = revision_name(&self.owner.name, &hash(new, *collision_count));
            body["metadata"]["name"] = name.as_str().into();
            let request = Request::Create {
                kind: CONTROLLER_REVISIONS,
                namespace: self.owner.namespace.as_str().to_owned(),
                below: None,
                body: body.clone(),
            };
            match transcript.send(request)? {
                Ok(created) => return decode(&created),
                Err(error) if error.is_already_exists() => {}
                Err(error) => return Err(error.into()),
            }
            let existing = decode(&transcript.send(self.read(&name))??)?;
            if is_same_data(&existing.data(), &new.data) {
                return Ok(existing);
            }
            *collision_count += 1;
            transcript.because(format!("the name {name} is taken by a revision with other data"));
        }
    }

    /// The body of a new revision, without its name.
    // k8s: controller_history.go NewControllerRevision
    fn body(&self, new: &NewRevision, collision_count: i32) -> Value {
        let mut labels = new.labels.as_object().cloned().unwrap_or_default();
        labels.insert(HASH_LABEL.to_owned(), hash(new, collision_count).into());
        let mut metadata = json!({
            "namespace": self.owner.namespace.as_str(),
            "labels": labels,
            "ownerReferences": [controller_reference(self.owner_kind, self.owner)],
        });
        if new.annotations.as_object().is_some_and(|some| !some.is_empty()) {
            metadata["annotations"] = new.annotations.clone();
        }
        let data: Value = serde_json::from_str(&new.data).expect("the data was printed as JSON");
        json!({
            "apiVersion": CONTROLLER_REVISIONS.api_version(),
            "kind": CONTROLLER_REVISIONS.kind,
            "metadata": metadata,
            "data": data,
            "revision": new.number,
        })
    }

    /// Gives a revision another number; retries on conflicts, on its newest state.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: controller_history.go UpdateControllerRevision
    pub fn renumber(
        &self,
        revision: &Revision,
        number: i64,
        transcript: &mut Transcript,
    ) -> Result<Revision, TranscriptStop> {
        let mut newest = Rc::clone(revision);
        let mut conflicts = 0;
        while newest.revision != number {
            let mut body = newest.value();
            body["revision"] = number.into();
            let target = Target::object(CONTROLLER_REVISIONS, revision.metadata.key());
            match transcript.send(Request::Replace { target, body })? {
                Ok(replaced) => return decode(&replaced),
                Err(error) if error.is_conflict() && conflicts < CONFLICTS_MAX => {
                    conflicts += 1;
                    newest = decode(&transcript.send(self.read(&revision.metadata.name))??)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(newest)
    }

    /// Makes the owner the controller of an orphan.
    ///
    /// # Errors
    /// When it is no orphan, or the API server refuses it.
    // k8s: controller_history.go AdoptControllerRevision
    pub fn adopt(
        &self,
        revision: &Revision,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        if let Some(owner) = revision.metadata.controller() {
            let owner = &owner.name;
            return Err(TranscriptStop::failed(format!(
                "attempt to adopt revision owned by {owner}"
            )));
        }
        let body = json!({"metadata": {
            "uid": revision.metadata.uid.as_str(),
            "ownerReferences": [controller_reference(self.owner_kind, self.owner)],
        }});
        transcript.send(patch(revision, body))??;
        Ok(())
    }

    /// Deletes a revision.
    ///
    /// # Errors
    /// When the API server refuses it.
    // k8s: controller_history.go DeleteControllerRevision
    pub fn delete(
        &self,
        revision: &Revision,
        transcript: &mut Transcript,
    ) -> Result<(), TranscriptStop> {
        let target = Target::object(CONTROLLER_REVISIONS, revision.metadata.key());
        transcript.send(Request::Delete { target, options: DeleteOptions::default() })??;
        Ok(())
    }

    /// The request that reads a revision live.
    pub fn read(&self, name: &str) -> Request {
        let key = pintle_api_types::key::ObjectKey::new(&self.owner.namespace, name);
        let target = Target::object(CONTROLLER_REVISIONS, key);
        Request::Read { target, only_metadata: false }
    }
}

fn patch(revision: &Revision, body: Value) -> Request {
    let target = Target::object(CONTROLLER_REVISIONS, revision.metadata.key());
    Request::Patch { target, form: PatchForm::Strategic, body }
}

/// Decodes a revision in an answer.
///
/// # Errors
/// When it cannot be read.
pub fn decode(answer: &Value) -> Result<Revision, TranscriptStop> {
    let decoded = KeptObject::of_value(answer);
    let unreadable =
        |error| TranscriptStop::failed(format!("a ControllerRevision cannot be read: {error}"));
    decoded.map(Rc::new).map_err(unreadable)
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
