//! The command line of kube-controller-manager, read and checked.
//!
//! ```text
//!   arguments ─ flags, gates ─> selection, settings, configuration ─> Options ─> process
//! ```
//! Input: a command line. Output: [`Options`], or one sentence for each mistake. Owner: the start
//! of the process. Files that flags name are read once here, so that a start fails early.
// k8s: cmd/kube-controller-manager/app/options/options.go

mod checks;
mod configuration;
pub mod flags;
pub mod gates;
pub mod selection;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pintle_api::Rate;
use pintle_config::daemon::{Daemon, FeatureGates};
use pintle_config::election::Election;
use pintle_config::error::ConfigError;
use pintle_config::field::FieldTable;
use pintle_config::flag::{FlagTable, FlagTarget};
use pintle_config::gates::FeatureGate;
use pintle_config::given::GivenFlags;
use pintle_config::status::{self, Status};
use pintle_config::{help, listing};
use pintle_controllers_core::settings::LoopSettings;
use pintle_daemon::program::serving::{Defaults, Serving, Tolerates};
use pintle_daemon::serve::zpages::Encodings;
use serde_json::{Map, Value};

use self::selection::Selection;
use self::settings::FlagReader;

/// The name of upstream's component.
pub const COMPONENT: &str = "kube-controller-manager";
/// The port, and what a start does without the cluster's authorities.
const SERVING: Defaults = Defaults { port: 10257, tolerates: Tolerates::Nothing };

/// kube-controller-manager's command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllersDaemon;

impl Daemon for ControllersDaemon {
    const FLAGS: FlagTable = flags::TABLE;
    const GATES: &'static [FeatureGate] = gates::GATES;
    // There is no configuration file.
    const FIELDS: FieldTable = FieldTable(&[]);
    const KIND: &'static str = "KubeControllerManagerConfiguration";
    const API_VERSION: &'static str = "kubecontrollermanager.config.k8s.io/v1alpha1";
    const PATH_FIELDS: &'static [&'static str] = &[];
    type Configuration = Map<String, Value>;
}

/// Everything the controller manager needs to know before it starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--kubeconfig`.
    pub kubeconfig: Option<PathBuf>,
    /// `--master`.
    pub master: Option<String>,
    /// Requests of one controller; `None` is no limit.
    pub rate: Option<Rate>,
    /// Each controller has a service account of its own.
    pub uses_accounts: bool,
    /// Leader election.
    pub election: Election,
    /// The HTTPS port.
    pub serving: Serving,
    /// Which controllers run.
    pub selection: Selection,
    /// Feature gates.
    pub gates: FeatureGates<ControllersDaemon>,
    /// Wait up to twice as long before a controller starts.
    pub start_interval: Duration,
    /// The wait for writes under way at the end; zero waits for ever.
    pub shutdown_timeout: Duration,
    /// Settings of controllers.
    pub loops: LoopSettings,
    /// Nothing is written: decisions are compared with those of the acting manager.
    pub is_shadow: bool,
    /// Deleting controllers act only after so long in shadow; zero for at once.
    pub shadow_first: Duration,
    /// JSON lines instead of text.
    pub logs_json: bool,
    /// How much to log.
    pub verbosity: u32,
    /// As `/configz` shows it.
    pub configuration: Value,
    /// As `/flagz` shows them.
    pub flags: listing::Listed,
    /// Given settings without effect, one sentence each.
    pub warnings: Vec<String>,
}

/// The action that the command line requests.
#[derive(Debug)]
pub enum ManagerAction {
    /// Print this.
    Print(String),
    /// Run controllers.
    Run(Box<Options>),
}

/// Reads arguments without the program's name.
///
/// # Errors
/// Everything that is wrong, one sentence each.
pub fn parse(args: &[String]) -> Result<ManagerAction, Vec<ConfigError>> {
    let given = flags::TABLE.read(args)?;
    if given.is_true("help") {
        return Ok(ManagerAction::Print(usage()));
    }
    if given.is_true("version") {
        return Ok(ManagerAction::Print(help::version()));
    }
    options(&given).map(|options| ManagerAction::Run(Box::new(options)))
}

fn usage() -> String {
    let mut out = String::from(
        "pintle-controllers: runs the control loops of a cluster, in place of \
         kube-controller-manager.\n\nUsage: pintle-controllers [FLAGS]\n       \
         pintle-controllers explain KIND/NAME [--help]\n",
    );
    out.push_str(&flags::TABLE.help());
    out
}

fn options(given: &GivenFlags) -> Result<Options, Vec<ConfigError>> {
    let mut errors = checks::all(given);
    let gates = FeatureGates::<ControllersDaemon>::new(&given_gates(given));
    let gates = gates.map_err(|found| errors.extend(found)).ok();
    let reader = FlagReader(given);
    let entries = reader.texts("controllers").unwrap_or_else(|| vec!["*".to_owned()]);
    let selection = Selection::parse(&entries).map_err(|found| errors.extend(found)).ok();
    let serving = Serving::of_flags(given, SERVING).map_err(|error| errors.push(error)).ok();
    let election = election(given).map_err(|error| errors.push(error)).ok();
    let logs_json = logs_json(given).map_err(|error| errors.push(error)).unwrap_or_default();
    let (Some(gates), Some(selection), Some(mut serving), Some(mut election), true) =
        (gates, selection, serving, election, errors.is_empty())
    else {
        return Err(errors);
    };
    if gates.enabled("CBORServingAndStorage") {
        serving.encodings = Encodings::WithCbor;
    }
    let is_shadow = reader.bool("shadow");
    election.is_on &= !is_shadow;
    let warnings = warnings(given, &gates, &selection);
    let rate = Rate::of_settings(reader.float("kube-api-qps"), reader.int("kube-api-burst"));
    Ok(Options {
        kubeconfig: reader.path("kubeconfig"),
        master: given.text("master").map(str::to_owned),
        rate: Some(rate).filter(|rate| rate.per_second > 0.0),
        // Tokens are writes; a shadow has the manager's own rights, which may be to read alone.
        uses_accounts: reader.bool("use-service-account-credentials") && !is_shadow,
        is_shadow,
        shadow_first: reader.duration("shadow-first"),
        election,
        serving,
        configuration: configuration::configuration(given, &selection.entries),
        selection,
        gates,
        start_interval: reader.duration("controller-start-interval"),
        shutdown_timeout: reader.duration("controller-shutdown-timeout"),
        loops: settings::loops(&reader),
        logs_json,
        verbosity: u32::try_from(reader.int("v")).unwrap_or(0),
        flags: listing::of_own::<ControllersDaemon>(given),
        warnings,
    })
}

fn given_gates(given: &GivenFlags) -> BTreeMap<String, bool> {
    let gates = given.value("feature-gates").and_then(Value::as_object);
    let gates = gates.into_iter().flatten();
    gates.filter_map(|(name, on)| Some((name.clone(), on.as_bool()?))).collect()
}

fn election(given: &GivenFlags) -> Result<Election, ConfigError> {
    let mut election = Election::on(COMPONENT);
    election.put_flags(given)?;
    match election.bad_timing() {
        None => Ok(election),
        Some(bad) => {
            let time = pintle_api_types::duration::GoDuration::from_std(bad.time);
            Err(ConfigError::new(bad.flag(), time, bad.problem, bad.remedy))
        }
    }
}

// k8s: staging/src/k8s.io/component-base/logs/api/v1/options.go Validate
fn logs_json(given: &GivenFlags) -> Result<bool, ConfigError> {
    match given.value("logging-format").and_then(Value::as_str).unwrap_or("text") {
        "text" => Ok(false),
        "json" => Ok(true),
        other => {
            let (flag, problem) = ("--logging-format", "there is no such format");
            Err(ConfigError::new(flag, format!("{other:?}"), problem, "use text or json"))
        }
    }
}

/// One sentence for all flags without effect for the same reason, one for each gate, one for each
/// entry of `--controllers` that changes nothing.
fn warnings(
    given: &GivenFlags,
    gates: &FeatureGates<ControllersDaemon>,
    selection: &Selection,
) -> Vec<String> {
    let mut without_effect: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let mut warnings = Vec::new();
    for (flag, value) in given.iter() {
        if let Some(instead) = flag.deprecated {
            warnings.push(format!("deprecated flag: --{}; {instead}", flag.name));
        }
        let default = if flag.default.is_empty() { flag.kind.zero() } else { flag.default };
        let reason = match flag.target {
            FlagTarget::Own(Status::NotYet(why)) => ("flags without effect yet", why),
            FlagTarget::Own(Status::Never(why)) => ("flags without effect", why),
            _ => continue,
        };
        if listing::text(value) != default {
            without_effect.entry(reason).or_default().push(format!("--{}", flag.name));
        }
    }
    let sentence = |((what, why), names): ((&str, &str), Vec<String>)| {
        format!("{what}: {}; {why}", names.join(", "))
    };
    warnings.extend(without_effect.into_iter().map(sentence));
    warnings.extend(status::gate_warnings(gates));
    warnings.extend(selection.names_cloud().map(|name| {
        format!("--controllers names {name}, which belongs to the cloud provider's manager")
    }));
    if selection.leaves_out_first() {
        warnings.push(
            "--controllers=-serviceaccount-token-controller has no effect: without \
             --service-account-private-key-file it does not run"
                .to_owned(),
        );
    }
    warnings
}
