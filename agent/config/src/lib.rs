//! Configuration: from the command line to a [`Config`] that is valid once it exists.
//!
//! Order, later wins: built-in defaults, the file of `--config`, the drop-ins of `--config-dir`,
//! flags. Feature gates merge key by key, everything else as a whole. Every problem found on the
//! way is reported at once, each with field, value and remedy.
//!
//! Here are the kubelet's tables, type, defaults and rules; `kubelet` puts them together.
//! `flag_table` and `flag_fields` list the flags, `fields` all fields of [`KubeletConfiguration`]
//! with their effect, `gate_table` the gates; `validate` checks ranges and combinations.
//!
//! Owner of nothing: this runs once, before any thread is started. Reading files and the host's
//! name are its only effects.

pub mod acted_on;
mod cli;
pub mod defaults;
pub mod fields;
mod flag_fields;
mod flag_forms;
pub mod flag_table;
pub mod gate_table;
pub mod image_policy;
mod kubelet;
mod labels;
pub mod modes;
mod moment;
mod node_flags;
pub mod types;
mod usage;
mod validate;
mod validate_resources;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use pintle_config::given::GivenFlags;

pub use self::cli::{
    ClientCommand, Color, OutputFormat, PodFilter, RecordQuery, ReplayOf, Subcommand,
};
pub use self::kubelet::{FeatureGates, Kubelet};
pub use self::moment::PastMoment;
pub use self::node_flags::{EventSource, NodeFlags};
pub use self::types::KubeletConfiguration;
pub use pintle_api_types::quantity;
pub use pintle_config::error::ConfigError;
pub use pintle_config::help::{KUBERNETES_VERSION, version};
pub use pintle_config::listing;
pub use pintle_config::suggest::did_you_mean;

/// The action that the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Run the node agent.
    Run(Box<Config>),
    /// Ask a running agent.
    Client(ClientCommand),
    /// Print this text and end.
    Print(String),
}

/// Everything the agent needs to know before it starts.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The node's configuration, as `/configz` shows it.
    pub kubelet: KubeletConfiguration,
    /// Settings of this node alone.
    pub flags: NodeFlags,
    /// The enabled features.
    pub gates: FeatureGates,
    /// The flags without a field, each with its value or default, as `/flagz` shows them.
    pub own_flags: listing::Listed,
    /// Name of the node: the override or the host's name, in lower case.
    pub node_name: String,
    /// Settings without effect, one sentence each.
    pub warnings: Vec<String>,
}

impl Config {
    /// Without a kubeconfig there is no API server: only pods from files and HTTP run.
    pub fn is_standalone(&self) -> bool {
        self.flags.kubeconfig.is_none()
    }

    /// Socket of the container runtime.
    pub fn runtime_socket(&self) -> PathBuf {
        socket_path(&self.kubelet.container_runtime_endpoint)
    }

    /// Socket of the image service; the runtime's unless it was set.
    pub fn image_socket(&self) -> PathBuf {
        match self.kubelet.image_service_endpoint.as_str() {
            "" => self.runtime_socket(),
            endpoint => socket_path(endpoint),
        }
    }

    /// Address of the health check; `None` when it is off.
    pub fn healthz_address(&self) -> Option<SocketAddr> {
        socket_address(&self.kubelet.healthz_bind_address, self.kubelet.healthz_port)
    }

    /// Address of the read-only port; `None` when it is off.
    pub fn read_only_address(&self) -> Option<SocketAddr> {
        socket_address(&self.kubelet.address, self.kubelet.read_only_port)
    }

    /// Address of the HTTPS server; `None` when it is off.
    pub fn https_address(&self) -> Option<SocketAddr> {
        let on = self.kubelet.enable_server;
        socket_address(&self.kubelet.address, self.kubelet.port).filter(|_| on)
    }

    /// Servers that pods with cluster DNS use.
    pub fn cluster_dns(&self) -> Vec<IpAddr> {
        self.kubelet.cluster_dns.iter().filter_map(|ip| ip.parse().ok()).collect()
    }

    /// Pulls that may run at once; `None` is any number.
    pub fn parallel_pulls_max(&self) -> Option<usize> {
        match (self.kubelet.serialize_image_pulls, self.kubelet.max_parallel_image_pulls) {
            (true, _) => Some(1),
            (false, limit) => limit.and_then(|limit| usize::try_from(limit).ok()),
        }
    }
}

fn socket_path(endpoint: &str) -> PathBuf {
    PathBuf::from(endpoint.strip_prefix("unix://").unwrap_or(endpoint))
}

fn socket_address(ip: &str, port: i32) -> Option<SocketAddr> {
    let port = u16::try_from(port).ok().filter(|port| *port != 0)?;
    Some(SocketAddr::new(ip.parse().ok()?, port))
}

/// Reads a command line, the program's name first, and the files it names.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Command, Vec<ConfigError>> {
    let mut args = pintle_config::given::texts(args)?.into_iter();
    let program = args.next().unwrap_or_default();
    let args: Vec<String> = args.collect();
    let invoked_as_kubelet = Path::new(&program).file_name().is_some_and(|name| name == "kubelet");
    if !invoked_as_kubelet && cli::is_command(&args) {
        return cli::parse(&args);
    }
    let given = flag_table::TABLE.read(&args)?;
    if given.is_true("help") {
        return Ok(Command::Print(usage::daemon(invoked_as_kubelet)));
    }
    if given.is_true("version") {
        return Ok(Command::Print(version()));
    }
    load(&given).map(|config| Command::Run(Box::new(config)))
}

/// The agent's user agent towards the API server.
pub fn user_agent() -> String {
    pintle_config::help::user_agent("kubelet")
}

/// Builds the configuration that the flags and the files they name describe.
fn load(given: &GivenFlags) -> Result<Config, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let flags = NodeFlags::new(given).map_err(|found| errors.extend(found)).ok();
    let settings = pintle_config::load::<Kubelet>(given).map_err(|found| errors.extend(found)).ok();
    let node_name = node_name(given).map_err(|error| errors.push(error)).ok();
    let (Some(flags), Some(settings), Some(node_name)) = (flags, settings, node_name) else {
        return Err(errors);
    };
    let pintle_config::Settings { configuration: kubelet, gates, mut warnings } = settings;
    warnings.extend(node_flags::node_ip_warnings(given));
    warnings.extend(dns_warnings(&kubelet));
    let mut own_flags = listing::of_own::<Kubelet>(given);
    own_flags.insert("pintle-socket", flags.socket.display().to_string());
    Ok(Config { kubelet, flags, gates, own_flags, node_name, warnings })
}

/// The kubelet starts with a DNS server it cannot use, and so does this agent.
// k8s: pkg/kubelet/kubelet.go NewMainKubelet
fn dns_warnings(kubelet: &KubeletConfiguration) -> Vec<String> {
    let wrong = kubelet.cluster_dns.iter().filter(|ip| ip.parse::<IpAddr>().is_err());
    wrong.map(|ip| format!("clusterDNS: {ip:?} is not an IP address and is ignored")).collect()
}

/// The override or the host's name, trimmed and in lower case.
// k8s: staging/src/k8s.io/component-helpers/node/util/hostname.go GetHostname
fn node_name(given: &GivenFlags) -> Result<String, ConfigError> {
    let error = |value: &str, problem: String| {
        let remedy = "give --hostname-override=NAME";
        ConfigError::new("node name", format!("{value:?}"), problem, remedy)
    };
    let name = match given.text("hostname-override") {
        Some(name) => name.to_owned(),
        None => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map_err(|why| error("", format!("the host's name cannot be read: {why}")))?,
    };
    let lower = name.trim().to_lowercase();
    if lower.is_empty() { Err(error(&name, "it is empty".to_owned())) } else { Ok(lower) }
}

/// The settings of a configuration file alone; for comparison with the kubelet in tests.
pub fn read_alone(bytes: &[u8]) -> Result<KubeletConfiguration, Vec<ConfigError>> {
    pintle_config::daemon::read_alone::<Kubelet>(bytes)
}

/// Feeds any bytes to the reader of configuration files; for fuzzing. Must not panic.
pub fn fuzz_load(bytes: &[u8]) {
    pintle_config::daemon::fuzz_load::<Kubelet>(bytes);
}

#[cfg(test)]
#[path = "../../../api/config/src/any_json.rs"]
mod any_json;

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "file_tests.rs"]
mod file_tests;
