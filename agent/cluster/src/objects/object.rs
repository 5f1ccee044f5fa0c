//! A config map or secret as it is kept: its content, its version, and nothing else.
//!
//! Input: an object as the API server writes it. Output: the same without unused metadata (owners
//! of fields are often larger than the content). Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pintle_agent_core::volume::payload::KeyValues;
use pintle_api_types::pruned_object;
use serde::Deserialize;

/// Metadata that is read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ObjectFields {
    pub(super) name: String,
    pub(super) namespace: String,
    pub(super) uid: String,
    #[serde(deserialize_with = "or_default")]
    pub(super) labels: BTreeMap<String, String>,
    pub(super) resource_version: String,
}

/// Go writes an empty map as null.
fn or_default<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// An object that the API server wrote, of either kind.
pub(super) trait WrittenObject: pintle_api_types::object::Object {
    /// The part that is kept.
    fn keep(self) -> KeptObject;
}

/// A config map on the wire.
#[derive(PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigMapWire {
    #[serde(default)]
    metadata: ObjectFields,
    #[serde(default)]
    data: Option<BTreeMap<String, String>>,
    #[serde(default)]
    binary_data: Option<BTreeMap<String, Option<ByteString>>>,
    #[serde(default)]
    immutable: Option<bool>,
}

/// A secret on the wire.
#[derive(PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SecretWire {
    #[serde(default)]
    metadata: ObjectFields,
    #[serde(default)]
    data: Option<BTreeMap<String, Option<ByteString>>>,
    #[serde(default)]
    immutable: Option<bool>,
    #[serde(default, rename = "type")]
    type_: Option<String>,
}

pruned_object!(ConfigMapWire);
pruned_object!(SecretWire);

/// An object that is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeptObject {
    /// Its version: a number that grows with each change of anything in the store.
    // k8s: KEP-5504, versions of one resource are comparable
    pub(super) version: u64,
    /// Its content never changes.
    pub(super) immutable: bool,
    /// Its content.
    pub(super) content: ObjectContent,
}

/// Content of an object, in the type that its readers take.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ObjectContent {
    /// Boxed: either type is large and mostly empty.
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

impl WrittenObject for ConfigMapWire {
    fn keep(self) -> KeptObject {
        let map = ConfigMap {
            data: self.data,
            binary_data: self.binary_data.map(bytes),
            ..ConfigMap::default()
        };
        KeptObject {
            version: version(&self.metadata),
            immutable: self.immutable == Some(true),
            content: ObjectContent::ConfigMap(Box::new(map)),
        }
    }
}

impl WrittenObject for SecretWire {
    fn keep(self) -> KeptObject {
        let version = version(&self.metadata);
        // Records of images name the secret that pulled them.
        let metadata = ObjectMeta {
            name: Some(self.metadata.name),
            namespace: Some(self.metadata.namespace),
            uid: Some(self.metadata.uid),
            ..ObjectMeta::default()
        };
        let data = self.data.map(bytes);
        let secret = Secret { metadata, data, type_: self.type_, ..Secret::default() };
        KeptObject {
            version,
            immutable: self.immutable == Some(true),
            content: ObjectContent::Secret(Box::new(secret)),
        }
    }
}

/// Go writes an empty value as null.
fn bytes(values: BTreeMap<String, Option<ByteString>>) -> BTreeMap<String, ByteString> {
    values.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect()
}

fn version(meta: &ObjectFields) -> u64 {
    meta.resource_version.parse().unwrap_or(0)
}

impl KeptObject {
    /// Keys and values as files show them: a copy.
    pub(super) fn values(&self) -> KeyValues {
        match &self.content {
            ObjectContent::ConfigMap(map) => {
                let binary = map.binary_data.iter().flatten();
                let binary = binary.map(|(key, value)| (key.clone(), Arc::from(&*value.0)));
                let text = map.data.iter().flatten();
                // A key is in one of the two only; text would win.
                binary.chain(text.map(|(k, v)| (k.clone(), Arc::from(v.as_bytes())))).collect()
            }
            ObjectContent::Secret(secret) => {
                let data = secret.data.iter().flatten();
                data.map(|(key, value)| (key.clone(), Arc::from(&*value.0))).collect()
            }
        }
    }

    /// The object as a config map; `None` for a secret.
    pub(super) fn config_map(&self) -> Option<&ConfigMap> {
        match &self.content {
            ObjectContent::ConfigMap(map) => Some(map),
            ObjectContent::Secret(_) => None,
        }
    }

    /// The object as a secret; `None` for a config map.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match &self.content {
            ObjectContent::Secret(secret) => Some(secret),
            ObjectContent::ConfigMap(_) => None,
        }
    }
}
