//! The agent beside a private containerd: its folders, its configuration, its command line.
//!
//! Shared by demo and tests. The agent runs with its default ports, because every node
//! has a network of its own, and with all its paths below the node's folder. The settings that a
//! user's node would not have are those that this host needs: swap and cgroup v1 allowed, a cgroup
//! root of our own, nothing reserved.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::ContainerdNode;
use crate::repository;
use crate::shell::{capture_shown, cargo, gentle_cargo};

/// The node's name in pods and in API objects.
pub const NODE_NAME: &str = "node";
/// The agent's read-only port.
pub const READ_ONLY_PORT: u16 = 10255;
/// The agent's health port.
pub const HEALTH_PORT: u16 = 10248;
/// Has cargo optimize the packages that tests keep busy.
pub const OPTIMIZED: &str = "tests/optimized.toml";

/// Folders and files of a node's agent.
#[derive(Clone, Debug)]
pub struct AgentLayout {
    dir: PathBuf,
}

impl AgentLayout {
    /// The paths below a node's folder.
    pub fn of(node: &ContainerdNode) -> Self {
        Self { dir: node.dir().to_owned() }
    }

    /// The agent's `--root-dir`.
    pub fn root(&self) -> PathBuf {
        self.dir.join("kubelet")
    }

    /// The manifest folder.
    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// The agent's podLogsDir.
    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("pod-logs")
    }

    /// The KubeletConfiguration file.
    pub fn config_file(&self) -> PathBuf {
        self.dir.join("kubelet.json")
    }

    /// Makes the folders and writes the configuration, with `extra` fields on top.
    pub fn write(&self, node: &ContainerdNode, extra: &Value) -> Result<()> {
        for dir in [self.root(), self.manifests(), self.pod_logs()] {
            fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        }
        fs::write(self.dir.join("resolv.conf"), "nameserver 192.0.2.53\nsearch test.example\n")?;
        let mut config = self.configuration(node);
        let fields = config.as_object_mut().expect("an object");
        fields.extend(extra.as_object().context("extra fields are an object")?.clone());
        Ok(fs::write(self.config_file(), serde_json::to_vec_pretty(&config)?)?)
    }

    /// The kubelet configuration: JSON, which is YAML too.
    fn configuration(&self, node: &ContainerdNode) -> Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "staticPodPath": self.manifests(),
            "containerRuntimeEndpoint": format!("unix://{}", node.socket().display()),
            "podLogsDir": self.pod_logs(),
            "resolvConf": self.dir.join("resolv.conf"),
            "volumePluginDir": self.dir.join("plugins"),
            "address": "127.0.0.1",
            "readOnlyPort": READ_ONLY_PORT,
            "healthzPort": HEALTH_PORT,
            "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": if node.is_by_systemd() { "systemd" } else { "cgroupfs" },
            "cgroupRoot": format!("/{}", node.name()),
            "enforceNodeAllocatable": [],
            // The disk is the host's, which may be nearly full; what is removed from it could not
            // be pulled again.
            "evictionHard": {"memory.available": "100Mi"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "failSwapOn": false,
            "failCgroupV1": false,
            "fileCheckFrequency": "1s",
        })
    }

    /// The agent's command line inside the node.
    pub fn agent(&self, node: &ContainerdNode, binary: &Path) -> Command {
        let mut cmd = node.command(binary);
        cmd.arg("--config").arg(self.config_file());
        cmd.arg(format!("--root-dir={}", self.root().display()));
        cmd.arg(format!("--cert-dir={}", self.root().join("pki").display()));
        cmd.arg(format!("--hostname-override={NODE_NAME}"));
        cmd
    }

    /// A question to the running agent, such as `explain POD`.
    pub fn ask(&self, node: &ContainerdNode, binary: &Path, args: &[&str]) -> Command {
        let mut cmd = node.command(binary);
        cmd.args(args).arg("--root-dir").arg(self.root());
        cmd
    }
}

/// Builds a program of the workspace in the development profile and returns its path; with the
/// selection that the test stages use, so that what they compiled serves. A process builds each
/// program once: another build beside it would lock cargo's folder for minutes.
pub fn build(program: &str) -> Result<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(path) = built.get(program) {
        return Ok(path.clone());
    }
    let path = build_with_features(program, &[])?;
    Ok(built.entry(program.to_owned()).or_insert(path).clone())
}

/// Builds a program like [`build`], with features.
pub fn build_with_features(program: &str, features: &[&str]) -> Result<PathBuf> {
    let mut cargo = cargo(&["build", "--workspace", "--bin", program]);
    if !features.is_empty() {
        cargo.arg("--features").arg(features.join(","));
    }
    build_with(&mut cargo)
}

/// Builds a program for the end-to-end tests and returns the path of a copy: the development profile
/// without [`OPTIMIZED`] has the same path.
pub fn build_tested(program: &str) -> Result<PathBuf> {
    let mut cargo = gentle_cargo(&["build", "--workspace", "--bin", program]);
    let built = build_with(cargo.args(["--config", OPTIMIZED]))?;
    let dir = repository().join("target/tested");
    fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    let copy = dir.join(program);
    // A running program cannot be written to, only replaced.
    let new = copy.with_extension("new");
    fs::copy(&built, &new).with_context(|| format!("copy {}", built.display()))?;
    fs::rename(&new, &copy).with_context(|| format!("replace {}", copy.display()))?;
    Ok(copy)
}

/// Builds a program in the release profile, alone and so with the features that users get, and
/// returns its path.
pub fn build_release(program: &str) -> Result<PathBuf> {
    let args = ["build", "--release", "--package", program, "--bin", program];
    build_with(&mut gentle_cargo(&args))
}

fn build_with(cargo: &mut Command) -> Result<PathBuf> {
    cargo.arg("--message-format=json-render-diagnostics");
    let text = capture_shown(cargo).context("build the program")?;
    let messages = text.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    let built = messages.filter_map(|m| m["executable"].as_str().map(PathBuf::from)).next_back();
    built.context("cargo names the program that it built")
}
