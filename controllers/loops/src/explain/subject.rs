//! The kinds that explain knows, by kubectl's names, and the controller of each.
//!
//! Input: `KIND/NAME`. Output: a [`ExplainedKind`], and the keys of controllers that have to do with it.
//! Pure.

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    CRON_JOBS, DAEMON_SETS, DEPLOYMENTS, JOBS, Kind, NAMESPACES, REPLICA_SETS,
    REPLICATION_CONTROLLERS, RESOURCE_QUOTAS, SERVICE_ACCOUNTS, STATEFUL_SETS,
};
use pintle_controllers_core::tables::Tables;

/// A kind that can be explained.
#[derive(Debug, PartialEq, Eq)]
pub struct ExplainedKind {
    /// The kind.
    pub kind: Kind,
    /// The names that users give it beside the plural and the kind's own name.
    pub short: &'static [&'static str],
    /// Its controller.
    pub controller: &'static str,
}

/// All of them.
pub const SUBJECTS: [ExplainedKind; 10] = [
    subject(DEPLOYMENTS, &["deploy"], "deployment-controller"),
    subject(REPLICA_SETS, &["rs"], "replicaset-controller"),
    subject(REPLICATION_CONTROLLERS, &["rc"], "replicationcontroller-controller"),
    subject(STATEFUL_SETS, &["sts"], "statefulset-controller"),
    subject(DAEMON_SETS, &["ds"], "daemonset-controller"),
    subject(JOBS, &[], "job-controller"),
    subject(CRON_JOBS, &["cj"], "cronjob-controller"),
    subject(NAMESPACES, &["ns"], "namespace-controller"),
    subject(RESOURCE_QUOTAS, &["quota"], "resourcequota-controller"),
    subject(SERVICE_ACCOUNTS, &["sa"], "serviceaccount-controller"),
];

const fn subject(
    kind: Kind,
    short: &'static [&'static str],
    controller: &'static str,
) -> ExplainedKind {
    ExplainedKind { kind, short, controller }
}

/// A kind that cannot be explained.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be explained: use deployment, replicaset, replicationcontroller, statefulset, \
     daemonset, job, cronjob, namespace, resourcequota or serviceaccount"
)]
pub struct UnknownKind(String);

impl ExplainedKind {
    /// The subject that a user calls so; the group may follow after a dot.
    ///
    /// # Errors
    /// When there is none.
    pub fn find(name: &str) -> Result<&'static Self, UnknownKind> {
        let plain = name.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let is_it = |subject: &&ExplainedKind| {
            plain == subject.kind.plural
                || plain == subject.kind.kind.to_ascii_lowercase()
                || subject.short.contains(&&*plain)
        };
        SUBJECTS.iter().find(is_it).ok_or_else(|| UnknownKind(name.to_owned()))
    }

    /// The key of an object; the namespace counts only for kinds that have one.
    pub fn key(&self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey::new(if self.kind.is_namespaced { namespace } else { "" }, name)
    }
}

/// The controllers that have to do with an object, each with its key: its own, then those of the
/// ReplicaSets that a Deployment controls and that want or have pods.
pub fn related(
    subject: &ExplainedKind,
    key: &ObjectKey,
    tables: &Tables,
) -> Vec<(&'static str, ObjectKey)> {
    if subject.kind == SERVICE_ACCOUNTS {
        // It creates the accounts that a namespace needs.
        return vec![(subject.controller, ObjectKey::new("", key.namespace()))];
    }
    let mut keys = vec![(subject.controller, key.clone())];
    if subject.kind == DEPLOYMENTS
        && let Some(deployment) = tables.deployments.get(key)
    {
        let sets = tables.replica_sets.controlled_by(&deployment.metadata.uid);
        let sets = sets.filter(|set| set.spec.wanted() > 0 || set.status.replicas > 0);
        keys.extend(sets.map(|set| ("replicaset-controller", set.metadata.key())));
    }
    keys
}
