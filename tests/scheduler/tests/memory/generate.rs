//! Random sequences of requests for two servers.
//!
//! Input: a seed. Output: [`Step`]s that name objects, versions and UIDs by earlier answers,
//! because the numbers of two servers differ. Bounds: few kinds and names a sequence, so that steps
//! affect each other. Pure.

use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{PatchForm, Propagation};
use pintle_api_types::rng::Rng;
use serde_json::{Value, json};

use super::bodies;

/// Names of a sequence.
const NAMES: [&str; 3] = ["x", "y", "z"];
/// Kinds that one sequence is about.
const KINDS_MAX: u64 = 3;
/// Selectors of lists.
const LABELS: [&str; 4] = ["", "app=x", "app in (x,y),tier", "!app"];

/// A stated version or UID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stated {
    /// None.
    Nothing,
    /// That of the newest state that the server answered with.
    Newest,
    /// That of the oldest state that the server answered with.
    Oldest,
    /// One that never was.
    Wrong,
}

/// A change of a field, by its JSON pointer; null removes it.
#[derive(Clone, Debug)]
pub struct Edit {
    pub pointer: String,
    pub value: Value,
}

/// Change of a step to its object.
#[derive(Clone, Debug)]
pub enum Act {
    Create { body: Value },
    Replace { sub: &'static str, edits: Vec<Edit>, version: Stated, uid: Stated },
    Patch { sub: &'static str, form: PatchForm, body: Value, version: Stated },
    Delete { propagation: Option<Propagation>, grace: Option<i64>, uid: Stated, version: Stated },
    DeleteCollection { propagation: Option<Propagation> },
    Read { sub: &'static str, only_metadata: bool },
    List { labels: &'static str, only_metadata: bool },
    Below { sub: &'static str, body: Value },
}

/// One request.
#[derive(Clone, Debug)]
pub struct Step {
    pub kind: Kind,
    pub name: String,
    pub act: Act,
}

/// The custom kind of the test.
pub fn custom() -> Kind {
    Kind::interned("memory.pintle.dev", "v1", "widgets", "Widget", true)
}

/// PodDisruptionBudgets.
pub fn budgets() -> Kind {
    Kind::interned("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true)
}

fn kinds() -> [Kind; 16] {
    [
        kind::PODS,
        kind::CONFIG_MAPS,
        kind::DEPLOYMENTS,
        kind::REPLICA_SETS,
        kind::STATEFUL_SETS,
        kind::DAEMON_SETS,
        kind::JOBS,
        kind::CRON_JOBS,
        kind::REPLICATION_CONTROLLERS,
        kind::LEASES,
        kind::SERVICE_ACCOUNTS,
        kind::PERSISTENT_VOLUME_CLAIMS,
        kind::CONTROLLER_REVISIONS,
        kind::NODES,
        budgets(),
        custom(),
    ]
}

/// The steps of a seed, in a namespace; objects outside of it have its name before theirs.
pub fn steps(seed: u64, namespace: &str, count: usize) -> Vec<Step> {
    let mut rng = Rng::new(seed);
    let all = kinds();
    let mut chosen = Vec::new();
    for _ in 0..rng.range(1, KINDS_MAX + 1) {
        chosen.push(*rng.pick(&all));
    }
    // The life of the namespace itself is one object more of some sequences.
    let ends = rng.chance(10);
    (0..count)
        .map(|_| {
            if ends && rng.chance(10) {
                return of_namespace(namespace, &mut rng);
            }
            let kind = *rng.pick(&chosen);
            let name = format!("{namespace}-{}", rng.pick(&NAMES));
            let act = act(kind, &name, &mut rng);
            Step { kind, name, act }
        })
        .collect()
}

fn of_namespace(name: &str, rng: &mut Rng) -> Step {
    let act = match rng.range(0, 4) {
        0 => delete(rng),
        1 => {
            let edits = vec![Edit { pointer: "/spec/finalizers".to_owned(), value: json!([]) }];
            let version = stated(rng);
            Act::Replace { sub: "finalize", edits, version, uid: Stated::Newest }
        }
        2 => replace(kind::NAMESPACES, "", rng),
        _ => Act::Read { sub: "", only_metadata: false },
    };
    Step { kind: kind::NAMESPACES, name: name.to_owned(), act }
}

fn act(kind: Kind, name: &str, rng: &mut Rng) -> Act {
    match rng.range(0, 100) {
        0..25 => Act::Create { body: bodies::create(kind, name, rng) },
        25..40 => replace(kind, "", rng),
        40..52 => replace(kind, sub(kind, rng), rng),
        52..70 => patch(kind, name, rng),
        70..84 => delete(rng),
        // Without its default account a real namespace takes no pods.
        84 if kind.is_namespaced && kind != kind::SERVICE_ACCOUNTS => {
            Act::DeleteCollection { propagation: propagation(rng) }
        }
        85..88 if kind == kind::PODS => below(name, rng),
        88..92 if kind.is_namespaced => {
            let labels = LABELS[rng.range(0, LABELS.len() as u64) as usize];
            Act::List { labels, only_metadata: rng.chance(30) }
        }
        _ => Act::Read { sub: sub(kind, rng), only_metadata: rng.chance(20) },
    }
}

/// A subresource, or rarely one that the kind does not have.
fn sub(kind: Kind, rng: &mut Rng) -> &'static str {
    let has_scale =
        [kind::DEPLOYMENTS, kind::REPLICA_SETS, kind::STATEFUL_SETS, kind::REPLICATION_CONTROLLERS]
            .contains(&kind);
    match rng.range(0, 10) {
        0..6 => "status",
        6..8 if has_scale => "scale",
        8 => "scale",
        _ => "",
    }
}

fn stated(rng: &mut Rng) -> Stated {
    match rng.range(0, 10) {
        0..5 => Stated::Newest,
        5..8 => Stated::Nothing,
        8 => Stated::Oldest,
        _ => Stated::Wrong,
    }
}

fn rarely(rng: &mut Rng) -> Stated {
    if rng.chance(70) { Stated::Nothing } else { stated(rng) }
}

fn replace(kind: Kind, sub: &'static str, rng: &mut Rng) -> Act {
    let count = rng.range(0, 4);
    let edits = (0..count).map(|_| bodies::edit(kind, sub, rng)).collect();
    Act::Replace { sub, edits, version: stated(rng), uid: rarely(rng) }
}

fn patch(kind: Kind, name: &str, rng: &mut Rng) -> Act {
    let sub = if rng.chance(60) { "" } else { sub(kind, rng) };
    let edits: Vec<Edit> = (0..rng.range(1, 3)).map(|_| bodies::edit(kind, sub, rng)).collect();
    let form = match rng.range(0, 10) {
        0..4 => PatchForm::Strategic,
        4..8 => PatchForm::Merge,
        8 => PatchForm::Json,
        _ => PatchForm::Merge,
    };
    let body = match form {
        PatchForm::Json => bodies::operations(&edits, rng),
        _ => {
            let mut body = json!({});
            edits.iter().for_each(|edit| bodies::set(&mut body, edit, true));
            if rng.chance(5) {
                body["metadata"]["name"] = name.into();
            }
            body
        }
    };
    Act::Patch { sub, form, body, version: rarely(rng) }
}

fn propagation(rng: &mut Rng) -> Option<Propagation> {
    match rng.range(0, 6) {
        0 => Some(Propagation::Background),
        1 => Some(Propagation::Foreground),
        2 => Some(Propagation::Orphan),
        _ => None,
    }
}

fn delete(rng: &mut Rng) -> Act {
    let grace = match rng.range(0, 6) {
        0 => Some(0),
        1 => Some(100),
        2 => Some(20),
        _ => None,
    };
    Act::Delete { propagation: propagation(rng), grace, uid: rarely(rng), version: rarely(rng) }
}

fn below(name: &str, rng: &mut Rng) -> Act {
    let metadata = json!({"name": name});
    match rng.chance(60) {
        true => {
            let body = json!({"apiVersion": "v1", "kind": "Binding", "metadata": metadata,
                "target": {"kind": "Node", "name": "n"}});
            Act::Below { sub: "binding", body }
        }
        false => {
            let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata});
            Act::Below { sub: "eviction", body }
        }
    }
}
