//! Pods that preempt: when each of them is retried.

use serde_json::{Value, json};

use super::device_tests as devices;
use super::tests::{
    answer, asking, at, binds_volumes, bound, condition, decide, deliver_lists, node, nominated,
    pod, question, scheduler_with, volumes, with, with_claim, without_second_look, written,
};
use super::wake_tests::node_like;
use super::*;
use crate::extender::{Consulted, ExtenderCall, ExtenderError, consulted::Nodes};
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedObject};

fn low(name: &str, at: &str) -> WatchedObject {
    with(name, "1", |pod| pod["spec"]["nodeName"] = json!(at))
}

fn high(name: &str, cpu: &str) -> WatchedObject {
    with(name, cpu, |pod| pod["spec"]["priority"] = json!(10))
}

/// The preemptors, each with the names of its victims.
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

/// Two full nodes, and two pods that each preempt on one of them; the preemptors and their victims.
fn two_preempt() -> (Scheduler, Vec<(PodRef, Vec<String>)>) {
    let things = [node("a", "1"), node("b", "1"), low("x", "a"), low("y", "b")];
    let more = [high("p", "1"), high("q", "1")];
    let mut scheduler = scheduler_with(things.into_iter().chain(more).collect());
    let made = evicts(&decide(&mut scheduler, 0));
    assert_eq!(made.len(), 2);
    for (pod, _) in &made {
        scheduler.evicted(&Evicted { pod: pod.clone(), all: true, took: Duration::ZERO }, at(1));
    }
    (scheduler, made)
}

fn gone(scheduler: &mut Scheduler, victim: &str, now: u64) -> Option<(PodRef, Rc<str>)> {
    let node = if victim == "x" { "a" } else { "b" };
    scheduler.handle(WatchEvent::Gone(low(victim, node)), at(now));
    decide(scheduler, now).iter().find_map(bound)
}

#[test]
fn deleted_victim_wakes_only_its_preemptor() {
    let (mut scheduler, made) = two_preempt();
    for (turn, (pod, victims)) in made.iter().enumerate() {
        let (placed, _) = gone(&mut scheduler, &victims[0], 5 + turn as u64).expect("it has room");
        assert_eq!(placed.uid, pod.uid);
        assert_eq!(attempts(&scheduler, &pod.uid), 2, "once in vain, once with room");
    }
}

#[test]
fn pod_bound_to_its_nominated_node_wakes_no_pod() {
    let (mut scheduler, made) = two_preempt();
    let [(_, of_first), (second, _)] = &made[..] else { unreachable!("two") };
    gone(&mut scheduler, &of_first[0], 5).expect("it has room");
    // Long after: not even backoff delays the pod.
    assert_eq!(decide(&mut scheduler, 60).len(), 0);
    assert_eq!(attempts(&scheduler, &second.uid), 1);
}

#[test]
fn ended_nomination_does_not_requeue_pods_that_never_had_room() {
    let things = [node("a", "1"), low("x", "a"), high("p", "1"), with("w", "1", |_| ())];
    let mut scheduler = scheduler_with(things.into());
    let (pod, _) = evicts(&decide(&mut scheduler, 0)).remove(0);
    scheduler.handle(WatchEvent::Gone(low("x", "a")), at(2));
    // Room is reserved for the nominated pod; the other pod is rejected once more.
    assert_eq!(decide(&mut scheduler, 9).iter().find_map(bound), None);
    assert_eq!(attempts(&scheduler, "w"), 2);
    scheduler.evicted(&Evicted { pod, all: true, took: Duration::ZERO }, at(10));
    decide(&mut scheduler, 10).iter().find_map(bound).expect("it has its room");
    assert_eq!(decide(&mut scheduler, 90).len(), 0);
    assert_eq!(attempts(&scheduler, "w"), 2);
}

#[test]
fn preemptor_is_bound_elsewhere_before_its_victim_is_deleted() {
    let things = [node("a", "1"), node("b", "1"), low("x", "a")];
    let other = with("y", "1", |pod| {
        pod["spec"]["nodeName"] = json!("b");
        pod["spec"]["priority"] = json!(20);
    });
    let more = [other.clone(), high("p", "1")];
    let mut scheduler = scheduler_with(things.into_iter().chain(more).collect());
    let (pod, victims) = evicts(&decide(&mut scheduler, 0)).remove(0);
    assert_eq!(victims, ["x"]);
    scheduler.evicted(&Evicted { pod, all: true, took: Duration::ZERO }, at(1));
    scheduler.handle(WatchEvent::Gone(other), at(2));
    let (_, at) = decide(&mut scheduler, 9).iter().find_map(bound).expect("b has room");
    assert_eq!(&*at, "b");
}

#[test]
fn pod_preempts_elsewhere_after_its_nominated_node_is_closed_or_deleted() {
    let a = |spec: Value| {
        node_like("a", |node| {
            node["spec"] = spec;
            node["status"]["allocatable"]["cpu"] = json!("1");
        })
    };
    let tainted = a(json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}));
    let cordoned = WatchEvent::Set(a(json!({"unschedulable": true})));
    let tiny = with("tiny", "0", |pod| pod["spec"]["nodeName"] = json!("b"));
    let changes = [
        ("tainted", vec![WatchEvent::Set(tainted)]),
        ("gone", vec![WatchEvent::Gone(a(json!({})))]),
        // A cordon requeues no pod, but the later deletion of a pod elsewhere does.
        ("cordoned", vec![cordoned, WatchEvent::Gone(tiny.clone())]),
    ];
    for (what, told) in changes {
        let things = [a(json!({})), low("x", "a"), high("p", "1")];
        let mut scheduler = scheduler_with(things.into());
        let (pod, victims) = evicts(&decide(&mut scheduler, 0)).remove(0);
        assert_eq!(victims, ["x"], "{what}");
        scheduler.evicted(&Evicted { pod, all: true, took: Duration::ZERO }, at(1));
        for thing in [leaves("x", "a"), low("y", "b"), tiny.clone(), node("b", "1")] {
            scheduler.handle(WatchEvent::Set(thing), at(2));
        }
        assert_eq!(evicts(&decide(&mut scheduler, 9)), [], "{what}: its victim still goes");
        told.into_iter().for_each(|told| _ = scheduler.handle(told, at(20)));
        let again = evicts(&decide(&mut scheduler, 40));
        assert_eq!(again.first().map(|(_, victims)| &victims[0][..]), Some("y"), "{what}");
    }
}

#[test]
fn last_victim_wakes_its_preemptor_even_if_its_room_was_taken_meanwhile() {
    let (mut scheduler, made) = two_preempt();
    let [(first, victims), (second, others)] = &made[..] else { unreachable!("two") };
    // Another scheduler binds a pod on the nominated node.
    let kept =
        scheduler.cache.nomination(scheduler.queue.get(&first.uid).expect("waits").pod.spec.key);
    let node = Rc::clone(&kept.expect("it has a nomination").node);
    let thief = with("thief", "1", |pod| {
        pod["spec"]["nodeName"] = json!(&*node);
        pod["spec"]["priority"] = json!(5);
    });
    scheduler.handle(WatchEvent::Set(thief), at(2));
    scheduler.handle(WatchEvent::Gone(low(&victims[0], &node)), at(3));
    let made = evicts(&decide(&mut scheduler, 9));
    let again = made.iter().find(|(pod, _)| pod.uid == first.uid).expect("it preempts again");
    assert_eq!(again.1, ["thief"]);
    assert_eq!(attempts(&scheduler, &second.uid), 1);
    assert_eq!(gone(&mut scheduler, &others[0], 12).map(|(pod, _)| pod), Some(second.clone()));
}

#[test]
fn pod_with_a_failed_eviction_is_woken_by_any_deleted_pod() {
    let (mut scheduler, made) = two_preempt();
    let [(first, _), (_, others)] = &made[..] else { unreachable!("two") };
    let asked = Rc::clone(&scheduler.queue.get(&first.uid).expect("it waits").pod);
    asked.preempts.set(true);
    scheduler.evicted(&Evicted { pod: first.clone(), all: false, took: Duration::ZERO }, at(2));
    assert!(asked.victims.borrow().is_empty());
    scheduler
        .handle(WatchEvent::Gone(low(&others[0], if others[0] == "x" { "a" } else { "b" })), at(3));
    decide(&mut scheduler, 9);
    assert!(attempts(&scheduler, &first.uid) > 1);
}

#[test]
fn nomination_follows_updates_of_the_nominated_pod() {
    let kept = |change: &dyn Fn(&mut serde_json::Value)| {
        with("p", "3", |pod| {
            pod["status"] = json!({"nominatedNodeName": "n"});
            change(pod);
        })
    };
    let mut scheduler = scheduler_with(vec![node("n", "1"), kept(&|_| ())]);
    let leaving = kept(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"));
    for (changed, is_leaving) in
        [(kept(&|pod| pod["metadata"]["labels"] = json!({"a": "b"})), false), (leaving, true)]
    {
        scheduler.handle(WatchEvent::Set(changed), at(1));
        let [(_, nominee)] = &scheduler.cache.nominated_on("n")[..] else { panic!("one") };
        assert_eq!(nominee.spec, scheduler.queue.get("p").expect("it waits").pod.spec);
        assert_eq!(nominee.spec.terminating, is_leaving);
    }
}

/// A more important pod preempts a pod that is not bound yet, and gets its node at once. Returns
/// the victim's message.
fn unbound_makes_way(scheduler: &mut Scheduler) -> String {
    scheduler.handle(WatchEvent::Set(high("h", "1")), at(5));
    let commands = decide(scheduler, 5);
    assert_eq!(evicts(&commands), [], "no pod is deleted");
    let told = commands.iter().any(|command| match command {
        Command::RecordEvent(note) => note.note.ends_with("on node a (in kube-scheduler memory)."),
        _ => false,
    });
    assert!(told, "the victim gets an event");
    let (reason, why) = condition(&commands).expect("the victim's condition");
    assert_eq!(reason, "SchedulerError");
    let bound: Vec<PodRef> = commands.iter().filter_map(bound).map(|(pod, _)| pod).collect();
    assert_eq!(bound.len(), 1, "there is room at once");
    assert_eq!(bound[0].key.name(), "h");
    why
}

#[test]
fn pod_binding_its_volumes_is_preempted_without_deletion() {
    let things = [node("a", "1"), with_claim("p")];
    for is_written in [false, true] {
        let things = things.iter().cloned().chain(volumes());
        let mut scheduler = scheduler_with(things.collect());
        let pod = binds_volumes(&decide(&mut scheduler, 0)).expect("its volume is bound first");
        if is_written {
            scheduler.volumes_written(written(&pod, "5"), at(1));
        }
        let why = unbound_makes_way(&mut scheduler);
        let want = "running PreBind plugin \"VolumeBinding\": preempted by DefaultPreemption";
        assert_eq!(why, want);
        if !is_written {
            // The result comes too late.
            scheduler.volumes_written(written(&pod, "5"), at(21));
            assert_eq!(scheduler.take_commands(), []);
        }
    }
}

#[test]
fn pod_waiting_for_its_devices_is_preempted_without_deletion() {
    let things = vec![
        devices::class(),
        node("a", "1"),
        devices::conditional(),
        devices::claim("c"),
        devices::user("p", "c"),
    ];
    let mut scheduler = scheduler_with(things);
    let asked = devices::reserves(&decide(&mut scheduler, 0)).expect("asked for");
    devices::answer(&mut scheduler, &asked, 1);
    let why = unbound_makes_way(&mut scheduler);
    let want = "running PreBind plugin \"DynamicResources\": preempted by DefaultPreemption";
    assert_eq!(why, want);
    assert_eq!(devices::waits(&mut scheduler), [("error", 4)]);
}

/// `a` has room for the pod and a less important pod, `b` is full of such; an extender rejects
/// both.
fn rejected_by_an_extender(failed: &[(&str, bool)]) -> Vec<Command> {
    let things = [node("a", "2"), node("b", "1"), low("x", "a"), low("y", "b"), high("p", "1")];
    let mut scheduler = asking(|e| e.filter_verb = "filter".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let failed = failed
        .iter()
        .map(|(node, is_final)| ((*node).to_owned(), (*is_final, "no licence".to_owned())));
    let nodes = Nodes { failed: failed.collect(), ..Nodes::default() };
    scheduler.consulted(answer(&consult, nodes), at(0));
    scheduler.take_commands()
}

#[test]
fn no_pod_is_preempted_on_a_node_that_an_extender_filters_out() {
    for failed in [&[][..], &[("a", false)], &[("a", true)]] {
        let commands = rejected_by_an_extender(failed);
        let (pod, victims) = evicts(&commands).remove(0);
        assert_eq!((&*pod.uid, victims), ("p", vec!["y".to_owned()]));
        assert_eq!(nominated(&commands), ["b"]);
    }
}

#[test]
fn preemption_without_victims_fails_and_reports_the_error() {
    let things = [node("a", "2"), low("x", "a"), high("p", "1")];
    let mut scheduler = asking(|e| e.filter_verb = "filter".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let failed = [("a".to_owned(), (false, "no licence".to_owned()))].into();
    scheduler.consulted(answer(&consult, Nodes { failed, ..Nodes::default() }), at(0));
    let commands = scheduler.take_commands();
    let (reason, why) = condition(&commands).expect("a condition");
    let want = "0/1 nodes are available: 1 no licence. preemption: expected at least one victim pod \
        on node \"a\"";
    assert_eq!((reason.as_str(), why.as_str()), ("Unschedulable", want));
    assert_eq!((evicts(&commands), nominated(&commands)), (vec![], vec![]));
    assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1);
}

#[test]
fn extenders_that_fail_about_victims_leave_the_pod_unschedulable() {
    let things = [node("a", "1"), low("x", "a"), high("p", "1")];
    let mut scheduler = asking(|e| e.preempt_verb = "preempt".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let answer = Err(ExtenderError::Answered("no answer".to_owned()));
    scheduler.consulted(Consulted { about: consult.about.clone(), answer }, at(0));
    let commands = scheduler.take_commands();
    let (reason, why) = condition(&commands).expect("a condition");
    let want = "0/1 nodes are available: 1 Insufficient cpu. preemption: no answer";
    assert_eq!((reason.as_str(), why.as_str()), ("Unschedulable", want));
    assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1, "it waits for what happens");
}

#[test]
fn an_extender_that_fails_about_the_kept_node_is_asked_about_all() {
    let kept = with("p", "1", |pod| pod["status"] = json!({"nominatedNodeName": "a"}));
    let things = [node("a", "8"), node("b", "8"), kept];
    let mut scheduler = asking(|e| e.filter_verb = "filter".to_owned(), &things);
    let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
    let answer = Err(ExtenderError::Answered("no answer".to_owned()));
    scheduler.consulted(Consulted { about: consult.about.clone(), answer }, at(0));
    let consult = question(&scheduler.take_commands()).expect("it is asked again");
    let ExtenderCall::Nodes { names, .. } = consult.question else { panic!("of nodes") };
    assert_eq!(names.len(), 2);
}

#[test]
fn no_pod_is_preempted_for_affinity_to_a_pod_that_is_only_nominated() {
    let wants = json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "db"}}}]}});
    let expected = with("db", "2", |pod| {
        pod["metadata"]["labels"] = json!({"app": "db"});
        pod["spec"]["priority"] = json!(100);
        pod["status"] = json!({"nominatedNodeName": "n"});
    });
    let going = with("v", "2", |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    });
    let stays = with("w", "2", |pod| pod["spec"]["nodeName"] = json!("n"));
    let friend = with("p", "2", |pod| {
        pod["spec"]["priority"] = json!(100);
        pod["spec"]["affinity"] = wants;
    });
    let mut scheduler = scheduler_with(vec![node("n", "4"), expected, going, stays, friend]);
    let commands = decide(&mut scheduler, 0);
    let of_friend = |pod: &PodRef| &*pod.uid == "p";
    assert!(!evicts(&commands).iter().any(|(pod, _)| of_friend(pod)), "{commands:?}");
    let told = commands.iter().any(|command| match command {
        Command::Status { pod, condition: Some(condition), .. } if pod.uid() == Some("p") => {
            let message = condition.message.as_deref().unwrap_or_default();
            message.ends_with("1 node(s) didn't match pod affinity rules.")
        }
        _ => false,
    });
    assert!(told, "{commands:?}");
}

/// A victim on a node that is still terminating.
fn leaves(name: &str, at: &str) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["nodeName"] = json!(at);
        pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler"}]);
    })
}

/// A pod that is nominated to this node.
fn expected(name: &str, priority: i32, at: &str) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["priority"] = json!(priority);
        pod["status"] = json!({"nominatedNodeName": at});
    })
}

#[test]
fn pod_that_preempts_no_pod_clears_no_other_nomination() {
    let stays = with("y", "1", |pod| {
        pod["spec"]["nodeName"] = json!("b");
        pod["spec"]["priority"] = json!(1);
    });
    let things = [node("a", "1"), node("b", "1"), leaves("x", "a"), stays];
    let pods = [expected("q", 5, "a"), high("p", "1")];
    let mut scheduler = scheduler_with(things.into_iter().chain(pods).collect());
    let commands = [decide(&mut scheduler, 0), decide(&mut scheduler, 60)].concat();
    assert_eq!(evicts(&commands), []);
    assert_eq!(nominated(&commands), ["a"], "of the one that came");
    assert_eq!(scheduler.cache.nominated_on("a").len(), 2);
}

#[test]
fn nomination_of_an_unresolvable_pod_is_cleared_despite_a_pending_victim() {
    // If DynamicResources did not run before, its PostFilter fails, and preemption does not run.
    for (devices, end, is_kept) in [
        (false, "1 Preemption is not helpful for scheduling.", false),
        (true, "persistentvolumeclaim \"c\" not found. not found", true),
    ] {
        let lacks = with("p", "1", |pod| {
            pod["spec"]["priority"] = json!(10);
            pod["spec"]["volumes"] =
                json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
            pod["status"] = json!({"nominatedNodeName": "a"});
        });
        let mut profile = Profile::default();
        profile.filters[Plugin::DynamicResources as usize] = devices;
        let mut scheduler = Scheduler::new(vec![profile], without_second_look(), 1);
        deliver_lists(&mut scheduler, &[node("a", "1"), leaves("x", "a"), lacks]);
        let commands = decide(&mut scheduler, 0);
        let (_, message) = condition(&commands).expect("a condition");
        assert!(message.contains("persistentvolumeclaim \"c\" not found"), "{message}");
        assert!(message.ends_with(end), "{message}");
        assert_eq!(nominated(&commands).is_empty(), is_kept);
        assert_eq!(scheduler.cache.nominated_on("a").len(), usize::from(is_kept));
    }
}

#[test]
fn the_search_for_victims_begins_anywhere() {
    let nodes = 150;
    let names: Vec<String> = (0..nodes).map(|number| format!("n{number}")).collect();
    let full = names.iter().flat_map(|name| [node(name, "1"), low(&format!("x-{name}"), name)]);
    let things: Vec<WatchedObject> = full.chain([high("p", "1")]).collect();
    let chosen = |seed| {
        let mut scheduler = Scheduler::new(Vec::new(), without_second_look(), seed);
        super::tests::deliver_lists(&mut scheduler, &things);
        evicts(&decide(&mut scheduler, 0)).remove(0).1.remove(0)
    };
    let all: std::collections::BTreeSet<String> = (1..6).map(|seed| chosen(seed * 7919)).collect();
    assert!(all.len() > 1, "always {all:?}");
}

#[test]
fn no_room_is_kept_for_pods_of_other_schedulers() {
    let theirs = with("q", "1", |pod| {
        pod["spec"]["schedulerName"] = json!("theirs");
        pod["spec"]["priority"] = json!(10);
        pod["status"] = json!({"nominatedNodeName": "n"});
    });
    let mut scheduler = scheduler_with(vec![node("n", "1"), theirs, pod("p", "1")]);
    let (pod, _) = decide(&mut scheduler, 0).iter().find_map(bound).expect("it has room");
    assert_eq!(&*pod.uid, "p");
}

#[test]
fn deleted_service_no_longer_spreads_pods() {
    let service = || {
        let service = json!({"metadata": {"name": "s", "namespace": "default"},
            "spec": {"selector": {"app": "web"}}});
        WatchedObject::Service(super::tests::object(service))
    };
    let zoned = |name: &str| {
        let WatchedObject::Node(mut node) = node(name, "9") else { unreachable!("a node") };
        let labels = node.metadata.labels.get_or_insert_default();
        labels.insert("topology.kubernetes.io/zone".to_owned(), name.to_owned());
        WatchedObject::Node(node)
    };
    let web = |name: &str, cpu: &str, at: Option<&str>| {
        with(name, cpu, |pod| {
            pod["metadata"]["labels"] = json!({"app": "web"});
            at.into_iter().for_each(|at| pod["spec"]["nodeName"] = json!(at));
        })
    };
    // All pods of the service are on the node that has more room.
    let there = ["1", "2", "3"].map(|name| web(name, "10m", Some("b")));
    let filler = with("f", "2", |pod| pod["spec"]["nodeName"] = json!("a"));
    let things = [zoned("a"), zoned("b"), filler, service()];
    let mut scheduler = scheduler_with(things.into_iter().chain(there).collect());
    let mut chosen = |name: &str, now| {
        scheduler.handle(WatchEvent::Set(web(name, "1", None)), at(now));
        let (_, node) = decide(&mut scheduler, now).iter().find_map(bound).expect("it has room");
        scheduler.handle(WatchEvent::Gone(web(name, "1", None)), at(now));
        scheduler.handle(WatchEvent::Gone(service()), at(now));
        node
    };
    assert_eq!(&*chosen("p", 0), "a");
    assert_eq!(&*chosen("q", 1), "b");
}

/// A claim with a CSI volume, and the volume.
fn attached(name: &str) -> [WatchedObject; 2] {
    let claim = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": "1",
            "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "volumeName": name, "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}}},
        "status": {"phase": "Bound"}});
    let volume = json!({
        "metadata": {"name": name, "resourceVersion": "1"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "default", "name": name, "uid": name},
            "csi": {"driver": "d.example", "volumeHandle": name}}});
    [
        WatchedObject::PersistentVolumeClaim(super::tests::object(claim)),
        WatchedObject::PersistentVolume(super::tests::object(volume)),
    ]
}

fn with_claims(
    name: &str,
    claims: &[&str],
    change: impl FnOnce(&mut serde_json::Value),
) -> WatchedObject {
    with(name, "100m", |pod| {
        let volume =
            |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
        pod["spec"]["volumes"] = claims.iter().map(volume).collect();
        change(pod);
    })
}

#[test]
fn volumes_of_pods_that_room_is_kept_for_count() {
    let limit = json!({"metadata": {"name": "n"}, "spec": {"drivers": [
        {"name": "d.example", "nodeID": "n", "allocatable": {"count": 2}}]}});
    let expected = |claims: &[&str]| {
        with_claims("h", claims, |pod| {
            pod["spec"]["priority"] = json!(10);
            pod["status"] = json!({"nominatedNodeName": "n"});
        })
    };
    // A terminating pod still has one of the two attachments.
    let leaving = with_claims("l", &["c0"], |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    });
    for (claims, fits) in [(&["c1", "c2"][..], false), (&[][..], true)] {
        let late = with_claims("m", &["c3"], |pod| pod["spec"]["priority"] = json!(5));
        let things = [node("n", "8"), expected(claims), leaving.clone(), late];
        let csi_node = WatchedObject::CSINode(super::tests::object(limit.clone()));
        let volumes = ["c0", "c1", "c2", "c3"].into_iter().flat_map(attached);
        let mut scheduler =
            scheduler_with(things.into_iter().chain([csi_node]).chain(volumes).collect());
        let commands = decide(&mut scheduler, 0);
        let mut all = commands.iter().filter_map(bound);
        assert_eq!(all.any(|(pod, _)| &*pod.uid == "m"), fits, "{claims:?}: {commands:?}");
    }
}
