//! Errors of a CredentialProviderConfig, with upstream's texts.
//!
//! Pure. Output: every violation, in the order in which the kubelet finds them.
// k8s: pkg/credentialprovider/plugin/config.go validateCredentialProviderConfig

use std::collections::BTreeSet;

use pintle_agent_core::image::registry_match;
use pintle_api_types::pod::validate::{FieldError, names};

use super::config::{ProviderWire, TokenWire};
use super::wire;

/// Cache type of plugins with answers that expire with the token.
pub(super) const PER_TOKEN: &str = "Token";
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", PER_TOKEN];

/// Every violation; `accounts` when plugins may take tokens of service accounts.
pub(super) fn check(providers: &[ProviderWire], accounts: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if providers.is_empty() {
        let text = "at least 1 item in plugins is required";
        errors.push(FieldError::required("providers", text));
    }
    for provider in providers {
        name(&mut errors, &provider.name);
        if provider.api_version.is_empty() {
            errors.push(FieldError::required("providers.apiVersion", ""));
        } else if !wire::VERSIONS.contains(&&*provider.api_version) {
            let (at, version) = ("providers.apiVersion", &provider.api_version);
            errors.push(FieldError::unsupported(at, version, &wire::VERSIONS));
        }
        let images = provider.match_images.as_deref().unwrap_or_default();
        if images.is_empty() {
            let text = "at least 1 item in matchImages is required";
            errors.push(FieldError::required("providers.matchImages", text));
        }
        for image in images {
            if let Some(why) = registry_match::pattern_error(image) {
                let text = format!("match image is invalid: {why}");
                errors.push(FieldError::invalid("providers.matchImages", &**image, &text));
            }
        }
        let at = "providers.defaultCacheDuration";
        match provider.default_cache_duration {
            None => errors.push(FieldError::required(at, "")),
            Some(lasts) if lasts.is_negative() => {
                let text = "must be greater than or equal to 0";
                errors.push(FieldError::invalid(at, &*lasts.to_string(), text));
            }
            Some(_) => {}
        }
        if let Some(token) = &provider.token_attributes {
            attributes(&mut errors, token, &provider.api_version, accounts);
        }
    }
    errors
}

fn name(errors: &mut Vec<FieldError>, name: &str) {
    let rules = [
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ];
    let broken = rules.into_iter().filter(|(broken, _)| *broken);
    errors.extend(broken.map(|(_, text)| FieldError::invalid("providers.name", name, text)));
}

fn attributes(errors: &mut Vec<FieldError>, token: &TokenWire, version: &str, accounts: bool) {
    let path = "providers.tokenAttributes";
    let at = |field: &str| format!("{path}.{field}");
    if !accounts {
        let text = "tokenAttributes is not supported when \
                    KubeletServiceAccountTokenForCredentialProviders feature gate is disabled";
        errors.push(FieldError::forbidden(path, text));
    }
    if token.service_account_token_audience.is_empty() {
        errors.push(FieldError::required(at("serviceAccountTokenAudience"), ""));
    }
    if token.require_service_account.is_none() {
        errors.push(FieldError::required(at("requireServiceAccount"), ""));
    }
    if version != wire::V1 {
        let text = format!("tokenAttributes is only supported for {} API version", wire::V1);
        errors.push(FieldError::forbidden(path, &text));
    }
    let required = token.required_service_account_annotation_keys.as_deref().unwrap_or_default();
    let optional = token.optional_service_account_annotation_keys.as_deref().unwrap_or_default();
    let (required_at, optional_at) =
        (at("requiredServiceAccountAnnotationKeys"), at("optionalServiceAccountAnnotationKeys"));
    if token.require_service_account == Some(false) && !required.is_empty() {
        let text = "requireServiceAccount cannot be false when \
                    requiredServiceAccountAnnotationKeys is set";
        errors.push(FieldError::forbidden(&*required_at, text));
    }
    annotation_keys(errors, &required_at, required);
    annotation_keys(errors, &optional_at, optional);
    let both: BTreeSet<_> = required.iter().filter(|key| optional.contains(key)).collect();
    if !both.is_empty() {
        let both: Vec<_> = both.into_iter().collect();
        let detail = "annotation keys cannot be both required and optional";
        let value = serde_json::to_string(&both).unwrap_or_default();
        let detail = format!("Invalid value: {value}: {detail}");
        errors.push(FieldError { path: path.to_owned(), detail });
    }
    match token.cache_type.as_str() {
        "" => {
            let text = format!(
                "cacheType is required to be set when tokenAttributes is specified. Supported \
                 values are: {}",
                CACHE_TYPES.join(", ")
            );
            errors.push(FieldError::required(at("cacheType"), &text));
        }
        known if CACHE_TYPES.contains(&known) => {}
        other => errors.push(FieldError::unsupported(at("cacheType"), other, &CACHE_TYPES)),
    }
}

fn annotation_keys(errors: &mut Vec<FieldError>, path: &str, keys: &[String]) {
    let mut seen = BTreeSet::new();
    for key in keys {
        for why in names::qualified(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, &**key, &why));
        }
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(path, &**key));
        }
    }
}
