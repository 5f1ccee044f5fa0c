//! One sequence, asked of both servers.
//!
//! Input: a seed and a client of the real server. Output: the first step whose answers differ.

use anyhow::{Context, Result};
use jiff::Timestamp;
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

use crate::generate::{custom, steps};
use crate::real;
use crate::side::{Side, set_up};

/// Requests of a sequence.
const STEPS: usize = 20;

/// Answers that differ.
#[derive(Debug)]
pub struct Difference {
    pub seed: u64,
    pub step: usize,
    pub request: String,
    pub real: Value,
    pub model: Value,
}

/// Asks both servers the steps of a seed until their answers differ; the real one in a namespace
/// that it does not have.
pub async fn run(
    client: &kube::Client,
    seed: u64,
    namespace: &str,
) -> Result<Option<Difference>> {
    let mut server = Server::new(seed);
    let (mut real, mut model) = (Side::default(), Side::default());
    for request in set_up(namespace) {
        let made = real::ask(client, &request).await?.context("set up the real server")?;
        real.know(&made);
        let made = server.handle(&Identity::Admin, &request, Timestamp::now());
        model.know(&made.context("set up the model")?);
    }
    for (at, step) in steps(seed, namespace, STEPS).iter().enumerate() {
        let request = real.request(step, namespace);
        let answer = real::ask(client, &request).await?;
        let theirs = real.note(step, &answer);
        let ours = model.request(step, namespace);
        let ours = server.handle(&Identity::Admin, &ours, Timestamp::now());
        let ours = model.note(step, &ours);
        if ours != theirs {
            let request = format!("{request:?}");
            return Ok(Some(Difference { seed, step: at, request, real: theirs, model: ours }));
        }
    }
    Ok(None)
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
