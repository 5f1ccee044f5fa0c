//! Files of variables for `fileKeyRef`: `NAME='value'` lines.
//!
//! Input: the file's text and a name. Output: its value, `None` when the file has none. The
//! grammar is a strict subset of the shell's: values in single quotes only, over several lines if
//! need be, nothing expanded. A line outside of it is an error, so that a typo is not taken for
//! an empty value. Pure.

/// Longest line, as Go's scanner has it.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A file that breaks the grammar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid environment variable format at line {line}: {problem}")]
pub struct EnvFileError {
    /// Line, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// The value of `key`, looked for from the top; what stands below it is not checked.
// k8s: pkg/kubelet/util/env/env_util.go ParseEnv
pub fn value_of(text: &str, key: &str) -> Result<Option<String>, EnvFileError> {
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    while let Some((line, content)) = lines.next() {
        check_length(line, content)?;
        let content = content.trim_start_matches([' ', '\t']);
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        let error = |problem| EnvFileError { line, problem };
        let (name, value) = content.split_once('=').ok_or(error("missing '='"))?;
        if name.trim_end_matches([' ', '\t']).is_empty() {
            return Err(error("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(error("whitespace before '=' is not allowed"));
        }
        if value.starts_with([' ', '\t']) {
            // As in the shell, `A= 'b'` sets nothing to A.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let quoted = value.strip_prefix('\'');
        let quoted = quoted.ok_or(error("value must be enclosed in single quotes"))?;
        let found = read_quoted(line, quoted, &mut lines)?;
        if name == key {
            return Ok(Some(found).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

fn read_quoted<'a>(
    first_line: usize,
    first: &'a str,
    lines: &mut impl Iterator<Item = (usize, &'a str)>,
) -> Result<String, EnvFileError> {
    let (mut line, mut rest) = (first_line, first);
    let mut value = String::new();
    loop {
        if let Some((inside, after)) = rest.split_once('\'') {
            value.push_str(inside);
            let after = after.trim_start_matches([' ', '\t']);
            if !after.is_empty() && !after.starts_with('#') {
                return Err(EnvFileError {
                    line,
                    problem: "unexpected content after closing quote",
                });
            }
            return Ok(value);
        }
        value.push_str(rest);
        value.push('\n');
        let unclosed = EnvFileError { line: first_line, problem: "unclosed single quote" };
        (line, rest) = lines.next().ok_or(unclosed)?;
        check_length(line, rest)?;
    }
}

fn check_length(line: usize, content: &str) -> Result<(), EnvFileError> {
    match content.len() < LINE_BYTES_MAX {
        true => Ok(()),
        false => Err(EnvFileError { line, problem: "bufio.Scanner: token too long" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "[A='# \n\t$]{0,80}") {
            let _ = value_of(&text, "A");
        }
    }
}
