//! The log of calls: a JSON line when a call begins, one when it has ended, one for each violation.
//!
//! Secrets and tokens are never in it, only the names of their keys. Several drivers append to one
//! file, a line in one write. A line that is not complete is not read: its driver died writing it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

/// Name of the file in the state folder.
const FILE: &str = "calls.jsonl";

/// What a line is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// A call came.
    Begin,
    /// A call was answered.
    End,
    /// A call was out of order.
    Violation,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// What it is about.
    pub phase: Phase,
    /// What the driver calls its node.
    pub node: String,
    /// Process of the driver.
    pub process: u32,
    /// Process that called a Node method; 0 for other methods.
    pub caller: i32,
    /// Counts the calls of a process.
    pub call: u64,
    /// Method of CSI or of the registration.
    pub method: String,
    /// Id of the volume or snapshot, or its name where the call creates it.
    pub volume: String,
    /// Staging or target path, if the call has one.
    pub path: String,
    /// When a call begins: the request. When it has ended: the code. Of a violation: which.
    pub text: String,
}

impl Line {
    /// Returns whether it is the answer `OK`.
    pub fn is_success(&self) -> bool {
        self.phase == Phase::End && self.text == "Ok"
    }
}

/// Appends lines.
#[derive(Debug)]
pub(crate) struct CallLog {
    file: File,
    node: String,
    calls: AtomicU64,
}

/// What a call is about.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) method: &'static str,
    pub(crate) volume: String,
    pub(crate) path: String,
    /// Process that calls; 0 where it does not matter.
    pub(crate) caller: i32,
}

impl CallLog {
    pub(crate) fn open(state: &Path, node: &str) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(state.join(FILE))?;
        Ok(Self { file, node: node.to_owned(), calls: AtomicU64::new(0) })
    }

    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn append(&self, phase: Phase, call: u64, subject: &Subject, text: String) {
        let line = Line {
            phase,
            node: self.node.clone(),
            process: std::process::id(),
            caller: subject.caller,
            call,
            method: subject.method.to_owned(),
            volume: subject.volume.clone(),
            path: subject.path.clone(),
            text,
        };
        let mut bytes = serde_json::to_vec(&line).expect("a line has only texts and numbers");
        bytes.push(b'\n');
        if let Err(error) = (&self.file).write_all(&bytes) {
            eprintln!("the log of calls cannot be written: {error}");
        }
    }
}

/// Reads the log of a state folder.
#[derive(Clone, Debug)]
pub struct LogFile {
    path: PathBuf,
}

impl LogFile {
    /// The log in a state folder.
    pub fn new(state: &Path) -> Self {
        Self { path: state.join(FILE) }
    }

    /// All complete lines.
    pub fn read(&self) -> io::Result<Vec<Line>> {
        let text = std::fs::read_to_string(&self.path)?;
        let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
        complete.lines().map(|line| serde_json::from_str(line).map_err(io::Error::from)).collect()
    }
}
