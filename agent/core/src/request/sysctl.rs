//! Which kernel parameters a pod may set.
//!
//! Input: the pod's `sysctls`, the node's allow list, the kernel's version. Output: a refusal in
//! the kubelet's words, and names as CRI wants them. A parameter is safe when the kernel keeps it
//! per namespace and other pods cannot notice; others need `allowedUnsafeSysctls`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, Serialize};

use pintle_api_types::pod;

/// Reason of a refused pod's status.
pub const FORBIDDEN_REASON: &str = "SysctlForbidden";

/// Safe parameters and the kernel (major, minor) since which each is.
// k8s: pkg/kubelet/sysctl/safe_sysctls.go safeSysctls
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Namespaced parameters by prefix.
// k8s: staging/src/k8s.io/component-helpers/node/util/sysctl/namespace.go
const PREFIXES: [(&str, Namespace); 5] = [
    ("kernel.shm", Namespace::Ipc),
    ("kernel.msg", Namespace::Ipc),
    ("kernel.sem", Namespace::Ipc),
    ("fs.mqueue.", Namespace::Ipc),
    ("net.", Namespace::Net),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Namespace {
    Ipc,
    Net,
}

impl Namespace {
    fn word(self) -> &'static str {
        match self {
            Self::Ipc => "ipc",
            Self::Net => "net",
        }
    }
}

/// Why a pod's parameters are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// Neither safe nor allowed.
    #[error("forbidden sysctl: {0:?} not allowlisted")]
    NotAllowed(String),
    /// It would change the node.
    #[error("forbidden sysctl: {name:?} not allowed with host {namespace} enabled")]
    HostNamespace {
        /// The parameter.
        name: String,
        /// `ipc` or `net`.
        namespace: &'static str,
    },
    /// An entry of the allow list that is not kept per namespace.
    #[error("the sysctls {0:?} are not known to be namespaced")]
    NotNamespaced(String),
}

/// The sysctls that this node lets pods set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllowList {
    /// Whole names, and prefixes of entries that end in `*`.
    entries: Vec<(String, bool)>,
}

impl AllowList {
    /// The safe parameters of a kernel, and the entries of `allowedUnsafeSysctls`.
    // k8s: pkg/kubelet/sysctl/allowlist.go NewAllowlist
    pub fn new(kernel: (u32, u32), unsafe_allowed: &[String]) -> Result<Self, SysctlError> {
        let safe = SAFE.iter().filter(|(_, since)| kernel >= *since);
        let mut entries: Vec<_> = safe.map(|(name, _)| ((*name).to_owned(), false)).collect();
        for pattern in unsafe_allowed {
            let name = normalized(pattern);
            let (name, is_prefix) = match name.strip_suffix('*') {
                Some(prefix) => (prefix.to_owned(), true),
                None => (name, false),
            };
            if namespace_of(&name).is_none() {
                return Err(SysctlError::NotNamespaced(name));
            }
            entries.push((name, is_prefix));
        }
        Ok(Self { entries })
    }

    /// Refuses a pod that sets a forbidden sysctl.
    // k8s: pkg/kubelet/sysctl/allowlist.go Admit
    pub fn admit(&self, pod: &Pod) -> Result<(), SysctlError> {
        let spec = pod::spec(pod);
        let asked = spec.security_context.as_ref().and_then(|context| context.sysctls.as_ref());
        for sysctl in asked.into_iter().flatten() {
            let name = normalized(&sysctl.name);
            let namespace = self.allows(&name).then(|| namespace_of(&name)).flatten();
            let Some(namespace) = namespace else {
                return Err(SysctlError::NotAllowed(name));
            };
            let shared = match namespace {
                Namespace::Ipc => spec.host_ipc == Some(true),
                Namespace::Net => pod::uses_host_network(pod),
            };
            if shared {
                return Err(SysctlError::HostNamespace { name, namespace: namespace.word() });
            }
        }
        Ok(())
    }

    fn allows(&self, name: &str) -> bool {
        let fits = |(entry, is_prefix): &(String, bool)| {
            if *is_prefix { name.starts_with(entry.as_str()) } else { name == entry }
        };
        self.entries.iter().any(fits)
    }
}

/// The parameters of a pod as the sandbox gets them: dotted names.
// k8s: pkg/kubelet/sysctl/util.go ConvertPodSysctlsVariableToDotsSeparator
pub fn sandbox_sysctls(pod: &Pod) -> BTreeMap<String, String> {
    let context = pod::spec(pod).security_context.as_ref();
    let asked = context.and_then(|context| context.sysctls.as_ref()).into_iter().flatten();
    asked.map(|sysctl| (normalized(&sysctl.name), sysctl.value.clone())).collect()
}

fn namespace_of(name: &str) -> Option<Namespace> {
    PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, namespace)| *namespace)
}

/// Slashes become dots when a slash comes before any dot; then dots become slashes too.
// k8s: staging/src/k8s.io/component-helpers/node/util/sysctl/sysctl.go NormalizeName
fn normalized(name: &str) -> String {
    match name.find(['.', '/']) {
        Some(at) if name.as_bytes()[at] == b'/' => name
            .chars()
            .map(|c| match c {
                '/' => '.',
                '.' => '/',
                other => other,
            })
            .collect(),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(sysctl: &str, host: bool) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": [],
            "hostNetwork": host, "hostIPC": host,
            "securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]}}}))
        .expect("a pod")
    }

    #[test]
    fn only_safe_and_allowed_sysctls_are_admitted() {
        let unsafe_allowed = ["net.core.somaxconn".to_owned(), "kernel.msg*".to_owned()];
        let list = AllowList::new((6, 1), &unsafe_allowed).expect("a list");
        for ok in [
            "kernel.shm_rmid_forced",
            "net.ipv4.tcp_rmem",
            "net/ipv4/tcp_rmem",
            "net.core.somaxconn",
            "kernel.msgmax",
        ] {
            assert_eq!(list.admit(&pod(ok, false)), Ok(()), "{ok}");
        }
        let refused = list.admit(&pod("vm.swappiness", false)).expect_err("refused").to_string();
        assert_eq!(refused, "forbidden sysctl: \"vm.swappiness\" not allowlisted");
    }

    #[test]
    fn parameters_of_a_namespace_shared_with_the_node_are_refused() {
        let list = AllowList::new((6, 1), &[]).expect("a list");
        for (name, want) in [
            (
                "kernel.shm_rmid_forced",
                "\"kernel.shm_rmid_forced\" not allowed with host ipc enabled",
            ),
            ("net.ipv4.tcp_rmem", "\"net.ipv4.tcp_rmem\" not allowed with host net enabled"),
        ] {
            let refused = list.admit(&pod(name, true)).expect_err("refused").to_string();
            assert_eq!(refused, format!("forbidden sysctl: {want}"));
        }
    }

    #[test]
    fn an_old_kernel_shrinks_the_safe_list() {
        let list = AllowList::new((4, 14), &[]).expect("a list");
        assert!(list.admit(&pod("net.ipv4.tcp_rmem", false)).is_err());
        assert!(list.admit(&pod("net.ipv4.tcp_fin_timeout", false)).is_ok());
    }

    #[test]
    fn an_allow_list_entry_must_be_namespaced() {
        let error = AllowList::new((6, 1), &["vm.*".to_owned()]).expect_err("refused");
        assert_eq!(error, SysctlError::NotNamespaced("vm.".to_owned()));
    }

    #[test]
    fn names_are_dotted_for_the_runtime() {
        for (name, want) in [
            ("net/ipv4/conf/eth0.1/forwarding", "net.ipv4.conf.eth0/1.forwarding"),
            ("net.ipv4.conf.eth0/1.forwarding", "net.ipv4.conf.eth0/1.forwarding"),
            ("plain", "plain"),
        ] {
            assert_eq!(normalized(name), want);
        }
    }
}
