//! Polls `/pods` on one thread in the node's network.
//!
//! Only the fields that a benchmark needs are decoded, so that polling costs little beside what is
//! measured. The stamp of an answer is taken when all of it has arrived.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pintle_testbed::TestNode;
use serde::Deserialize;
use xtask::node::agent::{NODE_NAME, READ_ONLY_PORT};
use xtask::node::http;

use crate::{Stamp, now};

/// A pod as `/pods` shows it; its first container only.
#[derive(Clone, Debug)]
pub struct SeenPod {
    /// Name in the manifest.
    pub name: String,
    /// The phase.
    pub phase: String,
    /// Id of the container that runs now.
    pub running: Option<String>,
    /// Ids of containers that are shown as ended.
    pub ended: Vec<String>,
}

#[derive(Deserialize)]
struct List {
    #[serde(default)]
    items: Option<Vec<SeenItem>>,
}

#[derive(Deserialize)]
struct SeenItem {
    metadata: SeenMetadata,
    #[serde(default)]
    status: SeenStatus,
}

#[derive(Deserialize)]
struct SeenMetadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SeenStatus {
    phase: String,
    container_statuses: Vec<Container>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    #[serde(rename = "containerID")]
    container_id: String,
    state: State,
    last_state: State,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct State {
    running: Option<serde::de::IgnoredAny>,
    terminated: Option<Terminated>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Terminated {
    #[serde(rename = "containerID")]
    container_id: String,
}

/// Polls every `period` until `is_done` accepts an answer and its stamp.
pub fn watch(
    node: &TestNode,
    period: Duration,
    limit: Duration,
    mut is_done: impl FnMut(&[SeenPod], Stamp) -> bool + Send,
) -> Result<()> {
    let deadline = Instant::now() + limit;
    let work = move || {
        while Instant::now() < deadline {
            // The port is closed while the agent starts.
            if let Ok(pods) = ask()
                && is_done(&pods, now())
            {
                return Ok(());
            }
            thread::sleep(period);
        }
        bail!("not within {limit:?}");
    };
    node.runtime_node().in_network(work)?
}

fn ask() -> Result<Vec<SeenPod>> {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, READ_ONLY_PORT)))?;
    let answer = http::get(stream, "/pods")?;
    anyhow::ensure!(answer.status == 200, "{answer:?}");
    decode(&answer.body)
}

fn decode(text: &str) -> Result<Vec<SeenPod>> {
    let list: List = serde_json::from_str(text)?;
    Ok(list.items.unwrap_or_default().into_iter().map(seen).collect())
}

fn seen(item: SeenItem) -> SeenPod {
    let suffix = format!("-{NODE_NAME}");
    let name = item.metadata.name.trim_end_matches(&suffix).to_owned();
    let container = item.status.container_statuses.into_iter().next().unwrap_or_default();
    let running = container.state.running.map(|_| bare(&container.container_id));
    let ends = [container.state.terminated, container.last_state.terminated];
    let ended = ends.into_iter().flatten().map(|end| bare(&end.container_id)).collect();
    SeenPod { name, phase: item.status.phase, running, ended }
}

/// An id without `containerd://`.
fn bare(id: &str) -> String {
    id.rsplit('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::decode;

    #[test]
    fn restarted_container_is_decoded_with_its_running_and_its_terminated_id() {
        let text = r#"{"kind": "PodList", "items": [{"metadata": {"name": "a-1-node"},
            "spec": {}, "status": {"phase": "Running", "containerStatuses": [{"name": "main",
            "containerID": "containerd://new", "state": {"running": {"startedAt": "x"}},
            "lastState": {"terminated": {"containerID": "containerd://old", "exitCode": 137}}}]}},
            {"metadata": {"name": "b-node"}, "status": {}}]}"#;
        let pods = decode(text).expect("a list");
        assert_eq!((pods[0].name.as_str(), pods[0].phase.as_str()), ("a-1", "Running"));
        assert_eq!(pods[0].running.as_deref(), Some("new"));
        assert_eq!(pods[0].ended, ["old"]);
        assert!(pods[1].running.is_none() && pods[1].ended.is_empty());
    }
}
