//! The kubelet's tables, type, defaults and rules, put together for the machinery that reads them.

use serde_json::{Map, Value};

use super::fields::{FIELDS, FieldTable};
use super::gate_table::{FeatureGate, GATES};
use super::types::{self, KubeletConfiguration};
use super::{defaults, flag_table, validate};
use pintle_config::daemon::{self, Daemon};
use pintle_config::error::ConfigError;
use pintle_config::flag::FlagTable;

/// The enabled features.
pub type FeatureGates = daemon::FeatureGates<Kubelet>;

/// The kubelet's command line and configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kubelet;

impl Daemon for Kubelet {
    const FLAGS: FlagTable = flag_table::TABLE;
    const GATES: &'static [FeatureGate] = GATES;
    const FIELDS: FieldTable = FieldTable(FIELDS);
    const KIND: &'static str = types::KIND;
    const API_VERSION: &'static str = types::API_VERSION;
    // k8s: pkg/kubelet/apis/config/helpers.go KubeletConfigurationPathRefs
    const PATH_FIELDS: &'static [&'static str] = &[
        "staticPodPath",
        "authentication.x509.clientCAFile",
        "tlsCertFile",
        "tlsPrivateKeyFile",
        "resolvConf",
        "volumePluginDir",
        "podLogsDir",
    ];

    type Configuration = KubeletConfiguration;

    fn without_file() -> Map<String, Value> {
        defaults::legacy_tree()
    }

    fn complete(tree: &mut Map<String, Value>) {
        defaults::complete(tree);
    }

    fn settle(tree: &mut Map<String, Value>) {
        defaults::settle(tree);
    }

    fn complete_for_gates(tree: &mut Map<String, Value>, gates: &FeatureGates) {
        defaults::complete_for_gates(tree, gates);
    }

    fn complete_file(tree: &mut Map<String, Value>) {
        defaults::complete_file(tree);
    }

    fn check(config: &KubeletConfiguration, gates: &FeatureGates) -> Vec<ConfigError> {
        validate::check(config, gates)
    }
}
