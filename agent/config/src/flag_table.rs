//! The command line: every flag of a 1.36 kubelet, its type, what it sets, and its help line.
//!
//! Output: [`groups`] and [`flags`]. The parser in `flags.rs` knows types, never names; a flag
//! exists exactly when it stands in one of these tables. A test compares the names with those that
//! a real kubelet listed. Own flags begin with `pintle-`.

use super::acted_on::Status::{self, Done as DONE};
use super::flag_fields::FIELD_GROUPS;

/// How the text after a flag is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// true or false; alone it means true
    Bool,
    /// 32-bit number
    Int32,
    /// 64-bit number
    Int64,
    /// klog level, not negative
    Level,
    /// Any text
    Text,
    /// Resource quantity
    Quantity,
    /// Duration in Go's form
    Duration,
    /// One IP address
    Ip,
    /// One IP address or two of different families
    Ips,
    /// Comma-separated texts; repeating adds
    TextList,
    /// key=value,…; repeating adds
    Pairs,
    /// One key=value, not split at commas; repeating adds
    Pair,
    /// key=value,… where a missing value is empty
    Labels,
    /// signal<quantity,…
    Thresholds,
    /// name=true|false,…
    Gates,
    /// name:value,…; the same name may come again
    Headers,
    /// key=value:effect,…
    Taints,
    /// node:type=quantity,…
    ReservedMemory,
    /// pattern=N,…
    Vmodule,
    /// Shows the help and stops
    Help,
    /// Shows the version and stops
    Version,
}

impl FlagKind {
    /// Its form, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool | Self::Help | Self::Version => "bool",
            Self::Int32 => "int32",
            Self::Int64 => "int64",
            Self::Level => "level",
            Self::Text => "string",
            Self::Quantity => "quantity",
            Self::Duration => "duration",
            Self::Ip => "ip",
            Self::Ips => "ip[,ip]",
            Self::TextList => "text,...",
            Self::Pairs | Self::Labels => "key=value,...",
            Self::Pair => "key=value",
            Self::Thresholds => "signal<quantity,...",
            Self::Gates => "name=bool,...",
            Self::Headers => "name:value,...",
            Self::Taints => "key=value:effect,...",
            Self::ReservedMemory => "node:type=quantity,...",
            Self::Vmodule => "pattern=level,...",
        }
    }

    /// A bare `--flag` is complete, and the next argument is not its value.
    pub const fn needs_no_value(self) -> bool {
        matches!(self, Self::Bool | Self::Help | Self::Version)
    }
}

/// What a flag sets.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// The configuration field at this path.
    Field(&'static str),
    /// A field of [`super::NodeFlags`], or nothing.
    Node(Status),
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Name without dashes in front.
    pub name: &'static str,
    /// Form of its value.
    pub kind: FlagKind,
    /// What it sets.
    pub target: Target,
    /// One line for `--help`.
    pub help: &'static str,
}

/// Flags shown under one heading.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The heading.
    pub title: &'static str,
    /// Its flags.
    pub flags: &'static [Flag],
}

/// All groups in the order of `--help`.
pub fn groups() -> impl Iterator<Item = &'static Group> {
    let (first, rest) = OWN_GROUPS.split_at(2);
    first.iter().chain(FIELD_GROUPS).chain(rest)
}

/// All flags.
pub fn flags() -> impl Iterator<Item = &'static Flag> {
    groups().flat_map(|group| group.flags)
}

/// The flag of this name, `_` and `-` being the same.
pub fn find(name: &str) -> Option<&'static Flag> {
    let name = name.replace('_', "-");
    flags().find(|flag| flag.name == name)
}

const fn own(name: &'static str, kind: FlagKind, status: Status, help: &'static str) -> Flag {
    Flag { name, kind, target: Target::Node(status), help }
}

const LOCK: Status = Status::NotYet("no lock file is taken yet");
const MOUNTER: Status = Status::Never("deprecated in favour of CSI");
const CADVISOR: Status = Status::Never("belongs to cAdvisor, which is not part of this agent");

/// Flags without a field in the configuration file.
#[rustfmt::skip] // one flag a line, or two: a table to look things up in
const OWN_GROUPS: &[Group] = &[
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
            own("root-dir", FlagKind::Text, DONE, "Folder for pods, volumes and the agent's state"),
            own("cert-dir", FlagKind::Text, DONE, "Folder of the agent's certificates"),
            own("hostname-override", FlagKind::Text, DONE, "Node name instead of the host's name"),
            own("node-ip", FlagKind::Ips, DONE,
                "IP address of the node, or an IPv4 and an IPv6 address"),
            own("node-labels", FlagKind::Labels, DONE, "Labels to register the node with"),
            own("cloud-provider", FlagKind::Text, DONE, "Empty or external"),
            own("image-credential-provider-config", FlagKind::Text, DONE,
                "Configuration of image credential plugins"),
            own("image-credential-provider-bin-dir", FlagKind::Text, DONE,
                "Folder of image credential plugins"),
            own("runtime-cgroups", FlagKind::Text, CADVISOR, "Cgroup of the container runtime"),
            own("lock-file", FlagKind::Text, LOCK, "File to lock while running"),
            own("exit-on-lock-contention", FlagKind::Bool, LOCK,
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
                "Where hints come from: auto, ebpf, pidfd or relist"),
            own("pintle-recreate-node", FlagKind::Bool, DONE,
                "Create the Node object again, cordoned, when somebody deletes it"),
        ],
    },
    Group {
        title: "Deprecated",
        flags: &[
            own("minimum-container-ttl-duration", FlagKind::Duration, DONE,
                "Youngest age at which a dead container may be removed"),
            own("maximum-dead-containers-per-container", FlagKind::Int32, DONE,
                "Dead containers kept for each container"),
            own("maximum-dead-containers", FlagKind::Int32, DONE,
                "Dead containers kept on the node; negative for any number"),
            own("experimental-mounter-path", FlagKind::Text, MOUNTER,
                "Program that mounts volumes"),
            own("experimental-allocatable-ignore-eviction", FlagKind::Bool, DONE,
                "Leave eviction thresholds out of allocatable"),
            own("housekeeping-interval", FlagKind::Duration, CADVISOR,
                "Time between two looks at the containers' usage"),
            own("max-housekeeping-interval", FlagKind::Duration, CADVISOR, "Longest such time"),
            own("application-metrics-count-limit", FlagKind::Int32, CADVISOR, "Without effect"),
            own("boot-id-file", FlagKind::Text, CADVISOR, "Without effect"),
            own("container-hints", FlagKind::Text, CADVISOR, "Without effect"),
            own("containerd", FlagKind::Text, CADVISOR, "Without effect"),
            own("containerd-namespace", FlagKind::Text, CADVISOR, "Without effect"),
            own("enable-load-reader", FlagKind::Bool, CADVISOR, "Without effect"),
            own("event-storage-age-limit", FlagKind::Text, CADVISOR, "Without effect"),
            own("event-storage-event-limit", FlagKind::Text, CADVISOR, "Without effect"),
            own("global-housekeeping-interval", FlagKind::Duration, CADVISOR, "Without effect"),
            own("log-cadvisor-usage", FlagKind::Bool, CADVISOR, "Without effect"),
            own("machine-id-file", FlagKind::Text, CADVISOR, "Without effect"),
            own("storage-driver-buffer-duration", FlagKind::Duration, CADVISOR, "Without effect"),
            own("storage-driver-db", FlagKind::Text, CADVISOR, "Without effect"),
            own("storage-driver-host", FlagKind::Text, CADVISOR, "Without effect"),
            own("storage-driver-password", FlagKind::Text, CADVISOR, "Without effect"),
            own("storage-driver-secure", FlagKind::Bool, CADVISOR, "Without effect"),
            own("storage-driver-table", FlagKind::Text, CADVISOR, "Without effect"),
            own("storage-driver-user", FlagKind::Text, CADVISOR, "Without effect"),
        ],
    },
];
