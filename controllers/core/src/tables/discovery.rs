//! The kinds that the API server has.
//!
//! Input: what the daemon's discovery reports. Output: kinds with their verbs, and API groups that
//! could not be discovered: of these nothing is known, so nothing may be concluded from the absence
//! of their kinds. Bounds: the kinds of the cluster.

use std::collections::BTreeMap;
use std::time::Instant;

use pintle_api_types::kind::Kind;
use pintle_api_types::symbol::Symbol;

/// The kinds that discovery found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiscoveredKinds {
    /// Every version of every kind, without subresources.
    pub kinds: Vec<DiscoveredKind>,
    /// Versions of groups, such as `metrics.k8s.io/v1beta1`, that could not be discovered, with the
    /// error.
    pub failed_groups: BTreeMap<String, String>,
    /// When the reading of it began; `None` where discovery is never late.
    pub read_at: Option<Instant>,
}

/// A kind that the API server has.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveredKind {
    /// The kind.
    pub kind: Kind,
    /// Such as `list`, `watch`, `delete` and `deletecollection`.
    pub verbs: Vec<Symbol>,
    /// The version is the one to be used of those that the kind has.
    // k8s: staging/src/k8s.io/client-go/discovery/discovery_client.go ServerPreferredResources
    pub is_preferred: bool,
}

impl DiscoveredKind {
    /// The kind has all these verbs.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|known| &**known == *verb))
    }
}

impl DiscoveredKinds {
    /// The preferred version of each kind that has all these verbs.
    pub fn preferred(&self, verbs: &[&str]) -> impl Iterator<Item = &DiscoveredKind> {
        self.kinds.iter().filter(move |found| found.is_preferred && found.supports(verbs))
    }

    /// It has every kind that an object can have had at that time.
    pub fn covers(&self, time: Instant) -> bool {
        self.read_at.is_none_or(|read| read >= time)
    }

    /// Both found the same, at whatever time.
    pub(super) fn has_same_kinds(&self, other: &Self) -> bool {
        (&self.kinds, &self.failed_groups) == (&other.kinds, &other.failed_groups)
    }

    /// The kind of an `apiVersion` and `kind`.
    pub fn find(&self, api_version: &str, kind: &str) -> Option<&DiscoveredKind> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        self.kinds.iter().find(|found| {
            (found.kind.group, found.kind.version, found.kind.kind) == (group, version, kind)
        })
    }

    /// The error of discovery; `None` when every group answered.
    // k8s: staging/src/k8s.io/client-go/discovery/discovery_client.go ErrGroupDiscoveryFailed
    pub fn failure(&self) -> Option<String> {
        if self.failed_groups.is_empty() {
            return None;
        }
        let groups = self.failed_groups.iter().map(|(group, error)| format!("{group}: {error}"));
        let groups = groups.collect::<Vec<_>>().join(", ");
        Some(format!("unable to retrieve the complete list of server APIs: {groups}"))
    }
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind::PODS;

    use super::*;

    #[test]
    fn kinds_are_found_by_verbs_and_by_name() {
        let verbs = ["list", "watch"].map(Symbol::of).to_vec();
        let pods = DiscoveredKind { kind: PODS, verbs, is_preferred: true };
        let failed = [("a/v1".to_owned(), "down".to_owned())];
        let discovery =
            DiscoveredKinds { kinds: vec![pods], failed_groups: failed.into(), read_at: None };
        assert_eq!(discovery.preferred(&["list", "watch"]).count(), 1);
        assert_eq!(discovery.preferred(&["delete"]).count(), 0);
        assert_eq!(discovery.find("v1", "Pod").map(|found| found.kind), Some(PODS));
        assert!(discovery.find("apps/v1", "Pod").is_none());
        let failure = discovery.failure().expect("a group failed");
        assert!(failure.ends_with("APIs: a/v1: down"), "{failure}");
    }
}
