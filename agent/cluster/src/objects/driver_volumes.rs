//! Objects of the API server that calls to CSI drivers need: the CSIDriver, whether a volume is
//! attached, secrets, tokens, the claim that is expanded.
//!
//! Read when a call is made, in the pod's share. CSIDriver specs are cached for when the API server
//! does not answer, so that running volumes can be unmounted. Values of secrets and tokens are
//! passed on and not kept, except for tokens that are still valid (`tokens`). Bound: `DRIVERS_MAX`.
// k8s: pkg/volume/csi/csi_util.go getCredentialsFromSecret, csi_plugin.go getPublishContext

use std::cell::RefCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use pintle_agent_core::storage::csi::{ClaimSize, SecretKey, claim_capacity};
use pintle_agent_core::storage::driver::{DriverSpec, TokenWish};
use pintle_agent_core::storage::expansion;
use pintle_agent_core::types::PodUid;
use pintle_api::TenantShare;
use serde::Serialize;
use serde_json::Value;

use super::tokens::{TokenError, TokenKey};
use super::wire::{self, WireError};
use super::{Objects, ObjectsCore};

/// Number of cached drivers.
const DRIVERS_MAX: usize = 256;

/// The reason for which an object that a CSI driver needs cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverObjectError {
    /// The node has no API server.
    #[error("it needs an API server, and this node has none")]
    Alone,
    /// There is no such object, or the API server does not answer; in its own words.
    #[error("{0}")]
    Api(String),
    /// The status of a claim could not be written.
    #[error("patchPVCStatus failed to patch PVC {claim:?}: {error}")]
    Patch {
        /// The claim's name.
        claim: String,
        /// The API server's words.
        error: String,
    },
    /// A value of a secret is no text, which CSI cannot carry.
    #[error("the value of key {0:?} is no UTF-8 text")]
    NoText(String),
    /// The API server has issued no token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Tokens could not be written as JSON.
    #[error("{0}")]
    Json(String),
}

impl From<WireError> for DriverObjectError {
    fn from(error: WireError) -> Self {
        Self::Api(error.to_string())
    }
}

/// Specs of CSIDriver objects, by name.
#[derive(Debug, Default)]
pub(super) struct DriverSpecs(RefCell<BTreeMap<String, DriverSpec>>);

/// A token, as the API's TokenRequestStatus.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenStatus {
    token: String,
    expiration_timestamp: String,
}

impl Objects {
    fn shared(&self) -> Result<&ObjectsCore, DriverObjectError> {
        self.0.as_deref().ok_or(DriverObjectError::Alone)
    }

    /// The spec of a CSIDriver; as last read while the API server does not answer.
    ///
    /// # Errors
    /// The API server does not answer, and it never has for this driver.
    pub async fn driver_spec(&self, driver: &str) -> Result<DriverSpec, DriverObjectError> {
        let shared = self.shared()?;
        let path = format!("/apis/storage.k8s.io/v1/csidrivers/{driver}");
        let read = wire::read::<CSIDriver>(&shared.client, &TenantShare::default(), &path).await;
        let spec = match read {
            Ok(object) => DriverSpec::of(&object),
            Err(WireError::NotFound(_)) => DriverSpec::default(),
            Err(error) => {
                let known = shared.drivers.0.borrow().get(driver).cloned();
                return known.ok_or_else(|| error.into());
            }
        };
        let mut known = shared.drivers.0.borrow_mut();
        if known.len() < DRIVERS_MAX || known.contains_key(driver) {
            known.insert(driver.to_owned(), spec.clone());
        }
        Ok(spec)
    }

    /// A VolumeAttachment by its name.
    ///
    /// # Errors
    /// There is none, or the API server does not answer; in its own words.
    pub async fn attachment(
        &self,
        uid: &PodUid,
        name: &str,
    ) -> Result<VolumeAttachment, DriverObjectError> {
        let shared = self.shared()?;
        let path = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        let read = wire::read(&shared.client, &TenantShare::of(uid.as_str()), &path).await;
        read.map_err(|error: WireError| error.into())
    }

    /// The claim of a volume, as it is now.
    ///
    /// # Errors
    /// There is none, or the API server does not answer; in its own words.
    pub async fn claim(
        &self,
        uid: &PodUid,
        size: &ClaimSize,
    ) -> Result<PersistentVolumeClaim, DriverObjectError> {
        let shared = self.shared()?;
        let read =
            wire::read(&shared.client, &TenantShare::of(uid.as_str()), &claim_path(size)).await;
        read.map_err(|error: WireError| error.into())
    }

    /// Changes the status of a claim; returns the claim as it is then.
    ///
    /// # Errors
    /// The claim has changed meanwhile, or the API server does not answer.
    // k8s: pkg/volume/util/resize_util.go PatchPVCStatus
    pub async fn patch_claim_status(
        &self,
        uid: &PodUid,
        size: &ClaimSize,
        patch: &Value,
    ) -> Result<PersistentVolumeClaim, DriverObjectError> {
        let shared = self.shared()?;
        let (path, share) = (format!("{}/status", claim_path(size)), TenantShare::of(uid.as_str()));
        let patched = wire::patch(&shared.client, &share, &path, patch).await;
        patched.map_err(|error: WireError| {
            let (claim, error) = (size.name.clone(), error.to_string());
            DriverObjectError::Patch { claim, error }
        })
    }

    /// The sizes of a claim and of its volume as they are now, where they may differ from the known
    /// ones. The PersistentVolume is read only then.
    ///
    /// # Errors
    /// One of them cannot be read; in the API server's words.
    pub async fn sizes(
        &self,
        uid: &PodUid,
        volume: &str,
        known: &ClaimSize,
    ) -> Result<Option<ClaimSize>, DriverObjectError> {
        let claim = self.claim(uid, known).await?;
        if !expansion::is_growing(&claim, known) {
            return Ok(None);
        }
        let shared = self.shared()?;
        let path = format!("/api/v1/persistentvolumes/{volume}");
        let read = wire::read(&shared.client, &TenantShare::of(uid.as_str()), &path).await;
        let volume: PersistentVolume = read?;
        Ok(ClaimSize::of(&volume, claim.status.as_ref().and_then(claim_capacity)))
    }

    /// The values of a secret that a call to a driver carries.
    ///
    /// # Errors
    /// There is none, or the API server does not answer; or a value is no text, which CSI cannot
    /// carry.
    pub async fn driver_secret(
        &self,
        uid: &PodUid,
        key: &SecretKey,
    ) -> Result<BTreeMap<String, String>, DriverObjectError> {
        let shared = self.shared()?;
        let SecretKey { namespace, name } = key;
        let path = format!("/api/v1/namespaces/{namespace}/secrets/{name}");
        let read =
            wire::read::<Secret>(&shared.client, &TenantShare::of(uid.as_str()), &path).await;
        let secret = read?;
        let text =
            |(key, value): (String, k8s_openapi::ByteString)| match String::from_utf8(value.0) {
                Ok(text) => Ok((key, text)),
                Err(_) => Err(DriverObjectError::NoText(key)),
            };
        secret.data.unwrap_or_default().into_iter().map(text).collect()
    }

    /// Tokens of the pod's account that a driver wants, as the JSON that it is given.
    // k8s: pkg/volume/csi/csi_mounter.go podServiceAccountTokenAttrs
    pub async fn driver_tokens(
        &self,
        uid: &PodUid,
        pod: &Pod,
        wishes: &[TokenWish],
    ) -> Result<String, DriverObjectError> {
        let shared = self.shared()?;
        let mut tokens = BTreeMap::new();
        for TokenWish { audience, expiration_seconds } in wishes {
            let key = TokenKey {
                audience: audience.clone(),
                expiration_seconds: *expiration_seconds,
                account_uid: String::new(),
            };
            let issued = shared.tokens.token_with_end(uid, pod, &key).await;
            let (token, ends_at) = issued?;
            let token = token.to_string();
            let expiration_timestamp = ends_at.to_rfc3339();
            tokens.insert(audience, TokenStatus { token, expiration_timestamp });
        }
        serde_json::to_string(&tokens).map_err(|error| DriverObjectError::Json(error.to_string()))
    }
}

fn claim_path(size: &ClaimSize) -> String {
    let ClaimSize { namespace, name, .. } = size;
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}")
}
