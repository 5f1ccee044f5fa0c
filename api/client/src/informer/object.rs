//! What an informer has to know of an object, and names of objects.
//!
//! A user's type names the fields that it reads, and no others: what it does not name is skipped
//! while the text is read. [`PrunedMeta`] is the least that its `metadata` has to be.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::symbol::Symbol;

/// An object as its users read it. Equal objects are the same to every subscriber.
pub trait Object: DeserializeOwned + PartialEq + Send + Sync + 'static {
    /// Empty for objects of the whole cluster.
    fn namespace(&self) -> &str;
    /// The object's name.
    fn name(&self) -> &str;
    /// Empty when nobody reads it; then an object and its namesake that came later are one.
    fn uid(&self) -> &str;
    /// The version that this state has.
    fn resource_version(&self) -> &str;
}

impl<T> Object for T
where
    T: k8s_openapi::Metadata<Ty = ObjectMeta> + DeserializeOwned + PartialEq,
    T: Send + Sync + 'static,
{
    fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }
    fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }
    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }
    fn resource_version(&self) -> &str {
        self.metadata().resource_version.as_deref().unwrap_or_default()
    }
}

/// The least of an object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PrunedMeta {
    /// The object's name.
    pub name: Box<str>,
    /// Its namespace; many objects share one.
    pub namespace: Symbol,
    /// Its uid.
    pub uid: Box<str>,
    /// The version that this state has.
    pub resource_version: Box<str>,
}

/// Implements [`Object`] for a type with a field `metadata: PrunedMeta`.
#[macro_export]
macro_rules! pruned_object {
    ($kind:ty) => {
        impl $crate::informer::Object for $kind {
            fn namespace(&self) -> &str {
                self.metadata.namespace.as_str()
            }
            fn name(&self) -> &str {
                &self.metadata.name
            }
            fn uid(&self) -> &str {
                &self.metadata.uid
            }
            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    };
}

/// What of an object can be read although the whole cannot.
#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct OnlyMeta {
    pub(super) metadata: PrunedMeta,
}

/// `namespace/name`, or `name` of an object of the whole cluster.
// k8s: staging/src/k8s.io/client-go/tools/cache/store.go MetaNamespaceKeyFunc
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

impl ObjectKey {
    /// The key of a name in a namespace, which may be empty.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(match namespace.is_empty() {
            true => name.into(),
            false => format!("{namespace}/{name}").into(),
        })
    }

    /// An object's key.
    pub fn of<T: Object>(object: &T) -> Self {
        Self::new(object.namespace(), object.name())
    }

    /// The whole key.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Empty for objects of the whole cluster.
    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    /// The name alone.
    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&self.0, |(_, name)| name)
    }
}

/// What can be told of an object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its uid; empty when it has none.
    pub uid: Box<str>,
}

impl Borrow<str> for ObjectKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_two_parts_or_one() {
        for (namespace, name, whole) in [("a", "b", "a/b"), ("", "b", "b")] {
            let key = ObjectKey::new(namespace, name);
            assert_eq!((key.as_str(), key.namespace(), key.name()), (whole, namespace, name));
        }
    }
}
