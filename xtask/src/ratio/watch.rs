//! Watch events for the pods of one namespace, each with the time at which it arrived.
//!
//! Input: one watch, as `kubectl get --raw` prints it: a line of JSON for each change. A thread
//! stamps each line as it arrives and does nothing else, so that a stamp is late by the wire only;
//! lines are decoded afterwards. It holds the events of one run of pods, a few thousand lines of
//! some kilobytes.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::cluster::Cluster;

/// Time at which a pod was first seen in each state; a recreated pod needs another name.
#[derive(Clone, Debug, Default)]
pub struct SeenTimes {
    /// It was there.
    pub added: Option<Instant>,
    /// Its phase was Running.
    pub running: Option<Instant>,
    /// Its deletion timestamp was set.
    pub deleting: Option<Instant>,
    /// It was deleted.
    pub gone: Option<Instant>,
    /// Its container that runs, without the runtime's name.
    pub container: Option<String>,
    /// Ends of containers, by id.
    pub ended: BTreeMap<String, Instant>,
}

/// All pods that were seen, by name.
pub type Pods = BTreeMap<String, SeenTimes>;

/// A running watch; dropping it ends it. An overloaded API server closes watches by itself: the
/// watch then resumes at its last version, and its stamps are late by that.
pub struct PodWatch<'a> {
    cluster: &'a Cluster,
    path: String,
    version: String,
    stream: Stream,
    pods: Pods,
}

impl<'a> PodWatch<'a> {
    /// Watches a namespace.
    pub fn of(cluster: &'a Cluster, namespace: &str) -> Result<Self> {
        let path = format!("/api/v1/namespaces/{namespace}/pods?watch=1");
        let stream = Stream::open(cluster, &path)?;
        Ok(Self { cluster, path, version: String::new(), stream, pods: Pods::new() })
    }

    /// Reads events until no pod is missing, and returns the state of all pods.
    pub fn until(
        &mut self,
        what: &str,
        limit: Duration,
        is_missing: impl Fn(&Pods) -> Vec<String>,
    ) -> Result<&Pods> {
        let deadline = Instant::now() + limit;
        loop {
            let missing = is_missing(&self.pods);
            if missing.is_empty() {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stream.lines.recv_timeout(left) {
                Ok((at, line)) => self.version = take(&mut self.pods, at, &line)?,
                Err(RecvTimeoutError::Disconnected) => {
                    let path = format!("{}&resourceVersion={}", self.path, self.version);
                    self.stream = Stream::open(self.cluster, &path)?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    let (count, first) = (missing.len(), &missing[0]);
                    bail!("not within {limit:?}: {what}; {count} are missing, such as {first}");
                }
            }
        }
        Ok(&self.pods)
    }
}

/// One answer of the API server to a watch, as it arrives.
struct Stream {
    kubectl: Child,
    lines: Receiver<(Instant, String)>,
}

impl Stream {
    fn open(cluster: &Cluster, path: &str) -> Result<Self> {
        let mut cmd = cluster.kubectl_command()?;
        cmd.args(["get", "--raw", path]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut kubectl = cmd.spawn().context("start kubectl")?;
        let out = BufReader::new(kubectl.stdout.take().expect("piped"));
        let (to, lines) = channel();
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if to.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        Ok(Self { kubectl, lines })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.kubectl.kill();
        let _ = self.kubectl.wait();
    }
}

/// Applies a line of the watch, and returns its resource version.
fn take(pods: &mut Pods, at: Instant, line: &str) -> Result<String> {
    let event: Value = serde_json::from_str(line).context("read a line of the watch")?;
    let object = &event["object"];
    let name = object["metadata"]["name"].as_str();
    let name = name.with_context(|| format!("the watch said: {line}"))?;
    let pod = pods.entry(name.to_owned()).or_default();
    pod.added.get_or_insert(at);
    if event["type"] == "DELETED" {
        pod.gone.get_or_insert(at);
    }
    if !object["metadata"]["deletionTimestamp"].is_null() {
        pod.deleting.get_or_insert(at);
    }
    let status = &object["status"];
    if status["phase"] == "Running" {
        pod.running.get_or_insert(at);
    }
    for container in status["containerStatuses"].as_array().into_iter().flatten() {
        if !container["state"]["running"].is_null() {
            pod.container = id(&container["containerID"]);
        }
        for state in ["state", "lastState"] {
            if let Some(id) = id(&container[state]["terminated"]["containerID"]) {
                pod.ended.entry(id).or_insert(at);
            }
        }
    }
    let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    Ok(version.to_owned())
}

/// An id without `containerd://`.
fn id(value: &Value) -> Option<String> {
    Some(value.as_str()?.rsplit('/').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(kind: &str, metadata: Value, status: Value) -> String {
        json!({"type": kind, "object": {"metadata": metadata, "status": status}}).to_string()
    }

    #[test]
    fn each_state_keeps_the_time_of_its_first_event() {
        let mut pods = Pods::new();
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let running = json!({"phase": "Running", "containerStatuses": [
            {"containerID": "containerd://one", "state": {"running": {}}}]});
        let ended = json!({"phase": "Failed", "containerStatuses": [
            {"containerID": "containerd://one",
             "state": {"terminated": {"containerID": "containerd://one"}}}]});
        let marked = json!({"name": "a", "deletionTimestamp": "x"});
        let lines = [
            line("ADDED", json!({"name": "a"}), json!({"phase": "Pending"})),
            line("MODIFIED", json!({"name": "a"}), running.clone()),
            line("MODIFIED", json!({"name": "a"}), running),
            line("MODIFIED", json!({"name": "a"}), ended.clone()),
            line("MODIFIED", marked.clone(), ended.clone()),
            line("DELETED", marked, ended),
        ];
        for (ms, line) in (0..).zip(&lines) {
            take(&mut pods, at(ms), line).expect("a line of a watch");
        }
        let pod = &pods["a"];
        assert_eq!((pod.added, pod.running), (Some(at(0)), Some(at(1))));
        assert_eq!((pod.deleting, pod.gone), (Some(at(4)), Some(at(5))));
        assert_eq!(pod.container.as_deref(), Some("one"));
        assert_eq!(pod.ended["one"], at(3));
    }

    #[test]
    fn watch_line_without_a_pod_is_an_error_that_quotes_the_line() {
        let error = take(&mut Pods::new(), Instant::now(), r#"{"type":"ERROR","object":{}}"#);
        assert!(error.expect_err("no pod").to_string().contains("ERROR"));
    }
}
