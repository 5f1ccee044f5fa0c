//! `$(NAME)` references in environment values, commands, arguments and sub-paths.
//!
//! `$(NAME)` is replaced by what the look-up gives, `$$` by one `$`, and everything else stays as
//! written, an unknown or unclosed reference included. One sync: what was put in is never expanded
//! again, so no input can make it loop or grow beyond its values.

/// Replaces the references in `input`; `lookup` gives `None` for unknown names, which stay.
// k8s: third_party/forked/golang/expansion/expand.go Expand
pub fn expand<'v>(input: &str, mut lookup: impl FnMut(&str) -> Option<&'v str>) -> String {
    let mut out = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        match after.chars().next() {
            Some('$') => {
                out.push('$');
                rest = &after[1..];
            }
            Some('(') => match after.find(')') {
                Some(end) => {
                    let name = &after[1..end];
                    match lookup(name) {
                        Some(value) => out.push_str(value),
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
    out
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
            assert_eq!(expand(input, look), want, "{input:?}");
        }
    }

    proptest! {
        #[test]
        fn expansion_ends_and_is_bounded_by_its_values(input in r"[$()AB a]{0,64}") {
            let out = expand(&input, look);
            prop_assert!(out.len() <= input.len() * 4);
        }

        #[test]
        fn text_without_a_dollar_is_left_alone(input in r"[^$]{0,64}") {
            prop_assert_eq!(expand(&input, |_| Some("x")), input);
        }
    }
}
