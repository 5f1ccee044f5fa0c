//! The settings of a node that no configuration file may hold, because nodes share files.
//!
//! Input: the flags that were given. Output: [`NodeFlags`] with the kubelet's defaults, or one
//! error for each flag with an impossible value.
//!
//! // k8s: cmd/kubelet/app/options/options.go KubeletFlags, ValidateKubeletFlags

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::ConfigError;
use super::labels;
use pintle_api_types::duration::GoDuration;
use pintle_api_types::quantity::Amount;
use pintle_config::given::GivenFlags;

/// Default of `--root-dir`.
pub(super) const ROOT_DIR: &str = "/var/lib/kubelet";
/// Default of `--cert-dir`.
pub(super) const CERT_DIR: &str = "/var/lib/kubelet/pki";
/// The agent's socket below the root folder.
const SOCKET: &str = "pintle/agent.sock";
/// Default of `--pintle-flight-recorder`, and the least that holds two of its segments.
const FLIGHT_RECORDER_BYTES: u64 = 64 << 20;
const FLIGHT_RECORDER_BYTES_MIN: u64 = 16 << 20;
const DEAD_CONTAINERS_PER_CONTAINER_MAX: i32 = 1;
const DEAD_CONTAINERS_MAX: i32 = -1;

/// Source of hints about changed containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventSource {
    /// The best that works on this host.
    #[default]
    Auto,
    /// Kernel programs; falls back when they cannot be loaded.
    Ebpf,
    /// File descriptors of processes and cgroup files.
    Pidfd,
    /// Only the periodic list.
    Relist,
}

/// Settings of this node alone.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeFlags {
    /// Folder for pods, volumes and the agent's state.
    pub root_dir: PathBuf,
    /// Folder of the agent's certificates.
    pub cert_dir: PathBuf,
    /// Configuration file.
    pub config_file: Option<PathBuf>,
    /// Folder of drop-ins.
    pub config_dir: Option<PathBuf>,
    /// Access to the API server; `None` is standalone mode.
    pub kubeconfig: Option<PathBuf>,
    /// Access for requesting the first certificate.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Node name given by hand.
    pub hostname_override: Option<String>,
    /// The node's addresses given by hand: none, one, or one of each family.
    pub node_ips: Vec<IpAddr>,
    /// Labels to register with.
    pub node_labels: BTreeMap<String, String>,
    /// Cgroup of the container runtime, for statistics; empty without one.
    pub runtime_cgroups: String,
    /// An external cloud provider initialises the node.
    pub cloud_provider_external: bool,
    /// Configuration of image credential plugins.
    pub image_credential_provider_config: Option<PathBuf>,
    /// Folder of image credential plugins.
    pub image_credential_provider_bin_dir: Option<PathBuf>,
    /// File to lock while running.
    pub lock_file: Option<PathBuf>,
    /// Exit when another process opens it.
    pub exit_on_lock_contention: bool,
    /// Youngest age at which a dead container may be removed.
    pub dead_container_age_min: Duration,
    /// Dead containers kept for each container; negative for any number.
    pub dead_containers_per_container_max: i32,
    /// Dead containers kept on the node; negative for any number.
    pub dead_containers_max: i32,
    /// Leave eviction thresholds out of allocatable.
    pub allocatable_ignores_eviction: bool,
    /// Socket of the agent's own commands.
    pub socket: PathBuf,
    /// Source of hints.
    pub event_source: EventSource,
    /// Create the Node object again, cordoned, when it is deleted.
    pub recreate_node: bool,
    /// Pods go for want of memory only while the node stalls for it.
    pub psi_eviction: bool,
    /// Shutdowns of the machine count only when logind itself announces them.
    pub shutdown_from_logind_only: bool,
    /// Room for the record of all decisions in bytes; 0 records nothing.
    pub flight_recorder_bytes: u64,
}

impl NodeFlags {
    /// Builds the settings from the flags that were given.
    pub fn new(given: &GivenFlags) -> Result<Self, Vec<ConfigError>> {
        let path = |name: &str| given.text(name).map(PathBuf::from);
        let number = |name: &str, default: i32| {
            let number = given.value(name).and_then(Value::as_i64);
            number.and_then(|n| i32::try_from(n).ok()).unwrap_or(default)
        };
        let root_dir = path("root-dir").unwrap_or_else(|| PathBuf::from(ROOT_DIR));
        let mut errors = Vec::new();
        let mut checked = |result: Result<(), ConfigError>| errors.extend(result.err());
        checked(check_cloud_provider(given));
        checked(check_credential_provider(given));
        checked(check_lock(given));
        checked(check_dead_container_age(given));
        let node_ips = node_ips(given);
        checked(check_node_ips(&node_ips));
        let event_source = event_source(given);
        checked(event_source.clone().map(drop));
        let flight_recorder_bytes = flight_recorder_bytes(given);
        checked(flight_recorder_bytes.clone().map(drop));
        let node_labels = node_labels(given);
        errors.extend(labels::check(&node_labels));
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(Self {
            cert_dir: path("cert-dir").unwrap_or_else(|| PathBuf::from(CERT_DIR)),
            config_file: path("config"),
            config_dir: path("config-dir"),
            kubeconfig: path("kubeconfig"),
            bootstrap_kubeconfig: path("bootstrap-kubeconfig"),
            hostname_override: given.text("hostname-override").map(str::to_owned),
            node_ips,
            node_labels,
            runtime_cgroups: given.text("runtime-cgroups").unwrap_or_default().to_owned(),
            cloud_provider_external: given.text("cloud-provider").is_some(),
            image_credential_provider_config: path("image-credential-provider-config"),
            image_credential_provider_bin_dir: path("image-credential-provider-bin-dir"),
            lock_file: path("lock-file"),
            exit_on_lock_contention: given.is_true("exit-on-lock-contention"),
            dead_container_age_min: dead_container_age_min(given),
            dead_containers_per_container_max: number(
                "maximum-dead-containers-per-container",
                DEAD_CONTAINERS_PER_CONTAINER_MAX,
            ),
            dead_containers_max: number("maximum-dead-containers", DEAD_CONTAINERS_MAX),
            allocatable_ignores_eviction: given.is_true("experimental-allocatable-ignore-eviction"),
            socket: path("pintle-socket").unwrap_or_else(|| root_dir.join(SOCKET)),
            event_source: event_source.unwrap_or_default(),
            recreate_node: given.is_true("pintle-recreate-node"),
            psi_eviction: given.is_true("pintle-psi-eviction"),
            shutdown_from_logind_only: given.is_true("pintle-shutdown-from-logind-only"),
            flight_recorder_bytes: flight_recorder_bytes.unwrap_or_default(),
            root_dir,
        })
    }
}

/// The socket of an agent with this root folder, or the default one.
pub(super) fn socket_below(dir: Option<&str>) -> PathBuf {
    root_dir(dir).join(SOCKET)
}

/// The root directory of an agent that was given this one, or none.
pub(super) fn root_dir(given: Option<&str>) -> PathBuf {
    PathBuf::from(given.unwrap_or(ROOT_DIR))
}

fn check_cloud_provider(given: &GivenFlags) -> Result<(), ConfigError> {
    match given.text("cloud-provider") {
        None | Some("external") => Ok(()),
        Some(other) => Err(ConfigError::new(
            "--cloud-provider",
            format!("{other:?}"),
            "cloud providers are not built in any more",
            "use external, or leave it empty",
        )),
    }
}

// k8s: cmd/kubelet/app/server.go: the two flags belong together
fn check_credential_provider(given: &GivenFlags) -> Result<(), ConfigError> {
    let (config, bin_dir) =
        ("image-credential-provider-config", "image-credential-provider-bin-dir");
    let (set, missing) = match (given.text(config), given.text(bin_dir)) {
        (Some(_), None) => (config, bin_dir),
        (None, Some(_)) => (bin_dir, config),
        _ => return Ok(()),
    };
    let value = given.text(set).unwrap_or_default();
    let problem = format!("it needs --{missing}");
    Err(ConfigError::new(format!("--{set}"), value, problem, format!("give --{missing}, too")))
}

fn check_lock(given: &GivenFlags) -> Result<(), ConfigError> {
    if given.is_true("exit-on-lock-contention") && given.text("lock-file").is_none() {
        return Err(ConfigError::new(
            "--exit-on-lock-contention",
            true,
            "there is no lock file to watch",
            "give --lock-file, too",
        ));
    }
    Ok(())
}

fn node_ips(given: &GivenFlags) -> Vec<IpAddr> {
    node_ip_words(given).filter_map(|text| text.parse().ok()).collect()
}

fn node_ip_words(given: &GivenFlags) -> impl Iterator<Item = &str> {
    let list = given.value("node-ip").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

/// Words of `--node-ip` that are no addresses.
// k8s: cmd/kubelet/app/server.go RunKubelet
pub(super) fn node_ip_warnings(given: &GivenFlags) -> Vec<String> {
    let wrong = node_ip_words(given).filter(|text| text.parse::<IpAddr>().is_err());
    wrong.map(|text| format!("--node-ip: {text:?} is no IP address and is ignored")).collect()
}

// k8s: staging/src/k8s.io/component-helpers/node/util/ips.go ParseNodeIPArgument
fn check_node_ips(ips: &[IpAddr]) -> Result<(), ConfigError> {
    let problem = match ips {
        [] | [_] => return Ok(()),
        [first, second] if first.is_ipv4() == second.is_ipv4() => "both have the same family",
        [first, second] if first.is_unspecified() || second.is_unspecified() => {
            "0.0.0.0 and :: cannot be part of a pair"
        }
        [_, _] => return Ok(()),
        _ => "there are more than two",
    };
    let shown = ips.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let remedy = "give one address, or one IPv4 and one IPv6 address";
    Err(ConfigError::new("--node-ip", shown, problem, remedy))
}

fn node_labels(given: &GivenFlags) -> BTreeMap<String, String> {
    let map = given.value("node-labels").and_then(Value::as_object);
    let pairs = map.into_iter().flatten();
    pairs.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

// k8s: pkg/kubelet/container/container_gc.go NewContainerGC
fn check_dead_container_age(given: &GivenFlags) -> Result<(), ConfigError> {
    let flag = "minimum-container-ttl-duration";
    match given.text(flag).filter(|text| text.starts_with('-')) {
        Some(text) if dead_container_age_min(given) == Duration::ZERO => Err(ConfigError::new(
            format!("--{flag}"),
            text,
            "a container cannot be younger than new",
            "give a duration such as 1m, or leave it out",
        )),
        _ => Ok(()),
    }
}

fn dead_container_age_min(given: &GivenFlags) -> Duration {
    let text = given.text("minimum-container-ttl-duration").unwrap_or_default();
    text.parse().map(GoDuration::to_std).unwrap_or_default()
}

fn flight_recorder_bytes(given: &GivenFlags) -> Result<u64, ConfigError> {
    let Some(text) = given.text("pintle-flight-recorder") else {
        return Ok(FLIGHT_RECORDER_BYTES);
    };
    let amount = text.parse::<Amount>().map(Amount::units);
    let bytes = amount.ok().and_then(|units| u64::try_from(units).ok());
    match bytes {
        Some(bytes) if bytes == 0 || bytes >= FLIGHT_RECORDER_BYTES_MIN => Ok(bytes),
        _ => Err(ConfigError::new(
            "--pintle-flight-recorder",
            text,
            "a record needs 16Mi or more",
            "give a size such as 64Mi, or 0 to record nothing",
        )),
    }
}

fn event_source(given: &GivenFlags) -> Result<EventSource, ConfigError> {
    match given.text("pintle-events").unwrap_or("auto") {
        "auto" => Ok(EventSource::Auto),
        "ebpf" => Ok(EventSource::Ebpf),
        "pidfd" => Ok(EventSource::Pidfd),
        "relist" => Ok(EventSource::Relist),
        other => Err(ConfigError::new(
            "--pintle-events",
            format!("{other:?}"),
            "no such source exists",
            "use auto, ebpf, pidfd or relist",
        )),
    }
}
