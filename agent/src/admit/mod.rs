//! Admission: may this pod run on this node at all?
//!
//! Pure. Input: the pod and what the node allows. Output: a refusal, which becomes the pod's
//! terminal status, or nothing. Static pods are asked for what no scheduler has checked for them:
//! kernel parameters that would reach beyond the pod, and the operating system they are made for.
//! Resources and taints come with the API server.
// k8s: pkg/kubelet/kubelet.go HandlePodAdditions, pkg/kubelet/lifecycle/predicate.go

use k8s_openapi::api::core::v1::Pod;

use crate::pod;
use crate::runtime::sysctl::{AllowList, FORBIDDEN_REASON};
use crate::status::Verdict;

/// What the node allows.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    /// Kernel parameters that pods may set.
    pub sysctls: AllowList,
}

impl Admission {
    /// The verdict over a pod that must not run here.
    pub fn refuse(&self, pod: &Pod) -> Option<Verdict> {
        if let Err(error) = self.sysctls.admit(pod) {
            return Some(rejected(FORBIDDEN_REASON, &error.to_string()));
        }
        let os = pod::spec(pod).os.as_ref().map(|os| os.name.as_str());
        match os {
            None | Some("linux") => None,
            Some(_) => {
                let why = "Failed to admit pod as the OS field doesn't match node OS";
                Some(rejected("PodOSNotSupported", why))
            }
        }
    }
}

fn rejected(reason: &str, why: &str) -> Verdict {
    let message = format!("Pod was rejected: {why}");
    Verdict { phase: "Failed".to_owned(), reason: reason.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn reason(spec: Value) -> Option<String> {
        let sysctls = AllowList::new((6, 1), &["net.core.somaxconn".to_owned()]).expect("a list");
        let pod = serde_json::from_value(json!({"metadata": {}, "spec": spec})).expect("a pod");
        Admission { sysctls }.refuse(&pod).map(|verdict| verdict.reason)
    }

    #[test]
    fn a_pod_that_reaches_beyond_itself_or_is_made_for_another_system_is_refused() {
        let sysctl = |name: &str| {
            json!({"containers": [], "securityContext":
                {"sysctls": [{"name": name, "value": "1"}]}})
        };
        assert_eq!(reason(sysctl("net.ipv4.tcp_syncookies")), None);
        assert_eq!(reason(sysctl("net.core.somaxconn")), None);
        assert_eq!(reason(sysctl("kernel.msgmax")).as_deref(), Some("SysctlForbidden"));
        let windows = json!({"containers": [], "os": {"name": "windows"}});
        assert_eq!(reason(windows).as_deref(), Some("PodOSNotSupported"));
        assert_eq!(reason(json!({"containers": [], "os": {"name": "linux"}})), None);
    }
}
