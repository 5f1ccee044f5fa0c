//! Facts of the node, read once at the start: addresses, memory, CPUs, huge pages, disk.
//!
//! Effects: reads /proc, /sys and the name service. Nothing here fails the start: an unreadable
//! value is zero or absent, as it would be on a node that does not have it.
// k8s: pkg/kubelet/nodestatus/setters.go NodeAddress, MachineInfo

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use pintle_agent_core::types::NodeFacts;

use super::machine::HostAddresses;
use super::settings::NodeSettings;

/// Reads the node's facts. `given` are the addresses of `--node-ip`. The caller sets the amounts
/// that pods may use.
pub fn read(name: &str, given: &[IpAddr], runtime_name: &str) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        host_ips: addresses(name, given),
        prefers_v6: given.first().is_some_and(IpAddr::is_ipv6),
        memory_capacity_bytes: meminfo("MemTotal:"),
        hugepage_sizes: hugepage_sizes(Path::new("/sys/kernel/mm/hugepages")),
        runtime_name: runtime_name.to_owned(),
        ..NodeFacts::default()
    }
}

/// A value of /proc/meminfo in bytes; 0 when it is not there.
pub fn meminfo(field: &str) -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    kib(&text, field).saturating_mul(1024)
}

/// A value of the text of /proc/meminfo in KiB; 0 when it is not there.
pub fn kib(meminfo: &str, field: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The node's addresses: the given ones, else the one that its name resolves to, else the source
/// address of packets to elsewhere. Blocks.
pub fn addresses(name: &str, given: &[IpAddr]) -> Vec<IpAddr> {
    let unspecified = |ip: &IpAddr| ip.is_unspecified();
    if !given.is_empty() && !given.iter().all(unspecified) {
        return given.to_vec();
    }
    let prefers_v6 = given.first() == Some(&IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    let fits = |ip: &IpAddr| ip.is_ipv6() == prefers_v6;
    if let Ok(ip) = name.parse::<IpAddr>() {
        return vec![ip];
    }
    let named = named(name);
    let found = named.iter().copied().find(fits).or(named.first().copied());
    found.or_else(|| outgoing(prefers_v6)).into_iter().collect()
}

/// The name service's addresses for a name, loopback left out. Blocks.
pub fn named(name: &str) -> Vec<IpAddr> {
    let found = (name, 0_u16).to_socket_addrs().into_iter().flatten();
    found.map(|socket| socket.ip()).filter(|ip| !ip.is_loopback()).collect()
}

/// The source address of a packet to a documentation address: from the routing table, without
/// sending a packet.
pub fn outgoing(v6: bool) -> Option<IpAddr> {
    let (any, target): (IpAddr, IpAddr) = match v6 {
        false => (Ipv4Addr::UNSPECIFIED.into(), Ipv4Addr::new(192, 0, 2, 1).into()),
        true => {
            let target = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
            (Ipv6Addr::UNSPECIFIED.into(), target.into())
        }
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((target, 9)).ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
}

/// Size of the file system that holds a folder; 0 when it cannot be read.
pub fn disk_bytes(root: &Path) -> u64 {
    nix::sys::statvfs::statvfs(root).map_or(0, |fs| fs.blocks().saturating_mul(fs.fragment_size()))
}

/// Sizes in the order in which the kernel lists them, as the kubelet reports them.
fn hugepage_sizes(dir: &Path) -> Vec<u64> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut sizes: Vec<u64> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            kib.parse::<u64>().ok().map(|kib| kib * 1024)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

/// The host's addresses, as far as the settings need them: from its interfaces, the name service,
/// the routing table. Blocks.
pub fn addresses_of_host(settings: &NodeSettings) -> HostAddresses {
    let interfaces = interfaces();
    if settings.node_ip().is_some() || settings.name.parse::<IpAddr>().is_ok() {
        return HostAddresses { interfaces, ..HostAddresses::default() };
    }
    let named = named(&settings.name);
    let outgoing = outgoing(settings.prefers_v6());
    HostAddresses { interfaces, named, outgoing }
}

fn interfaces() -> Vec<IpAddr> {
    let all = nix::ifaddrs::getifaddrs().into_iter().flatten();
    all.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_value_is_found_by_its_field_name() {
        assert_eq!(kib("MemTotal:   100 kB\n", "MemTotal:"), 100);
        assert_eq!(kib("MemTotal:   100 kB\n", "SwapTotal:"), 0);
    }

    #[test]
    fn given_node_addresses_are_used_without_a_lookup() {
        let given = ["192.0.2.7".parse().expect("v4"), "2001:db8::7".parse().expect("v6")];
        assert_eq!(addresses("no-such-host.invalid", &given), given);
    }

    #[test]
    fn a_name_that_is_an_address_is_the_address() {
        assert_eq!(addresses("192.0.2.9", &[]), ["192.0.2.9".parse::<IpAddr>().expect("v4")]);
    }

    #[test]
    fn huge_page_sizes_come_smallest_first() {
        let dir = tempfile::tempdir().expect("a folder");
        for name in ["hugepages-1048576kB", "hugepages-2048kB", "other"] {
            fs::create_dir(dir.path().join(name)).expect("a folder");
        }
        assert_eq!(hugepage_sizes(dir.path()), [2 << 20, 1 << 30]);
    }
}
