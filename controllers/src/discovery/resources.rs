//! The discovered resources, and queries of them. Pure.
//!
//! Input: groups as they were read. Output: resources by verbs, in the version that the server
//! prefers; what could not be read.
// k8s: staging/src/k8s.io/client-go/discovery/discovery_client.go ServerPreferredResources

use std::collections::BTreeSet;
use std::time::Instant;

use pintle_api_types::kind::Kind;

/// A resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiResource {
    /// Its kind.
    pub kind: Kind,
    /// Its verbs: `list`, `watch`, `delete` ..
    pub verbs: Vec<String>,
    /// Its subresources: `status`, `scale` ..
    pub subresources: Vec<String>,
}

impl ApiResource {
    /// True if it supports all these verbs.
    pub fn supports(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|own| own == verb))
    }
}

/// A version of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiVersion {
    /// `v1`.
    pub name: String,
    /// Its resources, without subresources; those known last where it fails.
    pub resources: Vec<ApiResource>,
    /// Why they cannot be read at present.
    pub failure: Option<String>,
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiGroup {
    /// Its name; empty for the core group, `*` for all groups that never could be read.
    pub name: String,
    /// Its versions, the preferred one first.
    pub versions: Vec<ApiVersion>,
}

impl ApiGroup {
    /// The same, which cannot be read at present.
    pub(super) fn failed(&self, problem: &str) -> Self {
        let mut group = self.clone();
        for version in &mut group.versions {
            version.failure = Some(problem.to_owned());
        }
        group
    }

    /// A group of which nothing is known.
    pub(super) fn unknown(name: &str, problem: &str) -> Self {
        let failure = Some(problem.to_owned());
        let version = ApiVersion { name: "*".to_owned(), resources: Vec::new(), failure };
        Self { name: name.to_owned(), versions: vec![version] }
    }
}

/// All groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiscoveredGroups {
    /// By name; the core group is the first.
    pub groups: Vec<ApiGroup>,
    /// When the reading began.
    pub read_at: Option<Instant>,
}

impl DiscoveredGroups {
    pub(super) fn new(mut groups: Vec<ApiGroup>) -> Self {
        groups.sort_by(|one, other| one.name.cmp(&other.name));
        groups.dedup_by(|one, other| one.name == other.name);
        Self { groups, read_at: None }
    }

    /// Resources that can do all that, each in the version that the server prefers of those which
    /// can be read. A resource that the preferred version lacks is that of the first version which
    /// has it.
    pub fn preferred<'a>(&'a self, verbs: &'a [&'a str]) -> impl Iterator<Item = &'a ApiResource> {
        self.groups.iter().flat_map(move |group| {
            let mut seen = BTreeSet::new();
            let readable = group.versions.iter().filter(|version| version.failure.is_none());
            let all = readable.flat_map(|version| &version.resources);
            all.filter(move |one| seen.insert(one.kind.plural) && one.supports(verbs))
        })
    }

    /// True if the server has this resource in this version, or may have it because its group
    /// cannot be read.
    pub fn may_have(&self, kind: Kind) -> bool {
        self.groups.iter().filter(|group| [kind.group, "*"].contains(&group.name.as_str())).any(
            |group| {
                let of = group
                    .versions
                    .iter()
                    .filter(|v| [kind.version, "*"].contains(&v.name.as_str()));
                of.into_iter().any(|version| {
                    version.failure.is_some()
                        || version.resources.iter().any(|one| one.kind.plural == kind.plural)
                })
            },
        )
    }

    /// Versions that cannot be read, as objects name them, and why.
    pub fn failures(&self) -> impl Iterator<Item = (String, &str)> {
        self.groups.iter().flat_map(|group| {
            group.versions.iter().filter_map(|version| {
                let name = match group.name.as_str() {
                    "" => version.name.clone(),
                    group => format!("{group}/{}", version.name),
                };
                Some((name, version.failure.as_deref()?))
            })
        })
    }

    /// True if all groups could be read.
    pub fn is_complete(&self) -> bool {
        self.failures().next().is_none()
    }
}
