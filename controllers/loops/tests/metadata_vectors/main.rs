//! Syncs of controllers that read the metadata of every kind, as upstream's own do them and as
//! ours.
//!
//! Input: answers of upstream's functions, one a line, a file or a sample that is checked in. A
//! line has the objects of a cluster and what one sync wrote. Output: the differences, of which
//! none is expected.

mod collector;
mod namespace;
mod quota;

use serde_json::Value;

/// Differences that are worth printing.
const SHOWN: usize = 6;

/// The lines of the file that a variable names, or those of the sample.
fn lines(variable: &str, sample: &str) -> Vec<Value> {
    let given = std::env::var_os(variable);
    let given = given.map(|path| std::fs::read_to_string(path).expect("the file is there"));
    let text = given.as_deref().unwrap_or(sample);
    text.lines().map(|line| serde_json::from_str(line).expect("an answer")).collect()
}

/// Compares every line; `compare` says what differs.
fn check(lines: &[Value], compare: impl Fn(&Value) -> Option<String>) {
    let differences = lines.iter().enumerate().filter_map(|(at, line)| {
        let difference = compare(line)?;
        Some(format!("line {}: {difference}", at + 1))
    });
    let differences: Vec<_> = differences.collect();
    println!("{} lines, {} differences", lines.len(), differences.len());
    let shown = &differences[..differences.len().min(SHOWN)];
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}
