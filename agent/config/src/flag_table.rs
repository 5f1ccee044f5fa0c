//! The command line: every flag of a 1.36 kubelet, its type, its field, and its help line.
//!
//! Output: [`TABLE`], with which the command line is read. A test compares the names with those
//! that a real kubelet listed. Own flags begin with `pintle-`.

use super::acted_on::Status::{self, Done as DONE};
use super::flag_fields::FIELD_GROUPS;
use super::node_flags::{CERT_DIR, ROOT_DIR};

pub use pintle_config::flag::{Flag, FlagKind, FlagTable, FlagTarget, Group};

/// All flags.
pub const TABLE: FlagTable =
    FlagTable { parts: &[START_GROUPS, FIELD_GROUPS, LAST_GROUPS], removed: &REMOVED };

/// All flags, one after the other.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    TABLE.flags()
}

/// Flags of older kubelets that files such as `kubeadm-flags.env` still have, and their
/// replacements.
const REMOVED: [(&str, &str); 12] = [
    ("pod-infra-container-image", "remove it; the runtime's configuration names the pause image"),
    ("container-runtime", "remove it; the runtime is always a remote one"),
    ("docker-endpoint", "remove it; containerRuntimeEndpoint names the runtime's socket"),
    ("network-plugin", "remove it; the runtime's configuration says where CNI is"),
    ("cni-conf-dir", "remove it; the runtime's configuration says where CNI is"),
    ("cni-bin-dir", "remove it; the runtime's configuration says where CNI is"),
    ("cni-cache-dir", "remove it; the runtime's configuration says where CNI is"),
    ("network-plugin-mtu", "remove it; the pod network sets its own"),
    ("image-pull-progress-deadline", "remove it; the runtime's configuration has a time-out"),
    ("cloud-config", "remove it; cloud providers run outside of the node"),
    ("azure-container-registry-config", "use --image-credential-provider-config"),
    ("keep-terminated-pod-volumes", "remove it; volumes of ended pods are unmounted"),
];

const fn own(name: &'static str, kind: FlagKind, status: Status, help: &'static str) -> Flag {
    Flag::own(name, kind, status, help)
}

/// A flag that works, but will not be there for ever.
const fn old(name: &'static str, kind: FlagKind, help: &'static str) -> Flag {
    own(name, kind, DONE, help).deprecated("Kubernetes is going to remove them")
}

const MOUNTER: Status = Status::Never("deprecated in favour of CSI");
const CADVISOR: Status = Status::Never("belongs to cAdvisor, which is not part of this agent");

/// Flags without a field in the configuration file.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const START_GROUPS: &[Group] = &[
    Group {
        title: "Start",
        flags: &[
            own("config", FlagKind::Text, DONE,
                "KubeletConfiguration file, YAML or JSON; flags win over it"),
            own("config-dir", FlagKind::Text, DONE,
                "Folder of *.conf files merged over it in name order"),
            own("kubeconfig", FlagKind::Text, DONE,
                "How to reach the API server; without it the agent runs static pods only"),
            own("bootstrap-kubeconfig", FlagKind::Text, DONE,
                "Credentials for requesting the first client certificate"),
            own("root-dir", FlagKind::Text, DONE, "Folder for pods, volumes and the agent's state")
                .default(ROOT_DIR),
            own("cert-dir", FlagKind::Text, DONE, "Folder of the agent's certificates")
                .default(CERT_DIR),
            own("hostname-override", FlagKind::Text, DONE, "Node name instead of the host's name"),
            own("node-ip", FlagKind::Ips, DONE,
                "IP address of the node, or an IPv4 and an IPv6 address"),
            own("node-labels", FlagKind::Labels, DONE, "Labels to register the node with"),
            own("cloud-provider", FlagKind::Text, DONE, "Empty or external"),
            own("image-credential-provider-config", FlagKind::Text, DONE,
                "Configuration of image credential plugins"),
            own("image-credential-provider-bin-dir", FlagKind::Text, DONE,
                "Folder of image credential plugins"),
            own("runtime-cgroups", FlagKind::Text, DONE,
                "Cgroup of the container runtime, whose use /stats/summary tells"),
            own("lock-file", FlagKind::Text, DONE, "File to lock while running"),
            own("exit-on-lock-contention", FlagKind::Bool, DONE,
                "Exit when somebody else opens the lock file"),
            own("help", FlagKind::Help, DONE, "Show this text"),
            own("version", FlagKind::Version, DONE, "Show the version"),
        ],
    },
    Group {
        title: "Pintle only",
        flags: &[
            own("pintle-socket", FlagKind::Text, DONE,
                "Socket of the commands; default <root-dir>/pintle/agent.sock"),
            own("pintle-events", FlagKind::Text, DONE,
                "Where hints come from: auto, ebpf, pidfd or relist").default("auto"),
            own("pintle-recreate-node", FlagKind::Bool, DONE,
                "Create the Node object again, cordoned, when somebody deletes it"),
            own("pintle-psi-eviction", FlagKind::Bool, DONE,
                "Page cache counts as free memory for eviction, unless processes stall for it"),
            own("pintle-shutdown-from-logind-only", FlagKind::Bool, DONE,
                "Shutdowns count only when logind itself announces them; the kubelet takes anybody's word"),
            own("pintle-flight-recorder", FlagKind::Quantity, DONE,
                "Room for the record of all decisions in <root-dir>/flight; 0 records nothing")
                .default("64Mi"),
        ],
    },
];

/// Groups that come after the flags of fields.
#[rustfmt::skip] // as above
const LAST_GROUPS: &[Group] = &[
    Group {
        title: "Deprecated",
        flags: &[
            old("minimum-container-ttl-duration", FlagKind::Duration,
                "Youngest age at which a dead container may be removed"),
            old("maximum-dead-containers-per-container", FlagKind::Int32,
                "Dead containers kept for each container").default("1"),
            old("maximum-dead-containers", FlagKind::Int32,
                "Dead containers kept on the node; negative for any number").default("-1"),
            own("experimental-mounter-path", FlagKind::Text, MOUNTER,
                "Program that mounts volumes"),
            old("experimental-allocatable-ignore-eviction", FlagKind::Bool,
                "Leave eviction thresholds out of allocatable"),
            own("housekeeping-interval", FlagKind::Duration, CADVISOR,
                "Time between two looks at the containers' usage").default("10s"),
            own("max-housekeeping-interval", FlagKind::Duration, CADVISOR, "Longest such time")
                .default("1m0s"),
            own("application-metrics-count-limit", FlagKind::Int32, CADVISOR, "Without effect")
                .default("100"),
            own("boot-id-file", FlagKind::Text, CADVISOR, "Without effect")
                .default("/proc/sys/kernel/random/boot_id"),
            own("container-hints", FlagKind::Text, CADVISOR, "Without effect")
                .default("/etc/cadvisor/container_hints.json"),
            own("containerd", FlagKind::Text, CADVISOR, "Without effect")
                .default("/run/containerd/containerd.sock"),
            own("containerd-namespace", FlagKind::Text, CADVISOR, "Without effect")
                .default("k8s.io"),
            own("enable-load-reader", FlagKind::Bool, CADVISOR, "Without effect"),
            own("event-storage-age-limit", FlagKind::Text, CADVISOR, "Without effect")
                .default("default=0"),
            own("event-storage-event-limit", FlagKind::Text, CADVISOR, "Without effect")
                .default("default=0"),
            own("global-housekeeping-interval", FlagKind::Duration, CADVISOR, "Without effect")
                .default("1m0s"),
            own("log-cadvisor-usage", FlagKind::Bool, CADVISOR, "Without effect"),
            own("machine-id-file", FlagKind::Text, CADVISOR, "Without effect")
                .default("/etc/machine-id,/var/lib/dbus/machine-id"),
            own("storage-driver-buffer-duration", FlagKind::Duration, CADVISOR, "Without effect")
                .default("1m0s"),
            own("storage-driver-db", FlagKind::Text, CADVISOR, "Without effect")
                .default("cadvisor"),
            own("storage-driver-host", FlagKind::Text, CADVISOR, "Without effect")
                .default("localhost:8086"),
            own("storage-driver-password", FlagKind::Text, CADVISOR, "Without effect")
                .default("root"),
            own("storage-driver-secure", FlagKind::Bool, CADVISOR, "Without effect"),
            own("storage-driver-table", FlagKind::Text, CADVISOR, "Without effect")
                .default("stats"),
            own("storage-driver-user", FlagKind::Text, CADVISOR, "Without effect").default("root"),
        ],
    },
];

#[cfg(test)]
#[path = "flag_table_tests.rs"]
mod tests;
