//! Flaws of an object: the field's path, and a message in the words of the API server.
//!
//! Input: flaws that the checks of this folder find. Output: `Flaw`s. Pure. Bounds: `FLAWS_MAX` an
//! object are kept, more are counted; `ECHO_CHARS_MAX` of a value are repeated. A path becomes text
//! only for a flaw, because most fields of a dump are valid.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/field/errors.go

use std::fmt::{self, Display, Formatter};

/// Flaws of one object that are kept.
const FLAWS_MAX: usize = 10;
/// Characters of a value that a message repeats.
pub(in crate::simulate) const ECHO_CHARS_MAX: usize = 64;

/// A field, and the problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::simulate) struct Flaw {
    /// As `spec.containers[0].ports[1].protocol`.
    pub(in crate::simulate) field: String,
    /// As `Required value`.
    pub(in crate::simulate) problem: String,
}

/// The path of a field.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    part: FlawPart<'a>,
}

#[derive(Clone, Copy, Debug)]
enum FlawPart<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub(super) fn root(field: &'a str) -> Self {
        Self { parent: None, part: FlawPart::Field(field) }
    }

    pub(super) fn child(&'a self, field: &'a str) -> Self {
        Self { parent: Some(self), part: FlawPart::Field(field) }
    }

    pub(super) fn index(&'a self, at: usize) -> Self {
        Self { parent: Some(self), part: FlawPart::Index(at) }
    }

    pub(super) fn key(&'a self, key: &'a str) -> Self {
        Self { parent: Some(self), part: FlawPart::Key(key) }
    }
}

impl Display for Path<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(out, "{parent}")?;
        }
        match self.part {
            FlawPart::Field(name) if self.parent.is_none() => out.write_str(name),
            FlawPart::Field(name) => write!(out, ".{name}"),
            FlawPart::Index(at) => write!(out, "[{at}]"),
            FlawPart::Key(key) => write!(out, "[{}]", cut(key)),
        }
    }
}

/// Flaws of one object.
#[derive(Debug, Default)]
pub(in crate::simulate) struct Flaws {
    /// The first ones.
    pub(in crate::simulate) found: Vec<Flaw>,
    /// Number of further flaws.
    pub(in crate::simulate) left: usize,
}

impl Flaws {
    fn add(&mut self, path: &Path<'_>, problem: impl FnOnce() -> String) {
        if self.found.len() == FLAWS_MAX {
            self.left += 1;
            return;
        }
        self.found.push(Flaw { field: path.to_string(), problem: problem() });
    }

    pub(super) fn required(&mut self, path: &Path<'_>, why: &str) {
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        self.add(path, || format!("Required value{why}"));
    }

    pub(super) fn invalid(&mut self, path: &Path<'_>, value: &str, why: impl Display) {
        self.add(path, || format!("Invalid value: {}: {why}", quoted(value)));
    }

    pub(super) fn out_of_range(&mut self, path: &Path<'_>, value: i64, why: &str) {
        self.add(path, || format!("Invalid value: {value}: {why}"));
    }

    pub(super) fn forbidden(&mut self, path: &Path<'_>, why: &str) {
        self.add(path, || format!("Forbidden: {why}"));
    }

    pub(super) fn duplicate(&mut self, path: &Path<'_>, value: &str) {
        self.add(path, || format!("Duplicate value: {}", quoted(value)));
    }

    /// Checks that the value is one of these.
    pub(super) fn one_of(&mut self, path: &Path<'_>, value: &str, all: &[&str]) {
        if all.contains(&value) {
            return;
        }
        self.add(path, || {
            let all: Vec<String> = all.iter().map(|one| format!("{one:?}")).collect();
            let all = all.join(", ");
            format!("Unsupported value: {}: supported values: {all}", quoted(value))
        });
    }

    /// The same for an optional field.
    pub(super) fn one_of_given(&mut self, path: &Path<'_>, value: Option<&str>, all: &[&str]) {
        if let Some(value) = value {
            self.one_of(path, value, all);
        }
    }

    /// Checks a text with a function that returns the problem.
    pub(super) fn text(
        &mut self,
        path: &Path<'_>,
        value: &str,
        mistake: impl FnOnce(&str) -> Option<&'static str>,
    ) {
        if let Some(why) = mistake(value) {
            self.invalid(path, value, why);
        }
    }
}

fn quoted(value: &str) -> String {
    let shown = cut(value);
    match shown.len() == value.len() {
        true => format!("{shown:?}"),
        false => format!("{shown:?}.. ({} bytes)", value.len()),
    }
}

/// Returns the part of a value that a message quotes.
pub(in crate::simulate) fn cut(value: &str) -> &str {
    match value.char_indices().nth(ECHO_CHARS_MAX) {
        Some((end, _)) => &value[..end],
        None => value,
    }
}

/// Shortens the values quoted in an error message of another library.
pub(in crate::simulate) fn cut_quotes(message: &str) -> String {
    let mut shown = String::with_capacity(message.len().min(512));
    let (mut quote, mut length, mut is_escaped) = (None, 0, false);
    for c in message.chars() {
        match quote {
            None => {
                if matches!(c, '"' | '`') {
                    (quote, length) = (Some(c), 0);
                }
                shown.push(c);
            }
            Some(end) if c == end && !is_escaped => {
                quote = None;
                shown.push(c);
                if length > ECHO_CHARS_MAX {
                    shown.push_str("..");
                }
            }
            Some(_) => {
                length += 1;
                if length <= ECHO_CHARS_MAX {
                    shown.push(c);
                }
            }
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_written_as_the_api_server_writes_it() {
        let spec = Path::root("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        let resources = first.child("resources");
        let requests = resources.child("requests");
        let path = requests.key("a.b/gpu");
        assert_eq!(path.to_string(), "spec.containers[0].resources.requests[a.b/gpu]");
    }

    #[test]
    fn values_are_cut_at_64_characters_and_flaws_are_counted() {
        let mut flaws = Flaws::default();
        let long = "\u{e4}".repeat(65);
        flaws.invalid(&Path::root("a"), &long, "is long");
        let shown = format!("Invalid value: {:?}.. (130 bytes): is long", "\u{e4}".repeat(64));
        assert_eq!(flaws.found[0].problem, shown);
        (0..11).for_each(|_| flaws.required(&Path::root("b"), ""));
        assert_eq!((flaws.found.len(), flaws.left), (10, 2));
        let message = format!("invalid type: string \"{}\", expected i32", "x".repeat(65));
        let cut = format!("invalid type: string \"{}\".., expected i32", "x".repeat(64));
        assert_eq!(cut_quotes(&message), cut);
        assert_eq!(cut_quotes(r#"a "b\"c" d"#), r#"a "b\"c" d"#);
    }
}
