//! The host's side of the start: directories and limits of this process, the runtime, cgroups,
//! kernel programs, images, log rotation.
//!
//! Called once by `app`. Effects: makes directories, connects to the runtime, spawns the rotator.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use pintle_agent_config::image_policy::VerificationPolicy;
use pintle_agent_config::{Config, EventSource};
use pintle_agent_core::admit;
use pintle_agent_core::cgroup::names::{CgroupDriver, CgroupSetup};
use pintle_agent_core::garbage::containers::DeadLimits;
use pintle_agent_core::garbage::images::Policy;
use pintle_agent_core::request::runtime;
use pintle_agent_core::request::runtime::RuntimeFacts;
use pintle_agent_core::request::sysctl::AllowList;
use pintle_agent_core::types::{ContainerId, NodeFacts};
use pintle_agent_host::cgroup::{CgroupError, Cgroups};
use pintle_agent_host::node::context;
use pintle_agent_metrics::Metrics;
use pintle_agent_runtime::execute::Executor;
use pintle_agent_runtime::garbage;
use pintle_agent_runtime::garbage::Collector;
use pintle_agent_runtime::image::credentials::NodeCredentials;
use pintle_agent_runtime::image::provider;
use pintle_agent_runtime::image::provider::Providers;
use pintle_agent_runtime::image::pull_records::PullRecords;
use pintle_agent_runtime::image::puller::{PullLimits, Puller};
use pintle_agent_runtime::image::{Images, NodeKeys};
use pintle_agent_runtime::logs;
use pintle_agent_runtime::logs::log_rotate::RotatePolicy;
use pintle_agent_runtime::logs::{LogCommand, Rotator};
use pintle_agent_runtime::users::IdUsers;
use pintle_agent_server as server;
use pintle_api_types::rate::Rate;
use pintle_cri::{Client, Code, Deadlines, v1};
use pintle_daemon::tasks;
use pintle_ebpf::{Controller, Hierarchy, Options, Programs};
use tokio::sync::mpsc;

use super::{StageInputs, kernel_tunables};

/// After this long without an answer of the runtime the log reports it.
const RUNTIME_PATIENCE: Duration = Duration::from_secs(5);

/// There only with the unified hierarchy of cgroups.
const UNIFIED: &str = "/sys/fs/cgroup/cgroup.controllers";
/// How often the runtime's cgroup driver and features are requested, and the pause between.
const ASK_TRIES: u32 = 3;
const ASK_PAUSE: Duration = Duration::from_secs(2);
/// How long the start waits for the runtime's features, which are read again later.
const ASK_MAX: Duration = Duration::from_secs(10);

/// Prepares the host, best effort: limits of this process, the root directory.
pub(super) fn prepare(config: &Config) -> Result<()> {
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if config.kubelet.fail_swap_on && is_swap_on(&swaps) {
        bail!(
            "failSwapOn: running with swap on is not supported; switch swap off (swapoff -a), or \
             set failSwapOn to false and choose memorySwap.swapBehavior"
        );
    }
    let unified = Path::new(UNIFIED).exists();
    if config.kubelet.fail_cgroup_v1 && !unified {
        // k8s: pkg/kubelet/apis/config/validation/validation_linux.go
        bail!(
            "failCgroupV1: kubelet is configured to not run on a host using cgroup v1. cgroup v1 \
             support is unsupported and will be removed in a future release; boot with the unified \
             hierarchy, or set failCgroupV1 to false"
        );
    }
    let protect = config.kubelet.protect_kernel_defaults;
    kernel_tunables::settle(Path::new(kernel_tunables::SETTINGS), protect)?;
    raise_open_files(config.kubelet.max_open_files);
    let root = &config.flags.root_dir;
    for dir in [root.clone(), root.join("pods"), PathBuf::from(&config.kubelet.pod_logs_dir)] {
        pintle_agent_host::volume::dir_fd::make_dir_all(&dir, 0o750)
            .with_context(|| format!("--root-dir or podLogsDir: cannot make {}", dir.display()))?;
    }
    if let Err(error) = pintle_agent_host::volume::execute::prepare_root(root) {
        tracing::warn!(%error, "mounts below --root-dir do not propagate into containers");
    }
    // Read-only or missing /var/log only costs the links for log collectors.
    let _ = std::fs::create_dir_all(pintle_agent_core::request::paths::LOG_LINKS_DIR);
    let adjust = config.kubelet.oom_score_adj.to_string();
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", adjust) {
        tracing::warn!(%error, "oomScoreAdj: the agent keeps its own; CAP_SYS_RESOURCE is missing");
    }
    Ok(())
}

/// Files that the agent may hold open; its own limit, where the right to raise it is missing.
// k8s: pkg/util/rlimit/rlimit_linux.go SetNumFiles
fn raise_open_files(wanted: i64) {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let Ok(wanted) = u64::try_from(wanted) else { return };
    if setrlimit(Resource::RLIMIT_NOFILE, wanted, wanted).is_ok() {
        return;
    }
    let hard = getrlimit(Resource::RLIMIT_NOFILE).map(|(_, hard)| hard);
    let given = hard.and_then(|hard| {
        let soft = wanted.min(hard);
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).map(|()| soft)
    });
    match given {
        Ok(given) => tracing::warn!(
            given,
            wanted,
            "maxOpenFiles: the agent may not hold so many files open; CAP_SYS_RESOURCE is missing"
        ),
        Err(error) => tracing::warn!(%error, wanted, "maxOpenFiles: the limit stays as it is"),
    }
}

/// A table of swap areas with more than its heading.
// k8s: pkg/kubelet/util/swap/swap_util.go isSwapOnAccordingToProcSwaps
fn is_swap_on(swaps: &str) -> bool {
    swaps.trim().lines().count() > 1
}

pub(super) fn connect(config: &Config, metrics: &Arc<Metrics>) -> Result<Client> {
    let deadlines =
        Deadlines::from_request_timeout(config.kubelet.runtime_request_timeout.to_std());
    let endpoint = &config.kubelet.container_runtime_endpoint;
    let client = Client::connect(endpoint, deadlines)
        .with_context(|| format!("containerRuntimeEndpoint {endpoint:?}"))?;
    Ok(client.with_observer(Arc::clone(metrics) as Arc<dyn pintle_cri::Observer>))
}

/// Waits for the runtime's first answer; the log and the agent's own commands show why there is
/// none.
async fn runtime_version(
    config: &Config,
    client: &Client,
    health: &server::HealthState,
) -> v1::VersionResponse {
    let endpoint = &config.kubelet.container_runtime_endpoint;
    health.starting(awaited(endpoint, "it has been asked"));
    let why = RefCell::new(None);
    let ready = client.ready_telling(|error| {
        health.starting(awaited(endpoint, &error.message));
        *why.borrow_mut() = Some(error.message.clone());
    });
    tokio::pin!(ready);
    loop {
        if let Ok(version) = tokio::time::timeout(RUNTIME_PATIENCE, &mut ready).await {
            return version;
        }
        // Waiting is no reason for the watchdog to end the agent.
        health.beat();
        tracing::warn!(
            containerRuntimeEndpoint = endpoint,
            error = why.borrow().as_deref(),
            "the container runtime does not answer yet: start it, or correct the path; still waiting"
        );
    }
}

/// The answer to clients of the agent while the runtime has not answered.
fn awaited(endpoint: &str, why: &str) -> String {
    format!(
        "the container runtime has not answered yet: {why}; start it, or correct \
         containerRuntimeEndpoint, which is {endpoint}"
    )
}

/// Waits for the runtime and reads its name, version and settings.
pub(super) async fn runtime_info(
    config: &Config,
    client: &Client,
    health: &server::HealthState,
) -> Result<RuntimeFacts> {
    let version = runtime_version(config, client, health).await;
    health.starting("the container runtime is there; the node is made ready".to_owned());
    let status = read_status(client).await;
    let runtime_config = read_runtime_config(client).await?;
    if runtime_config.is_none()
        && let Some(info) = status.as_ref().and_then(|status| status.info.get("config"))
    {
        refuse_other_driver(config, info)?;
    }
    Ok(RuntimeFacts::of(&version, status.as_ref(), runtime_config.as_ref()))
}

/// The runtime's status. It is read again later, also if there is none now.
async fn read_status(client: &Client) -> Option<v1::StatusResponse> {
    let mut tries = 1;
    loop {
        let request = v1::StatusRequest { verbose: true };
        match client.call_within(request, Some(client.deadlines().call.min(ASK_MAX))).await {
            Ok(status) => return Some(status),
            // One that hangs is not waited for again.
            Err(error) if tries == ASK_TRIES || error.code == Code::DeadlineExceeded => {
                tracing::warn!(%error, "the container runtime does not say what it can do");
                return None;
            }
            Err(_) => tokio::time::sleep(ASK_PAUSE).await,
        }
        tries += 1;
    }
}

/// The runtime's cgroup configuration; `None` when it lacks this call.
// k8s: cmd/kubelet/app/server.go getCgroupDriverFromCRI
async fn read_runtime_config(client: &Client) -> Result<Option<v1::RuntimeConfigResponse>> {
    let mut tries = 1;
    loop {
        match client.runtime_config(v1::RuntimeConfigRequest {}).await {
            Ok(response) => return Ok(Some(response)),
            Err(error) if error.code == Code::Unimplemented => return Ok(None),
            Err(error) if tries == ASK_TRIES => {
                let what = "the container runtime does not say which cgroup driver it uses";
                return Err(error).context(what);
            }
            Err(_) => tokio::time::sleep(ASK_PAUSE).await,
        }
        tries += 1;
    }
}

/// With two drivers on one node, systemd and the agent would each undo the other's writes.
fn refuse_other_driver(config: &Config, info: &str) -> Result<()> {
    let Some((handler, driver)) = runtime::driver_of_info(info) else { return Ok(()) };
    let word = |driver| match driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    let ours = context::configured_driver(config);
    anyhow::ensure!(
        ours == driver,
        "cgroupDriver is {}, but the runtime's default handler {handler:?} uses {} (SystemdCgroup \
         = {}); set cgroupDriver to {1}, or change the runtime's configuration",
        word(ours),
        word(driver),
        driver == CgroupDriver::Systemd,
    );
    Ok(())
}

/// The credential provider plugins of the flags; none without them.
pub(super) fn providers(config: &Config) -> Result<provider::Settings> {
    let flags = &config.flags;
    let (Some(file), Some(bin_dir)) =
        (&flags.image_credential_provider_config, &flags.image_credential_provider_bin_dir)
    else {
        return Ok(provider::Settings::default());
    };
    let accounts = config.gates.enabled("KubeletServiceAccountTokenForCredentialProviders");
    Ok(provider::read(file, bin_dir, accounts)?)
}

pub(super) fn images(parts: &StageInputs, providers: Providers) -> Result<Images> {
    let (config, client, metrics) = (&parts.config, &parts.runtime, &parts.metrics);
    let limits = PullLimits {
        parallel: config.parallel_pulls_max(),
        rate: Rate {
            per_second: f64::from(config.kubelet.registry_pull_qps),
            burst: u32::try_from(config.kubelet.registry_burst).unwrap_or(0),
        },
    };
    let keys = NodeKeys { files: NodeCredentials::new(&config.flags.root_dir), providers };
    let records = pull_records(config, client, metrics)?;
    let puller = Puller::new(client.clone(), limits, records).queued_in(parts.pull_queue.clone());
    let recorder = parts.recorder.clone();
    Ok(Images::new(client.clone(), recorder, keys, puller, Arc::clone(metrics)))
}

/// How many dead containers stay.
pub(super) fn dead_containers(config: &Config) -> DeadLimits {
    let flags = &config.flags;
    DeadLimits {
        min_age: flags.dead_container_age_min,
        // Negative is for any number.
        per_container: usize::try_from(flags.dead_containers_per_container_max).ok(),
        total: usize::try_from(flags.dead_containers_max).ok(),
    }
}

/// Starts the collector of unused images.
pub(super) fn start_collector(config: &Config, executor: &Executor) -> garbage::CollectorRequests {
    let kubelet = &config.kubelet;
    let percent = |percent: i32| u8::try_from(percent.clamp(0, 100)).unwrap_or(100);
    let policy = Policy {
        high_percent: percent(kubelet.image_gc_high_threshold_percent),
        low_percent: percent(kubelet.image_gc_low_threshold_percent),
        min_age: kubelet.image_minimum_gc_age.to_std(),
        max_age: kubelet.image_maximum_gc_age.to_std(),
    };
    let collector = Collector::new(executor, policy, &config.flags.root_dir);
    let steps = collector.steps();
    let (queue, requests) = mpsc::channel(garbage::REQUESTS_MAX);
    tasks::singleton("image collector", collector.run(requests));
    garbage::CollectorRequests { queue, steps }
}

fn pull_records(
    config: &Config,
    client: &Client,
    metrics: &Arc<Metrics>,
) -> Result<Option<PullRecords>> {
    if !config.gates.enabled("KubeletEnsureSecretPulledImages") {
        return Ok(None);
    }
    let kubelet = &config.kubelet;
    let kind = kubelet.image_pull_credentials_verification_policy;
    let policy = VerificationPolicy::new(kind, &kubelet.preloaded_images_verification_allowlist)
        .map_err(|error| anyhow!("preloadedImagesVerificationAllowlist: {error}"))?;
    let root = &config.flags.root_dir;
    PullRecords::open(root, policy, client.clone(), Arc::clone(metrics))
        .with_context(|| format!("--root-dir: cannot make {}/image_manager", root.display()))
        .map(Some)
}

/// 1 or 2; a host with both counts as one with v1, as for the kubelet.
pub(super) fn cgroup_version() -> u8 {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() { 2 } else { 1 }
}

pub(super) fn cgroups(config: &Config, setup: &CgroupSetup) -> Result<Option<Rc<Cgroups>>> {
    if !config.kubelet.cgroups_per_qos {
        return Ok(None);
    }
    match Cgroups::of(setup) {
        Ok(cgroups) => Ok(Some(Rc::new(cgroups))),
        Err(error @ CgroupError::NoSystemd) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, "cgroupsPerQOS: pods run without cgroups of their own");
            Ok(None)
        }
    }
}

pub(super) fn kernel_options(config: &Config, cgroups: Option<&Cgroups>) -> Options {
    let v2 = cgroups.is_some_and(|cgroups| cgroups.is_v2());
    let hierarchy = if v2 { Hierarchy::V2 } else { Hierarchy::V1(Controller::Memory) };
    let mut options = Options::new(hierarchy);
    match config.flags.event_source {
        EventSource::Auto | EventSource::Ebpf => {}
        EventSource::Pidfd => options.programs = Programs::NONE,
        EventSource::Relist => {
            options.programs = Programs::NONE;
            options.pidfd = false;
        }
    }
    options
}

struct ReopenLog(Client);

impl logs::Reopen for ReopenLog {
    async fn reopen(&self, id: &ContainerId) -> Result<(), logs::RotateError> {
        let request = v1::ReopenContainerLogRequest { container_id: id.as_str().to_owned() };
        let reopened = self.0.reopen_container_log(request).await;
        reopened.map(drop).map_err(|error| logs::RotateError::Reopen(error.to_string()))
    }
}

pub(super) fn start_rotator(config: &Config, client: &Client) -> Option<mpsc::Sender<LogCommand>> {
    let size = &config.kubelet.container_log_max_size;
    let max_bytes = pintle_agent_config::defaults::log_bytes_max(size)?;
    let max_files = usize::try_from(config.kubelet.container_log_max_files).unwrap_or(2);
    let policy = RotatePolicy { max_bytes, max_files };
    let (commands, queue) = mpsc::channel(logs::COMMANDS_MAX);
    let rotator = Rotator::new(policy, ReopenLog(client.clone()));
    pintle_daemon::tasks::singleton("log rotator", rotator.run(queue));
    Some(commands)
}

pub(super) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The node's offer to pods, as far as the host shows it.
pub(super) fn offer(config: &Config, facts: &NodeFacts) -> Result<admit::AdmissionNode> {
    let release = nix::sys::utsname::uname().context("uname")?.release().to_owned();
    let release = release.to_string_lossy();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    let kernel = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let sysctls = AllowList::new(kernel, &config.kubelet.allowed_unsafe_sysctls)
        .context("allowedUnsafeSysctls")?;
    Ok(context::admission(config, facts, sysctls))
}

/// Ids for pods with users of their own.
pub(super) fn users(config: &Config) -> Result<IdUsers> {
    let kubelet = &config.kubelet;
    let ids = kubelet.user_namespaces.as_ref().and_then(|users| users.ids_per_pod);
    IdUsers::open(&config.flags.root_dir, ids, kubelet.max_pods).context("userNamespaces")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_file_limit_is_raised_to_the_requested_limit_or_the_hard_limit() {
        use nix::sys::resource::{Resource, getrlimit};
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        // More than this process may have, unless it has every right.
        raise_open_files(i64::try_from(hard.saturating_mul(2).min(1 << 20)).expect("a number"));
        let (raised, _) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
        assert!(raised >= soft.min(hard), "{raised} of {hard}");
        assert!(raised >= hard.min(1 << 20), "{raised} of {hard}");
    }

    #[tokio::test]
    async fn runtime_status_is_read_again_after_a_failure_but_not_after_a_timeout() {
        use pintle_cri::Method;
        use pintle_cri::fake::FakeRuntime;
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client =
            Client::connect(&runtime.endpoint(), Deadlines::from_request_timeout(ASK_PAUSE));
        let client = client.expect("a path");
        runtime.set_able(true);
        runtime.on(Method::Status).times(1).fail(Code::Unavailable, "busy");
        let told = read_status(&client).await.expect("an answer");
        assert!(told.features.is_some_and(|features| features.supplemental_groups_policy));
        // One that hangs is waited for once.
        runtime.on(Method::Status).hang();
        assert!(read_status(&client).await.is_none());
        assert_eq!(runtime.calls_of(Method::Status, "").len(), 3);
    }

    #[tokio::test]
    async fn health_reports_why_the_runtime_does_not_respond() {
        let dir = tempfile::tempdir().expect("a folder");
        let endpoint = format!("unix://{}/none.sock", dir.path().display());
        let args = ["pintle-agent", &format!("--container-runtime-endpoint={endpoint}")];
        let parsed = pintle_agent_config::parse(args.map(Into::into).into_iter());
        let Ok(pintle_agent_config::Command::Run(config)) = parsed else { panic!("{parsed:?}") };
        let client = Client::connect(&endpoint, Deadlines::default()).expect("an endpoint");
        let health = server::HealthState::new(Duration::from_secs(60));
        let told = async {
            loop {
                let awaited = health.awaited().unwrap_or_default();
                if awaited.contains("No such file") {
                    return awaited;
                }
                tokio::task::yield_now().await;
            }
        };
        let told = tokio::select! {
            told = tokio::time::timeout(Duration::from_secs(60), told) => told.expect("an error"),
            version = runtime_version(&config, &client, &health) => panic!("{version:?}"),
        };
        assert!(told.contains("/none.sock: No such file or directory"), "{told}");
        assert!(
            told.ends_with(&format!("containerRuntimeEndpoint, which is {endpoint}")),
            "{told}"
        );
    }

    #[test]
    fn swap_is_on_when_the_kernel_lists_an_area() {
        let head = "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n";
        assert!(!is_swap_on(""));
        assert!(!is_swap_on(head));
        assert!(is_swap_on(&format!("{head}/dev/vdb partition 1048572 0 -2\n")));
    }
}
