//! Variables by which containers find services: `X_SERVICE_HOST`, `X_PORT_80_TCP_ADDR`, …
//!
//! Input: the services that the node knows. Output: name and value pairs, in the order of the
//! services' names. `kubernetes` of namespace `default` is for every pod; the services of the
//! pod's own namespace come with `enableServiceLinks`. Pure.

use k8s_openapi::api::core::v1::{Service, ServicePort};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;

/// Variables of all services visible to a pod of `namespace`.
// k8s: pkg/kubelet/kubelet_pods.go getServiceEnvVarMap
pub fn variables(services: &[Service], namespace: &str, links: bool) -> Vec<(String, String)> {
    let mut told: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services.iter().filter(|service| cluster_ip(service).is_some()) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let own = service.metadata.namespace.as_deref().unwrap_or_default();
        let is_api = own == "default" && name == "kubernetes";
        // The pod's own service wins over the API's where both are called `kubernetes`.
        if own == namespace && links && !is_api {
            told.insert(name, service);
        } else if is_api {
            told.entry(name).or_insert(service);
        }
    }
    told.values().flat_map(|service| of_service(service)).collect()
}

/// The service's address; `None` for headless ones.
// k8s: pkg/apis/core/v1/helper/helpers.go IsServiceIPSet
fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

// k8s: pkg/kubelet/envvars/envvars.go FromServices
fn of_service(service: &Service) -> Vec<(String, String)> {
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let (Some(ip), Some(first)) = (cluster_ip(service), ports.first()) else {
        return Vec::new();
    };
    let prefix = variable_name(service.metadata.name.as_deref().unwrap_or_default());
    let mut all = vec![
        (format!("{prefix}_SERVICE_HOST"), ip.to_owned()),
        (format!("{prefix}_SERVICE_PORT"), first.port.to_string()),
    ];
    for port in ports {
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(name));
            all.push((name, port.port.to_string()));
        }
    }
    all.push((format!("{prefix}_PORT"), url(ip, first)));
    for port in ports {
        let base = format!("{prefix}_PORT_{}_{}", port.port, protocol(port).to_uppercase());
        all.push((base.clone(), url(ip, port)));
        all.push((format!("{base}_PROTO"), protocol(port).to_lowercase()));
        all.push((format!("{base}_PORT"), port.port.to_string()));
        all.push((format!("{base}_ADDR"), ip.to_owned()));
    }
    all
}

fn url(ip: &str, port: &ServicePort) -> String {
    let protocol = protocol(port).to_lowercase();
    if ip.parse::<Ipv6Addr>().is_ok() {
        format!("{protocol}://[{ip}]:{}", port.port)
    } else {
        format!("{protocol}://{ip}:{}", port.port)
    }
}

fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().filter(|protocol| !protocol.is_empty()).unwrap_or("TCP")
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service(namespace: &str, name: &str, ip: &str, ports: serde_json::Value) -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"clusterIP": ip, "ports": ports}
        }))
        .expect("a service")
    }

    fn names(services: &[Service], namespace: &str, links: bool) -> Vec<String> {
        let hosts = variables(services, namespace, links).into_iter();
        hosts.filter(|(name, _)| name.ends_with("_HOST")).map(|(n, v)| format!("{n}={v}")).collect()
    }

    #[test]
    fn service_is_exported_under_all_its_variable_names() {
        let ports =
            json!([{"name": "web-ui", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}]);
        let got = variables(&[service("ns", "my-app", "10.0.0.1", ports)], "ns", true);
        let want = [
            ("MY_APP_SERVICE_HOST", "10.0.0.1"),
            ("MY_APP_SERVICE_PORT", "80"),
            ("MY_APP_SERVICE_PORT_WEB_UI", "80"),
            ("MY_APP_SERVICE_PORT_DNS", "53"),
            ("MY_APP_PORT", "tcp://10.0.0.1:80"),
            ("MY_APP_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("MY_APP_PORT_80_TCP_PROTO", "tcp"),
            ("MY_APP_PORT_80_TCP_PORT", "80"),
            ("MY_APP_PORT_80_TCP_ADDR", "10.0.0.1"),
            ("MY_APP_PORT_53_UDP", "udp://10.0.0.1:53"),
            ("MY_APP_PORT_53_UDP_PROTO", "udp"),
            ("MY_APP_PORT_53_UDP_PORT", "53"),
            ("MY_APP_PORT_53_UDP_ADDR", "10.0.0.1"),
        ];
        let want: Vec<_> = want.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        assert_eq!(got, want);
    }

    #[test]
    fn only_the_api_and_linked_services_of_the_namespace_are_exported() {
        let port = json!([{"port": 443}]);
        let all = [
            service("default", "kubernetes", "10.96.0.1", port.clone()),
            service("default", "other", "10.0.0.2", port.clone()),
            service("ns", "own", "10.0.0.3", port.clone()),
            service("ns", "headless", "None", port.clone()),
            service("ns", "pending", "", port.clone()),
        ];
        assert_eq!(
            names(&all, "ns", true),
            ["KUBERNETES_SERVICE_HOST=10.96.0.1", "OWN_SERVICE_HOST=10.0.0.3"]
        );
        assert_eq!(names(&all, "ns", false), ["KUBERNETES_SERVICE_HOST=10.96.0.1"]);
        let shadow = [service("ns", "kubernetes", "10.0.0.9", port), all[0].clone()];
        assert_eq!(names(&shadow, "ns", true), ["KUBERNETES_SERVICE_HOST=10.0.0.9"]);
    }

    #[test]
    fn an_ipv6_address_is_bracketed_in_urls_only() {
        let got = variables(&[service("ns", "s", "fd00::1", json!([{"port": 1}]))], "ns", true);
        assert!(got.contains(&("S_PORT".to_owned(), "tcp://[fd00::1]:1".to_owned())));
        assert!(got.contains(&("S_SERVICE_HOST".to_owned(), "fd00::1".to_owned())));
    }
}
