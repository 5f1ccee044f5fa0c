//! The user that sends a request.
//!
//! Roles of users are in [`crate::rights`]; only the controllers and the manager have limits.

use crate::rights;

/// The user that the API server sees.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// May do everything: tests, users, the kubelet and the scheduler of a simulated cluster.
    Admin,
    /// The controller manager itself, `system:kube-controller-manager`.
    Manager,
    /// The service account of a controller in kube-system, such as `deployment-controller`.
    Controller(&'static str),
}

impl Identity {
    /// The user's name in errors.
    pub fn user(&self) -> String {
        match self {
            Self::Admin => "kubernetes-admin".to_owned(),
            Self::Manager => "system:kube-controller-manager".to_owned(),
            Self::Controller(name) => format!("system:serviceaccount:kube-system:{name}"),
        }
    }

    /// The heading of its rules in the table of roles; `None` for one that needs none.
    pub(crate) fn heading(&self) -> Option<&str> {
        match self {
            Self::Admin => None,
            Self::Manager => Some(rights::MANAGER),
            Self::Controller(name) => Some(name),
        }
    }
}
