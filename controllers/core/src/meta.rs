//! The metadata of an object, as far as controllers read it.
//!
//! Decoded straight from the text; whatever is not named here is skipped. Of annotations only those
//! are kept that a controller reads.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::symbol::Symbol;
use pintle_api_types::symbol_map::SymbolMap;
use serde::{Deserialize, Deserializer};

/// The UID of an object; texts of equal UIDs are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
pub struct Uid(Symbol);

impl Uid {
    /// The UID with this text.
    pub fn of(text: &str) -> Self {
        Self(Symbol::of(text))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Metadata of an object.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    /// The object's name: the graph of owners has it too.
    pub name: Symbol,
    /// Its namespace; empty for objects of the whole cluster.
    pub namespace: Symbol,
    /// Its UID.
    pub uid: Uid,
    /// Its resource version; 0 when that is no number.
    #[serde(rename = "resourceVersion", deserialize_with = "version")]
    pub version: u64,
    /// The generation of its spec.
    pub generation: i64,
    /// When it was created.
    #[serde(deserialize_with = "time")]
    pub creation_timestamp: Option<Timestamp>,
    /// When it was or will be deleted.
    #[serde(deserialize_with = "time")]
    pub deletion_timestamp: Option<Timestamp>,
    /// Its grace period once it is deleted.
    pub deletion_grace_period_seconds: Option<i64>,
    /// Its labels.
    pub labels: SymbolMap,
    /// The annotations that controllers read, see [`READ_ANNOTATIONS`].
    #[serde(deserialize_with = "read_annotations")]
    pub annotations: SymbolMap,
    /// Its owners, shared with the graph of owners.
    #[serde(deserialize_with = "shared")]
    pub owner_references: Arc<[OwnerReference]>,
    /// Finalizers that must be removed before the object is.
    #[serde(deserialize_with = "or_default")]
    pub finalizers: Box<[Symbol]>,
}

impl Meta {
    /// The key of the object.
    pub fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.namespace, &self.name)
    }

    /// The object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// The reference to its controller.
    // k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/controller_ref.go GetControllerOfNoCopy
    pub fn controller(&self) -> Option<&OwnerReference> {
        self.owner_references.iter().find(|owner| owner.controller)
    }

    /// The object with this UID is its controller.
    pub fn is_controlled_by(&self, uid: &Uid) -> bool {
        self.controller().is_some_and(|owner| owner.uid == *uid)
    }

    /// The object has this finalizer.
    pub fn has_finalizer(&self, name: &str) -> bool {
        self.finalizers.iter().any(|finalizer| &**finalizer == name)
    }

    /// The value of an annotation that controllers read.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        debug_assert!(is_read(key), "annotation {key} is not kept");
        self.annotations.get(key).map(Symbol::as_str)
    }
}

/// A reference to an owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct OwnerReference {
    /// Group and version of the owner.
    pub api_version: Symbol,
    /// The owner's kind.
    pub kind: Symbol,
    /// The owner's name.
    pub name: Symbol,
    /// The owner's UID.
    pub uid: Uid,
    /// The owner is the managing controller.
    #[serde(deserialize_with = "or_default")]
    pub controller: bool,
    /// A foreground deletion of the owner waits for this object.
    #[serde(deserialize_with = "or_default")]
    pub block_owner_deletion: bool,
}

/// Annotations that controllers read: whole keys, or prefixes that end in a slash.
pub const READ_ANNOTATIONS: &[&str] = &[
    "batch.kubernetes.io/",
    "controller.kubernetes.io/",
    "deployment.kubernetes.io/",
    "deprecated.daemonset.template.generation",
    "deprecated.deployment.rollback.to",
    "kubernetes.io/enforce-mountable-secrets",
    "kubernetes.io/service-account.name",
    "kubernetes.io/service-account.uid",
    "pod.alpha.kubernetes.io/initialized",
    "resource.kubernetes.io/extended-resource-claim",
    "statefulset.kubernetes.io/",
    "volume.beta.kubernetes.io/storage-class",
];

fn is_read(key: &str) -> bool {
    READ_ANNOTATIONS.iter().any(|read| match read.ends_with('/') {
        true => key.starts_with(read),
        false => key == *read,
    })
}

/// Decodes a list, map or value for which `null` means nothing.
///
/// # Errors
/// When the text is neither `null` nor the value.
pub fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// Decodes a list that may be `null`; all empty ones are one.
fn shared<'de, D, T>(from: D) -> Result<Arc<[T]>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let list = Option::<Vec<T>>::deserialize(from)?.unwrap_or_default();
    Ok(if list.is_empty() { Arc::default() } else { list.into() })
}

/// Decodes a time in RFC 3339.
///
/// # Errors
/// When the text is neither `null` nor a time.
pub fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<Box<str>>::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

fn version<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    Ok(Box::<str>::deserialize(from)?.parse().unwrap_or(0))
}

fn read_annotations<'de, D: Deserializer<'de>>(from: D) -> Result<SymbolMap, D::Error> {
    struct Annotations;
    impl<'de> serde::de::Visitor<'de> for Annotations {
        type Value = SymbolMap;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map of strings")
        }
        fn visit_unit<E>(self) -> Result<SymbolMap, E> {
            Ok(SymbolMap::default())
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<SymbolMap, A::Error> {
            let mut read = Vec::new();
            while let Some(key) = map.next_key::<std::borrow::Cow<'_, str>>()? {
                if is_read(&key) {
                    read.push((Symbol::of(&key), map.next_value()?));
                } else {
                    map.next_value::<serde::de::IgnoredAny>()?;
                }
            }
            Ok(read.into_iter().collect())
        }
    }
    from.deserialize_any(Annotations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_keeps_the_fields_that_controllers_read() {
        let text = r#"{"name":"a","namespace":"n","uid":"u","resourceVersion":"12",
            "creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":null,"finalizers":null,
            "annotations":{"deployment.kubernetes.io/revision":"3","big":"text"},
            "ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"o","controller":true}]}"#;
        let meta: Meta = serde_json::from_str(text).expect("good metadata");
        assert_eq!((meta.version, meta.key().as_str()), (12, "n/a"));
        assert_eq!(meta.annotation("deployment.kubernetes.io/revision"), Some("3"));
        assert_eq!(meta.annotations.iter().len(), 1);
        assert!(meta.is_controlled_by(&Uid::of("o")) && !meta.is_deleting());
        assert_eq!(meta.creation_timestamp.map(|at| at.as_second()), Some(1_767_323_045));
    }

    /// k#115699: memory does not grow with the bytes of ConfigMaps and Secrets, nor with the copy of
    /// them that `kubectl apply` leaves in an annotation.
    #[test]
    fn metadata_of_a_large_object_keeps_none_of_its_content() {
        let content = "x".repeat(512 * 1024);
        let of = |content: &str| {
            let object = serde_json::json!({"metadata": {"name": "a", "namespace": "n", "uid": "u",
                "resourceVersion": "1", "managedFields": [{"fieldsV1": content}],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": content}},
                "data": {"key": content}});
            let kind = pintle_api_types::kind::CONFIG_MAPS;
            let object = crate::tables::Decoded::only_metadata(kind, &object.to_string());
            format!("{:?}", object.expect("good metadata"))
        };
        assert_eq!(of(&content), of(""));
    }
}
