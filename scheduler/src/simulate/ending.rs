//! Truncated dumps: error messages of kubectl at the start or end of a file.
//!
//! Input: the text of a file. Output: an error line in it. Pure. Such a line appears if standard
//! error was redirected into the dump; otherwise the text just ends, which the JSON or YAML parser
//! detects.

use super::valid::flaws::cut;

/// Beginnings of error messages of kubectl and shells.
const BEGINNINGS: [&str; 6] = [
    "Error from server",
    "error: ",
    "Error: ",
    "Unable to connect to the server",
    "The connection to the server",
    "error when ",
];

/// Returns a line with an error, and its number, from 1.
pub(super) fn error_line(text: &str) -> Option<(usize, &str)> {
    let mut lines = text.lines().enumerate();
    lines.find_map(|(at, line)| is_error(line).then_some((at + 1, line)))
}

fn is_error(line: &str) -> bool {
    BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)) || is_logged(line)
}

/// Returns true for a line of klog: severity letter, month and day, time, process, file and line.
fn is_logged(line: &str) -> bool {
    let bytes = line.as_bytes();
    bytes.len() > 24
        && matches!(bytes[0], b'W' | b'E' | b'F')
        && bytes[1..5].iter().all(u8::is_ascii_digit)
        && bytes[5] == b' '
        && line.contains("] ")
}

/// Returns the message about such a line.
pub(super) fn sentence(line: &str) -> String {
    let shown = cut(line.trim());
    let more = if shown.len() < line.trim().len() { ".." } else { "" };
    format!("holds an error message, {shown:?}{more}: the dump was cut; make it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubectl_messages_are_distinguished_from_objects() {
        for line in [
            "Error from server (Forbidden): nodes is forbidden",
            "error: the server doesn't have a resource type \"podz\"",
            "Unable to connect to the server: dial tcp 10.0.0.1:443: i/o timeout",
            "E1128 00:49:52.123456    1234 memcache.go:265] couldn't get current server API group",
        ] {
            assert_eq!(error_line(&format!("kind: Pod\n{line}\n")), Some((2, line)), "{line}");
        }
        for line in
            ["kind: Error", "  error: no", "E0: 1", "E1128: a word that is only a key of a mapping"]
        {
            assert_eq!(error_line(line), None, "{line}");
        }
    }
}
