//! Fetches the content of payload volumes and lays it out as files.
//!
//! Input: a volume's sources. Output: its files, for `atomic` to write. `ContentSource` is
//! implemented by the objects of the API server; `NoContent` stands in without one. The deciding
//! thread fetches, so each object is read once per volume, however many sources name it; a job in
//! the pool lays out.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use pintle_agent_core::env::downward::DownwardError;

use super::payload::{
    CertificateRequest, ContentError, Credentials, KeyValues, Payload, PayloadError, PayloadFile,
    PayloadSource, PayloadSources, TokenRequest, TrustRequest, certificate_files, checked, clean,
    lay_out, private_file,
};

/// All files of a pod's volumes of files: most of them lie in memory.
pub const POD_BYTES_MAX: usize = 256 << 20;

/// Where named objects come from. Implemented by the API stage; `NoContent` stands in without one.
pub trait ContentSource {
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

impl ContentSource for NoContent {
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

/// The fetched contents of one volume's sources, in order, before they are laid out. An object that
/// several sources name is stored once.
#[derive(Default)]
pub struct Fetched {
    answers: Vec<FetchedContent>,
    /// Bytes of the fetched contents in memory, without those of the sources themselves.
    pub bytes: usize,
}

enum FetchedContent {
    /// The source itself has its content.
    InSource,
    Object(Object),
    Text(Shown),
    Certificate(Result<Credentials, ContentError>),
}

type Object = Arc<Result<KeyValues, ContentError>>;
type Shown = Result<Arc<[u8]>, ContentError>;

/// Fetches the content of a volume.
pub async fn fetch(sources: &PayloadSources, content: &impl ContentSource) -> Fetched {
    let namespace = &sources.namespace;
    let (objects, bundles) = (BTreeMap::new(), BTreeMap::new());
    let mut known = FetchedObjects { content, namespace, objects, bundles, bundle_bytes: 0 };
    let mut fetched = Fetched::default();
    for source in &sources.list {
        fetched.answers.push(match source {
            PayloadSource::ConfigMap(keys) => {
                FetchedContent::Object(known.object(false, &keys.name).await)
            }
            PayloadSource::Secret(keys) => {
                FetchedContent::Object(known.object(true, &keys.name).await)
            }
            PayloadSource::Field { .. } => FetchedContent::InSource,
            PayloadSource::Token(request) => {
                let token = content.token(request).await;
                FetchedContent::Text(token.map(|token| token.into_bytes().into()))
            }
            PayloadSource::TrustBundle(request) => {
                FetchedContent::Text(known.bundle(request).await)
            }
            PayloadSource::Certificate(request) => {
                let found = content.certificate(request).await;
                FetchedContent::Certificate(found)
            }
        });
    }
    fetched.bytes = known.bytes();
    fetched
}

/// The objects that were fetched for a volume so far.
struct FetchedObjects<'a, C> {
    content: &'a C,
    namespace: &'a str,
    /// By name, of secrets and of config maps.
    objects: BTreeMap<(bool, &'a str), Object>,
    bundles: BTreeMap<String, Shown>,
    bundle_bytes: usize,
}

impl<'a, C: ContentSource> FetchedObjects<'a, C> {
    async fn object(&mut self, is_secret: bool, name: &'a str) -> Object {
        if let Some(known) = self.objects.get(&(is_secret, name)) {
            return Arc::clone(known);
        }
        let found = Arc::new(match is_secret {
            true => self.content.secret(self.namespace, name).await,
            false => self.content.config_map(self.namespace, name).await,
        });
        self.objects.insert((is_secret, name), Arc::clone(&found));
        found
    }

    async fn bundle(&mut self, request: &TrustRequest) -> Shown {
        let TrustRequest { name, signer, labels, optional, .. } = request;
        let key = format!("{name:?} {signer:?} {labels:?} {optional}");
        if let Some(known) = self.bundles.get(&key) {
            return known.clone();
        }
        if self.bundle_bytes > POD_BYTES_MAX {
            // It could not be written anyway.
            return Err(ContentError::Failed(LayoutError::TooLarge.to_string()));
        }
        let pem = self.content.trust_bundle(request).await;
        self.bundle_bytes += pem.as_ref().map_or(0, Vec::len);
        let pem = pem.map(Arc::from);
        self.bundles.insert(key, pem.clone());
        pem
    }

    fn bytes(&self) -> usize {
        let objects = self.objects.values().filter_map(|object| object.as_ref().as_ref().ok());
        let values = objects.flat_map(|object| object.values());
        values.map(|value| value.len()).sum::<usize>() + self.bundle_bytes
    }
}

/// The reason for which one source of a volume gives no files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Its object or a path of it.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// A field of the pod.
    #[error(transparent)]
    Field(#[from] DownwardError),
}

/// The reason for which the files of a volume cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// One source.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Several sources.
    #[error("[{}]", .0.iter().map(SourceError::to_string).collect::<Vec<_>>().join(", "))]
    Several(Vec<SourceError>),
    /// The files together.
    #[error(transparent)]
    Payload(#[from] PayloadError),
    /// The files of the pod are too large.
    #[error("the files of a pod's volumes may have {} bytes together", POD_BYTES_MAX)]
    TooLarge,
}

impl Fetched {
    /// All files of the volume. All errors of its sources are reported together.
    // k8s: pkg/volume/projected/projected.go collectData
    pub fn lay_out(&self, sources: &PayloadSources) -> Result<Payload, LayoutError> {
        let mut payload = Payload::new();
        let mut errors = Vec::new();
        for (source, answer) in sources.list.iter().zip(&self.answers) {
            match files(sources, source, answer) {
                Ok(files) => payload.extend(files),
                Err(error) => errors.push(error),
            }
        }
        match errors.len() {
            0 => Ok(checked(payload)?),
            1 => Err(errors.remove(0).into()),
            _ => Err(LayoutError::Several(errors)),
        }
    }
}

fn files(
    sources: &PayloadSources,
    source: &PayloadSource,
    answer: &FetchedContent,
) -> Result<Payload, SourceError> {
    let mode = sources.default_mode;
    let private = |path, text: &Shown| match text {
        Ok(text) => Ok(private_file(sources, path, Arc::clone(text))),
        Err(error) => Err(PayloadError::from(error.clone()).into()),
    };
    match (source, answer) {
        (PayloadSource::ConfigMap(keys), FetchedContent::Object(found)) => {
            Ok(lay_out("configmap references non-existent config key", keys, found, mode)?)
        }
        (PayloadSource::Secret(keys), FetchedContent::Object(found)) => {
            Ok(lay_out("references non-existent secret key", keys, found, mode)?)
        }
        (PayloadSource::Field { path, mode: own, data }, _) => {
            let data = data.clone()?;
            let mode = own.unwrap_or(mode);
            Ok(Payload::from([(clean(path), PayloadFile { data, mode, owner: None })]))
        }
        (PayloadSource::Token(request), FetchedContent::Text(text)) => private(&request.path, text),
        (PayloadSource::TrustBundle(request), FetchedContent::Text(text)) => {
            private(&request.path, text)
        }
        (PayloadSource::Certificate(request), FetchedContent::Certificate(found)) => found
            .as_ref()
            .map(|found| certificate_files(sources, request, found))
            .map_err(|error| PayloadError::from(error.clone()).into()),
        _ => unreachable!("each source has an answer of its kind"),
    }
}

#[cfg(test)]
mod tests;
