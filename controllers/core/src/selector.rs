//! Which objects a workload's selector selects.

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pintle_api_types::selector::{Selector, Symbols};
use pintle_api_types::symbol::Symbol;
use pintle_api_types::symbol_map::SymbolMap;
use serde::{Deserialize, Deserializer};

/// The selector of a workload: a label selector, or the map of a ReplicationController.
#[derive(Clone, PartialEq)]
pub struct PodSelector(Selector<Symbol>);

impl PodSelector {
    /// Selects an object with these labels.
    pub fn matches(&self, labels: &SymbolMap) -> bool {
        self.0.matches_labels(labels)
    }

    /// Selects every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_everything()
    }

    /// Decodes the map of a ReplicationController.
    ///
    /// # Errors
    /// When it is no map of texts.
    pub fn from_map<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let labels = Option::<BTreeMap<String, String>>::deserialize(from)?;
        // k8s: staging/src/k8s.io/apimachinery/pkg/labels/selector.go SelectorFromSet
        Ok(Self(Selector::from_labels(labels.as_ref(), &mut Symbols)))
    }
}

impl Default for PodSelector {
    /// Selects nothing.
    fn default() -> Self {
        Self(Selector::Nothing)
    }
}

impl fmt::Debug for PodSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for PodSelector {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let api = Option::<LabelSelector>::deserialize(from)?;
        let selector = Selector::from_api(api.as_ref(), &mut Symbols);
        selector.map(Self).map_err(serde::de::Error::custom)
    }
}
