//! Manages the pods of a StatefulSet: creates, repairs, scales down and rolls out, in the order
//! of ordinals or in parallel.
//!
//! Input: the set, its pods, templates and claims. Output: requests, and the status afterwards,
//! also after a failure. In ordered mode at most one pod is acted upon, and only while all before
//! it are available. In parallel mode pods are created 1, 2, 4 and so on at once until one of them
//! fails.
// k8s: pkg/controller/statefulset/stateful_set_control.go updateStatefulSet

use std::rc::Rc;

use jiff::Timestamp;
use pintle_controllers_core::common::lockstep::{aggregate, attempt, run_side_by_side};
use pintle_controllers_core::frame::{BATCH_MAX, SyncError, Transcript, TranscriptStop};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::{Pod, StatefulSet, StatefulSetStatus};

use super::claims::ClaimUser;
use super::identity::{self, Templates, revision_of};
use super::pods::PodControl;
use super::rollout;
use super::status::{count, is_available, is_running_and_ready, is_unavailable};

/// A pod that the set should have.
#[derive(Clone, Debug)]
pub(super) enum Replica {
    /// It exists.
    Live(Rc<KeptObject<Pod>>),
    /// It has to be created, with this ordinal.
    Missing(i64),
}

impl Replica {
    /// The pod, if it was created.
    // k8s: stateful_set_utils.go isCreated
    pub(super) fn created(&self) -> Option<&Pod> {
        match self {
            Self::Live(pod) if !pod.status.phase.is_empty() => Some(pod),
            Self::Live(_) | Self::Missing(_) => None,
        }
    }
}

/// Acts on the pods of a set.
#[derive(Debug)]
pub(super) struct Update<'a> {
    /// Creates, updates and deletes pods.
    pub(super) control: PodControl<'a>,
    /// The pod templates.
    pub(super) templates: Templates,
    /// The gate `MaxUnavailableStatefulSet` is on.
    pub(super) has_max_unavailable: bool,
    /// When the sync began.
    pub(super) now: Timestamp,
}

/// The pods of a set, sorted into those that it should have and others.
#[derive(Debug)]
pub(super) struct SortedPods {
    /// By ordinal, with no gaps.
    pub(super) replicas: Vec<Replica>,
    /// Beyond the ordinals of the set, the highest first.
    pub(super) condemned: Vec<Rc<KeptObject<Pod>>>,
}

/// Goes on with the next pod, or ends the sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    Next,
    End,
}

impl SortedPods {
    /// Sorts the pods of a set. Pods without an ordinal are in neither list.
    pub(super) fn of(set: &StatefulSet, pods: &[Rc<KeptObject<Pod>>]) -> Self {
        let ordinals = identity::ordinals(set);
        let first = ordinals.start;
        let mut replicas: Vec<_> = ordinals.map(Replica::Missing).collect();
        let mut condemned = Vec::new();
        for pod in pods {
            let Some(ordinal) = identity::ordinal(&pod.metadata.name) else { continue };
            let place = usize::try_from(ordinal - first).ok();
            match place.and_then(|place| replicas.get_mut(place)) {
                Some(replica) => *replica = Replica::Live(Rc::clone(pod)),
                None => condemned.push(Rc::clone(pod)),
            }
        }
        condemned.sort_by_key(|pod| std::cmp::Reverse(identity::ordinal(&pod.metadata.name)));
        Self { replicas, condemned }
    }

    /// The name of the first pod that is not available: of the replicas, else of the others from
    /// the lowest ordinal on.
    fn first_unavailable(&self, set: &StatefulSet, now: Timestamp) -> Option<String> {
        let is_bad = |pod: &Pod| is_unavailable(set, pod, now);
        let replica = self.replicas.iter().find_map(|replica| match replica {
            Replica::Missing(ordinal) => Some(identity::pod_name(set, *ordinal)),
            Replica::Live(pod) => is_bad(pod).then(|| pod.metadata.name.to_string()),
        });
        replica.or_else(|| {
            let mut condemned = self.condemned.iter().rev();
            condemned.find(|pod| is_bad(pod)).map(|pod| pod.metadata.name.to_string())
        })
    }

    fn live(&self) -> impl Iterator<Item = &Pod> {
        let replicas = self.replicas.iter().filter_map(|replica| match replica {
            Replica::Live(pod) => Some(&***pod),
            Replica::Missing(_) => None,
        });
        replicas.chain(self.condemned.iter().map(|pod| &***pod))
    }
}

impl Update<'_> {
    /// Acts; completes the status. Returns why something failed.
    ///
    /// # Errors
    /// [`TranscriptStop::Pending`] only.
    pub(super) fn run(
        &self,
        pods: &[Rc<KeptObject<Pod>>],
        status: &mut StatefulSetStatus,
        transcript: &mut Transcript,
    ) -> Result<Option<SyncError>, TranscriptStop> {
        let set = self.control.set;
        count(status, set, pods.iter().map(|pod| &***pod), self.now);
        if set.metadata.is_deleting() {
            transcript.because("the set is being deleted: only its status is kept current");
            return Ok(None);
        }
        let sorted = SortedPods::of(set, pods);
        let acted = self.act(&sorted, transcript);
        count(status, set, sorted.live(), self.now);
        match attempt(acted)? {
            Err(error) => Ok(Some(error)),
            Ok(Flow::End) => Ok(None),
            Ok(Flow::Next) => rollout::run(self, &sorted.replicas, status, transcript),
        }
    }

    fn is_ordered(&self) -> bool {
        &*self.control.set.spec.pod_management_policy != "Parallel"
    }

    fn act(&self, pods: &SortedPods, transcript: &mut Transcript) -> Result<Flow, TranscriptStop> {
        let replica =
            |at: usize, transcript: &mut Transcript| self.replica(&pods.replicas[at], transcript);
        if self.for_each(pods.replicas.len(), replica, transcript)? == Flow::End {
            return Ok(Flow::End);
        }
        let claims = |at: usize, transcript: &mut Transcript| {
            let pod = &pods.condemned[at];
            if let Some(ordinal) = identity::ordinal(&pod.metadata.name) {
                self.control.apply_policy_if_needed(ClaimUser::of(pod), ordinal, transcript)?;
            }
            Ok(Flow::Next)
        };
        if self.for_each(pods.condemned.len(), claims, transcript)? == Flow::End {
            return Ok(Flow::End);
        }
        let unhealthy = pods.first_unavailable(self.control.set, self.now);
        let condemn = |at: usize, transcript: &mut Transcript| {
            self.condemned(&pods.condemned[at], unhealthy.as_deref(), transcript)
        };
        self.for_each(pods.condemned.len(), condemn, transcript)
    }

    // k8s: stateful_set_control.go runForAll
    fn for_each(
        &self,
        pods: usize,
        task: impl Fn(usize, &mut Transcript) -> Result<Flow, TranscriptStop>,
        transcript: &mut Transcript,
    ) -> Result<Flow, TranscriptStop> {
        if self.is_ordered() {
            for at in 0..pods {
                if task(at, transcript)? == Flow::End {
                    return Ok(Flow::End);
                }
            }
            return Ok(Flow::Next);
        }
        // k8s: stateful_set_control.go slowStartBatch
        let (mut from, mut size) = (0, 1);
        while from < pods {
            let batch = size.min(pods - from);
            let ends = run_side_by_side(batch, |at, lane| task(from + at, lane), transcript)?;
            let errors = ends.into_iter().filter_map(Result::err).collect();
            if let Some(error) = aggregate(errors) {
                return Err(TranscriptStop::Failed(error));
            }
            from += batch;
            size = (size * 2).min(BATCH_MAX);
        }
        Ok(Flow::Next)
    }

    // k8s: stateful_set_control.go processReplica
    fn replica(
        &self,
        replica: &Replica,
        transcript: &mut Transcript,
    ) -> Result<Flow, TranscriptStop> {
        let set = self.control.set;
        let Some(pod) = replica.created() else { return self.create(replica, transcript) };
        let name = &pod.metadata.name;
        if pod.is_terminal() {
            let phase = &pod.status.phase;
            transcript.because(format!("pod {name} is {phase}; it is deleted and created again"));
            if !pod.metadata.is_deleting() {
                self.control.delete(pod, transcript)?;
            }
            return Ok(Flow::End);
        }
        if &*pod.status.phase == "Pending" {
            self.control.complete_claims(pod, transcript)?;
        }
        if self.is_ordered()
            && let Some(reason) = self.obstacle(pod)
        {
            transcript.because(self.wait_reason(pod, reason));
            return Ok(Flow::End);
        }
        if !self.control.is_consistent(pod) {
            transcript.because(format!("pod {name} gets its identity, volumes and claims again"));
            self.control.update(pod, transcript)?;
        }
        debug_assert!(identity::is_in_range(set, name), "a replica has an ordinal of the set");
        Ok(Flow::Next)
    }

    fn create(
        &self,
        replica: &Replica,
        transcript: &mut Transcript,
    ) -> Result<Flow, TranscriptStop> {
        let set = self.control.set;
        let ordinal = match replica {
            Replica::Missing(ordinal) => *ordinal,
            Replica::Live(pod) => identity::ordinal(&pod.metadata.name).unwrap_or_default(),
        };
        let name = identity::pod_name(set, ordinal);
        let user = match replica {
            Replica::Missing(_) => ClaimUser { name: &name, uid: "" },
            Replica::Live(pod) => ClaimUser::of(pod),
        };
        if self.control.has_stale_claim(user, ordinal) {
            transcript.because(format!("pod {name} waits for a claim of its predecessor to go"));
            return Ok(Flow::End);
        }
        transcript.because(format!("pod {name} does not exist"));
        self.control.create(ordinal, self.templates.pod(set, ordinal), transcript)?;
        Ok(if self.is_ordered() { Flow::End } else { Flow::Next })
    }

    /// Why pods after this one have to wait.
    fn obstacle(&self, pod: &Pod) -> Option<&'static str> {
        if pod.metadata.is_deleting() {
            Some("is being deleted")
        } else if !is_running_and_ready(pod) {
            Some("is not running and ready")
        } else if !is_available(self.control.set, pod, self.now) {
            Some("is not ready for long enough")
        } else {
            None
        }
    }

    /// The reason for explain. A pod of an old revision that never gets ready has to be deleted by
    /// hand: the controller does not replace it before it is ready.
    fn wait_reason(&self, pod: &Pod, reason: &str) -> String {
        let (name, namespace) = (&pod.metadata.name, &pod.metadata.namespace);
        let is_stuck = !pod.metadata.is_deleting()
            && !is_running_and_ready(pod)
            && revision_of(pod) != self.templates.update.revision
            && revision_of(pod) != self.templates.current.revision;
        let remedy = match is_stuck {
            true => format!(
                "; it is of revision {}, which is not wanted any more: \
                 kubectl delete pod {name} -n {namespace}",
                revision_of(pod)
            ),
            false => String::new(),
        };
        format!("pod {name} {reason}{remedy}")
    }

    // k8s: stateful_set_control.go processCondemned
    fn condemned(
        &self,
        pod: &Pod,
        first_unavailable: Option<&str>,
        transcript: &mut Transcript,
    ) -> Result<Flow, TranscriptStop> {
        let name = &*pod.metadata.name;
        if pod.metadata.is_deleting() {
            if !self.is_ordered() {
                return Ok(Flow::Next);
            }
            transcript.because(format!("scaling down waits for pod {name} to be gone"));
            return Ok(Flow::End);
        }
        let is_healthy = is_running_and_ready(pod) && is_available(self.control.set, pod, self.now);
        if self.is_ordered() && !is_healthy && first_unavailable != Some(name) {
            let first = first_unavailable.unwrap_or_default();
            transcript.because(format!("scaling down waits for pod {first} to be available"));
            return Ok(Flow::End);
        }
        transcript.because(format!("pod {name} is beyond the ordinals of the set"));
        self.control.delete(pod, transcript)?;
        Ok(Flow::End)
    }
}
