//! Paths of the Kubernetes API.
//!
//! Input: a path. Output: the kind, namespace, name and subresource that it names. Pure.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::Target;

use crate::kinds;

/// The subresources of the served kinds.
const SUBRESOURCES: [&str; 7] =
    ["status", "scale", "finalize", "approval", "token", "eviction", "binding"];

/// What a path names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) kind: Kind,
    /// Empty for all namespaces, and for objects of the whole cluster.
    pub(crate) namespace: String,
    /// Empty for a collection.
    pub(crate) name: String,
    /// Empty for the object itself.
    pub(crate) sub: &'static str,
}

impl Route {
    /// `None` for a path that names nothing of a kind that the server serves.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let (group, version, rest) = match &parts[..] {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // A namespace's own subresources look like collections in it.
        let (namespace, rest) = match rest {
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let (plural, name, sub) = match rest {
            [plural] => (*plural, "", ""),
            [plural, name] => (*plural, *name, ""),
            [plural, name, sub] => (*plural, *name, *sub),
            _ => return None,
        };
        let sub = match sub {
            "" => "",
            sub => *SUBRESOURCES.iter().find(|known| **known == sub)?,
        };
        let kind = kinds::find(group, version, plural)?;
        Some(Self { kind, namespace: namespace.to_owned(), name: name.to_owned(), sub })
    }

    /// The object's namespace and name.
    pub(crate) fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// The object, or its subresource.
    pub(crate) fn target(&self) -> Target {
        Target { kind: self.kind, key: self.key(), sub: self.sub }
    }
}
