//! Plays a recording: time advances by itself, and all steps happen in the recorded order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{Kind, NAMESPACES, NODES};
use pintle_api_types::request::{Answer, Request};
use pintle_controllers_core::frame::{Now, ObjectEvent};
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

use super::pods::PodStep;
use super::{admission, clock};
use crate::manager::{self, Daemon, ManagerRequest};

/// A request of a controller and what came of it.
pub(super) struct RecordedWrite {
    pub(super) at_ms: u64,
    pub(super) user: String,
    pub(super) request: Request,
    pub(super) answer: Answer,
}

/// The results of a played recording.
pub(super) struct Played {
    pub(super) server: Server,
    pub(super) writes: Vec<RecordedWrite>,
    pub(super) events: Vec<(&'static str, ObjectEvent)>,
}

/// From the sending of a request to its answer; the recorded ones took 3 to 10 ms.
const ANSWER_MS: u64 = 5;
/// How long things go on after the last recorded one.
const REST_MS: u64 = 1_500;

pub(super) enum Happening {
    Step(usize),
    Arrive(Box<ManagerRequest>),
    Pod(ObjectKey, PodStep),
}

pub(super) struct Player<'a> {
    pub(super) recording: &'a Value,
    pub(super) namespace: &'a str,
    pub(super) server: Server,
    manager: Daemon,
    begun: Instant,
    /// The wall clock at the first step.
    start: Timestamp,
    pub(super) ms: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    count: u64,
    /// UIDs of objects for which the kubelet and the scheduler have started steps.
    pub(super) begun_for: BTreeSet<String>,
    pub(super) writes: Vec<RecordedWrite>,
    pub(super) bound: usize,
}

/// Plays a recording.
pub(super) fn play(recording: &Value) -> Played {
    let namespace = recording["scenario"].as_str().expect("a name");
    let mut player = Player {
        recording,
        namespace,
        server: Server::new(1),
        manager: Daemon::new(),
        begun: Instant::now(),
        start: clock::start_of(recording),
        ms: 0,
        agenda: BTreeMap::new(),
        count: 0,
        begun_for: BTreeSet::new(),
        writes: Vec::new(),
        bound: 0,
    };
    player.prepare();
    player.run();
    let Player { server, writes, manager, .. } = player;
    Played { server, writes, events: manager.events }
}

pub(super) fn at_ms(value: &Value) -> u64 {
    let ms = value["at_ms"].as_f64().unwrap_or_default();
    ms as u64 // whole milliseconds are enough
}

impl Player<'_> {
    fn prepare(&mut self) {
        let steps = self.recording["steps"].as_array().expect("steps");
        let creation = format!("create namespaces/{}", self.namespace);
        if !steps.iter().any(|step| step["what"] == creation) {
            let namespace = json!({"metadata": {"name": self.namespace}});
            self.ask(create(NAMESPACES, "", namespace)).expect("the server is empty");
        }
        for at in 1..=3 {
            let name = format!("fake-{at}");
            let node = json!({"metadata": {"name": name}});
            self.ask(create(NODES, "", node)).expect("the server is empty");
        }
        self.mark_nodes_ready();
        // The controllers know the empty cluster before the first step.
        self.settle_now();
        while let Some(((at, _), what)) = self.agenda.pop_first() {
            self.ms = at.max(self.ms);
            self.happen(what);
            self.settle_now();
        }
        let offset = self.ms + 100;
        for (at, step) in steps.iter().enumerate() {
            self.plan(offset + at_ms(step), Happening::Step(at));
        }
        self.begun_at(offset);
    }

    /// The first step is at time 0.
    fn begun_at(&mut self, offset: u64) {
        let agenda = std::mem::take(&mut self.agenda);
        self.begun += Duration::from_millis(offset);
        self.agenda = agenda.into_iter().map(|((at, n), what)| ((at - offset, n), what)).collect();
        self.ms = 0;
        self.writes.clear();
        self.manager.events.clear();
    }

    fn end(&self) -> u64 {
        let all = ["steps", "writes", "kubelet"]
            .iter()
            .flat_map(|part| self.recording[*part].as_array().into_iter().flatten().map(at_ms));
        all.max().unwrap_or_default() + REST_MS
    }

    fn run(&mut self) {
        let end = self.end();
        loop {
            self.settle_now();
            let next = self.agenda.first_key_value().map(|((at, _), _)| *at);
            let due = self.manager.frame.next_due().map(|at| self.ms_of(at));
            let Some(next) = next.into_iter().chain(due).min().filter(|at| *at <= end) else {
                return;
            };
            self.ms = next.max(self.ms);
            while let Some(entry) = self.agenda.first_entry().filter(|e| e.key().0 <= self.ms) {
                let what = entry.remove();
                self.happen(what);
            }
        }
    }

    fn ms_of(&self, at: Instant) -> u64 {
        let wait = at.saturating_duration_since(self.begun);
        u64::try_from(wait.as_micros().div_ceil(1_000)).expect("a short time")
    }

    pub(super) fn now(&self) -> Now {
        let passed = Duration::from_millis(self.ms);
        Now { instant: self.begun + passed, wall: self.start + passed }
    }

    pub(super) fn plan(&mut self, at: u64, what: Happening) {
        self.count += 1;
        self.agenda.insert((at, self.count), what);
    }

    /// A request of a user, the scheduler or the kubelet.
    pub(super) fn ask(&mut self, request: Request) -> Answer {
        self.handle(&Identity::Admin, &request)
    }

    fn handle(&mut self, identity: &Identity, request: &Request) -> Answer {
        let now = self.now().wall;
        admission::handle(&mut self.server, identity, request, now)
    }

    /// Delivers what happened and lets the controllers decide, until they want nothing more now.
    fn settle_now(&mut self) {
        loop {
            let now = self.now();
            self.manager.discover(&self.server, now);
            let late = self.manager.late(&self.server);
            for kind in &late {
                self.manager.deliver(*kind, &self.server, now);
            }
            self.notice_pods();
            self.manager.turn(now);
            let calls: Vec<_> = self.manager.calls.drain(..).collect();
            let is_quiet = late.is_empty() && calls.is_empty();
            for call in calls {
                self.plan(self.ms + ANSWER_MS, Happening::Arrive(Box::new(call)));
            }
            if is_quiet {
                return;
            }
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Step(at) => self.do_step(at),
            Happening::Arrive(call) => self.arrive(&call),
            Happening::Pod(key, step) => self.do_pod_step(key, &step),
        }
    }

    fn arrive(&mut self, call: &ManagerRequest) {
        let identity = manager::identity(call.controller);
        let answer = self.handle(&identity, &call.request);
        self.writes.push(RecordedWrite {
            at_ms: self.ms,
            user: identity.user(),
            request: call.request.clone(),
            answer: answer.clone(),
        });
        self.manager.answer(call, Some(answer), self.now());
    }
}

pub(super) fn create(kind: Kind, namespace: &str, body: Value) -> Request {
    Request::Create { kind, namespace: namespace.to_owned(), below: None, body }
}
