//! Claims of persistent volumes.

use std::collections::BTreeMap;

use pintle_api_types::quantity::Quantity;
use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: ClaimSpec,
    /// The observed state.
    pub status: ClaimStatus,
}
facts!(PersistentVolumeClaim, PERSISTENT_VOLUME_CLAIMS, whole: true);

/// The spec of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimSpec {
    /// Its storage class.
    pub storage_class_name: Option<Symbol>,
    /// Its class of volume attributes.
    pub volume_attributes_class_name: Option<Symbol>,
    /// The storage that it asks for.
    pub resources: ClaimResources,
}

/// The resources of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    /// The requested resources.
    #[serde(deserialize_with = "or_default")]
    pub requests: BTreeMap<Symbol, Quantity>,
}

/// The status of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClaimStatus {
    /// The resources allocated during an expansion.
    #[serde(deserialize_with = "or_default")]
    pub allocated_resources: BTreeMap<Symbol, Quantity>,
    /// The class of volume attributes that its volume has.
    pub current_volume_attributes_class_name: Option<Symbol>,
    /// A change of that class.
    #[serde(deserialize_with = "or_default")]
    pub modify_volume_status: ModifyVolumeStatus,
}

/// A change of the class of volume attributes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ModifyVolumeStatus {
    /// The class that the volume is to get; empty when it is none.
    pub target_volume_attributes_class_name: Symbol,
}

impl PersistentVolumeClaim {
    /// Its storage class; empty when it has none.
    // k8s: staging/src/k8s.io/component-helpers/storage/volume/helpers.go
    // GetPersistentVolumeClaimClass
    pub fn storage_class(&self) -> &str {
        let class = self.metadata.annotation("volume.beta.kubernetes.io/storage-class");
        class.or(self.spec.storage_class_name.as_deref()).unwrap_or_default()
    }

    /// The classes of volume attributes that it references, each once.
    // k8s: pkg/quota/v1/evaluator/core/persistent_volume_claims.go
    // getReferencedVolumeAttributesClassNames
    pub fn attribute_classes(&self) -> Vec<&str> {
        let target = &self.status.modify_volume_status.target_volume_attributes_class_name;
        let classes = [
            self.spec.volume_attributes_class_name.as_deref(),
            self.status.current_volume_attributes_class_name.as_deref(),
            Some(&**target),
        ];
        let mut classes: Vec<_> =
            classes.into_iter().flatten().filter(|class| !class.is_empty()).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }
}
