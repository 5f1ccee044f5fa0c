//! The machine's facts, resources and addresses: plain data that `host` reads.

use std::net::IpAddr;

/// The facts and resources of the machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MachineFacts {
    /// Id that the operating system's installation got.
    pub machine_id: String,
    /// Id of the hardware or the virtual machine.
    pub system_uuid: String,
    /// Id of this boot.
    pub boot_id: String,
    /// Kernel release.
    pub kernel_version: String,
    /// Name and version of the operating system.
    pub os_image: String,
    /// Architecture as Go names it.
    pub architecture: &'static str,
    /// CPUs that are online.
    pub cpus: i64,
    /// Those CPUs as the kernel lists them, such as `0-3`.
    pub cpu_list: String,
    /// Most tasks that the kernel allows.
    pub tasks_max: Option<i64>,
    /// Memory.
    pub memory_bytes: i64,
    /// Swap.
    pub swap_bytes: i64,
    /// Size and number of reserved huge pages, by size.
    pub hugepages: Vec<(i64, i64)>,
    /// Size of the file system of the root folder, if it is known.
    pub storage_bytes: Option<i64>,
    /// Resources of device plugins that registered with a kubelet of this node.
    pub plugin_resources: Vec<String>,
}

/// The host's addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostAddresses {
    /// Addresses of all interfaces.
    pub interfaces: Vec<IpAddr>,
    /// The name service's answer for the node's name.
    pub named: Vec<IpAddr>,
    /// The address that packets to elsewhere carry.
    pub outgoing: Option<IpAddr>,
}
