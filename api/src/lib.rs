//! Connection to the API server, shared by the three daemons.
//!
//! Input: a kubeconfig. Output: a `kube::Client`. What is specific to one daemon (which objects
//! it watches, what it writes) stays with that daemon.

#![forbid(unsafe_code)]

pub mod events;

use std::path::{Path, PathBuf};

use kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file cannot be read, or says something that cannot be used.
    #[error("kubeconfig {path}")]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: KubeconfigError,
    },
    /// Its certificates or keys cannot be used.
    #[error("kubeconfig {path}: no client can be made of it")]
    Client {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: kube::Error,
    },
}

/// A client that speaks as the current context of this kubeconfig. Nothing is sent yet.
pub async fn connect(path: &Path) -> Result<kube::Client, ConnectError> {
    let at = || path.to_owned();
    let file = Kubeconfig::read_from(path)
        .map_err(|source| ConnectError::Kubeconfig { path: at(), source })?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .map_err(|source| ConnectError::Kubeconfig { path: at(), source })?;
    kube::Client::try_from(config).map_err(|source| ConnectError::Client { path: at(), source })
}
