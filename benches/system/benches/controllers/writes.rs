//! Writes of a manager, by verb, from the API server's audit log.
//!
//! Input: the log, from a place on. Output: counts. Events, leases and requests for tokens are no
//! part of it: they are no decisions.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

/// Users of the manager's requests.
const MANAGER: &str = "system:kube-controller-manager";
const ACCOUNTS: &str = "system:serviceaccount:kube-system:";
/// Resources that are not counted.
const OTHERS: [&str; 2] = ["events", "leases"];

/// Writes that succeeded, by verb.
pub(crate) type Writes = BTreeMap<String, usize>;

/// A place in the log.
pub(crate) struct LogMark {
    path: PathBuf,
    at: u64,
}

impl LogMark {
    /// The current end of the log.
    pub(crate) fn at_end(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), at: fs::metadata(path)?.len() })
    }

    /// Writes since the mark.
    pub(crate) fn writes(&self) -> Result<Writes> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut found = Writes::new();
        for line in text.lines() {
            let entry: Value = serde_json::from_str(line).context("a line of the audit log")?;
            if let Some(verb) = written(&entry) {
                *found.entry(verb.to_owned()).or_default() += 1;
            }
        }
        Ok(found)
    }
}

fn written(entry: &Value) -> Option<&str> {
    let user = entry["user"]["username"].as_str()?;
    let of = &entry["objectRef"];
    let is_token = of["subresource"] == "token";
    let is_other = OTHERS.iter().any(|other| of["resource"] == *other);
    let has_succeeded = entry["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300);
    let is_manager = user == MANAGER || user.starts_with(ACCOUNTS);
    (is_manager && has_succeeded && !is_token && !is_other).then_some(entry["verb"].as_str()?)
}
