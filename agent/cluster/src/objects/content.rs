//! Content of volumes, from the objects of the API server.

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::payload::{
    CertificateRequest, ContentError, Credentials, KeyValues, TokenRequest, TrustRequest,
};
use pintle_agent_host::volume::content::{ContentSource, NoContent};

use super::Objects;
use super::references::{ObjectName, ReferenceKind};
use super::tokens::TokenKey;

/// The objects that one pod's volumes may show.
pub struct PodContent<'a> {
    objects: &'a Objects,
    uid: &'a PodUid,
    pod: &'a Pod,
}

impl Objects {
    /// The objects that this pod's volumes may show; the pod has to be registered.
    pub fn content<'a>(&'a self, uid: &'a PodUid, pod: &'a Pod) -> PodContent<'a> {
        PodContent { objects: self, uid, pod }
    }
}

impl PodContent<'_> {
    async fn values(&self, key: ObjectName) -> Result<KeyValues, ContentError> {
        match self.objects.object(self.uid, &key).await {
            Ok(object) => Ok(object.values()),
            Err(LookupError::NotFound | LookupError::NoApi) => {
                Err(ContentError::NotFound { kind: key.kind.singular(), name: key.name })
            }
            Err(LookupError::Failed(text)) => Err(ContentError::Failed(text)),
        }
    }
}

impl ContentSource for PodContent<'_> {
    async fn config_map(&self, namespace: &str, name: &str) -> Result<KeyValues, ContentError> {
        self.values(ObjectName::new(ReferenceKind::ConfigMap, namespace, name)).await
    }

    async fn secret(&self, namespace: &str, name: &str) -> Result<KeyValues, ContentError> {
        self.values(ObjectName::new(ReferenceKind::Secret, namespace, name)).await
    }

    async fn token(&self, request: &TokenRequest) -> Result<String, ContentError> {
        let Some(shared) = &self.objects.0 else {
            let text = "no API server to ask for a service account token";
            return Err(ContentError::Failed(text.to_owned()));
        };
        let token = shared.tokens.token(self.uid, self.pod, &TokenKey::of_volume(request)).await;
        token
            .map(|token| token.to_string())
            .map_err(|error| ContentError::Failed(error.to_string()))
    }

    async fn trust_bundle(&self, request: &TrustRequest) -> Result<Vec<u8>, ContentError> {
        let shared = self.objects.0.as_ref();
        match shared.and_then(|shared| shared.trust_bundles.as_ref()) {
            Some(bundles) => {
                let found = bundles.get(self.uid, request).await;
                found.map_err(|error| ContentError::Failed(error.to_string()))
            }
            None => NoContent.trust_bundle(request).await,
        }
    }

    async fn certificate(&self, request: &CertificateRequest) -> Result<Credentials, ContentError> {
        let shared = self.objects.0.as_ref();
        match shared.and_then(|shared| shared.certificates.as_ref()) {
            Some(certificates) => certificates
                .get(self.objects, self.uid, self.pod, request)
                .map_err(ContentError::Failed),
            None => NoContent.certificate(request).await,
        }
    }
}
