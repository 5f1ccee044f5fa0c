//! The cluster's services, as far as variables of containers need them.
//!
//! Every pod has variables for `kubernetes`, and for the services of its namespace unless it
//! declines, so there is one watch of them all while there is a pod. Only name, address and ports
//! are kept: some 200 bytes for a service.
//!
//! Owner: `Objects`. Bound: `SERVICES_MAX`.
// k8s: pkg/kubelet/kubelet.go serviceLister, pkg/kubelet/kubelet_pods.go getServiceEnvVarMap

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use pintle_api_types::pruned_object;
use serde::Deserialize;

use super::collection::{Collection, CollectionRecord, CollectionState};
use super::object::ObjectFields;

/// Services that are kept; pods get no variables for further ones.
const SERVICES_MAX: usize = 50_000;
/// The namespace and the name of the API server's own service.
const API: (&str, &str) = ("default", "kubernetes");

/// A service on the wire.
#[derive(PartialEq, Deserialize)]
pub(super) struct ServiceWire {
    #[serde(default)]
    metadata: ObjectFields,
    #[serde(default)]
    spec: ServiceSpecWire,
}

pruned_object!(ServiceWire);

#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ServiceSpecWire {
    #[serde(rename = "clusterIP")]
    cluster_ip: String,
    ports: Option<Vec<PortWire>>,
}

#[derive(PartialEq, Deserialize)]
struct PortWire {
    #[serde(default)]
    name: Option<Box<str>>,
    port: i32,
    #[serde(default)]
    protocol: Option<Box<str>>,
}

/// The kept fields of a service.
#[derive(Debug, PartialEq)]
struct Brief {
    address: Box<str>,
    ports: Box<[PortFields]>,
}

#[derive(Debug, PartialEq)]
struct PortFields {
    name: Option<Box<str>>,
    number: i32,
    /// `None` for TCP, which nearly all are.
    protocol: Option<Box<str>>,
}

/// Kept services by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Services(BTreeMap<Box<str>, BTreeMap<Box<str>, Brief>>, usize);

impl Services {
    fn has(&self, namespace: &str, name: &str) -> bool {
        self.0.get(namespace).is_some_and(|services| services.contains_key(name))
    }

    /// False when there is no room for it.
    fn insert(&mut self, namespace: Box<str>, name: Box<str>, kept: Brief) -> bool {
        if self.1 >= SERVICES_MAX && !self.has(&namespace, &name) {
            return false;
        }
        let before = self.0.entry(namespace).or_default().insert(name, kept);
        self.1 += usize::from(before.is_none());
        true
    }

    /// The services whose variables pods of a namespace get.
    fn of(&self, namespace: &str) -> Vec<Service> {
        let own = self.0.get(namespace).into_iter().flatten();
        let mut all: Vec<Service> =
            own.map(|(name, kept)| kept.to_service(namespace, name)).collect();
        if namespace != API.0
            && let Some(kept) = self.0.get(API.0).and_then(|services| services.get(API.1))
        {
            all.push(kept.to_service(API.0, API.1));
        }
        all
    }
}

impl Brief {
    fn to_service(&self, namespace: &str, name: &str) -> Service {
        let port = |port: &PortFields| ServicePort {
            name: port.name.as_deref().map(str::to_owned),
            port: port.number,
            protocol: Some(port.protocol.as_deref().unwrap_or("TCP").to_owned()),
            ..ServicePort::default()
        };
        Service {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                cluster_ip: Some(self.address.to_string()),
                ports: Some(self.ports.iter().map(port).collect()),
                ..ServiceSpec::default()
            }),
            ..Service::default()
        }
    }
}

impl CollectionRecord for Services {
    type Wire = ServiceWire;
    const PATHS: &'static [&'static str] = &["/api/v1/services"];
    const NAME: &'static str = "services";

    fn put(&mut self, service: ServiceWire) -> bool {
        let (namespace, name) = (service.metadata.namespace, service.metadata.name);
        let address = service.spec.cluster_ip;
        if address.is_empty() || address == "None" {
            self.remove(&namespace, &name);
            return true;
        }
        let protocol = |text: Option<Box<str>>| text.filter(|text| &**text != "TCP");
        let ports = service.spec.ports.unwrap_or_default().into_iter();
        let ports = ports.map(|port| PortFields {
            name: port.name,
            number: port.port,
            protocol: protocol(port.protocol),
        });
        let kept = Brief { address: address.into(), ports: ports.collect() };
        self.insert(namespace.into(), name.into(), kept)
    }

    fn remove(&mut self, namespace: &str, name: &str) {
        let Some(services) = self.0.get_mut(namespace) else { return };
        self.1 -= usize::from(services.remove(name).is_some());
        if services.is_empty() {
            self.0.remove(namespace);
        }
    }

    fn keep(&mut self, earlier: Self, stays: &dyn Fn(&str, &str) -> bool) {
        for (namespace, services) in earlier.0 {
            for (name, kept) in services {
                if stays(&namespace, &name) && !self.has(&namespace, &name) {
                    self.insert(namespace.clone(), name, kept);
                }
            }
        }
    }
}

/// The watch of all services, open while there is a pod.
#[derive(Default)]
pub(super) struct ServiceWatch(Collection<Services>);

impl ServiceWatch {
    /// Opens the watch if it is not.
    pub(super) fn open(&self, client: &Client) {
        self.0.open(client);
    }

    /// Ends the watch and clears the record.
    pub(super) fn close(&self) {
        self.0.close();
    }

    /// The services for pods of a namespace; `None` when they are still not known after `patience`.
    pub(super) async fn of(&self, namespace: &str, patience: Duration) -> Option<Vec<Service>> {
        match self.0.known(patience).await {
            CollectionState::All => Some(self.0.kept().of(namespace)),
            CollectionState::Nothing | CollectionState::NoKind => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn wire(namespace: &str, name: &str, spec: Value) -> ServiceWire {
        let metadata = json!({"namespace": namespace, "name": name, "resourceVersion": "7"});
        serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a service")
    }

    #[test]
    fn pod_gets_variables_of_the_services_in_its_namespace_and_of_the_api_server() {
        let mut services = Services::default();
        let ports = json!([{"port": 443, "protocol": "TCP", "name": "https"}]);
        services.put(wire(
            "default",
            "kubernetes",
            json!({"clusterIP": "10.0.0.1", "ports": ports}),
        ));
        services.put(wire("default", "other", json!({"clusterIP": "10.0.0.2", "ports": ports})));
        let dns = json!([{"port": 53, "protocol": "UDP"}]);
        services.put(wire("ns", "dns", json!({"clusterIP": "10.0.0.3", "ports": dns})));
        services.put(wire("ns", "headless", json!({"clusterIP": "None"})));
        services.put(wire("ns", "external", json!({"type": "ExternalName"})));
        let names = |namespace: &str| -> Vec<String> {
            services.of(namespace).into_iter().filter_map(|s| s.metadata.name).collect()
        };
        assert_eq!(names("ns"), ["dns", "kubernetes"]);
        assert_eq!(names("default"), ["kubernetes", "other"]);
        assert_eq!(names("empty"), ["kubernetes"]);
        let told = pintle_agent_core::env::services::variables(&services.of("ns"), "ns", true);
        let has = |name: &str, value: &str| told.contains(&(name.to_owned(), value.to_owned()));
        assert!(has("DNS_PORT_53_UDP_PROTO", "udp") && has("KUBERNETES_SERVICE_PORT_HTTPS", "443"));
    }

    #[test]
    fn services_that_are_kept_stay_up_to_date_when_there_is_no_room_for_more() {
        let mut services = Services::default();
        services.put(wire("ns", "kept", json!({"clusterIP": "10.0.0.1"})));
        services.1 = SERVICES_MAX;
        assert!(!services.put(wire("ns", "more", json!({"clusterIP": "10.0.0.2"}))));
        assert!(services.put(wire("ns", "kept", json!({"clusterIP": "10.0.0.3"}))));
        let told = services.of("ns");
        let addresses: Vec<_> =
            told.iter().filter_map(|s| s.spec.as_ref()?.cluster_ip.as_deref()).collect();
        assert_eq!(addresses, ["10.0.0.3"]);
    }

    #[test]
    fn only_a_service_that_cannot_be_decoded_keeps_its_earlier_state() {
        let service = |address: &str| json!({"clusterIP": address});
        let (mut earlier, mut now) = (Services::default(), Services::default());
        for name in ["broken", "changed", "gone"] {
            earlier.put(wire("ns", name, service("10.0.0.1")));
        }
        now.put(wire("ns", "changed", service("10.0.0.2")));
        now.keep(earlier, &|_, name| name != "gone");
        let told = now.of("ns");
        let each = told.iter().filter_map(|s| {
            Some((s.metadata.name.as_deref()?, s.spec.as_ref()?.cluster_ip.as_deref()?))
        });
        assert_eq!(each.collect::<Vec<_>>(), [("broken", "10.0.0.1"), ("changed", "10.0.0.2")]);
        assert_eq!(now.1, 2);
    }

    #[test]
    fn service_that_is_deleted_or_loses_its_address_has_no_variables() {
        let mut services = Services::default();
        services.put(wire("ns", "a", json!({"clusterIP": "10.0.0.3"})));
        services.put(wire("ns", "a", json!({"clusterIP": "10.0.0.4"})));
        assert_eq!((services.of("ns").len(), services.1), (1, 1));
        services.put(wire("ns", "a", json!({"clusterIP": ""})));
        assert_eq!((services.of("ns").len(), services.1), (0, 0));
        services.put(wire("ns", "b", json!({"clusterIP": "10.0.0.5"})));
        services.remove("ns", "b");
        assert_eq!((services.0.len(), services.1), (0, 0));
    }
}
