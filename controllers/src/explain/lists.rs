//! The tables of a frame that only explains, filled by one list of each kind.
//!
//! Input: a client, the frame's kinds. Output: the frame with these objects. Nothing is watched,
//! and no sync begins. Bounds: the objects of one namespace, and those of cluster-wide kinds.

use std::time::Instant;

use futures_util::future::join_all;
use jiff::Timestamp;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Frame, Now};
use pintle_controllers_core::tables::{Decoded, DiscoveredKinds, WatchEvent};

use super::ExplainError;

/// Fills the frame with what its controllers read about this namespace.
pub(super) async fn fill(
    frame: &mut Frame,
    client: &kube::Client,
    namespace: &str,
    discovery: DiscoveredKinds,
) -> Result<(), ExplainError> {
    let typed = frame.kinds();
    let mut metadata = Vec::new();
    if frame.reads_all_metadata() {
        let kinds = discovery.preferred(&["list", "watch"]).map(|found| found.kind);
        metadata = kinds.filter(|kind| kind.is_namespaced && !typed.contains(kind)).collect();
    }
    // Read with these lists: it is as new as they are, also where it began before them.
    let discovery = DiscoveredKinds { read_at: None, ..discovery };
    frame.apply(WatchEvent::Discovered(discovery), now());
    let sources = typed.iter().map(|kind| (*kind, false));
    let sources: Vec<_> = sources.chain(metadata.iter().map(|kind| (*kind, true))).collect();
    let lists = sources.iter().map(|(kind, only_metadata)| {
        let request = list(*kind, namespace, *only_metadata);
        async move { pintle_api::send(client, &request).await }
    });
    let answers = join_all(lists).await;
    for ((kind, only_metadata), answer) in sources.into_iter().zip(answers) {
        // Of these only counts are read, and a kind without a count keeps its last one.
        if only_metadata && answer.is_err() {
            continue;
        }
        apply(frame, kind, only_metadata, answer)?;
    }
    Ok(())
}

fn list(kind: Kind, namespace: &str, only_metadata: bool) -> Request {
    let namespace = if kind.is_namespaced { namespace } else { "" };
    if kind.fields.is_empty() {
        let (namespace, labels) = (namespace.to_owned(), String::new());
        return Request::List { kind, namespace, labels, only_metadata };
    }
    let fields = kind.fields.replace('=', "%3D").replace('/', "%2F");
    Request::Get { path: format!("{}?fieldSelector={fields}", kind.path(namespace)) }
}

fn apply(
    frame: &mut Frame,
    kind: Kind,
    only_metadata: bool,
    answer: Answer,
) -> Result<(), ExplainError> {
    let list = match answer {
        Ok(list) => list,
        // A kind that the server does not have is an empty kind.
        Err(error) if error.is_not_found() => serde_json::Value::Null,
        Err(source) => return Err(ExplainError::Read { what: format!("{kind:?}"), source }),
    };
    frame.apply(WatchEvent::ListBegun(kind), now());
    for item in list["items"].as_array().into_iter().flatten() {
        let text = item.to_string();
        let decoded = match only_metadata {
            true => Decoded::only_metadata(kind, &text),
            false => Decoded::typed(kind, &text),
        };
        // What cannot be read is no part of a decision, as in a manager.
        if let Ok(object) = decoded {
            frame.apply(WatchEvent::Listed(object), now());
        }
    }
    frame.apply(WatchEvent::ListComplete(kind), now());
    Ok(())
}

pub(super) fn now() -> Now {
    Now { instant: Instant::now(), wall: Timestamp::now() }
}
