//! Which names of a quota are counted by what.
// k8s: pkg/quota/v1/evaluator/core
// k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go

use std::rc::Rc;

use pintle_api_types::kind::{
    CONFIG_MAPS, Kind, PERSISTENT_VOLUME_CLAIMS, PODS, REPLICATION_CONTROLLERS, RESOURCE_CLAIMS,
    RESOURCE_QUOTAS, SECRETS, SERVICES,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{PersistentVolumeClaim, Pod, ResourceClaim, Service};
use pintle_controllers_core::tables::{DiscoveredKinds, Tables};

use super::devices::{self, DeviceClasses};

/// Resources that are never counted.
// k8s: pkg/quota/v1/install/registry.go ignoredResources
const IGNORED: [(&str, &str); 10] = [
    ("", "bindings"),
    ("", "componentstatuses"),
    ("", "events"),
    ("authentication.k8s.io", "tokenreviews"),
    ("authentication.k8s.io", "selfsubjectreviews"),
    ("authorization.k8s.io", "subjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectaccessreviews"),
    ("authorization.k8s.io", "localsubjectaccessreviews"),
    ("authorization.k8s.io", "selfsubjectrulesreviews"),
    ("events.k8s.io", "events"),
];
/// Verbs that a kind must support to be counted.
// k8s: pkg/controller/resourcequota/resource_quota_controller.go GetQuotableResources
const VERBS: &[&str] = &["create", "list", "watch", "delete"];
// k8s: pkg/quota/v1/evaluator/core/pods.go podResources
const POD_NAMES: [&str; 11] = [
    "count/pods",
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
];
// k8s: pkg/quota/v1/evaluator/core/services.go serviceResources
const SERVICE_NAMES: [&str; 4] =
    ["count/services", "services", "services.nodeports", "services.loadbalancers"];
// k8s: pkg/quota/v1/evaluator/core/persistent_volume_claims.go pvcResources
const CLAIM_NAMES: [&str; 2] = ["persistentvolumeclaims", "requests.storage"];
/// Stands between a storage class and a name of [`CLAIM_NAMES`].
pub(super) const STORAGE_CLASS: &str = ".storageclass.storage.k8s.io/";

/// Counts the objects of a kind.
#[derive(Clone, Debug)]
pub(super) struct Evaluator {
    kind: Kind,
    manner: CountManner,
}

#[derive(Clone, Debug)]
enum CountManner {
    Pods,
    Services,
    Claims,
    ResourceClaims,
    /// Objects as such, under these names.
    Count(Vec<String>),
}

/// The evaluators that are there without discovery.
// k8s: pkg/quota/v1/evaluator/core/registry.go NewEvaluators
pub(super) fn fixed(reads_claims: bool) -> Vec<Evaluator> {
    let mut evaluators = vec![
        Evaluator { kind: PODS, manner: CountManner::Pods },
        Evaluator { kind: SERVICES, manner: CountManner::Services },
        Evaluator { kind: PERSISTENT_VOLUME_CLAIMS, manner: CountManner::Claims },
    ];
    if reads_claims {
        evaluators.push(Evaluator { kind: RESOURCE_CLAIMS, manner: CountManner::ResourceClaims });
    }
    for kind in [CONFIG_MAPS, RESOURCE_QUOTAS, REPLICATION_CONTROLLERS, SECRETS] {
        evaluators.push(Evaluator::count(kind, Some(kind.plural)));
    }
    evaluators
}

/// The kinds of objects that discovery found and quotas count.
pub(super) fn counted(discovery: &DiscoveredKinds) -> impl Iterator<Item = Kind> {
    let kinds = discovery.preferred(VERBS).map(|found| found.kind);
    kinds.filter(|kind| kind.is_namespaced && !IGNORED.contains(&(kind.group, kind.plural)))
}

/// The name under which objects are counted.
// k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/generic/evaluator.go
// ObjectCountQuotaResourceNameFor
pub(super) fn count_name(kind: Kind) -> String {
    match kind.group {
        "" => format!("count/{}", kind.plural),
        group => format!("count/{}.{group}", kind.plural),
    }
}

impl Evaluator {
    /// Counts objects, also under an older name.
    pub(super) fn count(kind: Kind, alias: Option<&str>) -> Self {
        let mut names = vec![count_name(kind)];
        names.extend(alias.map(str::to_owned));
        Self { kind, manner: CountManner::Count(names) }
    }

    /// Counts objects of this kind, in any version.
    pub(super) fn is_for(&self, kind: Kind) -> bool {
        (self.kind.group, self.kind.plural) == (kind.group, kind.plural)
    }

    /// The names of a count.
    pub(super) fn names(&self) -> &[String] {
        match &self.manner {
            CountManner::Count(names) => names,
            _ => &[],
        }
    }

    /// The name in a quota is counted by this evaluator.
    // k8s: MatchingResources of each evaluator
    pub(super) fn matches(&self, name: &str, classes: &DeviceClasses) -> bool {
        match &self.manner {
            CountManner::Pods => {
                POD_NAMES.contains(&name)
                    || name.starts_with("hugepages-")
                    || name.starts_with("requests.hugepages-")
                    || is_extended(name)
            }
            CountManner::Services => SERVICE_NAMES.contains(&name),
            CountManner::Claims => {
                let of_class = |known: &&str| {
                    let class = name.strip_suffix(known);
                    class.is_some_and(|class| class.ends_with(STORAGE_CLASS))
                };
                name == "count/persistentvolumeclaims"
                    || CLAIM_NAMES.contains(&name)
                    || CLAIM_NAMES.iter().any(of_class)
            }
            CountManner::ResourceClaims => devices::matches(name, classes),
            CountManner::Count(names) => names.iter().any(|known| known == name),
        }
    }

    /// The objects of a namespace.
    pub(super) fn content(&self, namespace: &str, tables: &Tables) -> NamespaceContent {
        if !tables.is_synced(self.kind) {
            return NamespaceContent::Unlisted(self.kind);
        }
        let pods = || tables.pods.in_namespace(namespace).cloned().collect();
        match &self.manner {
            CountManner::Pods => NamespaceContent::Pods(pods()),
            CountManner::Services => NamespaceContent::Services(
                tables.services.in_namespace(namespace).cloned().collect(),
            ),
            CountManner::Claims => {
                let claims = tables.persistent_volume_claims.in_namespace(namespace);
                NamespaceContent::Claims(claims.cloned().collect())
            }
            CountManner::ResourceClaims => {
                let claims = tables.resource_claims.in_namespace(namespace);
                NamespaceContent::ResourceClaims { claims: claims.cloned().collect(), pods: pods() }
            }
            CountManner::Count(_) => match tables.count(self.kind, namespace) {
                Some(count) => NamespaceContent::Count(count),
                None => NamespaceContent::Unlisted(self.kind),
            },
        }
    }
}

/// A pod asks for it as an extended resource.
// k8s: pkg/quota/v1/evaluator/core/pods.go isExtendedResourceNameForQuota
pub(super) fn is_extended(name: &str) -> bool {
    let Some(resource) = name.strip_prefix("requests.") else { return false };
    !is_native(name) || resource.starts_with(devices::IMPLICIT)
}

// k8s: pkg/apis/core/v1/helper/helpers.go IsNativeResource
pub(super) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// The objects of a namespace that an evaluator counts.
#[derive(Debug)]
pub(super) enum NamespaceContent {
    /// The objects of this kind are not listed yet.
    Unlisted(Kind),
    Pods(Vec<Rc<KeptObject<Pod>>>),
    Services(Vec<Rc<KeptObject<Service>>>),
    Claims(Vec<Rc<KeptObject<PersistentVolumeClaim>>>),
    ResourceClaims {
        claims: Vec<Rc<KeptObject<ResourceClaim>>>,
        pods: Vec<Rc<KeptObject<Pod>>>,
    },
    Count(usize),
}
