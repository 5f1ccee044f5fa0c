//! Elections among processes with an API server in memory, over connections that get worse.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use pintle_api_types::lease::Timing;
use pintle_memory_http::{Passage, SharedServer};
use serde_json::{Value, json};

use super::term::{FirstRequest, LeaseTerm, TermStep};
use super::{Elector, TimingError, check};

const WALL: Timestamp = Timestamp::UNIX_EPOCH;
/// Short, so that a hand-over does not take long; a lease has whole seconds.
const QUICK: Timing = Timing {
    lease: Duration::from_secs(1),
    renew: Duration::from_millis(500),
    retry: Duration::from_millis(50),
};
/// Long enough for any machine; nothing waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn timings_with_which_two_could_lead_are_refused() {
    let timing = |lease, renew, retry| Timing {
        lease: Duration::from_millis(lease),
        renew: Duration::from_millis(renew),
        retry: Duration::from_millis(retry),
    };
    assert_eq!(check(Timing::default()), Ok(Timing::default()));
    for (timing, error) in [
        (timing(999, 500, 100), TimingError::LeaseTooShort),
        (timing(10_000, 10_000, 2_000), TimingError::RenewNotShorter),
        (timing(15_000, 2_400, 2_000), TimingError::RetryNotShorter),
        (timing(15_000, 10_000, 0), TimingError::RetryZero),
    ] {
        assert_eq!(check(timing), Err(error), "{timing:?}");
    }
}

fn term(identity: &str) -> LeaseTerm {
    LeaseTerm::new(identity.into(), "lock".into(), Duration::from_secs(15))
}

fn spec(lease: &Lease) -> Value {
    serde_json::to_value(lease.spec.as_ref()).expect("a spec")
}

#[test]
fn lease_unchanged_for_its_duration_is_acquired_by_another_candidate() {
    let begun = Instant::now();
    let after = |seconds| begun + Duration::from_secs(seconds);
    let (mut first, mut second) = (term("a"), term("b"));
    assert_eq!(first.first_request(begun, WALL), FirstRequest::Read);
    let TermStep::Create(lease) = first.record_read(None, begun, WALL) else {
        panic!("the lease is free")
    };
    assert_eq!(spec(&lease)["leaseTransitions"], 0);
    assert_eq!(spec(&lease)["leaseDurationSeconds"], 15);
    first.record_write(*lease.clone(), begun);
    assert!(first.is_ours());

    // The other one sees it late, and counts from then.
    assert_eq!(second.record_read(Some(*lease.clone()), after(10), WALL), TermStep::Wait);
    let mut untouched = *lease.clone();
    untouched.metadata.resource_version = Some("9".into());
    assert_eq!(second.record_read(Some(untouched.clone()), after(24), WALL), TermStep::Wait);
    let TermStep::Write(taken) = second.record_read(Some(untouched), after(25), WALL) else {
        panic!("15 s without a change")
    };
    assert_eq!(spec(&taken)["holderIdentity"], "b");
    assert_eq!(spec(&taken)["leaseTransitions"], 1);
    assert_eq!(taken.metadata.resource_version.as_deref(), Some("9"), "not over a newer one");

    // The first one comes back: no longer valid, so it looks before it writes.
    assert_eq!(first.first_request(after(16), WALL), FirstRequest::Read);
    assert_eq!(first.record_read(Some(*taken), after(26), WALL), TermStep::Wait);
    assert_eq!(first.leader(), Some("b"));
}

#[test]
fn lease_renewal_keeps_acquire_time_and_transitions() {
    let begun = Instant::now();
    let mut term = term("a");
    let TermStep::Create(lease) = term.record_read(None, begun, WALL) else {
        panic!("the lease is free")
    };
    term.record_write(*lease, begun);
    let later = Timestamp::from_second(5).expect("a time");
    let FirstRequest::Renew(renewed) = term.first_request(begun + Duration::from_secs(5), later)
    else {
        panic!("it is ours")
    };
    let renewed = spec(&renewed);
    assert_eq!(renewed["acquireTime"], "1970-01-01T00:00:00.000000Z");
    assert_eq!(renewed["renewTime"], "1970-01-01T00:00:05.000000Z");
    assert_eq!(renewed["leaseTransitions"], 0);
}

#[test]
fn released_lease_is_acquired_at_the_next_read() {
    let begun = Instant::now();
    let (mut first, mut second) = (term("a"), term("b"));
    let TermStep::Create(lease) = first.record_read(None, begun, WALL) else {
        panic!("the lease is free")
    };
    first.record_write(*lease.clone(), begun);
    assert_eq!(second.record_read(Some(*lease.clone()), begun, WALL), TermStep::Wait);
    assert_eq!(second.released(&lease, WALL), None, "it is not ours to give");
    let given = first.released(&lease, WALL).expect("it is ours");
    assert!(matches!(second.record_read(Some(given), begun, WALL), TermStep::Write(_)));
}

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/lock";

/// The lease of an API server in memory.
struct LeaseStore(SharedServer);

/// How the connection of a process behaves.
#[derive(Clone, Copy, Default, PartialEq)]
enum ServerLine {
    #[default]
    Works,
    Refuses,
    /// Handles a request and answers it after that time; later requests have no answer.
    Breaks(Duration),
    /// The next write has no answer.
    LosesOne,
    Silent,
}

impl LeaseStore {
    fn new() -> Self {
        Self(SharedServer::new(1))
    }

    /// A client for one process, whose connection may get worse.
    fn client(&self) -> (kube::Client, Arc<Mutex<ServerLine>>) {
        let line = Arc::new(Mutex::new(ServerLine::default()));
        let of_client = Arc::clone(&line);
        let client = self.0.client_through(move |method| {
            let mut line = of_client.lock().expect("no panic");
            match *line {
                ServerLine::Works => Passage::Through,
                ServerLine::LosesOne if method == Method::GET => Passage::Through,
                ServerLine::Refuses => Passage::Refused(500),
                ServerLine::Breaks(after) => {
                    *line = ServerLine::Silent;
                    Passage::Late(after)
                }
                ServerLine::LosesOne => {
                    *line = ServerLine::Works;
                    Passage::Lost
                }
                ServerLine::Silent => Passage::Lost,
            }
        });
        (client, line)
    }

    fn holder(&self) -> Value {
        let lease = self.0.get(LEASE);
        lease.map(|lease| lease["spec"]["holderIdentity"].clone()).unwrap_or_default()
    }

    /// The time that the last renewal states.
    fn renewed(&self) -> Timestamp {
        let lease = self.0.get(LEASE).expect("it was taken");
        lease["spec"]["renewTime"].as_str().and_then(|time| time.parse().ok()).expect("a time")
    }
}

fn elector(client: kube::Client, identity: &str) -> Elector {
    lock(client, identity, QUICK)
}

fn lock(client: kube::Client, identity: &str, timing: Timing) -> Elector {
    Elector::new(client, "kube-system", "lock", identity.into(), timing).expect("good timings")
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let limited = async { tokio::time::timeout(PATIENCE, test).await.expect("in time") };
    runtime.expect("a runtime").block_on(limited);
}

#[test]
fn leader_without_api_server_stops_before_another_process_leads() {
    run(async {
        let store = LeaseStore::new();
        let (client, line) = store.client();
        let mut first = elector(client, "a");
        first.acquire().await;
        assert_eq!(store.holder(), "a");
        let mut second = elector(store.client().0, "b");
        *line.lock().expect("no panic") = ServerLine::Refuses;
        let stopped = async {
            first.hold(|| {}).await;
            Instant::now()
        };
        let taken = async {
            second.acquire().await;
            Instant::now()
        };
        let (stopped, taken) = futures_util::future::join(stopped, taken).await;
        assert!(stopped < taken, "both led for {:?}", stopped - taken);
        assert_eq!((store.holder(), second.leader()), (json!("b"), Some("b")));
    });
}

#[test]
fn an_answer_that_comes_late_makes_no_lease_last_longer() {
    run(async {
        let store = LeaseStore::new();
        let (client, line) = store.client();
        let timing = Timing { retry: Duration::from_millis(200), ..QUICK };

        let mut first = lock(client, "a", timing);
        first.acquire().await;
        *line.lock().expect("no panic") = ServerLine::Breaks(Duration::from_millis(400));
        first.hold(|| {}).await;
        let held = Duration::try_from(Timestamp::now() - store.renewed()).expect("not negative");
        assert!(held < timing.lease, "others may lead after {:?}, not {held:?}", timing.lease);
    });
}

#[test]
fn lease_survives_a_renewal_without_an_answer() {
    run(async {
        let store = LeaseStore::new();
        let (client, line) = store.client();
        let timing = Timing {
            lease: Duration::from_secs(6),
            renew: Duration::from_secs(3),
            retry: Duration::from_millis(50),
        };

        let mut first = lock(client, "a", timing);
        first.acquire().await;
        *line.lock().expect("no panic") = ServerLine::LosesOne;
        let (told, mut renewals) = tokio::sync::mpsc::unbounded_channel();
        tokio::select! {
            () = first.hold(|| told.send(()).expect("it is waited for")) => panic!("it was lost"),
            _ = renewals.recv() => {}
        }
        assert!(*line.lock().expect("no panic") == ServerLine::Works, "one was lost");
    });
}

#[test]
fn released_lease_is_acquired_before_it_expires() {
    run(async {
        let store = LeaseStore::new();
        let (mut first, mut second) =
            (elector(store.client().0, "a"), elector(store.client().0, "b"));
        first.acquire().await;
        // It has seen the first one's lease, and would wait for its end.
        assert!(tokio::time::timeout(QUICK.retry, second.acquire()).await.is_err());
        first.release().await;
        assert_eq!(store.holder(), "");
        second.acquire().await;
        assert_eq!(store.holder(), "b");
    });
}

#[test]
fn release_is_seen_without_waiting_for_the_next_attempt() {
    run(async {
        let store = LeaseStore::new();
        let timing = Timing {
            lease: Duration::from_secs(300),
            renew: Duration::from_secs(200),
            retry: Duration::from_secs(100),
        };

        let elector = |identity: &str| {
            let client = store.client().0;
            lock(client, identity, timing)
        };
        let (mut first, mut second) = (elector("a"), elector("b"));
        first.acquire().await;
        let release = async {
            // The second process has read the lease by now, and waits.
            tokio::time::sleep(QUICK.retry).await;
            first.release().await;
        };
        // An attempt comes after 100 s at the earliest: `run` has not that much patience.
        futures_util::future::join(second.acquire(), release).await;
        assert_eq!(store.holder(), "b");
    });
}
