//! Converts Go's regular expressions to those of the `regex` crate.
//!
//! Input: a pattern in Go's syntax. Output: an equal one in that of the `regex` crate. Owner: pure
//! functions. In Go `\w`, `\d`, `\s` and `\b` are ASCII only, brackets and doubled operators within
//! a class are literal, and `\Q` quotes; everything else that both accept means the same.
// k8s: regexp/syntax

/// Returns the class of an escaped letter, to be used within a class or alone.
fn class(letter: char) -> Option<&'static str> {
    Some(match letter {
        'd' => "[0-9]",
        'D' => "[^0-9]",
        's' => "[\\t\\n\\x0c\\r ]",
        'S' => "[^\\t\\n\\x0c\\r ]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        _ => return None,
    })
}

/// A pattern of Go's.
pub(super) fn translated(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    // Position in a class: none, at its start, where a bracket is literal, or within.
    let mut of_class = None;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        rest = after;
        match (c, of_class) {
            ('\\', _) => rest = escaped(after, of_class.is_some(), &mut out),
            ('[', None) => {
                of_class = Some(true);
                out.push('[');
                if let Some(after) = rest.strip_prefix('^') {
                    out.push('^');
                    rest = after;
                }
            }
            (']', Some(true)) => out.push_str("\\]"),
            (']', _) => {
                of_class = None;
                out.push(']');
            }
            ('[', Some(_)) => {
                of_class = Some(false);
                match named(after) {
                    Some((name, after)) => {
                        out.push_str(&format!("[:{name}:]"));
                        rest = after;
                    }
                    None => out.push_str("\\["),
                }
            }
            ('&' | '~', Some(_)) => out.extend(['\\', c]),
            _ => out.push(c),
        }
        if c != '[' {
            of_class = of_class.map(|_| false);
        }
    }
    out
}

/// Converts an escape; returns the rest of the pattern.
fn escaped<'a>(text: &'a str, is_in_class: bool, out: &mut String) -> &'a str {
    let mut chars = text.chars();
    let letter = chars.next();
    let rest = chars.as_str();
    match letter {
        Some('Q') if !is_in_class => {
            let (quoted, rest) = rest.split_once("\\E").unwrap_or((rest, ""));
            out.push_str(&regex::escape(quoted));
            rest
        }
        Some('b') if !is_in_class => {
            out.push_str("(?-u:\\b)");
            rest
        }
        Some(letter) if class(letter).is_some() => {
            out.push_str(class(letter).unwrap_or_default());
            rest
        }
        Some(letter) => {
            out.extend(['\\', letter]);
            rest
        }
        None => {
            out.push('\\');
            rest
        }
    }
}

/// Parses the name of a class within a class, `[:alpha:]`; returns it and the rest.
fn named(text: &str) -> Option<(&str, &str)> {
    let (name, rest) = text.strip_prefix(':')?.split_once(":]")?;
    let is_name = |c: char| c.is_ascii_lowercase() || c == '^';
    name.chars().all(is_name).then_some((name, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translated_patterns_match_as_in_go() {
        for (pattern, text, want) in [
            (r"^\w+$", "aB_9", true),
            (r"^\w$", "é", false),
            (r"^\W$", "é", true),
            (r"^\d$", "٣", false),
            (r"^[\d.]+$", "1.2", true),
            (r"^[^\w]$", "é", true),
            (r"^[\W]$", "é", true),
            (r"^\s$", "\u{a0}", false),
            (r"a\b", "aé", true),
            (r"^[]a]+$", "a]", true),
            (r"^[^]a]$", "]", false),
            (r"^[a[]+$", "[a", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"^[[:alpha:]_]+$", "a_B", true),
            (r"^[[:^alpha:]]+$", "19", true),
            (r"^\Qa.b\E.$", "a.bc", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^\pL\p{Greek}$", "éα", true),
            (r"(?i)^É$", "é", true),
            (r"^a\\d$", "a\\d", true),
            (r"^.$", "é", true),
        ] {
            let regex = regex::Regex::new(&translated(pattern)).expect(pattern);
            assert_eq!(regex.is_match(text), want, "{pattern} {text}");
        }
    }
}
