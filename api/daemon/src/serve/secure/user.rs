//! The user of a request: name, uid, groups and extra fields of the API server.

use std::collections::BTreeMap;

use k8s_openapi::api::authentication::v1::UserInfo;

/// Group of all authenticated users.
// k8s: staging/src/k8s.io/apiserver/pkg/authentication/user/user.go
pub(super) const AUTHENTICATED: &str = "system:authenticated";
const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// A user, in the order in which caches compare it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Name.
    pub name: String,
    /// Distinguishes users of one name; may be empty.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further fields of the authenticator.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A client without credentials.
    pub fn anonymous() -> Self {
        let groups = vec![UNAUTHENTICATED.to_owned()];
        Self { name: ANONYMOUS.to_owned(), groups, ..Self::default() }
    }

    /// True for a client without credentials.
    pub fn is_anonymous(&self) -> bool {
        self.name == ANONYMOUS
    }

    /// The name that the client has proved; none without credentials.
    pub fn proven_name(&self) -> Option<&str> {
        (!self.is_anonymous()).then_some(&self.name)
    }

    /// The user of a token review.
    pub fn of(reviewed: UserInfo) -> Self {
        Self {
            name: reviewed.username.unwrap_or_default(),
            uid: reviewed.uid.unwrap_or_default(),
            groups: reviewed.groups.unwrap_or_default(),
            extra: reviewed.extra.unwrap_or_default().into_iter().collect(),
        }
    }

    /// The same user as a member of the group of all authenticated users.
    // k8s: staging/src/k8s.io/apiserver/pkg/authentication/group/authenticated_group_adder.go
    pub fn authenticated(mut self) -> Self {
        if !self.groups.iter().any(|g| g == AUTHENTICATED || g == UNAUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }
}
