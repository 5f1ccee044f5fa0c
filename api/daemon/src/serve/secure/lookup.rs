//! The authorities that a cluster publishes for its daemons: of client certificates, and of trusted
//! proxies.
//!
//! Input: the config map `extension-apiserver-authentication`. Output: [`ClusterAuthorities`], kept
//! current by a watch. Effects. Owner: the server's thread. Bounds: one object of the API.
//! Unreadable content leaves the earlier authorities in force.
// k8s: staging/src/k8s.io/apiserver/pkg/server/options/authentication.go,
//      staging/src/k8s.io/apiserver/pkg/authentication/request/headerrequest/requestheader_controller.go

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::Api;
use pintle_api::informer::{FollowSpec, ObjectSink, follow};
use pintle_api_types::object::UnreadableObject;

use super::client_ca::ClientCa;
use super::proxy::{Headers, RequestProxy};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "extension-apiserver-authentication";
/// Timeout of the first read.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Reason why the cluster's authorities are not known.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// The config map cannot be read.
    #[error(transparent)]
    Get(#[from] kube::Error),
    /// The API server did not answer.
    #[error("no answer within {0:?}")]
    Late(Duration),
    /// A field of the config map is invalid.
    #[error("{field}: {reason}")]
    Field {
        /// Its name.
        field: String,
        /// The fault.
        reason: String,
    },
}

impl LookupError {
    fn field(field: &str, reason: impl std::fmt::Display) -> Self {
        Self::Field { field: field.to_owned(), reason: reason.to_string() }
    }
}

/// The authorities that the cluster publishes.
pub struct ClusterAuthorities {
    pub(super) client_ca: ClientCa,
    proxy: Mutex<Option<Arc<RequestProxy>>>,
}

impl Default for ClusterAuthorities {
    fn default() -> Self {
        Self { client_ca: ClientCa::unset(), proxy: Mutex::default() }
    }
}

impl std::fmt::Debug for ClusterAuthorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterAuthorities").finish_non_exhaustive()
    }
}

impl ClusterAuthorities {
    /// Looks once.
    ///
    /// # Errors
    /// When the config map cannot be had or read.
    pub async fn look(&self, client: kube::Client) -> Result<(), LookupError> {
        let maps: Api<ConfigMap> = Api::namespaced(client, NAMESPACE);
        match tokio::time::timeout(LOOK_MAX, maps.get(NAME)).await {
            Ok(Ok(map)) => self.take(&map),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(LookupError::Late(LOOK_MAX)),
        }
    }

    /// Applies the config map's content, for as long as it runs.
    pub async fn follow(self: Arc<Self>, client: kube::Client) {
        let mut spec = FollowSpec::new(NAME, &format!("/api/v1/namespaces/{NAMESPACE}/configmaps"));
        spec.source.field_selector = format!("metadata.name={NAME}");
        follow::<ConfigMap, _>(client, spec, LookupReply(self)).await;
    }

    pub(super) fn proxy(&self) -> Option<Arc<RequestProxy>> {
        self.proxy.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn take(&self, map: &ConfigMap) -> Result<(), LookupError> {
        let empty = BTreeMap::new();
        let data = map.data.as_ref().unwrap_or(&empty);
        if let Some(pem) = data.get("client-ca-file").filter(|pem| !pem.is_empty()) {
            let field = "client-ca-file";
            self.client_ca.put(pem.as_bytes()).map_err(|why| LookupError::field(field, why))?;
        }
        let field = "requestheader-client-ca-file";
        let Some(pem) = data.get(field).filter(|pem| !pem.is_empty()) else { return Ok(()) };
        let texts = |name: &str| match data.get(name) {
            None => Ok(Vec::new()),
            Some(text) => serde_json::from_str::<Vec<String>>(text)
                .map_err(|error| LookupError::field(name, error)),
        };
        let headers = Headers {
            allowed_names: texts("requestheader-allowed-names")?,
            usernames: texts("requestheader-username-headers")?,
            uids: texts("requestheader-uid-headers")?,
            groups: texts("requestheader-group-headers")?,
            extra_prefixes: texts("requestheader-extra-headers-prefix")?,
        };
        let ca = ClientCa::unset();
        ca.put(pem.as_bytes()).map_err(|why| LookupError::field(field, why))?;
        let proxy = Arc::new(RequestProxy { ca, headers });
        *self.proxy.lock().unwrap_or_else(PoisonError::into_inner) = Some(proxy);
        Ok(())
    }
}

struct LookupReply(Arc<ClusterAuthorities>);

impl LookupReply {
    fn take(&self, map: &ConfigMap) {
        if let Err(error) = self.0.take(map) {
            tracing::warn!(%error, "{NAMESPACE}/{NAME}: the earlier authorities stay in force");
        }
    }
}

impl ObjectSink<ConfigMap> for LookupReply {
    fn begin(&mut self) {}

    fn listed(&mut self, map: ConfigMap) {
        self.take(&map);
    }

    fn listed_unreadable(&mut self, _: Option<UnreadableObject>) {}

    fn complete(&mut self) -> impl Future<Output = ()> {
        ready(())
    }

    fn applied(&mut self, map: ConfigMap) -> impl Future<Output = ()> {
        self.take(&map);
        ready(())
    }

    fn deleted(&mut self, _: ConfigMap) -> impl Future<Output = ()> {
        ready(())
    }

    fn deleted_unreadable(&mut self, _: UnreadableObject) -> impl Future<Output = ()> {
        ready(())
    }
}
