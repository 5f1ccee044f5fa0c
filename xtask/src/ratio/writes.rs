//! A node's write requests, counted from the API server's own audit log.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

/// Writes by verb and resource, such as `patch pods/status`.
pub(super) type Writes = BTreeMap<String, usize>;

/// A place in the audit log from which writes are counted.
pub(super) struct Since {
    path: PathBuf,
    offset: u64,
}

impl Since {
    /// Counts from now on.
    pub(super) fn now(path: &Path) -> Result<Self> {
        let meta = fs::metadata(path).with_context(|| format!("find {}", path.display()))?;
        Ok(Self { path: path.to_owned(), offset: meta.len() })
    }

    /// Writes of the node's agent in one namespace since then.
    pub(super) fn of(&self, node: &str, namespace: &str) -> Result<Writes> {
        let mut file = File::open(&self.path).context("open the audit log")?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = String::new();
        file.read_to_string(&mut text).context("read the audit log")?;
        Ok(count(&text, node, namespace))
    }
}

/// Whole lines only: the last one may be half written.
fn count(text: &str, node: &str, namespace: &str) -> Writes {
    let user = format!("system:node:{node}");
    let mut writes = Writes::new();
    let entries = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    for entry in entries {
        let object = &entry["objectRef"];
        if entry["user"]["username"] == user.as_str() && object["namespace"] == namespace {
            let resource = object["resource"].as_str().unwrap_or_default();
            let part = object["subresource"].as_str().map(|part| format!("/{part}"));
            let verb = entry["verb"].as_str().unwrap_or_default();
            let key = format!("{verb} {resource}{}", part.unwrap_or_default());
            *writes.entry(key).or_default() += 1;
        }
    }
    writes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn writes_of_the_node_in_the_namespace_are_counted_by_kind() {
        let entry = |user: &str, namespace: &str, part: Value| {
            json!({"verb": "patch", "user": {"username": user}, "objectRef": {
                "resource": "pods", "namespace": namespace, "subresource": part}})
            .to_string()
        };
        let text = [
            entry("system:node:n1", "bench", json!("status")),
            entry("system:node:n1", "bench", json!("status")),
            entry("system:node:n1", "bench", Value::Null),
            entry("system:node:n1", "other", Value::Null),
            entry("admin", "bench", Value::Null),
            "{\"half".to_owned(),
        ];
        let counted = count(&text.join("\n"), "n1", "bench");
        let wanted = [("patch pods".to_owned(), 1), ("patch pods/status".to_owned(), 2)];
        assert_eq!(counted, Writes::from(wanted));
    }
}
