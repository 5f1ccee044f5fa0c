//! Carries out the frame's orders: requests, each under its controller's identity, and events.
//!
//! Input: [`FrameEffect`]s. Output: answers, over one channel. Owner: the deciding thread's runtime.
//! Bounds: as many requests at once as the controllers have workers, times a batch; each client has
//! the limit of requests per second that the options give.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use pintle_api::events::{Happened, Recorder};
use pintle_api_types::request::{Answer, ApiError};
use pintle_controllers_core::frame::{EventLevel, FrameEffect, ObjectEvent, Ticket};
use pintle_daemon::tasks;
use tokio::sync::mpsc;

/// Most keys with a remembered failure.
const FAILURES_MAX: usize = 4096;

/// The answers to the requests of a ticket.
#[derive(Debug)]
pub(crate) struct TicketAnswers {
    /// The ticket.
    pub(crate) ticket: Ticket,
    /// An answer for each request.
    pub(crate) answers: Vec<Answer>,
}

/// The clients of one controller.
pub(crate) struct ControllerClients {
    /// For its requests.
    pub(crate) client: kube::Client,
    /// For its events.
    pub(crate) recorder: Recorder,
}

/// Carries out orders.
pub(crate) struct Dispatcher {
    identities: BTreeMap<&'static str, Rc<ControllerClients>>,
    answers: mpsc::UnboundedSender<TicketAnswers>,
    /// Tickets without answers.
    under_way: usize,
    /// The last failure of each key that failed.
    failures: HashMap<(&'static str, String), String>,
}

impl Dispatcher {
    /// One that sends under these identities, by controller.
    pub(crate) fn new(
        identities: BTreeMap<&'static str, Rc<ControllerClients>>,
        answers: mpsc::UnboundedSender<TicketAnswers>,
    ) -> Self {
        Self { identities, answers, under_way: 0, failures: HashMap::new() }
    }

    /// Tickets without answers.
    pub(crate) fn under_way(&self) -> usize {
        self.under_way
    }

    /// A ticket was answered.
    pub(crate) fn mark_answered(&mut self) {
        self.under_way -= 1;
    }

    /// Carries out an order. Must be called on a `LocalSet`.
    ///
    /// # Panics
    /// When the controller has no identity.
    pub(crate) fn carry_out(&mut self, order: FrameEffect) {
        match order {
            FrameEffect::Send { ticket, controller, requests } => {
                self.under_way += 1;
                let identity = Rc::clone(self.identity(controller));
                let answers = self.answers.clone();
                tokio::task::spawn_local(async move {
                    let all = requests
                        .iter()
                        .map(|request| tasks::caught(pintle_api::send(&identity.client, request)));
                    let all = join_all(all).await.into_iter().map(|answer| {
                        answer.unwrap_or_else(|panic| {
                            let message = panic.to_string();
                            Err(ApiError { message, ..ApiError::default() })
                        })
                    });
                    // The receiver is dropped only when the process is about to exit.
                    let _ = answers.send(TicketAnswers { ticket, answers: all.collect() });
                });
            }
            FrameEffect::Emit { controller, event } => {
                self.identity(controller).recorder.put(happened(event));
            }
            // Only controllers in shadow report decisions; these are compared before they come
            // here.
            FrameEffect::Decided { .. } => {}
            FrameEffect::Failed { controller, key, message, is_quiet } => {
                let is_known = self.is_known_failure(controller, &key, &message);
                if is_quiet || is_known {
                    tracing::debug!(controller, key, "sync failed, trying again: {message}");
                } else {
                    tracing::warn!(controller, key, "sync failed: {message}");
                }
            }
        }
    }

    /// The last failure of the key was the same: one line in the log is enough.
    fn is_known_failure(&mut self, controller: &'static str, key: &str, message: &str) -> bool {
        if self.failures.len() > FAILURES_MAX {
            self.failures.clear();
        }
        let last = self.failures.insert((controller, key.to_owned()), message.to_owned());
        last.is_some_and(|last| last == message)
    }

    fn identity(&self, controller: &str) -> &Rc<ControllerClients> {
        self.identities.get(controller).expect("each controller has an identity")
    }
}

fn happened(event: ObjectEvent) -> Happened {
    let about = event.about;
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    Happened {
        about: ObjectReference {
            api_version: Some(about.kind.api_version()),
            kind: Some(about.kind.kind.to_owned()),
            name: Some(about.name),
            namespace: some(about.namespace),
            uid: some(about.uid),
            resource_version: some(about.version),
            field_path: None,
        },
        kind: match event.level {
            EventLevel::Normal => pintle_api::events::EventKind::Normal,
            EventLevel::Warning => pintle_api::events::EventKind::Warning,
        },
        reason: event.reason.to_owned(),
        message: event.message,
        annotations: BTreeMap::new(),
        at: Timestamp::now(),
    }
}
