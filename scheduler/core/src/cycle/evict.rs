//! Victims of preemption: victims not yet bound lose their node at once, the others are deleted.
//!
//! Input: a candidate of the dry run. Output: commands, and the nominated node. Owner: the
//! scheduler. Bounds: the victims of one candidate.
// k8s: pkg/scheduler/framework/preemption/executor.go

use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::Cluster;
use pintle_sched_core::preempt::Candidate;
use pintle_sched_core::snapshot::pods::PodId;

use super::command::{Command, Fact, Note, Related};
use super::decide::pod_ref;
use super::{QueuedPod, Scheduler, Uid};
use crate::cache::CacheDelta;
use crate::pod_fields::PodRef;

impl Scheduler {
    /// Starts the preemption; returns the node's name.
    // k8s: pkg/scheduler/framework/preemption/preemption.go prepareCandidate
    pub(super) fn preempt(
        &mut self,
        queued: &QueuedPod,
        candidate: &Candidate,
        now: Duration,
    ) -> String {
        let cluster = &self.cache.cluster;
        let node = cluster.node_name(candidate.row).to_owned();
        // Victims that are already terminating are not deleted again.
        let live = candidate.victims.iter().filter(|id| !cluster.pods().get(**id).terminating);
        let mut victims: Vec<PodRef> = live.map(|id| victim(cluster, *id)).collect();
        let uid: Uid = cluster.text(queued.spec.key).into();
        let all = candidate.victims.iter();
        *queued.victims.borrow_mut() = all.map(|id| victim(cluster, *id).uid).collect();
        let pod = pod_ref(queued, &uid);
        let text = format!("Preempted by pod {uid} on node {node}");
        let name = self.reporter(queued.profile);
        let related = Related::Pod(pod.clone());
        let makes_go = !victims.is_empty();
        if makes_go {
            self.facts.push(Fact::Preempted(candidate.victims.len()));
        }
        self.preempt_in_memory(&mut victims, &name, &related, &text, now);
        let notes = going(&victims, &name, &related, &text);
        let message = format!("{name}: preempting to accommodate a higher priority pod");
        // An attempt without victims clears no other pod's nomination.
        // k8s: pkg/scheduler/framework/preemption/executor.go prepareCandidateAsync
        if makes_go {
            self.unseat(queued, &node, now);
        }
        if !victims.is_empty() {
            queued.preempts.set(true);
            self.commands.push(Command::Evict { victims, pod, message, notes });
        }
        node
    }

    /// Takes the node from victims that are not being bound yet, and removes them from `victims`.
    // k8s: pkg/scheduler/framework/preemption/executor.go PreemptPod
    pub(super) fn preempt_in_memory(
        &mut self,
        victims: &mut Vec<PodRef>,
        reporter: &Rc<str>,
        related: &Related,
        text: &str,
        now: Duration,
    ) {
        let gone: Vec<PodRef> =
            victims.extract_if(.., |victim| self.preempt_unbound(&victim.uid, now)).collect();
        let text = format!("{text} (in kube-scheduler memory).");
        let notes = going(&gone, reporter, related, &text);
        self.commands.extend(notes.into_iter().map(Command::RecordEvent));
    }

    /// Clears the nominations of lower-priority pods to the node.
    // k8s: pkg/scheduler/framework/preemption/preemption.go getLowerPriorityNominatedPods
    fn unseat(&mut self, queued: &QueuedPod, node: &str, now: Duration) {
        for (key, nominee) in self.cache.nominated_on(node) {
            if nominee.spec.priority >= queued.spec.priority || key == queued.spec.key {
                continue;
            }
            self.make(&CacheDelta::Nominated { pod: key, old: Some(nominee), new: None }, now);
            let uid = self.cache.cluster.text(key);
            if let Some(waiting) = self.queue.get(uid) {
                self.commands.push(Command::Status {
                    pod: Rc::clone(&waiting.pod.pod),
                    condition: None,
                    nominated: Some(String::new()),
                });
            }
        }
    }
}

/// Events of the victims.
pub(super) fn going(
    victims: &[PodRef],
    reporter: &Rc<str>,
    related: &Related,
    text: &str,
) -> Vec<Note> {
    let note = |victim: &PodRef| Note {
        about: victim.clone(),
        reporter: Rc::clone(reporter),
        version: None,
        related: Some(related.clone()),
        warning: false,
        reason: "Preempted",
        action: "Preempting",
        note: text.to_owned(),
    };
    victims.iter().map(note).collect()
}

/// Returns the name and uid of a pod on a node.
pub(super) fn victim(cluster: &Cluster, id: PodId) -> PodRef {
    let full = cluster.pod_name(id);
    let (namespace, name) = full.split_once('/').unwrap_or(("", &full));
    let uid = cluster.text(cluster.pods().get(id).key).into();
    PodRef { key: ObjectKey::new(namespace, name), uid }
}
