//! Pods that others make way for: when each of them is looked at again.

use serde_json::json;

use super::tests::{at, bound, decide, knowing, node, with};
use super::*;
use crate::cycle::command::PodRef;
use crate::watch::{Thing, Told};

fn low(name: &str, at: &str) -> Thing {
    with(name, "1", |pod| pod["spec"]["nodeName"] = json!(at))
}

fn high(name: &str, cpu: &str) -> Thing {
    with(name, cpu, |pod| pod["spec"]["priority"] = json!(10))
}

/// Whom room is made for, and who goes.
fn evicts(commands: &[Command]) -> Vec<(PodRef, Vec<String>)> {
    let evicts = commands.iter().filter_map(|command| match command {
        Command::Evict { pod, victims, .. } => {
            let names = victims.iter().map(|victim| victim.key.name().to_owned());
            Some((pod.clone(), names.collect()))
        }
        _ => None,
    });
    evicts.collect()
}

fn attempts(scheduler: &Scheduler, pod: &str) -> u32 {
    scheduler.queue.get(pod).expect("it waits").attempts
}

/// Two nodes that are full, and two pods that each make one of them free; who goes for whom.
fn two_preempt() -> (Scheduler, Vec<(PodRef, Vec<String>)>) {
    let things = [node("a", "1"), node("b", "1"), low("x", "a"), low("y", "b")];
    let more = [high("p", "1"), high("q", "1")];
    let mut scheduler = knowing(things.into_iter().chain(more).collect());
    let made = evicts(&decide(&mut scheduler, 0));
    assert_eq!(made.len(), 2);
    for (pod, _) in &made {
        scheduler.evicted(&Evicted { pod: pod.clone(), all: true, took: Duration::ZERO }, at(1));
    }
    (scheduler, made)
}

fn gone(scheduler: &mut Scheduler, victim: &str, now: u64) -> Option<(PodRef, Rc<str>)> {
    let node = if victim == "x" { "a" } else { "b" };
    scheduler.tell(Told::Gone(low(victim, node)), at(now));
    decide(scheduler, now).iter().find_map(bound)
}

#[test]
fn a_victim_that_goes_wakes_nobody_but_whom_it_goes_for() {
    let (mut scheduler, made) = two_preempt();
    for (turn, (pod, victims)) in made.iter().enumerate() {
        let (placed, _) = gone(&mut scheduler, &victims[0], 5 + turn as u64).expect("it has room");
        assert_eq!(placed.uid, pod.uid);
        assert_eq!(attempts(&scheduler, &pod.uid), 2, "once in vain, once with room");
    }
}

#[test]
fn who_takes_the_room_that_was_kept_for_it_wakes_nobody() {
    let (mut scheduler, made) = two_preempt();
    let [(_, of_first), (second, _)] = &made[..] else { unreachable!("two") };
    gone(&mut scheduler, &of_first[0], 5).expect("it has room");
    // Long after: not even a backoff holds it back.
    assert_eq!(decide(&mut scheduler, 60).len(), 0);
    assert_eq!(attempts(&scheduler, &second.uid), 1);
}

#[test]
fn the_end_of_a_nomination_is_no_news_to_those_who_never_had_room() {
    let things = [node("a", "1"), low("x", "a"), high("p", "1"), with("w", "1", |_| ())];
    let mut scheduler = knowing(things.into());
    let (pod, _) = evicts(&decide(&mut scheduler, 0)).remove(0);
    scheduler.tell(Told::Gone(low("x", "a")), at(2));
    // Room is kept for the one, and the other is told so once more.
    assert_eq!(decide(&mut scheduler, 9).iter().find_map(bound), None);
    assert_eq!(attempts(&scheduler, "w"), 2);
    scheduler.evicted(&Evicted { pod, all: true, took: Duration::ZERO }, at(10));
    decide(&mut scheduler, 10).iter().find_map(bound).expect("it has its room");
    assert_eq!(decide(&mut scheduler, 90).len(), 0);
    assert_eq!(attempts(&scheduler, "w"), 2);
}

#[test]
fn room_elsewhere_is_taken_before_the_victim_is_gone() {
    let things = [node("a", "1"), node("b", "1"), low("x", "a")];
    let other = with("y", "1", |pod| {
        pod["spec"]["nodeName"] = json!("b");
        pod["spec"]["priority"] = json!(20);
    });
    let more = [other.clone(), high("p", "1")];
    let mut scheduler = knowing(things.into_iter().chain(more).collect());
    let (pod, victims) = evicts(&decide(&mut scheduler, 0)).remove(0);
    assert_eq!(victims, ["x"]);
    scheduler.evicted(&Evicted { pod, all: true, took: Duration::ZERO }, at(1));
    scheduler.tell(Told::Gone(other), at(2));
    let (_, at) = decide(&mut scheduler, 9).iter().find_map(bound).expect("b has room");
    assert_eq!(&*at, "b");
}

#[test]
fn the_last_victim_wakes_also_whoever_has_lost_its_room_meanwhile() {
    let (mut scheduler, made) = two_preempt();
    let [(first, victims), (second, others)] = &made[..] else { unreachable!("two") };
    // Somebody else binds a pod where room was kept.
    let kept =
        scheduler.mirror.nomination(scheduler.queue.get(&first.uid).expect("waits").pod.spec.key);
    let node = Rc::clone(&kept.expect("it has a nomination").node);
    let thief = with("thief", "1", |pod| {
        pod["spec"]["nodeName"] = json!(&*node);
        pod["spec"]["priority"] = json!(5);
    });
    scheduler.tell(Told::Set(thief), at(2));
    scheduler.tell(Told::Gone(low(&victims[0], &node)), at(3));
    let made = evicts(&decide(&mut scheduler, 9));
    let again = made.iter().find(|(pod, _)| pod.uid == first.uid).expect("it makes room anew");
    assert_eq!(again.1, ["thief"]);
    assert_eq!(attempts(&scheduler, &second.uid), 1);
    assert_eq!(gone(&mut scheduler, &others[0], 12).map(|(pod, _)| pod), Some(second.clone()));
}

#[test]
fn whoever_was_refused_its_victims_is_told_of_any_that_goes() {
    let (mut scheduler, made) = two_preempt();
    let [(first, _), (_, others)] = &made[..] else { unreachable!("two") };
    let asked = Rc::clone(&scheduler.queue.get(&first.uid).expect("it waits").pod);
    asked.preempts.set(true);
    scheduler.evicted(&Evicted { pod: first.clone(), all: false, took: Duration::ZERO }, at(2));
    assert!(asked.victims.borrow().is_empty());
    scheduler.tell(Told::Gone(low(&others[0], if others[0] == "x" { "a" } else { "b" })), at(3));
    decide(&mut scheduler, 9);
    assert!(attempts(&scheduler, &first.uid) > 1);
}

#[test]
fn whom_room_is_kept_for_counts_as_it_is_now() {
    let kept = |change: &dyn Fn(&mut serde_json::Value)| {
        with("p", "3", |pod| {
            pod["status"] = json!({"nominatedNodeName": "n"});
            change(pod);
        })
    };
    let mut scheduler = knowing(vec![node("n", "1"), kept(&|_| ())]);
    let leaving = kept(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"));
    for (changed, is_leaving) in
        [(kept(&|pod| pod["metadata"]["labels"] = json!({"a": "b"})), false), (leaving, true)]
    {
        scheduler.tell(Told::Set(changed), at(1));
        let [(_, nominee)] = &scheduler.mirror.nominated_on("n")[..] else { panic!("one") };
        assert_eq!(nominee.spec, scheduler.queue.get("p").expect("it waits").pod.spec);
        assert_eq!(nominee.spec.terminating, is_leaving);
    }
}
