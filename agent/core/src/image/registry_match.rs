//! Which entries of registries count for an image: repositories, patterns of hosts, Go's globs.
//!
//! Pure. A pattern is a host, which may have globs within its labels, an optional port, which has to
//! be the same, and the beginning of a path.
// k8s: pkg/credentialprovider/keyring.go URLsMatch, ParseSchemelessURL

use pintle_api_types::pod::image_name::without_tag;

/// Entry for images that name no registry.
pub(super) const DEFAULT_REGISTRY: &str = "index.docker.io";

/// The image's repository in full: with its registry, without tag and digest.
// k8s: pkg/util/parsers/parsers.go ParseImageName
pub fn repository(image: &str) -> String {
    let name = without_tag(image);
    let (host, path) = match name.split_once('/') {
        Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
        _ => ("docker.io", name),
    };
    let host = if host == DEFAULT_REGISTRY { "docker.io" } else { host };
    match host == "docker.io" && !path.contains('/') {
        true => format!("{host}/library/{path}"),
        false => format!("{host}/{path}"),
    }
}

// k8s: pkg/credentialprovider/keyring.go isDefaultRegistryMatch
pub(super) fn is_default_registry(repository: &str) -> bool {
    repository.starts_with("docker.io/")
}

/// The registry of a repository, with its port.
// k8s: pkg/credentialprovider/plugin/plugin.go parseRegistry
pub fn registry(repository: &str) -> &str {
    repository.split_once('/').map_or(repository, |(registry, _)| registry)
}

/// Same port, as many labels that match, and the pattern's path at the beginning of the image's.
pub fn matches(pattern: &str, repository: &str) -> bool {
    let (pattern, pattern_port, pattern_path) = split(pattern);
    let (host, port, path) = split(repository);
    let (left, right): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), host.split('.').collect());
    pattern_port == port
        && path.starts_with(pattern_path)
        && left.len() == right.len()
        && left.iter().zip(right).all(|(pattern, label)| label_matches(pattern, label))
}

/// Host, port and path.
fn split(text: &str) -> (&str, &str, &str) {
    let (host, path) = text.find('/').map_or((text, ""), |at| text.split_at(at));
    let (name, port) = host.rsplit_once(':').unwrap_or((host, ""));
    (name, port, path)
}

/// `*` any characters, `?` one, `[a-z]` and `[^a-z]` one of a set, `\` the next one itself. An
/// invalid pattern matches nothing. Patterns come from pull secrets, which may be malicious: time
/// grows with the product of both lengths, whatever the text, and the stack does not grow.
// Go: path/filepath Match
fn label_matches<'a>(mut pattern: &'a str, mut label: &'a str) -> bool {
    // The pattern after the last `*`, and the part of the label that it was tried on. An earlier
    // `*` need not take more than it has, because the last one can take that as well.
    let mut star = None;
    loop {
        if let Some(after) = pattern.strip_prefix('*') {
            pattern = after;
            star = Some((after, label));
            continue;
        }
        if pattern.is_empty() && label.is_empty() {
            return true;
        }
        if let Some(rest) = character(pattern, label) {
            (pattern, label) = rest;
            continue;
        }
        let Some((after, tried)) = star else { return false };
        let mut chars = tried.chars();
        if chars.next().is_none() {
            return false;
        }
        (pattern, label) = (after, chars.as_str());
        star = Some((after, label));
    }
}

/// The rest of both when the label's first character matches the first element of the pattern.
fn character<'a>(pattern: &'a str, label: &'a str) -> Option<(&'a str, &'a str)> {
    let (mut rest, mut chars) = (pattern.chars(), label.chars());
    let (first, c) = (rest.next()?, chars.next()?);
    let after = match first {
        '?' => rest.as_str(),
        '[' => set_matches(rest.as_str(), c)?,
        '\\' => (rest.next() == Some(c)).then_some(rest.as_str())?,
        first => (first == c).then_some(rest.as_str())?,
    };
    Some((after, chars.as_str()))
}

/// The rest after the set at the start of `pattern`, when the character is one of it.
fn set_matches(pattern: &str, c: char) -> Option<&str> {
    let (negated, mut rest) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (mut found, mut any) = (false, false);
    loop {
        if let Some(after) = rest.strip_prefix(']').filter(|_| any) {
            return (found != negated).then_some(after);
        }
        let low = take(&mut rest)?;
        let high = match rest.strip_prefix('-') {
            Some(after) => {
                rest = after;
                take(&mut rest)?
            }
            None => low,
        };
        any = true;
        found |= low <= c && c <= high;
    }
}

/// One character of a set.
fn take(rest: &mut &str) -> Option<char> {
    let mut chars = rest.chars();
    let c = match chars.next()? {
        '-' | ']' => return None,
        '\\' => chars.next()?,
        c => c,
    };
    *rest = chars.as_str();
    Some(c)
}

/// The error of a pattern, in the words of Go's URL parser; `None` when it is valid.
// Go: net/url Parse, parseHost, validOptionalPort, shouldEscape
pub fn pattern_error(pattern: &str) -> Option<String> {
    let why = url_error(pattern)?;
    Some(format!("parse {:?}: {why}", format!("https://{pattern}")))
}

fn url_error(pattern: &str) -> Option<String> {
    if pattern.bytes().any(|b| b < b' ' || b == 0x7f) {
        return Some("net/url: invalid control character in URL".to_owned());
    }
    let end = pattern.find(['/', '?', '#']).unwrap_or(pattern.len());
    let (authority, path) = pattern.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match host.rfind(']') {
        Some(at) => &host[at + 1..],
        // Since Go 1.26 from the first colon on.
        None => host.find(':').map_or("", |at| &host[at..]),
    };
    if host.starts_with('[') && !host.contains(']') {
        return Some("missing ']' in host".to_owned());
    }
    let digits = port.strip_prefix(':').map(|p| p.bytes().all(|b| b.is_ascii_digit()));
    if !port.is_empty() && digits != Some(true) {
        return Some(format!("invalid port {port:?} after host"));
    }
    if let Some(at) = host.find('%') {
        return Some(format!("invalid URL escape {:?}", escape_at(host, at)));
    }
    let allowed = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || HOST.contains(c);
    if let Some(c) = host.chars().find(|c| !allowed(*c)) {
        return Some(format!("invalid character {:?} in host name", c.to_string()));
    }
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let hex = |at: usize| path.as_bytes().get(at).is_some_and(u8::is_ascii_hexdigit);
    let broken = path.match_indices('%').find(|(at, _)| !(hex(at + 1) && hex(at + 2)));
    broken.map(|(at, _)| format!("invalid URL escape {:?}", escape_at(path, at)))
}

/// Characters that Go allows in a host besides letters and digits.
const HOST: &str = "-_.~$&+,/:;=@!'()*[]<>\"";

fn escape_at(text: &str, at: usize) -> String {
    text[at..].chars().take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Expectations as in Go: path/filepath match_test.go
    #[test]
    fn labels_match_globs_as_in_gos_filepath_match() {
        let table = [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "ab", true),
            ("a*b*c*d*e*", "axbxcxdxe", true),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^e-g]", "abc", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "ab", false),
            ("a?b", "a\u{263a}b", true),
            ("a[^a]b", "a\u{263a}b", true),
            ("a???b", "a\u{263a}b", false),
            ("[]a]", "]", false),
            ("[-]", "-", false),
            ("[x-]", "x", false),
            ("[a-b-c]", "a", false),
            ("[", "a", false),
            ("[^bc", "a", false),
            ("*x", "xxx", true),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, label, want) in table {
            assert_eq!(label_matches(pattern, label), want, "{pattern} {label}");
        }
    }

    #[test]
    fn patterns_that_mean_harm_cost_little() {
        let long = "a".repeat(200);
        for (pattern, label, want) in [
            ("*".repeat(1 << 20), "a", true),
            ("*".repeat(1 << 20) + "b", "a", false),
            ("*a".repeat(60) + "b", &*long, false),
            ("*a".repeat(60) + "*", &*long, true),
            ("?".repeat(1 << 20), &*long, false),
            ("*[".to_owned() + &"a".repeat(1 << 16), &*long, false),
        ] {
            assert_eq!(label_matches(&pattern, label), want);
        }
    }

    /// Every way to take a `*`, one after the other.
    fn by_trying(pattern: &str, label: &str) -> bool {
        match pattern.strip_prefix('*') {
            Some(rest) => {
                let mut ends = label.char_indices().map(|(at, _)| at).chain([label.len()]);
                ends.any(|at| by_trying(rest, &label[at..]))
            }
            None if pattern.is_empty() => label.is_empty(),
            None => {
                character(pattern, label).is_some_and(|(pattern, label)| by_trying(pattern, label))
            }
        }
    }

    proptest! {
        #[test]
        fn single_backtrack_equals_exhaustive_match(pattern in "[ab*?\\[\\]\\\\^-]{0,8}", label in "[ab*]{0,8}") {
            prop_assert_eq!(label_matches(&pattern, &label), by_trying(&pattern, &label));
        }
    }

    // k8s: pkg/credentialprovider/keyring_test.go TestURLsMatch
    #[test]
    fn patterns_match_hosts_label_by_label_with_the_same_port_below_a_path() {
        let table = [
            ("*.kubernetes.io", "prefix.kubernetes.io", true),
            ("prefix.*.io", "prefix.kubernetes.io", true),
            ("prefix.kubernetes.*", "prefix.kubernetes.io", true),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io", true),
            ("*.*.kubernetes.io", "a.b.kubernetes.io", true),
            ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah/deeper", true),
            ("*.kubernetes.io:80", "prefix.kubernetes.io:80", true),
            ("*.io", "kubernetes.io", true),
            ("*.kubernetes.io", "kubernetes.io", false),
            ("*.kubernetes.io", "a.b.kubernetes.io", false),
            ("*.kubernetes.io:80", "prefix.kubernetes.io", false),
            ("*.kubernetes.io", "prefix.kubernetes.io:80", false),
            ("kubernetes.io/a", "kubernetes.io/b", false),
            ("*", "kubernetes.io", false),
        ];
        for (pattern, image, want) in table {
            assert_eq!(matches(pattern, image), want, "{pattern} {image}");
        }
    }

    #[test]
    fn invalid_pattern_is_rejected_with_gos_message() {
        let table = [
            ("%invalid%", Some("parse \"https://%invalid%\": invalid URL escape \"%in\"")),
            ("a b.io", Some("parse \"https://a b.io\": invalid character \" \" in host name")),
            ("reg.io:x", Some("parse \"https://reg.io:x\": invalid port \":x\" after host")),
            ("a:1:2", Some("parse \"https://a:1:2\": invalid port \":1:2\" after host")),
            ("reg.io/%zz", Some("parse \"https://reg.io/%zz\": invalid URL escape \"%zz\"")),
            ("*.reg.io:8080/path", None),
            ("registry.io:8080/a%20b", None),
            ("[::1]:5000/a", None),
        ];
        for (pattern, want) in table {
            assert_eq!(pattern_error(pattern).as_deref(), want, "{pattern}");
        }
    }

    #[test]
    fn repository_is_normalized_and_the_name_without_tag_keeps_its_short_form() {
        for (image, full, short) in [
            ("busybox", "docker.io/library/busybox", "busybox"),
            ("me/app:1", "docker.io/me/app", "me/app"),
            ("reg:5000/a/b@sha256:00", "reg:5000/a/b", "reg:5000/a/b"),
            ("localhost/a:1@sha256:00", "localhost/a", "localhost/a"),
        ] {
            assert_eq!((&*repository(image), without_tag(image)), (full, short));
        }
        assert_eq!(registry("reg:5000/a/b"), "reg:5000");
    }
}
