//! The measurable part of the style, printed where a file is over it.
//!
//! Production lines of a file (its inline tests do not count) and of a function, number of
//! parameters and fields, a header in each file, folder depth, unwanted words. Soft limits are
//! printed, hard ones fail. It reads formatted source by lines, not by grammar: rustfmt puts a
//! function's end on a line of its own with the indent of its beginning, and that is enough.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::repository;
use crate::shell::capture;

const FILE_LINES: Limit = Limit { what: "lines in the file", soft: 400, hard: 600 };
const FN_LINES: Limit = Limit { what: "lines in the function", soft: 40, hard: 70 };
const PARAMETERS: Limit = Limit { what: "parameters", soft: 5, hard: usize::MAX };
const FIELDS: Limit = Limit { what: "fields", soft: 20, hard: 20 };
const COLUMNS: Limit = Limit { what: "columns", soft: 100, hard: 120 };
/// Folders below a crate's `src`.
const DEPTH: Limit = Limit { what: "levels of modules", soft: 3, hard: 3 };
/// The header says in this many lines what the file is; a longer one belongs into docs/.
const HEADER_LINES: Limit = Limit { what: "lines of header", soft: 25, hard: usize::MAX };
/// Endings of type names that carry no meaning.
const EMPTY_NAMES: [&str; 4] = ["Manager", "Helper", "Util", "Utils"];

/// Files with a function that is one list, an entry a line, which no split would make clearer.
const LISTS: [&str; 1] = ["agent/config/src/defaults.rs"];

/// Files whose structs may have more fields: flags and configuration files of users, and the world
/// of a test.
const WIDE_STRUCTS: [&str; 3] = [
    "agent/config/src/node_flags.rs",
    "agent/config/src/types.rs",
    "scheduler/core/src/cycle/worlds.rs",
];

/// One excess over a limit.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    is_hard: bool,
    line: usize,
    text: String,
}

/// Checks every Rust file that git knows.
pub(super) fn check() -> Result<ExitCode> {
    let mut list = Command::new("git");
    list.args(["ls-files", "*.rs"]).current_dir(repository());
    let (mut hard, mut soft) = (0, 0);
    for name in capture(&mut list)?.lines() {
        let Ok(text) = fs::read_to_string(repository().join(name)) else { continue };
        for finding in findings(Path::new(name), &text) {
            let kind = if finding.is_hard { "OVER" } else { "soft" };
            println!("{kind}  {name}:{}  {}", finding.line, finding.text);
            *(if finding.is_hard { &mut hard } else { &mut soft }) += 1;
        }
    }
    println!("{hard} over a hard limit, {soft} over a soft one");
    Ok(if hard == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn findings(path: &Path, text: &str) -> Vec<Finding> {
    let all: Vec<&str> = text.lines().collect();
    let is_generated = path.file_stem().is_some_and(|s| s.to_string_lossy().contains("generated"));
    if is_generated {
        return Vec::new();
    }
    let production = &all[..production_lines(path, &all)];
    let mut found = Vec::new();
    FILE_LINES.check(&mut found, 1, production.len());
    header(&mut found, &all);
    depth(&mut found, path);
    if !LISTS.iter().any(|list| path == Path::new(list)) {
        functions(&mut found, production);
    }
    if !WIDE_STRUCTS.iter().any(|wide| path == Path::new(wide)) {
        structs(&mut found, production);
    }
    for (at, line) in all.iter().enumerate() {
        words(&mut found, at + 1, line);
        let columns = line.chars().count();
        COLUMNS.check(&mut found, at + 1, columns);
    }
    justified(&mut found, production);
    found
}

/// Lines before the inline tests; none of a file that is a test as a whole.
fn production_lines(path: &Path, lines: &[&str]) -> usize {
    let is_test = path.components().any(|c| c.as_os_str() == "tests")
        || path.file_stem().is_some_and(|n| is_test_file(&n.to_string_lossy()));
    let inline = lines
        .windows(2)
        .position(|w| w[0] == "#[cfg(test)]" && w[1].starts_with("mod ") && w[1].ends_with('{'));
    if is_test { 0 } else { inline.unwrap_or(lines.len()) }
}

/// Tests in files of their own, beside the code that they test.
fn is_test_file(stem: &str) -> bool {
    stem == "tests" || stem.ends_with("_tests")
}

/// A measure, and how much of it is too much.
struct Limit {
    what: &'static str,
    soft: usize,
    hard: usize,
}

impl Limit {
    fn check(&self, found: &mut Vec<Finding>, line: usize, value: usize) {
        if value > self.soft {
            let is_hard = value > self.hard;
            let bound = if is_hard { self.hard } else { self.soft };
            let text = format!("{value} {} (limit {bound})", self.what);
            found.push(Finding { is_hard, line, text });
        }
    }
}

fn header(found: &mut Vec<Finding>, lines: &[&str]) {
    let length = lines.iter().take_while(|l| l.starts_with("//!")).count();
    if length == 0 {
        let text = "no //! header: what is it, and why?".to_owned();
        found.push(Finding { is_hard: true, line: 1, text });
    }
    HEADER_LINES.check(found, 1, length);
}

fn depth(found: &mut Vec<Finding>, path: &Path) {
    let names: Vec<_> = path.components().map(|c| c.as_os_str()).collect();
    let Some(src) = names.iter().position(|n| *n == "src") else { return };
    let is_mod = names.last().is_some_and(|n| *n == "mod.rs");
    let levels = names.len() - src - 1 - usize::from(is_mod);
    DEPTH.check(found, 1, levels);
}

fn functions(found: &mut Vec<Finding>, lines: &[&str]) {
    let mut at = 0;
    while at < lines.len() {
        let Some(indent) = function_indent(lines[at]) else {
            at += 1;
            continue;
        };
        let end = format!("{}}}", " ".repeat(indent));
        // A body on one line, or a declaration without one, ends where it begins.
        let one_line = lines[at].ends_with('}') || lines[at].ends_with(';');
        let rest = lines[at..].iter().position(|l| *l == end || *l == format!("{end},"));
        let length = if one_line { 1 } else { rest.map_or(1, |r| r + 1) };
        FN_LINES.check(found, at + 1, length);
        let signature = signature(&lines[at..]);
        let count = parameters(&signature);
        PARAMETERS.check(found, at + 1, count);
        at += 1;
    }
}

fn structs(found: &mut Vec<Finding>, lines: &[&str]) {
    for (at, line) in lines.iter().enumerate() {
        let (code, indent) = unqualified(line);
        if !code.starts_with("struct ") {
            continue;
        }
        // A struct ends with the first `}` or `;` at its own indent.
        let is_end = |l: &&str| unqualified(l).1 == indent && l.ends_with(['}', ';']);
        let rest = lines[at..].iter().take_while(|l| !is_end(l));
        let count = rest.filter(|l| is_field(l, indent + 4)).count();
        FIELDS.check(found, at + 1, count);
    }
}

/// Returns true if the line begins a named field at this indent.
fn is_field(line: &str, at: usize) -> bool {
    let (code, indent) = unqualified(line);
    let name = code.split_once(": ").map_or("", |(name, _)| name);
    let is_name = |c: char| c.is_alphanumeric() || c == '_' || c == '#';
    indent == at && !name.is_empty() && name.chars().all(is_name)
}

/// The indent of a line that begins a function.
fn function_indent(line: &str) -> Option<usize> {
    let (code, indent) = unqualified(line);
    (code.starts_with("fn ") && code.contains('(')).then_some(indent)
}

/// Returns the line without its indent and qualifiers, and the indent.
fn unqualified(line: &str) -> (&str, usize) {
    let mut code = line.trim_start();
    let indent = line.len() - code.len();
    for qualifier in ["pub(crate) ", "pub(super) ", "pub ", "const ", "async ", "unsafe "] {
        code = code.strip_prefix(qualifier).unwrap_or(code);
    }
    (code, indent)
}

/// From `fn` to the end of the parameter list.
fn signature(lines: &[&str]) -> String {
    let mut text = String::new();
    let mut open = 0i32;
    for line in lines {
        // The visibility `pub(crate)` is no parameter list.
        let from = if text.is_empty() { line.find("fn ").unwrap_or(0) } else { 0 };
        for c in line[from..].chars() {
            open += i32::from(c == '(') - i32::from(c == ')');
            text.push(c);
            if c == ')' && open == 0 {
                return text;
            }
        }
    }
    text
}

/// Parameters besides `self`.
fn parameters(signature: &str) -> usize {
    let list = signature.split_once('(').map_or("", |(_, l)| l).trim_end_matches(')');
    let mut depth = 0i32;
    let mut parts = vec![String::new()];
    let mut before = ' ';
    for c in list.chars() {
        depth += i32::from("(<[".contains(c)) - i32::from(")]".contains(c));
        // The arrow of a closure's type closes nothing.
        depth -= i32::from(c == '>' && before != '-');
        if c == ',' && depth == 0 {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
        before = c;
    }
    let parts = parts.iter().map(|p| p.trim()).filter(|p| !p.is_empty());
    parts.filter(|p| p.trim_start_matches(['&', ' ']).trim_start_matches("mut ") != "self").count()
}

fn words(found: &mut Vec<Finding>, line: usize, text: &str) {
    let mut add = |text: String| found.push(Finding { is_hard: true, line, text });
    // Spelled in two halves, or this file would find itself.
    for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X:")] {
        if text.contains(word) {
            add(format!("{word}: do it, or say in docs/STATUS.md that it is not done"));
        }
    }
    let name = ["struct ", "enum ", "trait "].iter().find_map(|k| text.split_once(k));
    let Some((before, after)) = name else { return };
    let is_declaration = before.trim().is_empty() || before.trim_start().starts_with("pub");
    let name: String = after.chars().take_while(|c| c.is_alphanumeric()).collect();
    if let (true, Some(word)) = (is_declaration, EMPTY_NAMES.iter().find(|w| name.ends_with(*w))) {
        add(format!("{name}: `{word}` says nothing; name what it is"));
    }
}

/// Each unsafe block says why it is sound in the lines above it.
fn justified(found: &mut Vec<Finding>, lines: &[&str]) {
    const ABOVE: usize = 8;
    for (at, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        // In two halves, for the same reason as above.
        if ![concat!("unsafe", " {"), concat!("unsafe", " impl")].iter().any(|u| code.contains(u)) {
            continue;
        }
        let said = lines[at.saturating_sub(ABOVE)..=at].iter().any(|l| l.contains("SAFETY:"));
        if !said {
            let text = "unsafe without // SAFETY:".to_owned();
            found.push(Finding { is_hard: true, line: at + 1, text });
        }
    }
}

/// The messages of one file's report; used by the tests.
#[cfg(test)]
fn texts(path: &str, text: &str) -> Vec<String> {
    findings(Path::new(path), text).into_iter().map(|f| f.text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_function_is_found_and_a_short_one_beside_it_is_not() {
        let body = "    x();\n".repeat(FN_LINES.hard);
        let text =
            format!("//! h\nfn short() {{\n    x();\n}}\n\npub(crate) fn long() {{\n{body}}}\n");
        assert_eq!(texts("a/src/a.rs", &text), ["72 lines in the function (limit 70)"]);
    }

    #[test]
    fn inline_tests_do_not_count_as_production_lines() {
        let test = "    x();\n".repeat(FILE_LINES.hard + 1);
        let text = format!("//! h\n\n#[cfg(test)]\nmod tests {{\n{test}}}\n");
        assert_eq!(texts("a/src/a.rs", &text), [""; 0]);
        let text = format!("//! h\n{}", "x();\n".repeat(FILE_LINES.hard));
        assert_eq!(texts("a/src/a.rs", &text), ["601 lines in the file (limit 600)"]);
    }

    #[test]
    fn parameters_are_counted_without_self_and_through_generics() {
        let cases = [
            ("fn a(&self, x: u8)", 1),
            ("fn b(f: impl Fn(u8, u8) -> u8, m: BTreeMap<String, (u8, u8)>)", 2),
            ("fn c()", 0),
            ("fn d(&mut self)", 0),
        ];
        for (text, count) in cases {
            assert_eq!(parameters(&signature(&[text])), count, "{text}");
        }
    }

    #[test]
    fn a_missing_header_an_empty_name_and_bare_unsafe_are_found() {
        let text = "pub struct PodManager;\nfn f() {\n    unsafe { g() }\n}\n";
        let found = texts("a/src/a.rs", text);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn struct_with_too_many_fields_is_found_unless_its_file_is_listed() {
        let wide = (0..21).map(|n| format!("    /// Port: a number.\n    pub f{n}: u8,\n"));
        let text = format!("//! h\npub struct A {{\n{}}}\n", wide.collect::<String>());
        assert_eq!(texts("a/src/a.rs", &text), ["21 fields (limit 20)"]);
        assert_eq!(texts("a/tests/a.rs", &text), [""; 0]);
        assert_eq!(texts(WIDE_STRUCTS[0], &text), [""; 0]);
        let text = text.replace("    pub f20: u8,\n", "");
        assert_eq!(texts("a/src/a.rs", &format!("{text}struct B(u8);\n{text}")), [""; 0]);
    }

    #[test]
    fn modules_deeper_than_the_limit_are_found() {
        assert_eq!(texts("a/src/b/c/d/e.rs", "//! h\n"), ["4 levels of modules (limit 3)"]);
        assert_eq!(texts("a/src/b/c/mod.rs", "//! h\n"), [""; 0]);
    }
}
