//! The API server in memory beside the real one: the same random requests, equal answers.
//!
//! Input: seeds. Output: the steps that the servers answer differently. 2,000 sequences of 20
//! requests about a few kinds, names, old versions, UIDs, finalizers, graces and patches; of every
//! tenth sequence the events of watches, too. A second test asks both servers for the rights of
//! every controller. `PINTLE_MEMORY_CASES` sets the number of sequences, `PINTLE_SEED` the first
//! seed.
//!
//! Not compared: UIDs, versions and generated names (by the order in which they appear), times,
//! field managers and the versions that only they create (but for `scale`), repeated causes,
//! versions of lists. Not requested: apply patches, objects that upstream's validation refuses,
//! kinds that need allocators (services), and pods without their service account. It is part of the
//! test program `scheduler`, because it needs the same: an API server alone.

mod bodies;
mod compare;
mod generate;
mod real;
mod rights;
mod side;

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, stream};
use pintle_api_types::kind::Kind;
use pintle_api_types::request::Request;
use serde_json::json;

use self::compare::{Difference, definition, run};
use crate::stand::SchedulerStand;

/// Sequences in CI.
const SEQUENCES: u64 = 2_000;
/// Sequences that run at the same time.
const AT_ONCE: usize = 4;
/// Failures of each sort that are worth printing.
const SHOWN: usize = 5;
/// How long the server may take until it serves the custom kind.
const SERVED_WAIT: Duration = Duration::from_secs(30);

#[test]
fn server_in_memory_answers_as_the_real_one() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
    };
    let first = number("PINTLE_SEED", 0);
    let seeds = first..first + number("PINTLE_MEMORY_CASES", SEQUENCES);
    println!("PINTLE_SEED={first}");
    let stand = SchedulerStand::without_scheduler("memory", &json!({}));
    let failures = stand.with_client(async |client| ask_all(&client, seeds).await);
    assert!(failures.is_empty(), "{failures}");
}

#[test]
fn rights_in_memory_are_those_of_the_real_roles() {
    let stand = SchedulerStand::without_scheduler("rights", &json!({}));
    let differences = stand.with_client(async |client| rights::differences(&client).await);
    assert!(differences.is_empty(), "{differences:#?}");
}

/// Sequences that failed.
#[derive(Default)]
struct Failures {
    /// The servers answer differently.
    differences: Vec<Difference>,
    /// The real server could not be asked, or did not answer: the sequence proves nothing.
    transport: Vec<anyhow::Error>,
}

impl Failures {
    fn is_empty(&self) -> bool {
        self.differences.is_empty() && self.transport.is_empty()
    }
}

/// The sum comes last, because the end of a log is what is read first.
impl fmt::Display for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for error in self.transport.iter().take(SHOWN) {
            writeln!(f, "transport: {error:#}")?;
        }
        for one in self.differences.iter().take(SHOWN) {
            let Difference { seed, step, request, real, model } = one;
            writeln!(f, "difference: seed {seed}, step {step}: {request}")?;
            writeln!(f, "  real  {real}\n  model {model}")?;
        }
        let (differences, transport) = (self.differences.len(), self.transport.len());
        write!(f, "sequences that differ: {differences}; without an answer: {transport}")
    }
}

async fn ask_all(client: &kube::Client, seeds: std::ops::Range<u64>) -> Result<Failures> {
    define_custom_kind(client).await?;
    let namespaces = seeds.map(|seed| (seed, format!("s{seed}")));
    let runs = namespaces.map(|(seed, namespace)| async move {
        run(client, seed, &namespace).await.with_context(|| format!("seed {seed}"))
    });
    let results: Vec<_> = stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
    let mut failures = Failures::default();
    for result in results {
        match result {
            Ok(difference) => failures.differences.extend(difference),
            Err(error) => failures.transport.push(error),
        }
    }
    Ok(failures)
}

/// Makes the custom kind and waits until it can be listed.
async fn define_custom_kind(client: &kube::Client) -> Result<()> {
    let definitions = Kind::interned(
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
    );
    let (kind, namespace) = (definitions, String::new());
    let create = Request::Create { kind, namespace, below: None, body: definition() };
    real::ask(client, &create).await?.context("create the custom kind")?;
    let list = Request::List {
        kind: generate::custom(),
        namespace: "default".to_owned(),
        labels: String::new(),
        only_metadata: false,
    };
    let served = async {
        while real::ask(client, &list).await?.is_err() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    tokio::time::timeout(SERVED_WAIT, served).await.context("the custom kind is not served")?
}
