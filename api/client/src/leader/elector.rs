//! The requests of leader election: reads and writes the Lease to acquire, renew and release it.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, PostParams};
use pintle_api_types::jitter;
use pintle_api_types::lease::Timing;

use super::term::{FirstRequest, LeaseTerm, TermStep};
use super::watch::LeaseWatch;
use super::{JITTER, TimingError, check, request_max, work_max};

/// Reason why the lease could not be read or written.
#[derive(Debug, thiserror::Error)]
enum LeaseRequestError {
    #[error(transparent)]
    Failed(#[from] kube::Error),
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
}

/// Takes part in one election.
pub struct Elector {
    api: Api<Lease>,
    name: String,
    timing: Timing,
    term: LeaseTerm,
}

impl Elector {
    /// Takes part in the election on the lease `namespace/name` under this identity, which no other
    /// process may have: upstream's is the host's name, `_`, and a random uuid. Sends nothing yet.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        name: &str,
        identity: String,
        timing: Timing,
    ) -> Result<Self, TimingError> {
        let timing = check(timing)?;
        let term = LeaseTerm::new(identity, name.to_owned(), timing.lease);
        Ok(Self { api: Api::namespaced(client, namespace), name: name.to_owned(), timing, term })
    }

    /// The last known holder of the lease.
    pub fn leader(&self) -> Option<&str> {
        self.term.leader()
    }

    /// The lease as it was read or written last.
    pub fn lease(&self) -> Option<&Lease> {
        self.term.lease()
    }

    /// Waits until this process leads. May be dropped at any time. A release of the lease is seen
    /// at once if the credentials allow a watch of it, and at the next attempt otherwise.
    pub async fn acquire(&mut self) {
        let mut watch = LeaseWatch::new(self.api.clone(), &self.name);
        while !self.attempt().await {
            // Attempts continue without a release too, because a holder that crashed releases
            // nothing.
            let pause = self.pause();
            let _ = tokio::time::timeout(pause, watch.wait_for_release()).await;
        }
        tracing::info!(lease = self.name, "this process leads");
    }

    /// Renews the lease; returns when it could not be renewed in time. The caller must then stop
    /// its work before another process begins. Calls `renewed` after each renewal.
    pub async fn hold(&mut self, renewed: impl Fn()) {
        let (retry, mut pause) = (self.timing.retry, Duration::ZERO);
        loop {
            // Others count from the write at the earliest, which may be long before its answer.
            let since = self.term.renewed().unwrap_or_else(Instant::now);
            let end = (since + work_max(self.timing)).into();
            let renewal = async {
                tokio::time::sleep(pause).await;
                while !self.attempt().await {
                    tokio::time::sleep(retry).await;
                }
            };
            if tokio::time::timeout_at(end, renewal).await.is_err() {
                tracing::warn!(lease = self.name, "the lease could not be renewed in time");
                return;
            }
            renewed();
            pause = retry;
        }
    }

    /// Releases the lease, so that another process takes over at once instead of after its expiry.
    /// To be called when the work has stopped.
    pub async fn release(self) {
        let release = async {
            let found = self.api.get(&self.name).await?;
            if let Some(lease) = self.term.released(&found, Timestamp::now()) {
                self.api.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(self.timing.renew, release).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%error, lease = self.name, "the lease could not be released");
            }
            Err(_) => tracing::warn!(lease = self.name, "the lease could not be released in time"),
        }
    }

    /// One attempt to acquire or renew; returns whether this process leads now.
    // k8s: leaderelection.go tryAcquireOrRenew
    async fn attempt(&mut self) -> bool {
        let begun = Instant::now();
        if let FirstRequest::Renew(lease) = self.term.first_request(begun, Timestamp::now()) {
            match self.write(&lease, begun).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::debug!(%error, lease = self.name, "could not renew; reading the lease")
                }
            }
        }
        match self.read_and_write().await {
            Ok(ours) => ours,
            Err(error) => {
                tracing::warn!(%error, lease = self.name, "the lease cannot be read or written");
                false
            }
        }
    }

    async fn read_and_write(&mut self) -> Result<bool, LeaseRequestError> {
        let found = self.answer(self.api.get_opt(&self.name)).await?;
        let now = Instant::now();
        match self.term.record_read(found, now, Timestamp::now()) {
            TermStep::Wait => Ok(false),
            TermStep::Write(lease) => self.write(&lease, now).await.map(|()| true),
            TermStep::Create(lease) => {
                let params = PostParams::default();
                let made = self.answer(self.api.create(&params, &lease)).await?;
                self.term.record_write(made, now);
                Ok(true)
            }
        }
    }

    /// Writes the lease; it counts from `begun`, which must not be later than the write.
    async fn write(&mut self, lease: &Lease, begun: Instant) -> Result<(), LeaseRequestError> {
        let params = PostParams::default();
        let written = self.answer(self.api.replace(&self.name, &params, lease)).await?;
        self.term.record_write(written, begun);
        Ok(())
    }

    /// Waits for an answer within a limit, so that a lost request leaves time for another one.
    async fn answer<A>(
        &self,
        request: impl Future<Output = kube::Result<A>>,
    ) -> Result<A, LeaseRequestError> {
        let limit = request_max(self.timing);
        match tokio::time::timeout(limit, request).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(LeaseRequestError::TimedOut(limit)),
        }
    }

    /// A random pause, so that candidates do not send their requests at the same time.
    fn pause(&self) -> Duration {
        jitter::jitter(self.timing.retry, JITTER)
    }
}
