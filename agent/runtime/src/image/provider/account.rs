//! Service accounts of plugin requests, and the fields of them that distinguish answers.
// k8s: pkg/credentialprovider/plugin/plugin.go serviceAccountProvider

use std::collections::BTreeMap;

use pintle_agent_cluster::objects::ServiceAccountFields;
use pintle_agent_core::image::pull_credential::Coordinates;

use super::config::TokenSettings;

/// The account for which an answer is valid; empty for plugins that are called without an account.
// k8s: pkg/credentialprovider/plugin/plugin.go generateServiceAccountCacheKey
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AccountKey {
    pub(super) account: Option<Coordinates>,
    /// The annotations that the plugin received.
    pub(super) annotations: BTreeMap<String, String>,
    /// With cache type `Token` only.
    pub(super) token_hash: Option<String>,
}

impl TokenSettings {
    /// The annotations for the plugin; `None` when a required one is missing.
    // k8s: pkg/credentialprovider/plugin/plugin.go getServiceAccountData
    pub(super) fn annotations(
        &self,
        account: &ServiceAccountFields,
    ) -> Option<BTreeMap<String, String>> {
        let find = |key: &String| {
            account.annotations.get_key_value(key).map(|(k, v)| (k.clone(), v.clone()))
        };
        let required: Option<BTreeMap<_, _>> = self.required_keys.iter().map(find).collect();
        let mut told = required?;
        told.extend(self.optional_keys.iter().filter_map(find));
        Some(told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_gets_its_requested_annotations_and_is_skipped_without_a_required_key() {
        let token = |required: &[&str], optional: &[&str]| TokenSettings {
            required_keys: required.iter().map(ToString::to_string).collect(),
            optional_keys: optional.iter().map(ToString::to_string).collect(),
            ..TokenSettings::default()
        };
        let annotations = ["a", "b"].map(|key| (key.to_owned(), format!("{key}-value")));
        let account = ServiceAccountFields { uid: "u".to_owned(), annotations: annotations.into() };
        let told = |required: &[&str], optional: &[&str]| {
            let told = token(required, optional).annotations(&account)?;
            Some(told.into_keys().collect::<Vec<_>>().join(","))
        };
        assert_eq!(told(&[], &[]).as_deref(), Some(""));
        assert_eq!(told(&["a"], &["c"]).as_deref(), Some("a"));
        assert_eq!(told(&["b"], &["a"]).as_deref(), Some("a,b"));
        assert_eq!(told(&["a", "c"], &[]), None);
    }
}
