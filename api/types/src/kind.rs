//! Kinds of objects: the resource's group, version and plural, and the kind's name.
//!
//! Input: constants, and kinds of discovery. Output: [`Kind`], a reference that is compared by
//! address, so that tables and requests carry eight bytes. A kind that only discovery knows lives
//! until the process ends. Bounds: as many kinds as administrators ever defined.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// The API server's names of a kind.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version of the group, such as `v1`.
    pub version: &'static str,
    /// The plural name in paths, such as `replicasets`.
    pub plural: &'static str,
    /// The name in objects, such as `ReplicaSet`.
    pub kind: &'static str,
    /// Objects of the kind live in namespaces.
    pub is_namespaced: bool,
    /// Only the objects that this field selector selects are meant; empty for all of them.
    pub fields: &'static str,
}

/// A kind; equal kinds are one value.
#[derive(Clone, Copy)]
pub struct Kind(&'static Resource);

impl Kind {
    /// The constant for a resource.
    pub const fn of(resource: &'static Resource) -> Self {
        Self(resource)
    }

    /// The kind with these names; the same value each time.
    pub fn interned(
        group: &str,
        version: &str,
        plural: &str,
        kind: &str,
        is_namespaced: bool,
    ) -> Self {
        let is_it = |known: &Resource| {
            (known.group, known.version, known.plural) == (group, version, plural)
                && known.kind == kind
                && known.is_namespaced == is_namespaced
                && known.fields.is_empty()
        };
        if let Some(known) = KNOWN.iter().find(|known| is_it(known.0)) {
            return *known;
        }
        let mut interned = INTERNED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = interned.iter().find(|known| is_it(known)) {
            return Self(known);
        }
        let text = |text: &str| -> &'static str { Box::leak(text.into()) };
        let resource: &'static Resource = Box::leak(Box::new(Resource {
            group: text(group),
            version: text(version),
            plural: text(plural),
            kind: text(kind),
            is_namespaced,
            fields: "",
        }));
        interned.insert(resource);
        Self(resource)
    }

    /// The kinds that have constants.
    pub fn all_known() -> impl Iterator<Item = Self> {
        KNOWN.iter().copied()
    }

    /// The group and version as objects state them: `apps/v1`, or `v1` in the core group.
    pub fn api_version(self) -> String {
        match self.0.group {
            "" => self.0.version.to_owned(),
            group => format!("{group}/{}", self.0.version),
        }
    }

    /// The path of the collection: of a namespace, or of the whole cluster when it is empty.
    pub fn path(self, namespace: &str) -> String {
        let root = if self.0.group.is_empty() { "/api" } else { "/apis" };
        let version = self.api_version();
        match namespace {
            "" => format!("{root}/{version}/{}", self.0.plural),
            _ => format!("{root}/{version}/namespaces/{namespace}/{}", self.0.plural),
        }
    }
}

static INTERNED: Mutex<BTreeSet<&'static Resource>> = Mutex::new(BTreeSet::new());

impl std::ops::Deref for Kind {
    type Target = Resource;
    fn deref(&self) -> &Resource {
        self.0
    }
}

impl PartialEq for Kind {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Kind {}

impl PartialOrd for Kind {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Kind {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.cmp(other.0)
    }
}

impl std::hash::Hash for Kind {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        std::ptr::from_ref(self.0).hash(state);
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.group {
            "" => f.write_str(self.0.plural),
            group => write!(f, "{}.{group}", self.0.plural),
        }
    }
}

macro_rules! known {
    ($($name:ident = $group:literal $version:literal $plural:literal $kind:literal $scope:ident
        $(where $fields:literal)?;)*) => {
        $(
            #[doc = concat!("`", $plural, "` of `", $group, "/", $version, "`" $(, " with ", $fields)?, ".")]
            pub const $name: Kind = Kind({
                static RESOURCE: Resource = Resource {
                    group: $group,
                    version: $version,
                    plural: $plural,
                    kind: $kind,
                    is_namespaced: known!(@ $scope),
                    fields: concat!($($fields)?),
                };
                &RESOURCE
            });
        )*
        /// The kinds that have constants.
        const KNOWN: &[Kind] = &[$($name),*];
    };
    (@ namespaced) => { true };
    (@ cluster) => { false };
}

known! {
    PODS = "" "v1" "pods" "Pod" namespaced;
    NODES = "" "v1" "nodes" "Node" cluster;
    NAMESPACES = "" "v1" "namespaces" "Namespace" cluster;
    SERVICES = "" "v1" "services" "Service" namespaced;
    ENDPOINTS = "" "v1" "endpoints" "Endpoints" namespaced;
    EVENTS = "" "v1" "events" "Event" namespaced;
    CONFIG_MAPS = "" "v1" "configmaps" "ConfigMap" namespaced;
    SECRETS = "" "v1" "secrets" "Secret" namespaced;
    TOKEN_SECRETS = "" "v1" "secrets" "Secret" namespaced
        where "type=kubernetes.io/service-account-token";
    ROOT_CA_CONFIG_MAPS = "" "v1" "configmaps" "ConfigMap" namespaced
        where "metadata.name=kube-root-ca.crt";
    SERVICE_ACCOUNTS = "" "v1" "serviceaccounts" "ServiceAccount" namespaced;
    RESOURCE_QUOTAS = "" "v1" "resourcequotas" "ResourceQuota" namespaced;
    LIMIT_RANGES = "" "v1" "limitranges" "LimitRange" namespaced;
    REPLICATION_CONTROLLERS = "" "v1" "replicationcontrollers" "ReplicationController" namespaced;
    PERSISTENT_VOLUMES = "" "v1" "persistentvolumes" "PersistentVolume" cluster;
    PERSISTENT_VOLUME_CLAIMS = "" "v1" "persistentvolumeclaims" "PersistentVolumeClaim" namespaced;
    DEPLOYMENTS = "apps" "v1" "deployments" "Deployment" namespaced;
    REPLICA_SETS = "apps" "v1" "replicasets" "ReplicaSet" namespaced;
    STATEFUL_SETS = "apps" "v1" "statefulsets" "StatefulSet" namespaced;
    DAEMON_SETS = "apps" "v1" "daemonsets" "DaemonSet" namespaced;
    CONTROLLER_REVISIONS = "apps" "v1" "controllerrevisions" "ControllerRevision" namespaced;
    JOBS = "batch" "v1" "jobs" "Job" namespaced;
    CRON_JOBS = "batch" "v1" "cronjobs" "CronJob" namespaced;
    RESOURCE_CLAIMS = "resource.k8s.io" "v1" "resourceclaims" "ResourceClaim" namespaced;
    DEVICE_CLASSES = "resource.k8s.io" "v1" "deviceclasses" "DeviceClass" cluster;
    LEASES = "coordination.k8s.io" "v1" "leases" "Lease" namespaced;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interned_kind_with_known_names_is_the_constant() {
        assert_eq!(Kind::interned("", "v1", "pods", "Pod", true), PODS);
        let custom = Kind::interned("example.com", "v1", "foos", "Foo", true);
        assert_eq!(custom, Kind::interned("example.com", "v1", "foos", "Foo", true));
        assert_ne!(custom, Kind::interned("example.com", "v2", "foos", "Foo", true));
        assert_eq!(Kind::interned("", "v1", "secrets", "Secret", true), SECRETS);
        assert_ne!(SECRETS.cmp(&TOKEN_SECRETS), std::cmp::Ordering::Equal);
    }

    #[test]
    fn paths_name_group_and_namespace() {
        for (kind, namespace, path) in [
            (PODS, "a", "/api/v1/namespaces/a/pods"),
            (PODS, "", "/api/v1/pods"),
            (DEPLOYMENTS, "a", "/apis/apps/v1/namespaces/a/deployments"),
        ] {
            assert_eq!(kind.path(namespace), path);
        }
    }
}
