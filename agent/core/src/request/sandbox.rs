//! RunPodSandbox's configuration.

use std::collections::HashSet;
use std::net::Ipv6Addr;

use k8s_openapi::api::core::v1::{Container, ContainerPort};
use pintle_cri_v1 as v1;

use super::context::PodContext;
use super::{paths, resources};
use crate::labels;
use crate::request::dns::{self, DnsError, DnsWarning};
use crate::request::hostname::{self, HostnameError};
use crate::request::security::{self, SecurityError};
use crate::request::sysctl;
use pintle_api_types::pod;

/// Why no request for a sandbox can be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The node's resolv.conf.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// The pod's name.
    #[error(transparent)]
    Hostname(#[from] HostnameError),
    /// Its rights.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

/// A sandbox to run.
#[derive(Clone, Debug, PartialEq)]
pub struct SandboxConfig {
    /// The configuration; CreateContainer repeats it.
    pub config: v1::PodSandboxConfig,
    /// `runtime_handler` of the request.
    pub handler: String,
    /// Warnings to emit as events when the sandbox is run.
    pub warnings: Vec<DnsWarning>,
}

/// The configuration of a pod's sandbox.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_sandbox.go generatePodSandboxConfig
pub fn sandbox_config(ctx: &PodContext<'_>) -> Result<SandboxConfig, SandboxError> {
    let (pod, node) = (ctx.pod, ctx.node);
    let (dns, warnings) = dns::pod_dns(pod, &node.dns, &node.facts.host_ips)?;
    let hostname = if pod::uses_host_network(pod) {
        String::new()
    } else {
        let name = hostname::pod_hostname(pod, &node.dns.cluster_domain)?;
        let as_fqdn = pod::spec(pod).set_hostname_as_fqdn == Some(true);
        hostname::kernel_hostname(&name, as_fqdn)?
    };
    let config = v1::PodSandboxConfig {
        metadata: Some(v1::PodSandboxMetadata {
            name: pod::name(pod).to_owned(),
            uid: pod::uid(pod).to_string(),
            namespace: pod::namespace(pod).to_owned(),
            attempt: ctx.attempt,
        }),
        hostname,
        log_directory: paths::pod_log_dir(&node.pod_logs_dir, pod),
        dns_config: Some(v1::DnsConfig {
            servers: dns.servers,
            searches: dns.searches,
            options: dns.options,
        }),
        port_mappings: pod::spec(pod).containers.iter().flat_map(port_mappings).collect(),
        labels: labels::sandbox_labels(pod),
        annotations: labels::sandbox_annotations(pod),
        linux: Some(linux(ctx)?),
        windows: None,
    };
    Ok(SandboxConfig { config, handler: ctx.handler.name.clone(), warnings })
}

fn linux(ctx: &PodContext<'_>) -> Result<v1::LinuxPodSandboxConfig, SandboxError> {
    let qos = pod::qos::class_of(ctx.pod);
    let mut security = security::sandbox_security(ctx.pod, ctx.extra_groups)?;
    security.namespace_options = Some(security::namespaces(ctx.pod, ctx.users)?);
    Ok(v1::LinuxPodSandboxConfig {
        cgroup_parent: ctx.node.cgroup.pod(qos, &pod::uid(ctx.pod)),
        security_context: Some(security),
        sysctls: sysctl::sandbox_sysctls(ctx.pod),
        overhead: Some(resources::overhead_resources(ctx.node, ctx.pod)),
        resources: Some(resources::sandbox_resources(ctx)),
    })
}

/// A container's ports; of those with the same name only the first.
// k8s: pkg/kubelet/container/helpers.go MakePortMappings
fn port_mappings(container: &Container) -> Vec<v1::PortMapping> {
    let mut names = HashSet::new();
    let ports = container.ports.iter().flatten().filter(|port| names.insert(port_name(port)));
    ports
        .map(|port| v1::PortMapping {
            protocol: protocol(port).into(),
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or(0),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

fn port_name(port: &ContainerPort) -> String {
    if let Some(name) = port.name.as_ref().filter(|name| !name.is_empty()) {
        return name.clone();
    }
    let ip = port.host_ip.as_deref().unwrap_or_default();
    let family = match ip {
        "" => "any",
        ip if ip.parse::<Ipv6Addr>().is_ok() => "v6",
        _ => "v4",
    };
    let protocol = port.protocol.as_deref().unwrap_or_default();
    let host_port = port.host_port.unwrap_or(0);
    format!("{family}-{protocol}-{ip}:{}:{host_port}", port.container_port)
}

fn protocol(port: &ContainerPort) -> v1::Protocol {
    match port.protocol.as_deref() {
        Some("UDP") => v1::Protocol::Udp,
        Some("SCTP") => v1::Protocol::Sctp,
        _ => v1::Protocol::Tcp,
    }
}
