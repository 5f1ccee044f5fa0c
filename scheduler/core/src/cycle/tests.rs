//! The cycle step by step: commands, events and conditions.

use serde_json::{Value, json};

use super::*;
use crate::cycle::command::Note;
use crate::extender::{self, Extender};
use crate::pod_fields::PodRef;
pub(crate) use crate::testing::*;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

pub(crate) fn bound(command: &Command) -> Option<(PodRef, Rc<str>)> {
    match command {
        Command::Bind { pod, node, .. } => Some((pod.clone(), Rc::clone(node))),
        _ => None,
    }
}

fn said(commands: &[Command], reason: &str) -> Vec<Note> {
    let notes = commands.iter().filter_map(|command| match command {
        Command::RecordEvent(note) if note.reason == reason => Some(note.clone()),
        _ => None,
    });
    notes.collect()
}

/// Nominated nodes in the status writes.
pub(crate) fn nominated(commands: &[Command]) -> Vec<String> {
    let all = commands.iter().filter_map(|command| match command {
        Command::Status { nominated, .. } => nominated.clone(),
        _ => None,
    });
    all.collect()
}

pub(crate) fn condition(commands: &[Command]) -> Option<(String, String)> {
    commands.iter().find_map(|command| match command {
        Command::Status { condition: Some(condition), .. } => {
            Some((condition.reason.clone()?, condition.message.clone()?))
        }
        _ => None,
    })
}

#[test]
fn no_pod_is_decided_before_all_kinds_are_synced() {
    let mut scheduler = Scheduler::new(Vec::new(), Settings::default(), 1);
    scheduler.handle(WatchEvent::Begun(WatchedKind::Pod), at(0));
    scheduler.handle(WatchEvent::Listed(pod("p", "1")), at(0));
    scheduler.handle(WatchEvent::Complete(WatchedKind::Pod), at(0));
    assert!(!scheduler.decide_next(at(0)));
}

#[test]
fn pod_that_lost_its_node_in_a_restored_store_no_longer_occupies_room() {
    let there = with("p", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let mut scheduler = scheduler_with(vec![node("n", "1"), there]);
    assert!(decide(&mut scheduler, 0).is_empty());
    deliver_lists(&mut scheduler, &[node("n", "1"), pod("p", "1")]);
    let commands = decide(&mut scheduler, 1);
    let (again, node) = bound(&commands[0]).expect("there is room: its own");
    assert_eq!((again.key.as_str(), &*node), ("default/p", "n"));
}

#[test]
fn pod_is_bound_and_gets_a_scheduled_event() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "1")]);
    let commands = decide(&mut scheduler, 0);
    let (pod, node) = bound(&commands[0]).expect("it is bound");
    assert_eq!((pod.key.as_str(), &*node, commands.len()), ("default/p", "n", 1));
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (1, 1));
    scheduler.ended(&pod, &node, BindingResult::Bound, at(1));
    let commands = scheduler.take_commands();
    let notes = said(&commands, "Scheduled");
    assert_eq!(notes[0].note, "Successfully assigned default/p to n");
    assert_eq!((notes[0].action, notes[0].warning), ("Binding", false));
    let there = with("p", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    scheduler.handle(WatchEvent::Set(there), at(2));
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (0, 0));
}

#[test]
fn pod_without_room_gets_a_condition_and_is_retried_when_a_pod_is_deleted() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("a", "1"), pod("b", "1")]);
    let commands = decide(&mut scheduler, 0);
    let (first, node) = bound(&commands[0]).expect("one is bound");
    let why = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, \
        preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod.";
    assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), why.to_owned())));
    assert_eq!(said(&commands, "FailedScheduling")[0].note, why);
    scheduler.ended(&first, &node, BindingResult::Bound, at(1));
    let there = with(first.key.name(), "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    scheduler.handle(WatchEvent::Set(there.clone()), at(1));
    assert_eq!(decide(&mut scheduler, 5).iter().find_map(bound), None);
    scheduler.handle(WatchEvent::Gone(there), at(6));
    let (second, _) = decide(&mut scheduler, 6).iter().find_map(bound).expect("it has room now");
    assert_ne!(first, second);
}

#[test]
fn a_binding_that_fails_gives_the_room_back() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "1")]);
    let (pod, node) = bound(&decide(&mut scheduler, 0)[0]).expect("it is bound");
    scheduler.ended(&pod, &node, BindingResult::Failed("refused".to_owned()), at(1));
    let (reason, message) = condition(&scheduler.take_commands()).expect("a condition");
    assert_eq!(reason, "SchedulerError");
    assert_eq!(message, "refused");
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::ErrorBackoff)), (0, 1));
    let again = decide(&mut scheduler, 30);
    assert_eq!(again.iter().find_map(bound), Some((pod, node)));
}

#[test]
fn lost_binding_response_is_no_error_if_the_pod_is_observed_on_its_node() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "1")]);
    let (pod, node) = bound(&decide(&mut scheduler, 0)[0]).expect("it is bound");
    let there = with("p", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    scheduler.handle(WatchEvent::Set(there), at(1));
    scheduler.ended(&pod, &node, BindingResult::Failed("no answer".to_owned()), at(2));
    assert_eq!(scheduler.take_commands(), []);
    assert_eq!(decide(&mut scheduler, 60), []);
}

#[test]
fn pod_deleted_during_binding_frees_its_room() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("a", "1"), pod("b", "1")]);
    let (first, node) = decide(&mut scheduler, 0).iter().find_map(bound).expect("one is bound");
    let gone = with(first.key.name(), "1", |_| {});
    scheduler.handle(WatchEvent::Gone(gone), at(5));
    let (second, _) = decide(&mut scheduler, 5).iter().find_map(bound).expect("room is free");
    assert_ne!(first, second);
    scheduler.ended(&first, &node, BindingResult::Failed("gone".to_owned()), at(6));
    assert_eq!(scheduler.take_commands(), [], "no condition is written");
}

#[test]
fn a_namesake_is_another_pod() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "1")]);
    let (first, node) = decide(&mut scheduler, 0).iter().find_map(bound).expect("it is bound");
    let namesake = with("p", "1", |pod| pod["metadata"]["uid"] = json!("other"));
    scheduler.handle(WatchEvent::Set(namesake), at(1));
    let (second, _) = decide(&mut scheduler, 1).iter().find_map(bound).expect("it has room");
    assert_eq!((&*second.uid, second.key == first.key), ("other", true));
    scheduler.ended(&first, &node, BindingResult::Failed("gone".to_owned()), at(2));
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (1, 1));
}

#[test]
fn scheduling_gate_holds_a_pod_until_the_gate_is_removed() {
    let gated = with("p", "1", |pod| pod["spec"]["schedulingGates"] = json!([{"name": "g"}]));
    let mut scheduler = scheduler_with(vec![node("n", "1"), gated]);
    assert_eq!(decide(&mut scheduler, 0), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 1);
    scheduler.handle(WatchEvent::Set(pod("p", "1")), at(1));
    assert!(decide(&mut scheduler, 1).iter().any(|command| bound(command).is_some()));
}

#[test]
fn pods_of_other_schedulers_are_left_alone() {
    let other = with("p", "1", |pod| pod["spec"]["schedulerName"] = json!("other"));
    let mut scheduler = scheduler_with(vec![node("n", "1"), other]);
    assert_eq!(decide(&mut scheduler, 0), []);
}

#[test]
fn a_pod_that_is_being_deleted_gets_no_node() {
    let leaving = with("p", "1", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
    });
    let mut scheduler = scheduler_with(vec![node("n", "1"), leaving]);
    let notes = said(&decide(&mut scheduler, 0), "FailedScheduling");
    assert_eq!(notes[0].note, "skip schedule deleting pod: default/p");
}

#[test]
fn a_pod_of_higher_priority_takes_the_place_of_another() {
    let low = with("low", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let high = with("high", "1", |pod| pod["spec"]["priority"] = json!(10));
    let mut scheduler = scheduler_with(vec![node("n", "1"), low.clone(), high]);
    let commands = decide(&mut scheduler, 0);
    let victims = commands.iter().find_map(|command| match command {
        Command::Evict { victims, message, notes, pod } => Some((victims, message, notes, pod)),
        _ => None,
    });
    let (victims, message, notes, preemptor) = victims.expect("room is made");
    assert_eq!(victims[0].key.as_str(), "default/low");
    let expected = "default-scheduler: preempting to accommodate a higher priority pod";
    assert_eq!(message, expected);
    assert_eq!(notes[0].note, "Preempted by pod high on node n");
    let nominated = commands.iter().find_map(|command| match command {
        Command::Status { nominated: Some(node), condition: Some(_), .. } => Some(node.as_str()),
        _ => None,
    });
    assert_eq!(nominated, Some("n"));
    // No pod of lower priority gets the room meanwhile.
    scheduler.handle(WatchEvent::Set(pod("other", "1")), at(1));
    assert_eq!(decide(&mut scheduler, 1).iter().find_map(bound), None);
    scheduler.handle(WatchEvent::Gone(low), at(2));
    let commands = decide(&mut scheduler, 5);
    assert_eq!(commands.iter().find_map(bound), None, "the end of the eviction is unknown");
    assert_eq!(scheduler.count(QueuePlace::Gated), 1);
    scheduler.evicted(&Evicted { pod: preemptor.clone(), all: true, took: Duration::ZERO }, at(6));
    let commands = decide(&mut scheduler, 6);
    let (pod, _) = commands.iter().find_map(bound).expect("the room is free");
    assert_eq!(pod.key.as_str(), "default/high");
}

#[test]
fn room_that_could_not_be_made_is_made_again() {
    let low = with("low", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let high = with("high", "1", |pod| pod["spec"]["priority"] = json!(10));
    let mut scheduler = scheduler_with(vec![node("n", "1"), low, high]);
    let evicts = |commands: Vec<Command>| {
        commands.into_iter().find_map(|command| match command {
            Command::Evict { pod, .. } => Some(pod),
            _ => None,
        })
    };
    let pod = evicts(decide(&mut scheduler, 0)).expect("room is made");
    scheduler.evicted(&Evicted { pod: pod.clone(), all: false, took: Duration::ZERO }, at(1));
    assert_eq!(evicts(decide(&mut scheduler, 1)), Some(pod));
}

#[test]
fn the_node_that_is_kept_for_a_pod_comes_before_better_ones() {
    let kept = with("p", "1", |pod| pod["status"] = json!({"nominatedNodeName": "n"}));
    let other = with("o", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let mut scheduler = scheduler_with(vec![node("n", "2"), node("empty", "4"), other, kept]);
    let (_, at) = decide(&mut scheduler, 0).iter().find_map(bound).expect("it is bound");
    assert_eq!(&*at, "n");
}

#[test]
fn update_older_than_a_nomination_does_not_clear_the_nomination() {
    let low = with("low", "1", |pod| pod["spec"]["nodeName"] = json!("n"));
    let high = |change: &dyn Fn(&mut Value)| {
        with("high", "1", |pod| {
            pod["spec"]["priority"] = json!(10);
            change(pod);
        })
    };
    let mut scheduler = scheduler_with(vec![node("n", "1"), low, high(&|_| ())]);
    decide(&mut scheduler, 0);
    let kept = |scheduler: &Scheduler| scheduler.cache.nominated_on("n").len();
    assert_eq!(kept(&scheduler), 1);
    // The update was written before the API server had the nomination.
    let labelled = high(&|pod| pod["metadata"]["labels"] = json!({"a": "b"}));
    scheduler.handle(WatchEvent::Set(labelled), at(1));
    assert_eq!(kept(&scheduler), 1);
    let nominated = high(&|pod| pod["status"] = json!({"nominatedNodeName": "n"}));
    scheduler.handle(WatchEvent::Set(nominated), at(2));
    assert_eq!(kept(&scheduler), 1);
    scheduler.handle(WatchEvent::Set(high(&|_| ())), at(3));
    assert_eq!(kept(&scheduler), 0, "the nomination was cleared");
}

#[test]
fn nomination_is_not_inherited_by_a_new_pod_of_the_same_name() {
    let kept = with("p", "3", |pod| pod["status"] = json!({"nominatedNodeName": "n"}));
    let mut scheduler = scheduler_with(vec![node("n", "1"), kept]);
    assert_eq!(scheduler.cache.nominated_on("n").len(), 1);
    let namesake = with("p", "3", |pod| pod["metadata"]["uid"] = json!("other"));
    scheduler.handle(WatchEvent::Set(namesake), at(1));
    assert_eq!(scheduler.cache.nominated_on("n"), []);
}

#[test]
fn pod_bound_elsewhere_by_another_scheduler_frees_its_assumed_room() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("a", "1"), pod("b", "1")]);
    let (first, _) = decide(&mut scheduler, 0).iter().find_map(bound).expect("one is bound");
    scheduler.handle(WatchEvent::Set(node("other", "1")), at(1));
    // The second pod would fit on the new node, but another scheduler binds the first pod there.
    let there = with(first.key.name(), "1", |pod| pod["spec"]["nodeName"] = json!("other"));
    scheduler.handle(WatchEvent::Set(there), at(1));
    let (second, at) = decide(&mut scheduler, 20).iter().find_map(bound).expect("room is free");
    assert_eq!((first != second, &*at), (true, "n"));
}

#[test]
fn pod_update_during_binding_counts_after_the_binding_fails() {
    let mut scheduler = scheduler_with(vec![node("n", "1"), pod("p", "1")]);
    let (first, at_node) = decide(&mut scheduler, 0).iter().find_map(bound).expect("it is bound");
    let newer = with("p", "1", |pod| {
        pod["metadata"]["resourceVersion"] = json!("7");
        pod["spec"]["nodeSelector"] = json!({"no": "node"});
    });
    scheduler.handle(WatchEvent::Set(newer), at(1));
    scheduler.ended(&first, &at_node, BindingResult::Failed("no".to_owned()), at(2));
    let notes = said(&scheduler.take_commands(), "FailedScheduling");
    assert_eq!(notes[0].version.as_deref(), Some("7"));
    assert_eq!(decide(&mut scheduler, 60).iter().find_map(bound), None);
}

#[test]
fn each_pod_is_decided_by_the_profile_of_its_scheduler_name() {
    let full = Profile {
        scheduler_name: "full".to_owned(),
        strategy: pintle_sched_core::config::Strategy::MostAllocated,
        ..Profile::default()
    };
    let mut scheduler = Scheduler::new(vec![Profile::default(), full], without_second_look(), 1);
    let there = with("there", "2", |pod| pod["spec"]["nodeName"] = json!("used"));
    let of = |name: &str, profile: &str| {
        with(name, "1", |pod| pod["spec"]["schedulerName"] = json!(profile))
    };
    let pods = [of("a", "default-scheduler"), of("b", "full"), of("c", "other")];
    let nodes = [node("used", "8"), node("empty", "8")];
    deliver_lists(
        &mut scheduler,
        &nodes.into_iter().chain(pods).chain([there]).collect::<Vec<_>>(),
    );
    let commands = decide(&mut scheduler, 0);
    let mut bound: Vec<_> = commands.iter().filter_map(bound).collect();
    bound.sort_by(|a, b| a.0.key.as_str().cmp(b.0.key.as_str()));
    let found: Vec<(&str, &str)> =
        bound.iter().map(|(pod, node)| (pod.key.name(), &**node)).collect();
    assert_eq!(found, [("a", "empty"), ("b", "used")]);
    let (pod, node) = &bound[1];
    scheduler.ended(pod, node, BindingResult::Bound, at(1));
    assert_eq!(&*said(&scheduler.take_commands(), "Scheduled")[0].reporter, "full");
}

#[test]
fn partial_node_scoring_rotates_through_the_nodes() {
    let part = Profile { percentage_of_nodes: 50, ..Profile::default() };
    let mut scheduler = Scheduler::new(vec![part], without_second_look(), 1);
    let nodes = (0..200).map(|at| node(&format!("n{at}"), "100"));
    let pods = (0..4).map(|at| pod(&format!("p{at}"), "1"));
    deliver_lists(&mut scheduler, &nodes.chain(pods).collect::<Vec<_>>());
    let commands = decide(&mut scheduler, 0);
    let found = commands.iter().filter_map(bound).map(|(_, node)| {
        let row = scheduler.cache.cluster.row(&node).expect("it is there");
        row >= 100
    });
    assert_eq!(found.collect::<Vec<_>>(), [false, true, false, true]);
}

/// A scheduler with an extender with these verbs, and these objects.
pub(super) fn asking(change: impl FnOnce(&mut Extender), things: &[WatchedObject]) -> Scheduler {
    let mut extender = Extender { node_cache_capable: true, ..Extender::default() };
    change(&mut extender);
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_extenders(vec![extender]);
    deliver_lists(&mut scheduler, things);
    scheduler
}

pub(crate) fn question(commands: &[Command]) -> Option<extender::Consult> {
    commands.iter().find_map(|command| match command {
        Command::Consult(consult) => Some(consult.clone()),
        _ => None,
    })
}

pub(super) fn answer(
    consult: &extender::Consult,
    nodes: extender::consulted::Nodes,
) -> extender::Consulted {
    let answer = Ok(extender::ExtenderReply::Nodes(nodes));
    extender::Consulted { about: consult.about.clone(), answer }
}

#[test]
fn pod_is_bound_to_the_node_that_an_extender_prefers() {
    let things = [node("a", "8"), node("b", "4"), node("c", "8"), pod("p", "1"), pod("q", "1")];
    let mut scheduler = asking(|e| e.filter_verb = "filter".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let extender::ExtenderCall::Nodes { names, .. } = &consult.question else {
        panic!("{consult:?}")
    };
    assert_eq!(names.len(), 3);
    assert_eq!(decide(&mut scheduler, 1), [], "no other pod is decided meanwhile");
    // One of the nodes that are left is deleted; the other gets a score above that of any plugin.
    scheduler.handle(WatchEvent::Gone(node("c", "8")), at(1));
    let left = ["b", "c"].map(str::to_owned).into();
    let nodes = extender::consulted::Nodes {
        left,
        scores: [("b".to_owned(), 1000)].into(),
        ..Default::default()
    };
    scheduler.consulted(answer(&consult, nodes), at(2));
    let commands = decide(&mut scheduler, 2);
    let (_, at_node) = commands.iter().find_map(bound).expect("it is bound");
    assert_eq!(&*at_node, "b");
    assert!(question(&commands).is_some(), "the next one is asked about");
    // The second evaluation of the nodes belongs to the same attempt.
    assert_eq!(scheduler.take_batches(), [Batches { used: 1, none: 1, ..Batches::default() }]);
}

/// Metric samples of evaluations and decisions.
fn searched(scheduler: &mut Scheduler) -> Vec<Fact> {
    let facts = scheduler.take_facts().into_iter();
    facts.filter(|fact| matches!(fact, Fact::Searched { .. } | Fact::Decided(_))).collect()
}

#[test]
fn pods_without_extenders_are_decided_while_an_extender_hangs() {
    let manages = |extender: &mut Extender| {
        extender.filter_verb = "filter".to_owned();
        let name = "example.com/x".to_owned();
        extender.managed_resources =
            vec![extender::ManagedResource { name, ignored_by_scheduler: true }];
    };
    let managed = |name: &str| {
        with(name, "1", |pod| {
            // The node has none of this resource.
            pod["spec"]["containers"][0]["resources"]["requests"]["example.com/x"] = "0".into();
        })
    };
    let things = [node("a", "8"), managed("p"), managed("q")];
    let mut scheduler = asking(manages, &things);
    let ms = Duration::from_millis;
    assert!(scheduler.decide_next(at(0)));
    let consult = question(&scheduler.take_commands()).expect("it is asked");
    scheduler.handle(WatchEvent::Set(pod("plain", "1")), ms(10));
    assert!(!scheduler.decide_next(ms(99)), "an extender that answers keeps the order");
    assert_eq!(scheduler.patience_due(), Some(ms(100)));
    assert!(scheduler.decide_next(ms(100)));
    let commands = scheduler.take_commands();
    let (first, _) = commands.iter().find_map(bound).expect("it is bound");
    assert_eq!(&*first.uid, "plain");
    assert!(!scheduler.decide_next(ms(200)), "the other pod needs the extender as well");
    let late = Err(extender::ExtenderError::Answered("no answer".to_owned()));
    scheduler.consulted(extender::Consulted { about: consult.about, answer: late }, at(5));
    assert!(scheduler.decide_next(at(5)));
    let next = question(&scheduler.take_commands()).expect("the next one is asked about");
    assert_eq!(&*next.about.uid, "q");
}

#[test]
fn a_decision_counts_once_and_with_the_wait_for_extenders() {
    let filters = |extender: &mut Extender| extender.filter_verb = "filter".to_owned();
    let mut scheduler = asking(filters, &[node("a", "8"), pod("p", "1")]);
    let search = Fact::Searched { profile: 0, failed: false };
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    assert_eq!(searched(&mut scheduler), std::slice::from_ref(&search));
    let left = ["a".to_owned()].into();
    let nodes = extender::consulted::Nodes { left, ..Default::default() };
    scheduler.consulted(answer(&consult, nodes), at(2));
    assert_eq!(searched(&mut scheduler), [Fact::Decided(at(2))]);
    // A call that fails ends the decision as well.
    scheduler.handle(WatchEvent::Set(pod("q", "1")), at(3));
    let consult = question(&decide(&mut scheduler, 3)).expect("it is asked");
    let no = Err(extender::ExtenderError::Answered("no answer".to_owned()));
    let about = consult.about;
    scheduler.consulted(extender::Consulted { about, answer: no }, at(7));
    assert_eq!(searched(&mut scheduler), [search.clone(), Fact::Decided(at(4))]);
    // Without extenders there is no wait, and a terminating pod is not decided. A pod that fits
    // nowhere is no failure.
    let going = with("r", "1", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    });
    let mut scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    deliver_lists(&mut scheduler, &[node("a", "8"), pod("p", "9"), going]);
    decide(&mut scheduler, 5);
    assert_eq!(searched(&mut scheduler), [search, Fact::Decided(Duration::ZERO)]);
}

#[test]
fn nominated_node_is_evaluated_in_a_separate_search() {
    let search = Fact::Searched { profile: 0, failed: false };
    // CPUs of the nominated node, number of evaluations
    for (cpu, searches) in [("8", 1), ("1", 2)] {
        let kept = with("p", "2", |pod| pod["status"] = json!({"nominatedNodeName": "a"}));
        let mut scheduler = scheduler_with(vec![node("a", cpu), node("b", "8"), kept]);
        let commands = decide(&mut scheduler, 0);
        let (_, at_node) = commands.iter().find_map(bound).expect("it is bound");
        assert_eq!(&*at_node, if searches == 1 { "a" } else { "b" });
        let mut want = vec![search.clone(); searches];
        want.push(Fact::Decided(Duration::ZERO));
        assert_eq!(searched(&mut scheduler), want);
    }
    // A deleted node is not evaluated.
    let kept = with("p", "2", |pod| pod["status"] = json!({"nominatedNodeName": "gone"}));
    let mut scheduler = scheduler_with(vec![node("b", "8"), kept]);
    decide(&mut scheduler, 0);
    assert_eq!(searched(&mut scheduler), [search, Fact::Decided(Duration::ZERO)]);
}

#[test]
fn search_is_counted_only_when_nodes_are_evaluated() {
    let lacks = with("p", "1", |pod| {
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    });
    for things in [vec![node("n", "1"), lacks], vec![pod("p", "1")]] {
        let mut scheduler = scheduler_with(things);
        decide(&mut scheduler, 0);
        assert_eq!(searched(&mut scheduler), [Fact::Decided(Duration::ZERO)]);
    }
}

#[test]
fn a_pod_that_an_extender_rejects_everywhere_waits_for_anything() {
    let mut scheduler =
        asking(|e| e.filter_verb = "filter".to_owned(), &[node("a", "8"), pod("p", "1")]);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let failed = [("a".to_owned(), (true, "no licence".to_owned()))].into();
    let nodes = extender::consulted::Nodes { failed, ..Default::default() };
    scheduler.consulted(answer(&consult, nodes), at(0));
    let (reason, message) = condition(&scheduler.take_commands()).expect("a condition");
    let want = "0/1 nodes are available: 1 no licence. no new claims to deallocate, preemption: \
        0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!((reason.as_str(), message.as_str()), ("Unschedulable", want));
    assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1);
    let other = with("o", "1", |pod| pod["spec"]["nodeName"] = json!("a"));
    scheduler.handle(WatchEvent::Set(other), at(30));
    assert!(question(&decide(&mut scheduler, 30)).is_some(), "it is tried again");
}

#[test]
fn an_extender_that_fails_is_an_error_of_the_attempt() {
    let mut scheduler =
        asking(|e| e.filter_verb = "filter".to_owned(), &[node("a", "8"), pod("p", "1")]);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let about = consult.about.clone();
    let answer = Err(extender::ExtenderError::Answered("no answer".to_owned()));
    scheduler.consulted(extender::Consulted { about, answer }, at(0));
    let (reason, message) = condition(&scheduler.take_commands()).expect("a condition");
    assert_eq!((reason.as_str(), message.as_str()), ("SchedulerError", "no answer"));
    assert_eq!(scheduler.count(QueuePlace::ErrorBackoff), 1);
}

#[test]
fn extender_chooses_the_victims() {
    let low = |name: &str, at: &str| with(name, "1", |pod| pod["spec"]["nodeName"] = json!(at));
    let high = with("high", "1", |pod| pod["spec"]["priority"] = json!(10));
    let things = [node("a", "1"), node("b", "1"), low("x", "a"), low("y", "b"), high];
    let mut scheduler = asking(|e| e.preempt_verb = "preempt".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let extender::ExtenderCall::Victims(all) = &consult.question else { panic!("{consult:?}") };
    assert_eq!((all.len(), &*all["b"].pods[0].uid), (2, "y"));
    let chosen = all["b"].clone();
    let answer = Ok(extender::ExtenderReply::Victims([("b".to_owned(), chosen)].into()));
    let about = consult.about.clone();
    scheduler.consulted(extender::Consulted { about, answer }, at(0));
    let commands = scheduler.take_commands();
    let victims = commands.iter().find_map(|command| match command {
        Command::Evict { victims, .. } => Some(victims.clone()),
        _ => None,
    });
    assert_eq!(victims.expect("room is made")[0].key.name(), "y");
    assert_eq!(scheduler.cache.nominated_on("b").len(), 1);
}

/// A class with delayed binding, a volume that only node `a` can access, and its claim.
pub(super) fn volumes() -> Vec<WatchedObject> {
    let class = json!({"metadata": {"name": "local"}, "volumeBindingMode": "WaitForFirstConsumer",
        "provisioner": "kubernetes.io/no-provisioner"});
    vec![WatchedObject::StorageClass(object(class)), volume("1", Value::Null), claim("1", false)]
}

fn volume(version: &str, claim: Value) -> WatchedObject {
    WatchedObject::PersistentVolume(object(json!({
        "metadata": {"name": "v", "resourceVersion": version},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "capacity": {"storage": "5Gi"}, "claimRef": claim,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["a"]}]}]}}},
        "status": {"phase": "Available"}})))
}

pub(super) fn claim(version: &str, is_bound: bool) -> WatchedObject {
    let mut claim = json!({
        "metadata": {"name": "c", "namespace": "default", "uid": "c", "resourceVersion": version},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
            "resources": {"requests": {"storage": "5Gi"}}}});
    if is_bound {
        claim["spec"]["volumeName"] = json!("v");
        claim["metadata"]["annotations"] = json!({"pv.kubernetes.io/bind-completed": "yes"});
    }
    WatchedObject::PersistentVolumeClaim(object(claim))
}

pub(super) fn with_claim(name: &str) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
    })
}

pub(super) fn binds_volumes(commands: &[Command]) -> Option<PodRef> {
    commands.iter().find_map(|command| match command {
        Command::BindVolumes { pod, .. } => Some(pod.clone()),
        _ => None,
    })
}

pub(super) fn written(pod: &PodRef, version: &str) -> VolumeWrites {
    VolumeWrites { pod: pod.clone(), number: 1, versions: vec![version.to_owned()], error: None }
}

fn given() -> Value {
    json!({"namespace": "default", "name": "c", "uid": "c"})
}

#[test]
fn pod_is_bound_after_its_volumes_are_bound() {
    let things = [node("a", "8"), node("b", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
    let commands = decide(&mut scheduler, 0);
    let pod = binds_volumes(&commands).expect("its volume is bound first");
    assert_eq!((commands.len(), scheduler.assumed()), (2, 1));
    assert_eq!(nominated(&commands), ["a"], "others learn of it before it is bound");
    scheduler.volumes_written(written(&pod, "5"), at(1));
    scheduler.handle(WatchEvent::Set(volume("5", given())), at(2));
    assert_eq!(scheduler.take_commands(), []);
    scheduler.handle(WatchEvent::Set(claim("6", true)), at(3));
    let commands = scheduler.take_commands();
    let (bound, at_node) = commands.iter().find_map(bound).expect("it is bound");
    assert_eq!((bound, &*at_node), (pod, "a"));
    assert_eq!(scheduler.next_due(false), None, "no pod waits for volumes");
}

/// The same claim or volume with another name.
pub(super) fn renamed(thing: WatchedObject, name: &str) -> WatchedObject {
    let mut thing = thing;
    match &mut thing {
        WatchedObject::PersistentVolume(volume) => volume.metadata.name = Some(name.to_owned()),
        WatchedObject::PersistentVolumeClaim(claim) => claim.metadata.name = Some(name.to_owned()),
        _ => unreachable!("a claim or a volume"),
    }
    thing
}

#[test]
fn unrelated_events_cause_no_check_of_a_pod_waiting_for_its_volumes() {
    let things = [node("a", "8"), node("b", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
    let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
    scheduler.volumes_written(written(&pod, "5"), at(1));
    let mut looks = |told: WatchEvent| {
        let before = scheduler.binding_volumes.looks;
        scheduler.handle(told, at(2));
        scheduler.binding_volumes.looks - before
    };
    assert_eq!(looks(WatchEvent::Set(renamed(claim("1", false), "d"))), 0);
    assert_eq!(looks(WatchEvent::Set(renamed(volume("1", Value::Null), "w"))), 0);
    assert_eq!(looks(WatchEvent::Set(node("b", "9"))), 0);
    assert_eq!(looks(WatchEvent::Set(node("a", "9"))), 1);
    assert_eq!(looks(WatchEvent::Set(volume("5", given()))), 1);
    assert_eq!(looks(WatchEvent::Set(claim("6", true))), 1);
    assert_eq!(looks(WatchEvent::Set(claim("7", true))), 0, "it is bound");
}

#[test]
fn pod_is_bound_when_the_volume_provisioned_for_its_claim_is_observed() {
    let class = json!({"metadata": {"name": "local"}, "provisioner": "d",
        "volumeBindingMode": "WaitForFirstConsumer"});
    let things = [node("a", "8"), with_claim("p"), WatchedObject::StorageClass(object(class))];
    let mut scheduler = scheduler_with(things.into_iter().chain([claim("1", false)]).collect());
    let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is made first");
    scheduler.volumes_written(written(&pod, "5"), at(1));
    let mut bound_claim = claim("6", true);
    if let WatchedObject::PersistentVolumeClaim(claim) = &mut bound_claim {
        let all = claim.metadata.annotations.get_or_insert_default();
        all.insert("volume.kubernetes.io/selected-node".to_owned(), "a".to_owned());
    }
    scheduler.handle(WatchEvent::Set(bound_claim), at(2));
    assert_eq!(scheduler.take_commands(), [], "the volume is not known yet");
    scheduler.handle(WatchEvent::Set(volume("4", Value::Null)), at(3));
    assert!(scheduler.take_commands().iter().find_map(bound).is_some());
}

#[test]
fn pod_whose_volumes_are_not_bound_in_time_is_requeued_with_an_error() {
    let things = [node("a", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
    let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
    scheduler.volumes_written(written(&pod, "5"), at(1));
    assert_eq!(scheduler.next_due(false), Some(at(600)));
    assert_eq!(decide(&mut scheduler, 599), []);
    let (reason, message) = condition(&decide(&mut scheduler, 600)).expect("a condition");
    assert_eq!(reason, "SchedulerError");
    let why =
        "running PreBind plugin \"VolumeBinding\": binding volumes: context deadline exceeded";
    assert_eq!(message, why);
    assert_eq!(scheduler.take_commands(), []);
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::ErrorBackoff)), (0, 1));
}

#[test]
fn a_volume_that_could_not_be_written_is_free_again() {
    let things = [node("a", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
    let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
    let error = Some("the object has been modified".to_owned());
    let failed = VolumeWrites { pod: pod.clone(), number: 1, versions: vec![], error };
    scheduler.volumes_written(failed.clone(), at(1));
    let message = condition(&scheduler.take_commands()).expect("a condition").1;
    let why = "running PreBind plugin \"VolumeBinding\": the object has been modified";
    assert_eq!(message, why);
    assert_eq!(binds_volumes(&decide(&mut scheduler, 30)), Some(pod));
    // The result of the earlier writes does not concern the current ones.
    scheduler.volumes_written(failed, at(31));
    assert_eq!((scheduler.take_commands(), scheduler.assumed()), (vec![], 1));
}

#[test]
fn volume_wait_fails_at_once_when_claim_volume_or_node_is_deleted() {
    let gone: [(&str, WatchEvent); 3] = [
        (
            "failed to check binding: persistentvolumeclaims \"default/c\" not found",
            WatchEvent::Gone(claim("1", false)),
        ),
        (
            "failed to check binding: persistentvolumes \"v\" not found",
            WatchEvent::Gone(volume("1", Value::Null)),
        ),
        ("failed to get node \"a\": node \"a\" not found", WatchEvent::Gone(node("a", "8"))),
    ];
    for (why, told) in gone {
        let things = [node("a", "8"), with_claim("p")];
        let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
        let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
        scheduler.volumes_written(written(&pod, "5"), at(1));
        scheduler.handle(told, at(2));
        let said = condition(&scheduler.take_commands()).expect("a condition").1;
        let want = format!("running PreBind plugin \"VolumeBinding\": binding volumes: {why}");
        assert_eq!(said, want);
    }
}

#[test]
fn pod_deleted_while_waiting_for_its_volumes_releases_them() {
    let things = [node("a", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(things.into_iter().chain(volumes()).collect());
    binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
    scheduler.handle(WatchEvent::Gone(with_claim("p")), at(1));
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Binding)), (0, 0));
    // The next pod gets the volume.
    scheduler.handle(WatchEvent::Set(with_claim("q")), at(2));
    assert!(binds_volumes(&decide(&mut scheduler, 2)).is_some());
}

#[test]
fn pod_is_requeued_by_its_own_claim_and_by_no_other_claim() {
    let mut things = volumes();
    things.truncate(2);
    let pods = [node("a", "8"), with_claim("p")];
    let mut scheduler = scheduler_with(pods.into_iter().chain(things).collect());
    let message = condition(&decide(&mut scheduler, 0)).expect("a condition").1;
    let why = "0/1 nodes are available: persistentvolumeclaim \"c\" not found. not found";
    assert_eq!(message, why);
    let other = WatchedObject::PersistentVolumeClaim(object(json!({"metadata": {"name": "other",
        "namespace": "default", "resourceVersion": "2"}, "spec": {}})));
    scheduler.handle(WatchEvent::Set(other), at(30));
    assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1);
    scheduler.handle(WatchEvent::Set(claim("3", false)), at(31));
    assert!(binds_volumes(&decide(&mut scheduler, 31)).is_some());
}

/// A CSI volume and its claim, with this access mode.
pub(super) fn of_driver(name: &str, mode: &str) -> [WatchedObject; 2] {
    let of = json!({"namespace": "default", "name": name, "uid": name});
    let volume = json!({"metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"accessModes": [mode], "storageClassName": "made", "claimRef": of,
            "capacity": {"storage": "5Gi"}, "csi": {"driver": "d", "volumeHandle": name}}});
    let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name,
            "resourceVersion": "1", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": [mode], "storageClassName": "made", "volumeName": name,
            "resources": {"requests": {"storage": "5Gi"}}}});
    [
        WatchedObject::PersistentVolume(object(volume)),
        WatchedObject::PersistentVolumeClaim(object(claim)),
    ]
}

pub(super) fn using(
    name: &str,
    claim: &str,
    priority: i32,
    at_node: Option<&str>,
) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["priority"] = json!(priority);
        pod["spec"]["nodeName"] = json!(at_node);
        pod["spec"]["volumes"] =
            json!([{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]);
    })
}

/// The victims' names.
fn victims(commands: &[Command]) -> Vec<String> {
    let all = commands.iter().filter_map(|command| match command {
        Command::Evict { victims, .. } => Some(victims.iter().map(|v| v.key.name().to_owned())),
        _ => None,
    });
    all.flatten().collect()
}

#[test]
fn pod_using_a_read_write_once_pod_claim_is_preempted_by_higher_priority() {
    let things = [node("a", "8"), node("b", "8"), using("low", "c", 0, Some("a"))];
    let things = things.into_iter().chain(of_driver("c", "ReadWriteOncePod"));
    let mut scheduler = scheduler_with(things.collect());
    scheduler.handle(WatchEvent::Set(using("same", "c", 0, None)), at(1));
    let commands = decide(&mut scheduler, 1);
    assert_eq!(victims(&commands), [""; 0]);
    let why = "0/2 nodes are available: 2 node(s) unavailable due to PersistentVolumeClaim with \
        ReadWriteOncePod access mode already in-use by another pod.";
    let message = condition(&commands).expect("a condition").1;
    assert!(message.starts_with(why), "{message}");
    scheduler.handle(WatchEvent::Set(using("high", "c", 5, None)), at(2));
    let commands = decide(&mut scheduler, 2);
    assert_eq!((victims(&commands), nominated(&commands)), (vec!["low".into()], vec!["a".into()]));
}

#[test]
fn pod_with_the_last_attachment_of_a_node_is_preempted_by_higher_priority() {
    let limit =
        WatchedObject::CSINode(object(json!({"metadata": {"name": "a", "resourceVersion": "1"},
        "spec": {"drivers": [{"name": "d", "nodeID": "a", "allocatable": {"count": 1}}]}})));
    let things = [node("a", "8"), limit, using("low", "c", 0, Some("a"))];
    let made = ["c", "e"].into_iter().flat_map(|name| of_driver(name, "ReadWriteOnce"));
    let mut scheduler = scheduler_with(things.into_iter().chain(made).collect());
    scheduler.handle(WatchEvent::Set(using("high", "e", 5, None)), at(1));
    let commands = decide(&mut scheduler, 1);
    assert_eq!((victims(&commands), nominated(&commands)), (vec!["low".into()], vec!["a".into()]));
    let Some(Command::Evict { pod, .. }) =
        commands.iter().find(|command| matches!(command, Command::Evict { .. }))
    else {
        panic!("{commands:?}");
    };
    scheduler.handle(WatchEvent::Gone(using("low", "c", 0, Some("a"))), at(2));
    scheduler.evicted(&Evicted { pod: pod.clone(), all: true, took: Duration::ZERO }, at(2));
    let (bound, node) = decide(&mut scheduler, 30).iter().find_map(bound).expect("it has room");
    assert_eq!((bound.key.name(), &*node), ("high", "a"));
}
