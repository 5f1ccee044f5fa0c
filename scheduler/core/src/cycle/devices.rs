//! Devices of a pod with a node: allocated, reserved and ready; then the pod is bound.
//!
//! ```text
//!   Chosen ─ReserveDevices─> Writing ─ReservationResult─> Waits (conditions) ─> Held ─> bound
//!      └───────────── given up: choices undone, ReleaseDevices ────────────────────┘
//! ```
//! Input: selected devices, written claims, watch events. Output: writes of claims, and the
//! binding. Owner: the scheduler. Bounds: pods with nodes; `bindingTimeout` of
//! `DynamicResourcesArgs` until devices are ready.
// k8s: pkg/scheduler/framework/plugins/dynamicresources/dynamicresources.go Reserve, PreBind, Unreserve

use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::NodeAllocatableResourceClaimStatus;
use k8s_openapi::api::resource::v1::ResourceClaim;
use pintle_api_types::object::key_of;
use pintle_sched_core::Plugin;
use pintle_sched_core::hint::HintEvent;
use pintle_sched_core::requests::node_claims;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::command::{Command, Fact};
use super::decide::{PodRejection, pod_ref};
use super::permit::PREEMPTED;
use super::{QueuedPod, Scheduler, Uid};
use crate::groups::OfGroup;
use crate::plugins::dynamicresources::allocatable::on_node;
use crate::plugins::dynamicresources::extended::is_of_resources;
use crate::plugins::dynamicresources::groups::reserved;
use crate::plugins::dynamicresources::known::{Devices, allocation, uid as uid_of};
use crate::plugins::dynamicresources::look::is_reserved;
use crate::plugins::dynamicresources::ready::{self, Readiness};
use crate::plugins::dynamicresources::row::Reserve;
use crate::pod_fields::PodRef;

/// The result of a reservation.
#[derive(Clone, Debug, PartialEq)]
pub struct ReservationResult {
    /// The pod of the reservation.
    pub pod: PodRef,
    /// The number of the reservation.
    pub number: u64,
    /// The claims as written, in the order of the command; none after one that failed.
    pub claims: Vec<ResourceClaim>,
    /// The error of the claim that failed.
    pub error: Option<String>,
    /// A claim for extended resources was created (true), or its creation failed (false).
    pub made: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceStage {
    Chosen,
    Writing,
    /// Binding conditions are pending, since and until these times.
    Waits {
        since: Duration,
        until: Duration,
    },
    Held,
}

/// Devices were freed.
const FREED: HintEvent = HintEvent::Other(&[Plugin::DynamicResources], "AssignedPodDelete");

/// The devices of a pod that has a node.
#[derive(Debug)]
pub(super) struct Reserving {
    pod: PodRef,
    number: u64,
    stage: DeviceStage,
    all: Vec<Reserve>,
    /// Allocations that the cache holds for it: uids of claims and numbers of the allocations.
    given: Vec<(String, u64)>,
    /// The name of its group, if claims may be reserved for groups.
    group: Option<String>,
    /// The end of the wait, if earlier than its timeout, and the claim that was allocated earlier.
    late: Option<(Duration, String)>,
    /// The node-allocatable resources of its devices, for the pod's status. `is_said`: the status
    /// may have some already.
    statuses: Vec<NodeAllocatableResourceClaimStatus>,
    is_said: bool,
}

/// Upstream's interval between two checks whether devices are ready.
const LOOKS_EVERY: Duration = Duration::from_secs(5);

impl Reserving {
    /// Returns true if a device has binding conditions.
    fn has_conditions(&self) -> bool {
        self.all.iter().any(|reserve| ready::has_conditions(&reserve.claim))
    }

    /// Returns when the first pending claim reaches its timeout, at one of upstream's checks before
    /// the whole wait is over.
    // k8s: dynamicresources.go isPodReadyForBinding, isClaimTimeout
    fn will_be_late(
        &self,
        since: Duration,
        until: Duration,
        clock: SystemTime,
        now: Duration,
    ) -> Option<(Duration, String)> {
        let mut claims = self.all.iter().map(|reserve| &reserve.claim);
        let claim = claims.find(|claim| ready::readiness(claim) == Readiness::Waits)?;
        let name = claim.metadata.name.clone().unwrap_or_default();
        if let Some(known) = self.late.as_ref().filter(|(_, of)| *of == name) {
            return Some(known.clone());
        }
        let (most, passed) = (until.saturating_sub(since), now.saturating_sub(since));
        let looks = |time: Duration| time.as_nanos() / LOOKS_EVERY.as_nanos();
        let look = match ready::time_left(claim, most, clock)? {
            Some(left) => looks(passed.saturating_add(left)) + 1,
            None => passed.as_nanos().div_ceil(LOOKS_EVERY.as_nanos()),
        };
        let after = LOOKS_EVERY.saturating_mul(u32::try_from(look).unwrap_or(u32::MAX));
        let at = since.saturating_add(after);
        (at < until).then_some((at, name))
    }

    /// Returns the readiness of all devices, from the latest known claims.
    // k8s: dynamicresources.go isPodReadyForBinding
    fn look(&mut self, known: &Devices) -> Readiness {
        // Without binding conditions a deleted claim does not matter.
        let asks = self.has_conditions();
        let mut found = Readiness::Ready;
        for reserve in &mut self.all {
            let key = key_of(&*reserve.claim);
            let newest = known.claim(&key);
            let is_gone = newest.is_none() && asks;
            let newest = newest.filter(|claim| uid_of(claim) == uid_of(&reserve.claim));
            reserve.claim = newest.unwrap_or_else(|| Rc::clone(&reserve.claim));
            if found == Readiness::Ready && is_gone {
                let name = key.as_str();
                found = Readiness::Gone(format!("could not find ResourceClaim {name:?}"));
            } else if found == Readiness::Ready && known.is_bare(&reserve.claim) {
                // Upstream waits until the timeout.
                let name = reserve.claim.metadata.name.as_deref().unwrap_or_default();
                found = Readiness::Gone(format!("the devices of claim {name} were given back"));
            } else if found == Readiness::Ready {
                found = ready::readiness(&reserve.claim);
            }
        }
        found
    }
}

/// The devices of all pods.
#[derive(Debug, Default)]
pub(super) struct All {
    of_pods: HashMap<Uid, Reserving>,
    /// Reservations that were given up while they were being written, by number.
    leaving: HashMap<u64, Reserving>,
    last: u64,
}

impl All {
    /// Returns true if the pod waits for its devices.
    pub(super) fn waits(&self, uid: &Uid) -> bool {
        self.of_pods.get(uid).is_some_and(|one| one.stage != DeviceStage::Held)
    }

    /// Returns the claims of a reservation.
    fn all_of(&mut self, uid: &Uid, number: u64) -> Option<&mut Vec<Reserve>> {
        let one = self.of_pods.get_mut(uid).filter(|one| one.number == number);
        one.or_else(|| self.leaving.get_mut(&number)).map(|one| &mut one.all)
    }

    /// Drops the reservation of a pod that was bound; its claims remain reserved for it.
    pub(super) fn forget_bound(&mut self, uid: &Uid) {
        self.of_pods.remove(uid);
    }
}

impl Scheduler {
    /// Assumes the allocations of a pod's claims on a node.
    // k8s: dynamicresources.go Reserve
    pub(super) fn choose_devices(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        node: &str,
    ) -> Result<(), PodRejection> {
        let profile = Rc::new(self.cache.profile(queued.profile).clone());
        self.cache.cluster.use_profile(&profile);
        let claims = self.cache.device_claims(&queued.pod.whole(), &queued.spec, &profile);
        let claims = claims.map_err(|why| PodRejection::error(why.reason))?;
        let Some(claims) = claims else { return Ok(()) };
        let row = self.cache.cluster.row(node);
        let row = row.ok_or_else(|| PodRejection::error("the node is gone".to_owned()))?;
        let given = claims.among(&self.cache.devices).at(row);
        let given = given.map_err(|status| PodRejection::error(status.reasons.join(", ")))?;
        let statuses = given.share.as_ref().map(|share| share.statuses.clone()).unwrap_or_default();
        let all = claims.reserves(given);
        if all.is_empty() {
            return Ok(());
        }
        // Devices found by an unfinished search are no allocation.
        self.within_budget().map_err(|why| PodRejection::error(why.message))?;
        let devices = &mut self.cache.devices;
        let give = |Reserve { claim, allocation, .. }: &Reserve| {
            let number = devices.give(claim, allocation.clone()?);
            Some((uid_of(claim).to_owned(), number))
        };
        let given = all.iter().filter_map(give).collect();
        crate::fault::pass("devices");
        self.devices.last += 1;
        let (pod, number) = (pod_ref(queued, uid), self.devices.last);
        let group = queued.group.as_ref().filter(|group| group.has_claims());
        let group = group.map(|group| group.key.name().to_owned());
        let (stage, late) = (DeviceStage::Chosen, None);
        let is_said = !node_claims(&queued.pod.whole()).is_empty();
        let reserving =
            Reserving { pod, number, stage, all, given, group, late, statuses, is_said };
        self.devices.of_pods.insert(uid.clone(), reserving);
        Ok(())
    }

    /// Assumes the node-allocatable resources of the pod's devices on its node; returns the pod's
    /// spec with them.
    // k8s: pkg/scheduler/schedule_one.go assume
    pub(super) fn count_devices(
        &mut self,
        uid: &Uid,
        queued: &QueuedPod,
        node: &str,
    ) -> Rc<PodSpec> {
        if !self.cache.devices.takes_of_nodes() {
            return Rc::clone(&queued.spec);
        }
        let statuses = self.devices.of_pods.get(uid).map_or(&[][..], |one| &one.statuses);
        if statuses.is_empty() && !queued.spec.requests.has_devices() {
            return Rc::clone(&queued.spec);
        }
        self.cache.devices.users.put(uid, queued.key.namespace(), statuses, node);
        on_node(&queued.pod.whole(), &queued.spec, statuses)
    }

    /// Starts the writes of a reservation; returns true if the binding has to wait for them.
    pub(super) fn begin_devices(&mut self, uid: &Uid) -> bool {
        let Some(one) = self.devices.of_pods.get_mut(uid) else { return false };
        one.stage = DeviceStage::Writing;
        let group = one.group.as_deref();
        let is_new = |reserve: &&Reserve| !is_reserved(&reserve.claim, uid, group);
        let claims = one.all.iter().filter(is_new).cloned().collect();
        let (pod, number, statuses) = (one.pod.clone(), one.number, one.statuses.clone());
        one.is_said |= !statuses.is_empty();
        self.commands.push(Command::ReserveDevices { pod, number, claims, statuses });
        true
    }

    /// Handles the result of a reservation.
    pub fn devices_reserved(&mut self, reserved: ReservationResult, now: Duration) {
        self.netted(now, |scheduler| scheduler.take_reserved(reserved, now));
    }

    fn take_reserved(&mut self, reserved: ReservationResult, now: Duration) {
        let uid = &reserved.pod.uid;
        let made = reserved.claims.iter().find(|claim| is_of_resources(claim));
        let wanted = self
            .devices
            .all_of(uid, reserved.number)
            .and_then(|all| all.iter_mut().find(|r| is_unmade(&r.claim)));
        if let (Some(made), Some(wanted)) = (made, wanted) {
            let before = std::mem::replace(&mut wanted.claim, Rc::new(made.clone()));
            let _ = self.cache.devices.set_claim(made.clone());
            self.cache.devices.drop_pending(uid_of(&before));
        }
        for claim in &reserved.claims {
            self.apply_written(claim, now);
        }
        let is_it = |one: &&mut Reserving| one.number == reserved.number;
        let Some(one) = self.devices.of_pods.get_mut(uid).filter(is_it) else {
            return self.handle_given_up(reserved, now);
        };
        take_newer(&mut one.all, reserved.claims);
        if let Some(error) = reserved.error {
            // Unwritten allocations count until the pod is given up, which is now.
            one.stage = DeviceStage::Held;
            return self.devices_failed(uid, error, now);
        }
        let profile = self.assumed.get(uid).map_or(0, |assumed| assumed.queued.profile);
        let until = now.saturating_add(self.cache.profile(profile).timeouts.device_binding);
        one.stage = DeviceStage::Waits { since: now, until };
        if one.has_conditions()
            && let Some(assumed) = self.assumed.get(uid)
        {
            let (queued, node) = (Rc::clone(&assumed.queued), &assumed.node);
            let note = format!("waiting for binding conditions for device on node {node}");
            self.note(&queued, false, "BindingConditionsPending", "Scheduling", note);
        }
        self.look_at_devices(now);
    }

    /// Applies a written claim.
    fn apply_written(&mut self, claim: &ResourceClaim, now: Duration) {
        let event = self.cache.devices.set_written(claim.clone());
        if allocation(claim).is_some() {
            self.cache.devices.drop_pending(uid_of(claim));
        }
        event.iter().for_each(|event| self.requeue_after(event, now));
    }

    /// Handles the result of a reservation that was given up meanwhile.
    fn handle_given_up(&mut self, reserved: ReservationResult, now: Duration) {
        if let Some(mut one) = self.devices.leaving.remove(&reserved.number) {
            take_newer(&mut one.all, reserved.claims);
            if !self.let_go(one, now) {
                self.take_released(&reserved.pod.uid, Vec::new(), now);
            }
        }
    }

    /// Applies claims that a pod or a group has released. The pod, or the group's pods, may be
    /// decided again.
    pub fn devices_released(&mut self, uid: &Uid, claims: Vec<ResourceClaim>, now: Duration) {
        self.netted(now, |scheduler| scheduler.take_released(uid, claims, now));
    }

    fn take_released(&mut self, uid: &Uid, claims: Vec<ResourceClaim>, now: Duration) {
        let told = claims.into_iter().filter_map(|claim| self.cache.devices.set_written(claim));
        told.collect::<Vec<_>>().iter().for_each(|event| self.requeue_after(event, now));
        let of_group = self.cache.groups.as_ref().and_then(|groups| groups.end_release(uid));
        of_group.iter().flatten().for_each(|pod| self.queue.release(pod, false, now));
        if let Some(waiting) = self.queue.get(uid) {
            waiting.pod.releases.set(false);
            self.queue.release(uid, false, now);
        }
    }

    /// Holds a pod until the release of its claims is written.
    fn hold(&self, uid: &Uid) {
        if let Some(waiting) = self.queue.get(uid) {
            waiting.pod.releases.set(true);
        }
    }

    /// Binds pods with ready devices. Pods with devices that failed or timed out are rejected and
    /// retried.
    // k8s: dynamicresources.go isPodReadyForBinding
    pub(super) fn look_at_devices(&mut self, now: Duration) {
        let waits = self.devices.of_pods.iter().filter_map(|(uid, one)| match one.stage {
            DeviceStage::Waits { since, until } => Some((uid.clone(), since, until)),
            _ => None,
        });
        for (uid, since, until) in waits.collect::<Vec<_>>() {
            let Some(one) = self.devices.of_pods.get_mut(&uid) else { continue };
            let found = one.look(&self.cache.devices);
            if found == Readiness::Waits {
                one.late = one.will_be_late(since, until, self.cache.devices.now(), now);
                if now < one.late.as_ref().map_or(until, |(at, _)| *at) {
                    continue;
                }
            }
            let status = match found {
                Readiness::Ready => "success",
                Readiness::Waits => "timeout",
                Readiness::Failed(_) => "failure",
                Readiness::Gone(_) => "error",
            };
            if one.has_conditions() {
                let one = &self.devices.of_pods[&uid];
                let fact = self.prepared(&uid, one, status, now.saturating_sub(since));
                self.facts.push(fact);
            }
            match found {
                Readiness::Ready => {
                    if let Some(one) = self.devices.of_pods.get_mut(&uid) {
                        one.stage = DeviceStage::Held;
                    }
                    self.bind_if_ready(&uid);
                }
                Readiness::Failed(error) | Readiness::Gone(error) => {
                    self.devices_failed(&uid, error, now);
                }
                Readiness::Waits => {
                    let late = self.devices.of_pods.get(&uid).and_then(|one| one.late.as_ref());
                    let why = match late {
                        Some((_, claim)) => format!("claim={claim}"),
                        None => "context deadline exceeded".to_owned(),
                    };
                    self.devices_failed(&uid, format!("device binding timeout: {why}"), now);
                }
            }
        }
    }

    /// Takes the node from a victim that waits for its devices; returns true if it waited.
    // k8s: dynamicresources.go PreBind
    pub(super) fn preempt_devices(&mut self, uid: &str, now: Duration) -> bool {
        let Some((uid, _)) = self.devices.of_pods.get_key_value(uid) else { return false };
        let uid = uid.clone();
        if !self.devices.waits(&uid) {
            return false;
        }
        if let Some((DeviceStage::Waits { since, .. }, one)) =
            self.devices.of_pods.get(&uid).map(|one| (one.stage, one))
            && one.has_conditions()
        {
            let fact = self.prepared(&uid, one, "error", now.saturating_sub(since));
            self.facts.push(fact);
        }
        self.devices_failed(&uid, PREEMPTED.to_owned(), now);
        true
    }

    /// Returns the metric sample of a wait for devices.
    fn prepared(&self, uid: &Uid, one: &Reserving, status: &'static str, took: Duration) -> Fact {
        let profile = self.assumed.get(uid).map_or(0, |assumed| assumed.queued.profile);
        let devices = one.all.iter().flat_map(|reserve| ready::drivers(&reserve.claim)).collect();
        Fact::Prepared { profile, status, took, devices }
    }

    fn devices_failed(&mut self, uid: &Uid, error: String, now: Duration) {
        let Some(one) = self.devices.of_pods.get(uid) else { return };
        let pod = one.pod.clone();
        self.failed(&pod, format!("running PreBind plugin \"DynamicResources\": {error}"), now);
    }

    /// Returns when the next wait for devices times out.
    pub(super) fn devices_due(&self) -> Option<Duration> {
        let until = |one: &Reserving| match one.stage {
            DeviceStage::Waits { until, .. } => {
                Some(one.late.as_ref().map_or(until, |(at, _)| *at))
            }
            _ => None,
        };
        self.devices.of_pods.values().filter_map(until).min()
    }

    /// Ends the wait of a pod that was bound or deleted; returns true if it waited.
    pub(super) fn stop_waiting_for_devices(&mut self, uid: &Uid, now: Duration) -> bool {
        let waits = self.devices.waits(uid);
        if waits {
            self.forget_devices(uid, now);
        }
        waits
    }

    /// Drops the assumed allocations of a pod. Allocations that are being written count until the
    /// result, so that no other pod gets their devices meanwhile.
    // k8s: dynamicresources.go Unreserve
    pub(super) fn forget_devices(&mut self, uid: &Uid, now: Duration) {
        let Some(one) = self.devices.of_pods.remove(uid) else { return };
        match one.stage {
            DeviceStage::Writing => {
                self.hold(uid);
                self.devices.leaving.insert(one.number, one);
            }
            _ => _ = self.let_go(one, now),
        }
    }

    /// Drops the assumed allocations of a pod whose devices are about to be selected again. Written
    /// claims remain.
    pub(super) fn unchoose_devices(&mut self, uid: &Uid) -> Option<Reserving> {
        let one = self.devices.of_pods.remove(uid)?;
        self.take_back_choices(&one);
        Some(one)
    }

    fn take_back_choices(&mut self, one: &Reserving) {
        for (claim, number) in &one.given {
            self.cache.devices.take_back(claim, *number);
        }
    }

    /// Drops a reservation; returns true if claims have to be written.
    fn let_go(&mut self, one: Reserving, now: Duration) -> bool {
        self.take_back_choices(&one);
        self.release_devices(one, now)
    }

    /// Releases the written claims of a pod; returns true if any have to be written.
    pub(super) fn release_devices(&mut self, one: Reserving, now: Duration) -> bool {
        let mut writes = false;
        // A pod on a node needs its claims, even if another scheduler has bound it.
        if self.cache.node_of(&one.pod.key).is_none() {
            let uid = &one.pod.uid;
            let all = one.all.into_iter().map(|reserve| reserve.claim);
            let is_to_go = |claim: &Rc<ResourceClaim>| match is_of_resources(claim) {
                true => !is_unmade(claim),
                false => is_reserved(claim, uid, None),
            };
            let claims: Vec<_> = all.filter(is_to_go).collect();
            // k8s: nodeallocatabledynamicresources.go clearNodeAllocatableResourceClaimStatus
            let clears = one.is_said && !one.statuses.is_empty();
            if !claims.is_empty() || clears {
                writes = true;
                self.hold(uid);
                self.commands.push(Command::ReleaseDevices { pod: one.pod, claims, clears });
            }
        }
        self.requeue_after(&FREED, now);
        writes
    }

    /// Returns a claim that is reserved for the group of an unschedulable pod, if the group has
    /// pods on nodes only in the current dry run.
    // k8s: dynamicresources.go unreservePodGroupClaims
    pub(super) fn claim_of_group(&self, queued: &QueuedPod) -> Option<Rc<ResourceClaim>> {
        let group = queued.group.as_ref().filter(|group| group.has_claims())?;
        let known = self.cache.groups.as_ref()?.with_claims(&queued.pod.whole())?.ok()?;
        let cycle = self.group.as_ref()?;
        let for_now = |uid: &Uid| cycle.tried.iter().any(|tried| tried.uid == *uid);
        if group.placed().iter().any(|(_, uid)| !for_now(uid)) {
            return None;
        }
        let all = reserved(&known, self.cache.devices.claims());
        let is_new = |claim: &Rc<ResourceClaim>| {
            !cycle.unreserved.iter().any(|given_up| uid_of(given_up) == uid_of(claim))
        };
        all.into_iter().find(is_new)
    }

    /// Releases claims of a group without pods on nodes, so that it can get other devices. Its pods
    /// are held until the release is written: until then the cache shows the claims as reserved for
    /// the group, so a pod would be bound without reserving them.
    pub(super) fn unreserve_of_group(&mut self, group: &OfGroup, claims: Vec<Rc<ResourceClaim>>) {
        let Ok(of) = group.preemptor() else { return };
        if !claims.is_empty() {
            let pod = PodRef { key: of.key, uid: of.uid };
            self.cache.groups.iter().for_each(|groups| groups.releases(&pod.key, &pod.uid));
            self.commands.push(Command::ReleaseDevices { pod, claims, clears: false });
        }
    }

    /// Deallocates a claim that keeps a pod off other nodes, so that it can get other devices. The
    /// pod is held until the release is written: until then the cache shows the claim as reserved
    /// for the pod, so it would be bound without reserving it.
    // k8s: dynamicresources.go PostFilter
    pub(super) fn give_back(&mut self, uid: &Uid, queued: &QueuedPod, claim: &Rc<ResourceClaim>) {
        // An earlier release is under way; the pod is decided again after it.
        if self.queue.get(uid).is_some_and(|waiting| waiting.pod.releases.get()) {
            return;
        }
        self.hold(uid);
        let (pod, claim) = (pod_ref(queued, uid), Rc::clone(claim));
        self.commands.push(Command::GiveDevicesBack { pod, claim });
    }

    /// Handles the result of a deallocation. If it failed, the pod is retried.
    pub fn gave_back(&mut self, uid: &Uid, did: bool, claims: Vec<ResourceClaim>, now: Duration) {
        self.netted(now, |scheduler| {
            scheduler.take_released(uid, claims, now);
            if !did {
                scheduler.queue.activate_after_backoff(uid, now);
            }
        });
    }
}

/// Returns true if the claim has to be created first.
fn is_unmade(claim: &ResourceClaim) -> bool {
    claim.metadata.name.is_none()
}

/// Replaces claims by their newer versions.
fn take_newer(all: &mut [Reserve], claims: Vec<ResourceClaim>) {
    for claim in claims {
        if let Some(one) = all.iter_mut().find(|one| uid_of(&one.claim) == uid_of(&claim)) {
            one.claim = Rc::new(claim);
        }
    }
}
