//! Reasons why a client cannot be made: file, field and remedy.

use std::path::{Path, PathBuf};

/// Reason why a client cannot be made. Display is one sentence with file, field and remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read or is no kubeconfig.
    #[error("kubeconfig {}: {problem}; give the path of a file that `kubectl --kubeconfig` can use",
        path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The fault.
        problem: String,
    },
    /// A field has an unusable value.
    #[error("kubeconfig {}: {field}: {problem}; {remedy}", path.display())]
    Field {
        /// The kubeconfig.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// The fault.
        problem: String,
        /// The remedy.
        remedy: &'static str,
    },
}

impl ConnectError {
    /// A field that cannot be used.
    pub(crate) fn field(
        path: &Path,
        field: &'static str,
        problem: impl Into<String>,
        remedy: &'static str,
    ) -> Self {
        Self::Field { path: path.to_owned(), field, problem: problem.into(), remedy }
    }
}
