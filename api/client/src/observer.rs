//! Observers that count requests.

use std::time::Duration;

/// A request that ended: with an answer's head, or without one.
#[derive(Clone, Copy, Debug)]
pub struct Sent<'a> {
    /// HTTP method.
    pub method: &'a str,
    /// Host and port of the server.
    pub host: &'a str,
    /// Status code; `None` when there was no answer.
    pub code: Option<u16>,
    /// Time from sending to the answer's head.
    pub took: Duration,
    /// Bytes of its body; `None` for a watch, and where they are not known before they are sent.
    pub bytes: Option<u64>,
    /// It was sent before, without success.
    pub again: bool,
}

/// The outcome of a run of a credential plugin.
// k8s: staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/metrics.go incrementCallsMetric
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PluginRun {
    /// Exit status 0; the output may still be unusable.
    Well,
    /// It exited with this code, or was ended by a signal (-1).
    Exited(i32),
    /// There is no such program, or it cannot be started.
    NotFound,
    /// It did not end in time, or its output could not be read.
    Failed,
}

/// Receives every request's outcome. Must not block.
pub trait Observer: Send + Sync {
    /// A request ended.
    fn sent(&self, sent: Sent<'_>);
    /// An answer of so many bytes was read to its end; not called for watches, nor for an answer
    /// after which the request is sent again.
    fn received(&self, method: &str, host: &str, bytes: u64);
    /// A request waited for the limit of requests per second.
    fn limited(&self, method: &str, host: &str, waited: Duration);
    /// A credential plugin was run.
    fn plugin_ran(&self, run: PluginRun);
}
