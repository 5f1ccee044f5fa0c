//! Whom a probe asks: a container of a pod, its addresses and ports.
//!
//! Made once when the container is first seen and shared by all attempts. Pure.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::observed::{ObservedContainer, ObservedPod};
use crate::pod::{self, containers};
use crate::types::{ContainerId, PodUid};

/// A container to be probed.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Its pod.
    pub(super) uid: PodUid,
    /// The container.
    pub(super) id: ContainerId,
    /// Its spec.
    pub(super) container: Container,
    /// Host of a probe that names none: the pod's address.
    pub(super) host: Option<String>,
}

impl Target {
    /// The target that this container of the record is.
    pub(super) fn new(
        desired: &Pod,
        container: &Container,
        record: &ObservedPod,
        seen: &ObservedContainer,
        host_ips: &[IpAddr],
    ) -> Self {
        Self {
            uid: record.uid.clone(),
            id: seen.id.clone(),
            container: container.clone(),
            host: host_of(desired, record, seen, host_ips).map(|ip| ip.to_string()),
        }
    }

    /// The host to ask, or why there is none.
    pub(super) fn host_or(&self, named: Option<&str>) -> Result<String, String> {
        let named = named.filter(|host| !host.is_empty()).map(str::to_owned);
        named.or_else(|| self.host.clone()).ok_or_else(|| "the pod has no address yet".to_owned())
    }

    /// A port's number.
    // k8s: pkg/probe/util.go ResolveContainerPort
    pub(super) fn port(&self, port: &IntOrString) -> Result<u16, String> {
        let ports: &[ContainerPort] = self.container.ports.as_deref().unwrap_or_default();
        containers::port_number(port, ports).ok_or_else(|| match port {
            IntOrString::Int(number) => format!("invalid port number: {number}"),
            IntOrString::String(name) => match name.parse::<i64>() {
                Ok(number) => format!("invalid port number: {number}"),
                Err(_) => format!("strconv.Atoi: parsing {name:?}: invalid syntax"),
            },
        })
    }
}

/// The primary address of the sandbox in which the container runs, or the node's.
fn host_of(
    desired: &Pod,
    record: &ObservedPod,
    seen: &ObservedContainer,
    host_ips: &[IpAddr],
) -> Option<IpAddr> {
    let own = record.sandboxes.iter().find(|sandbox| sandbox.id == seen.sandbox_id);
    let sandbox = own.or_else(|| record.newest_sandbox());
    if pod::uses_host_network(desired) || sandbox.is_some_and(|s| s.host_network) {
        return Some(host_ips.first().copied().unwrap_or(IpAddr::from([127, 0, 0, 1])));
    }
    let ips = sandbox.map(|sandbox| &*sandbox.ips).unwrap_or_default();
    let is_v4 = host_ips.first().is_none_or(IpAddr::is_ipv4);
    ips.iter().find(|ip| ip.is_ipv4() == is_v4).or(ips.first()).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::testing;
    use super::*;

    fn target(spec: Value, ips: Vec<IpAddr>, host_ips: &[IpAddr]) -> Target {
        let pod = testing::pod(spec, json!({}));
        let mut record = testing::observed(&pod, 1);
        record.sandboxes[0].ips = ips;
        let container = &crate::pod::spec(&pod).containers[0];
        Target::new(&pod, container, &record, &record.containers[0], host_ips)
    }

    #[test]
    fn the_default_host_is_the_pods_primary_address_or_the_nodes_on_its_network() {
        let (v4, v6): (IpAddr, IpAddr) =
            ([10, 0, 0, 7].into(), [0xfd00, 0, 0, 0, 0, 0, 0, 7].into());
        let node: IpAddr = [192, 0, 2, 1].into();
        let own = json!({"containers": [{"name": "c"}]});
        let hosts = json!({"hostNetwork": true, "containers": [{"name": "c"}]});
        let node_v6: IpAddr = [0xfd00, 0, 0, 0, 0, 0, 1, 1].into();
        for (spec, ips, host_ips, expected) in [
            (&own, vec![v4, v6], vec![node], Some("10.0.0.7")),
            (&own, vec![v6, v4], vec![node], Some("10.0.0.7")),
            (&own, vec![v4, v6], vec![node_v6], Some("fd00::7")),
            (&own, vec![v6], vec![node], Some("fd00::7")),
            (&own, vec![], vec![node], None),
            (&hosts, vec![], vec![node], Some("192.0.2.1")),
            (&hosts, vec![], vec![], Some("127.0.0.1")),
        ] {
            let got = target(spec.clone(), ips.clone(), &host_ips).host;
            assert_eq!(got.as_deref(), expected, "{spec} {ips:?} {host_ips:?}");
        }
    }

    #[test]
    fn a_port_is_a_number_a_name_of_the_container_or_a_number_in_quotes() {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let target =
            target(json!({"containers": [{"name": "c", "ports": ports}]}), Vec::new(), &[]);
        let name = |text: &str| IntOrString::String(text.to_owned());
        for (port, expected) in [
            (IntOrString::Int(80), Ok(80)),
            (name("web"), Ok(8080)),
            (name("81"), Ok(81)),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::Int(70_000), Err("invalid port number: 70000")),
            (name("nope"), Err("strconv.Atoi: parsing \"nope\": invalid syntax")),
        ] {
            assert_eq!(target.port(&port), expected.map_err(str::to_owned), "{port:?}");
        }
    }
}
