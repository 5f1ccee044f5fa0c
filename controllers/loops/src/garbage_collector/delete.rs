//! Decides whether an object is garbage.
//!
//! Input: a node of the graph with what is known of its dependents. Output: a deletion if all
//! owners are absent or wait for it, or a patch that drops absent owners if one is left. The object
//! and its owners are read live.
// k8s: pkg/controller/garbagecollector/garbagecollector.go attemptToDeleteItem

use std::collections::BTreeSet;
use std::rc::Rc;

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Propagation, Request};
use pintle_controllers_core::frame::{
    EventTarget, ObjectEvent, Retry, SyncError, Transcript, TranscriptStop,
};
use pintle_controllers_core::meta::{OwnerReference, Uid};
use serde::Deserialize;
use serde_json::Value;

use super::absent::AbsentOwners;
use super::graph::{FOREGROUND, Graph, ORPHAN};
use super::identity::ObjectIdentity;
use super::mapper::Mapper;
use super::write::{self, MappedObject, is_waiting_for_dependents};
use super::{GarbageCollector, GraphFinding};

/// An object that may be garbage.
#[derive(Debug)]
pub struct GarbageCandidate {
    object: MappedObject,
    pub(super) is_virtual: bool,
    is_being_deleted: bool,
    is_deleting_dependents: bool,
    /// Dependents that block the deletion by their owner reference.
    blocking: Vec<Dependent>,
    has_dependents: bool,
    /// Some dependent is being deleted in the foreground, too.
    may_be_in_a_cycle: bool,
    /// Owners in other namespaces that an event is due about.
    invalid_owners: Vec<ObjectIdentity>,
    absent: Rc<AbsentOwners>,
    mapper: Rc<Mapper>,
    unlisted: Rc<BTreeSet<Kind>>,
}

#[derive(Debug)]
struct Dependent {
    uid: Uid,
    is_deleting_dependents: bool,
}

impl GarbageCandidate {
    pub(super) fn gather(
        uid: &Uid,
        kind: Kind,
        graph: &mut Graph,
        collector: &GarbageCollector,
    ) -> Option<Self> {
        let invalid_owners = graph.take_reports(uid);
        let node = graph.get(uid)?;
        let blocks = |owner: &OwnerReference| owner.uid == *uid && owner.block_owner_deletion;
        let blocking =
            graph.dependents(node).filter(|dependent| dependent.owners.iter().any(blocks));
        Some(Self {
            object: MappedObject { identity: node.identity.clone(), kind },
            is_virtual: node.is_virtual,
            is_being_deleted: node.is_being_deleted,
            is_deleting_dependents: node.is_deleting_dependents,
            blocking: blocking
                .map(|dependent| Dependent {
                    uid: dependent.identity.uid.clone(),
                    is_deleting_dependents: dependent.is_deleting_dependents,
                })
                .collect(),
            has_dependents: !node.dependents.is_empty(),
            may_be_in_a_cycle: graph
                .dependents(node)
                .any(|dependent| dependent.is_deleting_dependents),
            invalid_owners,
            absent: Rc::clone(&graph.absent),
            mapper: Rc::clone(&collector.mapper),
            unlisted: Rc::clone(&collector.unlisted),
        })
    }

    /// The kind that is followed and not listed yet, if the item is of such a kind.
    pub(super) fn unlisted_kind(&self) -> Option<Kind> {
        let identity = &self.object.identity;
        let followed = self.mapper.find(&identity.api_version, &identity.kind)?.followed;
        followed.filter(|kind| self.unlisted.contains(kind))
    }

    fn report_invalid_owners(&self, transcript: &mut Transcript) {
        let identity = &self.object.identity;
        for owner in &self.invalid_owners {
            let about = EventTarget {
                kind: self.object.kind,
                namespace: identity.namespace.as_str().to_owned(),
                name: identity.name.as_str().to_owned(),
                uid: identity.uid.as_str().to_owned(),
                version: String::new(),
            };
            let namespace = identity.namespace.as_str();
            let message = format!("ownerRef {owner} does not exist in namespace {namespace:?}");
            transcript.event(ObjectEvent::warning(about, "OwnerRefInvalidNamespace", message));
        }
    }
}

/// Examines an item.
pub(super) fn attempt(
    item: &GarbageCandidate,
    transcript: &mut Transcript,
) -> Result<Vec<GraphFinding>, TranscriptStop> {
    item.report_invalid_owners(transcript);
    if item.is_being_deleted && !item.is_deleting_dependents {
        return Ok(Vec::new());
    }
    let identity = &item.object.identity;
    if item.object.kind.is_namespaced && !identity.is_namespaced() {
        transcript.because("an object of the whole cluster cannot have a namespaced owner");
        return Ok(Vec::new());
    }
    let latest = match transcript.send(item.object.read())? {
        Ok(latest) if latest["metadata"]["uid"] == identity.uid.as_str() => latest,
        Err(error) if !error.is_not_found() => return Err(error.into()),
        _ => {
            transcript.because("no object has this UID any more");
            return Ok(vec![GraphFinding::Gone(identity.clone())]);
        }
    };
    let notes = match item.is_deleting_dependents {
        true => wait_for_dependents(item, transcript)?,
        false => collect(item, &latest, transcript)?,
    };
    if item.is_virtual && notes.is_empty() {
        // Its watch lags. If it was added and removed meanwhile, nothing will ever show it.
        let message = "the object has not been observed yet".to_owned();
        return Err(TranscriptStop::Failed(SyncError { message, retry: Retry::Quietly }));
    }
    Ok(notes)
}

/// An item that is being deleted in the foreground.
// k8s: garbagecollector.go processDeletingDependentsItem
fn wait_for_dependents(
    item: &GarbageCandidate,
    transcript: &mut Transcript,
) -> Result<Vec<GraphFinding>, TranscriptStop> {
    if item.blocking.is_empty() {
        transcript.because("no dependent blocks the deletion any more");
        write::remove_finalizer(&item.object, FOREGROUND, transcript)?;
        return Ok(Vec::new());
    }
    transcript.because(format!("{} dependents block the deletion", item.blocking.len()));
    let idle = item.blocking.iter().filter(|dependent| !dependent.is_deleting_dependents);
    let idle: Vec<_> = idle.map(|dependent| dependent.uid.clone()).collect();
    Ok(if idle.is_empty() { Vec::new() } else { vec![GraphFinding::Wake(idle)] })
}

/// Owners by what became of them.
// k8s: garbagecollector.go classifyReferences
#[derive(Default)]
struct OwnersByState {
    /// They are there.
    solid: usize,
    /// They are absent.
    dangling: Vec<Uid>,
    /// They are being deleted in the foreground.
    waiting: Vec<Uid>,
    notes: Vec<GraphFinding>,
}

fn collect(
    item: &GarbageCandidate,
    latest: &Value,
    transcript: &mut Transcript,
) -> Result<Vec<GraphFinding>, TranscriptStop> {
    let references = &latest["metadata"]["ownerReferences"];
    let references = Vec::<OwnerReference>::deserialize(references).unwrap_or_default();
    if references.is_empty() {
        transcript.because("it has no owners");
        return Ok(Vec::new());
    }
    let Some(mut owners) = classify(item, &references, transcript)? else { return Ok(Vec::new()) };
    if owners.solid > 0 {
        transcript.because(format!("{} of its owners are there", owners.solid));
        let dropped: Vec<_> = owners.dangling.iter().chain(&owners.waiting).cloned().collect();
        if !dropped.is_empty() {
            write::drop_owners(&item.object, latest, &dropped, transcript)?;
        }
        return Ok(owners.notes);
    }
    let (absent, waiting) = (owners.dangling.len(), owners.waiting.len());
    transcript.because(format!("no owner is left: {absent} are absent, {waiting} wait for it"));
    let propagation = if waiting > 0 && item.has_dependents {
        if item.may_be_in_a_cycle {
            transcript
                .because("an owner and a dependent wait for it: its references stop blocking");
            write::unblock_owners(&item.object, latest, transcript)?;
        }
        Propagation::Foreground
    } else {
        propagation(latest)
    };
    if !write::delete(&item.object, latest, propagation, transcript)? {
        owners.notes.push(GraphFinding::Gone(item.object.identity.clone()));
    }
    Ok(owners.notes)
}

/// How dependents of the item are treated: as its finalizers say.
fn propagation(latest: &Value) -> Propagation {
    let has = |name: &str| write::finalizers(latest).any(|finalizer| finalizer == name);
    match (has(ORPHAN), has(FOREGROUND)) {
        (true, _) => Propagation::Orphan,
        (false, true) => Propagation::Foreground,
        (false, false) => Propagation::Background,
    }
}

/// Reads the owners; `None` when nothing can be concluded from them.
fn classify(
    item: &GarbageCandidate,
    references: &[OwnerReference],
    transcript: &mut Transcript,
) -> Result<Option<OwnersByState>, TranscriptStop> {
    let mut owners = OwnersByState::default();
    for reference in references {
        match examine(item, reference, transcript)? {
            OwnerState::Invalid => return Ok(None),
            OwnerState::Unmapped => {
                let (kind, version) = (&*reference.kind, &*reference.api_version);
                transcript.because(format!("the API server has no kind {kind} in {version}"));
                owners.solid += 1;
                owners.notes.push(GraphFinding::Unmapped);
                return Ok(Some(OwnersByState {
                    dangling: Vec::new(),
                    waiting: Vec::new(),
                    ..owners
                }));
            }
            OwnerState::Unlisted(kind) => {
                transcript.because(format!("{kind:?} are not listed yet, so the owner counts"));
                owners.solid += 1;
                owners.notes.push(GraphFinding::Unlisted(kind));
            }
            OwnerState::Absent(identity) => {
                owners.dangling.push(reference.uid.clone());
                owners.notes.extend(identity.map(GraphFinding::Absent));
            }
            OwnerState::Waiting => owners.waiting.push(reference.uid.clone()),
            OwnerState::Solid => owners.solid += 1,
        }
    }
    Ok(Some(owners))
}

/// The state of an owner.
enum OwnerState {
    /// An object of the whole cluster cannot have such an owner.
    Invalid,
    Unmapped,
    Unlisted(Kind),
    /// With the identity if that is news.
    Absent(Option<ObjectIdentity>),
    Waiting,
    Solid,
}

// k8s: garbagecollector.go isDangling
fn examine(
    item: &GarbageCandidate,
    reference: &OwnerReference,
    transcript: &mut Transcript,
) -> Result<OwnerState, TranscriptStop> {
    let own = &item.object.identity.namespace;
    let owner = ObjectIdentity::of_owner(reference, own);
    let of_cluster = owner.clone().of_cluster();
    if item.absent.has(&of_cluster) || item.absent.has(&owner) {
        return Ok(OwnerState::Absent(None));
    }
    let Some(mapped) = item.mapper.find(&reference.api_version, &reference.kind) else {
        return Ok(OwnerState::Unmapped);
    };
    if let Some(kind) = mapped.followed.filter(|kind| item.unlisted.contains(kind)) {
        return Ok(OwnerState::Unlisted(kind));
    }
    let owner = if mapped.kind.is_namespaced { owner } else { of_cluster };
    if mapped.kind.is_namespaced && own.is_empty() {
        transcript.because("an object of the whole cluster names a namespaced owner");
        return Ok(OwnerState::Invalid);
    }
    let read = MappedObject { identity: owner.clone(), kind: mapped.kind }.read();
    match transcript.send(read)? {
        Ok(live) if live["metadata"]["uid"] == reference.uid.as_str() => {
            Ok(if is_waiting_for_dependents(&live) {
                OwnerState::Waiting
            } else {
                OwnerState::Solid
            })
        }
        Err(error) if !error.is_not_found() => Err(error.into()),
        _ => Ok(OwnerState::Absent(Some(owner))),
    }
}

impl MappedObject {
    /// The request that reads it.
    pub(super) fn read(&self) -> Request {
        Request::Read { target: self.target(), only_metadata: true }
    }
}
