//! One sequence, asked of both servers.
//!
//! Input: a seed and a client of the real server. Output: the first step that the servers answer
//! differently.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use jiff::Timestamp;
use pintle_api_types::kind::Kind;
use pintle_api_types::request::{Answer, Request};
use pintle_memory_api::{Change, Event, Identity, Server};
use serde_json::{Value, json};

use super::generate::{custom, steps};
use super::real;
use super::side::{Side, set_up};

/// Requests of a sequence.
const STEPS: usize = 20;

/// One in so many sequences also compares events, because a watch takes a second.
const WATCHED: u64 = 10;

/// Answers that differ.
#[derive(Debug)]
pub struct Difference {
    pub seed: u64,
    pub step: usize,
    pub request: String,
    pub real: Value,
    pub model: Value,
}

/// The two servers and their answers.
struct ServerPair<'a> {
    client: &'a kube::Client,
    server: Server,
    real: Side,
    model: Side,
}

/// Sends the steps of a seed to both servers until their answers differ; the real one uses the new
/// namespace. Then compares the events of watches.
pub async fn run(client: &kube::Client, seed: u64, namespace: &str) -> Result<Option<Difference>> {
    let (real, model) = (Side::default(), Side::default());
    let mut pair = ServerPair { client, server: Server::new(seed), real, model };
    let mut start = String::new();
    for request in set_up(namespace) {
        let (theirs, ours) = pair.ask_both(&request, &request).await?;
        let (theirs, ours) = (theirs.context("the real server")?, ours.context("the model")?);
        start = theirs["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        pair.real.know(&theirs);
        pair.model.know(&ours);
    }
    let version = pair.server.version();
    let steps = steps(seed, namespace, STEPS);
    for (at, step) in steps.iter().enumerate() {
        let request = pair.real.request(step, namespace);
        let (theirs, ours) = pair.ask_both(&request, &pair.model.request(step, namespace)).await?;
        let (real, model) = (pair.real.note(step, &theirs), pair.model.note(step, &ours));
        if real != model {
            let request = format!("{request:?}");
            return Ok(Some(Difference { seed, step: at, request, real, model }));
        }
    }
    if !seed.is_multiple_of(WATCHED) {
        return Ok(None);
    }
    let kinds: BTreeSet<Kind> = steps.iter().map(|step| step.kind).collect();
    for kind in kinds.into_iter().filter(|kind| kind.is_namespaced) {
        let events = pair.server.events_since(kind, version).context("the model's history")?;
        let theirs = real::watch(client, kind, namespace, &start, events.len()).await?;
        let ours: Vec<(String, Value)> = events.iter().map(event).collect();
        let (real, model) = (pair.real.note_events(&theirs), pair.model.note_events(&ours));
        if real != model {
            let request = format!("watch of {kind:?}");
            return Ok(Some(Difference { seed, step: STEPS, request, real, model }));
        }
    }
    Ok(None)
}

impl ServerPair<'_> {
    async fn ask_both(&mut self, theirs: &Request, ours: &Request) -> Result<(Answer, Answer)> {
        let answer = real::ask(self.client, theirs).await?;
        Ok((answer, self.server.handle(&Identity::Admin, ours, Timestamp::now())))
    }
}

/// An event as the real server writes it.
fn event(event: &Event) -> (String, Value) {
    let change = match event.change {
        Change::Added => "ADDED",
        Change::Modified => "MODIFIED",
        Change::Deleted => "DELETED",
    };
    (change.to_owned(), Value::clone(&event.object))
}

/// The definition of the custom kind.
pub fn definition() -> Value {
    let kind = custom();
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
        "spec": {"group": kind.group, "scope": "Namespaced",
            "names": {"plural": kind.plural, "kind": kind.kind},
            "versions": [{"name": kind.version, "served": true, "storage": true,
                "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}]}})
}
