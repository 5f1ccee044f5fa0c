//! CreateContainer's configuration.

use pintle_cri_v1 as v1;

use super::context::{ContainerContext, PodContext};
use super::{mounts, paths, resources};
use crate::env::variables as env;
use crate::env::variables::{EnvContext, EnvError, Environment};
use crate::labels;
use crate::request::hostname::{self, HostnameError};
use crate::request::security::{self, SecurityError};
use crate::signal;

/// Why no request for a container can be built. Its status waits with `REASON` and this text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The pod's name.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// Its environment.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// Its rights.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

impl ConfigError {
    /// Reason of the waiting container.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go ErrCreateContainerConfig
    pub const REASON: &'static str = "CreateContainerConfigError";
}

/// The environment of a container, needed before its configuration to plan its sub-paths. An
/// error of that plan counts as a `ConfigError` too.
pub fn container_environment(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
) -> Result<Environment, EnvError> {
    let env = EnvContext {
        pod: ctx.pod,
        pod_ips: ctx.ips(),
        node: &ctx.node.facts,
        sources: container.sources,
        env_files: ctx.node.gates.env_files,
    };
    env::environment(container.container, &env)
}

/// The configuration of a container.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go generateContainerConfig
pub fn container_config(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
) -> Result<v1::ContainerConfig, ConfigError> {
    let (pod, spec) = (ctx.pod, container.container);
    let restarts = container.restart_count;
    hostname::pod_hostname(pod, &ctx.node.dns.cluster_domain)?;
    let environment = container_environment(ctx, container)?;
    let mut mounts = mounts::container_mounts(ctx, container);
    security::verify_non_root(pod, spec, container.image_user)?;
    let linux = linux(ctx, container)?;
    map_ids(&mut mounts, &linux);
    let mut room = environment.room();
    let mut expanded = |list: &Option<Vec<String>>| {
        environment.expand(list.as_deref().unwrap_or_default(), &mut room)
    };
    Ok(v1::ContainerConfig {
        metadata: Some(v1::ContainerMetadata { name: spec.name.clone(), attempt: restarts }),
        image: Some(v1::ImageSpec {
            image: container.image_ref.to_owned(),
            user_specified_image: spec.image.clone().unwrap_or_default(),
            ..Default::default()
        }),
        command: expanded(&spec.command)?,
        args: expanded(&spec.args)?,
        working_dir: spec.working_dir.clone().unwrap_or_default(),
        envs: environment.values().map(|(key, value)| key_value(key, value)).collect(),
        mounts,
        devices: container.devices.to_vec(),
        cdi_devices: container.cdi_devices.to_vec(),
        labels: labels::container_labels(pod, spec),
        annotations: labels::container_annotations(pod, spec, restarts, container.annotations),
        log_path: paths::container_log(&spec.name, restarts),
        stdin: spec.stdin.unwrap_or(false),
        stdin_once: spec.stdin_once.unwrap_or(false),
        tty: spec.tty.unwrap_or(false),
        linux: Some(linux),
        windows: None,
        stop_signal: stop_signal(ctx, container).into(),
    })
}

fn linux(
    ctx: &PodContext<'_>,
    container: &ContainerContext<'_>,
) -> Result<v1::LinuxContainerConfig, SecurityError> {
    let (spec, node) = (container.container, ctx.node);
    let mut namespaces = security::namespaces(ctx.pod, ctx.users)?;
    if let Some(target) = container.target_id
        && namespaces.pid() == v1::NamespaceMode::Container
    {
        namespaces.pid = v1::NamespaceMode::Target.into();
        namespaces.target_id = target.to_owned();
    }
    let user = container.image_user;
    let groups = ctx.extra_groups;
    let mut security = security::container_security(ctx.pod, spec, user, &node.security, groups)?;
    security.namespace_options = Some(namespaces);
    let resources = resources::container_resources(node, ctx.pod, spec, container.exclusive_cpus);
    Ok(v1::LinuxContainerConfig { resources: Some(resources), security_context: Some(security) })
}

/// Files of a pod with users of its own are shown to it with its ids.
fn map_ids(mounts: &mut [v1::Mount], linux: &v1::LinuxContainerConfig) {
    let security = linux.security_context.as_ref();
    let namespaces = security.and_then(|security| security.namespace_options.as_ref());
    let Some(users) = namespaces.and_then(|namespaces| namespaces.userns_options.as_ref()) else {
        return;
    };
    for mount in mounts {
        mount.uid_mappings.clone_from(&users.uids);
        mount.gid_mappings.clone_from(&users.gids);
    }
}

fn key_value(key: &str, value: &[u8]) -> v1::KeyValue {
    v1::KeyValue { key: key.to_owned(), value: value.to_vec() }
}

// k8s: pkg/kubelet/kuberuntime/helpers.go getContainerConfigStopSignal
fn stop_signal(ctx: &PodContext<'_>, container: &ContainerContext<'_>) -> v1::Signal {
    let lifecycle = container.container.lifecycle.as_ref();
    let named = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.as_deref());
    let named = named.filter(|_| ctx.node.gates.container_stop_signals);
    named.and_then(signal::of_name).unwrap_or(v1::Signal::RuntimeDefault)
}
