//! The control plane: etcd, the API server, the controllers and the scheduler, on one machine, and
//! beside them the registry that stands in for all others.
//!
//! All are upstream's own unless others are chosen, with the settings of a usual cluster: Node and
//! RBAC authorisation, NodeRestriction, bootstrap tokens, aggregation, an audit log. etcd does not
//! sync to disk, because its data is removed with the cluster.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::controllers::{self, Controllers};
use super::layout::{CONTROL, SERVICE_RANGE};
use super::network::{self, CONTROL_HOLDER};
use super::{Cluster, config};
use crate::image::e2e;
use crate::image::registry::Storage;
use crate::runtime::{Runtime, Version};

/// The parts, in the order in which they start.
pub const PARTS: [&str; 6] =
    ["registry", "etcd", "apiserver", controllers::UPSTREAM, controllers::OURS, "scheduler"];
/// How long the API server may take until it is ready.
const READY_WAIT: Duration = Duration::from_secs(120);

/// Starts the part of this name; it must not run. A part that the cluster was not given is none.
pub(super) fn start(cluster: &Cluster, part: &str) -> Result<()> {
    let ours = Controllers::chosen(cluster);
    let (program, args) = match part {
        "registry" => return registry(cluster),
        "etcd" => ("etcd", etcd(cluster)),
        "apiserver" => ("kube-apiserver", api_server(cluster)?),
        controllers::UPSTREAM => {
            ("kube-controller-manager", controllers::upstream(cluster, ours.as_ref()))
        }
        controllers::OURS => return ours.map_or(Ok(()), |ours| own_controllers(cluster, &ours)),
        "scheduler" => ("kube-scheduler", scheduler(cluster)),
        _ => anyhow::bail!("the control plane has no part {part}: {}", PARTS.join(", ")),
    };
    let chosen = fs::read_to_string(cluster.layout.scheduler_program()).ok();
    let program = match chosen.filter(|_| part == "scheduler") {
        Some(path) => path.into(),
        None => cluster.components()?.join(program),
    };
    cluster.processes.start(part, command(cluster, &program)?.args(args))?;
    if part == "apiserver" {
        cluster
            .processes
            .wait(part, READY_WAIT, || cluster.kubectl(&["get", "--raw", "/readyz"]).map(drop))?;
    }
    Ok(())
}

/// A registry with the images of the suites: a pull policy of Always has where to ask.
fn registry(cluster: &Cluster) -> Result<()> {
    let dir = cluster.layout.registry();
    let config = dir.join("config.yml");
    if !config.exists() {
        Storage::at(&dir).add_layout(&e2e::layout()?.0)?;
        fs::write(&config, config::registry(&dir))?;
    }
    let program = Runtime::ensure(Version::V2_1)?.program("docker-registry");
    let mut cmd = command(cluster, &program)?;
    cluster.processes.start("registry", cmd.arg("serve").arg(&config)).map(drop)
}

/// A command on the control plane's machine.
pub(super) fn command(cluster: &Cluster, program: &Path) -> Result<Command> {
    network::enter(&cluster.processes, CONTROL_HOLDER, program)
}

fn etcd(cluster: &Cluster) -> Vec<String> {
    let dir = cluster.layout.dir().join("etcd");
    vec![
        format!("--data-dir={}", dir.display()),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=error".to_owned(),
        format!("--quota-backend-bytes={}", 4u64 << 30),
    ]
}

fn api_server(cluster: &Cluster) -> Result<Vec<String>> {
    let layout = &cluster.layout;
    let policy = layout.dir().join("audit-policy.json");
    fs::write(&policy, config::audit_policy()).context("write the audit policy")?;
    let mut args: Vec<String> = [
        "--etcd-servers=http://127.0.0.1:2379",
        "--secure-port=6443",
        "--bind-address=0.0.0.0",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--enable-bootstrap-token-auth=true",
        "--kubelet-preferred-address-types=InternalIP",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
    ]
    .map(str::to_owned)
    .into();
    args.push(format!("--advertise-address={CONTROL}"));
    args.push(format!("--service-cluster-ip-range={SERVICE_RANGE}"));
    args.push(format!("--audit-policy-file={}", policy.display()));
    args.push(format!("--audit-log-path={}", layout.audit_log().display()));
    for (flag, file) in [
        ("client-ca-file", "ca.crt"),
        ("tls-cert-file", "apiserver.crt"),
        ("tls-private-key-file", "apiserver.key"),
        ("service-account-key-file", "accounts.key"),
        ("service-account-signing-key-file", "accounts.key"),
        ("kubelet-client-certificate", "apiserver-kubelet.crt"),
        ("kubelet-client-key", "apiserver-kubelet.key"),
        ("requestheader-client-ca-file", "front.crt"),
        ("proxy-client-cert-file", "front-client.crt"),
        ("proxy-client-key-file", "front-client.key"),
    ] {
        args.push(format!("--{flag}={}", layout.pki(file).display()));
    }
    let more = fs::read_to_string(layout.api_server_flags()).unwrap_or_default();
    args.extend(more.lines().map(str::to_owned));
    Ok(args)
}

/// Starts our controllers, with the rights to a lease of their own.
fn own_controllers(cluster: &Cluster, ours: &Controllers) -> Result<()> {
    for (number, object) in controllers::lease_rights().iter().enumerate() {
        let path = cluster.layout.dir().join(format!("lease-rights-{number}.json"));
        fs::write(&path, object.to_string())?;
        cluster.kubectl(&["apply", "-f", &path.to_string_lossy()])?;
    }
    let mut command = command(cluster, &ours.program)?;
    command.args(controllers::ours(cluster, ours));
    cluster.processes.start(controllers::OURS, &mut command).map(drop)
}

fn scheduler(cluster: &Cluster) -> Vec<String> {
    let mut args = identity(cluster, "scheduler");
    let path = cluster.layout.scheduler_config();
    if path.exists() {
        args.push(format!("--config={}", path.display()));
    }
    args.extend(Controllers::chosen(cluster).into_iter().flat_map(|_| controllers::patience()));
    args
}

/// Sets fields of the KubeSchedulerConfiguration, from the scheduler's next start on.
pub(super) fn configure_scheduler(cluster: &Cluster, fields: &Value) -> Result<()> {
    let mut config = json!({
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
    });
    let all = config.as_object_mut().expect("an object");
    all.extend(fields.as_object().cloned().unwrap_or_default());
    // The flag does not count beside a file.
    config["clientConnection"]["kubeconfig"] = json!(cluster.layout.kubeconfig("scheduler"));
    let path = cluster.layout.scheduler_config();
    fs::create_dir_all(cluster.layout.dir())?;
    fs::write(&path, config.to_string()).with_context(|| format!("write {}", path.display()))
}

/// The part's client certificate and the CA that it trusts, as flags.
pub(super) fn identity(cluster: &Cluster, user: &str) -> Vec<String> {
    let config = cluster.layout.kubeconfig(user);
    let config = config.display();
    vec![
        format!("--kubeconfig={config}"),
        format!("--authentication-kubeconfig={config}"),
        format!("--authorization-kubeconfig={config}"),
        format!("--requestheader-client-ca-file={}", cluster.layout.pki("front.crt").display()),
    ]
}
