//! A failed call: its method, subject and origin.
//!
//! Input: a gRPC status, or our own verdict (deadline, runtime not reachable, too many calls).
//! Output: `Error`; callers ask for its kind by methods, never by comparing text. A status that
//! comes with a source was made on this side of the socket (connection refused, reset): it says
//! nothing about the subject, only that the runtime was not reached.

use std::error::Error as StdError;

pub use tonic::Code;

use crate::Method;

/// A failed call.
#[derive(Debug, thiserror::Error)]
#[error("{method}{}: {}: {message}", CallSubject(subject), code_name(*code))]
pub struct Error {
    /// The failed call.
    pub method: Method,
    /// Its subject; may be empty.
    pub subject: String,
    /// The runtime's code, or ours for a failure on this side.
    pub code: Code,
    /// The runtime's words, which Kubernetes shows in events and container statuses as they are.
    pub message: String,
    /// The origin of the error.
    pub origin: Origin,
}

/// The origin of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The runtime answered so.
    Runtime,
    /// The connection failed before or while the runtime answered: the call may have happened.
    Connection,
    /// This client: no answer within the deadline, remembered as unimplemented, too many calls.
    Client,
}

impl Error {
    /// The error as Go's gRPC prints it.
    // k8s: google.golang.org/grpc/internal/status/status.go Error
    pub fn rpc_text(&self) -> String {
        format!("rpc error: code = {} desc = {}", code_name(self.code), self.message)
    }

    pub(crate) fn client(method: Method, subject: &str, code: Code, message: String) -> Self {
        Self { method, subject: subject.to_owned(), code, message, origin: Origin::Client }
    }

    pub(crate) fn from_status(method: Method, subject: &str, status: &tonic::Status) -> Self {
        let subject = subject.to_owned();
        let Some(source) = StdError::source(status) else {
            let (code, message) = (status.code(), status.message().to_owned());
            return Self { method, subject, code, message, origin: Origin::Runtime };
        };
        if is_timeout(source) {
            let message = "no answer within the deadline".to_owned();
            let (code, origin) = (Code::DeadlineExceeded, Origin::Client);
            return Self { method, subject, code, message, origin };
        }
        let (code, origin) = (Code::Unavailable, Origin::Connection);
        Self { method, subject, code, message: root_cause(source), origin }
    }

    /// The subject does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        self.code == Code::NotFound
    }

    /// No answer in time, by our clock or the runtime's. The call may still happen.
    pub fn is_deadline(&self) -> bool {
        self.code == Code::DeadlineExceeded
    }

    /// The answer is longer than the runtime may send, or this client may take.
    // k8s: google.golang.org/grpc/rpc_util.go says ResourceExhausted, tonic's codec OutOfRange
    pub fn is_too_long(&self) -> bool {
        let code = matches!(self.code, Code::ResourceExhausted | Code::OutOfRange);
        code && self.origin == Origin::Runtime
    }

    /// This runtime has no such call.
    pub fn is_unimplemented(&self) -> bool {
        self.code == Code::Unimplemented
    }
}

struct CallSubject<'a>(&'a str);

impl std::fmt::Display for CallSubject<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " {}", self.0) }
    }
}

/// The code as gRPC and Go print it, for which people search.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

fn is_timeout(error: &(dyn StdError + 'static)) -> bool {
    chain(error).any(|error| error.is::<tonic::TimeoutExpired>())
}

/// The innermost error: the outer ones are only "transport error".
fn root_cause(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: Code, message: &str) -> Error {
        Error::from_status(Method::StartContainer, "c1", &tonic::Status::new(code, message))
    }

    #[test]
    fn an_error_reads_method_subject_code_and_the_runtimes_words() {
        let error = answer(Code::NotFound, "no such container");
        assert_eq!(error.to_string(), "StartContainer c1: NotFound: no such container");
        let error = Error::client(Method::Version, "", Code::Unavailable, "refused".into());
        assert_eq!(error.to_string(), "Version: Unavailable: refused");
    }

    #[test]
    fn error_predicates_follow_the_status_code() {
        assert!(answer(Code::NotFound, "").is_not_found());
        assert!(answer(Code::Unimplemented, "").is_unimplemented());
        assert!(answer(Code::DeadlineExceeded, "").is_deadline());
        let other = answer(Code::Unavailable, "");
        assert!(!other.is_not_found() && !other.is_unimplemented() && !other.is_deadline());
    }

    #[test]
    fn io_error_becomes_unavailable_with_the_text_of_its_source() {
        let io = std::io::Error::new(std::io::ErrorKind::ConnectionReset, "reset by peer");
        let status = tonic::Status::from_error(Box::new(io));
        let error = Error::from_status(Method::Version, "", &status);
        assert_eq!((error.code, error.origin), (Code::Unavailable, Origin::Connection));
        assert!(error.message.contains("reset by peer"), "{error}");
    }
}
