//! A request to the API server, and its answer, as data.
//!
//! Input and output of everything that decides about writes without making them: controllers, and
//! the API server in memory that tests use. Bodies are JSON values. Pure.

use std::time::Duration;

use serde_json::Value;

use crate::key::ObjectKey;
use crate::kind::{DEPLOYMENTS, Kind, PODS, REPLICA_SETS, REPLICATION_CONTROLLERS};

/// A request to the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// Creates an object; its name, or the start of its name, is in the body.
    Create {
        /// The kind.
        kind: Kind,
        /// The namespace; empty for objects of the whole cluster.
        namespace: String,
        /// `Some` creates below an object: `(name, "token")` for TokenRequest.
        below: Option<Subresource>,
        /// The object.
        body: Value,
    },
    /// Replaces an object; the version that it replaces is in the body.
    Replace {
        /// The object.
        target: Target,
        /// The new state.
        body: Value,
    },
    /// Patches an object.
    Patch {
        /// The object.
        target: Target,
        /// The format of the body.
        form: PatchForm,
        /// The patch.
        body: Value,
    },
    /// Deletes an object.
    Delete {
        /// The object.
        target: Target,
        /// Conditions and manner.
        options: DeleteOptions,
    },
    /// Deletes all objects of a kind in a namespace.
    DeleteCollection {
        /// The kind.
        kind: Kind,
        /// The namespace.
        namespace: String,
        /// The treatment of dependents.
        propagation: Option<Propagation>,
    },
    /// Reads an object.
    Read {
        /// The object.
        target: Target,
        /// Only its metadata is wanted.
        only_metadata: bool,
    },
    /// Lists the objects of a kind.
    List {
        /// The kind.
        kind: Kind,
        /// The namespace; empty for the whole cluster.
        namespace: String,
        /// A label selector; empty for all.
        labels: String,
        /// Only their metadata is wanted.
        only_metadata: bool,
    },
    /// Reads a path that is no object, such as a metrics API's or discovery's.
    Get {
        /// The path with its query.
        path: String,
    },
}

impl Request {
    /// True if only the metadata of the object in the answer is requested. No controller reads more
    /// of these answers, and the API server need not send the rest.
    pub fn wants_only_metadata(&self) -> bool {
        match self {
            Self::Create { kind, below, .. } => *kind == PODS && below.is_none(),
            Self::Delete { target, .. } => target.kind == PODS,
            Self::Replace { target, .. } => {
                let kinds = [DEPLOYMENTS, REPLICA_SETS, REPLICATION_CONTROLLERS];
                target.sub == "status" && kinds.contains(&target.kind)
            }
            Self::Read { only_metadata, .. } | Self::List { only_metadata, .. } => *only_metadata,
            Self::Patch { .. } | Self::DeleteCollection { .. } | Self::Get { .. } => false,
        }
    }
}

/// The object that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace and name.
    pub key: ObjectKey,
    /// `status`, `scale`, `finalize`, `approval`; empty for the object itself.
    pub sub: &'static str,
}

impl Target {
    /// The object itself.
    pub fn object(kind: Kind, key: ObjectKey) -> Self {
        Self { kind, key, sub: "" }
    }

    /// The object's status.
    pub fn status(kind: Kind, key: ObjectKey) -> Self {
        Self { kind, key, sub: "status" }
    }

    /// The path.
    pub fn path(&self) -> String {
        let mut path = format!("{}/{}", self.kind.path(self.key.namespace()), self.key.name());
        if !self.sub.is_empty() {
            path.push('/');
            path.push_str(self.sub);
        }
        path
    }
}

/// A subresource that is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subresource {
    /// The object's name.
    pub name: String,
    /// `token`, `eviction`, `binding`.
    pub sub: &'static str,
}

/// The format of a patch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchForm {
    /// `application/strategic-merge-patch+json`.
    Strategic,
    /// `application/merge-patch+json`.
    Merge,
    /// `application/json-patch+json`.
    Json,
    /// `application/apply-patch+yaml`, by this field manager; conflicts are overruled.
    Apply {
        /// The field manager.
        manager: &'static str,
    },
}

impl PatchForm {
    /// The value of `Content-Type`.
    pub fn content_type(&self) -> &'static str {
        match self {
            Self::Strategic => "application/strategic-merge-patch+json",
            Self::Merge => "application/merge-patch+json",
            Self::Json => "application/json-patch+json",
            Self::Apply { .. } => "application/apply-patch+yaml",
        }
    }
}

/// The treatment of a deleted object's dependents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted later.
    Background,
    /// They are deleted first.
    Foreground,
    /// They stay.
    Orphan,
}

impl Propagation {
    /// The value in DeleteOptions.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
            Self::Orphan => "Orphan",
        }
    }
}

/// Conditions and manner of a deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Only the object with this UID.
    pub uid: Option<String>,
    /// Only this version.
    pub version: Option<String>,
    /// The treatment of dependents.
    pub propagation: Option<Propagation>,
    /// The grace period in seconds.
    pub grace_seconds: Option<i64>,
}

/// The result of a request: the object or list in the answer, or an error.
pub type Answer = Result<Value, ApiError>;

/// Reason why a request was not answered with an object.
#[derive(Clone, Debug, Default, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// The HTTP status code; 0 when the request was sent and no answer came, so that it is not
    /// known whether it took effect.
    pub code: u16,
    /// The machine-readable reason, such as `AlreadyExists`.
    pub reason: String,
    /// The sentence for people.
    pub message: String,
    /// The reasons of `details.causes`.
    pub causes: Vec<String>,
    /// The wait that the server asks for.
    pub retry_after: Option<Duration>,
}

impl ApiError {
    /// From a `Status` object.
    pub fn from_status(code: u16, status: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let details = &status["details"];
        let causes = details["causes"].as_array().into_iter().flatten();
        Self {
            code: status["code"].as_u64().and_then(|code| code.try_into().ok()).unwrap_or(code),
            reason: text(&status["reason"]),
            message: text(&status["message"]),
            causes: causes.map(|cause| text(&cause["reason"])).collect(),
            retry_after: details["retryAfterSeconds"].as_u64().map(Duration::from_secs),
        }
    }

    /// No answer came: whether the request took effect is unknown.
    pub fn is_unknown(&self) -> bool {
        self.code == 0
    }

    /// The object is not there.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go IsNotFound
    pub fn is_not_found(&self) -> bool {
        self.reason == "NotFound" || (self.reason.is_empty() && self.code == 404)
    }

    /// An object with the name is there already.
    pub fn is_already_exists(&self) -> bool {
        self.reason == "AlreadyExists"
    }

    /// The object has another version, or a precondition does not hold.
    pub fn is_conflict(&self) -> bool {
        self.reason == "Conflict" || (self.reason.is_empty() && self.code == 409)
    }

    /// The object is not valid.
    pub fn is_invalid(&self) -> bool {
        self.reason == "Invalid" || (self.reason.is_empty() && self.code == 422)
    }

    /// The request is not allowed.
    pub fn is_forbidden(&self) -> bool {
        self.reason == "Forbidden" || (self.reason.is_empty() && self.code == 403)
    }

    /// The namespace is being deleted.
    // k8s: staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go HasStatusCause
    pub fn is_namespace_terminating(&self) -> bool {
        self.causes.iter().any(|cause| cause == "NamespaceTerminating")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn error_of_a_status_has_its_reason_and_causes() {
        let status = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no",
            "details": {"causes": [{"reason": "NamespaceTerminating"}], "retryAfterSeconds": 2}});
        let error = ApiError::from_status(403, &status);
        assert!(error.is_forbidden() && error.is_namespace_terminating() && !error.is_conflict());
        assert_eq!(error.retry_after, Some(Duration::from_secs(2)));
        assert_eq!(error.to_string(), "no");
    }
}
