//! Checks the labels that a node is to register with.
//!
//! Input: labels. Output: one error for each that the API would refuse, and for each that a node may
//! not give itself.
//!
//! // k8s: staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go

use std::collections::BTreeMap;

use super::ConfigError;
use pintle_api_types::pod::validate::names;

/// Namespaces in which a node may choose its own labels.
const OWN_NAMESPACES: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];
/// Well-known labels that a node may set.
const OWN_LABELS: [&str; 11] = [
    "beta.kubernetes.io/arch",
    "beta.kubernetes.io/instance-type",
    "beta.kubernetes.io/os",
    "failure-domain.beta.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "kubernetes.io/arch",
    "kubernetes.io/hostname",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Checks the labels of `--node-labels`.
pub(crate) fn check(labels: &BTreeMap<String, String>) -> Vec<ConfigError> {
    labels.iter().filter_map(|(key, value)| check_one(key, value).err()).collect()
}

fn check_one(key: &str, value: &str) -> Result<(), ConfigError> {
    let error = |problem: &str, remedy: &str| {
        Err(ConfigError::new("--node-labels", format!("{key}={value}"), problem, remedy))
    };
    if !is_own(key) {
        let problem = "a node may not give itself this kubernetes.io label";
        return error(problem, "put it under node.kubernetes.io/ or a domain of your own");
    }
    if !names::qualified(key).is_empty() {
        let remedy = "use up to 63 letters, digits, - _ . after an optional DNS prefix and /";
        return error("the key is not a label key", remedy);
    }
    if !names::label_value(value).is_empty() {
        let remedy = "use up to 63 letters, digits, - _ . beginning and ending with one of the \
                      former";
        return error("the value is not a label value", remedy);
    }
    Ok(())
}

fn is_own(key: &str) -> bool {
    let Some((namespace, _)) = key.split_once('/') else { return true };
    let below = |domain: &str| {
        namespace == domain || namespace.strip_suffix(domain).is_some_and(|n| n.ends_with('.'))
    };
    let reserved = below("kubernetes.io") || below("k8s.io");
    !reserved || OWN_NAMESPACES.into_iter().any(below) || OWN_LABELS.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(key: &str, value: &str) -> bool {
        check_one(key, value).is_ok()
    }

    #[test]
    fn a_node_sets_its_own_and_the_well_known_labels_only() {
        for key in ["zone", "example.com/a", "node.kubernetes.io/x", "a.kubelet.kubernetes.io/x"] {
            assert!(accepted(key, "v"), "{key}");
        }
        for key in OWN_LABELS {
            assert!(accepted(key, "v"), "{key}");
        }
        for key in ["node-role.kubernetes.io/control-plane", "k8s.io/x", "a.k8s.io/x"] {
            assert!(!accepted(key, ""), "{key}");
        }
    }

    #[test]
    fn keys_and_values_follow_the_api() {
        for (key, value) in [("", "v"), ("-a", "v"), ("A_/x", "v"), ("a/", ""), ("a/b/c", "")] {
            assert!(!accepted(key, value), "{key}={value}");
        }
        assert!(!accepted("a", "-"));
        assert!(!accepted("a", &"x".repeat(64)));
        assert!(accepted("a", ""));
        assert!(accepted("a.b-c/D_e.f", "1.2-x"));
    }
}
