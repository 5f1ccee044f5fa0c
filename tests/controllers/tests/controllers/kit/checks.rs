//! Checks of a case: they wait until they hold, or watch that nothing changes.
//!
//! Limits are generous, because other programs share the machine; no check asserts that something
//! took long, and a check that something stays watches for seconds only.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use pintle_testbed::patience;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{CaseNamespace, NamespaceClient, name};

/// Enough for anything that a controller does here.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a state must stay unchanged.
const STAYS: Duration = Duration::from_secs(3);
/// How long a namespace may need until nothing is written.
const SETTLES: Duration = Duration::from_secs(30);
const PERIOD: Duration = Duration::from_millis(200);

impl CaseNamespace {
    /// Waits until the answer is the wanted one.
    pub async fn eq(
        &self,
        what: &str,
        want: Value,
        ask: impl AsyncFn() -> Result<Value>,
    ) -> Result<()> {
        self.until(what, &want.to_string(), async || {
            let seen = ask().await?;
            Ok((seen == want, seen))
        })
        .await
        .map(drop)
    }

    /// Waits until the answer is true, and returns the value beside it.
    pub async fn until(
        &self,
        what: &str,
        want: &str,
        ask: impl AsyncFn() -> Result<(bool, Value)>,
    ) -> Result<Value> {
        let deadline = Instant::now() + LIMIT * patience();
        loop {
            let seen = match ask().await {
                Ok((true, seen)) => return Ok(seen),
                Ok((false, seen)) => seen.to_string(),
                Err(error) => format!("{error:#}"),
            };
            ensure!(Instant::now() < deadline, "{what}: expected {want}, saw {seen}");
            sleep(PERIOD).await;
        }
    }

    /// Waits until there is no such object.
    pub async fn gone(&self, kind: &str, name: &str) -> Result<()> {
        let what = format!("{kind} {name} is gone");
        self.eq(&what, Value::Null, async || self.get(kind, name).await).await
    }

    /// Fails if the answer changes within seconds.
    pub async fn stays(
        &self,
        what: &str,
        want: Value,
        ask: impl AsyncFn() -> Result<Value>,
    ) -> Result<()> {
        let end = Instant::now() + STAYS;
        while Instant::now() < end {
            let seen = ask().await?;
            ensure!(seen == want, "{what}: expected {want} to stay, saw {seen}");
            sleep(PERIOD).await;
        }
        Ok(())
    }

    /// Waits until nothing of these kinds is written in the namespace for some seconds.
    pub async fn settles(&self, kinds: &[&str]) -> Result<()> {
        let deadline = Instant::now() + SETTLES * patience();
        let (mut before, mut since) = (self.versions(kinds).await?, Instant::now());
        while since.elapsed() < STAYS {
            sleep(PERIOD).await;
            let now = self.versions(kinds).await?;
            if now != before {
                if Instant::now() > deadline {
                    let is_new = |key: &&String| now.get(*key) != before.get(*key);
                    let changed: Vec<_> = now.keys().filter(is_new).collect();
                    bail!("nothing is written any more: saw changes of {changed:?}");
                }
                (before, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    /// Messages of the events of a reason about an object, sorted, each once.
    pub async fn messages(&self, reason: &str, about: &str) -> Result<Value> {
        let mut all: Vec<String> = Vec::new();
        for event in self.list("Event").await? {
            let is_about = about.is_empty() || event["involvedObject"]["name"] == about;
            if event["reason"] == reason && is_about {
                all.push(event["message"].as_str().unwrap_or_default().to_owned());
            }
        }
        all.sort();
        all.dedup();
        Ok(json!(all))
    }
}

impl NamespaceClient {
    /// The version of each object of these kinds.
    pub async fn versions(&self, kinds: &[&str]) -> Result<BTreeMap<String, Value>> {
        let mut versions = BTreeMap::new();
        for kind in kinds {
            for object in self.list(kind).await? {
                let version = object["metadata"]["resourceVersion"].clone();
                versions.insert(format!("{kind} {}", name(&object)), version);
            }
        }
        Ok(versions)
    }
}
