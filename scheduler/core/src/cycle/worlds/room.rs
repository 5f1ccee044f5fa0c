//! Preemption for whole groups in a world.
//!
//! When a decision preempts for a group, all victims are of lower priority, groups that are
//! preempted as a whole lose all their pods, the group fits without the victims, and it does not
//! always fit with one of them at the time of that victim's reprieve.

use std::collections::{HashMap, HashSet};

use pintle_sched_core::intern::Str;
use pintle_sched_core::preempt::units::{self, Membership, Unit};
use pintle_sched_core::snapshot::pods::PodId;

use super::SchedulerWorld;
use crate::cache::{CacheDelta, Nominee};
use crate::cycle::command::{Command, Note};
use crate::cycle::consult::ExtenderAnswers;
use crate::cycle::group::{GroupCycle, GroupOutcome};
use crate::cycle::group_room::VictimSearch;
use crate::cycle::reprieve::Reprieve;
use crate::cycle::{Duration, QueuedPod, Rc, Scheduler, Uid};
use crate::groups::{OfGroup, Preemptor};
use crate::pod_fields::PodRef;

/// Random decisions per question whether a group fits.
const LOOKS: usize = 64;

/// A preemption for a group, to be checked.
struct GroupPreemption {
    preemptor: Preemptor,
    /// The pods of the group that were decided.
    pods: Vec<(Uid, Rc<QueuedPod>)>,
    victims: HashSet<Str>,
    /// Nominations before the decision.
    kept: Kept,
    now: Duration,
}

/// Nominations by pod.
pub(super) type Kept = HashMap<Str, Nominee>;

/// Returns the current nominations.
pub(super) fn kept(scheduler: &Scheduler) -> Kept {
    let waits = scheduler.queue.iter().map(|waiting| waiting.pod.spec.key);
    let kept = waits.filter_map(|pod| Some((pod, scheduler.cache.nomination(pod)?.clone())));
    kept.collect()
}

impl SchedulerWorld {
    /// Checks the victims of a group's preemption.
    pub(super) fn room_is_made_well(
        &self,
        scheduler: &mut Scheduler,
        kept: &Kept,
        commands: &[Command],
    ) {
        for command in commands {
            if let Command::Evict { victims, pod, .. } = command
                && let Some(mut room) = self.room_for(scheduler, victims, pod, commands)
            {
                room.kept.clone_from(kept);
                goes_whole_and_is_lower(scheduler, &room);
                assert_needed(scheduler, &room, commands);
            }
        }
    }

    fn room_for(
        &self,
        scheduler: &Scheduler,
        victims: &[PodRef],
        group: &PodRef,
        commands: &[Command],
    ) -> Option<GroupPreemption> {
        let refused = commands.iter().filter_map(|command| match command {
            Command::RecordEvent(Note { reason: "FailedScheduling", about, .. }) => Some(about),
            _ => None,
        });
        let queued = |pod: &PodRef| {
            let waiting = scheduler.queue.get(&pod.uid)?;
            Some((pod.uid.clone(), Rc::clone(&waiting.pod)))
        };
        let is_its = |of: &OfGroup| of.key == group.key;
        let pods = refused.filter_map(queued);
        let pods = pods.filter(|(_, queued)| queued.group.as_ref().is_some_and(is_its));
        let mut pods: Vec<_> = pods.collect();
        pods.sort_by_key(|(uid, queued)| {
            let waiting = scheduler.queue.get(uid).expect("it waits");
            (-queued.spec.priority, waiting.first_attempt, waiting.number())
        });
        let preemptor = pods.first()?.1.group.as_ref()?.preemptor().expect("it is known");
        let placed = |pod: &PodRef| scheduler.cache.cluster.placed(&pod.uid).expect("it is there");
        let victims = victims.iter().map(placed).collect();
        let (kept, now) = (Kept::new(), Duration::from_secs(self.now));
        Some(GroupPreemption { preemptor, pods, victims, kept, now })
    }
}

/// Returns pods on nodes, each with the number of the group it is preempted with and its priority.
fn all(scheduler: &Scheduler) -> Vec<(PodId, Option<usize>, i32)> {
    let cluster = &scheduler.cache.cluster;
    let groups = scheduler.cache.groups.as_ref().expect("there are groups");
    let memberships = groups.memberships(cluster);
    let of = |id: PodId| match memberships.get(&cluster.pods().get(id).key) {
        Some(Membership::Whole(number, priority)) => (id, Some(*number), *priority),
        _ => (id, None, cluster.pods().get(id).priority),
    };
    cluster.pods().iter().map(of).collect()
}

fn goes_whole_and_is_lower(scheduler: &Scheduler, room: &GroupPreemption) {
    let pods = scheduler.cache.cluster.pods();
    let all = all(scheduler);
    let is_victim = |id: PodId| room.victims.contains(&pods.get(id).key);
    let goes = || all.iter().filter(|(id, ..)| is_victim(*id));
    for (_, _, priority) in goes() {
        assert!(*priority < room.preemptor.priority, "{priority} goes for {:?}", room.preemptor);
    }
    let groups: HashSet<usize> = goes().filter_map(|(_, number, _)| *number).collect();
    for (id, number, _) in &all {
        let row = pods.get(*id);
        if number.is_some_and(|number| groups.contains(&number)) && !row.terminating {
            let is_on_a_node = row.row != pintle_sched_core::snapshot::pods::NONE;
            assert!(is_victim(*id) || !is_on_a_node, "one of a whole group is left");
        }
    }
}

fn assert_needed(scheduler: &mut Scheduler, room: &GroupPreemption, commands: &[Command]) {
    let all = all(scheduler);
    let pods = scheduler.cache.cluster.pods();
    let key = |id: PodId| pods.get(id).key;
    // Pods that are already terminating make room as well.
    let leaving = all.iter().filter(|(id, _, priority)| {
        pods.get(*id).terminating && *priority < room.preemptor.priority
    });
    let leaving: Vec<Str> = leaving.map(|(id, ..)| key(*id)).collect();
    let fits = makes_it_fit(scheduler, room, &leaving);
    assert!(fits, "{:?} fits not: {:?}", room.preemptor, room.victims);
    let is_in_memory = |command: &Command| match command {
        Command::RecordEvent(note) => note.note.ends_with("(in kube-scheduler memory)."),
        _ => false,
    };
    // Devices of these pods are free already, which the dry run did not know.
    if !leaving.is_empty() || commands.iter().any(is_in_memory) {
        return;
    }
    for (unit, away) in turns(scheduler, room) {
        let mut looks = (0..LOOKS).map(|_| fits_without(scheduler, room, &away));
        assert!(!looks.all(|fits| fits), "{:?} fits beside {unit:?}", room.preemptor);
    }
}

/// Returns each victim with the pods that were removed when it was tried for reprieve: the other
/// victims before it, and all less important pods. With one of these the group may fit despite the
/// victim, by affinity.
// k8s: podgrouppreemption.go selectVictimsOnDomain
fn turns(scheduler: &Scheduler, room: &GroupPreemption) -> Vec<(Unit, Vec<Str>)> {
    let cluster = &scheduler.cache.cluster;
    let groups = scheduler.cache.groups.as_ref().expect("there are groups");
    let mut all = units::below(cluster, room.preemptor.priority, &groups.memberships(cluster));
    units::sort(&mut all);
    let goes = |unit: &Unit| unit.pods.iter().any(|pod| room.victims.contains(pod));
    let turn = |(at, unit): (usize, &Unit)| {
        let before = all[..at].iter().filter(|unit| goes(unit));
        let away = before.chain(&all[at + 1..]).flat_map(|unit| &unit.pods);
        (unit.clone(), away.copied().collect())
    };
    all.iter().enumerate().filter(|(_, unit)| goes(unit)).map(turn).collect()
}

/// Returns true if the group fits without its victims and without some of the terminating pods; it
/// may need one of these, by affinity.
fn makes_it_fit(scheduler: &mut Scheduler, room: &GroupPreemption, leaving: &[Str]) -> bool {
    let mut sets = 0..1_usize << leaving.len();
    sets.any(|staying| {
        let goes = leaving.iter().enumerate().filter(|(at, _)| (staying >> at) & 1 == 0);
        let goes = goes.map(|(_, pod)| pod);
        let away: Vec<Str> = room.victims.iter().chain(goes).copied().collect();
        (0..LOOKS).any(|_| fits_without(scheduler, room, &away))
    })
}

/// Returns true if the group fits with these pods removed.
fn fits_without(scheduler: &mut Scheduler, room: &GroupPreemption, away: &[Str]) -> bool {
    let hidden: Vec<_> = away.iter().filter_map(|pod| scheduler.cache.hide(*pod)).collect();
    let kept: Vec<_> = room
        .pods
        .iter()
        .map(|(_, queued)| {
            let pod = queued.spec.key;
            let old = scheduler.cache.nomination(pod).cloned();
            CacheDelta::Nominated { pod, old, new: room.kept.get(&pod).cloned() }
        })
        .collect();
    kept.iter().for_each(|step| scheduler.cache.make(step));
    let preemptor = room.preemptor.clone();
    let before = (Vec::new(), GroupOutcome::Nowhere);
    let search = VictimSearch {
        preemptor,
        all: Vec::new(),
        back: None,
        reprieve: Reprieve::of(0),
        before,
        rejected_by: Vec::new(),
    };
    let group = room.pods[0].1.group.clone().expect("they have one");
    scheduler.group = Some(GroupCycle {
        group,
        profile: 0,
        left: room.pods.iter().cloned().collect(),
        tried: Vec::new(),
        came: GroupOutcome::Nowhere,
        needs_room: false,
        message: None,
        never_preempts: None,
        trials: None,
        search: Some(search),
        unreserved: Vec::new(),
        gives_back: Vec::new(),
        had_node: HashSet::new(),
    });
    scheduler.cache.devices.decides_group(true);
    while let Some((uid, queued)) = scheduler.group.as_mut().and_then(|c| c.left.pop_front()) {
        let found = scheduler.find(&uid, &queued, &ExtenderAnswers::Nothing, room.now);
        scheduler.found_for_group(&uid, &queued, found, room.now);
    }
    let mut cycle = scheduler.group.take().expect("it is being decided");
    scheduler.take_all_back(&mut cycle.tried);
    scheduler.cache.devices.decides_group(false);
    kept.iter().for_each(|step| scheduler.cache.take_back(step));
    hidden.into_iter().for_each(|hidden| scheduler.cache.show(hidden));
    cycle.came == GroupOutcome::Fits
}
