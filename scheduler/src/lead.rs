//! The lease, on a thread of its own: a long decision must not look like the end of the process.
//!
//! Input: credentials, the lease, timings. Output: that this process leads, and that it does not any
//! more; an event for each. Owner: one thread with a client of its own. A process that lost the lease
//! ends within `LAST_WORDS`, whatever its other threads do.
// k8s: cmd/kube-scheduler/app/server.go Run

mod herald;

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use pintle_api::leader::Elector;
use pintle_api::{Access, ClientOptions};
use pintle_daemon::tasks;
use tokio::sync::{mpsc, oneshot, watch};

use self::herald::Herald;
use crate::config::Process;
use crate::daemon::serve::State;

/// For the thread that decides, to say how it ends, and for the last event.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// For the lease to be given up.
const RELEASE_MAX: Duration = Duration::from_secs(10);

/// What becomes of the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Leads,
    Lost,
}

/// The thread that has the lease, or wants it.
pub(crate) struct Lead {
    words: mpsc::UnboundedReceiver<Word>,
    /// Until it is taken nobody asks for the lease.
    stand: Option<oneshot::Sender<()>>,
    keeper: LeaseKeeper,
    released: oneshot::Receiver<()>,
}

/// What is wanted of the thread that has the lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    Hold,
    /// Others begin at once.
    Release,
    /// It is renewed no more: others begin when it is over.
    Abandon,
}

/// The end of the lease in the hands of other threads than that which decides.
#[derive(Clone)]
pub(crate) struct LeaseKeeper {
    wish: Arc<watch::Sender<Wish>>,
    is_over: Arc<(Mutex<bool>, Condvar)>,
}

impl LeaseKeeper {
    fn new() -> (Self, watch::Receiver<Wish>) {
        let (wish, asked) = watch::channel(Wish::Hold);
        (Self { wish: Arc::new(wish), is_over: Arc::default() }, asked)
    }

    /// Releases the lease, and blocks until that is done or took too long.
    pub(crate) fn release_within(&self, most: Duration) {
        self.wish.send_replace(Wish::Release);
        let (is_over, changes) = &*self.is_over;
        let is_over = is_over.lock().unwrap_or_else(PoisonError::into_inner);
        // The lease is over some time later, whatever becomes of the request.
        drop(changes.wait_timeout_while(is_over, most, |is_over| !*is_over));
    }

    /// Renews it no more.
    pub(crate) fn abandon(&self) {
        self.wish.send_replace(Wish::Abandon);
    }

    fn mark_over(&self) {
        let (is_over, changes) = &*self.is_over;
        *is_over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changes.notify_all();
    }
}

impl Drop for Lead {
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

impl Lead {
    /// Nothing is asked of the API server yet; `None` where nobody has to agree on who works. Not to be
    /// called by a task: what it makes cannot be dropped there when something fails.
    ///
    /// # Errors
    /// When the timings make no sense, or there is no thread to be had.
    pub(crate) fn begin(
        access: &Access,
        process: &Process,
        state: &Arc<State>,
    ) -> Result<Option<Self>> {
        if !process.leader_elect {
            return Ok(None);
        }
        state.metrics.leads(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (elector, herald) = {
            let _here = runtime.enter();
            elector(access, process, state)?
        };
        let (tell, words) = mpsc::unbounded_channel();
        let (stand, stands) = oneshot::channel();
        let (keeper, asked) = LeaseKeeper::new();
        let over = keeper.clone();
        let (done, released) = oneshot::channel();
        let (lease, state) = (process.timing.lease, Arc::clone(state));
        tasks::thread("lease", move || {
            runtime.block_on(async {
                if stands.await.is_err() {
                    return;
                }
                let told = |leads| match leads {
                    true => state.holds_lease(lease),
                    false => state.metrics.leads(true),
                };
                lead((elector, &herald), &tell, asked, told).await;
            });
            over.mark_over();
            // Whoever waited for it may have gone.
            let _ = done.send(());
        })
        .context("the thread of the lease")?;
        Ok(Some(Self { words, stand: Some(stand), keeper, released }))
    }

    /// The end of the lease in other hands.
    pub(crate) fn keeper(&self) -> LeaseKeeper {
        self.keeper.clone()
    }

    /// Wants the lease from now on, until this process leads. May be dropped and called again.
    pub(crate) async fn leads(&mut self) {
        // Its thread is gone only when the process is about to end.
        let _ = self.stand.take().map(|stand| stand.send(()));
        while self.words.recv().await.is_some_and(|word| word != Word::Leads) {}
    }

    /// Until it does not lead any more.
    pub(crate) async fn is_lost(&mut self) {
        while self.words.recv().await.is_some_and(|word| word != Word::Lost) {}
    }

    /// Gives the lease up, so that another one can begin at once.
    pub(crate) async fn release(mut self) {
        self.keeper.wish.send_replace(Wish::Release);
        if tokio::time::timeout(RELEASE_MAX, &mut self.released).await.is_err() {
            tracing::warn!("the lease could not be given up: others begin when it is over");
        }
    }
}

/// Takes the lease and holds it until it is lost, or until somebody asks for its release. `tell`
/// hears of each renewal (true) and, once, that this process leads (false).
// k8s: staging/src/k8s.io/client-go/tools/leaderelection/leaderelection.go acquire, renew
async fn lead(
    (mut elector, herald): (Elector, &Herald),
    words: &mpsc::UnboundedSender<Word>,
    mut asked: watch::Receiver<Wish>,
    tell: impl Fn(bool),
) {
    tokio::select! {
        () = elector.acquire() => {}
        _ = ends(&mut asked) => return,
    }
    tell(false);
    // Nobody hears it only when the process is about to end.
    let _ = words.send(Word::Leads);
    let became = herald.event(elector.lease(), "became leader");
    tokio::select! {
        () = elector.hold(|| tell(true)) => {}
        () = herald.proclaim(&became) => {}
        wish = ends(&mut asked) => {
            if wish == Wish::Release {
                let stopped = herald.event(elector.lease(), "stopped leading");
                elector.release().await;
                herald.last_words(&stopped, LAST_WORDS).await;
            }
            return;
        }
    }
    let _ = words.send(Word::Lost);
    let stopped = herald.event(elector.lease(), "stopped leading");
    let wait = tokio::time::sleep(LAST_WORDS);
    futures_util::future::join(wait, herald.last_words(&stopped, LAST_WORDS)).await;
    tracing::error!("the lease was lost: another scheduler may work now");
    std::process::exit(1);
}

/// Waits until the lease is not to be held any more.
async fn ends(asked: &mut watch::Receiver<Wish>) -> Wish {
    match asked.wait_for(|wish| *wish != Wish::Hold).await {
        Ok(wish) => *wish,
        Err(_) => Wish::Abandon,
    }
}

// k8s: cmd/kube-scheduler/app/options/options.go makeLeaderElectionConfig
fn elector(access: &Access, process: &Process, state: &State) -> Result<(Elector, Herald)> {
    let user_agent = pintle_config::help::user_agent("leader-election");
    let client = access.client(ClientOptions { user_agent, ..Default::default() });
    let random = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let identity = format!("{}_{}", crate::run::host_name(), random.trim());
    let (namespace, name) = &process.lease;
    let herald = Herald::new(client.clone(), identity.clone(), state.reporter.clone());
    Ok((Elector::new(client, (namespace, name), identity, process.timing)?, herald))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use http_body_util::BodyExt as _;
    use hyper::{Method, Response};
    use kube::client::Body;
    use pintle_api::leader::Timing;
    use serde_json::{Value, json};

    use super::*;

    /// A server with one lease, and the events that came.
    #[derive(Default)]
    struct Server {
        lease: Option<Value>,
        events: Vec<Value>,
    }

    impl Server {
        fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, Value) {
            let mut sent: Value = serde_json::from_slice(body).unwrap_or_default();
            if path.ends_with("/events") {
                self.events.push(sent.clone());
                return (201, sent);
            }
            if *method != Method::GET {
                sent["metadata"]["uid"] = json!("lease-uid");
                sent["metadata"]["namespace"] = json!("kube-system");
                sent["metadata"]["resourceVersion"] = json!("7");
                self.lease = Some(sent);
            }
            let missing = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "message": "no", "reason": "NotFound", "code": 404});
            self.lease.clone().map_or((404, missing), |lease| (200, lease))
        }
    }

    /// A server, and a client of it.
    fn served() -> (Arc<Mutex<Server>>, kube::Client) {
        let server = Arc::new(Mutex::new(Server::default()));
        let shared = Arc::clone(&server);
        let service = tower::service_fn(move |request: hyper::Request<Body>| {
            let server = Arc::clone(&shared);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await?.to_bytes();
                let mut server = server.lock().unwrap_or_else(PoisonError::into_inner);
                let (code, answer) = server.answer(&head.method, head.uri.path(), &body);
                let answer = Body::from(answer.to_string().into_bytes());
                Ok::<_, tower::BoxError>(Response::builder().status(code).body(answer)?)
            }
        });
        (server, kube::Client::new(service, "default"))
    }

    /// Holds the lease until this is wished; what the server has then.
    async fn held_until(wish: Wish) -> Arc<Mutex<Server>> {
        let (server, client) = served();
        let herald = Herald::new(client.clone(), "host_1".to_owned(), "mine".to_owned());
        let lease = ("kube-system", "lock");
        let elector = Elector::new(client, lease, "host_1".to_owned(), Timing::default());
        let elector = elector.expect("good timings");
        let (tell, mut words) = mpsc::unbounded_channel();
        let (keeper, asked) = LeaseKeeper::new();
        let told = || server.lock().expect("no panic").events.clone();
        let asks = async {
            assert_eq!(words.recv().await, Some(Word::Leads));
            while told().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            keeper.wish.send_replace(wish);
        };
        futures_util::future::join(lead((elector, &herald), &tell, asked, |_| {}), asks).await;
        server
    }

    #[tokio::test]
    async fn lease_that_is_abandoned_is_not_renewed_and_expires() {
        let server = held_until(Wish::Abandon).await;
        let server = server.lock().expect("no panic");
        assert_eq!(server.events.len(), 1, "{:?}", server.events);
        let spec = &server.lease.as_ref().expect("it was taken")["spec"];
        assert_eq!(spec["holderIdentity"], "host_1");
    }

    #[tokio::test]
    async fn an_event_tells_that_this_process_leads_and_that_it_does_not_any_more() {
        let server = held_until(Wish::Release).await;
        let told = || server.lock().expect("no panic").events.clone();
        let spec =
            server.lock().expect("no panic").lease.as_ref().expect("it was taken")["spec"].clone();
        assert_ne!(spec["holderIdentity"], "host_1", "others begin at once");
        let messages: Vec<Value> = told().iter().map(|event| event["message"].clone()).collect();
        assert_eq!(messages, ["host_1 became leader", "host_1 stopped leading"]);
        let event = &told()[0];
        let of = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "namespace": "kube-system", "name": "lock", "uid": "lease-uid", "resourceVersion": "7"});
        assert_eq!(event["involvedObject"], of);
        let source = [&event["source"]["component"], &event["reportingComponent"]];
        assert_eq!(source, ["mine", "mine"]);
        assert_eq!([&event["type"], &event["reason"]], ["Normal", "LeaderElection"]);
        assert_eq!(event["metadata"]["namespace"], "kube-system");
    }
}
