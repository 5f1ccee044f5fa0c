//! Inputs and commands of the decisions about one pod, in order.
//!
//! Input: a pod as people name it, the frames of a replay. Output: rows for a table, and JSON.
//! Values that were redacted stay so. Bounds: those of the record.

use std::collections::BTreeSet;

use pintle_agent_core::flight::{Frame, Replay};
use pintle_agent_core::types::{PodUid, UnixNanos};
use pintle_agent_core::worker::{Command, Pods, PodsInput, Worker};
use pintle_api_types::pod;
use serde_json::{Value, json};

use crate::words;

/// One input or command.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct InputRow {
    /// When.
    pub(crate) at: UnixNanos,
    /// The kind.
    pub(crate) what: &'static str,
    /// A command, not an input.
    pub(crate) is_command: bool,
    /// The input or command in words.
    pub(crate) text: String,
}

/// See the module's header.
#[derive(Debug)]
pub(crate) struct PodInputs {
    query: String,
    /// Uids that were found to be meant.
    meant: BTreeSet<PodUid>,
    pub(crate) rows: Vec<InputRow>,
    pub(crate) json: Vec<Value>,
    /// True for JSON, else rows.
    is_json: bool,
}

impl PodInputs {
    /// Collects inputs of this pod, named by uid, name, or namespace and name.
    pub(crate) fn new(query: &str, is_json: bool) -> Self {
        let (rows, json) = (Vec::new(), Vec::new());
        Self { query: query.to_owned(), meant: BTreeSet::new(), rows, json, is_json }
    }

    /// True if a pod matched.
    pub(crate) fn found(&self) -> bool {
        !self.meant.is_empty()
    }

    /// Sees a frame that the replay has just taken.
    pub(crate) fn see(&mut self, replay: &mut Replay, frame: &Frame) {
        let Frame::Input { now, input } = frame else { return };
        let of = words::pod_of(input);
        let pods = replay.pods().map(|pods| &*pods);
        let is_meant = of.is_some_and(|uid| self.means(uid, input, pods));
        let uids = replay.commands().iter().filter_map(words::pod_of_command);
        let uids: BTreeSet<_> = uids.cloned().collect();
        let pods = replay.pods().map(|pods| &*pods);
        for uid in uids {
            self.means(&uid, input, pods);
        }
        let commands = replay.commands().iter();
        let is_ours = |command: &&Command| {
            words::pod_of_command(command).is_some_and(|uid| self.meant.contains(uid))
        };
        let commands: Vec<_> = commands.filter(is_ours).collect();
        if !is_meant && commands.is_empty() {
            return;
        }
        if self.is_json {
            self.json.push(json!({"unixNanos": now.wall, "input": input, "commands": commands}));
            return;
        }
        let row = |(what, text), is_command| InputRow { at: now.wall, what, is_command, text };
        self.rows.push(row(words::input(input), false));
        self.rows.extend(commands.into_iter().map(|c| row(words::command(c), true)));
    }

    fn means(&mut self, uid: &PodUid, input: &PodsInput, pods: Option<&Pods>) -> bool {
        if self.meant.contains(uid) {
            return true;
        }
        let wanted = match input {
            PodsInput::Desired { uid: of, pod } | PodsInput::Reconciled { uid: of, pod }
                if of == uid =>
            {
                Some((pod::namespace(pod), pod::name(pod)))
            }
            _ => None,
        };
        let observed = pods.and_then(|pods| pods.worker(uid)).map(Worker::observed);
        let observed = observed.map(|pod| (pod.namespace.as_str(), pod.name.as_str()));
        let is_meant = uid.as_str() == self.query
            || wanted.or(observed).is_some_and(|(namespace, name)| {
                match self.query.split_once('/') {
                    Some(query) => query == (namespace, name),
                    None => self.query == name,
                }
            });
        if is_meant {
            self.meant.insert(uid.clone());
        }
        is_meant
    }
}
