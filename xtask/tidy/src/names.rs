//! Counts of names and signatures that cost a reader time, each with a limit that only falls.
//!
//! Input: every Rust file that git knows. Output: a failure for a count over its limit, a line for
//! one below it, whose limit is to be lowered. Bounds: one pass over the sources, by text.
//!
//! - An error that is a `String` cannot be matched on, and its remedy cannot be looked up.
//! - A function named like a question that acts or returns something else is read wrongly.
//! - A parameter that is a tuple lets two values of one type be swapped.
//! - A type name that is used three times does not lead a search to its type.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::repository;
use crate::shell::capture;

/// Results whose error is a `String`.
const STRING_ERRORS_MAX: usize = 15;
/// Functions named `is_`, `has_` or `can_` that return no `bool`.
const WRONG_QUESTIONS_MAX: usize = 0;
/// Parameters that are tuples.
const TUPLE_PARAMETERS_MAX: usize = 0;
/// Type names that are defined `SAME_NAMES` times or more.
const SHARED_NAMES_MAX: usize = 6;
/// Definitions of one name from which it counts.
const SAME_NAMES: usize = 3;
/// Names that mean the same in every module.
const COMMON_NAMES: [&str; 6] = ["Args", "Config", "Error", "Options", "Settings", "State"];

/// Fails when a count is over its limit; prints the counts that are below.
pub(super) fn check() -> Result<()> {
    let mut list = Command::new("git");
    list.args(["ls-files", "*.rs"]).current_dir(repository());
    let (mut string_errors, mut questions, mut tuples) = (0, 0, 0);
    let mut types = BTreeMap::new();
    for name in capture(&mut list)?.lines() {
        let Ok(text) = fs::read_to_string(repository().join(name)) else { continue };
        string_errors += count_string_errors(&text);
        questions += count_wrong_questions(&text);
        tuples += count_tuple_parameters(&text);
        text.lines().filter_map(type_name).for_each(|name| {
            *types.entry(name.to_owned()).or_insert(0_usize) += 1;
        });
    }
    types.retain(|name, count| *count >= SAME_NAMES && !COMMON_NAMES.contains(&name.as_str()));
    let counts = [
        ("results with a String as error", string_errors, STRING_ERRORS_MAX),
        ("functions named is_, has_ or can_ without a bool", questions, WRONG_QUESTIONS_MAX),
        ("parameters that are tuples", tuples, TUPLE_PARAMETERS_MAX),
        ("type names defined three times or more", types.len(), SHARED_NAMES_MAX),
    ];
    for (what, count, limit) in counts {
        ensure!(count <= limit, "{count} {what}: the limit is {limit}");
        if count < limit {
            println!("soft  {count} {what}: lower the limit of {limit}");
        }
    }
    Ok(())
}

/// The results in a text whose error is a `String`.
fn count_string_errors(text: &str) -> usize {
    let ends = text.match_indices("Result<").map(|(at, head)| &text[at + head.len()..]);
    ends.filter(|rest| last_argument(rest).is_some_and(|last| last == "String")).count()
}

/// The last of several generic arguments, given the text after `<`.
fn last_argument(text: &str) -> Option<&str> {
    let (mut depth, mut begin, mut before) = (0_usize, None, ' ');
    for (at, letter) in text.char_indices() {
        match letter {
            '<' | '(' | '[' => depth += 1,
            '>' if before == '-' => {}
            '>' if depth == 0 => {
                return begin.map(|begin: usize| text[begin..at].trim().trim_end_matches(','));
            }
            '>' | ')' | ']' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 && !text[at + 1..].trim_start().starts_with('>') => {
                begin = Some(at + 1);
            }
            '{' | '}' | ';' => return None,
            _ => {}
        }
        before = letter;
    }
    None
}

/// The functions in a text that are named like a question and return no `bool`.
fn count_wrong_questions(text: &str) -> usize {
    let is_question = |rest: &str| ["is_", "has_", "can_"].iter().any(|one| rest.starts_with(one));
    let heads = text.match_indices("fn ").map(|(at, word)| &text[at + word.len()..]);
    heads.filter(|rest| is_question(rest) && !returned(rest).contains("bool")).count()
}

/// What a function returns, given the text after `fn`.
fn returned(text: &str) -> &str {
    let mut depth = 0_usize;
    let after_parameters = |letter: char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ')' && depth == 0
    };
    let Some(at) = text.find(after_parameters) else { return "" };
    let rest = &text[at..];
    &rest[..rest.find(['{', ';']).unwrap_or(rest.len())]
}

/// The parameters in a text with a pattern and a type that are tuples.
fn count_tuple_parameters(text: &str) -> usize {
    let is_name = |name: &str| name.trim().chars().all(|c| c.is_alphanumeric() || c == '_');
    let is_tuple = |(at, _): &(usize, &str)| {
        let head = &text[..*at];
        let Some(open) = head.rfind('(') else { return false };
        let names = &head[open + 1..];
        names.contains(',')
            && names.split(',').all(is_name)
            && head[..open].trim_end().ends_with(['(', ','])
    };
    text.match_indices("): (").filter(is_tuple).count()
}

/// The name of the type that a line defines.
fn type_name(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let code = match code.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => code,
    };
    let rest = ["struct ", "enum ", "trait "].iter().find_map(|word| code.strip_prefix(word))?;
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    name.starts_with(|c: char| c.is_ascii_uppercase()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn string_errors_are_counted_through_generics_and_lines() {
        // Put together here, or this file would count its own test.
        let text = "fn a() -> R<Vec<(u8, u8)>, String>;\ntype B = R<\n    (),\n    String,\n>;\n\
                    fn c() -> R<String, E>;\nfn d(f: impl Fn() -> R<T, String>) {}\n";
        assert_eq!(count_string_errors(&text.replace("R<", "Result<")), 3);
    }

    #[test]
    fn questions_return_a_bool() {
        // Put together here, or this file would count its own test.
        let text = "F is_a(f: impl Xn(u8)) -> bool {}\nF has_b(&self) {}\nF can_c(\n    &self,\n) -> \
                    Result<bool>;\nF is_d() -> u8;\nF isolate() {}\n";
        assert_eq!(count_wrong_questions(&text.replace('F', "fn")), 2);
    }

    #[test]
    fn tuple_parameters_are_counted_and_tuple_types_are_not() {
        // Put together here, or this file would count its own test.
        let pair = [")", ": (u8, u8)"].concat();
        let text = format!(
            "fn a((b, c{pair}, d: (u8, u8)) {{}}\nfn e(\n    f: u8,\n    (g, h{pair},\n) {{}}\n\
             let (a, b{pair} = x;\n"
        );
        assert_eq!(count_tuple_parameters(&text), 2);
    }

    #[test]
    fn type_names_are_read_at_any_visibility() {
        let lines =
            ["pub(super) struct Pod<T> {", "    enum Kind {", "pub trait Read: A {", "let x;"];
        assert_eq!(lines.map(type_name), [Some("Pod"), Some("Kind"), Some("Read"), None]);
    }
}
