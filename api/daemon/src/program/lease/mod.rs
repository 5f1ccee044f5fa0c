//! The lease, on a thread of its own: a long decision must not look like the end of the process.
//!
//! Input: credentials, the lease, timings. Output: that this process leads, and that it lost the
//! lease; an event for each. Owner: one thread with a client of its own. A process that lost the
//! lease ends within `LAST_WORDS`, whatever its other threads do.
// k8s: cmd/kube-scheduler/app/server.go Run

mod events;
mod health;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pintle_api::leader::Elector;
use pintle_api::{Access, ClientOptions};
use pintle_config::election::Election;
use tokio::sync::{mpsc, oneshot, watch};

use self::events::LeaderEvents;
pub use self::health::LeaderHealth;
use super::StartError;
use crate::tasks;

/// Time for the deciding thread to report how it ends, and for the last event.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time for the release of the lease.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// A component that takes part in an election.
#[derive(Clone, Debug)]
pub struct LeaseCandidate {
    /// The lease and its timings.
    pub election: Election,
    /// The component that events name as their source.
    pub reporter: String,
    /// Another process of the same kind: `another scheduler`.
    pub rival: &'static str,
}

/// Learns of renewals and of leadership on the lease's thread.
pub trait LeaseObserver: Send + Sync {
    /// This process leads from now on.
    fn acquired(&self);

    /// The lease was renewed just now.
    fn renewed(&self);
}

/// A change of the leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leadership {
    Acquired,
    Lost,
}

/// The thread that holds the lease, or tries to acquire it.
#[derive(Debug)]
pub struct LeaderLease {
    changes: mpsc::UnboundedReceiver<Leadership>,
    /// The thread asks for the lease once this is sent.
    start: Option<oneshot::Sender<()>>,
    keeper: LeaseKeeper,
    released: oneshot::Receiver<()>,
}

/// An order to the lease's thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Hold,
    /// Others begin at once.
    Release,
    /// The lease is not renewed any more: another process begins when it expires.
    Abandon,
}

/// Ends the lease from any thread.
#[derive(Clone, Debug)]
pub struct LeaseKeeper {
    wish: Arc<watch::Sender<Wish>>,
    is_over: Arc<(Mutex<bool>, Condvar)>,
}

impl LeaseKeeper {
    fn new() -> (Self, watch::Receiver<Wish>) {
        let (wish, asked) = watch::channel(Wish::Hold);
        (Self { wish: Arc::new(wish), is_over: Arc::default() }, asked)
    }

    /// Releases the lease, and blocks until that is done or took too long.
    pub fn release_within(&self, most: Duration) {
        self.wish.send_replace(Wish::Release);
        let (is_over, changes) = &*self.is_over;
        let is_over = is_over.lock().unwrap_or_else(PoisonError::into_inner);
        // The lease is over some time later, whether the request succeeds or not.
        drop(changes.wait_timeout_while(is_over, most, |is_over| !*is_over));
    }

    /// Stops renewing the lease.
    pub fn abandon(&self) {
        self.wish.send_replace(Wish::Abandon);
    }

    fn mark_over(&self) {
        let (is_over, changes) = &*self.is_over;
        *is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changes.notify_all();
    }
}

impl Drop for LeaderLease {
    fn drop(&mut self) {
        self.keeper.wish.send_if_modified(|wish| {
            let holds = *wish == Wish::Hold;
            if holds {
                *wish = Wish::Abandon;
            }
            holds
        });
    }
}

impl LeaderLease {
    /// Starts the thread; it sends no request yet. Not to be called by a task, because a runtime
    /// cannot be dropped there when something fails.
    ///
    /// # Errors
    /// When the timings make no sense, or no thread can be started.
    pub fn begin(
        access: &Access,
        candidate: &LeaseCandidate,
        observer: Arc<dyn LeaseObserver>,
    ) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (elector, events) = {
            let _here = runtime.enter();
            elector(access, candidate)?
        };
        let (report, changes) = mpsc::unbounded_channel();
        let (start, started) = oneshot::channel();
        let (keeper, wish) = LeaseKeeper::new();
        let over = keeper.clone();
        let (done, released) = oneshot::channel();
        let rival = candidate.rival;
        let work = move || {
            runtime.block_on(async {
                if started.await.is_err() {
                    return;
                }
                let term =
                    TermReports { events: &events, report: &report, observer: &*observer, rival };
                lead(elector, &term, wish).await;
            });
            over.mark_over();
            // The process may not wait for it any more.
            let _ = done.send(());
        };
        let started = tasks::thread("lease", work);
        started.map_err(|source| StartError::Thread { name: "lease", source })?;
        Ok(Self { changes, start: Some(start), keeper, released })
    }

    /// A handle that ends the lease from other threads.
    pub fn keeper(&self) -> LeaseKeeper {
        self.keeper.clone()
    }

    /// Tries to acquire the lease from now on, and waits until this process leads. May be dropped
    /// and called again.
    pub async fn wait_until_leading(&mut self) {
        // The thread is gone only when the process is about to end.
        let _ = self.start.take().map(|start| start.send(()));
        while self.changes.recv().await.is_some_and(|change| change != Leadership::Acquired) {}
    }

    /// Waits until this process does not lead any more.
    pub async fn wait_until_lost(&mut self) {
        while self.changes.recv().await.is_some_and(|change| change != Leadership::Lost) {}
    }

    /// Gives the lease up, so that another process can begin at once.
    pub async fn release(mut self) {
        self.keeper.wish.send_replace(Wish::Release);
        if tokio::time::timeout(RELEASE_MAX, &mut self.released).await.is_err() {
            tracing::warn!("the lease could not be given up: others begin when it is over");
        }
    }
}

/// Reports changes of the lease from its thread.
struct TermReports<'a> {
    events: &'a LeaderEvents,
    report: &'a mpsc::UnboundedSender<Leadership>,
    observer: &'a dyn LeaseObserver,
    rival: &'static str,
}

/// Acquires the lease and holds it until it is lost, or until its release is asked for.
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/leaderelection.go acquire, renew
async fn lead(mut elector: Elector, term: &TermReports<'_>, mut wish: watch::Receiver<Wish>) {
    tokio::select! {
        () = elector.acquire() => {}
        _ = ends(&mut wish) => return,
    }
    term.observer.acquired();
    // Nothing receives it only when the process is about to end.
    let _ = term.report.send(Leadership::Acquired);
    let became = term.events.event(elector.lease(), "became leader");
    tokio::select! {
        () = elector.hold(|| term.observer.renewed()) => {}
        () = term.events.write_for_ever(&became) => {}
        wish = ends(&mut wish) => {
            if wish == Wish::Release {
                let stopped = term.events.event(elector.lease(), "stopped leading");
                elector.release().await;
                term.events.write_within(&stopped, LAST_WORDS).await;
            }
            return;
        }
    }
    let _ = term.report.send(Leadership::Lost);
    let stopped = term.events.event(elector.lease(), "stopped leading");
    let wait = tokio::time::sleep(LAST_WORDS);
    futures_util::future::join(wait, term.events.write_within(&stopped, LAST_WORDS)).await;
    tracing::error!("the lease was lost: {} may work now", term.rival);
    std::process::exit(1);
}

/// Waits until the lease is not to be held any more.
async fn ends(wish: &mut watch::Receiver<Wish>) -> Wish {
    match wish.wait_for(|wish| *wish != Wish::Hold).await {
        Ok(wish) => *wish,
        Err(_) => Wish::Abandon,
    }
}

// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig
fn elector(access: &Access, of: &LeaseCandidate) -> Result<(Elector, LeaderEvents), StartError> {
    let user_agent = pintle_config::help::user_agent("leader-election");
    let client = access.client(ClientOptions { user_agent, ..Default::default() });
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let identity = format!("{}_{}", super::host_name(), random.trim());
    let election = &of.election;
    let (namespace, name) = (election.namespace.as_str(), election.name.as_str());
    let events = LeaderEvents::new(client.clone(), identity.clone(), of.reporter.clone());
    Ok((Elector::new(client, namespace, name, identity, election.timing)?, events))
}

#[cfg(test)]
mod tests {
    use pintle_api_types::kind;
    use pintle_api_types::lease::Timing;
    use pintle_memory_http::SharedServer;
    use serde_json::{Value, json};

    use super::*;

    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/lock";

    struct Unobserved;

    impl LeaseObserver for Unobserved {
        fn acquired(&self) {}

        fn renewed(&self) {}
    }

    /// The events about the lease.
    fn events(server: &SharedServer) -> Vec<Value> {
        server.events("kube-system", "lock")
    }

    fn holder(server: &SharedServer) -> Value {
        server.get(LEASE).expect("it was taken")["spec"]["holderIdentity"].clone()
    }

    /// Holds the lease until `wish`; returns the server then.
    async fn held_until(wish: Wish) -> SharedServer {
        let server = SharedServer::new(1);
        let client = server.client();
        let leader_events =
            LeaderEvents::new(client.clone(), "host_1".to_owned(), "mine".to_owned());
        let (identity, timing) = ("host_1".to_owned(), Timing::default());
        let elector = Elector::new(client, "kube-system", "lock", identity, timing);
        let elector = elector.expect("good timings");
        let (report, mut changes) = mpsc::unbounded_channel();
        let (keeper, asked) = LeaseKeeper::new();
        let asks = async {
            assert_eq!(changes.recv().await, Some(Leadership::Acquired));
            while events(&server).is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            keeper.wish.send_replace(wish);
        };
        let term = TermReports {
            events: &leader_events,
            report: &report,
            observer: &Unobserved,
            rival: "another",
        };
        futures_util::future::join(lead(elector, &term, asked), asks).await;
        server
    }

    #[tokio::test]
    async fn lease_that_is_abandoned_is_not_renewed_and_expires() {
        let server = held_until(Wish::Abandon).await;
        assert_eq!(events(&server).len(), 1, "{:?}", events(&server));
        assert_eq!(holder(&server), "host_1");
    }

    #[tokio::test]
    async fn leader_election_events_report_start_and_end_of_leadership() {
        let server = held_until(Wish::Release).await;
        assert_ne!(holder(&server), "host_1", "others begin at once");
        let events = events(&server);
        let messages: Vec<Value> = events.iter().map(|event| event["message"].clone()).collect();
        assert_eq!(messages, ["host_1 became leader", "host_1 stopped leading"]);
        let event = &events[0];
        let first = server.act(|server, _| {
            server.events_since(kind::LEASES, 0).expect("all are kept")[0].object.clone()
        });
        let meta = &first["metadata"];
        let of = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "namespace": "kube-system", "name": "lock", "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"]});
        assert_eq!(event["involvedObject"], of);
        let source = [&event["source"]["component"], &event["reportingComponent"]];
        assert_eq!(source, ["mine", "mine"]);
        assert_eq!([&event["type"], &event["reason"]], ["Normal", "LeaderElection"]);
        assert_eq!(event["metadata"]["namespace"], "kube-system");
    }
}
