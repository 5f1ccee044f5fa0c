//! Examinations of nodes by the garbage collector.
//!
//! Input: answers of the program in `tests/upstream/_controllers`; `PINTLE_COLLECTOR_VECTORS` names
//! a file with more of them. A line has the events that build the graph, the objects of the API
//! server, and how it refuses requests. The nodes of the graph, those that are examined or
//! orphaned, and of each examination the requests that write, how it ends, and which dependents it
//! wakes must be the same. Not compared: live reads, events, which ours reports at the examination,
//! and what is said at `forget_unblocked`, `forget_others` and `is_read_elsewhere`.

use std::collections::BTreeSet;
use std::time::Instant;

use pintle_api_types::kind::{CONFIG_MAPS, Kind, NODES, PODS, REPLICA_SETS};
use pintle_api_types::request::{Answer, ApiError, PatchForm, Request, Target};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Controller, Now, Wakes, drive};
use pintle_controllers_core::meta::Uid;
use pintle_controllers_core::tables::{
    Decoded, DiscoveredKind, DiscoveredKinds, Tables, WatchEvent,
};
use pintle_controllers_loops::garbage_collector::{
    GarbageCollector, GraphFinding, NodeKey, NodeReason,
};
use serde_json::{Value, json};

use crate::{check, lines};

const KINDS: [Kind; 4] = [CONFIG_MAPS, PODS, REPLICA_SETS, NODES];

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn all<'a>(line: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    line[field].as_array().into_iter().flatten()
}

fn texts(line: &Value, field: &str) -> BTreeSet<String> {
    all(line, field).filter_map(Value::as_str).map(str::to_owned).collect()
}

fn kind_of(object: &Value) -> Kind {
    let kind = KINDS.into_iter().find(|kind| object["kind"] == kind.kind);
    kind.expect("a kind that is known")
}

fn reason(is_orphan: bool) -> NodeReason {
    if is_orphan { NodeReason::Orphan } else { NodeReason::Delete }
}

/// The outcome of an examination.
#[derive(Debug, PartialEq)]
struct Examination {
    requests: Vec<Value>,
    result: &'static str,
    woken: BTreeSet<String>,
}

/// The collector after the events of a line.
struct CollectedCluster<'a> {
    line: &'a Value,
    tables: Tables,
    controller: GarbageCollector,
    woken: Vec<NodeKey>,
}

impl<'a> CollectedCluster<'a> {
    fn new(line: &'a Value) -> Self {
        let controller = GarbageCollector::new(1, Vec::new());
        let mut cluster = Self { line, tables: Tables::default(), controller, woken: Vec::new() };
        let kinds = KINDS.map(|kind| DiscoveredKind {
            kind,
            verbs: ["delete", "list", "watch"].map(Symbol::of).to_vec(),
            is_preferred: true,
        });
        let discovery = DiscoveredKinds { kinds: kinds.to_vec(), ..DiscoveredKinds::default() };
        cluster.apply(WatchEvent::Discovered(discovery));
        KINDS.into_iter().for_each(|kind| cluster.apply(WatchEvent::ListComplete(kind)));
        for event in all(line, "events") {
            let object = &event["object"];
            let decoded = Decoded::typed(kind_of(object), &object.to_string());
            let decoded = decoded.expect("metadata");
            cluster.apply(match text(event, "type") {
                "delete" => WatchEvent::Deleted(decoded),
                _ => WatchEvent::Set(decoded),
            });
        }
        cluster
    }

    fn now() -> Now {
        let wall = "2026-01-01T00:00:00Z".parse().expect("a time");
        Now { instant: Instant::now(), wall }
    }

    fn apply(&mut self, event: WatchEvent) {
        let mut wakes = Wakes::default();
        for change in self.tables.apply(event) {
            self.controller.handle_change(&change, &self.tables, Self::now(), &mut wakes);
        }
        self.woken.extend(wakes.waits().map(|(key, _)| key.clone()));
    }

    /// The UIDs of nodes that wait for one of the two reasons.
    fn queued(&self, is_orphan: bool) -> BTreeSet<String> {
        let keys = self.woken.iter().filter(|key| key.reason == reason(is_orphan));
        keys.map(|key| key.uid.as_str().to_owned()).collect()
    }

    fn examine(&mut self, uid: &str, is_orphan: bool) -> Examination {
        let reason = reason(is_orphan);
        let key = NodeKey { uid: Uid::of(uid), reason, namespace: Symbol::default() };
        let mut requests = Vec::new();
        // An owner that was observed after it was queued is not examined for that alone; here it is
        // examined as if it had been queued for another reason, too.
        let mut snapshot = || self.controller.snapshot(&key, &self.tables, Self::now());
        let Some(snapshot) = snapshot().or_else(&mut snapshot) else {
            return Examination { requests, result: "unmapped", woken: BTreeSet::new() };
        };
        let line = self.line;
        let driven = drive::<GarbageCollector>(&snapshot, Self::now().wall, |request| {
            requests.extend(written(request).map(without_empty));
            answer(line, request)
        });
        if is_orphan {
            // Upstream patches dependents side by side.
            requests.sort_by(|one, other| text(one, "place").cmp(text(other, "place")));
        }
        let notes = match driven.outcome {
            Ok(outcome) => outcome.notes,
            // Upstream's worker says so, behind the examination.
            Err(error) if error.message == "the object has not been observed yet" => Vec::new(),
            Err(_) => return Examination { requests, result: "failed", woken: BTreeSet::new() },
        };
        let (mut result, mut woken) = ("done", BTreeSet::new());
        for note in notes {
            match note {
                GraphFinding::Gone(_) => result = "gone",
                GraphFinding::Unmapped => result = "unmapped",
                GraphFinding::Wake(uids) => {
                    woken.extend(uids.iter().map(|uid| uid.as_str().to_owned()));
                }
                GraphFinding::Absent(_) => {}
                GraphFinding::Unlisted(kind) => panic!("{kind:?} are listed"),
            }
        }
        Examination { requests, result, woken }
    }
}

/// A request that writes.
fn written(request: &Request) -> Option<Value> {
    let (verb, target) = match request {
        Request::Patch { target, .. } => ("patch", target),
        Request::Delete { target, .. } => ("delete", target),
        _ => return None,
    };
    let place = format!("{}/{}", target.key.namespace(), target.key.name());
    let mut told = json!({"verb": verb, "plural": target.kind.plural, "place": place});
    match request {
        Request::Patch { form, body, .. } => {
            told["form"] = if *form == PatchForm::Merge { "merge" } else { "strategic" }.into();
            told["body"] = body.clone();
        }
        Request::Delete { options, .. } => {
            let mut preconditions = json!({"uid": options.uid});
            if let Some(version) = &options.version {
                preconditions["resourceVersion"] = version.as_str().into();
            }
            let propagation = options.propagation.expect("it is always said").as_str();
            told["body"] =
                json!({"preconditions": preconditions, "propagationPolicy": propagation});
        }
        _ => {}
    }
    Some(told)
}

/// A patch that is merged by keys changes nothing by an empty list, nor by what is null.
fn without_empty(mut request: Value) -> Value {
    let is_strategic = request["form"] == "strategic";
    let meta = request["body"].get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(fields) = meta.filter(|_| is_strategic) {
        fields.retain(|_, value| !value.is_null() && *value != json!([]));
    }
    request
}

/// Answers as upstream's fake client did.
fn answer(line: &Value, request: &Request) -> Answer {
    let refuse = |code: u16| {
        let reason = match code {
            404 => "NotFound",
            409 => "Conflict",
            415 => "UnsupportedMediaType",
            _ => "Forbidden",
        };
        Err(ApiError { code, reason: reason.into(), ..ApiError::default() })
    };
    let live = |target: &Target| {
        let mut live = all(line, "live");
        live.find(|object| {
            let meta = &object["metadata"];
            kind_of(object) == target.kind
                && text(meta, "namespace") == target.key.namespace()
                && text(meta, "name") == target.key.name()
        })
    };
    let code = |field: &str, target: &Target| {
        let code = line[field][target.key.name()].as_u64().unwrap_or(0);
        u16::try_from(code).expect("a status")
    };
    let (target, code) = match request {
        Request::Read { target, .. } => (target, 0),
        Request::Delete { target, .. } => (target, code("deleteCodes", target)),
        Request::Patch { target, form: PatchForm::Merge, .. } => {
            (target, Some(code("patchCodes", target)).filter(|code| *code != 415).unwrap_or(0))
        }
        Request::Patch { target, .. } => (target, code("patchCodes", target)),
        other => panic!("{other:?}"),
    };
    match (live(target), code) {
        (None, _) => refuse(404),
        (Some(live), 0) => Ok(live.clone()),
        (Some(_), code) => refuse(code),
    }
}

fn upstream(attempt: &Value) -> Examination {
    let result = ["done", "gone", "unmapped", "failed"];
    let result = result.into_iter().find(|result| attempt["result"] == *result);
    let requests = all(attempt, "requests").cloned().map(without_empty);
    Examination {
        requests: requests.collect(),
        result: result.expect("a result that is known"),
        woken: texts(attempt, "woken"),
    }
}

/// The owners of an object that the graph knows: none when it was never observed.
fn observed_owners<'a>(line: &'a Value, uid: &str) -> &'a Value {
    let events = all(line, "events").filter(|event| event["object"]["metadata"]["uid"] == uid);
    match events.last() {
        Some(event) if event["type"] == "set" => &event["object"]["metadata"]["ownerReferences"],
        _ => &Value::Null,
    }
}

/// Upstream makes the references stop blocking that its graph has, ours those that the object has:
/// where they differ, the references of such a patch are not compared.
fn forget_unblocked(line: &Value, uid: &str, examination: &mut Examination) {
    let live = all(line, "live").find(|object| object["metadata"]["uid"] == uid);
    let live = live.map_or(&Value::Null, |live| &live["metadata"]["ownerReferences"]);
    if live == observed_owners(line, uid) {
        return;
    }
    let mut unblocks = false;
    for request in examination.requests.iter_mut().filter(|request| request["verb"] == "patch") {
        let references = &request["body"]["metadata"]["ownerReferences"];
        let mut references = references.as_array().into_iter().flatten();
        let is_strategic = request["form"] == "strategic";
        unblocks |= is_strategic && references.all(|one| one["$patch"].is_null());
        if unblocks {
            request["body"]["metadata"]["ownerReferences"] = Value::Null;
        }
    }
}

/// Upstream drops the owner also from an object that took the name of a dependent, where the patch
/// needs its second form. Ours leaves such an object alone.
fn forget_others(line: &Value, examination: &mut Examination) {
    examination.requests.retain(|request| {
        let is_at_place = |object: &&Value| {
            let meta = &object["metadata"];
            let place = format!("{}/{}", text(meta, "namespace"), text(meta, "name"));
            request["place"] == place
        };
        let live = all(line, "live").find(is_at_place);
        let is_other = |live: &Value| text(&live["metadata"], "uid").starts_with("another-");
        let drops = request["body"]["metadata"].get("ownerReferences").is_some();
        request["form"] != "merge" || !drops || !live.is_some_and(is_other)
    });
}

/// Upstream reads an object of the whole cluster in a namespace before it sends the second form of
/// a patch, if the node of the object was never observed and has the namespace of a dependent, and
/// fails until the object was observed.
fn is_read_elsewhere(ours: &Examination, theirs: &Examination) -> bool {
    let is_longer = ours.requests.strip_prefix(&*theirs.requests);
    let [second, ..] = is_longer.unwrap_or_default() else { return false };
    second["form"] == "merge" && second["plural"] == NODES.plural && theirs.result == "failed"
}

fn compare(line: &Value) -> Option<String> {
    let mut cluster = CollectedCluster::new(line);
    let ours = [false, true].map(|is_orphan| cluster.queued(is_orphan));
    let theirs = ["queued", "orphaned"].map(|field| texts(line, field));
    if ours != theirs {
        return Some(format!("queued by ours: {ours:?}\n  by theirs: {theirs:?}"));
    }
    let nodes = all(line, "attempts").filter(|attempt| attempt["isOrphan"] == false).count();
    if cluster.controller.view().len() != nodes {
        return Some(format!("{} nodes, upstream has {nodes}", cluster.controller.view().len()));
    }
    all(line, "attempts").find_map(|attempt| {
        let (uid, is_orphan) = (text(attempt, "uid"), attempt["isOrphan"] == true);
        let (mut ours, mut theirs) = (cluster.examine(uid, is_orphan), upstream(attempt));
        forget_unblocked(line, uid, &mut ours);
        forget_unblocked(line, uid, &mut theirs);
        forget_others(line, &mut theirs);
        let what = if is_orphan { "orphaning" } else { "examining" };
        let is_same = ours == theirs || is_read_elsewhere(&ours, &theirs);
        (!is_same).then(|| format!("{what} {uid}: {ours:?}\n  theirs: {theirs:?}"))
    })
}

#[test]
fn nodes_are_examined_as_upstream_does() {
    let lines = lines("PINTLE_COLLECTOR_VECTORS", include_str!("collector.jsonl"));
    let attempts = lines.iter().flat_map(|line| all(line, "attempts"));
    let requests = attempts.flat_map(|attempt| all(attempt, "requests")).count();
    assert!(requests > 0, "upstream asks for something");
    check(&lines, compare);
}
