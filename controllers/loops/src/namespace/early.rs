//! Deletes a part of a large namespace's objects before its grace period ends.
//!
//! The grace period is for API servers that lag behind and still accept objects, so all contents
//! are listed when it ends. Their deletion, one object after the other, takes a time proportional
//! to their number. Therefore kinds with many objects are deleted at once if the namespace has no
//! pods, so that few objects are left after the grace period. Input: the counts of the tables, and
//! a live list of pods. Bounds: kinds of [`MANY`] objects or more; a smaller namespace gets
//! upstream's writes only.

use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::request::{Propagation, Request};
use pintle_controllers_core::frame::{SyncOutcome, Transcript, TranscriptStop};
use pintle_controllers_core::tables::Tables;

use super::content::list;

/// Deleting so many objects takes a while.
const MANY: usize = 100;

/// The kinds that have many objects in the namespace; none while pods are known to be there, which
/// may need all the others until they end.
pub(super) fn large_kinds(namespace: &str, tables: &Tables) -> Vec<Kind> {
    if tables.has_objects(PODS, namespace) {
        return Vec::new();
    }
    let collective = tables.discovery.preferred(&["delete", "deletecollection"]);
    let namespaced = collective.map(|found| found.kind).filter(|kind| kind.is_namespaced);
    namespaced
        .filter(|kind| tables.count(*kind, namespace).is_some_and(|count| count >= MANY))
        .collect()
}

/// Deletes these kinds, unless there are pods. Failures are retried after the grace period.
pub(super) fn delete_large(
    kinds: &[Kind],
    namespace: &str,
    transcript: &mut Transcript,
) -> Result<SyncOutcome<()>, TranscriptStop> {
    transcript.because("the grace is not over: only kinds with many objects are deleted");
    let pods = transcript.send(list(PODS, namespace, true))?;
    let is_empty = |list: &serde_json::Value| list["items"].as_array().is_none_or(Vec::is_empty);
    if pods.is_ok_and(|pods| is_empty(&pods)) {
        let deletions = kinds.iter().map(|kind| Request::DeleteCollection {
            kind: *kind,
            namespace: namespace.to_owned(),
            propagation: Some(Propagation::Background),
        });
        drop(transcript.send_all(deletions.collect())?);
    }
    Ok(SyncOutcome::done())
}
