//! The nodes of a comparison: namespaces of this host, or guests with cgroup v2 and systemd.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::Value;

use super::cgroups::CgroupNames;
use super::observe::{NodePlaces, PodQuery, observe};
use crate::cluster::Cluster;
use crate::runtime::{Runtime, Version};
use crate::uml;

/// containerd's log in a guest: its journal drops lines of a unit that logs much.
const GUEST_LOG: &str = "/var/log/containerd.log";
/// containerd logs each call there, and commands inside of containers.
const GUEST_LOGGING: &str = r#"
mkdir -p /etc/systemd/system/containerd.service.d
cat > /etc/systemd/system/containerd.service.d/log.conf <<'END'
[Service]
StandardOutput=append:/var/log/containerd.log
StandardError=append:/var/log/containerd.log
END
printf '\n[debug]\nlevel = "debug"\n' >> /host/containerd.toml
systemctl daemon-reload
systemctl restart containerd
"#;
/// This program, in a guest.
const GUEST_PROGRAM: &str = "/host/xtask";

/// A node as a comparison reaches it.
pub(super) trait NodeAccess: Sync {
    /// Answers a query.
    fn observe(&self, query: &PodQuery) -> Result<Value>;
    /// The cgroup below which the node's pods are; none if that is the root.
    fn cgroup_root(&self) -> String;
    /// Writes the manifest of a static pod.
    fn put_manifest(&self, name: &str, pod: &Value) -> Result<()>;
    /// Removes the manifest of a static pod.
    fn remove_manifest(&self, name: &str) -> Result<()>;
}

/// A node in namespaces of this host.
pub(super) struct NamespacedNode<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) name: &'static str,
}

impl NamespacedNode<'_> {
    fn manifest(&self, name: &str) -> PathBuf {
        let dir = self.cluster.layout().node(self.name).join("manifests");
        dir.join(format!("{name}.json"))
    }
}

impl NodeAccess for NamespacedNode<'_> {
    fn observe(&self, query: &PodQuery) -> Result<Value> {
        let pid = self.cluster.pid(&format!("{}-machine", self.name));
        let pid = pid.context("the node's machine runs")?;
        let places = NodePlaces {
            root: PathBuf::from(format!("/proc/{pid}/root")),
            log: self.cluster.layout().log(&format!("{}-containerd", self.name)),
            cgroups: CgroupNames::Plain { root: self.cgroup_root() },
            ctr: &|| self.cluster.node_command(self.name, Path::new("ctr")),
        };
        observe(&places, query)
    }

    fn cgroup_root(&self) -> String {
        self.cluster.layout().cgroup(self.name)
    }

    fn put_manifest(&self, name: &str, pod: &Value) -> Result<()> {
        Ok(fs::write(self.manifest(name), pod.to_string())?)
    }

    fn remove_manifest(&self, name: &str) -> Result<()> {
        Ok(fs::remove_file(self.manifest(name))?)
    }
}

/// A node that is a guest.
pub(super) struct GuestNode {
    node: uml::Node,
    /// containerd's `ctr`, which the guest has at the same path.
    ctr: PathBuf,
}

impl GuestNode {
    /// Boots a guest as a node of the cluster; its containerd logs all calls.
    pub(super) fn join(cluster: &Cluster, name: &str, agent: &Path) -> Result<Self> {
        let node = uml::Node::join_whole(cluster, name, agent)?;
        node.guest().capture(GUEST_LOGGING).context("have containerd log its calls")?;
        let program = node.guest().dir().join("xtask");
        fs::copy("/proc/self/exe", &program).context("copy this program into the guest")?;
        cluster.wait_guest_ready(name)?;
        let ctr = Runtime::ensure(Version::usual()?)?.program("ctr");
        Ok(Self { node, ctr })
    }

    /// The last lines of the agent's log.
    pub(super) fn agent_log(&self) -> String {
        self.node.journal("pintle-agent")
    }
}

impl NodeAccess for GuestNode {
    fn observe(&self, query: &PodQuery) -> Result<Value> {
        let (ctr, query) = (self.ctr.display(), query.to_json().to_string());
        let script = format!("{GUEST_PROGRAM} differential observe '{ctr}' '{query}'");
        let text = self.node.guest().capture(&script)?;
        serde_json::from_str(&text).with_context(|| format!("read {text:?}"))
    }

    fn cgroup_root(&self) -> String {
        String::new()
    }

    fn put_manifest(&self, name: &str, pod: &Value) -> Result<()> {
        self.node.put_as(name, pod)
    }

    fn remove_manifest(&self, name: &str) -> Result<()> {
        self.node.remove(name)
    }
}

/// Answers a query in a guest, as JSON.
pub fn observe_here(ctr: &str, query: &str) -> Result<Value> {
    let places = NodePlaces {
        root: PathBuf::from("/proc/1/root"),
        log: PathBuf::from(GUEST_LOG),
        cgroups: CgroupNames::Systemd,
        ctr: &|| Ok(Command::new(ctr)),
    };
    observe(&places, &PodQuery::from_json(query)?)
}
