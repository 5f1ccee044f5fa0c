//! Service accounts, and secrets with tokens of theirs.
//!
//! Tokens themselves are not kept, only whether there is one.

use std::borrow::Cow;

use pintle_api_types::symbol::Symbol;
use serde::{Deserialize, Deserializer};

use super::facts;
use crate::meta::{Meta, Uid, or_default};

/// A ServiceAccount.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ServiceAccount {
    /// Its metadata.
    pub metadata: Meta,
}
facts!(ServiceAccount, SERVICE_ACCOUNTS, whole: false);

/// A Secret of the type `kubernetes.io/service-account-token`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenSecret {
    /// Its metadata.
    pub metadata: Meta,
    /// The keys that its data has.
    #[serde(deserialize_with = "or_default")]
    pub data: TokenData,
}
facts!(TokenSecret, TOKEN_SECRETS, whole: false);

/// The data of a token secret.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TokenData {
    /// The CA bundle in Base64; equal texts are shared.
    #[serde(rename = "ca.crt")]
    pub ca: Symbol,
    /// It names its namespace.
    #[serde(rename = "namespace", deserialize_with = "is_set")]
    pub has_namespace: bool,
    /// It has a token.
    #[serde(rename = "token", deserialize_with = "is_set")]
    pub has_token: bool,
}

impl TokenSecret {
    /// The name of its service account.
    pub fn account_name(&self) -> &str {
        self.metadata.annotation("kubernetes.io/service-account.name").unwrap_or_default()
    }

    /// The UID of its service account; empty while it is not known.
    pub fn account_uid(&self) -> Uid {
        Uid::of(self.metadata.annotation("kubernetes.io/service-account.uid").unwrap_or_default())
    }
}

fn is_set<'de, D: Deserializer<'de>>(from: D) -> Result<bool, D::Error> {
    let text = Option::<Cow<'_, str>>::deserialize(from)?;
    Ok(text.is_some_and(|text| !text.is_empty()))
}
