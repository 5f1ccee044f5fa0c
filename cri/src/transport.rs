//! The unix socket behind a client: one HTTP/2 connection, made when first needed and again after
//! it broke.
//!
//! Input: an endpoint (`unix:///path`). Output: a channel that fails at once while the runtime is
//! away, and the number of the connection in use. After a failed attempt the next one waits 100 ms,
//! then twice as long each time up to 3 s; calls made meanwhile fail with `Unavailable` and say
//! when the next attempt is due, so no call queues behind a dead runtime. Only an answer from the
//! runtime ends the backoff: one that accepts and hangs up counts as failing.
//!
//! Owner: `Client`. Bound: one connection per client.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint as Target};

use crate::{Method, socket::Socket};

/// Wait after the first failed attempt.
// k8s: cri-client/pkg/remote_runtime.go baseBackoffDelay, maxBackoffDelay
pub const BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts.
pub const BACKOFF_MAX: Duration = Duration::from_secs(3);

/// A path that can be connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketEndpoint(PathBuf);

/// Reason why an endpoint was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EndpointError {
    /// Another scheme, such as `npipe:` or `tcp:`.
    #[error("endpoint {0:?}: only unix sockets are supported: write unix:///path/to/socket")]
    Scheme(String),
    /// No absolute path in it.
    #[error("endpoint {0:?}: the path must be absolute: write unix:///path/to/socket")]
    Relative(String),
}

impl SocketEndpoint {
    /// Reads `unix:///path`, `unix:/path` or a bare absolute path.
    // k8s: cri-client/pkg/util/util_unix.go parseEndpointWithFallbackProtocol
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let path = match text.split_once(':') {
            Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
            Some((scheme, _)) if !scheme.contains('/') => {
                return Err(EndpointError::Scheme(text.to_owned()));
            }
            _ => text,
        };
        if !path.starts_with('/') {
            return Err(EndpointError::Relative(text.to_owned()));
        }
        Ok(Self(PathBuf::from(path)))
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// When the next connection attempt may be made. Pure: time is an argument.
#[derive(Debug, Default)]
struct ConnectBackoff {
    failures: u32,
    not_before: Option<Instant>,
}

impl ConnectBackoff {
    /// The remaining wait; `None` means: try.
    fn wait(&self, now: Instant) -> Option<Duration> {
        self.not_before?.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// An attempt is being made. Until the runtime answers it counts as failed.
    fn tried(&mut self, now: Instant) {
        let factor = 2u32.saturating_pow(self.failures);
        let delay = BACKOFF_MIN.saturating_mul(factor).min(BACKOFF_MAX);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + delay);
    }

    fn answered(&mut self) {
        *self = Self::default();
    }
}

/// State of the connection; shared by the client's clones and its connector.
#[derive(Debug)]
pub(crate) struct Link {
    endpoint: SocketEndpoint,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    backoff: ConnectBackoff,
    connection: u64,    // counts connections made; 0 before the first
    unimplemented: u64, // one bit per `Method`, forgotten with the connection
}

impl Link {
    pub(crate) fn new(endpoint: SocketEndpoint) -> Arc<Self> {
        Arc::new(Self { endpoint, state: Mutex::default() })
    }

    /// A channel over this link. Needs a tokio runtime, makes no connection yet.
    pub(crate) fn channel(self: &Arc<Self>) -> Channel {
        let link = self.clone();
        // The name is never resolved; runtimes see it as the request's authority.
        Target::from_static("http://localhost").connect_with_connector_lazy(tower::service_fn(
            move |_| {
                let link = link.clone();
                async move { link.connect().await.map(TokioIo::new) }
            },
        ))
    }

    async fn connect(&self) -> io::Result<Socket> {
        let now = Instant::now();
        {
            let mut state = self.lock();
            if let Some(wait) = state.backoff.wait(now) {
                let path = self.endpoint.path().display();
                let text =
                    format!("{path} is not answering; next attempt in {} ms", wait.as_millis());
                return Err(io::Error::new(io::ErrorKind::NotConnected, text));
            }
            state.backoff.tried(now);
        }
        let path = self.endpoint.path();
        let stream = UnixStream::connect(path).await.map_err(|error| {
            io::Error::new(error.kind(), format!("connect to {}: {error}", path.display()))
        })?;
        let socket = Socket::new(stream)?;
        let mut state = self.lock();
        state.connection += 1;
        state.unimplemented = 0;
        tracing::debug!(path = %path.display(), connection = state.connection, "connected");
        Ok(socket)
    }

    /// The runtime has answered: the connection works.
    pub(crate) fn answered(&self) {
        self.lock().backoff.answered();
    }

    /// The wait until the next connection attempt; zero when one may be made now.
    pub(crate) fn wait(&self) -> Duration {
        self.lock().backoff.wait(Instant::now()).unwrap_or_default()
    }

    pub(crate) fn connection(&self) -> u64 {
        self.lock().connection
    }

    pub(crate) fn is_unimplemented(&self, method: Method) -> bool {
        self.lock().unimplemented & bit(method) != 0
    }

    /// Remembers the runtime's word until the next connection.
    pub(crate) fn set_unimplemented(&self, method: Method) {
        self.lock().unimplemented |= bit(method);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock can panic half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bit(method: Method) -> u64 {
    1 << (method as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets_with_absolute_paths() {
        for text in ["unix:///run/x.sock", "unix:/run/x.sock", "/run/x.sock"] {
            assert_eq!(
                SocketEndpoint::parse(text),
                Ok(SocketEndpoint("/run/x.sock".into())),
                "{text}"
            );
        }
        assert_eq!(SocketEndpoint::parse("/a:b").map(|e| e.0), Ok("/a:b".into()));
        for text in ["npipe:////./pipe/x", "tcp://127.0.0.1:1"] {
            assert_eq!(SocketEndpoint::parse(text), Err(EndpointError::Scheme(text.into())));
        }
        for text in ["unix://run/x.sock", "run/x.sock", "", "unix://"] {
            assert_eq!(SocketEndpoint::parse(text), Err(EndpointError::Relative(text.into())));
        }
    }

    #[test]
    fn waits_double_from_100_ms_to_3_s_and_end_with_an_answer() {
        let start = Instant::now();
        let mut backoff = ConnectBackoff::default();
        assert_eq!(backoff.wait(start), None);
        for expected in [100, 200, 400, 800, 1600, 3000, 3000] {
            backoff.tried(start);
            assert_eq!(backoff.wait(start), Some(Duration::from_millis(expected)));
        }
        assert_eq!(backoff.wait(start + BACKOFF_MAX), None);
        backoff.answered();
        assert_eq!(backoff.wait(start), None);
        backoff.tried(start);
        assert_eq!(backoff.wait(start), Some(BACKOFF_MIN));
    }

    #[test]
    fn backoff_survives_any_number_of_failures() {
        let start = Instant::now();
        let mut backoff = ConnectBackoff { failures: u32::MAX - 1, not_before: None };
        backoff.tried(start);
        backoff.tried(start);
        assert_eq!(backoff.wait(start), Some(BACKOFF_MAX));
    }

    #[test]
    fn every_method_has_its_own_unimplemented_bit() {
        let link = Link::new(SocketEndpoint::parse("/x").expect("valid"));
        for (index, method) in Method::ALL.iter().enumerate() {
            assert!(!link.is_unimplemented(*method), "{method}");
            link.set_unimplemented(*method);
            assert_eq!(link.lock().unimplemented.count_ones() as usize, index + 1);
        }
    }
}
