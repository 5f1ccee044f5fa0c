//! Compares the actions of the recorded controllers and of ours.

use std::collections::{BTreeMap, BTreeSet};

use pintle_api_types::request::{Request, Target};
use serde_json::Value;

use super::controllers::{is_ours, short_name, user};
use super::normal::{Families, family};
use super::play::{Played, RecordedWrite, at_ms};
use super::steps::kind_of;

/// A controller's decisions about each object, in order.
type Decisions = BTreeMap<String, Vec<String>>;

/// Normal values by object, such as its last status before each pause.
type Objects = BTreeMap<String, Value>;

/// Kinds that are not compared at the end: nodes and volumes belong to the world; services and the
/// objects derived from them belong to controllers and allocators that are not played.
const WORLD: &[&str] = &["endpoints", "endpointslices", "nodes", "persistentvolumes", "services"];

/// A write, wherever it comes from.
struct SeenWrite<'a> {
    at_ms: u64,
    user: &'a str,
    verb: &'a str,
    resource: &'a str,
    sub: &'a str,
    name: String,
    body: &'a Value,
}

impl SeenWrite<'_> {
    /// The start of the name that the server completes, if it does.
    fn prefix(&self) -> Option<String> {
        let metadata = &self.body["metadata"];
        let is_named = metadata["name"].as_str().is_some_and(|name| !name.is_empty());
        let prefix = metadata["generateName"].as_str().filter(|_| !is_named);
        prefix.filter(|_| self.verb == "create").map(str::to_owned)
    }
}

/// Writes of one side, without refused ones.
struct SideWrites<'a> {
    writes: Vec<SeenWrite<'a>>,
}

impl<'a> SideWrites<'a> {
    fn recorded(recording: &'a Value) -> Self {
        let all = recording["writes"].as_array().into_iter().flatten();
        let good = all.filter(|write| is_good(write));
        let writes: Vec<_> = good.map(recorded_write).collect();
        // Objects that ours do not create are of no controller that is played.
        let is_foreign = |write: &SeenWrite<'_>| write.verb == "create" && !is_ours(write.user);
        let object = |write: &SeenWrite<'_>| (write.resource.to_owned(), write.name.clone());
        let foreign: BTreeSet<_> = writes.iter().filter(|w| is_foreign(w)).map(object).collect();
        let is_compared =
            |write: &SeenWrite<'_>| is_ours(write.user) && !foreign.contains(&object(write));
        Self { writes: writes.into_iter().filter(is_compared).collect() }
    }

    fn ours(played: &'a Played) -> Self {
        Self { writes: played.writes.iter().filter_map(own_write).collect() }
    }

    fn prefixes(&self) -> impl Iterator<Item = String> {
        self.writes.iter().filter_map(SeenWrite::prefix)
    }
}

/// Every difference in a sentence.
pub(super) fn compare(recording: &Value, played: &Played) -> Vec<String> {
    let (theirs, ours) = (SideWrites::recorded(recording), SideWrites::ours(played));
    let families = Families::new(theirs.prefixes().chain(ours.prefixes()));
    let mut found = Vec::new();
    diff(&mut found, "decisions", &decisions(&theirs, &families), &decisions(&ours, &families));
    let (one, other) = (statuses(recording, &theirs), statuses(recording, &ours));
    diff(&mut found, "status before a pause", &normal(&one, &families), &normal(&other, &families));
    diff(
        &mut found,
        "events",
        &recorded_events(recording, &families),
        &own_events(played, &families),
    );
    let (one, other) = (recorded_end(recording), own_end(recording, played));
    diff(&mut found, "end", &normal(&one, &families), &normal(&other, &families));
    let (one, other) = (recorded_pods(recording), own_pods(recording, played));
    diff(&mut found, "pods at the end", &counts(&one, &families), &counts(&other, &families));
    found
}

/// How many writes there were, and how many of them were refused.
pub(super) fn summary(recording: &Value, played: &Played) -> String {
    let theirs = recording["writes"].as_array().into_iter().flatten();
    let theirs: Vec<_> = theirs.filter(|write| is_ours(user(write))).collect();
    let refused = theirs.iter().filter(|write| !is_good(write)).count();
    let is_write = |write: &&RecordedWrite| {
        !matches!(write.request, Request::Read { .. } | Request::List { .. })
    };
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
    let keys: BTreeSet<_> = theirs.keys().chain(ours.keys()).collect();
    for key in keys {
        let (one, other) = (theirs.get(key), ours.get(key));
        if one != other {
            differences.push(format!("{what}: {key}:\n  recorded {one:?}\n  ours     {other:?}"));
        }
    }
}

fn is_good(write: &Value) -> bool {
    write["code"].as_u64().is_some_and(|code| code < 400)
}

fn recorded_write(write: &Value) -> SeenWrite<'_> {
    let text = |field: &str| write[field].as_str().unwrap_or_default();
    SeenWrite {
        at_ms: at_ms(write),
        user: user(write),
        verb: text("verb"),
        resource: text("resource"),
        sub: text("subresource"),
        name: text("name").to_owned(),
        body: &write["body"],
    }
}

/// A write of ours; none for a read or a refused one.
fn own_write(write: &RecordedWrite) -> Option<SeenWrite<'_>> {
    let answer = write.answer.as_ref().ok()?;
    let seen = |verb, resource, sub, name: &str, body| SeenWrite {
        at_ms: write.at_ms,
        user: short_name(&write.user),
        verb,
        resource,
        sub,
        name: name.to_owned(),
        body,
    };
    let of = |verb, target: &Target, body| {
        Some(seen(verb, target.kind.plural, target.sub, target.key.name(), body))
    };
    match &write.request {
        Request::Create { kind, below: None, body, .. } => {
            let name = answer["metadata"]["name"].as_str().unwrap_or_default();
            Some(seen("create", kind.plural, "", name, body))
        }
        Request::Replace { target, body } => of("update", target, body),
        Request::Patch { target, body, .. } => of("patch", target, body),
        Request::Delete { target, .. } => of("delete", target, &Value::Null),
        Request::DeleteCollection { kind, .. } => {
            Some(seen("deletecollection", kind.plural, "", "", &Value::Null))
        }
        _ => None,
    }
}

fn decisions(side: &SideWrites<'_>, families: &Families) -> Decisions {
    let mut decisions = Decisions::new();
    for write in side.writes.iter().filter(|write| write.sub.is_empty()) {
        let name = families.text(&write.name);
        let all = decisions.entry(format!("{} {} {name}", write.user, write.resource)).or_default();
        let size = &write.body["spec"]["replicas"];
        match (write.verb, write.resource) {
            // Of pods of one family only the number is comparable.
            (_, "pods") => {
                all.push(write.verb.to_owned());
                all.sort_unstable();
            }
            ("create", _) => all.push(format!("create with {size}")),
            ("update", "replicasets") => {
                let annotations = &write.body["metadata"]["annotations"];
                let revision = &annotations["deployment.kubernetes.io/revision"];
                let decision = format!("{size} pods at revision {revision}");
                if all.last() != Some(&decision) {
                    all.push(decision);
                }
            }
            // Its annotations follow from those of its sets, which are compared.
            ("update", "deployments") => {}
            (verb, _) => all.push(verb.to_owned()),
        }
    }
    decisions.retain(|_, all| !all.is_empty());
    decisions
}

/// Which pause a time is before: the number of steps until then.
fn pause_of(recording: &Value, at: u64) -> usize {
    let steps = recording["steps"].as_array().into_iter().flatten();
    steps.filter(|step| at_ms(step) <= at).count()
}

fn statuses(recording: &Value, side: &SideWrites<'_>) -> Objects {
    let mut statuses = Objects::new();
    for write in side.writes.iter().filter(|write| write.sub == "status") {
        let pause = pause_of(recording, write.at_ms);
        let key = format!("{pause} {} {}", write.resource, write.name);
        statuses.insert(key, write.body["status"].clone());
    }
    statuses
}

fn normal(objects: &Objects, families: &Families) -> Objects {
    let each = objects.iter();
    each.map(|(key, value)| (families.text(key), families.value(value))).collect()
}

/// How often an event was reported, by object and sentence.
fn recorded_events(recording: &Value, families: &Families) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for event in recording["events"].as_array().into_iter().flatten() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let message = text(&event["message"]);
        // What is combined is other sentences, each reported once.
        let combined = message.strip_prefix("(combined from similar events): ");
        let message = combined.unwrap_or(&message);
        let object = text(&event["involvedObject"]["name"]);
        let key = sentence(&object, &text(&event["reason"]), message, families);
        // A repeated event is a patch with the number of all.
        let count = event["count"].as_u64().unwrap_or(1);
        let known = events.entry(key).or_insert(0);
        let is_repeated = event["verb"] == "patch" && combined.is_none();
        *known = if is_repeated { count.max(*known) } else { *known + 1 };
    }
    with_single_refusals(events)
}

fn own_events(played: &Played, families: &Families) -> BTreeMap<String, u64> {
    let mut events = BTreeMap::new();
    for (_, event) in &played.events {
        let key = sentence(&event.about.name, event.reason, &event.message, families);
        *events.entry(key).or_insert(0) += 1;
    }
    with_single_refusals(events)
}

/// How often a refused creation is retried depends on how often pods wake their owner.
fn with_single_refusals(mut events: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let refusals = events.iter_mut().filter(|(sentence, _)| sentence.contains("exceeded quota"));
    refusals.for_each(|(_, count)| *count = 1);
    events
}

fn sentence(object: &str, reason: &str, message: &str, families: &Families) -> String {
    format!("{} {reason} {}", families.text(object), families.text(message))
}

fn recorded_end(recording: &Value) -> Objects {
    let mut end = Objects::new();
    let kinds = recording["final"].as_object().into_iter().flatten();
    for (resource, objects) in kinds {
        // Other parts have names of their own, such as the pods before a step.
        if kind_of(resource).is_none() || resource == "pods" || WORLD.contains(&resource.as_str()) {
            continue;
        }
        for object in objects.as_array().into_iter().flatten() {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            end.insert(format!("{resource} {name}"), comparable(resource, object));
        }
    }
    end
}

fn own_end(recording: &Value, played: &Played) -> Objects {
    let namespace = recording["scenario"].as_str().unwrap_or_default();
    let mut end = Objects::new();
    for kind in played.server.kinds().filter(|kind| kind.is_namespaced) {
        // The account and the bundle of every namespace are recorded only where they are the topic.
        let is_everywhere = matches!(kind.plural, "serviceaccounts" | "configmaps" | "secrets");
        let is_recorded = recording["final"][kind.plural].is_array();
        if kind.plural == "pods" || WORLD.contains(&kind.plural) || (is_everywhere && !is_recorded)
        {
            continue;
        }
        for (key, object) in played.server.objects(kind, namespace) {
            end.insert(format!("{} {}", kind.plural, key.name()), comparable(kind.plural, object));
        }
    }
    end
}

/// An object without what controllers write to it that are not played.
fn comparable(resource: &str, object: &Value) -> Value {
    let mut object = object.clone();
    if resource == "persistentvolumeclaims"
        && let Some(fields) = object.as_object_mut()
    {
        // The binder's part.
        fields.remove("status");
        fields["metadata"]["annotations"] = Value::Null;
        fields["spec"]["volumeName"] = Value::Null;
    }
    object
}

/// The phase and the owner of a pod; a number that is appended keeps equal ones apart.
fn recorded_pods(recording: &Value) -> Vec<String> {
    recording["final"]["pods"].as_array().into_iter().flatten().map(pod_line).collect()
}

fn own_pods(recording: &Value, played: &Played) -> Vec<String> {
    let namespace = recording["scenario"].as_str().unwrap_or_default();
    let pods = played.server.objects(pintle_api_types::kind::PODS, namespace);
    pods.map(|(_, pod)| pod_line(pod)).collect()
}

fn pod_line(pod: &Value) -> String {
    let metadata = &pod["metadata"];
    let owner = &metadata["ownerReferences"][0]["name"];
    let labels = metadata["labels"].as_object().into_iter().flatten();
    let labels: Vec<_> = labels.filter(|(key, _)| !key.ends_with("controller-uid")).collect();
    let name = metadata["name"].as_str().unwrap_or_default();
    let is_generated = metadata["generateName"].is_string();
    let name = if is_generated && owner.is_null() { family(name) } else { name.to_owned() };
    let (phase, finalizers) = (&pod["status"]["phase"], &metadata["finalizers"]);
    format!("{name} of {owner} is {phase}, {labels:?}, {finalizers}")
}

fn counts(lines: &[String], families: &Families) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    lines.iter().for_each(|line| *counts.entry(families.text(line)).or_insert(0) += 1);
    counts
}
