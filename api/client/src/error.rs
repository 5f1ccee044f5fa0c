//! Why there is no client: which file, which field, what to do.

use std::path::{Path, PathBuf};

/// Why there is no client. Display is one sentence with file, field and remedy.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read or is no kubeconfig.
    #[error("kubeconfig {}: {problem}; give the path of a file that `kubectl --kubeconfig` can use",
        path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A field says something that cannot be used.
    #[error("kubeconfig {}: {field}: {problem}; {remedy}", path.display())]
    Field {
        /// The kubeconfig.
        path: PathBuf,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
        /// What to do.
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
