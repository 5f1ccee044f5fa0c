//! Fetches what payload volumes show, and has it laid out.
//!
//! Input: a volume's sources. Output: its files, for `atomic` to write. `Content` is implemented by
//! the objects of the API server; `NoContent` stands in without one.

use std::future::Future;

use super::payload::{
    CertificateRequest, ContentError, Credentials, File, KeyValues, Payload, Source, Sources,
    TokenRequest, TrustRequest, certificate_files, checked, clean, lay_out, private_file,
};

/// Where named objects come from. Implemented by the API stage; `NoContent` stands in without one.
pub trait Content {
    /// `data` and `binaryData` of a config map.
    fn config_map(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<KeyValues, ContentError>>;

    /// `data` of a secret.
    fn secret(
        &self,
        namespace: &str,
        name: &str,
    ) -> impl Future<Output = Result<KeyValues, ContentError>>;

    /// A token of the pod's service account, cached while it is fresh.
    fn token(&self, request: &TokenRequest) -> impl Future<Output = Result<String, ContentError>>;

    /// Certificates of trust bundles, as PEM.
    // k8s: pkg/kubelet/clustertrustbundle/clustertrustbundle_manager.go NoopManager
    fn trust_bundle(
        &self,
        _: &TrustRequest,
    ) -> impl Future<Output = Result<Vec<u8>, ContentError>> {
        let text = "ClusterTrustBundle projection is not supported in static kubelet mode";
        std::future::ready(Err(ContentError::Failed(text.to_owned())))
    }

    /// The pod's certificate, once it is issued.
    fn certificate(
        &self,
        _: &CertificateRequest,
    ) -> impl Future<Output = Result<Credentials, ContentError>> {
        let text = "PodCertificate projection is not supported in static kubelet mode";
        std::future::ready(Err(ContentError::Failed(text.to_owned())))
    }
}

/// Standalone mode: there is no API server to ask.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContent;

impl Content for NoContent {
    async fn config_map(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        Err(ContentError::NotFound { kind: "configmap", name: name.to_owned() })
    }

    async fn secret(&self, _: &str, name: &str) -> Result<KeyValues, ContentError> {
        Err(ContentError::NotFound { kind: "secret", name: name.to_owned() })
    }

    async fn token(&self, _: &TokenRequest) -> Result<String, ContentError> {
        Err(ContentError::Failed("no API server to ask for a service account token".to_owned()))
    }
}

/// Fetches and lays out all files of a volume. All errors of its sources are reported together.
// k8s: pkg/volume/projected/projected.go collectData
pub async fn collect(sources: &Sources, content: &impl Content) -> Result<Payload, String> {
    let mut payload = Payload::new();
    let mut errors = Vec::new();
    let (ns, mode) = (&sources.namespace, sources.default_mode);
    for source in &sources.list {
        let files = match source {
            Source::ConfigMap(keys) => {
                let found = content.config_map(ns, &keys.name).await;
                lay_out("configmap references non-existent config key", keys, found, mode)
            }
            Source::Secret(keys) => {
                let found = content.secret(ns, &keys.name).await;
                lay_out("references non-existent secret key", keys, found, mode)
            }
            Source::Field { path, mode: own, data } => data.clone().map(|text| {
                let (data, mode) = (text.into_bytes(), own.unwrap_or(mode));
                Payload::from([(clean(path), File { data, mode, owner: None })])
            }),
            Source::Token(request) => {
                let token = content.token(request).await.map_err(|e| e.to_string());
                token.map(|token| private_file(sources, &request.path, token.into_bytes()))
            }
            Source::TrustBundle(request) => {
                let pem = content.trust_bundle(request).await.map_err(|e| e.to_string());
                pem.map(|pem| private_file(sources, &request.path, pem))
            }
            Source::Certificate(request) => {
                let found = content.certificate(request).await.map_err(|e| e.to_string());
                found.map(|found| certificate_files(sources, request, &found))
            }
        };
        match files {
            Ok(files) => payload.extend(files),
            Err(error) => errors.push(error),
        }
    }
    match errors.len() {
        0 => checked(payload),
        1 => Err(errors.remove(0)),
        _ => Err(format!("[{}]", errors.join(", "))),
    }
}

#[cfg(test)]
mod tests;
