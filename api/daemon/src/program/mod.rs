//! The process of a leader-elected component: the frame around the work of the scheduler and of the
//! controller manager.
//!
//! ```text
//!   flags ─> Serving ─> port (HTTPS: checks, metrics, configz, flagz, statusz, own pages)
//!   flags ─> Election ─> lease (a thread: acquires, renews, releases) ─> leads, lost
//!   signals ─> ending (a thread) ─> the deciding thread ends its work, or the process ends
//!   turns of the deciding thread ─> watchdog (a thread) ─> health, end of the lease and the process
//! ```
//! Owner: `main` of a component starts each part once. The parts know nothing of its work.

pub mod credentials;
pub mod ending;
pub mod lease;
pub mod port;
pub mod serving;
pub mod watchdog;

use std::io;

use pintle_api::ConnectError;
use pintle_api::leader::TimingError;

use crate::serve::listen::ServeError;
use crate::serve::secure::tls::TlsError;
use crate::serve::secure::{AccessError, ServingCertError};

/// The name of this machine, as it is written: only a node's name is in lower case.
// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig
pub fn host_name() -> String {
    as_written(&std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

fn as_written(name: &str) -> String {
    name.trim().to_owned()
}

/// Reason why a component cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// There are no credentials.
    #[error("no credentials, and this is no pod: give {0}")]
    NoCredentials(&'static str),
    /// Credentials cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Credentials that a flag names cannot be used.
    #[error("{flag}")]
    Credentials {
        /// The flag.
        flag: String,
        /// The cause.
        source: ConnectError,
    },
    /// The kernel refuses a thread.
    #[error("the thread of the {name}")]
    Thread {
        /// The thread's work.
        name: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The kernel refuses a resource of an event loop or a signal handler.
    #[error("the event loop")]
    EventLoop(#[from] io::Error),
    /// With these timings of the lease two processes could lead, or none.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// The port cannot be bound.
    #[error(transparent)]
    Port(#[from] ServeError),
    /// An authority of clients cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The serving certificate cannot be used.
    #[error(transparent)]
    Certificate(#[from] ServingCertError),
    /// The settings of TLS cannot be used.
    #[error("TLS")]
    Tls(#[from] TlsError),
    /// The cluster's authorities cannot be read.
    #[error(
        "--authentication-tolerate-lookup-failure=false: unable to load configmap based \
         request-header-client-ca-file: {0}"
    )]
    Lookup(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_keeps_its_case() {
        assert_eq!(as_written("Master-1\n"), "Master-1");
    }
}
