//! Claims the objects of an owner: adopts orphans that its selector selects, and releases its own
//! objects that the selector does not select any more.
//!
//! Input: objects that the owner controls, and orphans of its namespace. Output: those that are its
//! own afterwards. Before the first adoption the owner is read live, because an owner that was
//! deleted or recreated meanwhile must adopt nothing.
// k8s: pkg/controller/controller_ref_manager.go

use std::rc::Rc;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, PatchForm, Request, Target};
use serde_json::{Value, json};

use super::owner::controller_reference;
use crate::frame::{Transcript, TranscriptStop};
use crate::meta::Meta;
use crate::tables::TableRow;

/// The owner and the kind of the objects to claim.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The owner's kind.
    pub owner_kind: Kind,
    /// The owner.
    pub owner: &'a Meta,
    /// The kind of the objects.
    pub kind: Kind,
    /// Finalizers that an adopted object gets and a released one loses.
    pub finalizers: &'a [&'a str],
}

/// The decision for one object.
enum Fate {
    Own,
    Foreign,
    Adopt,
    Release,
}

impl Claim<'_> {
    fn fate(&self, object: &Meta, is_selected: bool) -> Fate {
        let is_owner_deleting = self.owner.is_deleting();
        match object.controller() {
            Some(controller) if controller.uid != self.owner.uid => Fate::Foreign,
            Some(_) if is_selected => Fate::Own,
            Some(_) if is_owner_deleting => Fate::Foreign,
            Some(_) => Fate::Release,
            None if is_owner_deleting || !is_selected || object.is_deleting() => Fate::Foreign,
            None if object.namespace != self.owner.namespace => Fate::Foreign,
            None => Fate::Adopt,
        }
    }

    /// Returns the owner's objects among the candidates; adopts and releases first.
    ///
    /// # Errors
    /// When an adoption or a release failed, after all of them were tried.
    pub fn claim<T: TableRow>(
        &self,
        candidates: &[Rc<T>],
        is_selected: impl Fn(&T) -> bool,
        transcript: &mut Transcript,
    ) -> Result<Vec<Rc<T>>, TranscriptStop> {
        let fates: Vec<_> =
            candidates.iter().map(|object| self.fate(object.meta(), is_selected(object))).collect();
        if fates.iter().any(|fate| matches!(fate, Fate::Adopt)) {
            self.check_owner(transcript)?;
        }
        let mut requests = Vec::new();
        for (object, fate) in candidates.iter().zip(&fates) {
            match fate {
                Fate::Adopt => {
                    requests.push(self.patch(object.meta(), self.adoption(object.meta())))
                }
                Fate::Release => {
                    requests.push(self.patch(object.meta(), self.release(object.meta())))
                }
                Fate::Own | Fate::Foreign => {}
            }
        }
        let mut answers = transcript.send_all(requests)?.into_iter();
        let mut failure = None;
        let mut claimed = Vec::new();
        for (object, fate) in candidates.iter().zip(&fates) {
            let is_own = match fate {
                Fate::Own => true,
                Fate::Foreign => false,
                Fate::Adopt => {
                    let answer = answers.next().expect("an answer for each request");
                    is_adopted(answer, &mut failure)
                }
                Fate::Release => {
                    let answer = answers.next().expect("an answer for each request");
                    note_release(answer, &mut failure);
                    false
                }
            };
            if is_own {
                claimed.push(Rc::clone(object));
            }
        }
        failure.map_or(Ok(claimed), Err)
    }

    /// Reads the owner live: it must be the same object and not be deleted.
    // k8s: pkg/controller/controller_ref_manager.go RecheckDeletionTimestamp
    ///
    /// # Errors
    /// When it is not.
    pub fn check_owner(&self, transcript: &mut Transcript) -> Result<(), TranscriptStop> {
        let key = self.owner.key();
        let target = Target::object(self.owner_kind, key.clone());
        let fresh = transcript.send(Request::Read { target, only_metadata: false })??;
        let metadata = &fresh["metadata"];
        let uid = metadata["uid"].as_str().unwrap_or_default();
        if uid != self.owner.uid.as_str() {
            let (kind, wanted) = (self.owner_kind.kind, &self.owner.uid);
            return Err(TranscriptStop::failed(format!(
                "original {kind} {key} is gone: got uid {uid}, wanted {wanted}"
            )));
        }
        match metadata["deletionTimestamp"].as_str() {
            Some(at) => Err(TranscriptStop::failed(format!("{key} has just been deleted at {at}"))),
            None => Ok(()),
        }
    }

    fn patch(&self, object: &Meta, body: Value) -> Request {
        let key = ObjectKey::new(&object.namespace, &object.name);
        let target = Target::object(self.kind, key);
        Request::Patch { target, form: PatchForm::Strategic, body }
    }

    // k8s: pkg/controller/controller_ref_manager.go ownerRefControllerPatch
    fn adoption(&self, object: &Meta) -> Value {
        let reference = controller_reference(self.owner_kind, self.owner);
        let mut patch = json!({"metadata": {
            "uid": object.uid.as_str(),
            "ownerReferences": [reference],
        }});
        if !self.finalizers.is_empty() {
            patch["metadata"]["finalizers"] = json!(self.finalizers);
        }
        patch
    }

    // k8s: pkg/controller/controller_ref_manager.go GenerateDeleteOwnerRefStrategicMergeBytes
    fn release(&self, object: &Meta) -> Value {
        let mut patch = json!({"metadata": {
            "uid": object.uid.as_str(),
            "ownerReferences": [{"$patch": "delete", "uid": self.owner.uid.as_str()}],
        }});
        if !self.finalizers.is_empty() {
            patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!(self.finalizers);
        }
        patch
    }
}

fn is_adopted(answer: Answer, failure: &mut Option<TranscriptStop>) -> bool {
    match answer {
        Ok(_) => return true,
        // The object was deleted; the other objects are not affected.
        Err(error) if error.is_not_found() => {}
        Err(error) => *failure = Some(error.into()),
    }
    false
}

fn note_release(answer: Answer, failure: &mut Option<TranscriptStop>) {
    match answer {
        // Not found: it was deleted. Invalid: its UID differs, or it no longer has this owner.
        Err(error) if !error.is_not_found() && !error.is_invalid() => *failure = Some(error.into()),
        _ => {}
    }
}
