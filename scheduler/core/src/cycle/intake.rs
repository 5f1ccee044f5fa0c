//! Watch events: they change the cache, queue pods and requeue the pods that they may help.
//!
//! A pod's properties are read before and after a change, and only while a pod may need the event.
// k8s: pkg/scheduler/eventhandlers.go

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;
use pintle_sched_core::hint::{Changes, HintEvent, PodFacts};
use pintle_sched_core::intern::Str;
use pintle_sched_core::snapshot::objects::PodSpec;

use super::volumes::About;
use super::{Assumed, QueuedPod, Scheduler, Uid};
use crate::cache::{CacheDelta, Nominee};
use crate::groups::OfGroup;
use crate::plugins::dynamicresources::look::has_claims;
use crate::pod_fields::node_name;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

impl Scheduler {
    /// Applies a watch event. Returns upstream's label of the event, for pods and nodes.
    pub fn handle(&mut self, watch_event: WatchEvent, now: Duration) -> Option<&'static str> {
        self.apply(watch_event, now, |scheduler, watch_event| {
            scheduler.apply_event(watch_event, now)
        })
    }

    fn apply_event(&mut self, watch_event: WatchEvent, now: Duration) -> Option<&'static str> {
        let key = match &watch_event {
            WatchEvent::Listed(thing) | WatchEvent::Set(thing) | WatchEvent::Gone(thing)
                if thing.kind() == WatchedKind::Pod =>
            {
                Some(thing.key())
            }
            WatchEvent::Lost(WatchedKind::Pod, key) => Some(key.clone()),
            _ => None,
        };
        if let WatchEvent::Listed(WatchedObject::Pod(pod))
        | WatchEvent::Set(WatchedObject::Pod(pod)) = &watch_event
            && let Some(key) = &key
        {
            self.forget_namesake(key, pod, now);
        }
        let is_list_of_pods = matches!(watch_event, WatchEvent::Complete(WatchedKind::Pod));
        let about = About::of(&watch_event);
        let mut event = key.as_ref().and_then(|key| self.event_of_pod(&watch_event, key));
        let mut looks = false;
        for step in self.cache.list(watch_event) {
            if let CacheDelta::Node { old, new } = &step
                && old != new
            {
                looks = true;
                event = HintEvent::of_node(old.clone(), new.clone()).map(|event| event.label());
            }
            self.make(&step, now);
        }
        crate::fault::pass("event");
        let happened = self.cache.take_happened();
        happened.iter().for_each(|event| self.requeue_after(event, now));
        if looks || !happened.is_empty() {
            self.look_at_volumes(&about, now);
            if !about.is_of_volumes() {
                self.look_at_devices(now);
            }
        }
        if let Some(key) = key {
            self.queue_pod(&key, now);
        } else if is_list_of_pods {
            self.names.keys().cloned().collect::<Vec<_>>().iter().for_each(|key| {
                self.queue_pod(key, now);
            });
        }
        event
    }

    /// Returns upstream's label of a pod's event, before it is applied; `None` for a pending pod of
    /// another scheduler.
    // k8s: pkg/scheduler/framework/events.go, eventhandlers.go responsibleForPod
    fn event_of_pod(&self, watch_event: &WatchEvent, key: &ObjectKey) -> Option<&'static str> {
        let (waits, has_node) = (self.cache.waiting(key), self.cache.node_of(key).is_some());
        let is_ours = |pod: &Pod| self.cache.profile_number(pod).is_some();
        match watch_event {
            WatchEvent::Listed(WatchedObject::Pod(pod))
            | WatchEvent::Set(WatchedObject::Pod(pod)) => {
                match (node_name(pod).is_some(), waits.is_some(), has_node) {
                    (true, _, true) => Some("AssignedPodUpdate"),
                    (true, _, false) => Some("AssignedPodAdd"),
                    (false, ..) if !is_ours(pod) => None,
                    (false, true, _) => Some("UnschedulablePodUpdate"),
                    (false, false, _) => Some("UnschedulablePodAdd"),
                }
            }
            _ if has_node => Some("AssignedPodDelete"),
            _ => waits.filter(|pod| is_ours(&pod.whole())).map(|_| "UnschedulablePodDelete"),
        }
    }

    /// Removes an earlier pod of the same name if its deletion was not observed.
    fn forget_namesake(&mut self, key: &ObjectKey, pod: &Pod, now: Duration) {
        if let Some(uid) = self.names.get(key).cloned()
            && pod.metadata.uid.as_deref() != Some(&*uid)
        {
            self.pod_is_gone(key, &uid, now);
        }
    }

    /// Changes the cache and requeues the pods that the change may help.
    pub(super) fn make(&mut self, step: &CacheDelta, now: Duration) {
        let before = self.facts_before(step);
        let assumed = match step {
            CacheDelta::Bound(spec, _) | CacheDelta::Changed { new: spec, .. } => Some(spec.key),
            CacheDelta::Gone { pod, .. } => Some(*pod),
            CacheDelta::Nominated { .. } | CacheDelta::Node { .. } => None,
        };
        let assumed = assumed.and_then(|uid| {
            let uid = self.cache.cluster.text(uid);
            self.assumed.remove_entry(uid)
        });
        if let Some((uid, _)) = &assumed {
            self.waits_no_more(uid, now);
        }
        let assumed = assumed.map(|(_, assumed)| assumed);
        self.cache.make(step);
        if !self.is_listened_to() {
            return;
        }
        match (step, before) {
            (CacheDelta::Node { old, new }, _) => {
                let event = HintEvent::of_node(old.clone(), new.clone());
                event.iter().for_each(|event| self.requeue_after(event, now));
            }
            (CacheDelta::Bound(spec, _), _) => {
                let new = self.facts(spec);
                self.requeue_after(&HintEvent::PodAdded(new), now);
            }
            (CacheDelta::Changed { new, node, .. }, before) => {
                let moved = assumed.as_ref().map(|assumed| Rc::clone(&assumed.node));
                let moved = moved.filter(|from| from != node);
                let new = self.facts(new);
                self.pod_changed(before, new, assumed.is_some(), moved, now);
            }
            (
                CacheDelta::Gone { node, .. }
                | CacheDelta::Nominated { old: Some(Nominee { node, .. }), .. },
                Some(old),
            ) => self.requeue_after(&HintEvent::PodGone(old, Rc::clone(node)), now),
            _ => {}
        }
    }

    /// Emits the events of a pod on a node that changed or was confirmed as bound.
    fn pod_changed(
        &mut self,
        before: Option<Rc<PodFacts>>,
        new: Rc<PodFacts>,
        is_confirmed: bool,
        moved: Option<Rc<str>>,
        now: Duration,
    ) {
        match before {
            Some(old) if is_confirmed => {
                if let Some(from) = moved {
                    // Another scheduler bound the pod to another node.
                    self.requeue_after(&HintEvent::PodGone(old, from), now);
                } else if old != new {
                    // Changes of a pod that is being bound are first observed together with its
                    // node.
                    self.requeue_after(&HintEvent::PodChanged(old, Rc::clone(&new)), now);
                }
                self.requeue_after(&HintEvent::PodAdded(new), now);
            }
            // Most updates of pods on nodes change nothing that pending pods depend on.
            Some(old) if old == new => {}
            Some(old) => self.requeue_after(&HintEvent::PodChanged(old, new), now),
            None => self.requeue_after(&HintEvent::PodAdded(new), now),
        }
    }

    fn facts(&mut self, spec: &PodSpec) -> Rc<PodFacts> {
        Rc::new(self.cache.cluster.facts(spec))
    }

    /// Returns the properties of the pod that a step changes or removes, as they are before it.
    fn facts_before(&mut self, step: &CacheDelta) -> Option<Rc<PodFacts>> {
        if !self.is_listened_to() {
            return None;
        }
        match step {
            CacheDelta::Changed { new, .. } => self.cache.cluster.facts_of(new.key).map(Rc::new),
            CacheDelta::Gone { pod, .. } => {
                let used = self.cache.volumes.users.names(self.cache.cluster.text(*pod));
                let facts = self.cache.cluster.facts_of(*pod);
                facts.map(|facts| Rc::new(facts.with_volumes(used)))
            }
            CacheDelta::Nominated { old: Some(old), .. } => {
                let facts = self.cache.cluster.facts(&old.spec);
                Some(Rc::new(facts.kept_for(old.spec.priority)))
            }
            _ => None,
        }
    }

    /// Queues a pod without a node; removes it from the queue once it has a node or is deleted.
    pub(super) fn queue_pod(&mut self, key: &ObjectKey, now: Duration) {
        let Some(kept) = self.cache.waiting(key).cloned() else {
            if let Some(uid) = self.names.get(key).cloned() {
                match self.cache.node_of(key) {
                    Some(_) => self.pod_has_a_node(key, &uid),
                    None => self.pod_is_gone(key, &uid, now),
                }
            }
            return;
        };
        let uid: Uid = kept.uid().unwrap_or(key.as_str()).into();
        if self.queue.get(&uid).is_some_and(|known| Rc::ptr_eq(&known.pod.pod, &kept)) {
            return;
        }
        let pod = kept.whole();
        // k8s: pkg/scheduler/eventhandlers.go responsibleForPod
        let Some(profile) = self.cache.profile_number(&pod) else { return };
        if let Some(assumed) = self.assumed.get(&uid) {
            let was = assumed.queued.pod.whole().metadata.deletion_timestamp.is_some();
            // Only the deletion of an assumed pod matters.
            if pod.metadata.deletion_timestamp.is_some() && !was {
                self.assumed_is_deleted(&uid, now);
            }
            return;
        }
        let spec = Rc::clone(kept.spec());
        let changes = self.queue.get(&uid).map(|known| changes(&known.pod, &pod, &spec));
        let (own, key) = (spec.key, key.clone());
        let known = self.queue.get(&uid).map(|known| &known.pod);
        let preempts = Cell::new(known.is_some_and(|known| known.preempts.get()));
        let releases = Cell::new(known.is_some_and(|known| known.releases.get()));
        let condition_digest = Cell::new(known.and_then(|known| known.condition_digest.get()));
        let victims = RefCell::new(known.map_or_else(Vec::new, |k| k.victims.borrow().clone()));
        let plugins = self.plugins.of_profile(profile).cloned();
        let by_priority = -i64::from(spec.priority);
        let rank = plugins.as_ref().and_then(|plugins| plugins.rank(&pod)).unwrap_or(by_priority);
        let rejected_by = known.map(|known| known.rejected_by.clone()).unwrap_or_default();
        let is_gang = self.cache.profile(profile).gangs;
        let group = self.cache.groups.as_ref().and_then(|groups| groups.of(&pod, is_gang));
        let group_event = group.as_ref().map(OfGroup::pod_is_there);
        let claims = has_claims(&pod).then(|| Rc::clone(self.cache.devices.claims()));
        let queued = Rc::new(QueuedPod {
            pod: kept,
            key: key.clone(),
            spec,
            profile,
            is_gated: is_gated(&pod),
            rejected: RefCell::new(None),
            preempts,
            victims,
            releases,
            condition_digest,
            claims,
            consults: group.is_some() || self.may_consult(&pod),
            group,
            plugins,
            rejected_by,
            rank,
        });
        self.names.insert(key, uid.clone());
        match changes {
            None => {
                self.queue.add(&uid, queued, now);
                if let Some(event) = group_event {
                    self.requeue_after(&event, now);
                }
            }
            Some(changes) => self.update(&uid, queued, own, changes, now),
        }
    }

    fn assumed_is_deleted(&mut self, uid: &Uid, now: Duration) {
        if !self.reject_deleted(uid, now) {
            self.waits_no_more(uid, now);
            self.forget(uid, now);
        }
    }

    fn update(
        &mut self,
        uid: &Uid,
        queued: Rc<QueuedPod>,
        own: Str,
        changes: Changes,
        now: Duration,
    ) {
        if changes == Changes::default()
            && let Some(known) = self.queue.get(uid)
        {
            // Its rejectors and their reasons stay the same.
            queued.rejected.borrow_mut().clone_from(&known.pod.rejected.borrow());
        }
        let hints = super::Happens::new(&self.cache);
        self.queue.update(&hints, uid, queued, HintEvent::Own(own, changes), now);
    }

    fn pod_has_a_node(&mut self, key: &ObjectKey, uid: &Uid) {
        self.names.remove(key);
        self.queue.remove(uid);
    }

    fn pod_is_gone(&mut self, key: &ObjectKey, uid: &Uid, now: Duration) {
        self.reject_gone(uid, now);
        self.names.remove(key);
        self.queue.remove(uid);
        self.waits_no_more(uid, now);
        self.forget(uid, now);
    }

    /// Ends the attempt of a pod that waits for volumes, devices or Permit and was bound or
    /// deleted: no other code path ends it.
    fn waits_no_more(&mut self, uid: &Uid, now: Duration) {
        // Plugins' reservations of a binding under way end with the result of the binding.
        let waited = self.permits.contains_key(uid) | self.stop_waiting_for_devices(uid, now);
        if self.give_volumes_back(uid, now) || waited {
            self.unreserve(uid);
            self.queue.done(uid);
        }
    }

    /// Removes an assumed pod from its node and releases what was reserved for it.
    pub(super) fn forget(&mut self, uid: &Uid, now: Duration) -> Option<Rc<QueuedPod>> {
        let Some(Assumed { queued, node, .. }) = self.assumed.remove(uid) else {
            self.forget_devices(uid, now);
            return None;
        };
        self.give_volumes_back(uid, now);
        self.forget_devices(uid, now);
        self.unreserve(uid);
        if let Some(group) = &queued.group {
            group.forget(uid);
        }
        let pod = queued.spec.key;
        self.make(&CacheDelta::Gone { pod, last: None, node }, now);
        Some(queued)
    }
}

fn is_gated(pod: &Pod) -> bool {
    let gates = pod.spec.as_ref().and_then(|spec| spec.scheduling_gates.as_ref());
    gates.is_some_and(|gates| !gates.is_empty())
}

/// Compares a pending pod with its previous version, as far as plugins wait for it.
// k8s: pkg/scheduler/framework/events.go PodSchedulingPropertiesChange
fn changes(known: &QueuedPod, pod: &Pod, spec: &PodSpec) -> Changes {
    let was_told = known.pod.whole();
    let tolerations = |pod: &Pod| {
        pod.spec.as_ref().and_then(|s| s.tolerations.as_ref()).map_or(0, |all| all.len())
    };
    let made = |pod: &Pod| {
        let made = pod.status.as_ref().and_then(|status| status.resource_claim_statuses.clone());
        made.unwrap_or_default()
    };
    Changes {
        labels: was_told.metadata.labels != pod.metadata.labels,
        tolerations: tolerations(&was_told) != tolerations(pod),
        gates: known.is_gated && !is_gated(pod),
        requests: spec.requests.own().is_less_than(known.spec.requests.own()),
        claims: made(&was_told) != made(pod),
    }
}
