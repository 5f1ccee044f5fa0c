//! A node of a cluster: a machine with containerd, an agent and kube-proxy.
//!
//! The agent is ours or upstream's kubelet; both get the same arguments and read the same
//! configuration. The node's folder records which, so that a restart by another run of xtask starts
//! the same program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::layout::address;
use super::network::{self, holder};
use super::{Cluster, config};
use crate::node::agent;
use crate::runtime::{Runtime, Version};
use crate::shell::{capture, say};
use crate::upstream::Program;

/// How long containerd may take until it answers.
const RUNTIME_WAIT: Duration = Duration::from_secs(60);
/// The cgroup of containerd on a node that has cgroups of its own.
pub const RUNTIME_CGROUP: &str = "system.slice/containerd.service";
/// The agent's state folder, as the node sees it.
const AGENT_ROOT: &str = "/var/lib/kubelet";

/// File in a node's folder with more flags of its agent, one a line.
const FLAGS: &str = "agent-flags";

/// The program that is a node's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Agent {
    /// Ours: this file, or the repository's development build.
    Pintle(Option<PathBuf>),
    /// Upstream's, from the program that has all components.
    Kubelet,
    /// Upstream's, from a program of its own, as users install it.
    KubeletAlone,
}

impl Agent {
    /// Reads `pintle`, `kubelet`, `kubelet-alone` or the path of a build of ours.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "pintle" => Self::Pintle(None),
            "kubelet" => Self::Kubelet,
            "kubelet-alone" => Self::KubeletAlone,
            path if path.contains('/') => {
                let path = fs::canonicalize(path).with_context(|| format!("find {path}"))?;
                Self::Pintle(Some(path))
            }
            _ => bail!("an agent is `pintle`, `kubelet` or the path of a program, not {text}"),
        })
    }

    /// The program; builds ours when no file is named.
    pub(super) fn program(&self, cluster: &Cluster) -> Result<PathBuf> {
        match self {
            Self::Kubelet => Ok(cluster.components()?.join("kubelet")),
            Self::KubeletAlone => Program::Kubelet.ensure(),
            Self::Pintle(Some(path)) => Ok(path.clone()),
            Self::Pintle(None) => {
                say("build", "pintle-agent, development profile");
                agent::build("pintle-agent")
            }
        }
    }
}

/// Names of a node's processes.
fn process(node: &str, part: &str) -> String {
    format!("{node}-{part}")
}

/// The agent's name among the cluster's processes, and that of its log.
pub fn agent_process(node: &str) -> String {
    process(node, "agent")
}

/// Makes the machine and starts containerd with every image; the API server need not be there.
pub(super) fn start_runtime(cluster: &Cluster, node: &str, template: &Path) -> Result<()> {
    let containerd = process(node, "containerd");
    if cluster.processes.pid(&containerd).is_some() {
        return Ok(());
    }
    let (layout, processes) = (&cluster.layout, &cluster.processes);
    if processes.pid(&holder(node)).is_none() {
        crate::node::cgroups::create(&layout.cgroup(node))?;
        network::write_etc(layout, node, "cni/net.d/00-pods.conflist", &config::pod_network(node))?;
        let root = layout.node(node).join("containerd");
        if !root.exists() {
            // Hard links do not cross file systems.
            fill_root(template, &root, !layout.disk(node).exists())?;
        }
        network::start_node(layout, processes, node, &cluster.nodes)?;
    }
    let runtime = Runtime::ensure(Version::usual()?)?;
    let file = layout.node(node).join("containerd.toml");
    let registries = layout.node(node).join("registries");
    fs::create_dir_all(registries.join("_default"))?;
    fs::write(registries.join("_default/hosts.toml"), config::registry_hosts())?;
    let extra = layout.node(node).join("containerd-extra.toml");
    let extra = fs::read_to_string(extra).unwrap_or_default();
    fs::write(&file, config::containerd(&runtime, &registries, false) + &extra)?;
    let program = runtime.program("containerd");
    let mut cmd = match layout.own_cgroups(node) {
        Some(_) => service(cluster, node, RUNTIME_CGROUP, &program)?,
        None => command(cluster, node, &program)?,
    };
    processes.start(&containerd, cmd.arg("-c").arg(&file))?;
    processes.wait(&containerd, RUNTIME_WAIT, || {
        let mut ctr = command(cluster, node, &runtime.program("ctr"))?;
        capture(ctr.arg("version")).map(drop)
    })
}

/// Imports an OCI layout as the stream that containerd reads.
pub(super) fn import_images(cluster: &Cluster, node: &str, layout: &Path) -> Result<()> {
    let pipe = "tar --create --directory=\"$1\" . | ctr -n k8s.io images import -";
    let mut cmd = command(cluster, node, Path::new("bash"))?;
    capture(cmd.args(["-o", "pipefail", "-c", pipe, "bash"]).arg(layout)).map(drop)
}

/// Fills containerd's root from the template: links to files that never change, which are nearly
/// all, and copies of the databases that do. It has its name once it is whole.
fn fill_root(template: &Path, root: &Path, links: bool) -> Result<()> {
    let part = root.with_extension("part");
    fs::create_dir_all(part.parent().expect("it is in a node's folder"))?;
    if part.exists() {
        fs::remove_dir_all(&part).with_context(|| format!("remove {}", part.display()))?;
    }
    let how = if links { "-al" } else { "-a" };
    capture(Command::new("cp").arg(how).arg(template).arg(&part))?;
    let mut find = Command::new("find");
    find.arg(&part).args(["-name", "*.db", "-links", "+1"]);
    for path in capture(&mut find)?.lines().map(Path::new) {
        let copy = path.with_extension("copy");
        fs::copy(path, &copy).with_context(|| format!("copy {}", path.display()))?;
        fs::rename(&copy, path)?;
    }
    fs::rename(&part, root).with_context(|| format!("rename {}", part.display()))
}

/// Starts the agent and kube-proxy; what runs already stays.
pub(super) fn start_agent(cluster: &Cluster, node: &str) -> Result<()> {
    let processes = &cluster.processes;
    let name = agent_process(node);
    if processes.pid(&name).is_none() {
        processes.start(&name, &mut chosen_agent_command(cluster, node)?)?;
    }
    let proxy = process(node, "proxy");
    if processes.pid(&proxy).is_none() {
        let program = cluster.components()?.join("kube-proxy");
        let kubeconfig = cluster.layout.kubeconfig("proxy");
        let mut cmd = command(cluster, node, &program)?;
        processes.start(&proxy, cmd.args(config::proxy_arguments(&kubeconfig, node)))?;
    }
    Ok(())
}

/// Stops the agent; replays the recording if it is ours.
pub(super) fn replay_agent(cluster: &Cluster, node: &str) -> Result<()> {
    let agent = agent_of(cluster, node)?;
    if !matches!(agent, Agent::Pintle(_)) {
        return Ok(());
    }
    cluster.processes.stop(&agent_process(node))?;
    let mut cmd = command(cluster, node, &agent.program(cluster)?)?;
    let out = cmd.args(["replay", AGENT_ROOT]).output().context("start the replay")?;
    let text = String::from_utf8_lossy(&out.stdout) + String::from_utf8_lossy(&out.stderr);
    ensure!(out.status.success(), "what the agent of {node} decided: {}\n{text}", out.status);
    say("replay", &format!("{node}: {}", text.lines().next().unwrap_or_default()));
    Ok(())
}

/// The command line of the node's chosen agent.
pub(super) fn chosen_agent_command(cluster: &Cluster, node: &str) -> Result<Command> {
    let program = agent_of(cluster, node)?.program(cluster)?;
    agent_command(cluster, node, &program)
}

/// Returns the agent's command line, after rewriting its configuration.
fn agent_command(cluster: &Cluster, node: &str, program: &Path) -> Result<Command> {
    let file = cluster.layout.node(node).join("kubelet.json");
    let mut fields = config::kubelet(&cluster.layout, node);
    let extra = cluster.layout.node(node).join("kubelet-extra.json");
    if let Ok(text) = fs::read_to_string(&extra) {
        let more: Value = serde_json::from_str(&text).context("read kubelet-extra.json")?;
        let more = more.as_object().context("kubelet-extra.json is an object")?.clone();
        fields.as_object_mut().expect("an object").extend(more);
    }
    fs::write(&file, serde_json::to_vec_pretty(&fields)?)?;
    let mut cmd = command(cluster, node, program)?;
    cmd.arg(format!("--config={}", file.display()));
    cmd.arg(format!("--kubeconfig={}", cluster.layout.kubeconfig(node).display()));
    cmd.arg(format!("--root-dir={AGENT_ROOT}"));
    cmd.arg(format!("--hostname-override={node}"));
    cmd.arg(format!("--node-ip={}", address(node)));
    let flags = fs::read_to_string(cluster.layout.node(node).join(FLAGS)).unwrap_or_default();
    cmd.args(flags.lines());
    Ok(cmd)
}

/// Sets fields of the agent's configuration beside those that every node has.
pub(super) fn configure_agent(cluster: &Cluster, node: &str, fields: &Value) -> Result<()> {
    let dir = cluster.layout.node(node);
    fs::create_dir_all(&dir)?;
    Ok(fs::write(dir.join("kubelet-extra.json"), serde_json::to_vec_pretty(fields)?)?)
}

/// Sets flags of the agent beside those that every node has.
pub(super) fn flag_agent(cluster: &Cluster, node: &str, flags: &[&str]) -> Result<()> {
    let dir = cluster.layout.node(node);
    fs::create_dir_all(&dir)?;
    Ok(fs::write(dir.join(FLAGS), flags.join("\n"))?)
}

/// A command inside the node, with the runtime's programs and kubectl on its PATH.
pub(super) fn command(cluster: &Cluster, node: &str, program: &Path) -> Result<Command> {
    let mut cmd = match cluster.layout.own_cgroups(node) {
        Some(own) => network::enter_below(&cluster.processes, node, &own, "", program)?,
        None => network::enter(&cluster.processes, &holder(node), program)?,
    };
    cmd.env("PATH", path(cluster)?);
    Ok(cmd)
}

/// A command inside a node that has cgroups of its own, in the cgroup of a service.
pub(super) fn service(
    cluster: &Cluster,
    node: &str,
    service: &str,
    program: &Path,
) -> Result<Command> {
    let own = cluster.layout.own_cgroups(node).context("the node has no cgroups of its own")?;
    let mut cmd = network::enter_below(&cluster.processes, node, &own, service, program)?;
    cmd.env("PATH", path(cluster)?);
    Ok(cmd)
}

fn path(cluster: &Cluster) -> Result<String> {
    let runtime = Runtime::ensure(Version::usual()?)?;
    Ok(format!("{}:{}", cluster.components()?.display(), runtime.path()))
}

/// Chooses the node's agent, from its next start on.
pub(super) fn choose_agent(cluster: &Cluster, node: &str, agent: &Agent) -> Result<()> {
    let text = match agent {
        Agent::Kubelet => "kubelet".to_owned(),
        Agent::KubeletAlone => "kubelet-alone".to_owned(),
        Agent::Pintle(None) => "pintle".to_owned(),
        Agent::Pintle(Some(path)) => path.display().to_string(),
    };
    let dir = cluster.layout.node(node);
    fs::create_dir_all(&dir)?;
    Ok(fs::write(dir.join("agent"), text)?)
}

/// The node's chosen agent.
pub(super) fn agent_of(cluster: &Cluster, node: &str) -> Result<Agent> {
    let path = cluster.layout.node(node).join("agent");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    Agent::parse(text.trim())
}

/// Fails unless the API server calls the node ready.
pub(super) fn check_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let text = cluster.kubectl(&["get", "node", node, "-o", "json"])?;
    let object: Value = serde_json::from_str(&text).context("read the node")?;
    let conditions = object["status"]["conditions"].as_array();
    let ready = conditions.and_then(|c| c.iter().find(|c| c["type"] == "Ready"));
    let is_ready = ready.is_some_and(|c| c["status"] == "True");
    let message = ready.and_then(|c| c["message"].as_str()).unwrap_or("no condition Ready");
    ensure!(is_ready, "node {node} is not ready: {message}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_filled_containerd_root_is_refilled_and_shares_no_database() {
        for links in [true, false] {
            let dir = tempfile::tempdir().expect("a folder");
            let (template, root) = (dir.path().join("template"), dir.path().join("containerd"));
            fs::create_dir(&template).expect("template");
            for name in ["layer", "meta.db"] {
                fs::write(template.join(name), "whole").expect("a file");
            }
            fs::create_dir(root.with_extension("part")).expect("what is left");
            fs::write(root.with_extension("part").join("half"), "").expect("what is left");
            fill_root(&template, &root, links).expect("filled");
            assert!(!root.join("half").exists() && !root.with_extension("part").exists());
            fs::write(root.join("meta.db"), "changed").expect("a change");
            let text = |name| fs::read_to_string(template.join(name)).expect("a text");
            assert_eq!((text("meta.db"), text("layer")), ("whole".into(), "whole".into()));
            assert_eq!(fs::read_to_string(root.join("layer")).expect("a layer"), "whole");
        }
    }
}
