//! Pod groups in a random world: gangs, a basic group and their pods are created and deleted.
//!
//! When a decision binds a pod of a gang, at least minCount of the gang's pods must have a node or
//! be assumed. The pods of the gang `IN_A_ZONE` must all be in one zone. At the end no pending
//! group may fit.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;
use pintle_api_types::key::ObjectKey;
use serde_json::{Value, json};

use super::super::{Command, Scheduler};
use super::{SchedulerWorld, thing};
use crate::cycle::tests::{at, decide};
use crate::groups::{GroupGates, Groups};
use crate::pod_fields::PodRef;
use crate::watch_event::{KINDS, WatchEvent, WatchedKind, WatchedObject};

/// minCount of each group; group 0 is basic and has none. Groups from `USUAL` on exist only with
/// preemption by groups.
const MIN: [i32; 6] = [1, 2, 3, 1, 2, 2];
const USUAL: usize = 3;
/// The number of the gang that stays within a zone.
const IN_A_ZONE: usize = 1;

/// Pods of groups that were delivered to the scheduler, by name: the uid, the group, and whether
/// the pod has a node.
pub(super) type KnownPods = BTreeMap<String, (String, String, bool)>;

pub(super) fn groups(preemption: bool) -> Groups {
    Groups::new(GroupGates { gangs: true, topology: true, preemption, claims: preemption })
}

fn group_of(pod: &Value) -> Option<&str> {
    pod["spec"]["schedulingGroup"]["podGroupName"].as_str()
}

fn min_of(group: &str) -> usize {
    let at = group.trim_start_matches('g').parse::<usize>().expect("a number");
    usize::try_from(MIN[at]).expect("it is small")
}

fn name_of_group(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.scheduling_group.as_ref()?.pod_group_name.clone()
}

impl SchedulerWorld {
    /// Puts a pod into a random group, or into none.
    pub(super) fn join(&mut self, spec: &mut Value) {
        let joins = self.has_groups && !self.chance.one_in(if self.preempts_whole { 4 } else { 2 });
        if self.preempts_whole {
            let cpu = self.chance.of(&["500m", "1", "1", "2"]);
            spec["containers"][0]["resources"]["requests"]["cpu"] = cpu.into();
        }
        if joins {
            let group = format!("g{}", self.chance.below(self.count_of_groups()));
            spec["schedulingGroup"] = json!({"podGroupName": group});
            let claims = self.groups.get(&group).map(|g| g["spec"]["resourceClaims"].clone());
            if let Some(claims) = claims.filter(Value::is_array)
                && !self.chance.one_in(3)
            {
                spec["resourceClaims"] = claims;
            }
            let priority = self.groups.get(&group).map(|group| group["spec"]["priority"].clone());
            if let Some(priority) = priority.filter(|priority| !priority.is_null()) {
                spec["priority"] = priority;
            }
        }
    }

    fn count_of_groups(&self) -> usize {
        if self.preempts_whole { MIN.len() } else { USUAL }
    }

    /// Creates a random group if it does not exist, else may delete it unless it is protected.
    /// Returns false, without a change, if this operation is not for groups.
    pub(super) fn change_group(&mut self) -> bool {
        if !self.has_groups || !self.chance.one_in(10) {
            return false;
        }
        let number = self.chance.below(self.count_of_groups());
        let name = format!("g{number}");
        if !self.groups.contains_key(&name) {
            self.new_group(number);
        } else if self.chance.one_in(3) && !self.is_protected(&name) {
            self.delete(WatchedKind::PodGroup, &name);
        }
        true
    }

    pub(super) fn new_groups(&mut self) {
        if self.has_groups {
            (0..self.count_of_groups()).for_each(|number| self.new_group(number));
        }
    }

    fn new_group(&mut self, number: usize) {
        let gang = json!({"gang": {"minCount": MIN[number]}});
        let policy = if number == 0 { json!({"basic": {}}) } else { gang };
        let (name, uid) = (format!("g{number}"), format!("g{}", self.numbered));
        let mut value = json!({"metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"schedulingPolicy": policy}});
        if self.preempts_whole {
            let whole = self.chance.one_in(2);
            value["spec"]["disruptionMode"] = if whole { "PodGroup" } else { "Pod" }.into();
            if self.chance.one_in(2) {
                let claim = format!("c{}", self.chance.below(6));
                let named = json!([{"name": "c", "resourceClaimName": claim}]);
                value["spec"]["resourceClaims"] = named;
            }
            let least = if whole { 0 } else { 2 };
            value["spec"]["priority"] = (5 * (least + self.chance.below(3))).into();
        }
        if number == IN_A_ZONE {
            value["spec"]["schedulingConstraints"] = json!({"topology": [{"key": "zone"}]});
        }
        self.set(WatchedKind::PodGroup, &name, value);
    }

    /// Records the pod of a group that this event delivers.
    pub(super) fn hears(&mut self, watch_event: &WatchEvent) {
        let pod = match watch_event {
            WatchEvent::Begun(WatchedKind::Pod) => return self.known.clear(),
            WatchEvent::Listed(WatchedObject::Pod(pod))
            | WatchEvent::Set(WatchedObject::Pod(pod))
            | WatchEvent::Gone(WatchedObject::Pod(pod)) => pod,
            _ => return,
        };
        let Some(group) = name_of_group(pod) else { return };
        let name = pod.metadata.name.clone().expect("a name");
        if matches!(watch_event, WatchEvent::Gone(_)) {
            self.known.remove(&name);
            return;
        }
        let uid = pod.metadata.uid.clone().expect("a uid");
        let has_node = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        self.known.insert(name, (uid, group, has_node));
    }

    /// Checks that a pod of a gang is bound only if at least minCount pods of the gang have a node
    /// or are assumed.
    pub(super) fn no_gang_is_torn(&self, scheduler: &Scheduler, commands: &[Command]) {
        for command in commands {
            let pod = match command {
                Command::Bind { pod, .. } | Command::ReserveDevices { pod, .. } => pod,
                _ => continue,
            };
            let Some((_, group, _)) = self.known.get(pod.key.name()) else { continue };
            let counts = |(uid, of, has_node): &&(String, String, bool)| {
                of == group && (*has_node || scheduler.assumed.contains_key(uid.as_str()))
            };
            let count = self.known.values().filter(counts).count();
            self.check_zone(scheduler, pod, group);
            assert!(count >= min_of(group), "{count} of {group} have nodes: {}", pod.key.as_str());
        }
    }

    /// Checks that all pods of the zonal gang are in one zone.
    fn check_zone(&self, scheduler: &Scheduler, pod: &PodRef, group: &str) {
        if group != format!("g{IN_A_ZONE}") {
            return;
        }
        let zone = |node: &str| {
            let labels = scheduler.cache.labels_of(node);
            labels.and_then(|labels| labels.get("zone").map(|zone| (*zone).to_owned()))
        };
        let node_of = |(name, (uid, of, _)): (&String, &(String, String, bool))| {
            let bound = scheduler.cache.node_of(&ObjectKey::new("default", name));
            let assumed = scheduler.assumed.get(uid.as_str()).map(|assumed| &*assumed.node);
            (of == group).then(|| assumed.or(bound))?
        };
        let zones: BTreeSet<_> = self.known.iter().filter_map(node_of).map(zone).collect();
        assert!(zones.len() == 1, "{zones:?} for {}", pod.key.as_str());
    }

    /// Checks that a new scheduler with the same objects binds no pod of a pending group.
    pub(super) fn no_group_fits(&self, others: Vec<WatchedObject>) {
        if !self.has_groups {
            return;
        }
        let groups = self.groups.values().map(|group| thing(WatchedKind::PodGroup, group));
        let things: Vec<WatchedObject> = others.into_iter().chain(groups).collect();
        let mut fresh = self.knows_nothing().with_groups(self::groups(self.preempts_whole));
        for kind in KINDS.into_iter().chain([WatchedKind::PodGroup]) {
            fresh.handle(WatchEvent::Begun(kind), at(0));
            for thing in things.iter().filter(|thing| thing.kind() == kind) {
                fresh.handle(WatchEvent::Listed(thing.clone()), at(0));
            }
            fresh.handle(WatchEvent::Complete(kind), at(0));
        }
        self.send_rules(&mut fresh);
        for command in decide(&mut fresh, 0) {
            if let Command::Bind { pod, .. } | Command::ReserveDevices { pod, .. } = command {
                let group = group_of(&self.pods[pod.key.name()]);
                assert_eq!(group, None, "{} would be bound", pod.key.as_str());
            }
        }
    }

    /// Returns true if only pods of groups are active or in backoff: such pods are retried forever,
    /// without effect unless an object changes.
    pub(super) fn only_groups_wait(&self, scheduler: &Scheduler) -> bool {
        let waits = |place: super::QueuePlace| {
            use super::QueuePlace::{Active, Backoff, ErrorBackoff};
            matches!(place, Active | Backoff | ErrorBackoff)
        };
        let mut waiting = scheduler.queue.iter().filter(|waiting| waits(waiting.place));
        waiting.all(|waiting| waiting.pod.group.is_some())
    }
}
