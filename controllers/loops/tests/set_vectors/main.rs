//! Syncs of sets as upstream's own controllers do them, and what ours ask for.
//!
//! Input: answers of the program in `tests/upstream/vectors/sets`, one a line; `PINTLE_SET_VECTORS`
//! names a directory with more of them. Requests that write, events of StatefulSets and whether a
//! sync fails must be the same.
//! Not compared: the order of requests, which upstream sends side by side; which of several old
//! daemon pods are chosen, which depends on the order of a map, and what a refusal to delete one of
//! them leads to; and what is said at
//! `without_repeated_updates`, `is_about_a_pod_just_created` and `is_about_a_missing_pod`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request};
use pintle_controllers_core::frame::{Controller, Driven, EventLevel, Now, drive};
use pintle_controllers_core::tables::{Decoded, Tables, WatchEvent};
use pintle_controllers_loops::daemon_set::DaemonSets;
use pintle_controllers_loops::stateful_set::StatefulSets;
use serde_json::{Value, json};

/// Differences that are worth printing.
const SHOWN: usize = 6;

/// The outcome of a sync, in a comparable form.
#[derive(Debug, PartialEq)]
struct Did {
    requests: Vec<String>,
    events: Vec<String>,
    is_failed: bool,
}

fn kind_of(object: &Value) -> Kind {
    match object["kind"].as_str().expect("a kind") {
        "StatefulSet" => kind::STATEFUL_SETS,
        "DaemonSet" => kind::DAEMON_SETS,
        "ControllerRevision" => kind::CONTROLLER_REVISIONS,
        "Pod" => kind::PODS,
        "PersistentVolumeClaim" => kind::PERSISTENT_VOLUME_CLAIMS,
        "Node" => kind::NODES,
        other => panic!("{other}"),
    }
}

/// Without what is empty: Go leaves out or prints such fields by their tags.
fn trimmed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (key.clone(), trimmed(value)));
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(trimmed).collect()),
        other => other.clone(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is_set) => !is_set,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn body_text(body: &Value, verb: &str) -> String {
    let mut body = trimmed(body);
    if let Some(fields) = body.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
        if verb == "create" {
            fields.remove("status");
            if let Some(metadata) = fields.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.remove("namespace");
            }
        }
    }
    if let Some(volumes) = body["spec"]["volumes"].as_array_mut() {
        volumes.sort_by_key(ToString::to_string);
    }
    trimmed(&body).to_string()
}

fn request_text(request: &Request) -> Option<String> {
    Some(match request {
        Request::Create { kind, body, .. } => {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            format!("create {} {name} {}", kind.plural, body_text(body, "create"))
        }
        Request::Replace { target, body } => {
            let (plural, name) = (target.kind.plural, target.key.name());
            format!("update {plural}{} {name} {}", target.sub, body_text(body, "update"))
        }
        Request::Patch { target, body, .. } => {
            format!(
                "patch {} {} {}",
                target.kind.plural,
                target.key.name(),
                body_text(body, "patch")
            )
        }
        Request::Delete { target, .. } => {
            format!("delete {} {} ", target.kind.plural, target.key.name())
        }
        _ => return None,
    })
}

fn upstream_text(request: &Value) -> String {
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    let verb = text("verb");
    let body = match verb.as_str() {
        "delete" => String::new(),
        _ => body_text(&request["body"], &verb),
    };
    format!("{verb} {}{} {} {body}", text("resource"), text("sub"), text("name"))
}

/// Answers as the fake client of upstream does.
fn answer(
    request: &Request,
    objects: &[Value],
    refused: &BTreeSet<String>,
    created: &mut BTreeSet<String>,
) -> Answer {
    if let Some(text) = request_text(request) {
        let key: Vec<_> = text.splitn(4, ' ').take(3).collect();
        if refused.contains(&key.join(" ")) {
            return Err(refusal(request));
        }
        let is_named = matches!(request, Request::Create { .. }) && !key[2].is_empty();
        if is_named && !created.insert(key.join(" ")) {
            let message = format!("{} \"{}\" already exists", key[1], key[2]);
            let reason = "AlreadyExists".into();
            return Err(ApiError { code: 409, reason, message, ..ApiError::default() });
        }
    }
    let find = |kind: Kind, name: &str| {
        let found =
            objects.iter().find(|one| kind_of(one) == kind && one["metadata"]["name"] == name);
        found.cloned().ok_or_else(|| ApiError {
            code: 404,
            reason: "NotFound".into(),
            message: "not found".into(),
            ..ApiError::default()
        })
    };
    match request {
        Request::Create { body, .. } | Request::Replace { body, .. } => Ok(body.clone()),
        Request::Read { target, .. } => find(target.kind, target.key.name()),
        Request::Patch { target, form, body } => {
            let mut object = find(target.kind, target.key.name())?;
            assert!(matches!(form, PatchForm::Strategic | PatchForm::Merge));
            for (key, value) in body["metadata"]["labels"].as_object().into_iter().flatten() {
                object["metadata"]["labels"][key] = value.clone();
            }
            Ok(object)
        }
        Request::Delete { .. } => Ok(json!({})),
        other => panic!("{other:?}"),
    }
}

fn refusal(request: &Request) -> ApiError {
    let plural = match request {
        Request::Create { kind, .. } => kind.plural,
        Request::Replace { target, .. }
        | Request::Patch { target, .. }
        | Request::Delete { target, .. } => target.kind.plural,
        _ => "",
    };
    let message = format!("{plural} is forbidden: <nil>");
    ApiError { code: 403, reason: "Forbidden".into(), message, ..ApiError::default() }
}

fn synced<C: Controller<Key = ObjectKey>>(
    mut controller: C,
    name: &str,
    line: &Value,
) -> Driven<C::Note> {
    let objects = line["objects"].as_array().expect("objects");
    let mut tables = Tables::default();
    for object in objects {
        let object = Decoded::typed(kind_of(object), &object.to_string()).expect("an object");
        tables.apply(WatchEvent::Set(object));
    }
    let wall = line["now"].as_str().expect("a time").parse().expect("a time");
    let now = Now { instant: Instant::now(), wall };
    let snapshot =
        controller.snapshot(&ObjectKey::new("n", name), &tables, now).expect("the set is there");
    let refused = line["refused"].as_array().into_iter().flatten();
    let refused = refused.map(|one| one.as_str().expect("a text").to_owned()).collect();
    let mut created = BTreeSet::new();
    drive::<C>(&snapshot, wall, |request| answer(request, objects, &refused, &mut created))
}

fn did<N>(driven: &Driven<N>) -> Did {
    let event = |event: &pintle_controllers_core::frame::ObjectEvent| {
        let level = if event.level == EventLevel::Normal { "Normal" } else { "Warning" };
        format!("{level} {} {}", event.reason, event.message)
    };
    Did {
        requests: driven.requests.iter().filter_map(request_text).collect(),
        events: driven.events.iter().map(event).collect(),
        is_failed: driven.outcome.is_err(),
    }
}

fn upstream(line: &Value) -> Did {
    let texts = line["events"].as_array().into_iter().flatten();
    Did {
        requests: line["requests"].as_array().into_iter().flatten().map(upstream_text).collect(),
        events: texts.map(|one| one.as_str().expect("a text").to_owned()).collect(),
        is_failed: line["error"] != "",
    }
}

/// Upstream updates a pod that it has just created once more if its claims in the cache have other
/// owners than it gave them, and these claims, too. With a real API server that ends in a conflict.
fn without_repeated_updates(did: &mut Did) {
    let is_create = |one: &&String| one.starts_with("create pods web-");
    let created: Vec<_> = did.requests.iter().filter(is_create).cloned().collect();
    let created: BTreeSet<_> = created.iter().filter_map(|one| one.split(' ').nth(2)).collect();
    let mut known = BTreeSet::new();
    did.requests.retain(|one| {
        let is_claim = one.starts_with("update persistentvolumeclaims ");
        let name = one.split(' ').nth(2).unwrap_or_default();
        let is_repeated = one.starts_with("update pods ") && created.contains(name);
        !is_repeated && (!is_claim || known.insert(one.clone()))
    });
    let is_of_created =
        |one: &String| created.iter().any(|pod| one.contains(&format!("Update Pod {pod} in")));
    did.events.retain(|one| !is_of_created(one));
    let mut conflicts = BTreeSet::new();
    did.events
        .retain(|one| !one.contains("ConflictingController") || conflicts.insert(one.clone()));
}

/// Upstream fails because it may not update a pod that it has just created, or deletes such a pod
/// again at once: a parallel set without limits creates it of the current revision, and updates it
/// in the same sync. Ours deletes it in the next one, when its status counts.
fn is_about_a_pod_just_created(line: &Value) -> bool {
    let requests = line["requests"].as_array();
    let of_pods = |verb: &'static str| {
        let requests = requests.into_iter().flatten();
        requests.filter(move |one| one["verb"] == verb && one["resource"] == "pods")
    };
    let refused = line["refused"].as_array();
    of_pods("create").filter(|one| one["name"] != "").any(|created| {
        let update = format!("update pods {}", created["name"].as_str().unwrap_or_default());
        refused.is_some_and(|refused| refused.iter().any(|one| *one == update))
            || of_pods("delete").any(|deleted| deleted["name"] == created["name"])
    })
}

/// Upstream deletes a pod that does not exist, because a parallel set continues while a claim of
/// the pod's predecessor delays its creation, and counts it as deleted. A real API server answers
/// 404, which fails that sync. Ours has nothing to delete.
fn is_about_a_missing_pod(line: &Value) -> bool {
    let all = |part: &str| line[part].as_array().cloned().unwrap_or_default();
    let objects = all("objects");
    let is_there = |name: &Value| {
        objects.iter().any(|one| one["kind"] == "Pod" && one["metadata"]["name"] == *name)
    };
    let is_deletion = |one: &&Value| one["verb"] == "delete" && one["resource"] == "pods";
    all("requests").iter().filter(is_deletion).any(|one| !is_there(&one["name"]))
}

/// Several failures are in the order of a map.
fn with_sorted_failures(event: &str) -> String {
    match event.split_once(": [") {
        None => event.to_owned(),
        Some((start, failures)) => {
            let mut failures: Vec<_> = failures.trim_end_matches(']').split(", ").collect();
            failures.sort_unstable();
            format!("{start}: {}", failures.join(", "))
        }
    }
}

fn sorted(mut did: Did) -> Did {
    without_repeated_updates(&mut did);
    did.events = did.events.iter().map(|event| with_sorted_failures(event)).collect();
    did.requests.sort();
    did.events.sort();
    did
}

fn lines(name: &str) -> Vec<Value> {
    let directory = std::env::var_os("PINTLE_SET_VECTORS");
    let given = directory.map(|directory| {
        let path = Path::new(&directory).join(format!("{name}.jsonl"));
        std::fs::read_to_string(path).expect("the file is there")
    });
    let text = given.as_deref().unwrap_or(match name {
        "daemonset" => include_str!("daemonset.jsonl"),
        _ => include_str!("statefulset.jsonl"),
    });
    text.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect()
}

fn check(name: &str, ours: impl Fn(&Value) -> Did) {
    let lines = lines(name);
    let mut differences = Vec::new();
    let (mut requests, mut failures, mut skipped) = (0, 0, 0);
    for (at, line) in lines.iter().enumerate() {
        if is_about_a_pod_just_created(line) || is_about_a_missing_pod(line) {
            skipped += 1;
            continue;
        }
        let (ours, theirs) = (sorted(ours(line)), sorted(upstream(line)));
        requests += theirs.requests.len();
        failures += usize::from(theirs.is_failed);
        let is_other =
            is_same_but_chosen(&ours, &theirs) || is_same_but_refused(line, &ours, &theirs);
        let is_chosen = line["isRollout"] == true && is_other;
        if ours != theirs && !is_chosen {
            let difference = only(&ours, &theirs);
            differences.push(format!("line {} {}\n{difference}", at + 1, line["error"]));
        }
    }
    println!(
        "{} lines, {skipped} skipped, {requests} requests, {failures} failures, {} differences",
        lines.len(),
        differences.len()
    );
    assert!(requests > 0, "upstream asked for something");
    differences.truncate(SHOWN);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// The actions of only one side.
fn only(ours: &Did, theirs: &Did) -> String {
    let short = |text: &String| text.chars().take(700).collect::<String>();
    let without = |some: &[String], others: &[String]| {
        let mut others = others.to_vec();
        let mut is_left = |one: &&String| match others.iter().position(|other| other == *one) {
            Some(at) => {
                others.remove(at);
                false
            }
            None => true,
        };
        some.iter().filter(|one| is_left(one)).map(short).collect::<Vec<_>>().join("\n    ")
    };
    format!(
        "  ours:\n    {}\n    {}\n  theirs:\n    {}\n    {}\n  failed {} {}",
        without(&ours.requests, &theirs.requests),
        without(&ours.events, &theirs.events),
        without(&theirs.requests, &ours.requests),
        without(&theirs.events, &ours.events),
        ours.is_failed,
        theirs.is_failed
    )
}

/// Both delete as many pods, and do the same otherwise.
fn is_same_but_chosen(ours: &Did, theirs: &Did) -> bool {
    let words = |did: &Did| {
        let word =
            |one: &String| match one.starts_with("delete pods") || one.starts_with("create pods") {
                true => one.split(' ').take(2).collect::<Vec<_>>().join(" "),
                false => one.clone(),
            };
        did.requests.iter().map(word).collect::<Vec<_>>()
    };
    words(ours) == words(theirs) && ours.is_failed == theirs.is_failed
}

/// Both delete as many pods, not the same ones, and the API server refuses the deletion of some:
/// what follows in the sync depends on which one was chosen.
fn is_same_but_refused(line: &Value, ours: &Did, theirs: &Did) -> bool {
    let deletions = |did: &Did| {
        let is_deletion = |one: &&String| one.starts_with("delete pods");
        did.requests.iter().filter(is_deletion).cloned().collect::<Vec<_>>()
    };
    let (ours, theirs) = (deletions(ours), deletions(theirs));
    let mut refused = line["refused"].as_array().into_iter().flatten().filter_map(Value::as_str);
    ours.len() == theirs.len()
        && ours != theirs
        && refused.any(|one| one.starts_with("delete pods"))
}

#[test]
fn stateful_sets_are_synced_as_upstream_does() {
    check("statefulset", |line| {
        let has_max_unavailable = line["hasGate"] == true;
        did(&synced(StatefulSets { workers: 1, has_max_unavailable }, "web", line))
    });
}

#[test]
fn daemon_sets_are_synced_as_upstream_does() {
    check("daemonset", |line| Did {
        events: Vec::new(),
        ..did(&synced(DaemonSets::new(1), "ds", line))
    });
}
