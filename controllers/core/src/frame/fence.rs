//! Own writes that a key waits for: its next sync sees their effect.
//!
//! Input: the answers to the key's requests. Output: whether the tables are as new as these
//! answers. A created or changed object counts as seen once the table of its kind has its version;
//! a deleted one once the table lacks it or marks it as deleting. After a request without an
//! answer, a list of the kind shows the outcome. No time-out opens a fence, because a sync on stale
//! tables creates pods twice.
// k8s: pkg/controller/util/consistency/consistency.go

use std::collections::BTreeMap;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};
use serde_json::Value;

use crate::meta::Uid;
use crate::tables::Tables;

/// The writes that a key waits for.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fence {
    versions: BTreeMap<Kind, u64>,
    gone: Vec<Gone>,
    /// Kinds and namespaces of requests without an answer.
    unknown: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq)]
struct Gone {
    kind: Kind,
    key: ObjectKey,
    uid: Uid,
}

impl Fence {
    /// Records the outcome of a request.
    pub(super) fn record(&mut self, request: &Request, answer: &Answer, tables: &Tables) {
        let object = match answer {
            Ok(object) => object,
            Err(error) if error.is_unknown() => return self.record_unknown(request),
            Err(error) if error.is_not_found() => {
                // Another client deleted the object: the table will show the deletion.
                if let Request::Delete { target, .. } = request {
                    self.record_gone(target.kind, &target.key, tables);
                }
                return;
            }
            Err(_) => return,
        };
        match request {
            Request::Create { kind, below: None, .. } => self.record_version(*kind, object),
            Request::Replace { target, .. } | Request::Patch { target, .. } => {
                self.record_version(target.kind, object);
            }
            Request::Delete { target, .. } => self.record_gone(target.kind, &target.key, tables),
            _ => {}
        }
    }

    fn record_version(&mut self, kind: Kind, object: &Value) {
        let version = object["metadata"]["resourceVersion"].as_str();
        if let Some(version) = version.and_then(|version| version.parse::<u64>().ok()) {
            let known = self.versions.entry(kind).or_default();
            *known = version.max(*known);
        }
    }

    fn record_gone(&mut self, kind: Kind, key: &ObjectKey, tables: &Tables) {
        if let Some(meta) = tables.meta(kind, key) {
            self.gone.push(Gone { kind, key: key.clone(), uid: meta.uid.clone() });
        }
    }

    fn record_unknown(&mut self, request: &Request) {
        let scope = match request {
            Request::Create { kind, namespace, .. } => (*kind, namespace.clone()),
            Request::Replace { target, .. }
            | Request::Patch { target, .. }
            | Request::Delete { target, .. } => (target.kind, target.key.namespace().to_owned()),
            _ => return,
        };
        let list = Request::List {
            kind: scope.0,
            namespace: scope.1,
            labels: String::new(),
            only_metadata: true,
        };
        if !self.unknown.contains(&list) {
            self.unknown.push(list);
        }
    }

    /// The lists that show the outcome of requests without an answer.
    pub(super) fn unknown(&self) -> &[Request] {
        &self.unknown
    }

    /// Records the answers to these lists; a failed list must be requested again.
    pub(super) fn settle(&mut self, answers: &[Answer]) {
        let lists = std::mem::take(&mut self.unknown);
        for (list, answer) in lists.into_iter().zip(answers) {
            let (Request::List { kind, .. }, Ok(found)) = (&list, answer) else {
                self.unknown.push(list);
                continue;
            };
            let items = found["items"].as_array().into_iter().flatten();
            items.for_each(|item| self.record_version(*kind, item));
        }
    }

    /// Drops the writes that the tables show; true when none is left.
    pub(super) fn is_open(&mut self, tables: &Tables) -> bool {
        self.versions
            .retain(|kind, version| tables.version(*kind).is_some_and(|known| known < *version));
        self.gone.retain(|gone| {
            let meta = tables.meta(gone.kind, &gone.key);
            meta.is_some_and(|meta| meta.uid == gone.uid && !meta.is_deleting())
        });
        self.versions.is_empty() && self.gone.is_empty() && self.unknown.is_empty()
    }

    /// The versions that are waited for.
    pub(super) fn versions(&self) -> impl Iterator<Item = (Kind, u64)> {
        self.versions.iter().map(|(kind, version)| (*kind, *version))
    }

    /// The deleted objects that the tables may still have.
    pub(super) fn gone(&self) -> impl Iterator<Item = (Kind, ObjectKey)> {
        self.gone.iter().map(|gone| (gone.kind, gone.key.clone()))
    }

    /// Describes the pending writes for explain.
    pub(super) fn describe(&self) -> String {
        let versions = self
            .versions
            .iter()
            .map(|(kind, version)| format!("the watch of {kind:?} to reach version {version}"));
        let gone = self.gone.iter().map(|gone| format!("{:?} {} to go", gone.kind, gone.key));
        let unknown = self.unknown.iter().map(|_| "a list after a lost answer".to_owned());
        versions.chain(gone).chain(unknown).collect::<Vec<_>>().join(", ")
    }
}
