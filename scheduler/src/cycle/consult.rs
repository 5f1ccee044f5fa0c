//! Extenders are asked about a pod, and what they said is taken.
//!
//! Input: the nodes that pass, or who could go from which; later the answer. Output: the attempt goes on
//! where it stopped. Owner: the scheduler; one pod is asked about at a time, and nobody is decided
//! meanwhile, as at upstream. What happened in the meantime counts: nodes are looked at again.
// k8s: pkg/scheduler/schedule_one.go findNodesThatPassExtenders, prioritizeNodes

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_sched_core::Cluster;
use pintle_sched_core::intern::Str;
use pintle_sched_core::preempt::{self, Candidate};

use super::command::Command;
use super::decide::{Found, Why, pod_ref, victim};
use super::{Asked, Scheduler, Uid};
use crate::diagnosis;
use crate::extender::consulted::{Nodes, Rows};
use crate::extender::wire::MetaVictims;
use crate::extender::{Answer, Consult, Consulted, Extender, Question, Victims};
use crate::queue::Rejectors;

/// What extenders said so far.
#[derive(Debug)]
pub(super) enum Said {
    /// They were not asked.
    Nothing,
    /// Of the node that is kept for the pod: it, when they take it.
    OfKept(Option<Rc<str>>),
    /// Of all that pass, and how many these were.
    OfAll(Nodes, usize),
}

impl Said {
    /// What they said of all nodes, by row.
    pub(super) fn of_all(&self, cluster: &Cluster) -> Option<Rows> {
        match self {
            Self::OfAll(nodes, _) => Some(nodes.rows(|name| cluster.row(name))),
            Self::Nothing | Self::OfKept(_) => None,
        }
    }

    /// Whether they took a node out.
    pub(super) fn rejects(&self) -> bool {
        matches!(self, Self::OfAll(nodes, asked) if nodes.left.len() != *asked)
    }
}

/// Why a pod fits nowhere, and what is said of its claims.
type Text = (String, &'static str);

/// An attempt that waits for an answer.
#[derive(Debug)]
pub(super) struct Consulting {
    uid: Uid,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Kept(Rc<str>),
    Nodes(usize),
    Victims { text: Text, rejectors: Rejectors, known: HashMap<String, Str> },
}

impl Scheduler {
    fn interested(&self, pod: &Pod) -> impl Iterator<Item = &Extender> {
        self.extenders.iter().filter(|extender| extender.is_interested(pod))
    }

    /// Whether any extender has to say something of the nodes for a pod.
    pub(super) fn consults(&self, pod: &Pod) -> bool {
        self.interested(pod).any(Extender::looks_at_nodes)
    }

    /// Whether any has to say something of those who go for a pod.
    pub(super) fn consults_about_victims(&self, pod: &Pod) -> bool {
        self.interested(pod).any(|extender| !extender.preempt_verb.is_empty())
    }

    pub(super) fn ask_about_nodes(
        &mut self,
        uid: &Uid,
        asked: &Asked,
        names: Vec<Rc<str>>,
        is_kept: bool,
    ) -> Found {
        let stage =
            if is_kept { Stage::Kept(Rc::clone(&names[0])) } else { Stage::Nodes(names.len()) };
        let whole = names.iter().filter_map(|name| self.mirror.whole_node(name)).cloned();
        let question = Question::Nodes { objects: whole.collect(), names };
        self.ask(uid, asked, question, stage)
    }

    pub(super) fn ask_about_victims(
        &mut self,
        uid: &Uid,
        asked: &Asked,
        (text, rejectors): (Text, Rejectors),
        candidates: &[Candidate],
    ) -> Found {
        let cluster = &self.mirror.cluster;
        let mut known = HashMap::new();
        let mut all = BTreeMap::new();
        for candidate in candidates {
            let pods = candidate.victims.iter().map(|id| victim(cluster, *id)).collect();
            let violations = i64::try_from(candidate.violations).unwrap_or(i64::MAX);
            let keys = candidate.victims.iter().map(|id| cluster.pods().get(*id).key);
            known.extend(keys.map(|key| (cluster.text(key).to_owned(), key)));
            let node = cluster.node_name(candidate.row).to_owned();
            all.insert(node, Victims { pods, violations });
        }
        let stage = Stage::Victims { text, rejectors, known };
        self.ask(uid, asked, Question::Victims(all), stage)
    }

    fn ask(&mut self, uid: &Uid, asked: &Asked, question: Question, stage: Stage) -> Found {
        let consult = Consult { pod: asked.pod.whole(), about: pod_ref(asked, uid), question };
        self.commands.push(Command::Consult(consult));
        self.consulting = Some(Consulting { uid: Rc::clone(uid), stage });
        Found::Later
    }

    /// Takes what extenders said.
    pub fn consulted(&mut self, consulted: Consulted, now: Duration) {
        let is_it = |waiting: &mut Consulting| waiting.uid == consulted.about.uid;
        let Some(Consulting { uid, stage }) = self.consulting.take_if(is_it) else { return };
        let Some(waiting) = self.queue.get(&uid) else { return };
        let asked = Rc::clone(&waiting.pod);
        let is_there = self.mirror.waiting(&asked.key).is_some_and(|pod| {
            pod.uid() == Some(&*uid) && pod.whole().metadata.deletion_timestamp.is_none()
        });
        if !is_there {
            self.queue.done(&uid);
            return self.go_on(now);
        }
        match (consulted.answer, stage) {
            (Err(error), _) => self.found_none(&uid, &asked, Why::error(error), now),
            (Ok(Answer::Nodes(nodes)), Stage::Kept(node)) => {
                let takes = nodes.left.contains(&*node) && self.mirror.cluster.row(&node).is_some();
                self.place(&uid, asked, Said::OfKept(takes.then_some(node)), now);
            }
            (Ok(Answer::Nodes(nodes)), Stage::Nodes(count)) => {
                self.place(&uid, asked, Said::OfAll(nodes, count), now);
            }
            (Ok(Answer::Victims(victims)), Stage::Victims { text, rejectors, known }) => {
                let why = self.make_room(&asked, (text, rejectors), &known, &victims, now);
                self.found_none(&uid, &asked, why, now);
            }
            (Ok(_), _) => {
                let error = "extenders answered another question".to_owned();
                self.found_none(&uid, &asked, Why::error(error), now);
            }
        }
    }

    /// Room is made by whom extenders would have go. Those who are gone already need not.
    // k8s: pkg/scheduler/framework/preemption/preemption.go callExtenders, SelectCandidate
    fn make_room(
        &mut self,
        asked: &Asked,
        (text, rejectors): (Text, Rejectors),
        known: &HashMap<String, Str>,
        victims: &BTreeMap<String, MetaVictims>,
        now: Duration,
    ) -> Why {
        let cluster = &self.mirror.cluster;
        let there = |uid: &String| {
            let key = known.get(uid).filter(|key| cluster.text(**key) == *uid)?;
            cluster.pods().find(*key)
        };
        let candidate = |(node, victims): (&String, &MetaVictims)| {
            let row = cluster.row(node)?;
            let violations = usize::try_from(victims.violations).unwrap_or(0);
            let victims = victims.uids.iter().filter_map(there).collect();
            Some(Candidate { row, victims, violations })
        };
        let candidates: Vec<Candidate> = victims.iter().filter_map(candidate).collect();
        let chosen = preempt::choose(cluster, &candidates);
        let (message, nominated) = match chosen {
            Some(at) => (text.0, self.preempt(asked, &candidates[at], now)),
            None => (diagnosis::without_candidate(&text.0, text.1), String::new()),
        };
        Why { is_error: false, message, rejectors, nominated: Some(nominated) }
    }
}
