//! What the recorded controllers did and ours, side by side.

use std::collections::BTreeMap;

use pintle_api_types::request::Request;
use serde_json::{Map, Value};

use super::play::{Played, Write};

/// What a controller decided about one object, in its order.
type Decisions = BTreeMap<String, Vec<String>>;

/// Every difference in a sentence.
pub(super) fn compare(recording: &Value, played: &Played) -> Vec<String> {
    let mut differences = Vec::new();
    let (theirs, ours) = (recorded_decisions(recording), own_decisions(&played.writes));
    diff(&mut differences, "decisions", &theirs, &ours);
    let (theirs, ours) = (recorded_statuses(recording), own_statuses(recording, &played.writes));
    diff(&mut differences, "status before a pause", &theirs, &ours);
    diff(&mut differences, "events", &recorded_events(recording), &own_events(played));
    let (theirs, ours) = (recorded_end(recording), own_end(recording, played));
    diff(&mut differences, "end", &theirs, &ours);
    differences
}

/// How many writes there were, and how many of them were refused.
pub(super) fn summary(recording: &Value, played: &Played) -> String {
    let theirs = recording["writes"].as_array().map_or(&[][..], Vec::as_slice);
    let refused = theirs.iter().filter(|write| !is_good(write)).count();
    let is_write =
        |write: &&Write| !matches!(write.request, Request::Read { .. } | Request::List { .. });
    let ours: Vec<_> = played.writes.iter().filter(is_write).collect();
    let own_refused = ours.iter().filter(|write| write.answer.is_err()).count();
    format!(
        "recorded {} writes, {refused} refused; ours {}, {own_refused} refused",
        theirs.len(),
        ours.len()
    )
}

fn diff<T: PartialEq + std::fmt::Debug>(
    differences: &mut Vec<String>,
    what: &str,
    theirs: &BTreeMap<String, T>,
    ours: &BTreeMap<String, T>,
) {
    let mut keys: Vec<_> = theirs.keys().chain(ours.keys()).collect();
    keys.sort_unstable();
    keys.dedup();
    for key in keys {
        let (one, other) = (theirs.get(key), ours.get(key));
        if one != other {
            differences.push(format!("{what}: {key}:\n  recorded {one:?}\n  ours     {other:?}"));
        }
    }
}

/// A write, wherever it comes from.
struct Seen<'a> {
    user: &'a str,
    verb: &'a str,
    resource: &'a str,
    sub: &'a str,
    name: String,
    body: &'a Value,
}

/// The start of a name that the server completed.
fn family(name: &str) -> String {
    name.rsplit_once('-').map_or(name, |(prefix, _)| prefix).to_owned()
}

fn note(decisions: &mut Decisions, seen: &Seen<'_>) {
    let of = |name: &str| format!("{} {} {name}", seen.user, seen.resource);
    let size = seen.body["spec"]["replicas"].to_string();
    match (seen.verb, seen.resource, seen.sub) {
        ("create" | "delete" | "patch", "pods", "") => {
            let all = decisions.entry(of(&family(&seen.name))).or_default();
            // Of pods of one family only the number is comparable.
            all.push(seen.verb.to_owned());
            all.sort_unstable();
        }
        ("create", _, "") => {
            decisions.entry(of(&seen.name)).or_default().push(format!("create with {size}"));
        }
        ("update", "replicasets", "") => {
            let all = decisions.entry(of(&seen.name)).or_default();
            let annotations = &seen.body["metadata"]["annotations"];
            let revision = &annotations["deployment.kubernetes.io/revision"];
            let decision = format!("{size} pods at revision {revision}");
            if all.last() != Some(&decision) {
                all.push(decision);
            }
        }
        ("delete" | "patch", _, "") => {
            decisions.entry(of(&seen.name)).or_default().push(seen.verb.to_owned());
        }
        _ => {}
    }
}

fn user(write: &Value) -> &str {
    let name = write["user"].as_str().unwrap_or_default();
    name.rsplit(':').next().unwrap_or_default()
}

fn is_good(write: &Value) -> bool {
    write["code"].as_u64().is_some_and(|code| code < 400)
}

fn recorded_decisions(recording: &Value) -> Decisions {
    let mut decisions = Decisions::new();
    for write in recording["writes"].as_array().into_iter().flatten().filter(|w| is_good(w)) {
        let text = |field: &str| write[field].as_str().unwrap_or_default();
        note(
            &mut decisions,
            &Seen {
                user: user(write),
                verb: text("verb"),
                resource: text("resource"),
                sub: text("subresource"),
                name: text("name").to_owned(),
                body: &write["body"],
            },
        );
    }
    decisions
}

fn own_user(controller: &str) -> &str {
    match controller {
        "replicationcontroller-controller" => "replication-controller",
        "garbage-collector-controller" => "generic-garbage-collector",
        name => name,
    }
}

/// A write of ours; none for a read or a refused one.
fn seen(write: &Write) -> Option<Seen<'_>> {
    let answer = write.answer.as_ref().ok()?;
    let user = own_user(write.controller);
    let of = |verb, target: &pintle_api_types::request::Target, body| Seen {
        user,
        verb,
        resource: target.kind.plural,
        sub: target.sub,
        name: target.key.name().to_owned(),
        body,
    };
    Some(match &write.request {
        Request::Create { kind, below: None, body, .. } => Seen {
            user,
            verb: "create",
            resource: kind.plural,
            sub: "",
            name: answer["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            body,
        },
        Request::Replace { target, body } => of("update", target, body),
        Request::Patch { target, body, .. } => of("patch", target, body),
        Request::Delete { target, .. } => of("delete", target, &Value::Null),
        _ => return None,
    })
}

fn own_decisions(writes: &[Write]) -> Decisions {
    let mut decisions = Decisions::new();
    writes.iter().filter_map(seen).for_each(|seen| note(&mut decisions, &seen));
    decisions
}

/// Which pause a time is before: the number of steps until then.
fn pause_of(recording: &Value, at_ms: f64) -> usize {
    let steps = recording["steps"].as_array().into_iter().flatten();
    steps.filter(|step| step["at_ms"].as_f64().is_some_and(|at| at <= at_ms)).count()
}

/// The last status of each object before each pause.
type Statuses = BTreeMap<String, Value>;

fn recorded_statuses(recording: &Value) -> Statuses {
    let mut statuses = Statuses::new();
    for write in recording["writes"].as_array().into_iter().flatten().filter(|w| is_good(w)) {
        if write["subresource"] == "status" {
            let pause = pause_of(recording, write["at_ms"].as_f64().unwrap_or_default());
            let key = format!("{pause} {}", write["name"].as_str().unwrap_or_default());
            statuses.insert(key, normal(&write["body"]["status"]));
        }
    }
    statuses
}

fn own_statuses(recording: &Value, writes: &[Write]) -> Statuses {
    let mut statuses = Statuses::new();
    for write in writes {
        let Some(seen) = seen(write).filter(|seen| seen.sub == "status") else { continue };
        let at = u32::try_from(write.at_ms).map_or(f64::MAX, f64::from);
        let key = format!("{} {}", pause_of(recording, at), seen.name);
        statuses.insert(key, normal(&seen.body["status"]));
    }
    statuses
}

/// How often an event was reported, by object and sentence without names that the server made.
fn recorded_events(recording: &Value) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for event in recording["events"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let message = text(&event["message"]);
        // What is combined is other sentences, each reported once.
        let combined = message.strip_prefix("(combined from similar events): ");
        let message = combined.unwrap_or(&message);
        let object = text(&event["involvedObject"]["name"]);
        let key = sentence(&object, &text(&event["reason"]), message);
        // A repeated event is a patch with the number of all.
        let count = event["count"].as_u64().unwrap_or(1);
        let known = events.entry(key).or_insert(0);
        let is_repeated = event["verb"] == "patch" && combined.is_none();
        *known = if is_repeated { count.max(*known) } else { *known + 1 };
    }
    events
}

fn own_events(played: &Played) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for (_, event) in &played.events {
        let key = sentence(&event.about.name, event.reason, &event.message);
        *events.entry(key).or_insert(0) += 1;
    }
    events
}

fn sentence(object: &str, reason: &str, message: &str) -> String {
    let message = match message.split_once(" pod: ") {
        Some((verb, pod)) => format!("{verb} pod: {}", family(pod)),
        None => message.to_owned(),
    };
    format!("{object} {reason} {message}")
}

fn recorded_end(recording: &Value) -> Statuses {
    let mut end = Statuses::new();
    let kinds = recording["final"].as_object().into_iter().flatten();
    for (resource, objects) in kinds.filter(|(resource, _)| *resource != "pods") {
        for object in objects.as_array().into_iter().flatten() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            end.insert(format!("{resource} {name}"), normal(object));
        }
    }
    end
}

fn own_end(recording: &Value, played: &Played) -> Statuses {
    let namespace = recording["scenario"].as_str().unwrap_or_default();
    let mut end = Statuses::new();
    for kind in played.server.kinds() {
        let is_workload =
            matches!(kind.plural, "deployments" | "replicasets" | "replicationcontrollers");
        if !is_workload {
            continue;
        }
        for (key, object) in played.server.objects(kind, namespace) {
            end.insert(format!("{} {}", kind.plural, key.name()), normal(object));
        }
    }
    end
}

/// The value without what differs from run to run.
fn normal(value: &Value) -> Value {
    const CHANCE: &[&str] = &[
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "lastUpdateTime",
        "lastTransitionTime",
        "apiVersion",
        "kind",
    ];
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| !CHANCE.contains(&key.as_str()));
            let kept: Map<_, _> = kept.map(|(key, value)| (key.clone(), normal(value))).collect();
            kept.into()
        }
        Value::Array(items) => {
            let mut items: Vec<_> = items.iter().map(normal).collect();
            items.sort_by_key(|item| item["type"].as_str().map(str::to_owned));
            items.into()
        }
        other => other.clone(),
    }
}
