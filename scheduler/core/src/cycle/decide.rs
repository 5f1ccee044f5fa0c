//! Decides one pod: selects a node, or reports why there is none.
// k8s: pkg/scheduler/schedule_one.go

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodCondition};
use pintle_sched_core::config::RANK_LAST;
use pintle_sched_core::filter::status::Code;
use pintle_sched_core::select::PreFilterRefusal;
use pintle_sched_core::{Plugin, explain};

use super::command::{Command, Fact, Note};
use super::consult::ExtenderAnswers;
use super::{QueuedPod, Scheduler, Uid};
use crate::cache::flawed::in_full;
use crate::cache::{CacheDelta, Nominee};
use crate::diagnosis::{Asking, Diagnosis};
use crate::framework::{Attempt, Room, Stopped};
use crate::pod_fields::PodRef;
use crate::queue::Rejectors;

/// Longest message of an event, and the end of a truncated one.
// k8s: staging/src/k8s.io/api/events/v1 NoteLengthLimit, schedule_one.go truncateMessage
const NOTE_MAX: usize = 1024;
const CUT: &str = " ...";

/// The outcome of the search for a node.
pub(super) enum NodeSearch {
    /// This node, and the attempt of out-of-tree plugins.
    Node(Rc<str>, Option<Rc<Attempt>>),
    /// Extenders are called first.
    Later,
}

/// A search that found no node.
struct FailedSearch<'a> {
    answers: &'a ExtenderAnswers,
    refusal: Option<&'a PreFilterRefusal>,
    asking: Asking,
}

/// The rejection of a pod.
#[derive(Debug)]
pub(super) struct PodRejection {
    pub(super) is_error: bool,
    pub(super) message: String,
    pub(super) rejectors: Rejectors,
    /// `None` keeps the pod's nomination, an empty name clears it.
    pub(super) nominated: Option<String>,
}

impl PodRejection {
    pub(super) fn error(message: String) -> Self {
        let nominated = Some(String::new());
        Self { is_error: true, message, rejectors: Rejectors::new(), nominated }
    }

    /// A rejection in a group's dry run, which is not reported.
    fn of_trial() -> Self {
        let (is_error, message) = (false, String::new());
        Self { is_error, message, rejectors: Rejectors::new(), nominated: None }
    }

    /// A rejection before any node was evaluated.
    pub(super) fn nowhere(message: String, rejector: Plugin) -> Self {
        let nominated = Some(String::new());
        Self { is_error: false, message, rejectors: [rejector].into(), nominated }
    }
}

impl Scheduler {
    /// Decides the next pod; returns false if there is none. The results are commands.
    pub fn decide_next(&mut self, now: Duration) -> bool {
        self.in_attempt(now, |scheduler| scheduler.decide_one(now))
    }

    fn decide_one(&mut self, now: Duration) -> bool {
        if self.give_up_on_extenders(now) {
            return true;
        }
        if self.is_blocked(now) {
            return false;
        }
        self.queue.flush(now);
        if self.volumes_due().is_some_and(|due| due <= now) {
            self.end_late_volumes(now);
        }
        if self.devices_due().is_some_and(|due| due <= now) {
            self.look_at_devices(now);
        }
        let next = match self.consulting {
            None => self.queue.pop(now),
            Some(_) => self.queue.pop_without_extenders(now),
        };
        let Some((uid, queued)) = next else { return false };
        if queued.group.is_some() {
            self.decide_group(uid, queued, now);
            return true;
        }
        if self.skips(&uid, &queued) {
            self.queue.done(&uid);
            return true;
        }
        self.attempts(&uid, &queued);
        self.decides_since = now;
        self.place(&uid, queued, ExtenderAnswers::Nothing, now);
        true
    }

    /// Places a pod, given the extenders' answers so far.
    pub(super) fn place(
        &mut self,
        uid: &Uid,
        queued: Rc<QueuedPod>,
        answers: ExtenderAnswers,
        now: Duration,
    ) {
        self.hide_those_away();
        let found = self.find(uid, &queued, &answers, now);
        self.count_found(&found, now);
        if self.group.is_some() {
            return self.goes_on(uid, &queued, found, now);
        }
        match found {
            Ok(NodeSearch::Node(node, attempt)) => {
                self.plugins.keep(uid, attempt, &node);
                self.assume(uid, queued, &node, now);
            }
            Ok(NodeSearch::Later) => {}
            Err(why) => self.refuse(uid, &queued, why, now),
        }
    }

    /// Counts an evaluation of nodes, whether or not a node passes. Extender calls are part of the
    /// decision, not of the evaluation.
    // k8s: schedule_one.go findNodesThatPassFilters
    fn count_search(&mut self, profile: usize, answers: &ExtenderAnswers, failed: bool) {
        let is_first = matches!(answers, ExtenderAnswers::Nothing | ExtenderAnswers::OfKept(None));
        if is_first && self.cache.cluster.view().node_count() > 0 {
            self.facts.push(Fact::Searched { profile, failed });
        }
    }

    /// Counts a decision, unless it waits for extenders.
    // k8s: schedule_one.go schedulingAlgorithm
    pub(super) fn count_found(&mut self, found: &Result<NodeSearch, PodRejection>, now: Duration) {
        if !matches!(found, Ok(NodeSearch::Later)) {
            self.count_decision(now);
        }
    }

    /// Counts a decision that ended.
    fn count_decision(&mut self, now: Duration) {
        self.facts.push(Fact::Decided(now.saturating_sub(self.decides_since)));
    }

    // k8s: schedule_one.go skipPodSchedule
    pub(super) fn skips(&mut self, uid: &Uid, queued: &QueuedPod) -> bool {
        if queued.pod.whole().metadata.deletion_timestamp.is_some() {
            let (namespace, name) = (queued.key.namespace(), queued.key.name());
            let note = format!("skip schedule deleting pod: {namespace}/{name}");
            self.note(queued, true, "FailedScheduling", "Scheduling", note);
            return true;
        }
        self.assumed.contains_key(uid)
    }

    /// Finds a node for a pod.
    pub(super) fn find(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        answers: &ExtenderAnswers,
        now: Duration,
    ) -> Result<NodeSearch, PodRejection> {
        let pod = queued.pod.whole();
        let asking = Asking::with_spec(Rc::clone(&pod), &queued.spec, &mut self.cache);
        let mut asking = asking.map_err(|error| PodRejection::error(in_full(&error)))?;
        asking.consulted = answers.of_all(&self.cache.cluster);
        self.stays_in_placement(&mut asking);
        // Services, device classes and namespaces may have changed since the last attempt.
        let rejected = self.cache.cluster.rejected(&queued.spec, &asking.program);
        *queued.rejected.borrow_mut() = rejected.ok();
        self.begin_attempt(queued, &mut asking)?;
        self.within_budget()?;
        let consults = self.consults(&pod);
        match answers {
            ExtenderAnswers::Nothing => {
                let kept = self.evaluate(|evaluator, cache| evaluator.kept_node(cache, &asking))?;
                if kept.is_some() {
                    self.count_search(queued.profile, answers, asking.failed().is_some());
                }
                if let Some((node, true)) = kept {
                    asking.failed().map_or(Ok(()), |error| Err(PodRejection::error(error)))?;
                    self.count_kept_node(queued.profile);
                    if !consults {
                        return Ok(NodeSearch::Node(node, asking.attempt));
                    }
                    return Ok(self.ask_about_nodes(uid, queued, vec![node], true));
                }
            }
            ExtenderAnswers::OfKept(Some(node)) => {
                return Ok(NodeSearch::Node(Rc::clone(node), asking.attempt));
            }
            ExtenderAnswers::OfKept(None) | ExtenderAnswers::OfAll(..) => {}
        }
        let outcome = self.evaluate(|evaluator, cache| evaluator.choose(cache, &asking))?;
        self.count_batch(queued.profile, answers);
        if let Some(PreFilterRefusal::Error(error)) = &outcome.refusal {
            return Err(PodRejection::error(error.clone()));
        }
        let failed = asking.failed();
        if outcome.refusal.is_none() {
            self.count_search(queued.profile, answers, failed.is_some());
        }
        failed.map_or(Ok(()), |error| Err(PodRejection::error(error)))?;
        if outcome.feasible > 0 && outcome.refusal.is_none() {
            if consults && asking.consulted.is_none() {
                let name = |row| self.cache.cluster.node_name(row).into();
                let names = self.evaluator.scratch.feasible.iter().map(name).collect();
                return Ok(self.ask_about_nodes(uid, queued, names, false));
            }
            let which = self.random(outcome.ties);
            let row = self.evaluator.scratch.ties.iter().nth(which).or(outcome.first);
            if let Some(row) = row {
                let node = self.cache.cluster.node_name(row).into();
                return Ok(NodeSearch::Node(node, asking.attempt));
            }
        }
        match self.is_trial() {
            // A dry run of a group needs no reasons.
            true => Err(PodRejection::of_trial()),
            false => {
                let search = FailedSearch { answers, refusal: outcome.refusal.as_ref(), asking };
                self.diagnose_rejection(uid, queued, search, now)
            }
        }
    }

    /// Diagnoses why a pod fits on no node, and starts preemption.
    fn diagnose_rejection(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        mut search: FailedSearch<'_>,
        now: Duration,
    ) -> Result<NodeSearch, PodRejection> {
        let unreserves = self.claim_of_group(queued);
        search.asking.unreserves = unreserves.is_some();
        let nodes = self.cache.cluster.view().node_count();
        if nodes == 0 {
            // k8s: schedule_one.go ErrNoNodesAvailable, after which upstream keeps retrying.
            // Here every new node requeues the pod, as after a rejection by NodeName.
            let message = explain::summary(0, std::iter::empty());
            return Err(PodRejection::nowhere(message, Plugin::NodeName));
        }
        self.evaluator.preempts_from = self.random(usize::MAX);
        match self.evaluate(|evaluator, cache| evaluator.diagnose(cache, &search.asking))? {
            Some(diagnosis) => {
                queued.rejected_by.borrow_mut().extend(diagnosis.rejected_by.iter().cloned());
                if let Some(cycle) = self.group.as_mut().filter(|_| diagnosis.unreserves) {
                    cycle.unreserved.extend(unreserves);
                }
                self.rejected(uid, queued, &search, diagnosis, now)
            }
            None => {
                Err(PodRejection::error("the cluster changed while it was looked at".to_owned()))
            }
        }
    }

    /// Runs the out-of-tree PreFilter plugins.
    fn begin_attempt(
        &mut self,
        queued: &Rc<QueuedPod>,
        asking: &mut Asking,
    ) -> Result<(), PodRejection> {
        queued.rejected_by.borrow_mut().clear();
        let before = asking.refusal_rank(self.cache.cluster.view());
        let own = asking.own_nodes(&self.cache.cluster);
        let Some((attempt, stopped)) = self.attempt(queued, own, before) else { return Ok(()) };
        match stopped {
            Some(Stopped::Failed(error)) => return Err(PodRejection::error(error)),
            // An UnschedulableAndUnresolvable result overrides an earlier Unschedulable one.
            Some(Stopped::Rejected(names, code, reason))
                if code == Code::UnschedulableAndUnresolvable || before == RANK_LAST =>
            {
                let rank = names.iter().map(|name| attempt.pre_filter_rank(name)).max();
                asking.refuse(rank.unwrap_or(RANK_LAST), code, reason);
                *queued.rejected_by.borrow_mut() = names;
            }
            Some(Stopped::Rejected(..)) | None => {}
        }
        asking.attempt = Some(attempt);
        Ok(())
    }

    /// Collects the rejectors, and preempts or runs PostFilter plugins.
    fn rejected(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        search: &FailedSearch<'_>,
        diagnosis: Diagnosis,
        now: Duration,
    ) -> Result<NodeSearch, PodRejection> {
        let attempt = search.asking.attempt.as_ref();
        let mut rejectors: Rejectors =
            diagnosis.statuses.iter().filter_map(|(_, status)| status.plugin).collect();
        if let Some(PreFilterRefusal::PreFilter(plugin, _)) = search.refusal {
            rejectors.insert(*plugin);
        }
        if search.answers.rejects() {
            // k8s: schedule_one.go findNodesThatFitPod
            rejectors.insert(Plugin::Extender);
        }
        if self.cache.profile(queued.profile).preemption && !diagnosis.fails {
            self.facts.push(Fact::TriedToPreempt);
        }
        match (&diagnosis.gives_back, &mut self.group) {
            // A dry run of a group deallocates no claims.
            (Some(claim), Some(cycle)) if cycle.search.is_none() => {
                cycle.gives_back.push((uid.clone(), Rc::clone(claim)));
            }
            (Some(claim), None) => self.give_back(uid, queued, claim),
            (Some(_), Some(_)) | (None, _) => {}
        }
        let run = &diagnosis.preemption;
        let chosen = run.chosen.map(|at| run.candidates[at].clone());
        if chosen.is_some() && self.consults_about_victims(&queued.pod.whole()) {
            let text = (diagnosis.message, diagnosis.of_claims);
            let known = (text, rejectors, attempt.cloned());
            return Ok(self.ask_about_victims(uid, queued, known, &run.candidates));
        }
        let fails = diagnosis.fails || run.mistake(&self.cache.cluster).is_some();
        let may_preempt = run.ineligible.is_none() && !fails;
        let Diagnosis { text, message, .. } = diagnosis;
        let (message, nominated) = match (chosen, attempt) {
            (Some(candidate), _) => (message, Some(self.preempt(queued, &candidate, now))),
            // A pod that may not preempt keeps its nomination.
            (None, None) => (message, may_preempt.then(String::new)),
            (None, Some(_)) if fails => (message, None),
            (None, Some(attempt)) => with_others(text, message, attempt, may_preempt),
        };
        Err(PodRejection { is_error: false, message, rejectors, nominated })
    }

    pub(super) fn bind(&mut self, uid: &Uid, queued: &QueuedPod, node: &Rc<str>) {
        let (pod, object) = (pod_ref(queued, uid), queued.pod.whole());
        let attempt = self.plugins.attempt(uid).cloned();
        self.commands.push(Command::Bind { pod, node: Rc::clone(node), object, attempt });
    }

    /// Ends the decision of a pod for which extenders left no node or failed.
    pub(super) fn found_none(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        why: PodRejection,
        now: Duration,
    ) {
        self.count_decision(now);
        match self.group {
            Some(_) => self.goes_on(uid, queued, Err(why), now),
            None => self.refuse(uid, queued, why, now),
        }
    }

    pub(super) fn count_refusal(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        is_error: bool,
        now: Duration,
    ) {
        let began = self.queue.get(uid).map_or(now, |waiting| waiting.last_attempt);
        let since = now.saturating_sub(began);
        self.facts.push(Fact::Refused { profile: queued.profile, is_error, since });
    }

    // k8s: schedule_one.go handleSchedulingFailure
    pub(super) fn refuse(
        &mut self,
        uid: &Uid,
        queued: &Rc<QueuedPod>,
        why: PodRejection,
        now: Duration,
    ) {
        // The reasons found by an unfinished search are incomplete.
        let why = self.within_budget().err().unwrap_or(why);
        let changed = why.nominated.as_ref().is_some_and(|node| self.nominate(queued, node, now));
        self.count_refusal(uid, queued, why.is_error, now);
        if self.is_set_back() {
            self.queue.set_back(uid, now);
        } else {
            let hints = super::Happens::new(&self.cache);
            self.queue.add_unschedulable(&hints, uid, why.rejectors, BTreeSet::new(), now);
        }
        let reason = if why.is_error { "SchedulerError" } else { "Unschedulable" };
        // The previous nomination may not be written to the API yet.
        let current = queued.pod.nominated_node().unwrap_or_default();
        let nominated = why.nominated.filter(|node| changed || node != current);
        self.report_rejection(queued, reason, why.message, nominated);
    }

    /// Sets or clears the nomination of a pod before the API has it; returns true if it changed.
    pub(super) fn nominate(&mut self, queued: &QueuedPod, node: &str, now: Duration) -> bool {
        let pod = queued.spec.key;
        let old = self.cache.nomination(pod).cloned();
        let spec = Rc::clone(&queued.spec);
        let new = (!node.is_empty()).then(|| Nominee { spec, node: node.into() });
        let changes = old != new;
        if changes {
            self.make(&CacheDelta::Nominated { pod, old, new }, now);
        }
        changes
    }

    /// Reports why a pod has no node, as an event and as a condition.
    pub(super) fn report_rejection(
        &mut self,
        queued: &QueuedPod,
        reason: &str,
        message: String,
        nominated: Option<String>,
    ) {
        let note = cut(&message);
        self.note(queued, true, "FailedScheduling", "Scheduling", note);
        let whole = queued.pod.whole();
        let condition = PodCondition {
            type_: "PodScheduled".to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            observed_generation: whole.metadata.generation,
            ..PodCondition::default()
        };
        let digest_now = Some(digest(&condition));
        let previous = queued.condition_digest.replace(digest_now);
        // A write of the previous condition may still be queued; it must not be the last one.
        let is_new =
            !has_condition(&whole, &condition) || previous.is_some() && previous != digest_now;
        if is_new || nominated.is_some() {
            self.commands.push(Command::Status {
                pod: Rc::clone(&queued.pod),
                condition: is_new.then_some(condition),
                nominated,
            });
        }
    }

    /// Returns the scheduler name of a profile.
    pub(super) fn reporter(&self, profile: usize) -> Rc<str> {
        self.cache.profile(profile).scheduler_name.as_str().into()
    }

    pub(super) fn note(
        &mut self,
        queued: &QueuedPod,
        warning: bool,
        reason: &'static str,
        action: &'static str,
        note: String,
    ) {
        let uid: Uid = self.cache.cluster.text(queued.spec.key).into();
        let note = Note {
            about: pod_ref(queued, &uid),
            reporter: self.reporter(queued.profile),
            version: queued.pod.version().map(str::to_owned),
            related: None,
            warning,
            reason,
            action,
            note,
        };
        self.commands.push(Command::RecordEvent(note));
    }
}

/// Returns the message with the answers of PostFilter plugins, and the nomination.
// k8s: schedule_one.go schedulingAlgorithm
pub(super) fn with_others(
    text: String,
    mut message: String,
    attempt: &Attempt,
    may_preempt: bool,
) -> (String, Option<String>) {
    match attempt.post_filter(&message) {
        Room::Kept(node) => (text, Some(node)),
        Room::Never(reason) => (format!("{text} {reason}"), None),
        Room::None(added) => {
            for reason in added {
                let joint = if message == text { "" } else { "," };
                message = format!("{message}{joint} {reason}");
            }
            (message, may_preempt.then(String::new))
        }
    }
}

/// Returns true if the pod already has this condition.
// k8s: pkg/api/v1/pod/util.go UpdatePodCondition
fn has_condition(pod: &Pod, condition: &PodCondition) -> bool {
    let all = pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let old = all.into_iter().flatten().find(|c| c.type_ == condition.type_);
    old.is_some_and(|old| {
        (&old.status, &old.reason, &old.message)
            == (&condition.status, &condition.reason, &condition.message)
    })
}

/// Digest that tells successive conditions of a pod apart.
fn digest(condition: &PodCondition) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&condition.reason, &condition.message).hash(&mut hasher);
    hasher.finish()
}

pub(super) fn pod_ref(queued: &QueuedPod, uid: &Uid) -> PodRef {
    PodRef { key: queued.key.clone(), uid: uid.clone() }
}

fn cut(message: &str) -> String {
    if message.len() <= NOTE_MAX {
        return message.to_owned();
    }
    let mut end = NOTE_MAX - CUT.len();
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{CUT}", &message[..end])
}
