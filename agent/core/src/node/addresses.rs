//! The node's addresses.
//!
//! Pure. Input: settings, the host's addresses (`facts::addresses_of_host`), and the addresses that
//! the Node object has. Output: the new addresses.
// k8s: pkg/kubelet/nodestatus/setters.go NodeAddress

use std::net::IpAddr;

use k8s_openapi::api::core::v1::NodeAddress;

use super::machine::HostAddresses;
use super::settings::NodeSettings;

/// The reason for which a configured address of the node cannot be used. The texts are the
/// kubelet's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeIpError {
    /// `127.0.0.0/8` or `::1`.
    #[error("nodeIP can't be loopback address")]
    Loopback,
    /// A multicast address.
    #[error("nodeIP can't be a multicast address")]
    Multicast,
    /// `169.254.0.0/16` or `fe80::/10`.
    #[error("nodeIP can't be a link-local unicast address")]
    LinkLocal,
    /// `0.0.0.0` or `::`.
    #[error("nodeIP can't be an all zeros address")]
    Unspecified,
    /// No interface of the host has it.
    #[error("node IP: \"{0}\" not found in the host's network interfaces")]
    Foreign(IpAddr),
}

/// The reason for which the node has no addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeAddressError {
    /// A configured address cannot be used.
    #[error("failed to validate nodeIP: {0}")]
    Invalid(#[from] NodeIpError),
    /// Neither the configuration nor the host gives an address.
    #[error("can't get ip address of node {0}")]
    NoIp(String),
}

/// Annotation with the addresses of `--node-ip`, for an external cloud provider.
pub const PROVIDED_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// The addresses that the Node object is to have; `None` keeps its present ones.
pub fn decide(
    settings: &NodeSettings,
    host: &HostAddresses,
    present: &[NodeAddress],
) -> Result<Option<Vec<NodeAddress>>, NodeAddressError> {
    let (first, second) = (settings.node_ip(), settings.second_ip());
    for ip in [first, second].into_iter().flatten() {
        usable(ip, host)?;
    }
    if settings.external_cloud && !present.is_empty() {
        return Ok(None);
    }
    let hostname = address("Hostname", settings.name.clone());
    if settings.external_cloud && settings.node_ips.is_empty() {
        return Ok(Some(vec![hostname]));
    }
    let internal = |ip: IpAddr| address("InternalIP", ip.to_string());
    if let (Some(first), Some(second)) = (first, second) {
        return Ok(Some(vec![internal(first), internal(second), hostname]));
    }
    match first.or_else(|| detect(settings, host)) {
        Some(ip) => Ok(Some(vec![internal(ip), hostname])),
        None => Err(NodeAddressError::NoIp(settings.name.clone())),
    }
}

/// The value of [`PROVIDED_IP`]; `None` without an external cloud provider or a configured address.
pub fn provided_ip(settings: &NodeSettings) -> Option<String> {
    let first = settings.node_ip().filter(|_| settings.external_cloud)?;
    Some(match settings.second_ip() {
        Some(second) => format!("{first},{second}"),
        None => first.to_string(),
    })
}

/// The address that the node's name is, else one that it resolves to, else the source address of
/// the default route.
fn detect(settings: &NodeSettings, host: &HostAddresses) -> Option<IpAddr> {
    if let Ok(ip) = settings.name.parse() {
        return Some(ip);
    }
    let named = || host.named.iter().copied().filter(|ip| usable(*ip, host).is_ok());
    let preferred = named().find(|ip| ip.is_ipv6() == settings.prefers_v6());
    preferred.or_else(|| named().next()).or(host.outgoing)
}

/// Checks that other hosts can reach this host by that address.
// k8s: pkg/kubelet/kubelet_node_status.go validateNodeIP
fn usable(ip: IpAddr, host: &HostAddresses) -> Result<(), NodeIpError> {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    match ip {
        _ if ip.is_loopback() => Err(NodeIpError::Loopback),
        _ if ip.is_multicast() => Err(NodeIpError::Multicast),
        _ if link_local => Err(NodeIpError::LinkLocal),
        _ if ip.is_unspecified() => Err(NodeIpError::Unspecified),
        _ if host.interfaces.contains(&ip) => Ok(()),
        _ => Err(NodeIpError::Foreign(ip)),
    }
}

fn address(kind: &str, address: String) -> NodeAddress {
    NodeAddress { type_: kind.to_owned(), address }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    fn settings(ips: &[&str], external_cloud: bool) -> NodeSettings {
        let node_ips = ips.iter().map(|text| ip(text)).collect();
        NodeSettings { name: "n1".to_owned(), node_ips, external_cloud, ..Default::default() }
    }

    fn host(interfaces: &[&str], named: &[&str], outgoing: Option<&str>) -> HostAddresses {
        let list = |texts: &[&str]| texts.iter().map(|text| ip(text)).collect();
        HostAddresses {
            interfaces: list(interfaces),
            named: list(named),
            outgoing: outgoing.map(ip),
        }
    }

    fn shown(result: Result<Option<Vec<NodeAddress>>, NodeAddressError>) -> String {
        match result {
            Err(error) => error.to_string(),
            Ok(None) => "kept".to_owned(),
            Ok(Some(list)) => list.iter().map(|a| a.address.as_str()).collect::<Vec<_>>().join(" "),
        }
    }

    #[test]
    fn the_first_rule_that_gives_an_address_wins() {
        let both = ["192.0.2.7", "2001:db8::7"];
        let all = host(&both, &["127.0.0.1", "2001:db8::7", "192.0.2.7"], Some("192.0.2.9"));
        let nothing = host(&[], &[], None);
        for (settings, host, want) in [
            (settings(&["192.0.2.7"], false), &all, "192.0.2.7 n1"),
            (settings(&both, false), &all, "192.0.2.7 2001:db8::7 n1"),
            (settings(&[], false), &all, "192.0.2.7 n1"),
            (settings(&["0.0.0.0"], false), &all, "192.0.2.7 n1"),
            (settings(&["::"], false), &all, "2001:db8::7 n1"),
            (settings(&[], false), &host(&both, &["10.0.0.1"], Some("192.0.2.7")), "192.0.2.7 n1"),
            (settings(&[], false), &nothing, "can't get ip address of node n1"),
            (settings(&[], true), &all, "n1"),
            (settings(&["0.0.0.0"], true), &all, "192.0.2.7 n1"),
        ] {
            assert_eq!(shown(decide(&settings, host, &[])), want, "{settings:?}");
        }
        let wrong = shown(decide(&settings(&["192.0.2.8"], false), &all, &[]));
        assert!(wrong.ends_with("\"192.0.2.8\" not found in the host's network interfaces"));
    }

    #[test]
    fn addresses_of_an_external_cloud_provider_are_kept() {
        let present = [address("InternalIP", "192.0.2.1".to_owned())];
        let host = host(&["192.0.2.7"], &[], None);
        let external = settings(&["192.0.2.7"], true);
        assert_eq!(shown(decide(&external, &host, &present)), "kept");
        assert_eq!(provided_ip(&external).as_deref(), Some("192.0.2.7"));
        assert_eq!(provided_ip(&settings(&["192.0.2.7"], false)), None);
        assert_eq!(provided_ip(&settings(&[], true)), None);
    }
}
