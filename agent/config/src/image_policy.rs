//! Decides which present images a pod may use without a check of its credentials: pure.
// k8s: pkg/kubelet/images/pullmanager/image_pull_policies.go

use std::fmt;

use super::modes::ImageVerificationPolicy;
use pintle_api_types::pod::image_name;
use pintle_api_types::pod::image_name::without_tag;

/// `imagePullCredentialsVerificationPolicy` with its allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationPolicy {
    kind: ImageVerificationPolicy,
    allowed: Vec<Allowed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    /// All image names that begin with this text.
    Below(String),
    /// The image of this name, with any tag or digest.
    Name(String),
}

impl VerificationPolicy {
    /// The policy; the error names an invalid pattern of the list.
    pub fn new(kind: ImageVerificationPolicy, list: &[String]) -> Result<Self, ImagePatternError> {
        let allowed: Result<Vec<_>, _> = list.iter().map(|pattern| allowed(pattern)).collect();
        Ok(Self { kind, allowed: allowed? })
    }

    /// True if a pod must show credentials for an image, by the name that the pod uses; `pulled` is
    /// true if an agent has pulled the image or begun to.
    pub fn verifies(&self, image: &str, pulled: bool) -> bool {
        match self.kind {
            ImageVerificationPolicy::NeverVerify => false,
            ImageVerificationPolicy::NeverVerifyPreloadedImages
            | ImageVerificationPolicy::Unset => pulled,
            ImageVerificationPolicy::NeverVerifyAllowlistedImages => {
                let name = without_tag(image);
                !self.allowed.iter().any(|allowed| match allowed {
                    Allowed::Below(prefix) => name.starts_with(prefix.as_str()),
                    Allowed::Name(allowed) => name == allowed,
                })
            }
            ImageVerificationPolicy::AlwaysVerify => true,
        }
    }
}

/// An invalid pattern of the allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePatternError {
    /// It begins or ends with white space.
    Spaces(String),
    /// It is empty.
    Short(String),
    /// It has an asterisk other than that of a final `/*`.
    Wildcard(String),
    /// It is `/*`, without a registry.
    NoRegistry,
    /// It is no image name.
    Name(String),
    /// It has a tag or a digest.
    Tag(String),
}

impl fmt::Display for ImagePatternError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Spaces(pattern) => {
                write!(f, "leading/trailing spaces are not allowed: {pattern}")
            }
            Self::Short(pattern) => write!(f, "the supplied pattern is too short: {pattern}"),
            Self::Wildcard(pattern) => write!(
                f,
                "not a valid wildcard pattern, only patterns ending with '/*' are allowed: \
                 {pattern}"
            ),
            Self::NoRegistry => f.write_str("at least registry hostname is required"),
            Self::Name(why) => write!(f, "failed to parse as an image name: {why}"),
            Self::Tag(pattern) => {
                write!(f, "neither tag nor digest is accepted in an image reference: {pattern}")
            }
        }
    }
}

impl std::error::Error for ImagePatternError {}

// k8s: pkg/kubelet/images/pullmanager/image_pull_policies.go getAllowlistImagePattern
fn allowed(pattern: &str) -> Result<Allowed, ImagePatternError> {
    if pattern != pattern.trim() {
        return Err(ImagePatternError::Spaces(pattern.to_owned()));
    }
    let (rest, below) = match pattern.strip_suffix("/*") {
        Some(_) => (&pattern[..pattern.len() - 1], true),
        None => (pattern, false),
    };
    if rest.is_empty() {
        return Err(ImagePatternError::Short(pattern.to_owned()));
    }
    if rest.contains('*') {
        return Err(ImagePatternError::Wildcard(pattern.to_owned()));
    }
    if below {
        return match rest.len() {
            1 => Err(ImagePatternError::NoRegistry),
            _ => Ok(Allowed::Below(rest.to_owned())),
        };
    }
    if let Err(error) = image_name::with_default_tag(rest) {
        return Err(ImagePatternError::Name(error.why.to_string()));
    }
    if without_tag(rest) != rest {
        return Err(ImagePatternError::Tag(pattern.to_owned()));
    }
    Ok(Allowed::Name(rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImageVerificationPolicy as P;

    #[test]
    fn image_verification_policy_selects_the_images_it_verifies() {
        let list = ["reg.io/team/*", "reg.io/one"].map(str::to_owned);
        let table = [
            (P::NeverVerify, "reg.io/x:1", (false, false)),
            (P::NeverVerifyPreloadedImages, "reg.io/x:1", (false, true)),
            (P::AlwaysVerify, "reg.io/x:1", (true, true)),
            (P::NeverVerifyAllowlistedImages, "reg.io/x:1", (true, true)),
            (P::NeverVerifyAllowlistedImages, "reg.io/team/x:1", (false, false)),
            (P::NeverVerifyAllowlistedImages, "reg.io/team/x/y@sha256:0", (false, false)),
            (P::NeverVerifyAllowlistedImages, "reg.io/teams/x", (true, true)),
            (P::NeverVerifyAllowlistedImages, "reg.io/one:2", (false, false)),
            (P::NeverVerifyAllowlistedImages, "reg.io/one/more", (true, true)),
        ];
        for (kind, image, (preloaded, pulled)) in table {
            let policy = VerificationPolicy::new(kind, &list).expect("a policy");
            let got = (policy.verifies(image, false), policy.verifies(image, true));
            assert_eq!(got, (preloaded, pulled), "{kind} {image}");
        }
    }

    // k8s: pkg/kubelet/images/pullmanager/image_pull_policies_test.go TestNewNeverVerifyAllowListed
    #[test]
    fn invalid_patterns_are_reported_in_the_kubelets_words() {
        let table = [
            (" reg.io/a", "leading/trailing spaces are not allowed:  reg.io/a"),
            ("", "the supplied pattern is too short: "),
            ("reg.io/*/a", "not a valid wildcard pattern, only patterns ending with '/*'"),
            ("reg.io/a*", "not a valid wildcard pattern"),
            ("*", "not a valid wildcard pattern"),
            ("/*", "at least registry hostname is required"),
            ("reg.io/UPPER", "failed to parse as an image name: invalid reference format"),
            ("reg.io/a:1", "neither tag nor digest is accepted in an image reference: reg.io/a:1"),
        ];
        for (pattern, part) in table {
            let list = [pattern.to_owned()];
            let error = VerificationPolicy::new(P::NeverVerifyAllowlistedImages, &list);
            let error = error.expect_err(pattern);
            assert!(error.to_string().starts_with(part), "{error}");
        }
    }
}
