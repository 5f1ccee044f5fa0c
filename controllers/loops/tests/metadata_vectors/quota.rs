//! Counts of quotas.
//!
//! Input: answers of the program in `tests/upstream/vectors/metadata`; `PINTLE_QUOTA_VECTORS` names
//! a file with more of them. Whether the status is written, and every number in it, must be the
//! same; its text as well where all quantities of a resource have one notation. Where a kind cannot
//! be listed, upstream reports an error beside the counts of other kinds, and ours waits for the
//! list.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::quantity::Amount;
use pintle_api_types::request::Request;
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Controller, Now, Wakes, drive};
use pintle_controllers_core::tables::{
    Decoded, DiscoveredKind, DiscoveredKinds, Tables, WatchEvent,
};
use pintle_controllers_loops::resource_quota::ResourceQuotas;
use serde_json::Value;

use crate::{check, lines};

const KINDS: [(&str, Kind); 10] = [
    ("ConfigMap", kind::CONFIG_MAPS),
    ("DeviceClass", kind::DEVICE_CLASSES),
    ("Job", kind::JOBS),
    ("PersistentVolumeClaim", kind::PERSISTENT_VOLUME_CLAIMS),
    ("Pod", kind::PODS),
    ("ReplicationController", kind::REPLICATION_CONTROLLERS),
    ("ResourceClaim", kind::RESOURCE_CLAIMS),
    ("ResourceQuota", kind::RESOURCE_QUOTAS),
    ("Secret", kind::SECRETS),
    ("Service", kind::SERVICES),
];

fn kind_of(object: &Value) -> Kind {
    let found = KINDS.iter().find(|(name, _)| object["kind"] == *name);
    found.expect("a kind that is known").1
}

/// The events by which a controller learns of the cluster of a line.
fn events(line: &Value) -> Vec<WatchEvent> {
    let found = KINDS.map(|(_, kind)| DiscoveredKind {
        kind,
        verbs: ["create", "list", "watch", "delete"].map(Symbol::of).to_vec(),
        is_preferred: true,
    });
    let discovery = DiscoveredKinds { kinds: found.to_vec(), ..DiscoveredKinds::default() };
    let mut events = vec![WatchEvent::Discovered(discovery)];
    for object in line["objects"].as_array().expect("objects") {
        let object = Decoded::typed(kind_of(object), &object.to_string()).expect("an object");
        events.push(WatchEvent::Set(object));
    }
    let unlisted = line["unlisted"].as_array().expect("kinds");
    let is_listed = |kind: &Kind| unlisted.iter().all(|plural| *plural != kind.plural);
    let listed = KINDS.iter().map(|(_, kind)| *kind).filter(is_listed);
    events.extend(listed.map(WatchEvent::ListComplete));
    events
}

/// The status that our controller writes; null when it writes none.
fn written(line: &Value) -> Value {
    let wall = line["now"].as_str().expect("a time").parse().expect("a time");
    let now = Now { instant: Instant::now(), wall };
    let mut controller = ResourceQuotas::new(1, Duration::ZERO, true);
    let mut tables = Tables::default();
    for event in events(line) {
        for change in tables.apply(event) {
            controller.handle_change(&change, &tables, now, &mut Wakes::default());
        }
    }
    let key = ResourceQuotas::key_of(&ObjectKey::new("n", "q")).expect("quotas have keys");
    let snapshot = controller.snapshot(&key, &tables, now).expect("the quota is there");
    let driven = drive::<ResourceQuotas>(&snapshot, wall, |_| Ok(Value::Null));
    assert!(driven.outcome.is_ok(), "{:?}", driven.outcome);
    match &*driven.requests {
        [] => Value::Null,
        [Request::Replace { target, body }] if target.sub == "status" => body["status"].clone(),
        other => panic!("{other:?}"),
    }
}

/// A list in a status, as numbers or as text.
fn list(status: &Value, name: &str, is_text: bool) -> BTreeMap<String, String> {
    let list = status[name].as_object().into_iter().flatten();
    let texts = list.map(|(name, quantity)| {
        let text = quantity.as_str().expect("a text");
        let amount = || Amount::parse(text).expect("a quantity").approximate().to_string();
        (name.clone(), if is_text { text.to_owned() } else { amount() })
    });
    texts.collect()
}

fn compare(line: &Value) -> Option<String> {
    let (ours, theirs) = (written(line), &line["status"]);
    let is_complete = line["unlisted"].as_array().is_some_and(Vec::is_empty);
    assert!(!is_complete || line["error"] == "", "{}", line["error"]);
    let is_text = line["isMixed"] == false;
    let of = |status: &Value| ["hard", "used"].map(|name| list(status, name, is_text));
    let is_same = ours.is_null() == theirs.is_null() && of(&ours) == of(theirs);
    (!is_same).then(|| format!("ours: {ours}\n  theirs: {theirs}"))
}

#[test]
fn quotas_are_counted_as_upstream_does() {
    let lines = lines("PINTLE_QUOTA_VECTORS", include_str!("quota.jsonl"));
    let written = lines.iter().filter(|line| !line["status"].is_null()).count();
    assert!(written > 0, "upstream writes some status");
    check(&lines, compare);
}
