//! Explanations of pods in clusters of a few nodes.

use pintle_api_types::key::ObjectKey;
use pintle_sched_core::Profile;
use serde_json::{Value, json};

use super::*;
use crate::cycle::Scheduler;
use crate::cycle::tests::{at, decide, deliver_lists, with};
use crate::queue::Settings;
use crate::watch_event::{WatchEvent, WatchedObject};

fn node(name: &str, cpu: &str, taints: Value) -> WatchedObject {
    let node = json!({"metadata": {"name": name}, "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}});
    WatchedObject::Node(Box::new(serde_json::from_value(node).expect("a node")))
}

fn pod(name: &str, cpu: &str, priority: i32, node: Option<&str>) -> Pod {
    let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    serde_json::from_value(pod).expect("a pod")
}

fn cache(objects: Vec<WatchedObject>) -> ClusterCache {
    cache_with(vec![Profile::default()], objects)
}

fn cache_with(profiles: Vec<Profile>, objects: Vec<WatchedObject>) -> ClusterCache {
    let mut cache = ClusterCache::with_profiles(profiles);
    for object in objects {
        for step in cache.list(WatchEvent::Listed(object)) {
            cache.make(&step);
        }
    }
    cache
}

fn bound(name: &str, cpu: &str, node: &str) -> WatchedObject {
    WatchedObject::Pod(Box::new(pod(name, cpu, 0, Some(node))))
}

#[test]
fn an_unschedulable_pod_shows_rejections_remedy_and_preemption() {
    let tainted = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
    let mut cache = cache(vec![
        node("n1", "2", json!([])),
        node("n2", "4", tainted),
        node("n3", "1", json!([])),
        bound("small", "1500m", "n1"),
    ]);
    let mut evaluator = PodEvaluator::default();
    let answer =
        explain(&mut cache, &mut evaluator, &pod("p", "1800m", 5, None), None).expect("read");
    let message = answer.message.as_deref().expect("it fits nowhere");
    assert!(message.starts_with("0/3 nodes are available: 1 node(s) had untolerated"), "{message}");
    assert_eq!(answer.rejected.iter().map(|g| g.count).sum::<usize>(), 3);
    assert_eq!(answer.nearest[0].node.as_deref(), Some("n1"));
    let eviction = answer.preemption.as_ref().expect("preemption is possible");
    assert_eq!((eviction.node.as_str(), eviction.victims.len()), ("n1", 1));
    let text = answer.to_string();
    for part in ["Rejected:", "It would fit on node n1: free 1300m cpu", "would evict from n1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_bound_pod_is_explained_as_if_unbound_and_stays_bound() {
    let mut cache = cache(vec![node("n1", "2", json!([])), bound("p", "1500m", "n1")]);
    let mut evaluator = PodEvaluator::default();
    let before = cache.cluster.view().numbers(0);
    let found = explain(&mut cache, &mut evaluator, &pod("p", "1500m", 0, Some("n1")), None);
    let answer = found.expect("read");
    assert_eq!((answer.feasible, answer.bound_to.as_deref()), (1, Some("n1")));
    assert_eq!(cache.cluster.view().numbers(0), before);
}

#[test]
fn room_of_a_nominated_pod_is_not_free_at_its_priority_or_below() {
    let mut waiting = pod("first", "1500m", 10, None);
    waiting.status = serde_json::from_value(json!({"nominatedNodeName": "n1"})).expect("a status");
    let objects = vec![node("n1", "2", json!([])), WatchedObject::Pod(Box::new(waiting))];
    let mut evaluator = PodEvaluator::default();
    let mut asks = |cache: &mut ClusterCache, cpu: &str, priority| {
        let asked = pod("second", cpu, priority, None);
        explain(cache, &mut evaluator, &asked, None).expect("read")
    };
    // Independent of the enabled plugins.
    let mut without_node_names = Profile::default();
    without_node_names.filters[pintle_sched_core::Plugin::NodeName as usize] = false;
    for profile in [without_node_names, Profile::default()] {
        let mut cache = cache_with(vec![profile], objects.clone());
        let feasible = [5, 10, 11].map(|priority| asks(&mut cache, "1", priority).feasible);
        assert_eq!(feasible, [0, 0, 1]);
    }
    let mut cache = cache(objects);
    let mut asks = |cpu: &str, priority| asks(&mut cache, cpu, priority);
    let wait = "wait until the pods nominated to it are bound (Insufficient cpu)";
    let text = asks("1", 5).to_string();
    assert!(text.contains(&format!("It would fit on node n1: {wait}\n")), "{text}");
    let text = asks("2500m", 5).to_string();
    let both = "ask for 500m less cpu (more than the node has)\n";
    assert!(text.contains(&format!("It would fit on node n1: {both}")), "{text}");
}

#[test]
fn an_explained_pod_still_uses_its_disk() {
    let with_disk = |name: &str, node: Option<&str>| {
        let mut pod = pod(name, "1", 0, node);
        let disks = json!([{"name": "d", "gcePersistentDisk": {"pdName": "d"}}]);
        pod.spec.as_mut().expect("a spec").volumes = serde_json::from_value(disks).expect("disks");
        pod
    };
    let user = with_disk("p", Some("n1"));
    let mut cache =
        cache(vec![node("n1", "4", json!([])), WatchedObject::Pod(Box::new(user.clone()))]);
    let mut evaluator = PodEvaluator::default();
    let mut feasible = |pod| explain(&mut cache, &mut evaluator, pod, None).expect("read").feasible;
    let other = with_disk("q", None);
    assert_eq!((feasible(&other), feasible(&user), feasible(&other)), (0, 1, 0));
    let text = explain(&mut cache, &mut evaluator, &other, None).expect("read").to_string();
    let advice = "It would fit on node n1: create or change what its volumes need (node(s) had no";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn a_missing_claim_is_named_in_the_remedy() {
    let mut cache = cache(vec![node("n1", "4", json!([]))]);
    let mut asked = pod("p", "1", 0, None);
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    asked.spec.as_mut().expect("a spec").volumes = serde_json::from_value(volumes).expect("read");
    let answer = explain(&mut cache, &mut PodEvaluator::default(), &asked, None).expect("read");
    let text = answer.to_string();
    let advice = "It would fit if you create or change what its volumes need (persistent";
    assert!(text.contains(advice), "{text}");
    assert!(!text.contains("affinity"), "{text}");
}

#[test]
fn a_pod_is_explained_by_the_profile_of_its_scheduler_name() {
    let mut batch = Profile { scheduler_name: "batch".to_owned(), ..Profile::default() };
    batch.filters[pintle_sched_core::Plugin::NodeResourcesFit as usize] = false;
    let objects = vec![node("n1", "1", json!([]))];
    let mut cache = cache_with(vec![Profile::default(), batch], objects);
    let mut asks = |scheduler: &str| {
        let mut asked = pod("p", "2", 0, None);
        asked.spec.as_mut().expect("a spec").scheduler_name = Some(scheduler.to_owned());
        explain(&mut cache, &mut PodEvaluator::default(), &asked, None).expect("read")
    };
    for (scheduler, feasible, notes) in
        [("batch", 1, 0), ("default-scheduler", 0, 0), ("", 0, 0), ("bacth", 0, 1)]
    {
        let answer = asks(scheduler);
        assert_eq!((answer.feasible, answer.notes.len()), (feasible, notes), "{scheduler}");
    }
    let text = asks("bacth").to_string();
    assert!(text.contains("Note: no profile is named \"bacth\", its schedulerName: "), "{text}");
}

#[test]
fn preemption_names_victims_deciding_rule_and_runner_up() {
    let mut objects: Vec<WatchedObject> =
        ["n1", "n2"].map(|name| node(name, "2", json!([]))).into();
    objects.extend([bound("b1", "1", "n1"), bound("b2", "1", "n1"), bound("b3", "2", "n2")]);
    let asked = pod("p", "2", 5, None);
    let of = |objects| explain(&mut cache(objects), &mut PodEvaluator::default(), &asked, None);
    let answer = of(objects).expect("read");
    let text = answer.to_string();
    let line = "n2 before n1: a smaller sum of priorities, 2^31 added for each victim.\n";
    assert!(text.contains(line), "{text}");
    let eviction = serde_json::to_value(answer.preemption).expect("JSON");
    let victims = ["default/b1", "default/b2"];
    let wanted = json!({"node": "n2", "victims": ["default/b3"], "violations": 0, "candidates": 2,
        "decidedBy": "sumOfPriorities",
        "runnerUp": {"node": "n1", "victims": victims, "violations": 0}});
    assert_eq!(eviction, wanted);
    // With one node no rule is needed.
    let answer = of(vec![node("n2", "2", json!([])), bound("b3", "2", "n2")]).expect("read");
    let eviction = answer.preemption.expect("preemption is possible");
    assert_eq!((eviction.candidates, eviction.decided_by, eviction.runner_up), (1, None, None));
}

/// Nodes of a few sizes and zones, some tainted, some cordoned, some with a pod.
fn generated(count: u32) -> Vec<WatchedObject> {
    let mut random = 7_u32;
    let mut below = |end: u32| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 16) % end
    };
    let mut objects = Vec::new();
    for at in 0..count {
        let name = format!("n{at}");
        let cpu = (1 + below(4)).to_string();
        let taint = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
        let taints = if below(4) == 0 { taint } else { json!([]) };
        let WatchedObject::Node(mut made) = node(&name, &cpu, taints) else {
            unreachable!("a node")
        };
        made.spec.as_mut().expect("a spec").unschedulable = (below(6) == 0).then_some(true);
        let zone = ("zone".to_owned(), format!("z{}", below(3)));
        made.metadata.labels = Some(BTreeMap::from([zone]));
        objects.push(WatchedObject::Node(made));
        if below(2) == 0 {
            objects.push(bound(&format!("b{at}"), "500m", &name));
        }
    }
    objects
}

#[test]
fn the_explanation_of_one_node_agrees_with_its_group() {
    const NODES: u32 = 60;
    let mut picky = pod("picky", "500m", 5, None);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields":
            [{"key": "metadata.name", "operator": "In", "values": ["n1", "n2"]}]}]}}});
    let spec = picky.spec.as_mut().expect("a spec");
    spec.affinity = serde_json::from_value(affinity).expect("an affinity");
    let zone = Some(BTreeMap::from([("zone".to_owned(), "z1".to_owned())]));
    let mut in_zone = pod("zone", "3800m", 5, None);
    in_zone.spec.as_mut().expect("a spec").node_selector = zone;
    let mut cache = cache(generated(NODES));
    let mut evaluator = PodEvaluator::default();
    let (mut fit, mut reasons) = (0, 0);
    for asked in [pod("small", "1500m", 0, None), pod("large", "8", 5, None), picky, in_zone] {
        let name = asked.metadata.name.clone().expect("a name");
        let mut of =
            |node: Option<&str>| explain(&mut cache, &mut evaluator, &asked, node).expect("read");
        let all = of(None);
        let mut feasible = 0;
        let mut tally = all.rejected.clone();
        for group in &mut tally {
            (group.count, group.why.preemption_may_help) = (0, false);
        }
        for at in 0..NODES {
            let node = format!("n{at}");
            let answer = of(Some(&node));
            let one = answer.one_node.clone().expect("one node was named");
            assert_eq!(Explanation { one_node: None, ..answer }, all, "{name}: nothing else");
            assert_eq!(
                (&one.node, one.fits, one.score.is_some()),
                (&node, one.why.is_none(), one.fits)
            );
            let named = all.fitting.iter().find(|fitting| fitting.node == node);
            assert!(named.is_none_or(|named| one.score == Some(named.score)), "{name}: {one:?}");
            let near = all.nearest.iter().find(|near| near.node.as_deref() == Some(&*node));
            assert!(near.is_none_or(|near| one.lacks == near.changes), "{name}: {one:?}");
            assert_eq!(one.lacks.is_empty(), one.fits, "{name}: {one:?}");
            let Some(why) = one.why else {
                feasible += 1;
                continue;
            };
            let is_its = |group: &&mut Group| group.why.reasons == why.reasons;
            let group = tally.iter_mut().find(is_its).expect("it is in a group");
            group.count += 1;
            group.why.preemption_may_help |= why.preemption_may_help;
            assert_eq!(group.why.plugin, why.plugin, "{name}: {node}");
            let named = all.rejected.iter().find(|group| group.nodes.contains(&node));
            assert!(named.is_none_or(|named| named.why.reasons == why.reasons), "{name}: {node}");
        }
        assert_eq!((feasible, &tally), (all.feasible, &all.rejected), "{name}");
        (fit, reasons) = (fit + feasible, reasons + tally.len());
    }
    assert!(fit > 10 && reasons > 8, "{fit} nodes fit, {reasons} reasons");
}

#[test]
fn one_node_is_explained_in_a_line_and_an_unknown_node_is_an_error() {
    let objects = vec![node("n1", "2", json!([])), bound("b", "1500m", "n1")];
    let mut cache = cache(objects);
    let mut evaluator = PodEvaluator::default();
    let mut gated = pod("gated", "1", 0, None);
    let gates = json!([{"name": "g"}]);
    gated.spec.as_mut().expect("a spec").scheduling_gates =
        serde_json::from_value(gates).expect("gates");
    for (asked, line) in [
        (pod("fits", "500m", 0, None), "n1: yes, its score is "),
        (
            pod("p", "1", 5, None),
            "n1: no, Insufficient cpu (NodeResourcesFit); to fit there: free 500m cpu or ask for that \
             much less; preemption may help.\n",
        ),
        (
            // No pod there has a lower priority.
            pod("p", "1", 0, None),
            "n1: no, Insufficient cpu (NodeResourcesFit); to fit there: free 500m cpu or ask for that \
             much less.\n",
        ),
        (
            pod("huge", "3", 0, None),
            "n1: no, Insufficient cpu (NodeResourcesFit); to fit there: ask for 2500m less cpu (more \
             than the node has).\n",
        ),
        (gated, "(SchedulingGates); to fit there: remove the scheduling gates ("),
    ] {
        let text =
            explain(&mut cache, &mut evaluator, &asked, Some("n1")).expect("read").to_string();
        assert!(text.contains(line), "{line}: {text}");
    }
    let unknown = explain(&mut cache, &mut evaluator, &pod("p", "1", 0, None), Some("n9"));
    assert_eq!(unknown.expect_err("there is none").to_string(), "there is no node \"n9\"");
}

#[test]
fn a_queued_pod_shows_its_queue_and_its_next_attempt() {
    let large = |name: &str, cpu: &str| with(name, cpu, |_| {});
    let gated = with("gated", "1", |pod| pod["spec"]["schedulingGates"] = json!([{"name": "g"}]));
    let objects = [node("n", "1", json!([])), large("p", "3"), large("q", "2"), gated];
    let mut scheduler = Scheduler::new(Vec::new(), Settings::default(), 1);
    deliver_lists(&mut scheduler, &objects);
    decide(&mut scheduler, 0);
    // Enough for one of them.
    scheduler.handle(WatchEvent::Set(node("n", "2", json!([]))), at(0));
    let mut of = |name: &str, now| {
        let key = ObjectKey::new("default", name);
        let answer = scheduler.explain(&key, None, at(now)).expect("it waits");
        let lines = answer.to_string();
        (answer.queue.expect("it is in the queue"), lines.lines().nth(1).map(str::to_owned))
    };
    let queued = |place, attempts, by: &str, tried_again| Queued {
        place,
        attempts,
        rejected_by: vec![by.to_owned()],
        tried_again,
        over_share: None,
    };
    for (name, now, wanted, line) in [
        (
            "gated",
            0,
            queued(QueuePlace::Gated, 0, "SchedulingGates", None),
            "It is gated and not tried until PreEnqueue accepts it; 0 attempts; last rejected by \
             SchedulingGates.",
        ),
        (
            "q",
            0,
            queued(QueuePlace::Backoff, 1, "NodeResourcesFit", Some(2)),
            "In backoff, tried again within 2 s; 1 attempt; last rejected by NodeResourcesFit.",
        ),
        (
            "p",
            10,
            queued(QueuePlace::Unschedulable, 1, "NodeResourcesFit", Some(291)),
            "It waits for an event that may help it, tried again within 291 s; 1 attempt; last \
             rejected by NodeResourcesFit.",
        ),
    ] {
        assert_eq!(of(name, now), (wanted, Some(line.to_owned())), "{name}");
    }
    let (queue, _) = of("q", 1);
    let json = serde_json::to_value(&queue).expect("JSON");
    let by = ["NodeResourcesFit"];
    assert_eq!(
        json,
        json!({"place": "backoff", "attempts": 1, "rejectedBy": by, "triedAgainInSeconds": 1})
    );
}
