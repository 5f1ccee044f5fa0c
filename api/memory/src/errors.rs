//! The API server's errors, word for word.
//!
//! Input: a kind, a name and what is wrong. Output: an [`ApiError`] with the code, reason, sentence
//! and causes of the real server, because controllers branch on them and print them. Pure.
// k8s: staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go

use std::time::Duration;

use pintle_api_types::kind::Kind;
use pintle_api_types::request::ApiError;

/// `deployments.apps`, or `pods` in the core group: how sentences name a resource.
pub(crate) fn resource(kind: Kind) -> String {
    qualified(kind.plural, kind.group)
}

/// `Deployment.apps`, or `Pod` in the core group: how sentences about invalid objects name a kind.
pub(crate) fn kind_name(kind: Kind) -> String {
    qualified(kind.kind, kind.group)
}

fn qualified(name: &str, group: &str) -> String {
    match group {
        "" => name.to_owned(),
        group => format!("{name}.{group}"),
    }
}

fn error(code: u16, reason: &str, message: String) -> ApiError {
    ApiError { code, reason: reason.to_owned(), message, ..ApiError::default() }
}

pub(crate) fn not_found(kind: Kind, name: &str) -> ApiError {
    error(404, "NotFound", format!("{} {name:?} not found", resource(kind)))
}

/// No such path: the kind has no such subresource.
pub(crate) fn no_such_path() -> ApiError {
    error(404, "NotFound", "the server could not find the requested resource".to_owned())
}

pub(crate) fn already_exists(kind: Kind, name: &str, is_deleting: bool) -> ApiError {
    let message = format!("{} {name:?} already exists", resource(kind));
    let prefix = if is_deleting { "object is being deleted: " } else { "" };
    error(409, "AlreadyExists", format!("{prefix}{message}"))
}

pub(crate) fn generated_name_exists(kind: Kind, name: &str) -> ApiError {
    let message = format!(
        "{} {name:?} already exists, the server was not able to generate a unique name for the \
         object",
        resource(kind)
    );
    let retry_after = Some(Duration::from_secs(1));
    ApiError { retry_after, ..error(409, "AlreadyExists", message) }
}

pub(crate) fn conflict(resource: &str, name: &str, why: &str) -> ApiError {
    let message = format!("Operation cannot be fulfilled on {resource} {name:?}: {why}");
    error(409, "Conflict", message)
}

/// The version in the request is not the stored one.
pub(crate) fn modified(kind: Kind, name: &str) -> ApiError {
    let why = "the object has been modified; please apply your changes to the latest version and \
               try again";
    conflict(&resource(kind), name, why)
}

pub(crate) fn forbidden(resource: &str, name: &str, why: &str) -> ApiError {
    let subject = match name {
        "" => resource.to_owned(),
        name => format!("{resource} {name:?}"),
    };
    error(403, "Forbidden", format!("{subject} is forbidden: {why}"))
}

pub(crate) fn bad_request(message: &str) -> ApiError {
    error(400, "BadRequest", message.to_owned())
}

/// A form of patches that the kind does not have.
pub(crate) fn unsupported_media_type() -> ApiError {
    let message = "the body of the request was in an unknown format - accepted media types \
                   include: application/json-patch+json, application/merge-patch+json, \
                   application/apply-patch+yaml";
    error(415, "UnsupportedMediaType", message.to_owned())
}

pub(crate) fn internal(message: &str) -> ApiError {
    error(500, "", message.to_owned())
}

/// A patch that cannot be applied; the real server does not say why.
pub(crate) fn unprocessable() -> ApiError {
    let message = "the server rejected our request due to an error in our request";
    error(422, "Invalid", message.to_owned())
}

/// The history that a watch asks for is no longer kept.
pub(crate) fn expired(asked: u64, current: u64) -> ApiError {
    error(410, "Expired", format!("too old resource version: {asked} ({current})"))
}

/// One field that validation rejects.
pub(crate) struct FieldProblem {
    reason: &'static str,
    text: String,
}

impl FieldProblem {
    pub(crate) fn invalid(field: &str, value: &str, why: &str) -> Self {
        let text = format!("{field}: Invalid value: {value}: {why}");
        Self { reason: "FieldValueInvalid", text }
    }

    pub(crate) fn required(field: &str, why: &str) -> Self {
        Self { reason: "FieldValueRequired", text: format!("{field}: Required value: {why}") }
    }

    pub(crate) fn forbidden(field: &str, why: &str) -> Self {
        Self { reason: "FieldValueForbidden", text: format!("{field}: Forbidden: {why}") }
    }
}

/// The object is not valid, for one reason or more.
pub(crate) fn invalid(kind: &str, name: &str, problems: &[FieldProblem]) -> ApiError {
    let texts: Vec<&str> = problems.iter().map(|problem| problem.text.as_str()).collect();
    let sum = match &texts[..] {
        [one] => (*one).to_owned(),
        several => format!("[{}]", several.join(", ")),
    };
    let causes = problems.iter().map(|problem| problem.reason.to_owned()).collect();
    ApiError { causes, ..error(422, "Invalid", format!("{kind} {name:?} is invalid: {sum}")) }
}
