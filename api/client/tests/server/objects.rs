//! Pods of the tests' server: versions, lists in pages, watches, and faults.
//!
//! Not the API server in memory, because it does what no server may: it goes back to an earlier
//! version under open clients, divides lists that ask for none of it, and serves pods that the
//! rules of the API refuse.

use std::collections::BTreeMap;
use std::sync::Mutex;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

/// Objects of a page, of those lists that come in pages.
const PAGE: usize = 2;

/// An answer of the server.
pub(crate) enum ServerReply {
    Text(u16, String),
    Watch(UnboundedReceiver<Bytes>),
}

/// The pods.
#[derive(Default)]
pub(crate) struct PodStore(Mutex<State>);

#[derive(Default)]
struct State {
    version: u64,
    pods: BTreeMap<String, Value>,
    log: Vec<(u64, String)>,
    history: BTreeMap<u64, BTreeMap<String, Value>>,
    compacted: u64,
    /// Open watches and the version that they are at.
    watches: Vec<(u64, UnboundedSender<Bytes>)>,
    asked: Vec<String>,
}

impl PodStore {
    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        act(&mut self.0.lock().expect("not poisoned"))
    }

    pub(crate) fn put(&self, name: &str, spec: &Value) {
        self.with(|state| {
            let kind = if state.pods.contains_key(name) { "MODIFIED" } else { "ADDED" };
            let pod = state.pod(name, spec);
            state.pods.insert(name.to_owned(), pod.clone());
            state.happened(kind, &pod);
        });
    }

    pub(crate) fn delete(&self, name: &str) {
        self.with(|state| {
            let spec = state.pods.remove(name).expect("it is there")["spec"].take();
            let pod = state.pod(name, &spec);
            state.happened("DELETED", &pod);
        });
    }

    /// Sends every watch a bookmark with the server's version.
    pub(crate) fn bookmark(&self) {
        self.with(|state| {
            state.version += 1;
            let version = state.version.to_string();
            let object = json!({"kind": "Pod", "metadata": {"resourceVersion": version}});
            state.say(&json!({"type": "BOOKMARK", "object": object}).to_string());
        });
    }

    /// Ends every watch.
    pub(crate) fn end_watches(&self) {
        self.with(|state| state.watches.clear());
    }

    /// Forgets all earlier versions, and ends every watch.
    pub(crate) fn compact(&self) {
        self.with(|state| {
            state.compacted = state.version;
            state.watches.clear();
        });
    }

    /// Returns to its state at that version, as after a restore from a backup.
    pub(crate) fn restore(&self, version: u64) {
        self.with(|state| {
            state.pods = state.history[&version].clone();
            state.version = version;
            state.log.retain(|(at, _)| *at <= version);
            state.watches.clear();
        });
    }

    pub(crate) fn version(&self) -> u64 {
        self.with(|state| state.version)
    }

    pub(crate) fn watches(&self) -> usize {
        self.with(|state| state.watches.iter().filter(|(_, watch)| !watch.is_closed()).count())
    }

    /// Queries so far.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.with(|state| state.asked.clone())
    }

    pub(crate) fn answer(&self, query: &str) -> ServerReply {
        self.with(|state| {
            state.asked.push(query.to_owned());
            let part = |name: &str| {
                let parts = query.split('&').filter_map(|part| part.split_once('='));
                parts.filter(|(n, _)| *n == name).map(|(_, value)| value).next()
            };
            let version: u64 = part("resourceVersion").map_or(0, |v| v.parse().expect("a version"));
            match (part("watch"), part("continue")) {
                (Some(_), _) => state.watch(version),
                (None, token) => state.list(version, part("limit").is_some(), token),
            }
        })
    }
}

impl State {
    fn pod(&mut self, name: &str, spec: &Value) -> Value {
        self.version += 1;
        let fields = json!([{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}]);
        let version = self.version.to_string();
        json!({
            "metadata": {"name": name, "namespace": "a", "uid": format!("uid-{name}"),
                "resourceVersion": version, "managedFields": fields},
            "spec": spec,
        })
    }

    fn happened(&mut self, kind: &str, pod: &Value) {
        self.history.insert(self.version, self.pods.clone());
        // In the API server's order.
        let event = format!("{{\"type\":\"{kind}\",\"object\":{pod}}}");
        self.log.push((self.version, format!("{event}\n")));
        self.say(&event);
    }

    fn say(&mut self, event: &str) {
        let (version, line) = (self.version, Bytes::from(format!("{event}\n")));
        for (at, watch) in &mut self.watches {
            if version > *at {
                *at = version;
                // A watch that is gone receives nothing.
                let _ = watch.send(line.clone());
            }
        }
    }

    fn watch(&mut self, from: u64) -> ServerReply {
        let (watch, lines) = unbounded_channel();
        let error = from < self.compacted;
        if error {
            let status = status(410, "Expired", "too old resource version");
            let line = format!("{}\n", json!({"type": "ERROR", "object": status}));
            watch.send(line.into()).expect("it has just been opened");
            return ServerReply::Watch(lines);
        }
        for (_, line) in self.log.iter().filter(|(version, _)| *version > from) {
            watch.send(line.clone().into()).expect("it has just been opened");
        }
        // A version that is yet to come is waited for without a word, as the API server does.
        self.watches.push((self.version.max(from), watch));
        ServerReply::Watch(lines)
    }

    fn list(&mut self, least: u64, divides: bool, token: Option<&str>) -> ServerReply {
        if least > self.version {
            let mut status = status(504, "Timeout", "Too large resource version");
            status["details"] = json!({"causes": [{"reason": "ResourceVersionTooLarge"}]});
            return ServerReply::Text(504, status.to_string());
        }
        let after = |name: &str| token.is_none_or(|token| name > token);
        let rest: Vec<_> = self.pods.iter().filter(|(name, _)| after(name)).collect();
        let page = if divides && least == 0 { rest.len().min(PAGE) } else { rest.len() };
        let mut meta = json!({"resourceVersion": self.version.to_string()});
        if page < rest.len() {
            meta["continue"] = json!(rest[page - 1].0);
        }
        let items: Vec<_> = rest[..page].iter().map(|(_, pod)| pod).collect();
        let list = json!({"kind": "PodList", "metadata": meta, "items": items});
        ServerReply::Text(200, list.to_string())
    }
}

fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "code": code, "reason": reason, "message": message})
}
