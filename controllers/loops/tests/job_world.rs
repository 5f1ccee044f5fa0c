//! Jobs in a small world: an API server in memory, a kubelet, a user that deletes pods, and a
//! manager that loses answers and dies between any two of its requests.
//!
//! What must hold: every pod is counted exactly once, counts never go down, no pod keeps its
//! finalizer, and the Job ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{JOBS, Kind, NAMESPACES, PODS};
use pintle_api_types::request::{
    Answer, ApiError, DeleteOptions, PatchForm, Request, Subresource, Target,
};
use pintle_api_types::rng::Rng;
use pintle_controllers_core::frame::{Frame, FrameEffect, Now, Ticket};
use pintle_controllers_core::tables::{Decoded, WatchEvent};
use pintle_controllers_loops::job::JobController;
use pintle_memory_api::{Change, Identity, Server};
use serde_json::{Value, json};

const FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Steps after which a world that still moves has failed.
const STEPS_MAX: usize = 20_000;

/// Seeds of each kind of Job.
const WORLDS: u64 = 15;

/// A request under way.
struct JobRequest {
    ticket: Ticket,
    at: usize,
    request: Request,
}

/// A manager with one controller.
struct JobProcess {
    frame: Frame,
    delivered: BTreeMap<Kind, u64>,
    calls: Vec<JobRequest>,
    answers: BTreeMap<Ticket, Vec<Option<Answer>>>,
}

impl JobProcess {
    fn new(server: &Server, now: Now) -> Self {
        let mut frame = Frame::default();
        frame.add(JobController::new(1));
        let mut delivered = BTreeMap::new();
        for kind in [JOBS, PODS] {
            frame.apply(WatchEvent::ListBegun(kind), now);
            for (_, object) in server.objects(kind, "") {
                frame.apply(WatchEvent::Listed(decode(kind, object)), now);
            }
            frame.apply(WatchEvent::ListComplete(kind), now);
            frame.apply(WatchEvent::Version(kind, server.version()), now);
            delivered.insert(kind, server.version());
        }
        Self { frame, delivered, calls: Vec::new(), answers: BTreeMap::new() }
    }

    /// Delivers the next event of a kind; says whether there was one.
    fn deliver(&mut self, kind: Kind, server: &Server, now: Now) -> bool {
        let events = server.events_since(kind, self.delivered[&kind]).expect("not compacted");
        let Some(event) = events.first() else { return false };
        self.delivered.insert(kind, event.version);
        let object = decode(kind, &event.object);
        let event = match event.change {
            Change::Added | Change::Modified => WatchEvent::Set(object),
            Change::Deleted => WatchEvent::Deleted(object),
        };
        self.frame.apply(event, now);
        true
    }

    fn turn(&mut self, now: Now) {
        for order in self.frame.turn(now) {
            let FrameEffect::Send { ticket, requests, .. } = order else { continue };
            self.answers.insert(ticket, requests.iter().map(|_| None).collect());
            for (at, request) in requests.into_iter().enumerate() {
                self.calls.push(JobRequest { ticket, at, request });
            }
        }
    }

    fn answer(&mut self, call: &JobRequest, answer: Answer, now: Now) {
        let answers = self.answers.get_mut(&call.ticket).expect("it waits");
        answers[call.at] = Some(answer);
        if answers.iter().all(Option::is_some) {
            let answers = self.answers.remove(&call.ticket).expect("it waits");
            self.frame.answer(call.ticket, answers.into_iter().flatten().collect(), now);
        }
    }
}

fn decode(kind: Kind, object: &Value) -> Decoded {
    Decoded::typed(kind, &object.to_string()).expect("an object that can be read")
}

struct JobWorld {
    server: Server,
    manager: JobProcess,
    rng: Rng,
    begun: Instant,
    passed: Duration,
    /// Crashes and lost answers, in a thousand steps.
    faults: u64,
    /// Pods that the user still deletes.
    deletions: u64,
    /// Changes of the Job that the user still makes.
    changes: u64,
}

impl JobWorld {
    fn new(seed: u64, job: &Value, faults: u64) -> Self {
        let begun = Instant::now();
        let mut server = Server::new(seed);
        let now = now_at(begun, Duration::ZERO);
        let namespace = json!({"metadata": {"name": "n"}});
        for (kind, of, body) in [(NAMESPACES, "", namespace), (JOBS, "n", job.clone())] {
            let request = Request::Create { kind, namespace: of.to_owned(), below: None, body };
            server.handle(&Identity::Admin, &request, now.wall).expect("a world begins");
        }
        let manager = JobProcess::new(&server, now);
        let (rng, passed) = (Rng::new(seed), Duration::ZERO);
        Self { server, manager, rng, begun, passed, faults, deletions: 2, changes: 0 }
    }

    fn now(&self) -> Now {
        now_at(self.begun, self.passed)
    }

    fn run(&mut self) {
        for _ in 0..STEPS_MAX {
            if !self.step() {
                return self.check_end();
            }
        }
        panic!("the world moves after {STEPS_MAX} steps: {}", self.job());
    }

    /// Does one thing; false when nothing moves any more.
    fn step(&mut self) -> bool {
        self.passed += Duration::from_millis(self.rng.range(0, 50));
        let now = self.now();
        self.manager.turn(now);
        if self.rng.range(0, 1000) < self.faults {
            self.crash();
            return true;
        }
        for what in [self.rng.range(0, 4), 0, 1, 2, 3] {
            let is_done = match what {
                0 => self.manager.deliver(PODS, &self.server, now),
                1 => self.manager.deliver(JOBS, &self.server, now),
                2 => self.send(),
                _ => self.step_cluster(),
            };
            if is_done {
                return true;
            }
        }
        let Some(due) = self.manager.frame.next_due() else { return false };
        let due = due.saturating_duration_since(self.begun);
        if due > self.passed + Duration::from_secs(24 * 3600) {
            return false;
        }
        self.passed = self.passed.max(due) + Duration::from_millis(1);
        true
    }

    fn ask(&mut self, identity: &Identity, request: &Request) -> Answer {
        let now = self.now().wall;
        self.server.handle(identity, request, now)
    }

    fn send(&mut self) -> bool {
        if self.manager.calls.is_empty() {
            return false;
        }
        let at = self.rng.range(0, self.manager.calls.len() as u64);
        let call = self.manager.calls.swap_remove(usize::try_from(at).expect("small"));
        let is_lost = self.rng.range(0, 1000) < self.faults;
        let unknown = || Err(ApiError { message: "no answer".to_owned(), ..ApiError::default() });
        let answer = match is_lost && self.rng.chance(50) {
            // It did not arrive.
            true => unknown(),
            false => self.ask(&Identity::Controller("job-controller"), &call.request),
        };
        let now = self.now();
        self.manager.answer(&call, if is_lost { unknown() } else { answer }, now);
        true
    }

    /// The manager dies; some of its requests still arrive.
    fn crash(&mut self) {
        for call in std::mem::take(&mut self.manager.calls) {
            if self.rng.chance(50) {
                let _ = self.ask(&Identity::Controller("job-controller"), &call.request);
            }
        }
        self.manager = JobProcess::new(&self.server, self.now());
    }

    /// A scheduler, a kubelet, and a user: one request.
    fn step_cluster(&mut self) -> bool {
        let pods: Vec<_> =
            self.server.objects(PODS, "").map(|(key, pod)| (key.clone(), pod.clone())).collect();
        let steps: Vec<_> = pods.iter().filter_map(|(key, pod)| self.next(key, pod)).collect();
        let request = if self.changes > 0 && (steps.is_empty() || self.rng.chance(10)) {
            self.change_job()
        } else if steps.is_empty() {
            return false;
        } else {
            self.rng.pick(&steps).clone()
        };
        let _ = self.ask(&Identity::Admin, &request); // it may have come too late
        true
    }

    /// The user suspends or resumes the Job, or changes its parallelism.
    fn change_job(&mut self) -> Request {
        self.changes -= 1;
        let is_suspended = self.changes > 0 && self.rng.chance(50);
        let spec = json!({"suspend": is_suspended, "parallelism": self.rng.range(1, 5)});
        let target = Target::object(JOBS, ObjectKey::new("n", "job"));
        Request::Patch { target, form: PatchForm::Merge, body: json!({"spec": spec}) }
    }

    fn next(&mut self, key: &ObjectKey, pod: &Value) -> Option<Request> {
        let phase = pod["status"]["phase"].as_str().unwrap_or("Pending");
        let is_terminal = matches!(phase, "Succeeded" | "Failed");
        let delete = |grace: Option<i64>| {
            let options = DeleteOptions { grace_seconds: grace, ..DeleteOptions::default() };
            Some(Request::Delete { target: Target::object(PODS, key.clone()), options })
        };
        if pod["metadata"]["deletionTimestamp"].is_string() {
            let is_held = !pod["metadata"]["finalizers"].is_null();
            return match is_held {
                false => delete(Some(0)),
                true if is_terminal => None,
                true => Some(set_phase(key, "Failed")),
            };
        }
        if is_terminal {
            return None;
        }
        if self.deletions > 0 && self.rng.chance(5) {
            self.deletions -= 1;
            return delete(None);
        }
        if pod["spec"]["nodeName"].is_null() {
            let below = Some(Subresource { name: key.name().to_owned(), sub: "binding" });
            let body = json!({"target": {"kind": "Node", "name": "a"}});
            let namespace = key.namespace().to_owned();
            return Some(Request::Create { kind: PODS, namespace, below, body });
        }
        Some(match phase {
            "Running" if self.rng.chance(70) => set_phase(key, "Succeeded"),
            "Running" => set_phase(key, "Failed"),
            _ => set_phase(key, "Running"),
        })
    }

    fn job(&self) -> &Value {
        let (_, job) = self.server.objects(JOBS, "n").next().expect("the Job is there");
        job
    }

    fn check_end(&self) {
        let job = self.job();
        let status = &job["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let kinds: Vec<_> = conditions.filter_map(|condition| condition["type"].as_str()).collect();
        let has_ended = kinds.contains(&"Complete") || kinds.contains(&"Failed");
        assert!(has_ended, "the Job did not end: {job}");
        for (key, pod) in self.server.objects(PODS, "n") {
            assert!(!has_finalizer(pod), "pod {key} kept its finalizer");
        }
        let events = self.server.events_since(PODS, 0).expect("not compacted");
        let uids: BTreeSet<_> =
            events.iter().map(|event| event.object["metadata"]["uid"].to_string()).collect();
        let (counted, all) =
            (count(status, "succeeded") + count(status, "failed"), uids.len() as u64);
        // Surplus pods are not counted, nor those that run when a success policy is met.
        let is_changed = job["metadata"]["generation"] != 1;
        let can_have_surplus = is_changed || job["spec"]["successPolicy"].is_object();
        let is_right = counted == all || (can_have_surplus && counted < all);
        assert!(is_right, "{counted} pods of {all} are counted: {job}");
        self.check_history();
    }

    /// In each step of the status, counts grow by the pods that leave its lists, and no pod comes
    /// into a list again.
    fn check_history(&self) {
        let events = self.server.events_since(JOBS, 0).expect("not compacted");
        let is_indexed = self.job()["spec"]["completionMode"] == "Indexed";
        let mut left = BTreeSet::new();
        for pair in events.windows(2) {
            let (old, new) = (&pair[0].object["status"], &pair[1].object["status"]);
            for list in ["succeeded", "failed"] {
                let (before, after) = (uncounted(old, list), uncounted(new, list));
                assert!(after.is_disjoint(&left), "a pod is listed again: {new}");
                let gone: BTreeSet<_> = before.difference(&after).cloned().collect();
                let (was, is) = (count(old, list), count(new, list));
                assert!(is >= was, "{list} went from {was} to {is}");
                if !(is_indexed && list == "succeeded") {
                    assert_eq!(is - was, gone.len() as u64, "{list}: {old} -> {new}");
                }
                left.extend(gone);
            }
        }
    }
}

fn now_at(begun: Instant, passed: Duration) -> Now {
    let start = Timestamp::from_second(1_800_000_000).expect("a time");
    let passed_signed = jiff::SignedDuration::try_from(passed).expect("a short time");
    Now { instant: begun + passed, wall: start + passed_signed }
}

fn has_finalizer(pod: &Value) -> bool {
    let finalizers = pod["metadata"]["finalizers"].as_array();
    finalizers.into_iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

fn count(status: &Value, field: &str) -> u64 {
    status[field].as_u64().unwrap_or(0)
}

fn uncounted(status: &Value, list: &str) -> BTreeSet<String> {
    let uids = status["uncountedTerminatedPods"][list].as_array();
    uids.into_iter().flatten().map(ToString::to_string).collect()
}

fn set_phase(key: &ObjectKey, phase: &str) -> Request {
    let target = Target::status(PODS, key.clone());
    let ready = if phase == "Running" { "True" } else { "False" };
    let status = json!({"phase": phase, "conditions": [{"type": "Ready", "status": ready}]});
    Request::Patch { target, form: PatchForm::Merge, body: json!({"status": status}) }
}

/// A Job with these fields of its spec.
fn job(spec: &Value) -> Value {
    let mut job = json!({"metadata": {"name": "job"}, "spec": {
        "parallelism": 2, "completions": 4,
        "template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "main", "image": "i"}]}},
    }});
    for (field, value) in spec.as_object().expect("fields") {
        job["spec"][field] = value.clone();
    }
    job
}

/// Jobs of each kind.
fn jobs() -> Vec<Value> {
    let specs = [
        json!({}),
        json!({"completions": null, "parallelism": 3}),
        json!({"backoffLimit": 1}),
        json!({"podReplacementPolicy": "Failed"}),
        json!({"completionMode": "Indexed"}),
        json!({"completionMode": "Indexed", "parallelism": 4, "backoffLimit": 2}),
        json!({"completionMode": "Indexed", "backoffLimitPerIndex": 1}),
        json!({"completionMode": "Indexed", "backoffLimitPerIndex": 1, "maxFailedIndexes": 0}),
        json!({"completionMode": "Indexed", "successPolicy": {"rules": [{"succeededCount": 2}]}}),
        json!({"activeDeadlineSeconds": 20}),
    ];
    specs.iter().map(job).collect()
}

#[test]
fn pods_of_a_job_are_counted_once_without_faults() {
    for seed in 0..10 {
        for job in jobs() {
            JobWorld::new(seed, &job, 0).run();
        }
    }
}

/// Runs each kind of Job with many seeds; `PINTLE_WORLDS` says how many.
fn run_all(prepare: impl Fn(&mut JobWorld)) {
    let worlds = std::env::var("PINTLE_WORLDS").ok().and_then(|text| text.parse().ok());
    for seed in 0..worlds.unwrap_or(WORLDS) {
        for (at, job) in jobs().iter().enumerate() {
            let run = || {
                let mut world = JobWorld::new(seed, job, 5 + 15 * (seed % 4));
                prepare(&mut world);
                world.run();
            };
            if let Err(panic) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                eprintln!("seed {seed} of Job {at} failed");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn pods_of_a_job_are_counted_once_whenever_the_manager_dies() {
    run_all(|_| {});
}

#[test]
fn pods_of_a_job_that_is_suspended_and_scaled_are_counted_at_most_once() {
    run_all(|world| world.changes = 6);
}
