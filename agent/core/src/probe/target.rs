//! The target of a probe: a container of a pod, its address and ports.
//!
//! Made once when the container is first seen and shared by all attempts; the address is that of
//! the pod's status, and an attempt uses the one that holds when it begins. Pure.
// k8s: pkg/kubelet/prober/prober.go runProbe (status.PodIP)

use std::rc::Rc;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Pod};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::observed::ObservedContainer;
use pintle_api_types::ids::{ContainerId, PodUid};
use pintle_api_types::pod::{self, containers};

/// The reason for which a probe has no host or port.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The pod has no address, and the probe names none.
    #[error("the pod has no address yet")]
    NoAddress,
    /// No port has this number.
    #[error("invalid port number: {0}")]
    PortNumber(i64),
    /// No port of the container has this name. The text is Go's.
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    PortName(String),
}

/// A container to be probed.
#[derive(Clone, Debug)]
pub struct ProbeTarget {
    /// Its pod.
    pub uid: PodUid,
    /// The container.
    pub id: ContainerId,
    /// Its spec.
    pub container: Rc<Container>,
    /// Host of a probe that names none: the pod's address.
    pub host: Option<String>,
}

impl ProbeTarget {
    /// The target that this container of the record is, without an address.
    pub fn new(uid: &PodUid, container: &Container, seen: &ObservedContainer) -> Self {
        let container = Rc::new(container.clone());
        Self { uid: uid.clone(), id: seen.id.clone(), container, host: None }
    }

    /// The same target in a pod with this address.
    pub fn moved_to(&self, pod: &Pod, pod_ip: Option<&str>) -> Self {
        Self { host: host_of(pod, pod_ip).map(str::to_owned), ..self.clone() }
    }

    /// True when that changes nothing.
    pub fn is_at(&self, pod: &Pod, pod_ip: Option<&str>) -> bool {
        self.host.as_deref() == host_of(pod, pod_ip)
    }

    /// The host to ask, or why there is none.
    pub fn host_or(&self, named: Option<&str>) -> Result<String, TargetError> {
        let named = named.filter(|host| !host.is_empty()).map(str::to_owned);
        named.or_else(|| self.host.clone()).ok_or(TargetError::NoAddress)
    }

    /// A port's number.
    // k8s: pkg/probe/util.go ResolveContainerPort
    pub fn port(&self, port: &IntOrString) -> Result<u16, TargetError> {
        let ports: &[ContainerPort] = self.container.ports.as_deref().unwrap_or_default();
        containers::port_number(port, ports).ok_or_else(|| match port {
            IntOrString::Int(number) => TargetError::PortNumber(i64::from(*number)),
            IntOrString::String(name) => match name.parse() {
                Ok(number) => TargetError::PortNumber(number),
                Err(_) => TargetError::PortName(name.clone()),
            },
        })
    }
}

/// The pod's address; one on the node's network is at the loopback interface, too.
fn host_of<'a>(pod: &Pod, pod_ip: Option<&'a str>) -> Option<&'a str> {
    pod_ip.filter(|ip| !ip.is_empty()).or(pod::uses_host_network(pod).then_some("127.0.0.1"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::probe::testing;

    fn target(spec: Value, pod_ip: Option<&str>) -> ProbeTarget {
        let pod = testing::pod(spec, json!({}));
        let record = testing::observed(&pod, 1);
        let container = &pintle_api_types::pod::spec(&pod).containers[0];
        ProbeTarget::new(&record.uid, container, &record.containers[0]).moved_to(&pod, pod_ip)
    }

    #[test]
    fn the_default_host_is_the_address_of_the_pods_status() {
        let own = json!({"containers": [{"name": "c"}]});
        let hosts = json!({"hostNetwork": true, "containers": [{"name": "c"}]});
        for (spec, ip, expected) in [
            (&own, Some("10.0.0.7"), Some("10.0.0.7")),
            (&own, Some("fd00::7"), Some("fd00::7")),
            (&own, Some(""), None),
            (&own, None, None),
            (&hosts, Some("192.0.2.1"), Some("192.0.2.1")),
            (&hosts, None, Some("127.0.0.1")),
        ] {
            assert_eq!(target(spec.clone(), ip).host.as_deref(), expected, "{spec} {ip:?}");
        }
    }

    #[test]
    fn a_port_is_a_number_a_name_of_the_container_or_a_number_in_quotes() {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        let target = target(json!({"containers": [{"name": "c", "ports": ports}]}), None);
        let name = |text: &str| IntOrString::String(text.to_owned());
        for (port, expected) in [
            (IntOrString::Int(80), Ok(80)),
            (name("web"), Ok(8080)),
            (name("81"), Ok(81)),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::Int(70_000), Err("invalid port number: 70000")),
            (name("nope"), Err("strconv.Atoi: parsing \"nope\": invalid syntax")),
        ] {
            let found = target.port(&port).map_err(|error| error.to_string());
            assert_eq!(found, expected.map_err(str::to_owned), "{port:?}");
        }
    }
}
