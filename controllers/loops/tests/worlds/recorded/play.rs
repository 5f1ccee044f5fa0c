//! Plays a recording: time goes on by itself, and everything happens in its order.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{DEPLOYMENTS, Kind, NAMESPACES, NODES, PODS, REPLICA_SETS};
use pintle_api_types::request::{
    Answer, DeleteOptions, PatchForm, Propagation, Request, Subresource, Target,
};
use pintle_controllers_core::frame::{Event, Now};
use pintle_memory_api::{Identity, Server};
use serde_json::{Value, json};

use crate::manager::{self, Call, Daemon};

/// A request of a controller and what came of it.
pub(super) struct Write {
    pub(super) at_ms: u64,
    pub(super) controller: &'static str,
    pub(super) request: Request,
    pub(super) answer: Answer,
}

/// What happened while a recording was played.
pub(super) struct Played {
    pub(super) server: Server,
    pub(super) writes: Vec<Write>,
    pub(super) events: Vec<(&'static str, Event)>,
}

/// From the sending of a request to its answer; the recorded ones took 3 to 10 ms.
const ANSWER_MS: u64 = 5;
/// From the creation of a pod to its binding.
const BIND_MS: u64 = 12;
/// From the binding of a pod until it is ready.
const READY_MS: u64 = 100;
/// From the deletion of a pod until it is gone.
const GONE_MS: u64 = 200;
/// How long things go on after the last recorded one.
const REST_MS: u64 = 1_500;

enum Happening {
    Step(usize),
    Arrive(Box<Call>),
    Bind(ObjectKey),
    Run(ObjectKey),
    Remove(ObjectKey),
}

struct Player<'a> {
    recording: &'a Value,
    namespace: &'a str,
    server: Server,
    manager: Daemon,
    begun: Instant,
    ms: u64,
    agenda: BTreeMap<(u64, u64), Happening>,
    count: u64,
    /// What the kubelet and the scheduler have begun, by UID.
    begun_for: BTreeSet<(String, &'static str)>,
    writes: Vec<Write>,
    bound: usize,
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

fn at_ms(value: &Value) -> u64 {
    let ms = value["at_ms"].as_f64().unwrap_or_default();
    ms as u64 // whole milliseconds are enough
}

impl Player<'_> {
    fn prepare(&mut self) {
        let namespace = json!({"metadata": {"name": self.namespace}});
        self.ask(create(NAMESPACES, "", namespace)).expect("the server is empty");
        for at in 1..=3 {
            let name = format!("fake-{at}");
            let node = json!({"metadata": {"name": name}});
            self.ask(create(NODES, "", node)).expect("the server is empty");
        }
        // The controllers know the empty cluster before the first step.
        self.settle_now();
        while let Some(((at, _), what)) = self.agenda.pop_first() {
            self.ms = at.max(self.ms);
            self.happen(what);
            self.settle_now();
        }
        let offset = self.ms + 100;
        let steps = self.recording["steps"].as_array().expect("steps");
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

    fn now(&self) -> Now {
        let start = Timestamp::from_second(1_800_000_000).expect("a time");
        let passed = Duration::from_millis(self.ms);
        Now { instant: self.begun + passed, wall: start + passed }
    }

    fn plan(&mut self, at: u64, what: Happening) {
        self.count += 1;
        self.agenda.insert((at, self.count), what);
    }

    fn ask(&mut self, request: Request) -> Answer {
        let now = self.now().wall;
        self.server.handle(&Identity::Admin, &request, now)
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

    /// What the scheduler and the kubelet will do about pods.
    fn notice_pods(&mut self) {
        let pods: Vec<_> = self
            .server
            .objects(PODS, self.namespace)
            .map(|(k, pod)| (k.clone(), pod.clone()))
            .collect();
        for (key, pod) in pods {
            let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
            let is_bound = pod["spec"]["nodeName"].is_string();
            let is_deleting = pod["metadata"]["deletionTimestamp"].is_string();
            let mut once = |what| self.begun_for.insert((uid.clone(), what));
            let mut plans = Vec::new();
            if !is_bound && !is_deleting && once("bind") {
                plans.push((BIND_MS, Happening::Bind(key.clone())));
            }
            let behaviour = &pod["metadata"]["annotations"]["fake/behaviour"];
            if is_bound && behaviour != "never-ready" && once("run") {
                plans.push((READY_MS, Happening::Run(key.clone())));
            }
            if is_deleting && once("remove") {
                plans.push((GONE_MS, Happening::Remove(key)));
            }
            for (wait, what) in plans {
                self.plan(self.ms + wait, what);
            }
        }
    }

    fn happen(&mut self, what: Happening) {
        match what {
            Happening::Step(at) => self.step(at),
            Happening::Arrive(call) => self.arrive(&call),
            Happening::Bind(key) => {
                self.bound += 1;
                let node = format!("fake-{}", self.bound % 3 + 1);
                let below = Some(Subresource { name: key.name().to_owned(), sub: "binding" });
                let body = json!({"target": {"kind": "Node", "name": node}});
                let namespace = key.namespace().to_owned();
                // It may be gone by now; the same holds for what follows.
                drop(self.ask(Request::Create { kind: PODS, namespace, below, body }));
            }
            Happening::Run(key) => {
                let now = self.now().wall;
                let now = Timestamp::from_second(now.as_second()).expect("a time").to_string();
                let body = json!({"status": {"phase": "Running", "podIP": "10.0.0.1",
                    "startTime": now, "conditions": [{"type": "Ready", "status": "True",
                        "lastTransitionTime": now}]}});
                let target = Target::status(PODS, key);
                drop(self.ask(Request::Patch { target, form: PatchForm::Merge, body }));
            }
            Happening::Remove(key) => {
                let options = DeleteOptions { grace_seconds: Some(0), ..Default::default() };
                drop(self.ask(Request::Delete { target: Target::object(PODS, key), options }));
            }
        }
    }

    fn arrive(&mut self, call: &Call) {
        let now = self.now();
        let identity = manager::identity(call.controller);
        let answer = self.server.handle(&identity, &call.request, now.wall);
        self.writes.push(Write {
            at_ms: self.ms,
            controller: call.controller,
            request: call.request.clone(),
            answer: answer.clone(),
        });
        self.manager.answer(call, Some(answer), now);
    }

    fn step(&mut self, at: usize) {
        let step = &self.recording["steps"][at];
        let what = step["what"].as_str().expect("a sentence");
        let body = step["object"].clone();
        if what.starts_with("kubectl rollout undo") {
            return self.undo();
        }
        let (verb, path) = what.rsplit_once(' ').expect("verb and path");
        let mut parts = path.split('/');
        let kind = kind_of(parts.next().expect("a resource"));
        let name = self.our_name(kind, parts.next().expect("a name"));
        let sub = if parts.next() == Some("scale") { "scale" } else { "" };
        let key = ObjectKey::new(self.namespace, &name);
        let target = Target { kind, key, sub };
        let request = match verb {
            "create" => create(kind, self.namespace, body),
            "strategic patch" => Request::Patch { target, form: PatchForm::Strategic, body },
            "merge patch" => Request::Patch { target, form: PatchForm::Merge, body },
            "delete" => {
                let propagation = match body["propagationPolicy"].as_str() {
                    Some("Orphan") => Propagation::Orphan,
                    Some("Foreground") => Propagation::Foreground,
                    _ => Propagation::Background,
                };
                let options =
                    DeleteOptions { propagation: Some(propagation), ..Default::default() };
                Request::Delete { target, options }
            }
            other => panic!("a step of another kind: {other}"),
        };
        self.ask(request).unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    /// Our name of a pod for which the recorded server made another one.
    fn our_name(&self, kind: Kind, recorded: &str) -> String {
        let writes = self.recording["writes"].as_array().expect("writes");
        let is_creation = |write: &&Value| {
            write["verb"] == "create" && write["resource"] == "pods" && write["code"] == 201
        };
        let mut created = writes.iter().filter(is_creation);
        let at = created.position(|write| write["name"] == recorded);
        let Some(at) = at.filter(|_| kind == PODS) else { return recorded.to_owned() };
        let ours = self.writes.iter().filter_map(|write| match (&write.request, &write.answer) {
            (Request::Create { kind, .. }, Ok(pod)) if *kind == PODS => Some(pod),
            _ => None,
        });
        let pod = ours.into_iter().nth(at).expect("as many pods were created");
        pod["metadata"]["name"].as_str().expect("a name").to_owned()
    }

    /// What `kubectl rollout undo` does: the template and annotations of the last but one revision.
    fn undo(&mut self) {
        let key = ObjectKey::new(self.namespace, "web");
        let live = self.server.object(DEPLOYMENTS, &key).expect("it is there");
        let mut whole = (**live).clone();
        let revision = |set: &Value| {
            let text = &set["metadata"]["annotations"]["deployment.kubernetes.io/revision"];
            text.as_str().and_then(|text| text.parse::<u64>().ok()).unwrap_or_default()
        };
        let mut sets: Vec<_> =
            self.server.objects(REPLICA_SETS, self.namespace).map(|(_, set)| set.clone()).collect();
        sets.sort_by_key(|set| revision(set));
        let last = &sets[sets.len() - 2];
        let mut template = last["spec"]["template"].clone();
        let labels = template["metadata"]["labels"].as_object_mut().expect("labels");
        labels.remove("pod-template-hash");
        whole["spec"]["template"] = template;
        let target = Target::object(DEPLOYMENTS, key);
        self.ask(Request::Replace { target, body: whole }).expect("it is not refused");
    }
}

fn create(kind: Kind, namespace: &str, body: Value) -> Request {
    Request::Create { kind, namespace: namespace.to_owned(), below: None, body }
}

fn kind_of(plural: &str) -> Kind {
    Kind::all_known().find(|kind| kind.plural == plural).expect("a known resource")
}
