//! Replaces certificates before they end.
//!
//! Owner: one task for each certificate. It sleeps until 70 to 90 % of the certificate's life have
//! passed, or its names must change, then requests a new one. `due` is pure. Bounds: one request at
//! a time, waits of `PAUSES` after failures, `SIGN_MAX` for a signature.
// k8s: staging/src/k8s.io/client-go/util/certificate/certificate_manager.go

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use k8s_openapi::api::core::v1::NodeAddress;
use pintle_agent_metrics::CertificateCounts;
use pintle_api::Access;
use pintle_api_types::jitter as pace;
use pintle_daemon::blocking;
use pintle_daemon::blocking::{Blocked, JobPlace};
use rcgen::KeyPair;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::bootstrap;
use super::certificate::Validity;
use super::request::{self, CertificateNames, RequestError, WantedCertificate};
use super::store::CertificateStore;
use crate::node::own::OwnNode;

/// Longest wait for a signature.
const SIGN_MAX: Duration = Duration::from_secs(15 * 60);
/// First and longest pause after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(32));
/// A wall clock may jump, so no sleep is longer.
const SLEEP_MAX: Duration = Duration::from_secs(600);
/// How long the agent runs without a valid client certificate while the server refuses to give it
/// one.
// k8s: cmd/kubelet/app/server.go buildKubeletClientConfig
const REFUSED_MAX: Duration = Duration::from_secs(300);

/// The serving certificate in force; empty before there is one.
pub type ServingCell = Arc<ArcSwapOption<CertifiedKey>>;

/// The next step for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Request a new one.
    Now,
    /// Look again after so many seconds.
    In(u64),
}

/// Decides whether a certificate is to be replaced. `part` spreads nodes over time.
pub fn due(current: Option<&Validity>, wanted: &CertificateNames, part: f64, now: i64) -> Due {
    match current {
        Some(current) if current.satisfies(wanted) => match current.deadline(part) - now {
            left @ 1.. => Due::In(left.unsigned_abs()),
            _ => Due::Now,
        },
        _ => Due::Now,
    }
}

/// Since when requests have failed without a client certificate that holds.
#[derive(Default)]
struct Without(Option<Instant>);

impl Without {
    /// Handles a failed request: `holds` is whether there is a valid certificate, `refused` whether
    /// the server refused our credentials. Returns true when only a restart can help.
    // k8s: pkg/kubelet/certificate/transport.go addCertRotation
    fn failed(&mut self, holds: bool, refused: bool, now: Instant) -> bool {
        if holds {
            self.0 = None;
            return false;
        }
        let since = *self.0.get_or_insert(now);
        refused && now.duration_since(since) > REFUSED_MAX
    }
}

/// Takes the PEM of a pair.
type Taker = Box<dyn Fn(&[u8])>;

/// Keeps one certificate.
pub struct Rotation {
    store: CertificateStore,
    signer: &'static str,
    client: kube::Client,
    /// The client for the first request, before there is a certificate.
    first: Option<kube::Client>,
    /// Receives each pair in force.
    in_force: Taker,
    counts: CertificateCounts,
    /// The user of the client certificate; `None` for the serving one.
    access: Option<Access>,
    without: Without,
    part: f64,
    /// The certificate in use is not ours to keep: it is replaced at once.
    at_once: bool,
}

impl Rotation {
    /// The client certificate. `first` requests the first one when there is none yet; without it
    /// and without a pair in the store the kubeconfig's own pair is replaced at once.
    pub fn of_client(
        store: CertificateStore,
        access: Access,
        client: kube::Client,
        first: Option<kube::Client>,
        counts: CertificateCounts,
    ) -> Self {
        let at_once = store.read().is_none();
        let in_force: Taker = Box::new(|_| {});
        let (signer, part) = (request::CLIENT_SIGNER, pace::random());
        counts.ends_at(store.read().map(|(_, validity)| validity.not_after));
        let (access, without) = (Some(access), Without::default());
        Self { store, signer, client, first, in_force, counts, access, without, part, at_once }
    }

    /// The serving certificate; `in_force` takes each one.
    pub fn of_serving(
        store: CertificateStore,
        client: kube::Client,
        in_force: impl Fn(Arc<CertifiedKey>) + 'static,
        counts: CertificateCounts,
    ) -> Self {
        let taken = move |pem: &[u8]| match certified(pem) {
            Ok(pair) => in_force(Arc::new(pair)),
            Err(error) => tracing::warn!(%error, "the serving certificate cannot be used"),
        };
        if let Some((pem, validity)) = store.read()
            && validity.not_after > now()
        {
            counts.ends_at(Some(validity.not_after));
            taken(&pem);
        }
        let (in_force, signer) = (Box::new(taken), request::SERVING_SIGNER);
        let (first, access, without) = (None, None, Without::default());
        let (part, at_once) = (pace::random(), false);
        Self { store, signer, client, first, in_force, counts, access, without, part, at_once }
    }

    /// Rotates for ever. `wanted` has the names of the certificate; `None` while they are not
    /// known.
    pub async fn run(mut self, mut wanted: watch::Receiver<Option<CertificateNames>>) {
        let mut pause = PAUSES.0;
        loop {
            let now_wanted = wanted.borrow_and_update().clone();
            let sleep = match &now_wanted {
                None => SLEEP_MAX,
                Some(names) => match self.turn_unless_changed(names, &mut wanted).await {
                    // A certificate with outdated names is not waited for.
                    None => continue,
                    Some(Ok(sleep)) => {
                        pause = PAUSES.0;
                        sleep
                    }
                    Some(Err(error)) => {
                        self.counts.not_renewed();
                        tracing::warn!(signer = self.signer, "{error}");
                        self.end_if_useless(&error).await;
                        let sleep = pause;
                        pause = (pause * 2).min(PAUSES.1);
                        sleep
                    }
                },
            };
            tokio::select! {
                () = tokio::time::sleep(sleep) => {}
                changed = wanted.changed() => if changed.is_err() {
                    tokio::time::sleep(sleep).await;
                },
            }
        }
    }

    /// A turn; `None` when it was given up because other names are wanted now.
    // k8s: staging/src/k8s.io/client-go/util/certificate/certificate_manager.go run, lastRequestCancel
    async fn turn_unless_changed(
        &mut self,
        names: &CertificateNames,
        wanted: &mut watch::Receiver<Option<CertificateNames>>,
    ) -> Option<Result<Duration, RequestError>> {
        let changed = async {
            let others =
                |now: &Option<CertificateNames>| now.as_ref().is_some_and(|now| now != names);
            if wanted.wait_for(others).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            done = self.turn(names) => Some(done),
            () = changed => None,
        }
    }

    async fn turn(&mut self, wanted: &CertificateNames) -> Result<Duration, RequestError> {
        // A disk that does not answer says nothing about the stored pair.
        let Ok(current) = self.stored().await else { return Ok(PAUSES.0) };
        let current = current.map(|(_, validity)| validity);
        let due = match self.at_once {
            true => Due::Now,
            false => due(current.as_ref(), wanted, self.part, now()),
        };
        if let Due::In(seconds) = due {
            return Ok(Duration::from_secs(seconds).min(SLEEP_MAX));
        }
        let key = KeyPair::generate()?;
        let good = current.as_ref().is_some_and(|validity| validity.not_after > now());
        let client = match (&self.first, good) {
            (Some(first), false) => first.clone(),
            _ => self.client.clone(),
        };
        let (signer, names) = (self.signer, wanted);
        let wanted = WantedCertificate { signer, names, key: &key, digested: false };
        let pem = request::certificate(client, wanted, SIGN_MAX).await?;
        let (store, key) = (self.store.clone(), key.serialize_pem());
        let store = move || store.update(&pem, &key, jiff::Timestamp::now());
        match blocking::try_run(JobPlace::own("certificates"), store).await {
            Ok(()) => {
                tracing::info!(signer = self.signer, "a new certificate is in force");
                self.at_once = false;
                self.part = pace::random();
                if let Some(before) = &current {
                    self.counts.replaced(now() - before.not_before);
                }
                if let Ok(Some((pem, validity))) = self.stored().await {
                    self.counts.ends_at(Some(validity.not_after));
                    (self.in_force)(&pem);
                }
            }
            Err(error) => {
                self.counts.not_renewed();
                let path = self.store.current();
                tracing::warn!(%error, path = %path.display(), "a new certificate cannot be kept");
                return Ok(PAUSES.1);
            }
        }
        Ok(Duration::from_secs(1))
    }

    async fn stored(&self) -> Result<Option<(Vec<u8>, Validity)>, Blocked> {
        let store = self.store.clone();
        blocking::run(JobPlace::own("certificates"), move || store.read()).await
    }

    /// Ends the agent if only new credentials can help: a restart may bring them.
    // k8s: pkg/kubelet/certificate/transport.go addCertRotation exitAfter
    async fn end_if_useless(&mut self, error: &RequestError) {
        let Some(access) = self.access.clone() else { return };
        let holds = move || bootstrap::holds(&access, now());
        let Ok(holds) = blocking::run(JobPlace::own("certificates"), holds).await else { return };
        if self.without.failed(holds, error.is_refusal(), Instant::now()) {
            tracing::error!(
                "there is no client certificate that holds, and the API server refuses to give one; \
                 ending. Give --bootstrap-kubeconfig, or a kubeconfig that is valid"
            );
            std::process::exit(1);
        }
    }
}

fn now() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// A pair that cannot be used.
#[derive(Debug, thiserror::Error)]
enum PairError {
    #[error(transparent)]
    Pem(#[from] tokio_rustls::rustls::pki_types::pem::Error),
    #[error(transparent)]
    Key(#[from] tokio_rustls::rustls::Error),
}

fn certified(pem: &[u8]) -> Result<CertifiedKey, PairError> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(pem)?;
    Ok(CertifiedKey::from_der(chain, key, &default_provider())?)
}

/// The names of the serving certificate; `None` before the node has an address.
// k8s: pkg/kubelet/certificate/kubelet.go newGetTemplateFn, addressesToHostnamesAndIPs
pub fn serving_names(node: &str, addresses: &[NodeAddress]) -> Option<CertificateNames> {
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::<IpAddr>::new());
    for address in addresses.iter().filter(|address| !address.address.is_empty()) {
        let ip = address.address.parse::<IpAddr>().ok();
        match (address.type_.as_str(), ip) {
            ("Hostname" | "ExternalIP" | "InternalIP", Some(ip)) => {
                ips.insert(ip);
            }
            ("Hostname" | "ExternalDNS" | "InternalDNS", _) => {
                names.insert(address.address.clone());
            }
            _ => {}
        }
    }
    let node = node.to_owned();
    (!ips.is_empty()).then_some(CertificateNames { node, names, addresses: ips })
}

/// Follows the node's addresses for the serving certificate.
pub async fn follow_addresses(
    node: String,
    mut own: watch::Receiver<OwnNode>,
    wanted: watch::Sender<Option<CertificateNames>>,
) {
    loop {
        let names = own
            .borrow_and_update()
            .object()
            .and_then(|object| serving_names(&node, object.status.as_ref()?.addresses.as_deref()?));
        if names.is_some() {
            wanted.send_if_modified(|before| {
                let changed = *before != names;
                *before = names;
                changed
            });
        }
        if own.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::certificate::tests::pair;
    use super::*;

    #[test]
    fn agent_without_a_certificate_exits_after_a_long_series_of_refusals() {
        let status = |code, reason: &str| {
            let status = kube::core::Status::failure("no", reason).with_code(code).boxed();
            RequestError::from(Box::new(kube::Error::Api(status)))
        };
        let unsigned = RequestError::Unsigned { name: "csr".to_owned(), limit: SIGN_MAX };
        let cases = [
            (status(401, ""), true),
            (status(403, "Forbidden"), true),
            (status(404, "NotFound"), true),
            (status(404, "Failed to parse error data"), false),
            (status(429, "TooManyRequests"), false),
            (status(500, "InternalError"), false),
            (unsigned, false),
        ];
        let begin = Instant::now();
        let late = begin + REFUSED_MAX + Duration::from_secs(1);
        for (error, ends) in cases {
            let refused = error.is_refusal();
            let mut without = Without::default();
            assert!(!without.failed(false, refused, begin), "{error}");
            assert_eq!(without.failed(false, refused, late), ends, "{error}");
            assert!(!without.failed(true, refused, late), "one was put there");
            assert!(!without.failed(false, refused, late), "it has only just expired");
        }
    }

    #[test]
    fn a_certificate_is_replaced_late_or_when_names_change() {
        let (pem, key) = pair(&["n", "192.0.2.1"], (2020, 2030));
        let current = Validity::of_pem(pem.as_bytes()).expect("a certificate");
        let address = |kind: &str, text: &str| NodeAddress {
            type_: kind.to_owned(),
            address: text.to_owned(),
        };
        let mut addresses = vec![address("Hostname", "n"), address("InternalIP", "192.0.2.1")];
        let wanted = serving_names("n", &addresses).expect("an address");
        let early = current.not_before + 10;
        assert!(
            matches!(due(Some(&current), &wanted, 0.5, early), Due::In(seconds) if seconds > 10)
        );
        assert_eq!(due(Some(&current), &wanted, 0.5, current.not_after), Due::Now);
        assert_eq!(due(None, &wanted, 0.5, early), Due::Now);
        addresses.push(address("ExternalIP", "198.51.100.1"));
        let more = serving_names("n", &addresses).expect("an address");
        assert_eq!(due(Some(&current), &more, 0.5, early), Due::Now);
        assert_eq!(serving_names("n", &addresses[..1]), None);
        assert!(certified(format!("{pem}{key}").as_bytes()).is_ok());
        assert!(certified(pem.as_bytes()).is_err());
    }
}
