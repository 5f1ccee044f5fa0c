//! DNS settings of a pod.
//!
//! Input: the pod's policy and own settings, the cluster's servers and domain, the text of the
//! node's resolv.conf. Output: servers, searches and options within the limits of resolvers, and
//! the warnings to record as events. Pure: the caller reads resolv.conf again for every pod, as the
//! kubelet does, so that a changed file is seen.

use std::collections::HashMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Pod, PodDNSConfigOption};

use pintle_api_types::pod;

/// Most name servers.
pub const NAMESERVERS_MAX: usize = 3;
/// Most search paths.
pub const SEARCHES_MAX: usize = 32;
/// Most bytes of all search paths joined by spaces.
pub const SEARCH_LINE_BYTES_MAX: usize = 2048;
/// Most bytes of one search path.
pub const SEARCH_BYTES_MAX: usize = 253;
/// Most bytes of the node's resolv.conf that are read.
pub const RESOLV_CONF_BYTES_MAX: usize = 10 << 20;

const CLUSTER_OPTIONS: [&str; 1] = ["ndots:5"];

/// The resolver configuration of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDns {
    /// Name servers.
    pub servers: Vec<String>,
    /// Search paths.
    pub searches: Vec<String>,
    /// Options, `name` or `name:value`.
    pub options: Vec<String>,
}

/// The node's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDns {
    /// `clusterDNS`.
    pub cluster_servers: Vec<IpAddr>,
    /// `clusterDomain`; may be empty.
    pub cluster_domain: String,
    /// Content of `resolvConf`; `None` when the setting is empty.
    pub resolv_conf: Option<String>,
}

/// The subject of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The pod.
    Pod,
    /// The node.
    Node,
}

/// A warning to emit as an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DnsWarning {
    /// The subject of the event.
    pub about: About,
    /// The event's reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

/// The node's resolv.conf cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DnsError {
    /// A line without its argument.
    #[error("Encountered error while parsing resolv conf file. Error: nameserver list is empty ")]
    EmptyNameserver,
}

#[derive(PartialEq)]
enum Base {
    Cluster,
    Host,
    None,
}

/// DNS settings of a pod and the problems found in them.
// k8s: pkg/kubelet/network/dns/dns.go GetPodDNS
pub fn pod_dns(
    pod: &Pod,
    node: &NodeDns,
    node_ips: &[IpAddr],
) -> Result<(PodDns, Vec<DnsWarning>), DnsError> {
    let mut warnings = Vec::new();
    let host = node.resolv_conf.as_deref().map(parse_resolv_conf).transpose()?;
    let mut base = base_of(pod);
    if base == Base::Cluster && node.cluster_servers.is_empty() {
        warnings.extend(missing_cluster_dns(pod));
        base = Base::Host;
    }
    let mut dns = match base {
        Base::None => PodDns::default(),
        Base::Cluster => cluster_dns(pod, node, host.unwrap_or_default().searches),
        Base::Host => host.unwrap_or_else(|| loopback_dns(node_ips)),
    };
    if let Some(own) = pod::spec(pod).dns_config.as_ref() {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        dns.searches.extend(own.searches.iter().flatten().cloned());
        omit_duplicates(&mut dns.servers);
        omit_duplicates(&mut dns.searches);
        dns.options = merge_options(&dns.options, own.options.as_deref().unwrap_or_default());
    }
    fit_servers(&mut dns.servers, &mut warnings);
    fit_searches(&mut dns.searches, &mut warnings);
    Ok((dns, warnings))
}

// k8s: pkg/kubelet/network/dns/dns.go getPodDNSType
fn base_of(pod: &Pod) -> Base {
    match pod::spec(pod).dns_policy.as_deref() {
        Some("None") => Base::None,
        Some("Default") => Base::Host,
        Some("ClusterFirst") if pod::uses_host_network(pod) => Base::Host,
        // ClusterFirstWithHostNet, ClusterFirst; the API refuses anything else.
        _ => Base::Cluster,
    }
}

fn cluster_dns(pod: &Pod, node: &NodeDns, host_searches: Vec<String>) -> PodDns {
    let domain = &node.cluster_domain;
    let mut searches = Vec::new();
    if !domain.is_empty() {
        let namespace = pod::namespace(pod);
        searches.extend([format!("{namespace}.svc.{domain}"), format!("svc.{domain}")]);
        searches.push(domain.clone());
    }
    searches.extend(host_searches);
    if !domain.is_empty() {
        omit_duplicates(&mut searches);
    }
    PodDns {
        servers: node.cluster_servers.iter().map(ToString::to_string).collect(),
        searches,
        options: CLUSTER_OPTIONS.map(str::to_owned).to_vec(),
    }
}

/// With an empty `resolvConf` a pod has no resolver: its own loopback, no search.
fn loopback_dns(node_ips: &[IpAddr]) -> PodDns {
    let mut servers: Vec<String> = node_ips
        .iter()
        .map(|ip| if ip.is_ipv6() { "::1" } else { "127.0.0.1" }.to_owned())
        .collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".to_owned());
    }
    PodDns { servers, searches: vec![".".to_owned()], options: Vec::new() }
}

/// Also emits an event about the node, because it lacks a setting.
fn missing_cluster_dns(pod: &Pod) -> [DnsWarning; 2] {
    let why = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
               \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
    let of_pod = format!("pod: {:?}. {why}", pod::described(pod));
    [(About::Node, why.to_owned()), (About::Pod, of_pod)].map(|(about, message)| DnsWarning {
        about,
        reason: "MissingClusterDNS",
        message,
    })
}

/// Why the node's own search line is too long to be given to pods as it is.
// k8s: pkg/kubelet/network/dns/dns.go CheckLimitsForResolvConf
pub fn search_limits(path: &str, text: &str, cluster_domain: &str) -> Option<String> {
    let searches = match parse_resolv_conf(text) {
        Ok(dns) => dns.searches,
        Err(error) => return Some(error.to_string()),
    };
    let count_max = SEARCHES_MAX - if cluster_domain.is_empty() { 0 } else { 3 };
    if searches.len() > count_max {
        return Some(format!(
            "Resolv.conf file '{path}' contains search line consisting of more than {count_max} \
             domains!"
        ));
    }
    if searches.iter().any(|search| search.len() > SEARCH_BYTES_MAX) {
        return Some(format!(
            "Resolv.conf file {path:?} contains a search path which length is more than allowed \
             {SEARCH_BYTES_MAX} chars!"
        ));
    }
    (searches.join(" ").len() > SEARCH_LINE_BYTES_MAX).then(|| {
        format!(
            "Resolv.conf file '{path}' contains search line which length is more than allowed \
             {SEARCH_LINE_BYTES_MAX} chars!"
        )
    })
}

/// Reads a resolv.conf: name servers add up, the last `search` wins, options are merged by name.
// k8s: pkg/kubelet/network/dns/dns.go parseResolvConf
pub fn parse_resolv_conf(text: &str) -> Result<PodDns, DnsError> {
    let mut dns = PodDns::default();
    let mut options = Options::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let mut fields = line.split_whitespace();
        match fields.next() {
            Some("nameserver") => {
                let server = fields.next().ok_or(DnsError::EmptyNameserver)?;
                dns.servers.push(server.to_owned());
            }
            Some("search") => {
                let kept = fields.filter(|search| *search != ".");
                dns.searches = kept.map(|s| s.strip_suffix('.').unwrap_or(s).to_owned()).collect();
            }
            Some("options") => fields.for_each(|option| options.set(option.to_owned())),
            _ => {}
        }
    }
    Ok(PodDns { options: options.list, ..dns })
}

/// Options, each name once. Upstream's order is random; ours is that of first mention. Neither a
/// pod nor a file has a limit on their number, hence the index.
#[derive(Default)]
struct Options {
    list: Vec<String>,
    /// The index of each name.
    places: HashMap<String, usize>,
}

impl Options {
    /// Adds an option, in place of the one of the same name.
    fn set(&mut self, option: String) {
        let name = option.split(':').next().unwrap_or_default();
        match self.places.get(name) {
            Some(place) => self.list[*place] = option,
            None => {
                self.places.insert(name.to_owned(), self.list.len());
                self.list.push(option);
            }
        }
    }
}

// k8s: pkg/kubelet/network/dns/dns.go mergeDNSOptions
fn merge_options(base: &[String], own: &[PodDNSConfigOption]) -> Vec<String> {
    let mut options = Options::default();
    for option in base {
        options.set(option.strip_suffix(':').unwrap_or(option).to_owned());
    }
    for option in own {
        let name = option.name.clone().unwrap_or_default();
        let text = match option.value.as_deref() {
            None | Some("") => name,
            Some(value) => format!("{name}:{value}"),
        };
        options.set(text);
    }
    options.list
}

fn omit_duplicates(list: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    list.retain(|item| seen.insert(item.clone()));
}

// k8s: pkg/kubelet/network/dns/dns.go formDNSNameserversFitsLimits
fn fit_servers(servers: &mut Vec<String>, warnings: &mut Vec<DnsWarning>) {
    if servers.len() <= NAMESERVERS_MAX {
        return;
    }
    servers.truncate(NAMESERVERS_MAX);
    let message = format!(
        "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
         nameserver line is: {}",
        servers.join(" ")
    );
    warnings.push(DnsWarning { about: About::Pod, reason: "DNSConfigForming", message });
}

// k8s: pkg/kubelet/network/dns/dns.go formDNSSearchFitsLimits
fn fit_searches(searches: &mut Vec<String>, warnings: &mut Vec<DnsWarning>) {
    let asked = searches.len();
    searches.truncate(SEARCHES_MAX);
    searches.retain(|search| search.len() <= SEARCH_BYTES_MAX);
    while searches.join(" ").len() > SEARCH_LINE_BYTES_MAX {
        searches.pop();
    }
    if searches.len() == asked {
        return;
    }
    let message = format!(
        "Search Line limits were exceeded, some search paths have been omitted, the applied \
         search line is: {}",
        searches.join(" ")
    );
    warnings.push(DnsWarning { about: About::Pod, reason: "DNSConfigForming", message });
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const RESOLV: &str = "# c\nnameserver 192.0.2.1\nsearch old.example\n\
        search a.example. . b.example\noptions ndots:2 timeout:1\noptions timeout:3 edns0\n";

    fn pod(spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let meta = json!({"name": "p", "namespace": "ns", "uid": "u"});
        serde_json::from_value(json!({"metadata": meta, "spec": spec})).expect("a pod")
    }

    fn node() -> NodeDns {
        NodeDns {
            cluster_servers: vec!["10.96.0.10".parse().expect("an address")],
            cluster_domain: "cluster.local".to_owned(),
            resolv_conf: Some(RESOLV.to_owned()),
        }
    }

    fn dns(servers: &[&str], searches: &[&str], options: &[&str]) -> PodDns {
        let own = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        PodDns { servers: own(servers), searches: own(searches), options: own(options) }
    }

    fn resolve(spec: serde_json::Value, node: &NodeDns) -> (PodDns, Vec<DnsWarning>) {
        pod_dns(&pod(spec), node, &[]).expect("settings")
    }

    #[test]
    fn each_policy_starts_from_its_own_base() {
        let host =
            dns(&["192.0.2.1"], &["a.example", "b.example"], &["ndots:2", "timeout:3", "edns0"]);
        let cluster = dns(
            &["10.96.0.10"],
            &[
                "ns.svc.cluster.local",
                "svc.cluster.local",
                "cluster.local",
                "a.example",
                "b.example",
            ],
            &["ndots:5"],
        );
        for (spec, want) in [
            (json!({"dnsPolicy": "ClusterFirst"}), &cluster),
            (json!({"dnsPolicy": "ClusterFirst", "hostNetwork": true}), &host),
            (json!({"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": true}), &cluster),
            (json!({"dnsPolicy": "Default"}), &host),
            (json!({"dnsPolicy": "None"}), &PodDns::default()),
        ] {
            assert_eq!(&resolve(spec.clone(), &node()), &(want.clone(), vec![]), "{spec}");
        }
    }

    #[test]
    fn the_pods_own_settings_are_added_and_its_options_win() {
        let own = json!({"dnsPolicy": "Default", "dnsConfig": {
            "nameservers": ["192.0.2.1", "192.0.2.9"], "searches": ["b.example", "c.example"],
            "options": [{"name": "ndots", "value": "9"}, {"name": "edns0"}, {"name": "rotate"}]}});
        let want = dns(
            &["192.0.2.1", "192.0.2.9"],
            &["a.example", "b.example", "c.example"],
            &["ndots:9", "timeout:3", "edns0", "rotate"],
        );
        assert_eq!(resolve(own, &node()), (want, vec![]));
    }

    /// Each name compared with all before it, this takes many minutes.
    #[test]
    fn a_pod_with_very_many_options_gets_them_all_in_order() {
        let option = |index: usize, value: Option<&str>| PodDNSConfigOption {
            name: Some(format!("o{index}")),
            value: value.map(str::to_owned),
        };
        let mut own: Vec<_> = (0..100_000).map(|index| option(index, None)).collect();
        own.push(option(7, Some("last")));
        let mut pod = pod(json!({"dnsPolicy": "None", "dnsConfig": {}}));
        let config = pod.spec.as_mut().and_then(|spec| spec.dns_config.as_mut());
        config.expect("the settings").options = Some(own);
        let (dns, _) = pod_dns(&pod, &node(), &[]).expect("settings");
        assert_eq!((dns.options.len(), &*dns.options[7]), (100_000, "o7:last"));
        let file = parse_resolv_conf(&format!("options {}", dns.options.join(" ")));
        assert_eq!(file.expect("settings").options, dns.options);
    }

    #[test]
    fn cluster_first_without_cluster_dns_falls_back_and_warns_node_and_pod() {
        let bare = NodeDns { cluster_servers: vec![], ..node() };
        let (dns, warnings) = resolve(json!({"dnsPolicy": "ClusterFirst"}), &bare);
        assert_eq!(dns.servers, ["192.0.2.1"]);
        let why = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \
                   \"ClusterFirst\" policy. Falling back to \"Default\" policy.";
        let want =
            [(About::Node, why.to_owned()), (About::Pod, format!("pod: \"p_ns(u)\". {why}"))]
                .map(|(about, message)| DnsWarning { about, reason: "MissingClusterDNS", message });
        assert_eq!(warnings, want);
    }

    #[test]
    fn an_empty_resolv_conf_setting_points_to_loopback() {
        let none = NodeDns { resolv_conf: None, ..node() };
        let spec = json!({"dnsPolicy": "Default"});
        assert_eq!(resolve(spec.clone(), &none).0, dns(&["127.0.0.1"], &["."], &[]));
        let ips = ["fd00::1".parse().expect("v6"), "10.0.0.1".parse().expect("v4")];
        let (got, _) = pod_dns(&pod(spec), &none, &ips).expect("settings");
        assert_eq!(got.servers, ["::1", "127.0.0.1"]);
    }

    #[test]
    fn nameservers_and_searches_over_the_limits_are_cut_and_reported() {
        let servers: Vec<String> = (0..5).map(|i| format!("192.0.2.{i}")).collect();
        let mut searches: Vec<String> = (0..40).map(|i| format!("s{i}.example")).collect();
        searches[1] = "x".repeat(254);
        let spec = json!({"dnsPolicy": "None",
            "dnsConfig": {"nameservers": servers, "searches": searches}});
        let (dns, warnings) = resolve(spec, &node());
        assert_eq!((dns.servers.len(), dns.searches.len()), (3, 31));
        assert_eq!(
            warnings[0].message,
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied \
             nameserver line is: 192.0.2.0 192.0.2.1 192.0.2.2"
        );
        assert!(warnings[1].message.starts_with(
            "Search Line limits were exceeded, some search paths have been omitted, the applied \
             search line is: s0.example s2.example "
        ));
    }

    #[test]
    fn a_name_server_line_without_a_server_is_an_error() {
        assert_eq!(parse_resolv_conf("nameserver\n"), Err(DnsError::EmptyNameserver));
    }

    proptest! {
        #[test]
        fn dns_option_replaces_an_earlier_option_of_the_same_name(
            options in prop::collection::vec("[ab]{0,2}(:[12]{0,2}){0,2}", 0..12),
        ) {
            let mut want: Vec<String> = Vec::new();
            for option in &options {
                let name = |option: &str| option.split(':').next().map(str::to_owned);
                match want.iter_mut().find(|old| name(old) == name(option)) {
                    Some(old) => old.clone_from(option),
                    None => want.push(option.clone()),
                }
            }
            let mut got = Options::default();
            options.into_iter().for_each(|option| got.set(option));
            prop_assert_eq!(got.list, want);
        }

        #[test]
        fn settings_never_exceed_the_limits(
            servers in prop::collection::vec("[0-9.]{1,15}", 0..8),
            searches in prop::collection::vec("[a-z]{1,300}", 0..50),
        ) {
            let spec = json!({"dnsPolicy": "ClusterFirst",
                "dnsConfig": {"nameservers": servers, "searches": searches}});
            let (dns, _) = resolve(spec, &node());
            prop_assert!(dns.servers.len() <= NAMESERVERS_MAX);
            prop_assert!(dns.searches.len() <= SEARCHES_MAX);
            prop_assert!(dns.searches.join(" ").len() <= SEARCH_LINE_BYTES_MAX);
            prop_assert!(dns.searches.iter().all(|search| search.len() <= SEARCH_BYTES_MAX));
        }
    }

    #[test]
    fn too_long_search_line_of_the_node_is_reported() {
        let check = |searches: &[String], domain: &str| {
            search_limits("/r", &format!("search {}\n", searches.join(" ")), domain)
        };
        let many = |count: usize, bytes: usize| vec!["a".repeat(bytes); count];
        assert_eq!(check(&many(29, 1), "cluster.local"), None);
        let told = "Resolv.conf file '/r' contains search line consisting of more than 29 domains!";
        assert_eq!(check(&many(30, 1), "cluster.local").as_deref(), Some(told));
        assert_eq!(check(&many(32, 1), ""), None);
        let told = "Resolv.conf file \"/r\" contains a search path which length is more than \
                    allowed 253 chars!";
        assert_eq!(check(&many(1, 254), "").as_deref(), Some(told));
        let told = "Resolv.conf file '/r' contains search line which length is more than allowed \
                    2048 chars!";
        assert_eq!(check(&many(9, 250), "").as_deref(), Some(told));
    }
}
