//! Validation of names of labels and resources.
//!
//! Input: a text. Output: the problem, as a sentence. Pure.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go IsLabelKey

/// Longest name without its prefix.
const NAME_BYTES_MAX: usize = 63;
/// Longest prefix, which is a DNS subdomain.
const PREFIX_BYTES_MAX: usize = 253;

/// Returns the reason a text is no valid name of a label: `NAME` or `DNS.SUBDOMAIN/NAME`.
#[must_use]
pub fn mistake(text: &str) -> Option<&'static str> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) {
        return Some("what is before the slash must be a DNS subdomain in lower case");
    }
    if !is_name(name) {
        return Some(
            "must be 1 to 63 letters, digits, '-', '_' and '.', with a letter or a digit at both \
             ends, and at most one slash before them",
        );
    }
    None
}

/// Returns the reason a text is no valid value of a label.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/validate/content/kube.go IsLabelValue
#[must_use]
pub fn value_mistake(text: &str) -> Option<&'static str> {
    (!text.is_empty() && !is_name(text)).then_some(
        "a label's value must be empty, or at most 63 letters, digits, '-', '_' and '.', with a \
         letter or a digit at both ends",
    )
}

/// Returns the reason a text is no valid name of an object, which is a DNS subdomain.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsDNS1123Subdomain
#[must_use]
pub fn object_mistake(text: &str) -> Option<&'static str> {
    (!is_subdomain(text)).then_some(
        "must be a DNS subdomain: at most 253 lower case letters, digits, '-' and '.', with a \
         letter or a digit at both ends of each part",
    )
}

/// Returns the reason a text is no valid name of a namespace or container, which is a DNS label.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsDNS1123Label
#[must_use]
pub fn dns_label_mistake(text: &str) -> Option<&'static str> {
    (text.len() > NAME_BYTES_MAX || text.contains('.') || !is_subdomain(text)).then_some(
        "must be a DNS label: at most 63 lower case letters, digits and '-', with a letter or a \
         digit at both ends",
    )
}

fn is_name(text: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let ends = |c: Option<&u8>| c.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= NAME_BYTES_MAX
        && ends(bytes.first())
        && ends(bytes.last())
        && bytes.iter().all(|c| inner(*c))
}

fn is_subdomain(text: &str) -> bool {
    let outer = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let ends = [bytes.first(), bytes.last()];
        ends.iter().all(|c| c.is_some_and(outer)) && bytes.iter().all(|c| outer(c) || *c == b'-')
    };
    text.len() <= PREFIX_BYTES_MAX && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_label_names_are_accepted_and_malformed_names_rejected() {
        let long = "a".repeat(64);
        for good in ["cpu", "A_b.c-9", "example.com/gpu", "a-b.c/X", &long[1..]] {
            assert_eq!(mistake(good), None, "{good}");
        }
        for bad in ["", "-a", "a-", "a b", "/a", "a/", "a/b/c", "A/b", "a..b/c", "-a/b", &long] {
            assert!(mistake(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn values_of_labels_and_names_of_objects_are_checked_as_the_api_does() {
        let long = "a".repeat(64);
        for (text, is_value, is_object, is_label) in [
            ("", true, false, false),
            ("web-1", true, true, true),
            ("web.1", true, true, false),
            ("Web_1", true, false, false),
            ("-web", false, false, false),
            ("a b", false, false, false),
            (&long, false, true, false),
            (&"a.".repeat(127), false, false, false),
        ] {
            let mistakes = [value_mistake(text), object_mistake(text), dns_label_mistake(text)];
            let is_good = mistakes.map(|mistake| mistake.is_none());
            assert_eq!(is_good, [is_value, is_object, is_label], "{text:?}");
        }
    }
}
