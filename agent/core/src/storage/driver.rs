//! What the CSIDriver object of a driver says: how its volumes are to be treated on a node.
//!
//! Input: the object, or that there is none. Output: plain values with the kubelet's defaults.
// k8s: pkg/volume/csi/csi_plugin.go skipAttach, podInfoEnabled, RequiresRemount; csi_mounter.go

use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde::{Deserialize, Serialize};

use super::csi::{GroupPolicy, Lifecycle};

/// gRPC's code of an attachment that found the node full.
const RESOURCE_EXHAUSTED: i32 = 8;

/// A token that a driver wants of each pod's account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenWish {
    /// The audience; empty for the API server.
    pub audience: String,
    /// How long; `None` for the API server's choice.
    pub expiration_seconds: Option<i64>,
}

/// How a driver wants its volumes to be treated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSpec {
    /// There is a CSIDriver object.
    pub is_known: bool,
    /// Volumes are attached to the node before they are staged.
    pub is_attach_required: bool,
    /// NodePublishVolume carries the pod's name, namespace, uid and account.
    pub has_pod_info: bool,
    /// Volumes are published again at each sync.
    pub is_republished: bool,
    /// When the agent changes the group of files to the pod's fsGroup.
    pub group_policy: GroupPolicy,
    /// Tokens of the pod's account.
    pub tokens: Vec<TokenWish>,
    /// Tokens come as secrets instead of attributes.
    pub are_tokens_secret: bool,
    /// Lifecycles of its volumes, as the object lists them.
    pub lifecycles: Vec<String>,
    /// Volumes are mounted with a context of SELinux.
    pub mounts_for_selinux: bool,
    /// How often the limit of volumes is to be asked for, in seconds.
    pub limit_period_seconds: Option<i64>,
}

impl DriverSpec {
    /// True when a failed attachment says that the node has no room for one more volume, and the
    /// driver has its limit asked for again.
    // k8s: pkg/volume/csi/csi_plugin.go VerifyExhaustedResource, isResourceExhaustError
    pub fn is_exhausted(&self, attachment: &VolumeAttachment) -> bool {
        let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
        let code = error.and_then(|error| error.error_code);
        self.limit_period_seconds.is_some_and(|seconds| seconds > 0)
            && code == Some(RESOURCE_EXHAUSTED)
    }
}

/// Without an object: persistent volumes, attached first.
impl Default for DriverSpec {
    fn default() -> Self {
        Self {
            is_known: false,
            is_attach_required: true,
            has_pod_info: false,
            is_republished: false,
            group_policy: GroupPolicy::default(),
            tokens: Vec::new(),
            are_tokens_secret: false,
            lifecycles: Vec::new(),
            mounts_for_selinux: false,
            limit_period_seconds: None,
        }
    }
}

impl DriverSpec {
    /// From the object.
    pub fn of(driver: &CSIDriver) -> Self {
        let spec = &driver.spec;
        let tokens = spec.token_requests.iter().flatten().map(|token| TokenWish {
            audience: token.audience.clone(),
            expiration_seconds: token.expiration_seconds,
        });
        Self {
            is_known: true,
            is_attach_required: spec.attach_required != Some(false),
            has_pod_info: spec.pod_info_on_mount == Some(true),
            is_republished: spec.requires_republish == Some(true),
            group_policy: GroupPolicy::parse(spec.fs_group_policy.as_deref().unwrap_or_default()),
            tokens: tokens.collect(),
            are_tokens_secret: spec.service_account_token_in_secrets == Some(true),
            lifecycles: spec.volume_lifecycle_modes.clone().unwrap_or_default(),
            mounts_for_selinux: spec.se_linux_mount == Some(true),
            limit_period_seconds: spec.node_allocatable_update_period_seconds,
        }
    }

    /// Why a volume of this lifecycle cannot be had from the driver.
    // k8s: pkg/volume/csi/csi_mounter.go supportsVolumeLifecycleMode
    pub fn refusal(&self, driver: &str, lifecycle: Lifecycle) -> Option<String> {
        let mode = lifecycle.text();
        if !self.is_known {
            return (lifecycle == Lifecycle::Ephemeral).then(|| {
                format!(
                    "volume mode {mode:?} not supported by driver {driver} (no CSIDriver object)"
                )
            });
        }
        let listed = self.lifecycles.iter().any(|listed| listed == mode);
        (!listed).then(|| {
            let list: Vec<_> = self.lifecycles.iter().map(|mode| format!("{mode:?}")).collect();
            let list = list.join(" ");
            format!(
                "volume mode {mode:?} not supported by driver {driver} (only supports [{list}])"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn spec(spec: serde_json::Value) -> DriverSpec {
        let object = json!({"metadata": {"name": "d"}, "spec": spec});
        DriverSpec::of(&from_value(object).expect("a driver"))
    }

    #[test]
    fn object_without_fields_has_the_defaults_of_no_object() {
        assert_eq!(spec(json!({})), DriverSpec { is_known: true, ..DriverSpec::default() });
    }

    #[test]
    fn lifecycle_that_is_not_listed_is_refused_in_the_kubelets_words() {
        let listed = spec(json!({"volumeLifecycleModes": ["Persistent"]}));
        assert_eq!(listed.refusal("d", Lifecycle::Persistent), None);
        assert_eq!(
            listed.refusal("d", Lifecycle::Ephemeral).as_deref(),
            Some(
                "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"
            )
        );
        let none = DriverSpec::default();
        assert_eq!(none.refusal("d", Lifecycle::Persistent), None);
        assert_eq!(
            none.refusal("d", Lifecycle::Ephemeral).as_deref(),
            Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)")
        );
    }
}
