//! `$(NAME)` references in environment values, commands, arguments and sub-paths.
//!
//! `$(NAME)` is replaced by the result of the look-up, `$$` by one `$`, and everything else stays
//! as written, an unknown or unclosed reference included. One pass: replacements are never expanded
//! again, and an unclosed reference is not searched for its end: the time is linear in the text.
//! The result may be many times longer, as each of many short references may stand for a long
//! value, which was made in this way itself: the caller sets the maximum length.

/// The result would be longer than the caller's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Replaces the references in `input`; `lookup` gives `None` for unknown names, which stay. Of a
/// result with more than `bytes_max` nothing more is made.
// k8s: third_party/forked/golang/expansion/expand.go Expand
pub fn expand<'v>(
    input: &str,
    bytes_max: usize,
    mut lookup: impl FnMut(&str) -> Option<&'v str>,
) -> Result<String, TooLong> {
    let fits = |bytes: usize| if bytes > bytes_max { Err(TooLong) } else { Ok(()) };
    let mut out = String::with_capacity(input.len());
    let last_close = input.rfind(')').unwrap_or(0);
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let may_close = input.len() - after.len() < last_close;
        match after.chars().next() {
            Some('$') => {
                out.push('$');
                rest = &after[1..];
            }
            Some('(') => match may_close.then(|| after.find(')')).flatten() {
                Some(end) => {
                    let name = &after[1..end];
                    match lookup(name) {
                        Some(value) => {
                            fits(out.len().saturating_add(value.len()))?;
                            out.push_str(value);
                        }
                        None => out.extend(["$(", name, ")"]),
                    }
                    rest = &after[end + 1..];
                }
                None => {
                    out.push_str("$(");
                    rest = &after[1..];
                }
            },
            _ => {
                out.push('$');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    fits(out.len())?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn look(name: &str) -> Option<&'static str> {
        match name {
            "A" => Some("one"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        }
    }

    fn expanded(input: &str) -> String {
        expand(input, usize::MAX, look).expect("no bound")
    }

    #[test]
    fn references_are_replaced_once_and_the_rest_is_kept() {
        let table = [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "one"),
            ("$(A)-two-$$(A)-$(MISSING)", "one-two-$(A)-$(MISSING)"),
            ("$(B)", "$(A)"),
            ("x$(EMPTY)y", "xy"),
            ("$$", "$"),
            ("$$$(A)", "$one"),
            ("$$$$(A)", "$$(A)"),
            ("$", "$"),
            ("end$", "end$"),
            ("$A ${A} $é", "$A ${A} $é"),
            ("$(A", "$(A"),
            ("$(A $(A)", "$(A $(A)"),
            ("$()", "$()"),
            ("é$(A)é", "éoneé"),
        ];
        for (input, want) in table {
            assert_eq!(expanded(input), want, "{input:?}");
        }
    }

    #[test]
    fn expansion_beyond_the_length_limit_fails_early() {
        for (input, fits) in [
            ("12345", true),
            ("123456", false),
            ("$(A)$$$(EMPTY)x", true),
            ("$(A)$(A)", false),
            ("12$(A)", true),
            ("123$(A)", false),
        ] {
            assert_eq!(expand(input, 5, look).is_ok(), fits, "{input:?}");
        }
        let mut asked = 0;
        let long = "x".repeat(1 << 10);
        let value = |_: &str| {
            asked += 1;
            Some(&*long)
        };
        assert_eq!(expand(&"$(A)".repeat(1 << 10), 1 << 12, value), Err(TooLong));
        assert_eq!(asked, 5);
    }

    /// The rest searched for an end at each of them, this takes many minutes.
    #[test]
    fn very_many_references_without_an_end_stay_as_written() {
        let (open, closed) = ("$(".repeat(1 << 21), format!("$(A){}", "$(".repeat(1 << 21)));
        assert!(expanded(&open) == open);
        assert!(expanded(&closed) == closed.replacen("$(A)", "one", 1));
    }

    /// As upstream does it, one character after the other.
    fn slowly(input: &str) -> String {
        let (mut out, mut rest) = (String::new(), input);
        while let Some(first) = rest.chars().next() {
            let reference = rest.strip_prefix("$(").and_then(|inner| inner.split_once(')'));
            (rest, _) = match (reference, rest.strip_prefix("$$")) {
                (Some((name, after)), _) => {
                    let unknown = || format!("$({name})");
                    (after, out.push_str(&look(name).map_or_else(unknown, str::to_owned)))
                }
                (None, Some(after)) => (after, out.push('$')),
                (None, None) => (&rest[first.len_utf8()..], out.push(first)),
            };
        }
        out
    }

    proptest! {
        #[test]
        fn expansion_equals_the_naive_implementation(input in r"[$$()()AB aé]{0,64}") {
            prop_assert_eq!(expanded(&input), slowly(&input));
        }

        #[test]
        fn expansion_ends_and_is_bounded_by_its_values(input in r"[$()AB a]{0,64}") {
            let out = expanded(&input);
            prop_assert!(out.len() <= input.len() * 4);
        }

        #[test]
        fn text_without_a_dollar_is_left_alone(input in r"[^$]{0,64}") {
            prop_assert_eq!(expand(&input, 64 * 4, |_| Some("x")), Ok(input));
        }
    }
}
