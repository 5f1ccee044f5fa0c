//! Deletes a part of a large namespace's objects before its grace period ends.
//!
//! The grace is for servers that lag behind and still accept objects: therefore everything is
//! looked at when it is over. That takes as long as there are objects, one after the other; a
//! namespace without pods in which some kind has many loses these at once, so that few are left
//! after it. Input: what the tables count, and a live list of pods. Bounds: kinds of [`MANY`]
//! objects or more; a smaller namespace sees the writes of upstream and no others.

use pintle_api_types::kind::{Kind, PODS};
use pintle_api_types::request::{Propagation, Request};
use pintle_controllers_core::frame::{Outcome, Stop, Transcript};
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

/// Deletes these kinds, unless there are pods. What fails is tried again when the grace is over.
pub(super) fn delete_large(
    kinds: &[Kind],
    namespace: &str,
    asked: &mut Transcript,
) -> Result<Outcome<()>, Stop> {
    asked.because("the grace is not over: only kinds with many objects are deleted");
    let pods = asked.send(list(PODS, namespace, true))?;
    let is_empty = |list: &serde_json::Value| list["items"].as_array().is_none_or(Vec::is_empty);
    if pods.is_ok_and(|pods| is_empty(&pods)) {
        let deletions = kinds.iter().map(|kind| Request::DeleteCollection {
            kind: *kind,
            namespace: namespace.to_owned(),
            propagation: Some(Propagation::Background),
        });
        drop(asked.send_all(deletions.collect())?);
    }
    Ok(Outcome::done())
}
