//! Taints and labels that a change of the pod cannot overcome.
//!
//! Input: a taint or a requirement in words. Output: what must happen instead. Pure.

/// Returns what must happen to a node before its taint is removed, because a pod that tolerates it
/// could not run there.
// k8s: staging/src/k8s.io/api/core/v1/well_known_taints.go
pub(super) fn recovery(taint: &str) -> Option<&'static str> {
    let key = taint.split(['=', ':']).next().unwrap_or_default();
    Some(match key {
        "node.kubernetes.io/not-ready" => "wait until the node is ready",
        "node.kubernetes.io/unreachable" => "wait until the node can be reached",
        "node.kubernetes.io/network-unavailable" => "set up the node's network",
        "node.kubernetes.io/memory-pressure" => "free memory on the node",
        "node.kubernetes.io/disk-pressure" => "free disk space on the node",
        "node.kubernetes.io/pid-pressure" => "end processes on the node",
        "node.kubernetes.io/out-of-service" => "bring the node back into service",
        "node.cloudprovider.kubernetes.io/uninitialized" => {
            "wait until the cloud provider has initialized the node"
        }
        "node.cloudprovider.kubernetes.io/shutdown" => "start the node",
        _ => return None,
    })
}

/// Returns true if a requirement is about what a node is: no label can be set to meet it.
pub(super) fn is_fixed(requirement: &str) -> bool {
    let key = requirement.split([' ', '=']).next().unwrap_or_default();
    matches!(
        key,
        "metadata.name" | "kubernetes.io/hostname" | "kubernetes.io/arch" | "kubernetes.io/os"
    )
}
