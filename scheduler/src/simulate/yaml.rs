//! Converts YAML, handwritten or of `kubectl -o yaml`, to JSON.
//!
//! Input: text of one or more documents. Output: a JSON text for each object, with its line. Pure.
//! Bounds: `TEXT_BYTES_MAX` of text; nodes, depth and aliases by `LIMITS`. It is decoded as kubectl
//! does: `yes` is a boolean and the last of two keys counts.

use pintle_api_types::yaml::{Json, ReadLimits, read_yaml};

/// Longest text that is decoded; dumps of larger clusters must be JSON.
pub(super) const TEXT_BYTES_MAX: usize = 256 << 20;
/// Limits of decoding one document.
const LIMITS: ReadLimits =
    ReadLimits { depth_max: 64, nodes_max: 20_000_000, replayed_max: 1_000_000 };

/// An object of a file.
#[derive(Debug, PartialEq)]
pub(super) struct DumpDocument {
    /// Its first line, from 1.
    pub(super) line: usize,
    /// The kind of the list's items.
    pub(super) kind: Option<String>,
    /// It, as JSON.
    pub(super) text: String,
}

/// Reason why a text cannot be decoded.
#[derive(Debug, PartialEq)]
pub(super) struct BrokenText {
    /// Line, from 1.
    pub(super) line: usize,
    /// The problem, in a sentence.
    pub(super) problem: String,
}

/// The objects of a text.
pub(super) fn documents(text: &str) -> Result<Vec<DumpDocument>, BrokenText> {
    let mut all = Vec::new();
    for (line, part) in split(text) {
        let broken = |broken: BrokenText| BrokenText { line: broken.line + line - 1, ..broken };
        match decode(part).map_err(broken)? {
            Json::Null => {}
            Json::Object(mut fields) if matches!(fields.get("items"), Some(Json::Array(_))) => {
                let Some(kind) = fields.get("kind").and_then(Json::as_str) else {
                    // kubectl writes the kind of a list after its items.
                    let problem = "is a list without a kind: the dump was cut".to_owned();
                    return Err(BrokenText { line, problem });
                };
                let kind = kind.strip_suffix("List").filter(|kind| !kind.is_empty());
                let kind = kind.map(str::to_owned);
                let Some(Json::Array(items)) = fields.remove("items") else { continue };
                let lines = item_lines(part, items.len());
                for (at, item) in items.iter().enumerate() {
                    let line = line - 1 + lines.get(at).copied().unwrap_or(1);
                    all.push(DumpDocument { line, kind: kind.clone(), text: item.to_string() });
                }
                // The metadata of the list.
                all.push(DumpDocument { line, kind: None, text: Json::Object(fields).to_string() });
            }
            other => all.push(DumpDocument { line, kind: None, text: other.to_string() }),
        }
    }
    Ok(all)
}

/// Splits into documents with their first lines: a line that begins with `---` is never part of a
/// value.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let (mut start, mut first, mut at) = (0, 1, 0);
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let is_marker =
            line.starts_with("---") && line[3..].chars().next().is_none_or(char::is_whitespace);
        if is_marker {
            parts.push((first, &text[start..at]));
            (start, first) = (at, number + 1);
        }
        at += line.len();
    }
    parts.push((first, &text[start..]));
    parts.retain(|(_, part)| {
        part.lines()
            .any(|line| !matches!(line.trim(), "" | "---" | "...") && !line.starts_with('#'))
    });
    parts
}

/// Returns the lines of a list's items, from 1; empty unless exactly `count` items are found.
fn item_lines(part: &str, count: usize) -> Vec<usize> {
    let mut lines = part.lines().enumerate().skip_while(|(_, line)| !line.starts_with("items:"));
    lines.next();
    let mut indent = None;
    let mut found = Vec::new();
    for (at, line) in lines {
        let rest = line.trim_start_matches(' ');
        let own = line.len() - rest.len();
        if rest.starts_with("- ") && *indent.get_or_insert(own) == own {
            found.push(at + 1);
        } else if own == 0 && !rest.is_empty() && !rest.starts_with('#') {
            break;
        }
    }
    if found.len() == count { found } else { Vec::new() }
}

fn decode(text: &str) -> Result<Json, BrokenText> {
    let document = read_yaml(text.as_bytes(), &LIMITS).map_err(|error| BrokenText {
        line: error.line.and_then(|line| usize::try_from(line).ok()).unwrap_or(1).max(1),
        problem: error.message,
    })?;
    Ok(document.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_and_list_items_keep_their_line_numbers() {
        let text = "# a comment\n---\nkind: Node\nmetadata: {name: n}\n---\napiVersion: v1\nitems:\n\
            - kind: Pod\n  metadata: {name: a}\n- kind: Pod\n  metadata: {name: b}\nkind: List\n";
        let found = documents(text).expect("YAML");
        let lines: Vec<_> = found.iter().map(|one| (one.line, one.text.contains("Pod"))).collect();
        assert_eq!(lines, [(2, false), (8, true), (10, true), (5, false)]);
        let list = "items:\n- metadata: {name: n}\nkind: NodeList\n";
        assert_eq!(documents(list).expect("YAML")[0].kind.as_deref(), Some("Node"));
    }

    #[test]
    fn a_list_that_was_cut_and_broken_text_have_a_place() {
        let cut = documents("apiVersion: v1\nitems:\n- kind: Pod\n").expect_err("no kind");
        assert!(cut.problem.contains("was cut"), "{cut:?}");
        let broken = documents("kind: Pod\n---\nkind: [\n").expect_err("broken");
        assert!(broken.line >= 3, "{broken:?}");
    }
}
