//! Errors of a dump: file, line, column, object and field.
//!
//! Input: a place in the text, the problem. Output: `LoadError`. Pure. Bounds: quoted values are
//! shortened.

use super::super::ending;
use super::super::position::{offset, path_at, position, sniff};
use super::super::valid::flaws::{cut, cut_quotes};
use super::{Loader, NAME_BYTES_MAX, NamedObject, looks_like_json};

/// Reason why a dump cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct LoadError {
    /// The file.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1.
    pub column: usize,
    /// Kind, namespace and name, or its number in the file.
    pub object: String,
    /// Path of the field with a colon, or empty.
    pub field: String,
    /// The problem.
    pub problem: String,
    /// Further mistakes, if there are any.
    pub more: Option<Box<MoreMistakes>>,
}

/// Mistakes of a file after the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoreMistakes {
    /// Shown mistakes, in their order.
    pub shown: Vec<LoadError>,
    /// Number of mistakes not shown.
    pub left: usize,
}

impl LoadError {
    fn text(&self) -> String {
        let Self { file, line, column, object, field, problem, .. } = self;
        let mut text = format!("{file}:{line}:{column}: {object}: {field}{problem}");
        let Some(more) = &self.more else { return text };
        for other in &more.shown {
            text.push('\n');
            text.push_str(&other.text());
        }
        match more.left {
            0 => {}
            1 => text.push_str("\nand 1 more mistake"),
            left => text.push_str(&format!("\nand {left} more mistakes")),
        }
        text
    }
}

/// An error of a file as a whole.
pub(super) fn of_file(file: &str, line: usize, problem: String) -> LoadError {
    let (file, object, field) = (file.to_owned(), "file".to_owned(), String::new());
    LoadError { file, line, column: 1, object, field, problem, more: None }
}

impl Loader<'_, '_, '_> {
    /// An error of the JSON: of one value, or a truncated dump.
    pub(super) fn ending(&self, start: usize, error: &serde_json::Error) -> LoadError {
        let rest = &self.bytes[start..];
        let skipped = rest.len() - rest.trim_ascii_start().len();
        let text = String::from_utf8_lossy(rest);
        if !looks_like_json(rest) {
            let line = text.trim_start().lines().next().unwrap_or_default();
            let problem = match ending::error_line(&text) {
                Some((_, line)) => ending::sentence(line),
                None => {
                    format!(
                        "is followed by text that is not JSON, {:?}: the dump was cut",
                        cut(line)
                    )
                }
            };
            return self.error(start + skipped, "file".into(), String::new(), problem);
        }
        let mut found = self.syntax(start, error);
        if let Some((_, line)) = ending::error_line(&text) {
            found.problem = ending::sentence(line);
        } else if error.is_eof() {
            found.problem = format!("the file ends early, so the dump was cut ({})", found.problem);
        }
        found
    }

    pub(super) fn number(&self) -> String {
        format!("object {}", self.found.count.max(1))
    }

    /// Kind, namespace and name of an object, or its number.
    pub(super) fn named(&self, text: &str, kind: Option<&str>) -> String {
        let head: NamedObject = serde_json::from_str(text).unwrap_or_default();
        let kind = head.kind.as_deref().or(kind).map(cut);
        let names = head.metadata.unwrap_or_default();
        match (kind, names.namespace, names.name) {
            (Some(kind), Some(namespace), Some(name)) => {
                format!("{kind} {}/{}", cut(&namespace), short(&name))
            }
            (Some(kind), None, Some(name)) => format!("{kind} {}", short(&name)),
            (None, _, Some(name)) => format!("object {}", short(&name)),
            (Some(kind), _, None) => format!("{kind} ({})", self.number()),
            _ => self.number(),
        }
    }

    /// Returns file, line and column of an object; must be called in the order of objects.
    pub(super) fn place(&mut self, at: usize) -> String {
        if let Some(line) = self.line {
            return format!("{}:{line}:1", self.file);
        }
        let (from, mut line, mut start) = self.seen;
        let from = if at < from { 0 } else { from };
        if from == 0 {
            (line, start) = (1, 0);
        }
        for (offset, _) in self.bytes[from..at].iter().enumerate().filter(|(_, b)| **b == b'\n') {
            line += 1;
            start = from + offset + 1;
        }
        self.seen = (at, line, start);
        format!("{}:{line}:{}", self.file, at - start + 1)
    }

    pub(super) fn error(
        &self,
        at: usize,
        object: String,
        field: String,
        problem: String,
    ) -> LoadError {
        let (line, column) = match self.line {
            Some(line) => (line, 1),
            None => position(self.bytes, at),
        };
        let file = self.file.to_owned();
        LoadError { file, line, column, object, field, problem, more: None }
    }

    /// An error of a typed parse of the object at `at`.
    pub(super) fn typed(
        &self,
        at: usize,
        text: &str,
        kind: Option<&str>,
        error: &serde_json::Error,
    ) -> LoadError {
        let inner = offset(text.as_bytes(), error.line(), error.column());
        let path = path_at(text.as_bytes(), inner);
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        self.error(at + inner, self.named(text, kind), field, plain(error))
    }

    /// Like `typed`, for a rewritten text: only the object's own position is known.
    pub(super) fn retyped(
        &self,
        at: usize,
        text: &str,
        kind: &str,
        error: &serde_json::Error,
    ) -> LoadError {
        let inner = offset(text.as_bytes(), error.line(), error.column());
        let path = path_at(text.as_bytes(), inner);
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        self.error(at, self.named(text, Some(kind)), field, plain(error))
    }

    /// An error of the JSON itself.
    pub(super) fn syntax(&self, start: usize, error: &serde_json::Error) -> LoadError {
        let at = offset(self.bytes, error.line(), error.column());
        let path = path_at(&self.bytes[start.min(at)..], at.saturating_sub(start));
        let field = if path.is_empty() { path } else { format!("{path}: ") };
        let object = sniff(&self.bytes[start..at]).unwrap_or_else(|| self.number());
        let mut found = self.error(at, object, field, plain(error));
        if self.line.is_none() {
            (found.line, found.column) = (error.line(), error.column());
        }
        found
    }
}

/// The part of a name that a message repeats.
fn short(name: &str) -> &str {
    match name.char_indices().nth(NAME_BYTES_MAX) {
        Some((end, _)) => &name[..end],
        None => name,
    }
}

/// The message without its own position.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    cut_quotes(text.split(" at line ").next().unwrap_or(&text))
}
