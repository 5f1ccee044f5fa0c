//! Content of a pod's `/etc/hosts`.
//!
//! Input: the pod's addresses, names and host aliases, or the node's own file for pods on the
//! node's network. Output: the text, to be written by the executor with mode 0644 before the
//! first container is created and again when the addresses change. Pure.

use k8s_openapi::api::core::v1::HostAlias;
use std::fmt::Write;
use std::net::IpAddr;

use super::hostname::PodHostname;

/// The path of the file in containers.
pub const HOSTS_PATH: &str = "/etc/hosts";
/// Mode of the file on the node.
pub const HOSTS_MODE: u32 = 0o644;

const HEADER: &str = "# Kubernetes-managed hosts file.\n";
const HEADER_HOST_NETWORK: &str = "# Kubernetes-managed hosts file (host network).\n";
const LOOPBACK: &str = "127.0.0.1\tlocalhost\n\
    ::1\tlocalhost ip6-localhost ip6-loopback\n\
    fe00::0\tip6-localnet\n\
    fe00::0\tip6-mcastprefix\n\
    fe00::1\tip6-allnodes\n\
    fe00::2\tip6-allrouters\n";

/// The file of a pod with a network of its own.
// k8s: pkg/kubelet/kubelet_pods.go managedHostsFileContent
pub fn managed(ips: &[IpAddr], name: &PodHostname, aliases: &[HostAlias]) -> String {
    let mut text = [HEADER, LOOPBACK].concat();
    for ip in ips {
        let host = &name.host;
        let line = if name.domain.is_empty() {
            format!("{ip}\t{host}\n")
        } else {
            format!("{ip}\t{host}.{}\t{host}\n", name.domain)
        };
        text.push_str(&line);
    }
    push_aliases(&mut text, aliases);
    text
}

/// The file of a pod on the node's network: the node's, and the pod's aliases.
// k8s: pkg/kubelet/kubelet_pods.go nodeHostsFileContent
pub fn host_network(node_file: &str, aliases: &[HostAlias]) -> String {
    let mut text = [HEADER_HOST_NETWORK, node_file].concat();
    push_aliases(&mut text, aliases);
    text
}

fn push_aliases(text: &mut String, aliases: &[HostAlias]) {
    if aliases.is_empty() {
        return;
    }
    text.push_str("\n# Entries added by HostAliases.\n");
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        writeln!(text, "{}\t{names}", alias.ip).expect("writing to a String cannot fail");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(domain: &str) -> PodHostname {
        PodHostname { host: "my-host".to_owned(), domain: domain.to_owned() }
    }

    fn alias(ip: &str, names: &[&str]) -> HostAlias {
        let hostnames = Some(names.iter().map(ToString::to_string).collect());
        HostAlias { ip: ip.to_owned(), hostnames }
    }

    #[test]
    fn each_address_of_the_pod_gets_a_line_with_its_names() {
        let ips = ["10.0.0.2".parse().expect("v4"), "fd00::2".parse().expect("v6")];
        let short = managed(&ips, &name(""), &[]);
        assert!(short.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\t"));
        assert!(short.ends_with("fe00::2\tip6-allrouters\n10.0.0.2\tmy-host\nfd00::2\tmy-host\n"));
        let full = managed(&ips[..1], &name("sub.ns.svc.cluster.local"), &[]);
        assert!(full.ends_with("10.0.0.2\tmy-host.sub.ns.svc.cluster.local\tmy-host\n"));
    }

    #[test]
    fn aliases_come_last_after_an_empty_line() {
        let aliases = [alias("192.0.2.1", &["foo.local", "bar.local"]), alias("192.0.2.2", &["b"])];
        let text = managed(&[], &name(""), &aliases);
        let tail =
            "\n\n# Entries added by HostAliases.\n192.0.2.1\tfoo.local\tbar.local\n192.0.2.2\tb\n";
        assert!(text.ends_with(tail), "{text}");
        assert_eq!(
            host_network("127.0.0.1 n\n", &aliases[1..]),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 n\n\
             \n# Entries added by HostAliases.\n192.0.2.2\tb\n"
        );
    }
}
