//! Carries commands out: bindings on lanes of their own, never behind what is only said.
//!
//! ```text
//!   Command ─┬─ Bind ───> BINDS_MAX at once ──Ended──> whoever decides
//!            ├─ Status ─> one of a pod at a time, the latest wins, STATUS_LANES pods at once
//!            ├─ Evict ──> its victims at once
//!            └─ Tell ───> notes: events of events.k8s.io, the same again raises a count
//! ```
//! Input: commands. Output: requests, and how each binding ended, whatever happens to its task.
//! Owner: one thread. Bounds: `BINDS_MAX` bindings under way (more wait, as assumed pods do); one
//! status a pod waits; `notes::WAITING_MAX` events wait, more are dropped.

mod bind;
pub mod notes;
mod status;

use std::cell::Cell;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use pintle_daemon::tasks;
use tokio::sync::{Semaphore, mpsc};

use self::notes::Notes;
use self::status::StatusLane;
use crate::cycle::command::{Command, Ended, Note, PodRef};

/// Bindings under way.
const BINDS_MAX: usize = 128;
/// Pods whose status is written at once.
const STATUS_LANES: usize = 16;

/// A binding that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindEnd {
    /// Of whom.
    pub pod: PodRef,
    /// Where to.
    pub node: Rc<str>,
    /// How.
    pub ended: Ended,
}

/// Whoever carries commands out.
pub struct Lanes {
    client: kube::Client,
    binds: Rc<Semaphore>,
    ends: mpsc::UnboundedSender<BindEnd>,
    status: Rc<StatusLane>,
    notes: Notes,
    under_way: Rc<Cell<usize>>,
}

impl Lanes {
    /// Begins, within a `LocalSet`; bindings end in the channel.
    pub fn new(
        clients: impl Fn() -> kube::Client,
        reporter: &str,
    ) -> (Self, mpsc::UnboundedReceiver<BindEnd>) {
        let (ends, ended) = mpsc::unbounded_channel();
        let status = Rc::new(StatusLane::new(clients()));
        for _ in 0..STATUS_LANES {
            let lane = Rc::clone(&status);
            tasks::singleton("status", async move { lane.run().await });
        }
        let (notes, sinks) = notes::notes(&clients(), reporter);
        for sink in sinks {
            tasks::singleton("events", sink.run());
        }
        let lanes = Self {
            client: clients(),
            binds: Rc::new(Semaphore::new(BINDS_MAX)),
            ends,
            status,
            notes,
            under_way: Rc::default(),
        };
        (lanes, ended)
    }

    /// Bindings that have not ended.
    pub fn under_way(&self) -> usize {
        self.under_way.get()
    }

    /// Carries one out, later.
    pub fn run(&self, command: Command) {
        match command {
            Command::Bind { pod, node } => self.bind(pod, node),
            Command::Status { pod, condition, nominated } => {
                self.status.put(pod, condition, nominated);
            }
            Command::Evict { victims, message, notes, .. } => {
                for (victim, note) in victims.into_iter().zip(notes) {
                    self.evict(victim, message.clone(), note);
                }
            }
            Command::Tell(note) => self.notes.tell(note),
        }
    }

    fn bind(&self, pod: PodRef, node: Rc<str>) {
        let owed = Owed {
            ends: self.ends.clone(),
            under_way: Rc::clone(&self.under_way),
            end: Some(BindEnd {
                pod: pod.clone(),
                node: Rc::clone(&node),
                ended: Ended::Failed("the task that bound it ended without an answer".to_owned()),
            }),
        };
        self.under_way.set(self.under_way.get() + 1);
        let (client, binds) = (self.client.clone(), Rc::clone(&self.binds));
        tokio::task::spawn_local(async move {
            let Ok(_turn) = binds.acquire().await else { return };
            let ended = bind::bind(client, &pod, &node).await;
            owed.pay(ended);
        });
    }

    // k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod
    fn evict(&self, victim: PodRef, message: String, note: Note) {
        let (client, notes) = (self.client.clone(), self.notes.clone());
        tokio::task::spawn_local(async move {
            let pods = Api::<Pod>::namespaced(client, victim.key.namespace());
            if let Err(error) = status::disrupt(&pods, &victim, &message).await {
                tracing::debug!(%error, pod = victim.key.as_str(), "no condition for a victim");
            }
            let uid = Some(victim.uid.to_string());
            let only = Preconditions { uid, ..Preconditions::default() };
            let params = DeleteParams { preconditions: Some(only), ..DeleteParams::default() };
            match pods.delete(victim.key.name(), &params).await {
                Ok(_) => notes.tell(note),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => {
                    // Whoever waits for the room is tried again when anything happens there.
                    tracing::warn!(%error, pod = victim.key.as_str(), "preemption failed");
                }
            }
        });
    }
}

/// An answer that is given whatever happens.
struct Owed {
    ends: mpsc::UnboundedSender<BindEnd>,
    under_way: Rc<Cell<usize>>,
    end: Option<BindEnd>,
}

impl Owed {
    fn pay(mut self, ended: Ended) {
        if let Some(end) = &mut self.end {
            end.ended = ended;
        }
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        if let Some(end) = self.end.take() {
            // Nobody takes it only when the process is about to end.
            let _ = self.ends.send(end);
        }
    }
}
