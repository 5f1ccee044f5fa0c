//! The state of a pod, read on its node.
//!
//! Input: a query about a pod. Output: the answers as an object. It runs in this process for nodes in
//! namespaces of this host, and as a process of a guest for nodes that are guests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::cgroups::CgroupNames;
use super::normal::Normal;
use super::{calls, cgroups, files, runtime};

/// Limit for a node's cleanup after a pod that has ended, and the polling period.
const SETTLE_MAX: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_millis(100);

/// Identity of a pod on its node.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    /// The UID that the runtime and the folders use: a static pod's differs from its mirror pod's.
    pub(super) uid: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// Condition awaited before the node is read, for at most `SETTLE_MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// Nothing.
    Now,
    /// The pod's folder is gone.
    Folder,
    /// The pod's cgroups are gone.
    Cgroups,
}

/// The part of a pod's state that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `cri`, `files` and `cgroups`: the pod as it is.
    State,
    /// `calls`: the runtime's calls for the pod so far.
    Calls,
}

/// One look at a node.
#[derive(Clone, Debug)]
pub(super) struct PodQuery {
    pub(super) subject: Subject,
    /// Words with their placeholders.
    pub(super) words: Vec<(String, String)>,
    pub(super) settled: Settled,
    pub(super) part: Part,
}

impl PodQuery {
    /// As JSON, for a process in a guest.
    pub(super) fn to_json(&self) -> Value {
        let Subject { uid, namespace, name } = &self.subject;
        json!({
            "uid": uid, "namespace": namespace, "name": name, "words": self.words,
            "settled": match self.settled {
                Settled::Now => "now",
                Settled::Folder => "folder",
                Settled::Cgroups => "cgroups",
            },
            "part": match self.part { Part::State => "state", Part::Calls => "calls" },
        })
    }

    /// Parses the output of `to_json`.
    pub(super) fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text).context("read the query")?;
        let text = |key: &str| value[key].as_str().map(str::to_owned).context(key.to_owned());
        let subject =
            Subject { uid: text("uid")?, namespace: text("namespace")?, name: text("name")? };
        let words = serde_json::from_value(value["words"].clone()).context("words")?;
        let settled = match &*text("settled")? {
            "folder" => Settled::Folder,
            "cgroups" => Settled::Cgroups,
            "now" => Settled::Now,
            other => bail!("a query waits for now, folder or cgroups, not {other}"),
        };
        let part = match &*text("part")? {
            "state" => Part::State,
            "calls" => Part::Calls,
            other => bail!("a query reads state or calls, not {other}"),
        };
        Ok(Self { subject, words, settled, part })
    }
}

/// Paths and programs of a node, for this process.
pub(super) struct NodePlaces<'a> {
    /// The node's root folder, with its mounts: `/proc/PID/root`.
    pub(super) root: PathBuf,
    /// containerd's log.
    pub(super) log: PathBuf,
    pub(super) cgroups: CgroupNames,
    /// Makes a command of containerd's `ctr`.
    pub(super) ctr: &'a dyn Fn() -> Result<Command>,
}

/// Answers the query.
pub(super) fn observe(places: &NodePlaces<'_>, query: &PodQuery) -> Result<Value> {
    let PodQuery { subject, words, settled, part } = query;
    let normal = Normal::new(words.clone());
    let folder = files::folder(&places.root, subject);
    settle(|| match settled {
        Settled::Now => false,
        Settled::Folder => folder.exists(),
        Settled::Cgroups => cgroups::is_there(&places.cgroups, subject),
    });
    if *part == Part::Calls {
        let log = &places.log;
        let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
        return Ok(json!({"calls": calls::parse(&text, &subject.uid, &normal)}));
    }
    let containers = runtime::containers(places.ctr, subject)?;
    Ok(json!({
        "files": files::of(&places.root, subject, &normal),
        "cgroups": cgroups::of(&places.cgroups, subject, &containers),
        "cri": containers.configs,
    }))
}

/// Waits while the node still has something to clean up.
fn settle(has_rest: impl Fn() -> bool) {
    let deadline = Instant::now() + SETTLE_MAX;
    while has_rest() && Instant::now() < deadline {
        thread::sleep(PERIOD);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_is_parsed_as_it_was_written() {
        let [uid, namespace, name] = ["u", "ns", "p"].map(str::to_owned);
        let query = PodQuery {
            subject: Subject { uid, namespace, name },
            words: vec![("u".to_owned(), "<uid>".to_owned())],
            settled: Settled::Cgroups,
            part: Part::Calls,
        };
        let read = PodQuery::from_json(&query.to_json().to_string()).expect("it is good");
        assert_eq!(read.words, query.words);
        assert_eq!((read.settled, read.part), (Settled::Cgroups, Part::Calls));
        assert_eq!((&*read.subject.uid, &*read.subject.name), ("u", "p"));
        let wrong = query.to_json().to_string().replace("cgroups", "mounts");
        assert!(PodQuery::from_json(&wrong).is_err() && PodQuery::from_json("{}").is_err());
    }
}
