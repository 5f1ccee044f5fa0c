//! Image names: validity, tags, and the message of a failed pull.
//!
//! Pure. The grammar is the one of OCI references: an optional host with port, lower-case path
//! components, an optional tag, an optional digest.
// k8s: pkg/util/parsers/parsers.go ParseImageName, pkg/kubelet/images/image_manager.go

use std::borrow::Cow;

/// Longest name without tag and digest.
const NAME_BYTES_MAX: usize = 255;
/// Longest tag.
const TAG_BYTES_MAX: usize = 128;

/// Reason why a text is no image name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("couldn't parse image name \"{name}\": {why}")]
pub struct ImageNameError {
    /// The text.
    pub name: String,
    /// The fault.
    pub why: Cow<'static, str>,
}

/// The name with the tag `latest` when it has neither tag nor digest.
pub fn with_default_tag(image: &str) -> Result<String, ImageNameError> {
    let bad = |why: &'static str| ImageNameError { name: image.to_owned(), why: why.into() };
    if let Some(why) = misnamed(image) {
        return Err(ImageNameError { name: image.to_owned(), why: why.into() });
    }
    let (rest, digest) = match image.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (image, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return Err(bad("invalid reference format"));
    }
    let (name, tag) = match rest.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
        _ => (rest, None),
    };
    if tag.is_some_and(|tag| !is_tag(tag)) {
        return Err(bad("invalid reference format"));
    }
    if !is_name(name) {
        return Err(bad("invalid reference format"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(bad("repository name must not be more than 255 characters"));
    }
    match (tag, digest) {
        (None, None) => Ok(format!("{image}:latest")),
        _ => Ok(image.to_owned()),
    }
}

/// A fault that is found before the name's grammar is checked.
// k8s: github.com/distribution/reference normalize.go ParseNormalizedNamed
fn misnamed(image: &str) -> Option<String> {
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if image.len() == 64 && image.bytes().all(hex) {
        return Some(format!(
            "invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"
        ));
    }
    let path = path_of(image);
    let remote = path.split(':').next().unwrap_or_default();
    remote
        .chars()
        .any(char::is_uppercase)
        .then(|| format!("invalid reference format: repository name ({remote}) must be lowercase"))
}

/// The name without its host; one of a single component is in the library.
// k8s: github.com/distribution/reference normalize.go splitDockerDomain
fn path_of(image: &str) -> String {
    let Some((host, path)) = image.split_once('/') else { return format!("library/{image}") };
    match host {
        "index.docker.io" | "docker.io" if !path.contains('/') => format!("library/{path}"),
        host if is_host_part(host) => path.to_owned(),
        _ => image.to_owned(),
    }
}

/// True if the first component is a host rather than the first part of a path.
fn is_host_part(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.chars().any(char::is_uppercase)
}

fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let known = match algorithm {
        "sha256" => hex.len() == 64,
        "sha384" => hex.len() == 96,
        "sha512" => hex.len() == 128,
        _ => false,
    };
    known && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_tag(tag: &str) -> bool {
    let mut bytes = tag.bytes();
    tag.len() <= TAG_BYTES_MAX
        && bytes.next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}

fn is_name(name: &str) -> bool {
    let mut parts: Vec<_> = name.split('/').collect();
    let first = parts[0];
    if parts.len() > 1 && is_host_part(first) {
        if !is_host(first) {
            return false;
        }
        parts.remove(0);
    }
    parts.iter().all(|part| is_component(part))
}

fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !name.ends_with(':') => (name, Some(port)),
        _ => (host, None),
    };
    let port_ok = port.is_none_or(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
    let label = |l: &str| {
        !l.is_empty()
            && !l.starts_with('-')
            && !l.ends_with('-')
            && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    let bracketed = name.starts_with('[') && name.ends_with(']');
    port_ok && (bracketed || name.split('.').all(label))
}

/// Lower-case letters and digits, joined by one dot, one or two underscores, or dashes.
fn is_component(part: &str) -> bool {
    let alnum = |b: u8| b.is_ascii_digit() || b.is_ascii_lowercase();
    let bytes = part.as_bytes();
    let ends = bytes.first().is_some_and(|b| alnum(*b)) && bytes.last().is_some_and(|b| alnum(*b));
    let joined = part.split(|c: char| c.is_ascii_digit() || c.is_ascii_lowercase());
    ends && joined
        .filter(|j| !j.is_empty())
        .all(|j| j == "." || j == "_" || j == "__" || j.bytes().all(|b| b == b'-'))
}

/// Reason and message of a failed pull for the container's status.
// k8s: pkg/kubelet/images/image_manager.go evalCRIPullErr
pub fn pull_error(image: &str, error: &str) -> (&'static str, String) {
    let known = [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ];
    for (reason, because) in known {
        if let Some(more) = error.strip_prefix(reason) {
            return (reason, format!("image pull failed for {image} because {because}{more}"));
        }
    }
    ("ErrImagePull", error.to_owned())
}

/// The name without tag and digest, as short as it was written.
// k8s: pkg/kubelet/images/pullmanager/image_pull_policies.go trimImageTagDigest
pub fn without_tag(image: &str) -> &str {
    let bare = image.split_once('@').map_or(image, |(bare, _)| bare);
    match bare.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => bare,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_without_tag_and_digest_means_latest() {
        let digest = format!("a@sha256:{}", "0".repeat(64));
        let table = [
            ("busybox", Some("busybox:latest")),
            ("busybox:1.37", Some("busybox:1.37")),
            ("Host/a", Some("Host/a:latest")),
            ("host:5000/a/b", Some("host:5000/a/b:latest")),
            ("localhost/a__b-c--d.e", Some("localhost/a__b-c--d.e:latest")),
            (digest.as_str(), Some(digest.as_str())),
            ("", None),
            ("UPPER", None),
            ("a//b", None),
            ("a:", None),
            ("a:ta/g!", None),
            ("-a", None),
            ("a..b", None),
            ("a@sha256:12", None),
        ];
        for (image, want) in table {
            assert_eq!(with_default_tag(image).ok().as_deref(), want, "{image:?}");
        }
    }

    #[test]
    fn uppercase_image_name_error_names_the_lowercase_rule() {
        let hex = "0123456789abcdef".repeat(4);
        let no_name =
            format!("invalid repository name ({hex}), cannot specify 64-byte hexadecimal strings");
        for (image, why) in [
            (
                "Busybox",
                "invalid reference format: repository name (library/Busybox) must be lowercase",
            ),
            ("A::b", "invalid reference format: repository name (library/A) must be lowercase"),
            ("r.test/A:1", "invalid reference format: repository name (A) must be lowercase"),
            (
                "a/B@sha256:1",
                "invalid reference format: repository name (a/B@sha256) must be lowercase",
            ),
            ("a::b", "invalid reference format"),
            (&hex, &no_name),
        ] {
            let error = with_default_tag(image).expect_err("no name").to_string();
            assert_eq!(error, format!("couldn't parse image name \"{image}\": {why}"));
        }
    }

    #[test]
    fn pull_errors_of_the_runtime_keep_their_reason() {
        let (reason, message) = pull_error("a", "RegistryUnavailable: no route");
        assert_eq!(reason, "RegistryUnavailable");
        assert_eq!(
            message,
            "image pull failed for a because the registry is unavailable: no route"
        );
        assert_eq!(pull_error("a", "denied"), ("ErrImagePull", "denied".to_owned()));
    }
}
