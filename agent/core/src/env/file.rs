//! Files of variables for `fileKeyRef`: `NAME='value'` lines.
//!
//! Input: the file's lines, one after the other, and names. Output: their values, `None` where the
//! file has none. The grammar is a strict subset of the shell's: values in single quotes only, over
//! several lines if need be, nothing expanded. A line outside of it is an error, so that a typo is
//! not taken for an empty value. Pure; holds one line and the values that are wanted.

use std::collections::{BTreeMap, BTreeSet};

/// Longest line, as Go's scanner has it.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// A file that breaks the grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid environment variable format at line {line}: {problem}")]
pub struct EnvFileError {
    /// Line, from 1.
    pub line: usize,
    /// The error in that line.
    pub problem: &'static str,
}

/// The values that a file has for the requested names; `None` if the file has no such variable. A
/// name is absent if a line before it is wrong or cannot be read.
pub type Values = BTreeMap<String, Option<String>>;

/// The values of `keys` in one pass from the top; lines below the last of them are not read. Also
/// returns the first wrong line, if one is met. A line that cannot be read is an `Err` with why.
// k8s: pkg/kubelet/util/env/env_util.go ParseEnv
pub fn values_of(
    lines: impl IntoIterator<Item = Result<String, &'static str>>,
    keys: &BTreeSet<String>,
) -> (Values, Option<EnvFileError>) {
    let mut values = Values::new();
    let mut lines = NumberedLines { inner: lines.into_iter(), line: 0 };
    while values.len() < keys.len() {
        match next_variable(&mut lines) {
            Ok(Some((name, value))) => {
                if keys.contains(&name) {
                    values.entry(name).or_insert(value);
                }
            }
            Ok(None) => {
                keys.iter().for_each(|key| _ = values.entry(key.clone()).or_insert(None));
            }
            Err(error) => return (values, Some(error)),
        }
    }
    (values, None)
}

/// Lines with their numbers.
struct NumberedLines<I> {
    inner: I,
    /// Number of the last one, from 1.
    line: usize,
}

impl<I: Iterator<Item = Result<String, &'static str>>> NumberedLines<I> {
    fn next(&mut self) -> Result<Option<String>, EnvFileError> {
        let Some(read) = self.inner.next() else { return Ok(None) };
        self.line += 1;
        let content = read.map_err(|problem| self.error(problem))?;
        match content.len() < LINE_BYTES_MAX {
            true => Ok(Some(content)),
            false => Err(self.error("bufio.Scanner: token too long")),
        }
    }

    fn error(&self, problem: &'static str) -> EnvFileError {
        EnvFileError { line: self.line, problem }
    }
}

/// The next variable and its value; `None` is the end of the file.
fn next_variable<I: Iterator<Item = Result<String, &'static str>>>(
    lines: &mut NumberedLines<I>,
) -> Result<Option<(String, Option<String>)>, EnvFileError> {
    while let Some(content) = lines.next()? {
        let content = content.trim_start_matches([' ', '\t']);
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let (name, value) = content.split_once('=').ok_or_else(|| lines.error("missing '='"))?;
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return Err(lines.error("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(lines.error("whitespace before '=' is not allowed"));
        }
        if value.starts_with([' ', '\t']) {
            // As in the shell, `A= 'b'` sets nothing to A.
            return Ok(Some((name.to_owned(), None)));
        }
        let quoted = value.strip_prefix('\'');
        let quoted =
            quoted.ok_or_else(|| lines.error("value must be enclosed in single quotes"))?;
        let found = read_quoted(quoted, lines)?;
        return Ok(Some((name.to_owned(), Some(found).filter(|value| !value.is_empty()))));
    }
    Ok(None)
}

fn read_quoted<I: Iterator<Item = Result<String, &'static str>>>(
    first: &str,
    lines: &mut NumberedLines<I>,
) -> Result<String, EnvFileError> {
    let unclosed = lines.error("unclosed single quote");
    let mut rest = first.to_owned();
    let mut value = String::new();
    loop {
        if let Some((inside, after)) = rest.split_once('\'') {
            value.push_str(inside);
            let after = after.trim_start_matches([' ', '\t']);
            if !after.is_empty() && !after.starts_with('#') {
                return Err(lines.error("unexpected content after closing quote"));
            }
            return Ok(value);
        }
        value.push_str(&rest);
        value.push('\n');
        rest = lines.next()?.ok_or_else(|| unclosed.clone())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn value_of(text: &str, key: &str) -> Result<Option<String>, EnvFileError> {
        let keys = BTreeSet::from([key.to_owned()]);
        let (mut values, error) = values_of(text.lines().map(|line| Ok(line.to_owned())), &keys);
        values.remove(key).ok_or_else(|| error.expect("why it was not looked for"))
    }

    #[test]
    fn values_are_taken_literally_between_single_quotes() {
        let text = "# c\n\n  A='one' # x\nB='$(A) \"q\" = '\n\
            C='two\n# not a comment\nlines'\nD= 'no'\nE=''\n";
        for (key, want) in [
            ("A", Some("one")),
            ("B", Some("$(A) \"q\" = ")),
            ("C", Some("two\n# not a comment\nlines")),
            ("D", None),
            ("E", None),
            ("F", None),
        ] {
            assert_eq!(value_of(text, key), Ok(want.map(str::to_owned)), "{key}");
        }
    }

    #[test]
    fn a_line_outside_the_grammar_is_named() {
        for (text, line, problem) in [
            ("A='x'\nB", 2, "missing '='"),
            ("='x'", 1, "empty variable name"),
            ("A ='x'", 1, "whitespace before '=' is not allowed"),
            ("A=x", 1, "value must be enclosed in single quotes"),
            ("A='x' y", 1, "unexpected content after closing quote"),
            ("B='a'\nA='x\ny", 2, "unclosed single quote"),
        ] {
            assert_eq!(value_of(text, "Z"), Err(EnvFileError { line, problem }), "{text}");
        }
        assert_eq!(value_of("A='x'\nbroken", "A"), Ok(Some("x".to_owned())));
    }

    #[test]
    fn a_key_beyond_64_kib_is_found_and_a_line_of_that_length_is_refused() {
        let many: String = (0..8000).map(|n| format!("KEY{n}='value'\n")).collect();
        assert!(many.len() > 64 << 10);
        assert_eq!(value_of(&format!("{many}LAST='x'\n"), "LAST"), Ok(Some("x".to_owned())));
        let long = format!("A='x'\nLONG='{}'\n", "y".repeat(LINE_BYTES_MAX));
        assert_eq!(value_of(&long, "A"), Ok(Some("x".to_owned())), "what stands before counts");
        let error = value_of(&long, "LONG").expect_err("refused");
        assert_eq!(error.line, 2);
    }

    #[test]
    fn requested_keys_are_found_in_one_pass_up_to_the_first_invalid_line() {
        let lines = ["A='x'", "B= 'no'", "A='later'", "C='", "y'", "wrong", "D='z'"];
        let read = std::cell::Cell::new(0);
        let ask = |keys: &[&str]| {
            read.set(0);
            let keys = keys.iter().map(|key| (*key).to_owned()).collect();
            let lines = lines.iter().inspect(|_| read.set(read.get() + 1));
            values_of(lines.map(|line| Ok((*line).to_owned())), &keys)
        };
        let (found, error) = ask(&["A", "B", "C"]);
        assert_eq!(error, None, "what stands below is not read");
        assert_eq!(read.get(), 5);
        let says = |key: &str| found[key].as_deref();
        assert_eq!((says("A"), says("B"), says("C")), (Some("x"), None, Some("\ny")));
        let (found, error) = ask(&["A", "D"]);
        assert_eq!(found, Values::from([("A".to_owned(), Some("x".to_owned()))]));
        assert_eq!(error.map(|error| error.line), Some(6));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[A='# \n\t$]{0,80}") {
            let _ = value_of(&text, "A");
        }
    }
}
