//! The made-up daemon: its tables, its type, its defaults and rules.

use std::collections::BTreeMap;

use pintle_api_types::duration::GoDuration;
use pintle_config::daemon::FeatureGates;
use pintle_config::field::{Field, FieldKind, FieldTable};
use pintle_config::flag::{Flag, FlagKind, FlagTable, Form, Group};
use pintle_config::gates::{FeatureGate, FeatureStage};
use pintle_config::status::Status::{Done, Never, NotYet};
use pintle_config::violations::Violations;
use pintle_config::{ConfigError, Daemon, forms, words};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

const SERVER: Group = Group {
    title: "Server",
    flags: &[
        Flag::field("port", FlagKind::Int32, "server.port", "Port to serve on"),
        Flag::own("config", FlagKind::Text, Done, "Configuration file"),
        Flag::own("config-dir", FlagKind::Text, Done, "Folder of drop-ins"),
        Flag::own("help", FlagKind::Help, Done, "Show this text"),
        Flag::field("v", FlagKind::Level, "verbosity", "Verbosity of the log"),
    ],
};
const WORK: Group = Group {
    title: "Work",
    flags: &[
        Flag::field("leader-elect", FlagKind::Bool, "leader.elect", "Have one leader only"),
        Flag::field("lease", FlagKind::Duration, "leader.lease", "How long a leader stays one"),
        Flag::field("kube-api-qps", FlagKind::Float, "kubeAPIQPS", "Requests a second"),
        Flag::field("tags", FlagKind::Pairs, "tags", "Tags"),
        Flag::field("groups", FlagKind::TextList, "groups", "Groups"),
        Flag::field("feature-gates", FlagKind::Gates, "featureGates", "Feature gates"),
        Flag::own("chain", FlagKind::Own(&CHAIN), Done, "Chains on board"),
        Flag::own("holder", FlagKind::Text, Done, "Who holds the rope")
            .deprecated("use --tags=holder=NAME")
            .default("nobody"),
        Flag::own("profiling", FlagKind::Bool, Never("there is no profiler"), "Without effect"),
    ],
};

/// A form of value that no other daemon has.
const CHAIN: Form = Form { name: "linksxmetres,...", example: "3x20", read: chains };

fn chains(text: &str) -> Result<Value, forms::FormError> {
    let chain = |item: &str| {
        let problem = || forms::FormError::Item { item: item.to_owned(), form: "LINKSxMETRES" };
        let (links, metres) = item.split_once('x').ok_or_else(problem)?;
        Ok(json!([forms::number(links, 0, 9)?, forms::number(metres, 0, 99)?]))
    };
    forms::items(text).map(chain).collect::<Result<Vec<_>, forms::FormError>>().map(Value::Array)
}

words! {
    /// The way to drop the anchor.
    Mode {
        /// At once.
        Plain = "Plain",
        /// With a kedge before it.
        Deep = "Deep",
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AnchorConfiguration {
    pub(crate) server: AnchorServer,
    pub(crate) leader: Leader,
    pub(crate) mode: Mode,
    pub(crate) tags: BTreeMap<String, String>,
    pub(crate) groups: Vec<String>,
    pub(crate) depth: i32,
    pub(crate) verbosity: u32,
    #[serde(rename = "kubeAPIQPS")]
    pub(crate) kube_api_qps: f64,
    pub(crate) feature_gates: BTreeMap<String, bool>,
}

impl Default for AnchorConfiguration {
    fn default() -> Self {
        Self {
            server: AnchorServer::default(),
            leader: Leader::default(),
            mode: Mode::default(),
            tags: BTreeMap::new(),
            groups: Vec::new(),
            depth: 0,
            verbosity: 0,
            kube_api_qps: 20.0,
            feature_gates: BTreeMap::new(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AnchorServer {
    pub(crate) port: i32,
    pub(crate) cert_file: String,
}

impl Default for AnchorServer {
    fn default() -> Self {
        Self { port: 20, cert_file: String::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Leader {
    pub(crate) elect: bool,
    pub(crate) lease: GoDuration,
    pub(crate) retry: GoDuration,
}

impl Default for Leader {
    fn default() -> Self {
        let seconds = GoDuration::from_secs;
        Self { elect: true, lease: seconds(15), retry: seconds(5) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Anchor;

impl Daemon for Anchor {
    const FLAGS: FlagTable =
        FlagTable { parts: &[&[SERVER], &[WORK]], removed: &[("rope-size", "use --lease")] };
    const GATES: &'static [FeatureGate] = &[
        FeatureGate::off("Hauling", FeatureStage::Alpha, Never("done by hand")),
        FeatureGate::off("Kedging", FeatureStage::Alpha, Done),
        FeatureGate::on("Mooring", FeatureStage::Ga, Done).locked(),
        FeatureGate::on("Weighing", FeatureStage::Beta, Done),
    ];
    const FIELDS: FieldTable = FieldTable(&[
        Field::value("server.port", FieldKind::Int32, Done),
        Field::value("server.certFile", FieldKind::Text, Done),
        Field::pointer("leader.elect", FieldKind::Bool, Done),
        Field::value("leader.lease", FieldKind::Duration, Done),
        Field::value("leader.retry", FieldKind::Duration, Done),
        Field::value("mode", FieldKind::Word, Done),
        Field::value("tags", FieldKind::TextMap, Done),
        Field::value("groups", FieldKind::TextList, Done),
        Field::value("depth", FieldKind::Int32, NotYet("nothing is that deep")),
        Field::value("verbosity", FieldKind::Int32, Done),
        Field::value("kubeAPIQPS", FieldKind::Float, Done),
        Field::value("featureGates", FieldKind::Map, Done),
    ]);
    const KIND: &'static str = "AnchorConfiguration";
    const API_VERSION: &'static str = "anchor.example/v1";
    const PATH_FIELDS: &'static [&'static str] = &["server.certFile"];

    type Configuration = AnchorConfiguration;

    fn without_file() -> Map<String, Value> {
        json!({ "server": { "port": 10 } }).as_object().cloned().unwrap_or_default()
    }

    fn complete(tree: &mut Map<String, Value>) {
        let leader = tree.get_mut("leader").and_then(Value::as_object_mut);
        if let Some(leader) = leader.filter(|l| l.contains_key("lease") && !l.contains_key("retry"))
        {
            leader.insert("retry".to_owned(), json!("10s"));
        }
    }

    fn check(config: &AnchorConfiguration, gates: &FeatureGates<Self>) -> Vec<ConfigError> {
        let mut found = Violations::default();
        found.in_range("server.port", config.server.port.into(), &(1..=65_535));
        let bounds = [GoDuration::from_secs(1), GoDuration::from_secs(3600)];
        found.between("leader.lease", config.leader.lease, bounds);
        let allowed = config.depth == 0 || gates.enabled("Weighing");
        let problem = "it needs the feature gate Weighing";
        found.require(allowed, "depth", config.depth, problem, "switch the gate on");
        found.0
    }
}
