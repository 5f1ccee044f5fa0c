//! Deletions of what is in a namespace.
//!
//! Input: answers of the program in `tests/upstream/vectors/metadata`; `PINTLE_NAMESPACE_VECTORS`
//! names a file with more of them. A line has a namespace, the kinds that are discovered with their
//! objects, and how the API server refuses requests; `NamespaceServer` answers as upstream's fake
//! clients did. Requests that write, the conditions, the estimate and whether the sync fails must
//! be the same. Not compared: the order of requests, which upstream takes from a map, and the times
//! of conditions.

use std::collections::BTreeMap;
use std::time::Instant;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES};
use pintle_api_types::request::{Answer, ApiError, Propagation, Request, Target};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Controller, Now, drive};
use pintle_controllers_core::tables::{
    Decoded, DiscoveredKind, DiscoveredKinds, Tables, WatchEvent,
};
use pintle_controllers_loops::namespace::Namespaces;
use serde_json::{Value, json};

use crate::{check, lines};

/// The outcome of a sync, in a comparable form.
#[derive(Debug, PartialEq)]
struct Deleted {
    /// Sorted.
    requests: Vec<String>,
    conditions: Vec<Value>,
    /// Seconds after which the rest may be deleted; 0 when nothing remains.
    estimate: u64,
    is_failed: bool,
}

/// Answers as upstream's fake clients do.
struct NamespaceServer<'a> {
    line: &'a Value,
    namespace: Value,
    conflicts: u64,
    items: BTreeMap<String, Vec<Value>>,
    requests: Vec<String>,
    conditions: Value,
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

fn kind_of(found: &Value) -> Kind {
    let plural = text(found, "plural");
    let kind = if plural == "pods" { "Pod" } else { plural };
    Kind::interned(text(found, "group"), "v1", plural, kind, true)
}

impl<'a> NamespaceServer<'a> {
    fn new(line: &'a Value) -> Self {
        let kinds = line["kinds"].as_array().into_iter().flatten();
        let items = kinds.map(|found| {
            (
                text(found, "plural").to_owned(),
                found["items"].as_array().cloned().unwrap_or_default(),
            )
        });
        Self {
            line,
            namespace: line["namespace"].clone(),
            conflicts: line["conflicts"].as_u64().unwrap_or(0),
            items: items.collect(),
            requests: Vec::new(),
            conditions: Value::Null,
        }
    }

    /// The error that the line has for a kind and a request.
    fn refuse(&self, kind: Kind, field: &str) -> Result<(), ApiError> {
        let mut kinds = self.line["kinds"].as_array().into_iter().flatten();
        let found = kinds.find(|found| found["plural"] == kind.plural).expect("a known kind");
        let code = u16::try_from(found[field].as_u64().unwrap_or(0)).expect("a status");
        let reason = match code {
            0 => return Ok(()),
            403 => "Forbidden",
            404 => "NotFound",
            405 => "MethodNotAllowed",
            _ => "InternalError",
        };
        let message = format!("{}: {code}", kind.plural);
        Err(ApiError { code, reason: reason.into(), message, ..ApiError::default() })
    }

    fn remove(&mut self, kind: Kind, is_meant: impl Fn(&Value) -> bool) {
        let items = self.items.get_mut(kind.plural).expect("a known kind");
        items.retain(|item| {
            let has_finalizers = item["finalizers"].as_array().is_some_and(|all| !all.is_empty());
            !is_meant(item) || item["stays"] == true || has_finalizers
        });
    }

    fn list(&self, kind: Kind) -> Value {
        let items = self.items[kind.plural].iter().map(|item| {
            json!({"metadata": {"name": item["name"], "finalizers": item["finalizers"]},
                "spec": {"terminationGracePeriodSeconds": item["grace"]},
                "status": {"phase": item["phase"]}})
        });
        json!({"items": items.collect::<Vec<_>>()})
    }

    fn replace(&mut self, target: &Target, body: &Value) -> Answer {
        let finalizers = body["spec"]["finalizers"].as_array().into_iter().flatten();
        let finalizers: Vec<_> = finalizers.filter_map(Value::as_str).collect();
        let (sub, phase) = (target.sub, text(&body["status"], "phase"));
        self.requests.push(format!("update namespaces/{sub} {phase} {}", finalizers.join(",")));
        if self.conflicts > 0 {
            self.conflicts -= 1;
            if self.line["isNew"] == true {
                self.namespace["metadata"]["uid"] = "another".into();
            }
            let reason = "Conflict".into();
            return Err(ApiError { code: 409, reason, ..ApiError::default() });
        }
        if sub == "status" {
            self.namespace["status"] = body["status"].clone();
            self.conditions = body["status"]["conditions"].clone();
        }
        Ok(self.namespace.clone())
    }

    fn answer(&mut self, request: &Request) -> Answer {
        match request {
            Request::Read { .. } => Ok(self.namespace.clone()),
            Request::Replace { target, body } => self.replace(target, body),
            Request::List { kind, .. } => self.refuse(*kind, "listCode").map(|()| self.list(*kind)),
            Request::DeleteCollection { kind, propagation, .. } => {
                assert_eq!(*propagation, Some(Propagation::Background));
                self.requests.push(format!("delete-collection {}", kind.plural));
                self.refuse(*kind, "code")?;
                self.remove(*kind, |_| true);
                Ok(Value::Null)
            }
            Request::Delete { target, options } => {
                assert_eq!(options.propagation, Some(Propagation::Background));
                let name = target.key.name();
                self.requests.push(format!("delete {} {name}", target.kind.plural));
                if self.items[target.kind.plural].last().is_some_and(|last| last["name"] == name) {
                    self.refuse(target.kind, "deleteCode")?;
                }
                self.remove(target.kind, |item| item["name"] == name);
                Ok(Value::Null)
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Conditions without their times.
fn timeless(conditions: &Value) -> Vec<Value> {
    let mut conditions = conditions.as_array().cloned().unwrap_or_default();
    for condition in &mut conditions {
        if let Some(fields) = condition.as_object_mut() {
            fields.remove("lastTransitionTime");
        }
    }
    conditions
}

fn deleted(line: &Value) -> Deleted {
    let wall = text(line, "now").parse().expect("a time");
    let kinds = line["kinds"].as_array().into_iter().flatten().map(|found| {
        let verbs = found["verbs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let verbs = verbs.map(Symbol::of).collect();
        DiscoveredKind { kind: kind_of(found), verbs, is_preferred: true }
    });
    let failed = line["failedGroups"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let failed = failed.map(|group| (format!("{group}/v1beta1"), "it is down".to_owned()));
    let (kinds, failed_groups) = (kinds.collect(), failed.collect());
    let discovery = DiscoveredKinds { kinds, failed_groups, read_at: None };
    let mut tables = Tables::default();
    tables.apply(WatchEvent::Discovered(discovery));
    let namespace = Decoded::typed(NAMESPACES, &line["namespace"].to_string());
    tables.apply(WatchEvent::Set(namespace.expect("a namespace")));
    let now = Now { instant: Instant::now(), wall };
    let mut controller = Namespaces::new(1, false);
    let snapshot = controller.snapshot(&ObjectKey::new("", "n"), &tables, now);
    let mut server = NamespaceServer::new(line);
    let snapshot = snapshot.expect("the namespace is there");
    let driven = drive::<Namespaces>(&snapshot, wall, |request| server.answer(request));
    server.requests.sort();
    let again = driven.outcome.as_ref().ok().and_then(|outcome| outcome.again);
    Deleted {
        requests: server.requests,
        conditions: timeless(&server.conditions),
        estimate: again.map_or(0, |wait| wait.as_secs()),
        is_failed: driven.outcome.is_err(),
    }
}

fn upstream(line: &Value) -> Deleted {
    let requests = line["requests"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let estimate = line["estimate"].as_u64().unwrap_or(0);
    Deleted {
        requests: requests.map(str::to_owned).collect(),
        conditions: timeless(&line["conditions"]),
        // k8s: pkg/controller/namespace/namespace_controller.go worker
        estimate: if estimate > 0 { estimate / 2 + 1 } else { 0 },
        is_failed: line["isFailed"] == true,
    }
}

#[test]
fn content_of_namespaces_is_deleted_as_upstream_does() {
    let lines = lines("PINTLE_NAMESPACE_VECTORS", include_str!("namespace.jsonl"));
    assert!(lines.iter().any(|line| line["estimate"].as_u64() > Some(0)), "something remains");
    check(&lines, |line| {
        let (ours, theirs) = (deleted(line), upstream(line));
        (ours != theirs).then(|| format!("ours: {ours:?}\n  theirs: {theirs:?}"))
    });
}
