//! What is said of pods in clusters of a few nodes.

use super::*;
use crate::watch::{Thing, Told};
use pintle_sched_core::Profile;
use serde_json::{Value, json};

fn node(name: &str, cpu: &str, taints: Value) -> Thing {
    let node = json!({"metadata": {"name": name}, "spec": {"taints": taints},
        "status": {"allocatable": {"cpu": cpu, "memory": "8Gi", "pods": "10"}}});
    Thing::Node(Box::new(serde_json::from_value(node).expect("a node")))
}

fn pod(name: &str, cpu: &str, priority: i32, node: Option<&str>) -> Pod {
    let pod = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"nodeName": node, "priority": priority,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}});
    serde_json::from_value(pod).expect("a pod")
}

fn mirror(things: Vec<Thing>) -> Mirror {
    mirror_with(vec![Profile::default()], things)
}

fn mirror_with(profiles: Vec<Profile>, things: Vec<Thing>) -> Mirror {
    let mut mirror = Mirror::with_profiles(profiles);
    for thing in things {
        for step in mirror.list(Told::Listed(thing)) {
            mirror.make(&step);
        }
    }
    mirror
}

fn bound(name: &str, cpu: &str, node: &str) -> Thing {
    Thing::Pod(Box::new(pod(name, cpu, 0, Some(node))))
}

#[test]
fn a_pod_without_a_place_is_told_why_and_what_would_help() {
    let tainted = json!([{"key": "a", "value": "b", "effect": "NoSchedule"}]);
    let mut mirror = mirror(vec![
        node("n1", "2", json!([])),
        node("n2", "4", tainted),
        node("n3", "1", json!([])),
        bound("small", "1500m", "n1"),
    ]);
    let mut thinker = Thinker::default();
    let answer = explain(&mut mirror, &mut thinker, &pod("p", "1800m", 5, None)).expect("read");
    let message = answer.message.as_deref().expect("it fits nowhere");
    assert!(message.starts_with("0/3 nodes are available: 1 node(s) had untolerated"), "{message}");
    assert_eq!(answer.rejected.iter().map(|g| g.count).sum::<usize>(), 3);
    assert_eq!(answer.nearest[0].node.as_deref(), Some("n1"));
    let eviction = answer.preemption.as_ref().expect("room can be made");
    assert_eq!((eviction.node.as_str(), eviction.victims.len()), ("n1", 1));
    let text = answer.to_string();
    for part in ["Rejected:", "It would fit on node n1: free 1300m cpu", "would evict from n1"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_pod_with_a_node_is_looked_at_without_it_there_and_stays() {
    let mut mirror = mirror(vec![node("n1", "2", json!([])), bound("p", "1500m", "n1")]);
    let mut thinker = Thinker::default();
    let before = mirror.cluster.view().numbers(0);
    let found = explain(&mut mirror, &mut thinker, &pod("p", "1500m", 0, Some("n1")));
    let answer = found.expect("read");
    assert_eq!((answer.feasible, answer.bound_to.as_deref()), (1, Some("n1")));
    assert_eq!(mirror.cluster.view().numbers(0), before);
}

#[test]
fn room_that_is_kept_for_another_pod_is_no_room() {
    let mut waiting = pod("first", "1500m", 10, None);
    waiting.status = serde_json::from_value(json!({"nominatedNodeName": "n1"})).expect("a status");
    let things = vec![node("n1", "2", json!([])), Thing::Pod(Box::new(waiting))];
    let mut thinker = Thinker::default();
    let mut asks = |mirror: &mut Mirror, cpu: &str, priority| {
        let asked = pod("second", cpu, priority, None);
        explain(mirror, &mut thinker, &asked).expect("read")
    };
    // Whatever plugins there are.
    let mut without_node_names = Profile::default();
    without_node_names.filters[pintle_sched_core::Plugin::NodeName as usize] = false;
    for profile in [without_node_names, Profile::default()] {
        let mut mirror = mirror_with(vec![profile], things.clone());
        let feasible = [5, 10, 11].map(|priority| asks(&mut mirror, "1", priority).feasible);
        assert_eq!(feasible, [0, 0, 1]);
    }
    let mut mirror = mirror(things);
    let mut asks = |cpu: &str, priority| asks(&mut mirror, cpu, priority);
    let wait = "wait until the pods that room is kept for have their node (Insufficient cpu)";
    let text = asks("1", 5).to_string();
    assert!(text.contains(&format!("It would fit on node n1: {wait}\n")), "{text}");
    let text = asks("2500m", 5).to_string();
    let both = "ask for 500m less cpu (more than the node has)\n";
    assert!(text.contains(&format!("It would fit on node n1: {both}")), "{text}");
}

#[test]
fn a_pod_that_was_looked_at_still_uses_its_disk() {
    let with_disk = |name: &str, node: Option<&str>| {
        let mut pod = pod(name, "1", 0, node);
        let disks = json!([{"name": "d", "gcePersistentDisk": {"pdName": "d"}}]);
        pod.spec.as_mut().expect("a spec").volumes = serde_json::from_value(disks).expect("disks");
        pod
    };
    let user = with_disk("p", Some("n1"));
    let mut mirror = mirror(vec![node("n1", "4", json!([])), Thing::Pod(Box::new(user.clone()))]);
    let mut thinker = Thinker::default();
    let mut feasible = |pod| explain(&mut mirror, &mut thinker, pod).expect("read").feasible;
    let other = with_disk("q", None);
    assert_eq!((feasible(&other), feasible(&user), feasible(&other)), (0, 1, 0));
    let text = explain(&mut mirror, &mut thinker, &other).expect("read").to_string();
    let advice = "It would fit on node n1: create or change what its volumes need (node(s) had no";
    assert!(text.contains(advice), "{text}");
}

#[test]
fn a_claim_that_is_not_there_is_to_be_made() {
    let mut mirror = mirror(vec![node("n1", "4", json!([]))]);
    let mut asked = pod("p", "1", 0, None);
    let volumes = json!([{"name": "d", "persistentVolumeClaim": {"claimName": "data"}}]);
    asked.spec.as_mut().expect("a spec").volumes = serde_json::from_value(volumes).expect("read");
    let answer = explain(&mut mirror, &mut Thinker::default(), &asked).expect("read");
    let text = answer.to_string();
    let advice = "It would fit create or change what its volumes need (persistentvolumeclaim";
    assert!(text.contains(advice), "{text}");
    assert!(!text.contains("affinity"), "{text}");
}

#[test]
fn a_pod_is_looked_at_by_the_profile_that_it_asks_for() {
    let mut batch = Profile { scheduler_name: "batch".to_owned(), ..Profile::default() };
    batch.filters[pintle_sched_core::Plugin::NodeResourcesFit as usize] = false;
    let things = vec![node("n1", "1", json!([]))];
    let mut mirror = mirror_with(vec![Profile::default(), batch], things);
    let mut asks = |scheduler: &str| {
        let mut asked = pod("p", "2", 0, None);
        asked.spec.as_mut().expect("a spec").scheduler_name = Some(scheduler.to_owned());
        explain(&mut mirror, &mut Thinker::default(), &asked).expect("read")
    };
    for (scheduler, feasible, notes) in
        [("batch", 1, 0), ("default-scheduler", 0, 0), ("", 0, 0), ("bacth", 0, 1)]
    {
        let answer = asks(scheduler);
        assert_eq!((answer.feasible, answer.notes.len()), (feasible, notes), "{scheduler}");
    }
    let text = asks("bacth").to_string();
    assert!(text.contains("Note: it asks for the scheduler \"bacth\", and no profile"), "{text}");
}
