//! Classifies the failure of an attempt that got no answer: pure.
//!
//! Input: the error with its sources. Output: a broken connection, a timeout, or no connection at
//! all. The last does not improve within a second. Every error that hyper reports for an open
//! connection is a break, except for a fault in the request or the answer itself.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/net/http.go IsProbableEOF, IsTimeout; util.go

use std::error::Error;
use std::io::{self, ErrorKind};

/// The failure of an attempt that got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// A connection that broke.
    Broken,
    /// No connection or no answer in time.
    Late,
    /// The server does not listen or is not trusted, a credential is missing, and so on.
    Otherwise,
}

impl Breakage {
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Self {
        // With TLS 1.3 a server refuses a certificate when the handshake is over for the client.
        let is_refusal = |error: &(dyn Error + 'static)| {
            error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == ErrorKind::InvalidData)
        };
        if chain(error).any(is_refusal) {
            return Self::Otherwise;
        }
        let found = chain(error).find_map(|error| {
            if let Some(hyper) = error.downcast_ref::<hyper::Error>() {
                return (!hyper.is_user() && !hyper.is_parse()).then_some(Self::Broken);
            }
            match error.downcast_ref::<io::Error>()?.kind() {
                ErrorKind::TimedOut => Some(Self::Late),
                ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof => Some(Self::Broken),
                _ => None,
            }
        });
        found.unwrap_or(Self::Otherwise)
    }
}

/// True if a connection broke under a request, so that a retry may succeed.
#[must_use]
pub fn is_broken(error: &(dyn Error + 'static)) -> bool {
    Breakage::of(error) == Breakage::Broken
}

/// An error and all that it wraps, from the outermost on.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        // An error that it wraps is not its source.
        let error: &'a (dyn Error + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as _).or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_connections_are_distinguished_from_unreachable_servers() {
        for (kind, want) in [
            (ErrorKind::ConnectionReset, Breakage::Broken),
            (ErrorKind::UnexpectedEof, Breakage::Broken),
            (ErrorKind::TimedOut, Breakage::Late),
            (ErrorKind::ConnectionRefused, Breakage::Otherwise),
            (ErrorKind::HostUnreachable, Breakage::Otherwise),
            // TLS refused a certificate, or a plugin failed.
            (ErrorKind::InvalidData, Breakage::Otherwise),
            (ErrorKind::Other, Breakage::Otherwise),
        ] {
            let error = io::Error::other(io::Error::from(kind));
            assert_eq!(Breakage::of(&error), want, "{kind}");
        }
    }
}
