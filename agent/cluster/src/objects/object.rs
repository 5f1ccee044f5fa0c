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
pub(super) struct Meta {
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
pub(super) trait Written: pintle_api_types::object::Object {
    /// The part that is kept.
    fn keep(self) -> Object;
}

/// A config map on the wire.
#[derive(PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConfigMapWire {
    #[serde(default)]
    metadata: Meta,
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
    metadata: Meta,
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
pub(super) struct Object {
    /// Its version: a number that grows with each change of anything in the store.
    // k8s: KEP-5504, versions of one resource are comparable
    pub(super) version: u64,
    /// Its content never changes.
    pub(super) immutable: bool,
    /// Its content.
    pub(super) content: Content,
}

/// Content of an object, in the type that its readers take.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Content {
    /// Boxed: either type is large and mostly empty.
    ConfigMap(Box<ConfigMap>),
    Secret(Box<Secret>),
}

impl Written for ConfigMapWire {
    fn keep(self) -> Object {
        let map = ConfigMap {
            data: self.data,
            binary_data: self.binary_data.map(bytes),
            ..ConfigMap::default()
        };
        Object {
            version: version(&self.metadata),
            immutable: self.immutable == Some(true),
            content: Content::ConfigMap(Box::new(map)),
        }
    }
}

impl Written for SecretWire {
    fn keep(self) -> Object {
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
        Object {
            version,
            immutable: self.immutable == Some(true),
            content: Content::Secret(Box::new(secret)),
        }
    }
}

/// Go writes an empty value as null.
fn bytes(values: BTreeMap<String, Option<ByteString>>) -> BTreeMap<String, ByteString> {
    values.into_iter().map(|(key, value)| (key, value.unwrap_or_default())).collect()
}

fn version(meta: &Meta) -> u64 {
    meta.resource_version.parse().unwrap_or(0)
}

impl Object {
    /// Keys and values as files show them: a copy.
    pub(super) fn values(&self) -> KeyValues {
        match &self.content {
            Content::ConfigMap(map) => {
                let binary = map.binary_data.iter().flatten();
                let binary = binary.map(|(key, value)| (key.clone(), Arc::from(&*value.0)));
                let text = map.data.iter().flatten();
                // A key is in one of the two only; text would win.
                binary.chain(text.map(|(k, v)| (k.clone(), Arc::from(v.as_bytes())))).collect()
            }
            Content::Secret(secret) => {
                let data = secret.data.iter().flatten();
                data.map(|(key, value)| (key.clone(), Arc::from(&*value.0))).collect()
            }
        }
    }

    /// The object as a config map; `None` for a secret.
    pub(super) fn config_map(&self) -> Option<&ConfigMap> {
        match &self.content {
            Content::ConfigMap(map) => Some(map),
            Content::Secret(_) => None,
        }
    }

    /// The object as a secret; `None` for a config map.
    pub(super) fn secret(&self) -> Option<&Secret> {
        match &self.content {
            Content::Secret(secret) => Some(secret),
            Content::ConfigMap(_) => None,
        }
    }
}
