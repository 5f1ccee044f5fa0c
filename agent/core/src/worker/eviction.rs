//! Node-pressure eviction of pods: a victim ends like any other stopped pod.
//!
//! Pure, part of `Pods`. `eviction::Evictor` decides; this module runs it after each input and
//! turns its steps into commands. Critical pods are never evicted, nor pods of which nothing runs,
//! because their end would free nothing. A pod that already ends for another reason may be chosen:
//! it may hold the scarce resource, and then it ends sooner and no other pod is evicted.
// k8s: pkg/kubelet/eviction/eviction_manager.go evictPod

use std::sync::Arc;
use std::time::Duration;

use crate::eviction::observed::{Freed, Observation};
use crate::eviction::rank::{Evictable, Uses};
use crate::eviction::report::{self, Eviction, EvictionReport};
use crate::eviction::signal::Starved;
use crate::eviction::step::{EvictionSnapshot, EvictionStep, Victim};
use crate::eviction::{REASON, local};
use crate::node::conditions::{NodeEvent, Pressure};
use crate::status::{self, PodVerdict};
use crate::worker::pods::Pods;
use crate::worker::step::{Worker, WorkerStage};
use crate::worker::{Command, DecisionCount};
use pintle_api_types::ids::{Mono, Now, PodUid};
use pintle_api_types::pod;

/// Longest wait until all pods of the node are known, because ranking might choose the wrong pod
/// before.
const EARLY_MAX: Duration = Duration::from_secs(30);

impl Pods {
    /// Carries out the evictor's due steps after each input.
    pub(super) fn evict_due(&mut self, now: Now) {
        if !self.settings.eviction.is_on() {
            return;
        }
        self.reclaim_due(now.mono);
        // The logs are removed with its containers: a disk that is observed before that still has
        // them, and another pod would be evicted for it.
        let is_cleared = |worker: &Worker| worker.cleaned() || !self.evictor.frees_a_disk();
        let is_gone =
            |worker: &Worker| worker.stage() == WorkerStage::Finished && is_cleared(worker);
        let gone = |uid: &PodUid| self.workers.get(uid).is_none_or(is_gone);
        let all_gone = self.evictor.victims().iter().all(gone);
        self.evictor.pass(all_gone, now.mono);
        let (workers, is_limiting) = (&self.workers, self.settings.eviction.local_storage);
        let limited = || {
            let all = workers.values().filter(|_| is_limiting);
            let limited = all.filter(|worker| {
                worker.may_be_evicted() && worker.pod().is_some_and(|pod| local::is_limited(pod))
            });
            limited.map(|worker| worker.uid().clone()).collect()
        };
        let all = || {
            let all = workers.values().filter(|worker| worker.may_be_evicted());
            all.map(|worker| worker.uid().clone()).collect()
        };
        if let Some((ticket, pods, disks)) = self.evictor.ask(limited, all, now.mono) {
            self.out.push(Command::Measure { ticket, pods, disks });
        }
    }

    /// When eviction has a step to take.
    pub(super) fn evict_wake(&self) -> Option<Mono> {
        self.settings.eviction.is_on().then(|| self.evictor.next_wake())
    }

    /// Takes an observation of the node's resources.
    pub(super) fn measured(&mut self, ticket: u64, observation: &Observation, now: Now) {
        let workers: Vec<_> = self.workers.values().filter(|w| w.may_be_evicted()).collect();
        let pods: Vec<_> = workers.iter().filter_map(|worker| worker.evictable()).collect();
        let early = !self.knows_all() && now.mono.since(Mono::default()) < EARLY_MAX;
        let scene = EvictionSnapshot {
            settings: &self.settings.eviction,
            observation,
            pods: &pods,
            is_early: early,
            now,
        };
        let before = self.evictor.pressure();
        let steps = self.evictor.observe(ticket, &scene);
        let pressure = self.evictor.pressure();
        if pressure != before {
            self.out.push(Command::Pressure(pressure));
            self.press();
        }
        for step in steps {
            self.evict_step(step, now);
        }
    }

    /// The result of a reclaim.
    pub(super) fn reclaimed(&mut self, ticket: u64, freed: &Freed, now: Now) {
        let freed = self.with_containers(ticket, freed);
        self.evictor.reclaimed(ticket, &freed, now.mono);
    }

    /// Adds the node's pressure to the checks of new pods.
    pub(super) fn press(&mut self) {
        let Pressure { memory, disk, pid } = self.evictor.pressure();
        let all = [(memory, "MemoryPressure"), (disk, "DiskPressure"), (pid, "PIDPressure")];
        let short = all.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned());
        let short: Vec<_> = short.collect();
        if self.settings.eviction.is_on() && self.settings.admission.pressures != short {
            Arc::make_mut(&mut self.settings.admission).pressures = short;
        }
    }

    /// The report for users; `uses` is the current usage of pods, if it was collected as well.
    pub fn pressure_report(&self, uses: Option<&Uses>, now: Now) -> EvictionReport {
        let workers = self.workers.values().filter(|worker| worker.may_be_evicted());
        let pods: Vec<_> = workers.filter_map(Worker::evictable).collect();
        report::report(&self.evictor, &self.settings.eviction, &pods, uses, now)
    }

    /// Why a pod was evicted, if it was and that was not long ago.
    pub fn eviction_of(&self, uid: &PodUid) -> Option<&Eviction> {
        self.evictor.evictions().find(|eviction| eviction.uid == *uid)
    }

    fn evict_step(&mut self, step: EvictionStep, now: Now) {
        match step {
            EvictionStep::Tell(starved) => {
                self.out.push(Command::NodeEvent(threshold_met(starved)))
            }
            EvictionStep::Reclaim { ticket, signal, containers, images } => {
                self.reclaim((ticket, signal), (containers, images), now);
            }
            EvictionStep::Age(signal, age) => {
                self.out.push(Command::Count(DecisionCount::EvictionAge(signal, age)));
            }
            EvictionStep::Evict(victim) => self.evict(victim, now),
            EvictionStep::Hurry(victims) => {
                for uid in victims {
                    self.with(&uid, now, |worker, _| worker.terminate(Some(1)));
                }
            }
        }
    }

    fn evict(&mut self, victim: Victim, now: Now) {
        let Victim { uid, signal, message, notes, grace_seconds } = victim;
        let verdict = PodVerdict {
            phase: status::FAILED.to_owned(),
            reason: REASON.to_owned(),
            message: message.clone(),
        };
        self.out.push(Command::Evicted { uid: uid.clone(), message, notes });
        self.out.push(Command::Count(DecisionCount::Evicted(signal)));
        self.with(&uid, now, |w, _| w.evict(verdict, Some(grace_seconds), now.mono));
    }
}

fn threshold_met(starved: Starved) -> NodeEvent {
    let message = format!("Attempting to reclaim {starved}");
    NodeEvent { warning: true, reason: "EvictionThresholdMet", message }
}

impl Worker {
    /// It still has to be stopped, it is not critical, and it has not been evicted before.
    // k8s: pkg/kubelet/kubelet_pods.go isPodInactive
    fn may_be_evicted(&self) -> bool {
        let spared = self.pod.as_ref().is_none_or(|pod| pod::is_critical(pod));
        let is_told = self.ending.verdict.as_ref().is_some_and(|verdict| verdict.reason == REASON);
        !spared && !is_told && self.needs_kill() && self.admitted().is_some()
    }

    fn evictable(&self) -> Option<Evictable<'_>> {
        Some(Evictable { uid: &self.uid, pod: self.pod.as_deref()? })
    }
}
