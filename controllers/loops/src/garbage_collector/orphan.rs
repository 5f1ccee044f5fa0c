//! Carries out an orphaning deletion: the dependents lose their reference, then the owner its
//! finalizer.
// k8s: pkg/controller/garbagecollector/garbagecollector.go attemptToOrphanWorker

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{ApiError, PatchForm};
use pintle_controllers_core::frame::{Transcript, TranscriptStop};
use pintle_controllers_core::meta::Uid;

use super::GraphFinding;
use super::graph::{Graph, ORPHAN};
use super::mapper::Mapper;
use super::write::{self, MappedObject};

/// An object that leaves its dependents as orphans.
#[derive(Debug)]
pub struct OrphaningOwner {
    object: MappedObject,
    dependents: Vec<MappedObject>,
}

impl OrphaningOwner {
    pub(super) fn gather(uid: &Uid, kind: Kind, graph: &Graph, mapper: &Mapper) -> Option<Self> {
        let node = graph.get(uid)?;
        let dependents = graph.dependents(node).filter_map(|dependent| {
            let identity = dependent.identity.clone();
            // If a dependent's kind no longer exists, neither does the dependent.
            let kind = mapper.find(&identity.api_version, &identity.kind)?.kind;
            Some(MappedObject { identity, kind })
        });
        let dependents = dependents.collect();
        Some(Self { object: MappedObject { identity: node.identity.clone(), kind }, dependents })
    }
}

/// Orphans the dependents of an owner.
pub(super) fn attempt(
    owner: &OrphaningOwner,
    transcript: &mut Transcript,
) -> Result<Vec<GraphFinding>, TranscriptStop> {
    let dropped = [owner.object.identity.uid.clone()];
    let mut failures = Vec::new();
    let mut unsupported = Vec::new();
    let patches = owner.dependents.iter().map(|dependent| {
        let body = write::strategic_drop(&dependent.identity.uid, &dropped);
        dependent.patch(PatchForm::Strategic, body)
    });
    let answers = transcript.send_all(patches.collect())?;
    for (dependent, answer) in owner.dependents.iter().zip(answers) {
        match answer {
            Err(error) if write::is_unsupported_form(&error) => unsupported.push(dependent),
            Err(error) => note(dependent, &error, &mut failures),
            Ok(_) => {}
        }
    }
    merge_each(&unsupported, &dropped, &mut failures, transcript)?;
    if !failures.is_empty() {
        let owner = &owner.object.identity;
        let failures = failures.join(", ");
        return Err(TranscriptStop::failed(format!(
            "failed to orphan dependents of owner {owner}, got errors: [{failures}]"
        )));
    }
    transcript.because(format!("{} dependents are orphaned", owner.dependents.len()));
    write::remove_finalizer(&owner.object, ORPHAN, transcript)?;
    Ok(Vec::new())
}

/// Drops the owner from dependents of kinds without lists that are merged by keys.
fn merge_each(
    dependents: &[&MappedObject],
    dropped: &[Uid],
    failures: &mut Vec<String>,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    let reads = dependents.iter().map(|dependent| dependent.read());
    let answers = transcript.send_all(reads.collect())?;
    let mut patched = Vec::new();
    let mut patches = Vec::new();
    for (dependent, answer) in dependents.iter().zip(answers) {
        match answer {
            // Another object took the name.
            Ok(live) if live["metadata"]["uid"] != dependent.identity.uid.as_str() => {}
            Ok(live) => {
                patched.push(dependent);
                patches.push(dependent.patch(PatchForm::Merge, write::merge_drop(&live, dropped)));
            }
            Err(error) => note(dependent, &error, failures),
        }
    }
    let answers = transcript.send_all(patches)?;
    for (dependent, answer) in patched.into_iter().zip(answers) {
        if let Err(error) = answer {
            note(dependent, &error, failures);
        }
    }
    Ok(())
}

fn note(dependent: &MappedObject, error: &ApiError, failures: &mut Vec<String>) {
    if !error.is_not_found() {
        failures.push(format!("orphaning {} failed, {error}", dependent.identity));
    }
}
