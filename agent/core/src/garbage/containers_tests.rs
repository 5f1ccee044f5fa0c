//! Selection of dead containers for removal: tables and properties.

use proptest::prelude::*;

use super::*;
use crate::status::testing::{self, SECOND};

fn at(seconds: i64) -> UnixNanos {
    UnixNanos(seconds * SECOND)
}

/// A pod of containers `name:attempt:state`, created at ten times their attempt; `r`uns, is `c`reated,
/// e`x`ited, or of `u`nknown state.
fn pod(uid: &str, containers: &str) -> ObservedPod {
    let mut pod = ObservedPod::empty(uid.into(), "ns", uid);
    for text in containers.split_whitespace() {
        let parts: Vec<_> = text.split(':').collect();
        let mut container =
            testing::container(parts[0], &format!("{uid}-{}{}", parts[0], parts[1]));
        container.restart_count = parts[1].parse().expect("an attempt");
        container.created_at = at(10 * i64::from(container.restart_count));
        container.state = match parts[2] {
            "r" => RunState::Running,
            "c" => RunState::Created,
            "x" => RunState::Exited,
            _ => RunState::Unknown,
        };
        pod.containers.push(container);
    }
    pod.sort();
    pod
}

fn limits(per_container: Option<usize>, total: Option<usize>) -> DeadLimits {
    DeadLimits { per_container, total, ..DeadLimits::default() }
}

fn shown(limits: &DeadLimits, pods: &[(&ObservedPod, Need)]) -> String {
    let kept: Vec<_> = pods.iter().map(|(pod, need)| KeptPod { pod, need: *need }).collect();
    let gone = discard(limits, &kept, at(1000));
    let ids: Vec<_> = gone.values().flatten().map(|id| id.as_str().to_owned()).collect();
    ids.join(" ")
}

#[test]
fn each_container_keeps_its_limit_of_dead_instances_and_any_needed_instance() {
    use Need::{LastEnds, Limits as OfLimits, Nothing};
    for (containers, need, limit, gone) in [
        // It runs: nothing of the past is needed.
        ("c:3:r c:2:x c:1:x c:0:x", LastEnds, Some(1), "p-c0 p-c1"),
        ("c:3:r c:2:x c:1:x c:0:x", LastEnds, Some(2), "p-c0"),
        ("c:3:r c:2:x c:1:x c:0:x", LastEnds, Some(0), "p-c0 p-c1 p-c2"),
        ("c:3:r c:2:x c:1:x c:0:x", LastEnds, None, ""),
        // It waits in its crash loop: its last end is needed.
        ("c:2:x c:1:x c:0:x", LastEnds, Some(0), "p-c0 p-c1"),
        ("c:2:x c:1:x c:0:x", LastEnds, Some(1), "p-c0 p-c1"),
        ("c:2:x c:1:x c:0:x", OfLimits, Some(0), "p-c0 p-c1 p-c2"),
        ("c:2:x c:1:x c:0:x", OfLimits, Some(5), ""),
        ("c:2:x c:1:x c:0:x", Nothing, Some(5), "p-c0 p-c1 p-c2"),
        ("c:2:x c:1:x c:0:x", Nothing, None, "p-c0 p-c1 p-c2"),
        // The next attempt is made and may not come up.
        ("c:2:c c:1:x c:0:x", LastEnds, Some(0), "p-c0"),
        ("c:2:c c:1:x", OfLimits, Some(1), "p-c1"),
        ("c:2:u c:1:x", LastEnds, Some(0), "p-c1"),
        ("c:2:r c:1:u", LastEnds, Some(0), "p-c1"),
        // Each container for itself.
        ("a:1:r a:0:x b:1:x b:0:x", LastEnds, Some(0), "p-a0 p-b0"),
        ("a:1:r a:0:x b:1:x b:0:x", LastEnds, Some(1), "p-b0"),
    ] {
        let pod = pod("p", containers);
        let found = shown(&limits(limit, None), &[(&pod, need)]);
        assert_eq!(found, gone, "{containers}, {need:?}, {limit:?}");
    }
}

#[test]
fn the_node_keeps_as_many_of_each_container_and_then_the_youngest() {
    let crowd = pod("a", "c:4:r c:3:x c:2:x c:1:x c:0:x");
    let few = pod("b", "c:9:r c:8:x");
    let pods = [(&crowd, Need::LastEnds), (&few, Need::LastEnds)];
    for (total, gone) in [
        (Some(5), ""),
        // Two of each.
        (Some(4), "a-c0 a-c1"),
        (Some(3), "a-c0 a-c1 a-c2"),
        (Some(2), "a-c0 a-c1 a-c2"),
        // One of each is too many: the oldest is removed.
        (Some(1), "a-c0 a-c1 a-c2 a-c3"),
        (Some(0), "a-c0 a-c1 a-c2 a-c3 b-c8"),
        (None, ""),
    ] {
        assert_eq!(shown(&limits(None, total), &pods), gone, "{total:?}");
    }
    let waits = pod("w", "c:1:x c:0:x");
    let found = shown(&limits(None, Some(0)), &[(&waits, Need::LastEnds), (&few, Need::LastEnds)]);
    assert_eq!(found, "b-c8 w-c0", "what is needed stays and counts");
}

#[test]
fn container_below_the_minimum_age_is_kept_and_not_counted() {
    let pod = pod("p", "c:99:r c:98:x c:97:x c:1:x c:0:x");
    let limits = DeadLimits { min_age: Duration::from_secs(100), ..limits(Some(1), None) };
    assert_eq!(shown(&limits, &[(&pod, Need::LastEnds)]), "p-c0");
    assert_eq!(shown(&limits, &[(&pod, Need::Nothing)]), "p-c0 p-c1");
    let old = DeadLimits { min_age: Duration::from_secs(2000), ..limits };
    assert_eq!(shown(&old, &[(&pod, Need::Nothing)]), "");
}

#[test]
fn restart_keeps_at_least_one_dead_container() {
    for (limit, kept) in [(None, 1), (Some(0), 1), (Some(1), 1), (Some(4), 4)] {
        assert_eq!(limits(limit, None).kept_at_once(), kept, "{limit:?}");
    }
}

#[test]
fn dead_empty_sandboxes_are_removed_except_the_newest_of_a_needed_pod() {
    let mut pod = pod("p", "c:0:x");
    for (id, ready, attempt) in
        [("s0", false, 0), ("s1", false, 1), ("s2", true, 2), ("s3", false, 3)]
    {
        let mut sandbox = testing::sandbox();
        (sandbox.id, sandbox.ready, sandbox.attempt) = (id.into(), ready, attempt);
        pod.sandboxes.push(sandbox);
    }
    pod.containers[0].sandbox_id = "s1".into();
    pod.sort();
    let gone = |keeps: bool| -> Vec<_> {
        sandboxes(&pod, keeps).map(|sandbox| sandbox.id.as_str().to_owned()).collect()
    };
    assert_eq!(gone(true), ["s0"], "one has a container, one is ready, one is the newest");
    assert_eq!(gone(false), ["s3", "s0"]);
}

fn any_need() -> impl Strategy<Value = Need> {
    prop_oneof![Just(Need::LastEnds), Just(Need::Limits), Just(Need::Nothing)]
}

fn any_pods() -> impl Strategy<Value = Vec<(ObservedPod, Need)>> {
    let containers = prop::collection::vec((0..3u8, 0..4u8, 0..100i64), 0..12);
    prop::collection::vec((containers, any_need()), 0..5).prop_map(|pods| {
        let made = pods.into_iter().enumerate().map(|(index, (containers, need))| {
            let mut made = pod(&format!("p{index}"), "");
            for (attempt, (name, state, age)) in containers.into_iter().enumerate() {
                let (name, id) = (format!("c{name}"), format!("{index}-{attempt}"));
                let mut container = testing::container(&name, &id);
                container.restart_count = u32::try_from(attempt).expect("few");
                container.created_at = at(1000 - age);
                container.state =
                    [RunState::Created, RunState::Running, RunState::Exited, RunState::Unknown]
                        [usize::from(state)];
                made.containers.push(container);
            }
            made.sort();
            (made, need)
        });
        made.collect()
    })
}

/// The last end of each container that nothing newer has outlived.
fn last_ends(pod: &ObservedPod) -> BTreeSet<&ContainerId> {
    let names: BTreeSet<_> = pod.containers.iter().map(|c| &c.name).collect();
    let tried = |name: &String| {
        pod.containers.iter().find(|c| c.name == *name && c.state != RunState::Created)
    };
    let last = names.into_iter().filter_map(tried).filter(|c| c.state != RunState::Running);
    last.map(|c| &c.id).collect()
}

proptest! {
    #[test]
    fn running_and_needed_containers_are_kept_and_dead_containers_obey_limits(
        pods in any_pods(),
        per_container in prop::option::of(0..4usize),
        total in prop::option::of(0..12usize),
        min_age in 0..100u64,
    ) {
        let min_age = Duration::from_secs(min_age);
        let limits = DeadLimits { min_age, per_container, total };
        let kept: Vec<_> = pods.iter().map(|(pod, need)| KeptPod { pod, need: *need }).collect();
        let gone = discard(&limits, &kept, at(1000));
        let is_gone = |pod: &ObservedPod, c: &ObservedContainer| {
            gone.get(&pod.uid).is_some_and(|ids| ids.contains(&c.id))
        };
        let (mut left, mut bound) = (0, 0);
        for (pod, need) in &pods {
            let needed = if *need == Need::LastEnds { last_ends(pod) } else { BTreeSet::new() };
            let mut of_name: BTreeMap<&str, usize> = BTreeMap::new();
            for container in &pod.containers {
                let goes = is_gone(pod, container);
                let old = at(1000).since(container.created_at) >= min_age;
                prop_assert!(!goes || container.state != RunState::Running);
                prop_assert!(!goes || !needed.contains(&container.id));
                prop_assert!(!goes || old);
                let dead = match container.state {
                    RunState::Running => false,
                    RunState::Created => *need != Need::LastEnds,
                    RunState::Exited | RunState::Unknown => true,
                };
                prop_assert!(*need != Need::Nothing || !dead || !old || goes);
                if dead && old && !goes {
                    *of_name.entry(&container.name).or_default() += 1;
                    (left, bound) = (left + 1, bound + usize::from(needed.contains(&container.id)));
                }
            }
            for (name, count) in of_name {
                let least = usize::from(pod.attempts(name).any(|c| needed.contains(&c.id)));
                let most = per_container.map_or(usize::MAX, |limit| limit.max(least));
                prop_assert!(count <= most, "{count} of {name}");
            }
        }
        if let Some(total) = total {
            prop_assert!(left <= total.max(bound), "{left} of the node");
        }
    }

    /// One removal does not cause another.
    #[test]
    fn second_garbage_collection_removes_nothing(
        pods in any_pods(),
        per_container in prop::option::of(0..4usize),
        total in prop::option::of(0..12usize),
    ) {
        let limits = DeadLimits { per_container, total, ..DeadLimits::default() };
        let look = |pods: &[(ObservedPod, Need)]| {
            let kept: Vec<_> = pods.iter().map(|(pod, need)| KeptPod { pod, need: *need }).collect();
            discard(&limits, &kept, at(1000))
        };
        let gone = look(&pods);
        let mut left = pods.clone();
        for (pod, _) in &mut left {
            let ids = gone.get(&pod.uid).cloned().unwrap_or_default();
            pod.containers.retain(|c| !ids.contains(&c.id));
        }
        prop_assert!(look(&left).is_empty());
    }
}
