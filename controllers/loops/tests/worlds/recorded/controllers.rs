//! The users of a recording: those with writes that are compared with ours, and those left out.

use serde_json::Value;

/// Controllers that are played by ours.
const OURS: &[&str] = &[
    "cronjob-controller",
    "daemon-set-controller",
    "deployment-controller",
    "generic-garbage-collector",
    "job-controller",
    "namespace-controller",
    "replicaset-controller",
    "replication-controller",
    "resourcequota-controller",
    "root-ca-cert-publisher",
    "service-account-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
];

/// The manager itself: of its own name are the writes of tokens in secrets.
const MANAGER: &str = "kube-controller-manager";

/// A controller that the recorded cluster had and ours are played without, and why that changes
/// nothing for ours.
const LEFT_OUT: &[(&str, &str)] = &[
    ("endpoint-controller", "no controller of ours reads Endpoints"),
    (
        "endpointslice-controller",
        "no controller of ours reads slices; owners of slices are Services",
    ),
    ("persistent-volume-binder", "StatefulSets read the owners of claims, not their volumes"),
    ("pvc-protection-controller", "played by `pods.rs`: the finalizer goes with the last pod"),
];

/// The last part of a user's name.
pub(super) fn short_name(user: &str) -> &str {
    user.rsplit(':').next().unwrap_or_default()
}

/// The user of a recorded write.
pub(super) fn user(write: &Value) -> &str {
    short_name(write["user"].as_str().unwrap_or_default())
}

/// True if a controller of this name is played.
pub(super) fn is_ours(user: &str) -> bool {
    OURS.contains(&user) || user == MANAGER
}

/// The users of a recording that are neither ours nor known to be irrelevant.
pub(super) fn unknown_users(recording: &Value) -> Vec<&str> {
    let writes = recording["writes"].as_array().into_iter().flatten();
    let is_known = |name: &&str| is_ours(name) || LEFT_OUT.iter().any(|(known, _)| known == name);
    let mut users: Vec<_> = writes.map(user).filter(|name| !is_known(name)).collect();
    users.sort_unstable();
    users.dedup();
    users
}
