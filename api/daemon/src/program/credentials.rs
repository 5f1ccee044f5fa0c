//! The credentials of a component: a kubeconfig, an address, or the pod's service account.
//!
//! Input: the flags' values. Output: an [`Access`]. Effects: reads the files that they name.

use std::path::Path;

use pintle_api::Access;

use super::StartError;

/// The credentials that were named, or else, where no server is, those of the pod that this process
/// runs in. `remedy` completes the sentence for neither.
///
/// # Errors
/// When a file or the address cannot be used, or there are no credentials at all.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go BuildConfigFromFlags
pub fn access(
    kubeconfig: Option<&Path>,
    master: Option<&str>,
    remedy: &'static str,
) -> Result<Access, StartError> {
    match (kubeconfig, master) {
        (Some(path), None) => Ok(Access::read(path)?),
        (Some(path), Some(master)) => Access::read_for(path, Some(master)).map_err(|source| {
            StartError::Credentials { flag: format!("--master={master}"), source }
        }),
        (None, Some(master)) => Ok(Access::anonymous(Path::new("--master"), master)?),
        (None, None) => Ok(Access::of_pod().ok_or(StartError::NoCredentials(remedy))??),
    }
}
