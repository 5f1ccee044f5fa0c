//! The record of a pulled image, in the kubelet's own form: pure.
//!
//! An intent records that a pull began; a record names the owners of the credentials that pulled
//! it. Either agent reads the other's files. A record holds hashes of credentials, never the
//! credentials.
// k8s: staging/src/k8s.io/kubelet/config/v1beta1/types.go ImagePullIntent, ImagePulledRecord

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::image::pull_credential::{Coordinates, Credential, CredentialSource, sha256_hex};
use pintle_api_types::pod::image_name::without_tag;

/// The version that is written; the older one is read, too.
const VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const OLD_VERSION: &str = "kubelet.config.k8s.io/v1alpha1";

/// Files begin with this, and hidden or temporary ones do not.
pub const FILE_PREFIX: &str = "sha256-";
/// Ending of the kubelet's temporary files.
pub const TEMPORARY: &str = ".tmp";

/// A pull that began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Intent {
    kind: String,
    api_version: String,
    /// As the pod names it.
    pub image: String,
}

/// An image that was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PulledImage {
    kind: String,
    api_version: String,
    /// To the second, in UTC.
    last_updated_time: Option<String>,
    /// The runtime's id of the image.
    pub image_ref: String,
    /// By the image's name without tag and digest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    credential_mapping: BTreeMap<String, CredentialOwners>,
}

impl PulledImage {
    /// True if it was last changed before this second, which is written in the format of its own
    /// time.
    pub fn is_older_than(&self, second: &str) -> bool {
        self.last_updated_time.as_deref().is_none_or(|at| at < second)
    }
}

/// The owners of the credentials that pulled an image.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CredentialOwners {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<KnownSecret>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<KnownAccount>,
    /// Pulled without credentials, or with the node's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub node_pods_accessible: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct KnownSecret {
    uid: String,
    namespace: String,
    name: String,
    credential_hash: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct KnownAccount {
    uid: String,
    namespace: String,
    name: String,
}

/// The value of a pod's credentials for an image that is present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// Nothing: the registry has to be asked.
    None,
    /// It may use the image.
    Known,
    /// It may, and that is to be remembered.
    Learned(CredentialOwners),
}

/// Secrets of one image after which no more are remembered while credentials are compared.
// k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go writeRecordWhileMatchingLimit
const LEARNED_MAX: usize = 100;

/// Name of an image's file.
pub fn file_name(image: &str) -> String {
    format!("{FILE_PREFIX}{}", sha256_hex(image.as_bytes()))
}

impl Intent {
    /// A pull of this image is about to begin.
    pub fn new(image: &str) -> Self {
        let (kind, api_version) = ("ImagePullIntent".to_owned(), VERSION.to_owned());
        Self { kind, api_version, image: image.to_owned() }
    }

    /// The intent, and whether its file is of the version that is written today.
    pub fn read(text: &[u8]) -> Option<(Self, bool)> {
        let intent: Self = serde_json::from_slice(text).ok()?;
        let current = is_current(&intent.kind, "ImagePullIntent", &intent.api_version)?;
        Some((Self::new(&intent.image), current))
    }

    /// The content of its file.
    pub fn text(&self) -> Vec<u8> {
        line(self)
    }
}

/// `None` for another kind or version.
fn is_current(kind: &str, wanted: &str, version: &str) -> Option<bool> {
    (kind == wanted && matches!(version, VERSION | OLD_VERSION)).then_some(version == VERSION)
}

fn line(object: &impl Serialize) -> Vec<u8> {
    let mut text = serde_json::to_vec(object).unwrap_or_default();
    text.push(b'\n');
    text
}

impl PulledImage {
    /// An image known only to have been pulled.
    pub fn new(image_ref: &str, now: &str) -> Self {
        Self {
            kind: "ImagePulledRecord".to_owned(),
            api_version: VERSION.to_owned(),
            last_updated_time: Some(now.to_owned()),
            image_ref: image_ref.to_owned(),
            credential_mapping: BTreeMap::new(),
        }
    }

    /// The record, and whether its file is of the version that is written today.
    pub fn read(text: &[u8]) -> Option<(Self, bool)> {
        let mut record: Self = serde_json::from_slice(text).ok()?;
        let current = is_current(&record.kind, "ImagePulledRecord", &record.api_version)?;
        record.api_version = VERSION.to_owned();
        Some((record, current))
    }

    /// The content of its file.
    pub fn text(&self) -> Vec<u8> {
        line(self)
    }

    /// The owners known for an image of this name.
    pub fn known(&self, image: &str) -> Option<&CredentialOwners> {
        self.credential_mapping.get(without_tag(image))
    }

    /// The record with more known about an image; `None` when that is nothing new.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go pulledRecordMergeNewCreds
    #[must_use]
    pub fn with(&self, image: &str, new: &CredentialOwners, now: &str) -> Option<Self> {
        if new == &CredentialOwners::default() {
            return None;
        }
        let name = without_tag(image);
        let merged = match self.credential_mapping.get(name) {
            None => new.clone(),
            Some(old) => old.with(new)?,
        };
        let mut record = self.clone();
        record.credential_mapping.insert(name.to_owned(), merged);
        record.last_updated_time = Some(now.to_owned());
        Some(record)
    }
}

impl CredentialOwners {
    /// The record of a pull with this credential; `None` stands for a pull without one.
    // k8s: pkg/kubelet/images/image_manager.go trackedToImagePullCreds
    pub fn of_pull(credential: Option<&Credential>) -> Self {
        let mut known = Self::default();
        match credential.map(|credential| (credential, &credential.source)) {
            None | Some((_, CredentialSource::Node)) => known.node_pods_accessible = true,
            Some((credential, CredentialSource::Secret(of))) => {
                known.kubernetes_secrets.push(KnownSecret::of(of, credential));
            }
            Some((_, CredentialSource::ServiceAccount(of))) => {
                known.kubernetes_service_accounts.push(KnownAccount::of(of));
            }
        }
        known
    }

    /// True when the pod's credentials are worth a look.
    pub fn names_credentials(&self) -> bool {
        !self.kubernetes_secrets.is_empty() || !self.kubernetes_service_accounts.is_empty()
    }

    /// `None` when `new` adds nothing.
    fn with(&self, new: &Self) -> Option<Self> {
        if self.node_pods_accessible {
            return None;
        }
        if new.node_pods_accessible {
            return Some(Self { node_pods_accessible: true, ..Self::default() });
        }
        let mut merged = self.clone();
        if new.kubernetes_secrets.is_empty() {
            for account in &new.kubernetes_service_accounts {
                if !merged.kubernetes_service_accounts.contains(account) {
                    merged.kubernetes_service_accounts.push(account.clone());
                }
            }
            let by_name = |a: &KnownAccount| (a.namespace.clone(), a.name.clone(), a.uid.clone());
            merged.kubernetes_service_accounts.sort_by_key(by_name);
        } else {
            for secret in &new.kubernetes_secrets {
                merged.kubernetes_secrets.retain(|old| !old.is_of_same(secret));
                merged.kubernetes_secrets.push(secret.clone());
            }
            let by_name = |s: &KnownSecret| (s.namespace.clone(), s.name.clone(), s.uid.clone());
            merged.kubernetes_secrets.sort_by_key(by_name);
        }
        (merged != *self).then_some(merged)
    }

    /// Compares a pod's credentials with those that the image was pulled with. A secret matches by
    /// its content or by being the same object, an account by being the same.
    // k8s: pkg/kubelet/images/pullmanager/image_pull_manager.go MustAttemptImagePull
    pub fn compare(&self, credentials: &[Credential]) -> Match {
        let may_learn = self.kubernetes_secrets.len() < LEARNED_MAX;
        for credential in credentials {
            let CredentialSource::Secret(of) = &credential.source else { continue };
            let secret = KnownSecret::of(of, credential);
            for known in &self.kubernetes_secrets {
                let same_words = !known.credential_hash.is_empty()
                    && known.credential_hash == secret.credential_hash;
                let same_object = known.is_of_same(&secret);
                if same_words && (same_object || !may_learn) {
                    return Match::Known;
                }
                if may_learn && (same_words || same_object) {
                    let kubernetes_secrets = vec![secret];
                    return Match::Learned(Self { kubernetes_secrets, ..Self::default() });
                }
            }
        }
        let mut accounts = credentials.iter().filter_map(|credential| match &credential.source {
            CredentialSource::ServiceAccount(of) => Some(KnownAccount::of(of)),
            _ => None,
        });
        match accounts.next() {
            Some(account) if self.kubernetes_service_accounts.contains(&account) => Match::Known,
            _ => Match::None,
        }
    }
}

impl KnownSecret {
    fn of(at: &Coordinates, credential: &Credential) -> Self {
        let Coordinates { uid, namespace, name } = at.clone();
        Self { uid, namespace, name, credential_hash: credential.hash() }
    }

    fn is_of_same(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }
}

impl KnownAccount {
    fn of(at: &Coordinates) -> Self {
        let Coordinates { uid, namespace, name } = at.clone();
        Self { uid, namespace, name }
    }
}

#[cfg(test)]
mod tests;
