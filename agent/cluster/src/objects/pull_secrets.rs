//! A pod's credentials for registries: its `imagePullSecrets`.
//!
//! Those of its service account stand in the pod too, as admission puts them there. A missing
//! secret is reported by an event and does not stop the pod: the image may be present or need none.
// k8s: pkg/kubelet/kubelet_pods.go getPullSecretsForPod

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::image::keyring::Keyring;
use pintle_agent_core::types::PodUid;

use super::Objects;
use super::references::{ObjectName, ReferenceKind};

/// Reason why a secret has no credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct KeyringError(String);

impl KeyringError {
    /// The error with these words.
    pub fn new(words: impl std::fmt::Display) -> Self {
        Self(words.to_string())
    }
}

/// The registries that a pod may pull from.
#[derive(Debug)]
pub struct PullSecrets {
    /// The credentials, or why a secret cannot be read as such.
    pub keyring: Result<Keyring, KeyringError>,
    /// Names of secrets that are not there.
    pub missing: Vec<String>,
}

impl PullSecrets {
    /// The event about missing secrets.
    pub fn warning(&self) -> Option<String> {
        let names = self.missing.join(", ");
        (!names.is_empty()).then(|| {
            format!(
                "Unable to retrieve some image pull secrets ({names}); attempting to pull the \
                 image may not succeed."
            )
        })
    }
}

impl Objects {
    /// The pull secrets of a registered pod.
    pub async fn pull_secrets(&self, uid: &PodUid, pod: &Pod) -> PullSecrets {
        let (mut keyring, mut missing) = (Keyring::default(), Vec::new());
        let mut broken = None;
        let namespace = pintle_api_types::pod::namespace(pod);
        // A name may stand there a thousand times.
        let mut seen = BTreeSet::from([""]);
        for reference in pintle_api_types::pod::spec(pod).image_pull_secrets.iter().flatten() {
            if !seen.insert(&reference.name) {
                continue;
            }
            let key = ObjectName::new(ReferenceKind::Secret, namespace, &reference.name);
            let found = self.object(uid, &key).await;
            match found.as_ref().ok().and_then(|object| object.secret()) {
                Some(secret) => {
                    let failed = keyring.add_secret(secret).err();
                    broken = failed.map(KeyringError::new).or(broken);
                }
                None => missing.push(reference.name.clone()),
            }
        }
        PullSecrets { keyring: broken.map_or(Ok(keyring), Err), missing }
    }
}
