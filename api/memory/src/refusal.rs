//! Requests that a test wants refused: quota, webhooks, overload.
//!
//! Input: which requests, how often, with which error. Output: that error, once the identity may
//! make the request and before anything is changed, as admission does. Pure.

use pintle_api_types::kind::Kind;
use pintle_api_types::request::{ApiError, Request};

use crate::meta;

/// The verbs that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Create, also below an object.
    Create,
    /// Replace.
    Replace,
    /// Patch.
    Patch,
    /// Delete.
    Delete,
    /// Delete all of a kind.
    DeleteCollection,
    /// Read an object.
    Read,
    /// List a kind.
    List,
    /// Read a path.
    Get,
}

/// Which requests are refused, and how; `None` and empty mean any.
#[derive(Clone, Debug, Default)]
pub struct Refusal {
    /// Of this verb.
    pub verb: Option<Verb>,
    /// About this kind.
    pub kind: Option<Kind>,
    /// In this namespace.
    pub namespace: String,
    /// About the object of this name.
    pub name: String,
    /// So many of them; all when `None`.
    pub times: Option<u32>,
    /// The error that they get.
    pub error: ApiError,
}

impl Refusal {
    /// True if it applies to a request.
    pub(crate) fn matches(&self, request: &Request) -> bool {
        let (verb, kind, namespace, name) = subject(request);
        self.times != Some(0)
            && self.verb.is_none_or(|wanted| wanted == verb)
            && (self.kind.is_none() || self.kind == kind)
            && (self.namespace.is_empty() || self.namespace == namespace)
            && (self.name.is_empty() || self.name == name)
    }

    /// Counts one refused request.
    pub(crate) fn count(&mut self) {
        self.times = self.times.map(|times| times.saturating_sub(1));
    }
}

fn subject(request: &Request) -> (Verb, Option<Kind>, &str, &str) {
    let (verb, target) = match request {
        Request::Create { kind, namespace, below, body } => {
            let name = below.as_ref().map_or_else(|| meta::name(body), |below| &below.name);
            return (Verb::Create, Some(*kind), namespace, name);
        }
        Request::DeleteCollection { kind, namespace, .. } => {
            return (Verb::DeleteCollection, Some(*kind), namespace, "");
        }
        Request::List { kind, namespace, .. } => {
            return (Verb::List, Some(*kind), namespace, "");
        }
        Request::Get { path } => return (Verb::Get, None, "", path),
        Request::Replace { target, .. } => (Verb::Replace, target),
        Request::Patch { target, .. } => (Verb::Patch, target),
        Request::Delete { target, .. } => (Verb::Delete, target),
        Request::Read { target, .. } => (Verb::Read, target),
    };
    (verb, Some(target.kind), target.key.namespace(), target.key.name())
}
