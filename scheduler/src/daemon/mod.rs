//! The daemon, compatible with kube-scheduler: flags, configuration file, HTTPS port.
//!
//! ```text
//!   arguments ─ flags, gates ─┐
//!   --config ── config ───────┴─> Settings ─> run ─> State ─> serve (a thread of its own)
//! ```
//! Input: a command line and the file it names. Output: [`Settings`], or one sentence for each
//! mistake. Owner: the start of the process.
// k8s: cmd/kube-scheduler/app/options/options.go

mod attempt_metrics;
mod batch_metrics;
mod device_metrics;
pub mod flags;
pub mod gates;
mod group_metrics;
pub mod metrics;
mod net_metrics;
pub(crate) mod plugin_metrics;
mod resources;
pub mod serve;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pintle_api_types::duration::GoDuration;
use pintle_config::daemon::{Daemon, FeatureGates};
use pintle_config::error::ConfigError;
use pintle_config::field::FieldTable;
use pintle_config::flag::FlagTable;
use pintle_config::gates::{FeatureGate, GateState};
use pintle_config::given::GivenFlags;
use pintle_config::{help, listing, status};
use pintle_daemon::program::serving::{Defaults, Serving, Tolerates};
use pintle_daemon::serve::zpages::Encodings;
use pintle_sched_core::Profile;
use pintle_scheduler_core::config::{self, ProcessSettings};
use pintle_scheduler_core::extender::Extender;
use pintle_scheduler_core::framework::{EnabledPlugins, Registry};
use pintle_scheduler_core::groups::GroupGates;
use pintle_scheduler_core::plugins::dynamicresources::DeviceGates;
use pintle_scheduler_core::queue::Settings as QueueSettings;
use serde_json::{Map, Value, json};

use crate::dispatcher;

/// kube-scheduler's command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KubeScheduler;

impl Daemon for KubeScheduler {
    const FLAGS: FlagTable = flags::TABLE;
    const GATES: &'static [FeatureGate] = gates::GATES;
    // `config` decodes the file: an unknown field is an error, where the kubelet warns.
    const FIELDS: FieldTable = FieldTable(&[]);
    const KIND: &'static str = "KubeSchedulerConfiguration";
    const API_VERSION: &'static str = config::API_VERSION;
    const PATH_FIELDS: &'static [&'static str] = &[];
    type Configuration = Map<String, Value>;
}

/// The port, and the reaction to missing authorities of the cluster.
const SERVING: Defaults = Defaults { port: 10259, tolerates: Tolerates::Failure };

/// Settings of the scheduler.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Profiles, at least one.
    pub profiles: Vec<Profile>,
    /// The out-of-tree plugins that each of these enables.
    pub chosen: Vec<EnabledPlugins>,
    /// Extenders.
    pub extenders: Vec<Extender>,
    /// Credentials, rates, lease.
    pub process: ProcessSettings,
    /// `--master`.
    pub master: Option<String>,
    /// Features of pod groups; `None` if their gate is off.
    pub groups: Option<GroupGates>,
    /// Features of devices.
    pub devices: DeviceGates,
    /// Backoffs and limits of the queue.
    pub queue: QueueSettings,
    /// The HTTPS port.
    pub serving: Serving,
    /// JSON lines instead of text.
    pub logs_json: bool,
    /// Log level.
    pub verbosity: u32,
    /// Configuration as `/configz` shows it.
    pub configuration: Value,
    /// Feature gates.
    pub gates: Vec<GateState>,
    /// Flags as `/flagz` shows them.
    pub flags: listing::Listed,
    /// Settings without effect, one sentence each.
    pub warnings: Vec<String>,
    /// Write the configuration to this file and exit.
    pub write_config_to: Option<PathBuf>,
}

/// Action of the process.
#[derive(Debug)]
pub enum SchedulerAction {
    /// Print this.
    Print(String),
    /// Schedule.
    Run(Box<Settings>),
}

/// Parses arguments without the program's name, and the file they name.
///
/// # Errors
/// All mistakes, one sentence each.
pub fn parse(args: &[String], registry: &Registry) -> Result<SchedulerAction, Vec<ConfigError>> {
    let given = flags::TABLE.read(args)?;
    if given.is_true("help") {
        return Ok(SchedulerAction::Print(usage()));
    }
    if given.is_true("version") {
        return Ok(SchedulerAction::Print(help::version()));
    }
    settings(&given, registry).map(|settings| SchedulerAction::Run(Box::new(settings)))
}

fn usage() -> String {
    let mut out = String::from(
        "pintle-scheduler: gives the pods of a cluster nodes, in place of kube-scheduler.\n\n\
         Usage: pintle-scheduler [FLAGS]\n       \
         pintle-scheduler simulate|shadow|explain|what-if [--help]\n",
    );
    out.push_str(&flags::TABLE.help());
    out
}

fn settings(given: &GivenFlags, registry: &Registry) -> Result<Settings, Vec<ConfigError>> {
    let mut errors = Vec::new();
    let gates = asked_gates(given);
    let gates = FeatureGates::<KubeScheduler>::new(&gates).map_err(|e| errors.extend(e)).ok();
    let file = file(given, registry).map_err(|error| errors.push(error)).ok();
    let serving = Serving::of_flags(given, SERVING).map_err(|error| errors.push(error)).ok();
    let logs_json = logs_json(given).map_err(|error| errors.push(error)).unwrap_or_default();
    if !errors.is_empty() {
        return Err(errors);
    }
    let (Some(gates), Some(file), Some(mut serving)) = (gates, file, serving) else {
        return Err(errors);
    };
    let (mut profiles, extenders, mut process, written, without_effect, chosen) = file;
    put_flags(&mut process, given).map_err(|error| vec![error])?;
    timings(&process).map_err(|error| vec![error])?;
    if gates.enabled("CBORServingAndStorage") {
        serving.encodings = Encodings::WithCbor;
    }
    for profile in &mut profiles {
        profile.compares_tolerations = gates.enabled("TaintTolerationComparisonOperators");
    }
    let mut warnings = status::flag_warnings(given);
    warnings.extend(status::gate_warnings(&gates));
    warnings.extend(without_effect);
    let stay_max = duration(given, "pod-max-in-unschedulable-pods-duration");
    let usual = QueueSettings::default().stay_max;
    let queue = QueueSettings { backoff: process.backoff, stay_max: stay_max.unwrap_or(usual) };
    Ok(Settings {
        configuration: configuration(&process, written),
        profiles,
        chosen,
        extenders,
        process,
        master: given.text("master").map(str::to_owned),
        groups: group_gates(&gates),
        devices: device_gates(&gates),
        queue,
        serving,
        logs_json,
        verbosity: number(given, "v").and_then(|v| u32::try_from(v).ok()).unwrap_or(0),
        gates: gates.states(),
        flags: listing::of_own::<KubeScheduler>(given),
        warnings,
        write_config_to: given.text("write-config-to").map(PathBuf::from),
    })
}

// k8s: staging/src/k8s.io/component-base/logs/api/v1/options.go Validate
fn logs_json(given: &GivenFlags) -> Result<bool, ConfigError> {
    match given.value("logging-format").and_then(Value::as_str).unwrap_or("text") {
        "text" => Ok(false),
        "json" => Ok(true),
        other => {
            Err(wrong("--logging-format", other, "there is no such format", "use text or json"))
        }
    }
}

fn asked_gates(given: &GivenFlags) -> BTreeMap<String, bool> {
    let asked = given.value("feature-gates").and_then(Value::as_object);
    let asked = asked.into_iter().flatten();
    asked.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).collect()
}

fn group_gates(gates: &FeatureGates<KubeScheduler>) -> Option<GroupGates> {
    let has_groups = gates.enabled("GenericWorkload");
    let gangs = gates.enabled("GangScheduling");
    let topology = gates.enabled("TopologyAwareWorkloadScheduling");
    let preemption = gates.enabled("WorkloadAwarePreemption");
    let claims = gates.enabled("DRAWorkloadResourceClaims");
    has_groups.then_some(GroupGates { gangs, topology, preemption, claims })
}

fn device_gates(gates: &FeatureGates<KubeScheduler>) -> DeviceGates {
    DeviceGates {
        taint_rules: gates.enabled("DRADeviceTaintRules"),
        lists: gates.enabled("DRAListTypeAttributes"),
        allocatable: gates.enabled("DRANodeAllocatableResources"),
    }
}

fn wrong(flag: &str, value: &str, problem: impl Into<String>, remedy: &str) -> ConfigError {
    ConfigError::new(flag, format!("{value:?}"), problem.into(), remedy)
}

/// The profiles, the extenders, the process settings, the file as written, the settings without
/// effect, and the out-of-tree plugins.
type FromFile = (
    Vec<Profile>,
    Vec<Extender>,
    ProcessSettings,
    Map<String, Value>,
    Vec<String>,
    Vec<EnabledPlugins>,
);

fn file(given: &GivenFlags, registry: &Registry) -> Result<FromFile, ConfigError> {
    let Some(path) = given.text("config") else {
        return Ok((
            vec![Profile::default()],
            Vec::new(),
            ProcessSettings::default(),
            Map::new(),
            Vec::new(),
            vec![EnabledPlugins::default()],
        ));
    };
    let remedy = "correct the file";
    let text = std::fs::read_to_string(path)
        .map_err(|error| wrong("--config", path, error.to_string(), "check path and rights"))?;
    let bad = |error: config::ConfigError| wrong("--config", path, error.to_string(), remedy);
    let (profiles, chosen) = config::profiles_with(&text, registry).map_err(bad)?;
    let process = config::process(&text).map_err(bad)?;
    let access = |extender: &Extender| dispatcher::extender::access(extender).map(|_| ());
    let extenders = config::extenders(&text, access).map_err(bad)?;
    let written = config::written(&text).map_err(bad)?;
    let without_effect = config::without_effect(&text, registry).map_err(bad)?;
    Ok((profiles, extenders, process, written, without_effect, chosen))
}

fn duration(given: &GivenFlags, name: &str) -> Option<Duration> {
    let read = given.text(name)?.parse::<GoDuration>().ok()?;
    Some(read.to_std())
}

fn number(given: &GivenFlags, name: &str) -> Option<i32> {
    given.value(name)?.as_i64().and_then(|number| i32::try_from(number).ok())
}

/// Applies flags, which override the file, except for credentials if the file names any.
// k8s: cmd/kube-scheduler/app/options/options.go ApplyTo
fn put_flags(process: &mut ProcessSettings, given: &GivenFlags) -> Result<(), ConfigError> {
    if process.kubeconfig.is_none() {
        process.kubeconfig = given.text("kubeconfig").map(PathBuf::from);
    }
    process.election.put_flags(given)?;
    if given.text("config").is_none() {
        if let Some(qps) = given.value("kube-api-qps").and_then(Value::as_f64) {
            process.qps = qps;
        }
        if let Some(burst) = number(given, "kube-api-burst") {
            process.burst = u32::try_from(burst).unwrap_or(process.burst);
        }
    }
    Ok(())
}

/// Validates the timings of the lease.
fn timings(process: &ProcessSettings) -> Result<(), ConfigError> {
    let Some(bad) = process.election.bad_timing() else { return Ok(()) };
    let field = format!("leaderElection.{} ({})", bad.field, bad.flag());
    Err(ConfigError::new(field, GoDuration::from_std(bad.time), bad.problem, bad.remedy))
}

/// Builds the effective configuration in the form of the file. Profiles and extenders are as
/// written.
fn configuration(process: &ProcessSettings, written: Map<String, Value>) -> Value {
    let shown = |time: Duration| GoDuration::from_std(time).to_string();
    let election = &process.election;
    let kubeconfig = process.kubeconfig.as_deref().map(|path| path.display().to_string());
    let mut all = json!({
        "apiVersion": config::API_VERSION,
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {
            "acceptContentTypes": "",
            "burst": process.burst,
            "contentType": "application/json",
            "kubeconfig": kubeconfig.unwrap_or_default(),
            "qps": process.qps,
        },
        "leaderElection": {
            "leaderElect": election.is_on,
            "leaseDuration": shown(election.timing.lease),
            "renewDeadline": shown(election.timing.renew),
            "resourceLock": "leases",
            "resourceName": election.name,
            "resourceNamespace": election.namespace,
            "retryPeriod": shown(election.timing.retry),
        },
        "percentageOfNodesToScore": process.percentage_of_nodes,
        "podInitialBackoffSeconds": process.backoff.initial.as_secs(),
        "podMaxBackoffSeconds": process.backoff.max.as_secs(),
        "profiles": [{"schedulerName": "default-scheduler"}],
    });
    if let Value::Object(fields) = &mut all {
        fields.extend(written);
    }
    all
}
