//! Which resource an `apiVersion` and `kind` mean, and which kinds the collector follows.
// k8s: pkg/controller/garbagecollector/operations.go apiResource

use std::collections::{BTreeSet, HashMap};

use pintle_api_types::kind::Kind;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::tables::{DiscoveredKinds, Tables};

/// Verbs that a kind must support to be watched.
// k8s: pkg/controller/garbagecollector/garbagecollector.go GetDeletableResources
const VERBS: &[&str] = &["delete", "list", "watch"];

/// A resource that objects are read from and written to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    /// In the version that was asked for.
    pub(super) kind: Kind,
    /// In the version that is followed; none when it is not followed.
    pub(super) followed: Option<Kind>,
}

/// The kinds of the API server.
#[derive(Debug, Default)]
pub(super) struct Mapper {
    by_name: HashMap<(Symbol, Symbol), Mapped>,
    followed: BTreeSet<Kind>,
}

impl Mapper {
    /// The kinds that discovery found, of which `ignored` (group and plural) are not followed.
    pub(super) fn new(discovery: &DiscoveredKinds, ignored: &[(String, String)]) -> Self {
        let is_ignored =
            |kind: Kind| ignored.iter().any(|(g, p)| (&**g, &**p) == (kind.group, kind.plural));
        let followed: BTreeSet<_> = discovery
            .preferred(VERBS)
            .map(|found| found.kind)
            .filter(|kind| !is_ignored(*kind))
            .collect();
        let resources: HashMap<_, _> =
            followed.iter().map(|kind| ((kind.group, kind.plural), *kind)).collect();
        let by_name = discovery.kinds.iter().map(|found| {
            let kind = found.kind;
            let name = (Symbol::of(&kind.api_version()), Symbol::of(kind.kind));
            let followed = resources.get(&(kind.group, kind.plural)).copied();
            (name, Mapped { kind, followed })
        });
        Self { by_name: by_name.collect(), followed }
    }

    /// The resource of an `apiVersion` and `kind`; none when the API server has no such kind.
    pub(super) fn find(&self, api_version: &Symbol, kind: &Symbol) -> Option<Mapped> {
        self.by_name.get(&(api_version.clone(), kind.clone())).copied()
    }

    /// Kinds that are followed and of which no list is complete.
    pub(super) fn unlisted(&self, tables: &Tables) -> BTreeSet<Kind> {
        self.followed.iter().copied().filter(|kind| !tables.is_synced(*kind)).collect()
    }

    /// Discovery has not reported yet.
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }
}
