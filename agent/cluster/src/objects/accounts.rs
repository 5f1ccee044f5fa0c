//! Service accounts and their tokens, for credential providers of image pulls.
//!
//! Read when an image is about to be pulled, which is rare, rather than watched.
// k8s: pkg/kubelet/kubelet.go NewMainKubelet getServiceAccount

use std::collections::BTreeMap;
use std::rc::Rc;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::Pod;
use pintle_api::TenantShare;
use serde::Deserialize;

use super::Objects;
use super::tokens::TokenError;
use super::tokens::TokenKey;
use super::wire;

/// The used fields of a service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountFields {
    /// Its uid.
    pub uid: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// Source of service accounts and their tokens.
pub trait Accounts {
    /// A service account as it is now.
    fn account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> LocalBoxFuture<'a, Result<ServiceAccountFields, AccountError>>;

    /// A token of the pod's service account, of this uid, for an audience.
    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        account_uid: &'a str,
    ) -> LocalBoxFuture<'a, Result<Rc<str>, AccountError>>;
}

#[derive(Deserialize)]
struct AccountWire {
    metadata: MetaWire,
}

#[derive(Deserialize)]
struct MetaWire {
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Reason why there is no service account, or no token of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccountError {
    /// The node has no API server.
    #[error("cannot get ServiceAccounts when kubelet is in standalone mode")]
    Standalone,
    /// The account cannot be read.
    #[error("{0}")]
    Read(String),
    /// The API server issues no token.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl Accounts for Objects {
    fn account<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> LocalBoxFuture<'a, Result<ServiceAccountFields, AccountError>> {
        async move {
            let shared = self.0.as_ref().ok_or(AccountError::Standalone)?;
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}");
            let found =
                wire::read::<AccountWire>(&shared.client, &TenantShare::default(), &path).await;
            let found = found.map_err(|error| AccountError::Read(error.to_string()))?;
            let MetaWire { uid, annotations } = found.metadata;
            Ok(ServiceAccountFields { uid, annotations })
        }
        .boxed_local()
    }

    fn token<'a>(
        &'a self,
        pod: &'a Pod,
        audience: &'a str,
        account_uid: &'a str,
    ) -> LocalBoxFuture<'a, Result<Rc<str>, AccountError>> {
        async move {
            let shared = self.0.as_ref().ok_or(AccountError::Standalone)?;
            let key = TokenKey {
                audience: audience.to_owned(),
                expiration_seconds: None,
                account_uid: account_uid.to_owned(),
            };
            Ok(shared.tokens.token(&pintle_api_types::pod::uid(pod), pod, &key).await?)
        }
        .boxed_local()
    }
}
