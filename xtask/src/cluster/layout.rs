//! Folders and addresses of a cluster.
//!
//! Pure. Clusters differ by name and folder only: each has networks of its own, in which the same
//! addresses mean its own machines. Nodes are called `n1`, `n2` and so on.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

/// Folders and cgroups of clusters start with this.
pub const PREFIX: &str = "pintle-cluster-";
/// The control plane's address, which is also the nodes' way out and their DNS server.
pub const CONTROL: Ipv4Addr = Ipv4Addr::new(10, 200, 0, 10);
/// Range of the pods of all nodes.
pub const POD_RANGE: &str = "10.244.0.0/16";
/// Range of the services.
pub const SERVICE_RANGE: &str = "10.96.0.0/16";
/// The API server as a service.
pub const API_SERVICE: &str = "10.96.0.1";
/// The DNS server as a service.
pub const DNS_SERVICE: &str = "10.96.0.10";
/// Nodes a cluster may have; their numbers are a byte of an address.
pub const NODES_MAX: usize = 9;

/// The paths of one cluster.
#[derive(Clone, Debug)]
pub struct Layout {
    name: String,
    dir: PathBuf,
}

impl Layout {
    /// The cluster of this name.
    pub fn of(name: &str) -> Self {
        Self::in_folder(name, &std::env::temp_dir().join(format!("{PREFIX}{name}")))
    }

    pub(super) fn in_folder(name: &str, dir: &Path) -> Self {
        Self { name: name.to_owned(), dir: dir.to_owned() }
    }

    /// The cluster's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Everything that the cluster writes lies below.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The storage of the registry, and its configuration.
    pub fn registry(&self) -> PathBuf {
        self.dir.join("registry")
    }

    /// A file of the cluster's keys and certificates.
    pub fn pki(&self, file: &str) -> PathBuf {
        self.dir.join("pki").join(file)
    }

    /// A user's kubeconfig.
    pub fn kubeconfig(&self, user: &str) -> PathBuf {
        self.pki(&format!("{user}.kubeconfig"))
    }

    /// The folder of a node; the node sees parts of it at their usual places.
    pub fn node(&self, node: &str) -> PathBuf {
        self.dir.join(node)
    }

    /// The file that is the disk of a node with a disk of its own.
    pub(super) fn disk(&self, node: &str) -> PathBuf {
        self.dir.join(format!("{node}.disk"))
    }

    /// A process's log.
    pub fn log(&self, process: &str) -> PathBuf {
        self.dir.join("log").join(format!("{process}.log"))
    }

    /// The path of the scheduler's program, if it is not upstream's.
    pub(super) fn scheduler_program(&self) -> PathBuf {
        self.dir.join("scheduler-program")
    }

    /// The path of our controllers' program, if some controllers are ours.
    pub(super) fn controllers_program(&self) -> PathBuf {
        self.dir.join("controllers-program")
    }

    /// The names of the controllers that are ours.
    pub(super) fn controllers_loops(&self) -> PathBuf {
        self.dir.join("controllers-loops")
    }

    /// The KubeSchedulerConfiguration, if the scheduler has one.
    pub fn scheduler_config(&self) -> PathBuf {
        self.dir.join("scheduler.json")
    }

    /// Flags that the API server gets beside the usual ones, a line each.
    pub fn api_server_flags(&self) -> PathBuf {
        self.dir().join("api-server-flags")
    }

    /// The API server's audit log.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("log/audit.log")
    }

    /// The mark of all the cluster's processes, see `node::process`.
    pub fn mark(&self) -> String {
        format!("{PREFIX}{}", self.name)
    }

    /// The cgroup below which a node's pods are.
    pub fn cgroup(&self, node: &str) -> String {
        format!("{PREFIX}{}-{node}", self.name)
    }

    /// The file whose existence makes a node use its own cgroup as the root of the hierarchies.
    pub(super) fn own_cgroups_file(&self, node: &str) -> PathBuf {
        self.node(node).join("own-cgroups")
    }

    /// The cgroup that the node takes for the root, if it does.
    pub(super) fn own_cgroups(&self, node: &str) -> Option<String> {
        self.own_cgroups_file(node).exists().then(|| self.cgroup(node))
    }
}

/// The names of the first `count` nodes.
pub fn nodes(count: usize) -> Vec<String> {
    (1..=count).map(|n| format!("n{n}")).collect()
}

/// A node's number.
pub fn number(node: &str) -> u8 {
    node.strip_prefix('n').and_then(|n| n.parse().ok()).expect("nodes are called n1, n2, ...")
}

/// A node's address.
pub fn address(node: &str) -> Ipv4Addr {
    Ipv4Addr::new(10, 200, 0, 10 + number(node))
}

/// The range of a node's pods.
pub fn pod_range(node: &str) -> String {
    format!("10.244.{}.0/24", number(node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_node_has_an_address_and_a_range_of_its_own() {
        assert_eq!(nodes(2), ["n1", "n2"]);
        assert_eq!(address("n2").to_string(), "10.200.0.12");
        assert_eq!(pod_range("n1"), "10.244.1.0/24");
    }

    #[test]
    fn clusters_of_other_names_share_neither_folder_nor_cgroup() {
        let (a, b) = (Layout::of("a"), Layout::of("b"));
        assert_ne!(a.dir(), b.dir());
        assert_ne!(a.cgroup("n1"), b.cgroup("n1"));
        assert_ne!(a.mark(), b.mark());
    }
}
