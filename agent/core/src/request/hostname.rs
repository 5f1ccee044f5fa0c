//! The pod's host name, its domain and the name that the kernel shows.
//!
//! Input: the spec and the cluster's domain. Output: names within the kernel's limit of 64 bytes,
//! or an error with the kubelet's text. Pure.

use k8s_openapi::api::core::v1::Pod;

use pintle_api_types::pod;

/// Longest host name in bytes: one label.
pub const HOSTNAME_BYTES_MAX: usize = 63;
/// Longest name of the kernel's nodename field in bytes.
pub const FQDN_BYTES_MAX: usize = 64;
/// Longest DNS subdomain in bytes.
const SUBDOMAIN_BYTES_MAX: usize = 253;

/// A pod's host name and its domain within the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodHostname {
    /// Short name, at most 63 bytes.
    pub host: String,
    /// `<subdomain>.<namespace>.svc.<domain>`; empty without a subdomain.
    pub domain: String,
}

/// Why a pod cannot have its requested name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostnameError {
    /// A field is no DNS name.
    #[error("pod {field} {value:?} is not a valid DNS {kind}")]
    NotDns {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// `label` or `subdomain`.
        kind: &'static str,
    },
    /// Nothing is left after cutting.
    #[error("hostname for pod {pod:?} was invalid: {hostname:?}")]
    Empty {
        /// The pod's name.
        pod: String,
        /// The host name before cutting.
        hostname: String,
    },
    /// `setHostnameAsFQDN` with a name that the kernel cannot hold.
    #[error(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {fqdn} is too long \
         ({FQDN_BYTES_MAX} characters is the max, {} characters requested)",
        fqdn.len()
    )]
    FqdnTooLong {
        /// The whole name.
        fqdn: String,
    },
}

/// Host name and domain of a pod.
// k8s: pkg/kubelet/kubelet_pods.go GeneratePodHostNameAndDomain
pub fn pod_hostname(pod: &Pod, cluster_domain: &str) -> Result<PodHostname, HostnameError> {
    let spec = pod::spec(pod);
    let name = pod::name(pod);
    if let Some(own) = spec.hostname_override.as_deref() {
        check(is_subdomain(own), "HostnameOverride", own, "subdomain")?;
        return Ok(PodHostname { host: cut(name, own)?, domain: String::new() });
    }
    let wanted = spec.hostname.as_deref().filter(|hostname| !hostname.is_empty());
    if let Some(hostname) = wanted {
        check(is_label(hostname), "Hostname", hostname, "label")?;
    }
    let host = cut(name, wanted.unwrap_or(name))?;
    let domain = match spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty()) {
        Some(subdomain) => {
            check(is_label(subdomain), "Subdomain", subdomain, "label")?;
            format!("{subdomain}.{}.svc.{cluster_domain}", pod::namespace(pod))
        }
        None => String::new(),
    };
    Ok(PodHostname { host, domain })
}

/// The name for the sandbox: the short one, or the whole one with `setHostnameAsFQDN`.
// k8s: pkg/kubelet/util/util.go GetNodenameForKernel
pub fn kernel_hostname(name: &PodHostname, as_fqdn: bool) -> Result<String, HostnameError> {
    if !as_fqdn || name.domain.is_empty() {
        return Ok(name.host.clone());
    }
    let fqdn = format!("{}.{}", name.host, name.domain);
    if fqdn.len() > FQDN_BYTES_MAX {
        return Err(HostnameError::FqdnTooLong { fqdn });
    }
    Ok(fqdn)
}

fn check(
    ok: bool,
    field: &'static str,
    value: &str,
    kind: &'static str,
) -> Result<(), HostnameError> {
    if ok { Ok(()) } else { Err(HostnameError::NotDns { field, value: value.to_owned(), kind }) }
}

// k8s: pkg/kubelet/kubelet_pods.go truncatePodHostnameIfNeeded
fn cut(pod: &str, hostname: &str) -> Result<String, HostnameError> {
    if hostname.len() <= HOSTNAME_BYTES_MAX {
        return Ok(hostname.to_owned());
    }
    let mut end = HOSTNAME_BYTES_MAX;
    while !hostname.is_char_boundary(end) {
        end -= 1;
    }
    let cut = hostname[..end].trim_end_matches(['-', '.']);
    if cut.is_empty() {
        let hostname = hostname.to_owned();
        return Err(HostnameError::Empty { pod: pod.to_owned(), hostname });
    }
    Ok(cut.to_owned())
}

/// One lower-case DNS label.
fn is_label(text: &str) -> bool {
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= HOSTNAME_BYTES_MAX
        && bytes.iter().all(|byte| inner(byte) || *byte == b'-')
        && bytes.first().is_some_and(inner)
        && bytes.last().is_some_and(inner)
}

/// Dotted lower-case DNS labels; the parts have no limit of their own here, as upstream.
fn is_subdomain(text: &str) -> bool {
    let part_ok = |part: &str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    text.len() <= SUBDOMAIN_BYTES_MAX && text.split('.').all(part_ok)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn pod(name: &str, spec: serde_json::Value) -> Pod {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "spec": spec}))
            .expect("a pod")
    }

    fn name(host: &str, domain: &str) -> PodHostname {
        PodHostname { host: host.to_owned(), domain: domain.to_owned() }
    }

    #[test]
    fn the_name_comes_from_the_override_the_hostname_or_the_pod() {
        let table = [
            (json!({}), name("p", "")),
            (json!({"hostname": "h"}), name("h", "")),
            (json!({"hostname": ""}), name("p", "")),
            (json!({"subdomain": "s"}), name("p", "s.ns.svc.cluster.local")),
            (json!({"hostname": "h", "subdomain": "s"}), name("h", "s.ns.svc.cluster.local")),
            (
                json!({"hostnameOverride": "a.b", "hostname": "h", "subdomain": "s"}),
                name("a.b", ""),
            ),
        ];
        for (spec, want) in table {
            assert_eq!(pod_hostname(&pod("p", spec.clone()), "cluster.local"), Ok(want), "{spec}");
        }
    }

    #[test]
    fn a_long_pod_name_is_cut_and_does_not_end_in_a_dash_or_dot() {
        let long = format!("{}-.-tail", "a".repeat(61));
        let got = pod_hostname(&pod(&long, json!({})), "c").expect("a name");
        assert_eq!(got.host, "a".repeat(61));
        let dashes = "-".repeat(70);
        assert!(matches!(
            pod_hostname(&pod(&dashes, json!({})), "c"),
            Err(HostnameError::Empty { .. })
        ));
    }

    #[test]
    fn names_that_are_no_dns_names_are_refused() {
        for spec in [
            json!({"hostname": "Upper"}),
            json!({"hostname": "a.b"}),
            json!({"subdomain": "-a"}),
            json!({"hostnameOverride": "a..b"}),
            json!({"hostnameOverride": ""}),
        ] {
            let got = pod_hostname(&pod("p", spec.clone()), "c");
            assert!(matches!(got, Err(HostnameError::NotDns { .. })), "{spec} {got:?}");
        }
    }

    #[test]
    fn kernel_hostname_is_the_fqdn_only_when_requested_and_short_enough() {
        let short = name("h", "s.ns.svc.cluster.local");
        assert_eq!(kernel_hostname(&short, false), Ok("h".to_owned()));
        assert_eq!(kernel_hostname(&short, true), Ok("h.s.ns.svc.cluster.local".to_owned()));
        assert_eq!(kernel_hostname(&name("h", ""), true), Ok("h".to_owned()));
        let long = name(&"h".repeat(60), "s.ns");
        let error = kernel_hostname(&long, true).expect_err("too long").to_string();
        assert!(error.ends_with("(64 characters is the max, 65 characters requested)"), "{error}");
    }

    proptest! {
        #[test]
        fn names_stay_within_the_kernels_limits(
            pod_name in "[a-z0-9.-]{1,253}", host in "[a-z]{0,80}",
        ) {
            let pod = pod(&pod_name, json!({"hostname": host, "subdomain": "sub"}));
            if let Ok(name) = pod_hostname(&pod, "cluster.local") {
                prop_assert!(name.host.len() <= HOSTNAME_BYTES_MAX && !name.host.is_empty());
                if let Ok(kernel) = kernel_hostname(&name, true) {
                    prop_assert!(kernel.len() <= FQDN_BYTES_MAX);
                }
            }
        }
    }
}
