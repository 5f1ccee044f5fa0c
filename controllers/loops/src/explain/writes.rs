//! Writes in words.
//!
//! Input: the requests that a sync would make at once. Output: one phrase, such as
//! `create 3 pods in namespace a`. Pure.

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Request, Target};
use serde_json::Value;

use super::evidence::text;
use super::names;

/// The writes that would be made at once, in a phrase for each verb and kind.
pub(super) fn phrases(requests: &[Request]) -> Vec<String> {
    let mut groups: Vec<((&'static str, Kind), Vec<&Request>)> = Vec::new();
    for request in requests {
        let Some(id) = verb_and_kind(request) else { continue };
        match groups.iter_mut().find(|(known, _)| *known == id) {
            Some((_, group)) => group.push(request),
            None => groups.push((id, vec![request])),
        }
    }
    groups.iter().map(|((verb, kind), group)| phrase(verb, *kind, group)).collect()
}

fn verb_and_kind(request: &Request) -> Option<(&'static str, Kind)> {
    match request {
        Request::Create { kind, .. } => Some(("create", *kind)),
        Request::Replace { target, .. } => Some(("update", target.kind)),
        Request::Patch { target, .. } => Some(("patch", target.kind)),
        Request::Delete { target, .. } => Some(("delete", target.kind)),
        Request::DeleteCollection { kind, .. } => Some(("delete all", *kind)),
        Request::Read { .. } | Request::List { .. } | Request::Get { .. } => None,
    }
}

fn phrase(verb: &str, kind: Kind, group: &[&Request]) -> String {
    if let [one] = group {
        return single(one, kind);
    }
    let known: Vec<_> = group.iter().filter_map(|request| target(request)).collect();
    let known: Vec<_> = known.iter().map(|target| target.key.name()).collect();
    match known.is_empty() {
        true => format!("{verb} {} {}", group.len(), kind.plural),
        false => format!("{verb} {} {}: {}", group.len(), kind.plural, names(&known)),
    }
}

fn target(request: &Request) -> Option<&Target> {
    match request {
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. } => Some(target),
        _ => None,
    }
}

fn single(request: &Request, kind: Kind) -> String {
    let kind_name = kind.kind;
    match request {
        Request::Create { body, .. } => {
            let name = text(&body["metadata"]["name"]);
            match name.is_empty() {
                true => format!("create a {kind_name}"),
                false => format!("create {kind_name} {name}"),
            }
        }
        Request::Replace { target, body } => replaced(target, body),
        Request::Patch { target, .. } if target.sub.is_empty() => {
            format!("patch {kind_name} {}", target.key.name())
        }
        Request::Patch { target, .. } => {
            format!("patch the {} of {kind_name} {}", target.sub, target.key.name())
        }
        Request::Delete { target, .. } => format!("delete {kind_name} {}", target.key.name()),
        Request::DeleteCollection { .. } => format!("delete all {}", kind.plural),
        Request::Read { .. } | Request::List { .. } | Request::Get { .. } => String::new(),
    }
}

fn replaced(target: &Target, body: &Value) -> String {
    let (kind, name) = (target.kind.kind, target.key.name());
    match (target.sub, body["spec"]["replicas"].as_i64()) {
        ("", Some(replicas)) => format!("update {kind} {name} (replicas: {replicas})"),
        ("", None) => format!("update {kind} {name}"),
        ("finalize", _) => format!("remove the finalizer of {kind} {name}"),
        (sub, _) => format!("update the {sub} of {kind} {name}"),
    }
}
