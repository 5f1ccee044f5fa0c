//! What an attempt that got no answer ran into: pure.
//!
//! Input: the error, with all that it wraps. Output: whether a connection broke, nothing came in
//! time, or there was none to be had; the last is no better a second later. Whatever hyper says of a
//! connection that it held is a break, but for what is wrong with the request or the answer itself.
// k8s: staging/src/k8s.io/apimachinery/pkg/util/net/http.go IsProbableEOF, IsTimeout; util.go

use std::error::Error;
use std::io::{self, ErrorKind};

/// What an attempt that got no answer ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// A connection that broke.
    Broken,
    /// No connection or no answer in time.
    Late,
    /// Nobody listens, who listens is not trusted, there is no credential, and so on.
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

/// Whether a connection broke under a request, so that another try may do better.
#[must_use]
pub fn is_broken(error: &(dyn Error + 'static)) -> bool {
    Breakage::of(error) == Breakage::Broken
}

/// An error and all that it wraps, from the outermost on.
pub(crate) fn chain<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| {
        // What such an error wraps is not its source.
        let error: &'a (dyn Error + 'static) = *error;
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as _).or_else(|| error.source())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_break_are_told_from_those_that_cannot_be_had() {
        for (kind, want) in [
            (ErrorKind::ConnectionReset, Breakage::Broken),
            (ErrorKind::UnexpectedEof, Breakage::Broken),
            (ErrorKind::TimedOut, Breakage::Late),
            (ErrorKind::ConnectionRefused, Breakage::Otherwise),
            (ErrorKind::HostUnreachable, Breakage::Otherwise),
            // What TLS says of a certificate, and what a plugin's failure is.
            (ErrorKind::InvalidData, Breakage::Otherwise),
            (ErrorKind::Other, Breakage::Otherwise),
        ] {
            let error = io::Error::other(io::Error::from(kind));
            assert_eq!(Breakage::of(&error), want, "{kind}");
        }
    }
}
