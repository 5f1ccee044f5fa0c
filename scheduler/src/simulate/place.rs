//! The simulation: bound pods in, pending pods placed in queue order, questions answered.
//!
//! Input: a dump, a profile, questions. Output: a `Simulation`, ready to print. Owner: pure but for
//! the progress bar. Bounds: every pending pod is decided once, and again only after another pod
//! was placed; only the most frequent shapes are reported. Ties are broken by the order of the
//! nodes, so that a simulation is reproducible.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use pintle_sched_core::explain;
use pintle_sched_core::preempt::{self, Budget};
use pintle_sched_core::program::Program;
use pintle_sched_core::remedy::{self, Remedy};
use pintle_sched_core::select::{self, Detail, Scratch};
use pintle_sched_core::snapshot::Cluster;
use pintle_sched_core::{Plugin, Profile};
use pintle_scheduler_core::pod_fields::{has_claims, scheduler_name};
use serde::Serialize;

use super::defaults::assumed::Assumption;
use super::defaults::{self, admission};
use super::dump::{Dump, pod_name};
use super::load::LoadError;
use super::notes;
pub use super::outcome::{NodeAnswer, Placed, PodAnswer, Preemption, Unplaced};
use super::progress::Progress;
use super::report::capacity::{self, Fragmentation, PodShape};
use super::valid::flaws::cut_quotes;

/// Limit of passes over pods that did not fit: each needs a placement in the previous one.
const PASSES_MAX: usize = 16;

/// Questions to answer in addition to the placement.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    /// Explain this pod.
    pub why: Option<String>,
    /// Drain these nodes.
    pub drain: Vec<String>,
    /// Add nodes,
    pub add_nodes: usize,
    /// like this one.
    pub like: Option<String>,
}

/// Reason why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// An object of the dump cannot be used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// An object that decodes but is invalid.
    #[error("{place}: {object}: {field}: {problem}")]
    Object {
        /// File and position.
        place: String,
        /// Kind and name.
        object: String,
        /// The invalid field.
        field: String,
        /// Why.
        problem: String,
    },
    /// A question names a node that does not exist.
    #[error("node {0:?} is not in the dump")]
    NoNode(String),
    /// A question names a pod that does not exist.
    #[error("pod {0:?} is not in the dump")]
    NoPod(String),
    /// A question names a pod that cannot be placed.
    #[error("pod {0} has volumes or resource claims, of which a simulation knows nothing")]
    HasClaims(String),
}

/// Everything a simulation found.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Simulation {
    /// Nodes, added ones included.
    pub nodes: usize,
    /// Pods that were bound from the start.
    pub bound: usize,
    /// Pods to place.
    pub pending: usize,
    /// Pods of other schedulers, finished pods and pods being deleted.
    pub skipped: usize,
    /// Pods that are not placed because they have volumes or resource claims.
    pub left_out: Vec<String>,
    /// Objects of kinds that a simulation ignores.
    pub ignored_objects: usize,
    /// Parts of the dump that count differently than a reader may expect, a sentence each.
    pub notes: Vec<String>,
    /// Values that count although manifests do not set them.
    pub assumed: Vec<Assumption>,
    /// Pods of other schedulers, by the scheduler's name.
    #[serde(skip)]
    pub others: BTreeMap<String, usize>,
    /// Nodes that were added.
    pub added: Vec<String>,
    /// Placed pods in order.
    pub placed: Vec<Placed>,
    /// The others.
    pub unplaced: Vec<Unplaced>,
    /// The answer to "why".
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<PodAnswer>,
    /// Number of further pods of each shape that fit.
    pub capacity: Vec<PodShape>,
    /// Fragmentation of the free resources.
    pub fragmentation: Vec<Fragmentation>,
}

/// A pending pod.
struct PendingPod {
    pod: Pod,
    program: Arc<Program>,
    from: Option<String>,
}

impl Simulation {
    /// Runs it.
    ///
    /// # Errors
    /// An object cannot be used, or a question names something that does not exist.
    pub fn run(
        mut dump: Dump,
        profile: Profile,
        questions: &Questions,
        progress: &Progress,
    ) -> Result<Self, SimulationError> {
        let scheduler = profile.scheduler_name.clone();
        admission::admit(&mut dump).map_err(|refused| SimulationError::Object {
            place: refused.place,
            object: format!("Pod {}", refused.pod),
            field: refused.field,
            problem: refused.problem,
        })?;
        let model = model(&dump, questions)?;
        drain_nodes(&mut dump, questions)?;
        let mut found =
            Self { nodes: dump.nodes.len(), notes: notes::of_dump(&dump), ..Self::default() };
        found.ignored_objects = dump.omitted.ignored.values().sum();
        found.assumed = std::mem::take(&mut dump.assumed).list();
        let mut cluster = Cluster::new(profile);
        workloads(&mut cluster, &dump);
        nodes(&mut cluster, &dump)?;
        found.add_nodes(&mut cluster, model, questions.add_nodes)?;
        let budgets: Vec<_> = dump.budgets.values().cloned().collect();
        let budgets = cluster.budgets(&budgets);
        let waiting = found.pods(&mut cluster, &mut dump, questions, &scheduler, progress)?;
        found.pending = waiting.len();
        if waiting.is_empty() {
            found.notes.extend(notes::no_pending_pods(&scheduler, &found.others));
        }
        let programs: Vec<Arc<Program>> = waiting.iter().map(|w| Arc::clone(&w.program)).collect();
        found.place(&mut cluster, waiting, &budgets, questions, progress)?;
        if let Some(name) = &questions.why
            && found.why.is_none()
        {
            return Err(SimulationError::NoPod(name.clone()));
        }
        (found.capacity, found.fragmentation) = capacity::measure(&cluster, &programs);
        Ok(found)
    }

    /// Adds bound pods; returns those to be placed, in queue order.
    fn pods(
        &mut self,
        cluster: &mut Cluster,
        dump: &mut Dump,
        questions: &Questions,
        scheduler: &str,
        progress: &Progress,
    ) -> Result<Vec<PendingPod>, SimulationError> {
        let mut waiting = Vec::new();
        let all = dump.pods.len();
        for (at, mut pod) in std::mem::take(&mut dump.pods).into_iter().enumerate() {
            progress.show("loading", at, all);
            let phase = pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or("");
            if matches!(phase, "Succeeded" | "Failed") {
                self.skipped += 1;
                continue;
            }
            let name = pod_name(&pod);
            let node = pod.spec.as_ref().and_then(|s| s.node_name.clone());
            let node = node.filter(|n| !n.is_empty());
            let drained = node.as_ref().is_some_and(|n| questions.drain.contains(n));
            let asked = questions.why.as_ref().is_some_and(|w| names(w, &pod));
            let stays = drained && (is_daemon(&pod) || is_static(&pod));
            if node.is_some() && (stays || (!drained && !asked)) {
                cluster
                    .set_pod(&pod)
                    .map_err(|e| object(&dump.pod_sources[at].place, &name, "Pod", &e))?;
                self.bound += 1;
                continue;
            }
            let is_other = scheduler_name(&pod) != scheduler;
            let is_going = pod.metadata.deletion_timestamp.is_some();
            if node.is_none() && (is_other || is_going) {
                self.skipped += 1;
                if !is_going {
                    *self.others.entry(scheduler_name(&pod).to_owned()).or_default() += 1;
                }
                continue;
            }
            pod.spec.get_or_insert_default().node_name = None;
            if has_claims(&pod) {
                if asked {
                    return Err(SimulationError::HasClaims(name));
                }
                self.left_out.push(name);
                continue;
            }
            let program = cluster.compile(&pod);
            let program =
                program.map_err(|e| object(&dump.pod_sources[at].place, &name, "Pod", &e))?;
            waiting.push(PendingPod { pod, program, from: node });
        }
        // k8s: queuesort/priority_sort.go: priority, then the time of entering the queue
        waiting.sort_by_key(|w| {
            let priority = w.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
            let created = w.pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
            (std::cmp::Reverse(priority), created)
        });
        Ok(waiting)
    }

    /// Adds copies of this node under new names; one at a time, as there may be many.
    fn add_nodes(
        &mut self,
        cluster: &mut Cluster,
        model: Option<Node>,
        count: usize,
    ) -> Result<(), SimulationError> {
        let Some(mut node) = model else { return Ok(()) };
        let like = node.metadata.name.take().unwrap_or_default();
        node.metadata.uid = None;
        if let Some(spec) = &mut node.spec {
            spec.unschedulable = None;
        }
        for at in 1..=count {
            let name = format!("{like}-added-{at}");
            node.metadata.name = Some(name.clone());
            if let Some(labels) = &mut node.metadata.labels
                && labels.contains_key("kubernetes.io/hostname")
            {
                labels.insert("kubernetes.io/hostname".into(), name.clone());
            }
            cluster.set_node(&node).map_err(|e| object("added", &name, "Node", &e))?;
            self.added.push(name);
        }
        self.nodes += count;
        Ok(())
    }

    fn place(
        &mut self,
        cluster: &mut Cluster,
        mut waiting: Vec<PendingPod>,
        budgets: &[Budget],
        questions: &Questions,
        progress: &Progress,
    ) -> Result<(), SimulationError> {
        let mut scratch = Scratch::default();
        let all = waiting.len();
        for _ in 0..PASSES_MAX {
            let before = waiting.len();
            let mut failed: HashMap<*const Program, u64> = HashMap::new();
            let mut left = Vec::new();
            for (at, one) in waiting.into_iter().enumerate() {
                progress.show("placing", all - before + at, all);
                let key = Arc::as_ptr(&one.program);
                let epoch = cluster.view().epoch();
                let asked = questions.why.as_ref().is_some_and(|w| names(w, &one.pod));
                if failed.get(&key) == Some(&epoch) && !asked {
                    left.push(one);
                    continue;
                }
                if asked {
                    self.why = Some(why(cluster, &one, &questions.drain, &mut scratch));
                }
                if !self.place_one(cluster, &one, &mut scratch)? {
                    failed.insert(key, epoch);
                    left.push(one);
                }
            }
            let progressed = left.len() < before;
            waiting = left;
            if waiting.is_empty() || !progressed {
                break;
            }
        }
        self.explain_rest(cluster, &waiting, budgets, questions, progress);
        Ok(())
    }

    fn place_one(
        &mut self,
        cluster: &mut Cluster,
        one: &PendingPod,
        scratch: &mut Scratch,
    ) -> Result<bool, SimulationError> {
        let outcome = select::decide(cluster.view(), &one.program, scratch);
        let Some(row) = outcome.first else { return Ok(false) };
        let node = cluster.node_name(row).to_owned();
        let name = pod_name(&one.pod);
        cluster.assume(&one.pod, &node).map_err(|e| object("dump", &name, "Pod", &e))?;
        self.placed.push(Placed {
            pod: name,
            node,
            score: outcome.best,
            feasible: outcome.feasible,
            ties: outcome.ties,
            from: one.from.clone(),
        });
        Ok(true)
    }

    /// Explains every pod that is left, and what would help; equal pods share the answer.
    fn explain_rest(
        &mut self,
        cluster: &Cluster,
        waiting: &[PendingPod],
        budgets: &[Budget],
        questions: &Questions,
        progress: &Progress,
    ) {
        type Answer = (String, Option<Remedy>, Option<Preemption>);
        let mut answers: HashMap<(*const Program, i32, bool), Answer> = HashMap::new();
        let mut scratch = Scratch::default();
        for (at, one) in waiting.iter().enumerate() {
            progress.show("explaining", at, waiting.len());
            let spec = one.pod.spec.as_ref();
            let priority = spec.and_then(|s| s.priority).unwrap_or(0);
            let never = spec.and_then(|s| s.preemption_policy.as_deref()) == Some("Never");
            let key = (Arc::as_ptr(&one.program), priority, never);
            let answer = answers
                .entry(key)
                .or_insert_with(|| explain_one(cluster, one, budgets, questions, &mut scratch));
            self.unplaced.push(Unplaced {
                pod: pod_name(&one.pod),
                message: answer.0.clone(),
                remedy: answer.1.clone(),
                preemption: answer.2.clone(),
                from: one.from.clone(),
            });
        }
    }
}

fn explain_one(
    cluster: &Cluster,
    one: &PendingPod,
    budgets: &[Budget],
    questions: &Questions,
    scratch: &mut Scratch,
) -> (String, Option<Remedy>, Option<Preemption>) {
    let view = cluster.view();
    let (outcome, detail) = select::decide_in_detail(view, &one.program, &[], scratch);
    let nodes = view.node_count();
    if let Some(refusal) = &outcome.refusal {
        return (explain::refused(nodes, refusal), Some(remedy::of_refusal(refusal)), None);
    }
    let statuses = explain::statuses(cluster, &one.program, &detail, scratch);
    let message = explain::summary(nodes, statuses.iter().map(|(_, s)| s));
    let fix = smallest(cluster, one, &detail, &questions.drain, scratch);
    let run = preempt::dry_run(cluster, &one.pod, &one.program, &statuses, budgets, scratch);
    let preemption = run.chosen.map(|at| {
        let chosen = &run.candidates[at];
        Preemption {
            node: cluster.node_name(chosen.row).to_owned(),
            victims: chosen.victims.iter().map(|id| cluster.pod_name(*id)).collect(),
            violations: chosen.violations,
        }
    });
    (message, fix, preemption)
}

/// Returns the smallest change by which a node accepts the pod; drained nodes are excluded.
fn smallest(
    cluster: &Cluster,
    one: &PendingPod,
    detail: &Detail,
    drained: &[String],
    scratch: &mut Scratch,
) -> Option<Remedy> {
    let count = drained.len() + 1;
    let nearest = remedy::nearest(cluster, &one.program, detail, scratch, count);
    let is_drained = |fix: &Remedy| fix.node.as_ref().is_some_and(|node| drained.contains(node));
    nearest.into_iter().find(|fix| !is_drained(fix))
}

fn why(
    cluster: &Cluster,
    one: &PendingPod,
    drained: &[String],
    scratch: &mut Scratch,
) -> PodAnswer {
    let view = cluster.view();
    let (outcome, detail) = select::decide_in_detail(view, &one.program, &[], scratch);
    let statuses = match outcome.refusal {
        Some(_) => Vec::new(),
        None => explain::statuses(cluster, &one.program, &detail, scratch),
    };
    let mut nodes: Vec<NodeAnswer> = Vec::new();
    for row in scratch.feasible.iter() {
        let mut scores = BTreeMap::new();
        for plugin in Plugin::ALL {
            if let Some(Some(s)) = detail.scores.get(plugin as usize) {
                let normalised = s.normalised[row as usize];
                let weighted = normalised * view.profile().weight(plugin);
                scores.insert(plugin.name(), [s.raw[row as usize], normalised, weighted]);
            }
        }
        let node = cluster.node_name(row).to_owned();
        let total = Some(scratch.total[row as usize]);
        nodes.push(NodeAnswer { node, total, scores, plugin: None, reasons: Vec::new() });
    }
    nodes.sort_by_key(|n| std::cmp::Reverse(n.total));
    nodes.extend(statuses.iter().map(|(row, status)| NodeAnswer {
        node: cluster.node_name(*row).to_owned(),
        total: None,
        scores: BTreeMap::new(),
        plugin: status.plugin.map(Plugin::name),
        reasons: status.reasons.clone(),
    }));
    let all = view.node_count();
    let (answer, remedy) = match (&outcome.refusal, outcome.first) {
        (Some(refusal), _) => (explain::refused(all, refusal), Some(remedy::of_refusal(refusal))),
        (None, Some(row)) => {
            let node = cluster.node_name(row);
            let (feasible, ties, best) = (outcome.feasible, outcome.ties, outcome.best);
            let tie = if ties > 1 { format!(", which {ties} nodes reach") } else { String::new() };
            let answer = format!(
                "{feasible} of {all} nodes pass all filters; {node} is chosen with the highest \
                 score, {best}{tie}"
            );
            (answer, None)
        }
        (None, None) => (
            explain::summary(all, statuses.iter().map(|(_, s)| s)),
            smallest(cluster, one, &detail, drained, scratch),
        ),
    };
    PodAnswer { pod: pod_name(&one.pod), answer, nodes, remedy }
}

fn workloads(cluster: &mut Cluster, dump: &Dump) {
    dump.namespaces.values().for_each(|n| cluster.set_namespace(n));
    dump.services.values().for_each(|s| cluster.set_service(s));
    dump.replica_sets.values().for_each(|s| cluster.set_replica_set(s));
    dump.stateful_sets.values().for_each(|s| cluster.set_stateful_set(s));
    for controller in dump.replication_controllers.values() {
        let mut controller = controller.clone();
        defaults::of_controller(&mut controller);
        cluster.set_replication_controller(&controller);
    }
}

fn nodes(cluster: &mut Cluster, dump: &Dump) -> Result<(), SimulationError> {
    for (node, source) in dump.nodes.iter().zip(&dump.node_sources) {
        let name = node.metadata.name.clone().unwrap_or_default();
        cluster.set_node(node).map_err(|e| object(&source.place, &name, "Node", &e))?;
    }
    Ok(())
}

/// Builds the error of an object that decodes but is invalid: its chain names field and cause.
fn object(place: &str, name: &str, kind: &str, error: &dyn std::error::Error) -> SimulationError {
    let mut problem = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        problem.push(inner.to_string());
        cause = inner.source();
    }
    SimulationError::Object {
        place: place.to_owned(),
        object: format!("{kind} {name}"),
        field: error.to_string(),
        problem: if problem.is_empty() {
            "cannot be used".into()
        } else {
            cut_quotes(&problem.join(": "))
        },
    }
}

/// Does the question name this pod, as namespace/name or by name alone?
fn names(question: &str, pod: &Pod) -> bool {
    question == pod_name(pod) || Some(question) == pod.metadata.name.as_deref()
}

fn is_daemon(pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|o| o.controller == Some(true) && o.kind == "DaemonSet")
}

/// Returns true for the mirror pod of a static pod, which belongs to its node.
fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    annotations.is_some_and(|a| a.contains_key("kubernetes.io/config.mirror"))
}

/// Returns the node that added nodes copy.
fn model(dump: &Dump, questions: &Questions) -> Result<Option<Node>, SimulationError> {
    let Some(like) = &questions.like else { return Ok(None) };
    let model = dump.nodes.iter().find(|n| n.metadata.name.as_ref() == Some(like));
    model.cloned().map(Some).ok_or_else(|| SimulationError::NoNode(like.clone()))
}

/// Cordons the nodes to drain.
fn drain_nodes(dump: &mut Dump, questions: &Questions) -> Result<(), SimulationError> {
    for name in &questions.drain {
        let node = dump.nodes.iter_mut().find(|n| n.metadata.name.as_ref() == Some(name));
        let node = node.ok_or_else(|| SimulationError::NoNode(name.clone()))?;
        let spec = node.spec.get_or_insert_default();
        spec.unschedulable = Some(true);
        let cordon = Taint {
            key: "node.kubernetes.io/unschedulable".into(),
            effect: "NoSchedule".into(),
            ..Taint::default()
        };
        let taints = spec.taints.get_or_insert_default();
        if !taints.iter().any(|t| t.key == cordon.key && t.effect == cordon.effect) {
            taints.push(cordon);
        }
    }
    Ok(())
}
