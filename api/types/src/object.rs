//! The fields of an object that an informer needs, and the object's key.
//!
//! A user's type names the fields that it reads; every other field is skipped while the text is
//! read. [`PrunedMeta`] is the least that its `metadata` can be.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::key::ObjectKey;
use crate::symbol::Symbol;

/// An object as its users read it. Equal objects are the same to every subscriber.
pub trait Object: DeserializeOwned + PartialEq + Send + Sync + 'static {
    /// Empty for objects of the whole cluster.
    fn namespace(&self) -> &str;
    /// The object's name.
    fn name(&self) -> &str;
    /// Empty when the type does not read it; then an object and a later namesake are one.
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
        impl $crate::object::Object for $kind {
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

/// The key of an object.
pub fn key_of<T: Object>(object: &T) -> ObjectKey {
    ObjectKey::new(object.namespace(), object.name())
}

/// The identity of an object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnreadableObject {
    /// Its key.
    pub key: ObjectKey,
    /// Its uid; empty when it has none.
    pub uid: Box<str>,
}
