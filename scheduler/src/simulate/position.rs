//! Positions in JSON texts, for messages.
//!
//! Input: bytes, a place in them. Output: line and column, the path of the value, the object. Pure.

/// Returns kind and name of the object in which a text is truncated: the last with a name.
pub(super) fn sniff(text: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(text);
    let kinds = ["Node", "Pod", "Namespace", "Service", "ReplicaSet", "StatefulSet"];
    let quoted = |after: &str, key: &str| {
        let value = after.split_once(&format!("\"{key}\""))?.1.trim_start().strip_prefix(':')?;
        Some(value.trim_start().strip_prefix('"')?.split('"').next()?.to_owned())
    };
    let start = text.rmatch_indices("\"kind\"").map(|(at, _)| at).find(|at| {
        let found = quoted(&text[*at..], "kind");
        found.is_some_and(|k| kinds.contains(&k.as_str()))
    })?;
    let kind = quoted(&text[start..], "kind")?;
    let metadata = text[start..].split_once("\"metadata\"")?.1;
    Some(format!("{kind} {}", quoted(metadata, "name")?))
}

/// Returns line and column of a byte, from 1.
pub(super) fn position(bytes: &[u8], at: usize) -> (usize, usize) {
    let before = &bytes[..at.min(bytes.len())];
    let line = before.iter().filter(|b| **b == b'\n').count() + 1;
    let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |p| p + 1);
    (line, before.len() - start + 1)
}

/// Returns the byte of a line and column as the parser counts them.
pub(super) fn offset(bytes: &[u8], line: usize, column: usize) -> usize {
    let mut start = 0;
    for _ in 1..line {
        match bytes[start..].iter().position(|b| *b == b'\n') {
            Some(at) => start += at + 1,
            None => break,
        }
    }
    (start + column.saturating_sub(1)).min(bytes.len())
}

/// Returns the path of the value that contains a byte, such as `spec.containers[0].image`.
pub(super) fn path_at(bytes: &[u8], at: usize) -> String {
    enum Level {
        Object(String),
        Array(usize),
    }
    let mut stack: Vec<Level> = Vec::new();
    let (mut i, mut key_next) = (0, false);
    while i < bytes.len() && i <= at {
        match bytes[i] {
            b'{' => {
                stack.push(Level::Object(String::new()));
                key_next = true;
            }
            b'[' => {
                stack.push(Level::Array(0));
                key_next = false;
            }
            b'}' | b']' => {
                // The parser reports a value at its end: the path is that of the value just closed.
                if i == at {
                    break;
                }
                stack.pop();
                key_next = false;
            }
            b',' => match stack.last_mut() {
                Some(Level::Array(n)) => *n += 1,
                _ => key_next = true,
            },
            b'"' => {
                let start = i + 1;
                i += 1;
                while i < bytes.len() && bytes[i] != b'"' {
                    i += 1 + usize::from(bytes[i] == b'\\');
                }
                if key_next {
                    let text = String::from_utf8_lossy(&bytes[start..i.min(bytes.len())]);
                    if let Some(Level::Object(key)) = stack.last_mut() {
                        *key = text.into_owned();
                    }
                    key_next = false;
                }
            }
            _ => {}
        }
        i += 1;
    }
    let mut path = String::new();
    for level in stack {
        match level {
            Level::Object(key) if key.is_empty() => {}
            Level::Object(key) => {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(&key);
            }
            Level::Array(n) => path.push_str(&format!("[{n}]")),
        }
    }
    path
}
