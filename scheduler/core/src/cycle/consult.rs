//! Extender calls: requests about a pod, and their answers.
//!
//! Input: the feasible nodes, or preemption candidates; later the answer. Output: the attempt
//! continues where it stopped. Owner: the scheduler; at most one call is under way. As upstream, no
//! pod is decided meanwhile, but only for `PATIENCE`: when an extender hangs, pods that need none
//! are decided (see `queue/apart`). Pods of a group are assumed in a dry run meanwhile, so no other
//! pod can be decided: after `GROUP_PATIENCE` the group's attempt fails. After an answer nodes are
//! evaluated again, because the cluster may have changed. `PATIENCE` is not zero, so that extenders
//! that answer keep upstream's order of pods.
// k8s: pkg/scheduler/schedule_one.go findNodesThatPassExtenders, prioritizeNodes

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::Cluster;
use pintle_sched_core::preempt::{self, Candidate};
use pintle_sched_core::snapshot::pods::PodId;

use super::command::Command;
use super::decide::{NodeSearch, PodRejection, pod_ref, with_others};
use super::evict::victim;
use super::{QueuedPod, Scheduler, Uid};
use crate::diagnosis;
use crate::extender::consulted::{Nodes, Rows};
use crate::extender::{
    Consult, Consulted, Extender, ExtenderCall, ExtenderError, ExtenderReply, Victims,
};
use crate::framework::Attempt;
use crate::pod_fields::PodRef;
use crate::queue::Rejectors;

/// Longest time that a decision with extender calls blocks other decisions.
const PATIENCE: Duration = Duration::from_millis(100);
/// Time limit of extender calls for a pod of a group.
const GROUP_PATIENCE: Duration = Duration::from_secs(1);

/// Extenders' answers so far.
#[derive(Debug)]
pub(super) enum ExtenderAnswers {
    /// No extender was called.
    Nothing,
    /// About the nominated node: the node, if extenders accept it.
    OfKept(Option<Rc<str>>),
    /// About all feasible nodes, and the number of these nodes.
    OfAll(Nodes, usize),
}

impl ExtenderAnswers {
    /// Returns the answers about all nodes, by row.
    pub(super) fn of_all(&self, cluster: &Cluster) -> Option<Rows> {
        match self {
            Self::OfAll(nodes, _) => Some(nodes.rows(|name| cluster.row(name))),
            Self::Nothing | Self::OfKept(_) => None,
        }
    }

    /// Returns true if extenders rejected a node.
    pub(super) fn rejects(&self) -> bool {
        matches!(self, Self::OfAll(nodes, queued) if nodes.left.len() != *queued)
    }
}

/// The message why a pod fits nowhere, and the text about its claims.
type Text = (String, &'static str);

/// The diagnosis of a pod while extenders select victims; PostFilter plugins may run afterwards.
type Known = (Text, Rejectors, Option<Rc<Attempt>>);

/// An attempt that waits for extenders.
#[derive(Debug)]
pub(super) struct Consulting {
    uid: Uid,
    stage: ConsultStage,
    /// When the decision began.
    since: Duration,
}

#[derive(Debug)]
enum ConsultStage {
    Kept(Rc<str>),
    Nodes(usize),
    Victims(Known),
}

impl Scheduler {
    fn interested(&self, pod: &Pod) -> impl Iterator<Item = &Extender> {
        self.extenders.iter().filter(|extender| extender.is_interested(pod))
    }

    /// Returns true if an extender may have to be called for the pod.
    pub(super) fn may_consult(&self, pod: &Pod) -> bool {
        self.consults(pod) || self.consults_about_victims(pod)
    }

    /// Returns true while no pod is decided because extenders have not answered.
    pub(super) fn waits_for_extenders(&self, now: Duration) -> bool {
        self.patience_due().is_some_and(|due| now < due)
    }

    /// Returns when pods that need no extender are decided despite a call under way, or the attempt
    /// of a group fails.
    pub fn patience_due(&self) -> Option<Duration> {
        let patience = if self.group.is_some() { GROUP_PATIENCE } else { PATIENCE };
        self.consulting.as_ref().map(|asking| asking.since + patience)
    }

    /// Fails the attempt of a group when its extenders exceed `GROUP_PATIENCE`; returns true if it
    /// did.
    pub(super) fn give_up_on_extenders(&mut self, now: Duration) -> bool {
        let Some(asking) = self.consulting.as_ref().filter(|_| self.group.is_some()) else {
            return false;
        };
        let Some(waiting) = self.queue.get(&asking.uid) else { return false };
        if now < asking.since + GROUP_PATIENCE {
            return false;
        }
        let about = pod_ref(&waiting.pod, &asking.uid);
        let answer = Err(ExtenderError::GroupLate(GROUP_PATIENCE));
        self.take_consulted(Consulted { about, answer }, now);
        true
    }

    /// Returns true if an extender filters or scores nodes for the pod.
    pub(super) fn consults(&self, pod: &Pod) -> bool {
        self.interested(pod).any(Extender::filters_or_scores)
    }

    /// Returns true if an extender selects victims for the pod.
    pub(super) fn consults_about_victims(&self, pod: &Pod) -> bool {
        self.interested(pod).any(|extender| !extender.preempt_verb.is_empty())
    }

    pub(super) fn ask_about_nodes(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        names: Vec<Rc<str>>,
        is_kept: bool,
    ) -> NodeSearch {
        let stage = if is_kept {
            ConsultStage::Kept(Rc::clone(&names[0]))
        } else {
            ConsultStage::Nodes(names.len())
        };
        let whole = names.iter().filter_map(|name| self.cache.whole_node(name)).cloned();
        let question = ExtenderCall::Nodes { objects: whole.collect(), names };
        self.ask(uid, queued, question, stage)
    }

    pub(super) fn ask_about_victims(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        known: Known,
        candidates: &[Candidate],
    ) -> NodeSearch {
        let cluster = &self.cache.cluster;
        let one = |candidate: &Candidate| {
            let there = cluster.pods().on_node(candidate.row);
            let others = there.filter(|id| !candidate.victims.contains(id));
            let others = others.map(|id| victim(cluster, id)).collect();
            let pods = candidate.victims.iter().map(|id| victim(cluster, *id)).collect();
            let violations = i64::try_from(candidate.violations).unwrap_or(i64::MAX);
            let node = cluster.node_name(candidate.row).to_owned();
            (node, Victims { pods, violations, others })
        };
        let all: BTreeMap<String, Victims> = candidates.iter().map(one).collect();
        self.ask(uid, queued, ExtenderCall::Victims(all), ConsultStage::Victims(known))
    }

    fn ask(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        question: ExtenderCall,
        stage: ConsultStage,
    ) -> NodeSearch {
        let consult = Consult { pod: queued.pod.whole(), about: pod_ref(queued, uid), question };
        self.commands.push(Command::Consult(consult));
        let since = self.decides_since;
        self.consulting = Some(Consulting { uid: uid.clone(), stage, since });
        NodeSearch::Later
    }

    /// Returns true if a pod that was popped before an extender call still needs a node.
    pub(super) fn still_waits(&self, uid: &Uid, queued: &QueuedPod) -> bool {
        self.cache.waiting(&queued.key).is_some_and(|pod| {
            let is_it = pod.uid().unwrap_or(queued.key.as_str()) == &**uid;
            is_it && pod.whole().metadata.deletion_timestamp.is_none()
        })
    }

    /// Handles the answer of extenders.
    pub fn consulted(&mut self, consulted: Consulted, now: Duration) {
        self.in_attempt(now, |scheduler| scheduler.take_consulted(consulted, now));
    }

    fn take_consulted(&mut self, consulted: Consulted, now: Duration) {
        let is_it = |waiting: &mut Consulting| waiting.uid == consulted.about.uid;
        let Some(asking) = self.consulting.take_if(is_it) else { return };
        let Consulting { uid, stage, since } = asking;
        self.decides_since = since;
        let Some(waiting) = self.queue.get(&uid) else { return };
        let queued = Rc::clone(&waiting.pod);
        let waited = now.saturating_sub(since);
        if consulted.answer.is_err() && waited >= PATIENCE {
            // Pods of other namespaces that need extenders are decided first.
            self.queue.charge(queued.key.namespace(), waited, now);
        }
        self.attempts(&uid, &queued);
        if let Some(cycle) = &self.group {
            self.attempts_all(cycle.pods());
        }
        if !self.still_waits(&uid, &queued) {
            self.queue.done(&uid);
            return self.go_on(now);
        }
        match (consulted.answer, stage) {
            // All nodes are evaluated as without a nomination.
            // k8s: pkg/scheduler/schedule_one.go findNodesThatFitPod
            (Err(error), ConsultStage::Kept(_)) => {
                tracing::warn!(%error, pod = queued.key.as_str(), "its node was not asked about");
                self.place(&uid, queued, ExtenderAnswers::OfKept(None), now);
            }
            (Err(error), ConsultStage::Victims((text, rejectors, _))) => {
                let message = diagnosis::without_preemption(&text.0, &error.to_string());
                let why = PodRejection { is_error: false, message, rejectors, nominated: None };
                self.found_none(&uid, &queued, why, now);
            }
            (Err(error), ConsultStage::Nodes(_)) => {
                self.found_none(&uid, &queued, PodRejection::error(error.to_string()), now);
            }
            (Ok(ExtenderReply::Nodes(nodes)), ConsultStage::Kept(node)) => {
                let takes = nodes.left.contains(&*node) && self.cache.cluster.row(&node).is_some();
                self.place(&uid, queued, ExtenderAnswers::OfKept(takes.then_some(node)), now);
            }
            (Ok(ExtenderReply::Nodes(nodes)), ConsultStage::Nodes(count)) => {
                self.place(&uid, queued, ExtenderAnswers::OfAll(nodes, count), now);
            }
            (Ok(ExtenderReply::Victims(victims)), ConsultStage::Victims(known)) => {
                let why = self.make_room(&queued, known, &victims, now);
                self.found_none(&uid, &queued, why, now);
            }
            (Ok(_), _) => {
                let error = "extenders answered another question".to_owned();
                self.found_none(&uid, &queued, PodRejection::error(error), now);
            }
        }
    }

    /// Preempts the victims that extenders selected. Victims that are already gone are skipped.
    // k8s: pkg/scheduler/framework/preemption/preemption.go callExtenders, SelectCandidate
    fn make_room(
        &mut self,
        queued: &QueuedPod,
        ((text, of_claims), rejectors, attempt): Known,
        victims: &BTreeMap<String, Victims>,
        now: Duration,
    ) -> PodRejection {
        let cluster = &self.cache.cluster;
        let candidate = |(node, victims): (&String, &Victims)| {
            let row = cluster.row(node)?;
            let violations = usize::try_from(victims.violations).unwrap_or(0);
            let is_it =
                |id: &PodId, pod: &PodRef| cluster.text(cluster.pods().get(*id).key) == &*pod.uid;
            let find = |pod: &PodRef| cluster.pods().on_node(row).find(|id| is_it(id, pod));
            let victims = victims.pods.iter().filter_map(find).collect();
            Some(Candidate { row, victims, violations })
        };
        let candidates: Vec<Candidate> = victims.iter().filter_map(candidate).collect();
        let chosen = preempt::choose(cluster, &candidates);
        let (message, nominated) = match chosen {
            Some(at) => (text, Some(self.preempt(queued, &candidates[at], now))),
            // The pod keeps its nomination, unless a PostFilter plugin nominates another node.
            None => {
                let message = diagnosis::without_candidate(&text, of_claims);
                match &attempt {
                    Some(attempt) => with_others(text, message, attempt, false),
                    None => (message, None),
                }
            }
        };
        PodRejection { is_error: false, message, rejectors, nominated }
    }
}
