//! Rules for names: DNS labels and subdomains, qualified names, port and variable names.
//!
//! Each rule returns the faults of a text; none when it is valid.

const LABEL_BYTES_MAX: usize = 63;
const SUBDOMAIN_BYTES_MAX: usize = 253;
const PORT_NAME_BYTES_MAX: usize = 15;
const LABEL_PATTERN: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

fn too_long(text: &str, bytes_max: usize) -> Option<String> {
    (text.len() > bytes_max).then(|| format!("must be no more than {bytes_max} bytes"))
}

fn is_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || *byte == b'-';
    !text.is_empty() && bytes.iter().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS label.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsDNS1123Label
pub fn label(text: &str) -> Vec<String> {
    let pattern = (!is_label(text)).then(|| {
        format!(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or \
             '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or \
             '123-abc', regex used for validation is '{LABEL_PATTERN}')"
        )
    });
    too_long(text, LABEL_BYTES_MAX).into_iter().chain(pattern).collect()
}

/// A DNS subdomain.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsDNS1123Subdomain
pub fn subdomain(text: &str) -> Vec<String> {
    let pattern = (!text.split('.').all(is_label)).then(|| {
        format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, \
             '-' or '.', and must start and end with an alphanumeric character (e.g. \
             'example.com', regex used for validation is '{LABEL_PATTERN}(\\.{LABEL_PATTERN})*')"
        )
    });
    too_long(text, SUBDOMAIN_BYTES_MAX).into_iter().chain(pattern).collect()
}

fn is_name_part(text: &str) -> bool {
    let alphanumeric = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    alphanumeric(text.chars().next())
        && alphanumeric(text.chars().next_back())
        && text.chars().all(inner)
}

/// A key with an optional prefix: `example.com/name`.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsQualifiedName
pub fn qualified(text: &str) -> Vec<String> {
    let (prefix, name) = match text.split_once('/') {
        None => (None, text),
        Some((_, rest)) if rest.contains('/') => {
            return vec![
                "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and \
                 must start and end with an alphanumeric character (e.g. 'MyName',  or \
                 'my.name',  or '123-abc', regex used for validation is \
                 '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain \
                 prefix and '/' (e.g. 'example.com/MyName')"
                    .to_owned(),
            ];
        }
        Some((prefix, name)) => (Some(prefix), name),
    };
    let mut wrong = Vec::new();
    match prefix {
        Some("") => wrong.push("prefix part must be non-empty".to_owned()),
        Some(prefix) => {
            wrong.extend(subdomain(prefix).into_iter().map(|why| format!("prefix part {why}")));
        }
        None => {}
    }
    if name.is_empty() {
        wrong.push("name part must be non-empty".to_owned());
    } else if let Some(why) = too_long(name, LABEL_BYTES_MAX) {
        wrong.push(format!("name part {why}"));
    }
    if !is_name_part(name) {
        wrong.push(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start \
             and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', \
             regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
                .to_owned(),
        );
    }
    wrong
}

/// The value of a label.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsValidLabelValue
pub fn label_value(text: &str) -> Vec<String> {
    let pattern = (!text.is_empty() && !is_name_part(text)).then(|| {
        "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or \
         '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or \
         'my_value',  or '12345', regex used for validation is \
         '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            .to_owned()
    });
    too_long(text, LABEL_BYTES_MAX).into_iter().chain(pattern).collect()
}

/// The name of a port.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsValidPortName
pub fn port_name(text: &str) -> Vec<String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let edges = text.starts_with('-') || text.ends_with('-') || text.is_empty();
    let rules = [
        (text.len() > PORT_NAME_BYTES_MAX, "must be no more than 15 bytes"),
        (
            !text.chars().all(plain),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (!text.chars().any(|c| c.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (text.contains("--"), "must not contain consecutive hyphens"),
        (edges, "must not begin or end with a hyphen"),
    ];
    rules.into_iter().filter(|(wrong, _)| *wrong).map(|(_, why)| why.to_owned()).collect()
}

/// The name of an environment variable.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsRelaxedEnvVarName
pub fn variable(text: &str) -> Vec<String> {
    let printable = |c: char| (' '..='~').contains(&c) && c != '=';
    let wrong = text.is_empty() || !text.chars().all(printable);
    let why = "a valid environment variable name must consist only of printable ASCII characters \
               other than '='";
    if wrong { vec![why.to_owned()] } else { Vec::new() }
}

/// The key of a configMap or secret, also a file name in a volume.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go IsConfigMapKey
pub(super) fn map_key(text: &str) -> Vec<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let mut wrong: Vec<_> = too_long(text, SUBDOMAIN_BYTES_MAX).into_iter().collect();
    if text.is_empty() || !text.chars().all(plain) {
        wrong.push(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. \
             'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is \
             '[-._a-zA-Z0-9]+')"
                .to_owned(),
        );
    }
    match text {
        "." => wrong.push("must not be '.'".to_owned()),
        ".." => wrong.push("must not be '..'".to_owned()),
        _ if text.starts_with("..") => wrong.push("must not start with '..'".to_owned()),
        _ => {}
    }
    wrong
}
