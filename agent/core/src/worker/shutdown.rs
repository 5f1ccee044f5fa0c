//! Node shutdown: pods end group by group, and new pods are refused.
//!
//! Pure, part of `Pods`. Pods of the current group are stopped, once. After each input it is
//! checked whether the group is over, so that the next one begins without a wait. Before all pods
//! are known no group is over but by its time: an agent that starts in the middle learns of its
//! pods one by one. A pod that has ended for the shutdown stays so when it is given up.
// k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go killPods

use std::sync::Arc;

use crate::admit;
use crate::shutdown::{self, Notice, Shutdown, Window};
use crate::status::{self, DeriveInput, Lifecycle};
use crate::types::NodeFacts;
use crate::worker::Command;
use crate::worker::pods::Pods;
use crate::worker::step::{Worker, WorkerInputs, WorkerStage};
use pintle_api_types::ids::{Mono, Now, PodUid, UnixNanos};
use pintle_api_types::pod;

impl Pods {
    /// Sets the node's offer, with the facts that only the decisions know.
    pub(super) fn offered(&mut self, node: Arc<admit::AdmissionNode>) {
        self.settings.admission = node;
        self.close(self.shutdown.is_some());
        self.press();
    }

    /// Without a Node object admission, too, learns the runtime's features from here.
    pub(super) fn know_node(&mut self, node: NodeFacts) {
        let can = node.supplemental_groups_policy;
        let offered = self.settings.admission.features.supplemental_groups_policy;
        if !self.settings.has_node_object && offered != can {
            let admission = Arc::make_mut(&mut self.settings.admission);
            admission.features.supplemental_groups_policy = can;
        }
        self.settings.node = node;
    }

    /// True while every new pod is refused.
    pub(super) fn is_closed(&self) -> bool {
        self.shutdown.is_some()
    }

    fn close(&mut self, closed: bool) {
        if self.settings.admission.shutting_down != closed {
            Arc::make_mut(&mut self.settings.admission).shutting_down = closed;
        }
    }

    /// Handles a notice of the machine. The start of a shutdown is often reported twice.
    pub(super) fn noticed(&mut self, notice: Notice, now: Now) {
        match notice {
            Notice::Begins { windows, resumed } if self.shutdown.is_none() => {
                let shutdown = Shutdown::begin(windows, resumed.as_ref(), now);
                self.out.push(Command::Shutdown(shutdown.record(now)));
                self.shutdown = Some(shutdown);
                self.close(true);
                self.clear_lobby(now);
            }
            Notice::Begins { .. } => {}
            Notice::Cancelled => {
                if let Some(shutdown) = self.shutdown.take() {
                    self.out.push(Command::Shutdown(shutdown.cancelled(now)));
                    self.close(false);
                }
            }
        }
    }

    /// Ends the pods of the current group, and moves on to the next group when this one is over.
    pub(super) fn shut_down(&mut self, now: Now) {
        let Some(mut shutdown) = self.shutdown.take() else { return };
        let mut moved = false;
        loop {
            for (uid, window, grace) in self.due_to_end(&shutdown, now.mono) {
                let began_at = shutdown.began_at();
                self.with(&uid, now, |w, _| w.shut_down(window, grace, began_at, now.mono));
            }
            let all_ended = self.knows_all() && !self.waits_for(&shutdown);
            if !shutdown.advance(all_ended, now) {
                break;
            }
            moved = true;
        }
        if moved {
            self.out.push(Command::Shutdown(shutdown.record(now)));
        }
        self.shutdown = Some(shutdown);
    }

    fn due_to_end(&self, shutdown: &Shutdown, now: Mono) -> Vec<(PodUid, Window, i64)> {
        let due = self.workers.values().filter(|w| w.may_be_shut_down()).filter_map(|w| {
            let (window, grace) = shutdown.ends(w.priority(), now)?;
            Some((w.uid.clone(), window, grace))
        });
        due.collect()
    }

    /// A container of the current group is still there.
    fn waits_for(&self, shutdown: &Shutdown) -> bool {
        let mut pods = self.workers.values().filter(|w| w.pod.is_some());
        pods.any(|w| w.stage < WorkerStage::Finished && shutdown.is_waited_for(w.priority()))
    }
}

impl Worker {
    // k8s: pkg/kubelet/nodeshutdown/nodeshutdown_manager.go groupByPriority
    fn priority(&self) -> i32 {
        self.pod.as_ref().and_then(|pod| pod::spec(pod).priority).unwrap_or(0)
    }

    /// True if it has not been stopped for the shutdown yet, and has a container to end.
    fn may_be_shut_down(&self) -> bool {
        let is_over = self.stage >= WorkerStage::Terminated
            || status::is_terminal(self.shown.status.phase.as_deref()) && !self.needs_kill();
        self.pod.is_some() && self.ending.ends_with.is_none() && !is_over
    }

    /// It ends with the node, within this many seconds and its own grace period.
    fn shut_down(&mut self, window: Window, grace: i64, began_at: UnixNanos, now: Mono) {
        self.ending.ends_with = Some(window);
        let own = self.pod.as_ref().map_or(grace, |pod| pod::grace_seconds(pod));
        let grace = Some(own.min(grace));
        if self.reads.observed_stamp > 0 {
            return self.evict(shutdown::verdict(), grace, now);
        }
        // It is unknown whether the pod is over already, so nothing of it may start until that is
        // known.
        self.ending.unjudged = Some(began_at);
        self.terminate(grace);
    }

    /// Judges a pod that a new agent has to stop, at its first read. A pod that was over before the
    /// shutdown began has ended by itself, whatever an earlier agent could report of it.
    pub(super) fn judge(&mut self, context: &WorkerInputs<'_>) {
        if self.reads.observed_stamp == 0 {
            return;
        }
        let Some(began_at) = self.ending.unjudged.take() else { return };
        let Some(pod) = self.pod.clone() else { return };
        let input = self.derive_input(&pod, context);
        let input = DeriveInput { lifecycle: Lifecycle::Syncing, ..input };
        let mut containers = self.reads.observed.containers.iter();
        let is_over = !self.needs_kill()
            && containers.all(|container| container.finished_at < began_at)
            && status::settled_phase(&input).is_some();
        if !is_over && self.ending.verdict.is_none() {
            self.ending.verdict = Some(shutdown::verdict());
        }
    }
}
