//! Decides which present images a pod may use without a check of its credentials: pure.
// k8s: pkg/kubelet/images/pullmanager/image_pull_policies.go

use super::modes::ImageVerificationPolicy;
use pintle_api_types::pod::image_name;
use pintle_api_types::pod::image_name::without_tag;

/// `imagePullCredentialsVerificationPolicy` with its list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationPolicy {
    kind: ImageVerificationPolicy,
    allowed: Vec<Allowed>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Allowed {
    /// All that begins with it.
    Below(String),
    Name(String),
}

impl VerificationPolicy {
    /// The policy; the error names an invalid pattern of the list.
    pub fn new(kind: ImageVerificationPolicy, list: &[String]) -> Result<Self, String> {
        let allowed: Result<Vec<_>, _> = list.iter().map(|pattern| allowed(pattern)).collect();
        Ok(Self { kind, allowed: allowed? })
    }

    /// True if a pod must show credentials for an image, by the name that it uses; `pulled` when an
    /// agent pulled it, or began to.
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

// k8s: pkg/kubelet/images/pullmanager/image_pull_policies.go getAllowlistImagePattern
fn allowed(pattern: &str) -> Result<Allowed, String> {
    if pattern != pattern.trim() {
        return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
    }
    let (rest, below) = match pattern.strip_suffix("/*") {
        Some(_) => (&pattern[..pattern.len() - 1], true),
        None => (pattern, false),
    };
    if rest.is_empty() {
        return Err(format!("the supplied pattern is too short: {pattern}"));
    }
    if rest.contains('*') {
        return Err(format!(
            "not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"
        ));
    }
    if below {
        return match rest.len() {
            1 => Err("at least registry hostname is required".to_owned()),
            _ => Ok(Allowed::Below(rest.to_owned())),
        };
    }
    if let Err(error) = image_name::with_default_tag(rest) {
        return Err(format!("failed to parse as an image name: {}", error.why));
    }
    if without_tag(rest) != rest {
        return Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"));
    }
    Ok(Allowed::Name(rest.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ImageVerificationPolicy as P;

    #[test]
    fn each_policy_asks_for_its_images() {
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
    fn patterns_that_are_none_are_told_in_the_kubelets_words() {
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
            assert!(error.starts_with(part), "{error}");
        }
    }
}
