//! Attempts that exceed their budget, and panics: the pod is set back, and nothing else changes.

use std::cell::Cell;

use pintle_sched_core::attempt_budget::{Limit, Limits};
use serde_json::json;

use super::tests::{
    at, bound, condition, decide, deliver_lists, node, pod, scheduler_with, with,
    without_second_look,
};
use super::*;
use crate::fault;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

/// An out-of-tree plugin that calls a function of the test at each point.
mod plugin {
    use std::cell::RefCell;
    use std::rc::Rc;

    use k8s_openapi::api::core::v1::Pod;

    use crate::framework::{
        CycleState, EnabledPlugins, Filter, Handle, NodeInfo, Permission, Permit, PluginError,
        Plugins, Points, Registry, Rejection, Reserve, Score,
    };

    /// The function that is called.
    #[derive(Default)]
    pub(super) struct CalledFunction(pub(super) RefCell<Option<Call>>);
    /// Called with the point and the pod.
    type Call = Rc<dyn Fn(&str, &Pod)>;

    impl CalledFunction {
        fn call(&self, point: &str, pod: &Pod) {
            let call = self.0.borrow().clone();
            call.into_iter().for_each(|call| call(point, pod));
        }
    }

    pub(super) struct CallingPlugin(pub(super) Rc<CalledFunction>);

    impl Filter for CallingPlugin {
        fn filter(&self, _: &CycleState, pod: &Pod, _: &NodeInfo<'_>) -> Result<(), Rejection> {
            self.0.call("filter", pod);
            Ok(())
        }
    }

    impl Score for CallingPlugin {
        fn score(&self, _: &CycleState, pod: &Pod, _: &NodeInfo<'_>) -> Result<i64, PluginError> {
            self.0.call("score", pod);
            Ok(1)
        }
    }

    impl Reserve for CallingPlugin {
        fn reserve(&self, _: &CycleState, pod: &Pod, _: &str) -> Result<(), Rejection> {
            self.0.call("reserve", pod);
            Ok(())
        }
        fn unreserve(&self, _: &CycleState, pod: &Pod, _: &str) {
            self.0.call("unreserve", pod);
        }
    }

    impl Permit for CallingPlugin {
        fn permit(&self, _: &CycleState, pod: &Pod, _: &str) -> Result<Permission, Rejection> {
            self.0.call("permit", pod);
            Ok(Permission::Granted)
        }
    }

    pub(super) fn plugins(calls: &Rc<CalledFunction>) -> (Vec<Option<Rc<Plugins>>>, Handle) {
        let calls = Rc::clone(calls);
        let registry = Registry::default().with("Test", move |_, _| {
            let plugin = Rc::new(CallingPlugin(Rc::clone(&calls)));
            let points = Points::default().filter(plugin.clone()).score(plugin.clone());
            Ok(points.reserve(plugin.clone()).permit(plugin))
        });
        let handle = Handle::default();
        let multi_point = vec![("Test".to_owned(), 1)];
        let chosen = EnabledPlugins { multi_point, ..EnabledPlugins::default() };
        let plugins = registry.plugins(&chosen, &handle).expect("it is registered");
        (vec![Some(Rc::new(plugins))], handle)
    }
}

/// A scheduler with these objects and the plugin.
fn scheduler_with_plugin(
    things: &[WatchedObject],
    call: impl Fn(&str, &k8s_openapi::api::core::v1::Pod) + 'static,
) -> Scheduler {
    let calls = Rc::new(plugin::CalledFunction::default());
    *calls.0.borrow_mut() = Some(Rc::new(call));
    let (plugins, handle) = plugin::plugins(&calls);
    let scheduler = Scheduler::new(Vec::new(), without_second_look(), 1);
    let mut scheduler = scheduler.with_plugins(plugins, handle);
    deliver_lists(&mut scheduler, things);
    scheduler
}

fn is_named(pod: &k8s_openapi::api::core::v1::Pod, name: &str) -> bool {
    pod.metadata.name.as_deref() == Some(name)
}

/// Names of pods that were bound.
fn names(commands: &[Command]) -> Vec<String> {
    let bound = commands.iter().filter_map(bound);
    bound.map(|(pod, _)| pod.key.name().to_owned()).collect()
}

/// A node, and two pods that fit there.
fn things() -> Vec<WatchedObject> {
    vec![node("n", "8"), pod("bad", "1"), pod("good", "1")]
}

/// A scheduler with a clock that advances when `bad` is filtered.
fn scheduler_with_slow_pod(took: u64) -> Scheduler {
    let clock = Rc::new(Cell::new(Duration::ZERO));
    let passed = Rc::clone(&clock);
    let scheduler = scheduler_with_plugin(&things(), move |point, pod| {
        if point == "filter" && is_named(pod, "bad") {
            passed.set(passed.get() + Duration::from_millis(took));
        }
    });
    scheduler.with_clock(Rc::new(move || clock.get()))
}

#[test]
fn attempt_that_exceeds_its_work_is_rejected_with_a_message_and_backs_off() {
    for (limits, limit) in [
        (Limits { work: 0, bytes: u64::MAX }, Limit::Work),
        (Limits { work: u64::MAX, bytes: 0 }, Limit::Memory),
    ] {
        let mut scheduler = scheduler_with(things()).with_limits(limits);
        scheduler.net.pays = true;
        let mut commands = Vec::new();
        while scheduler.decide_next(at(1)) {
            commands.extend(scheduler.take_commands());
        }
        assert!(names(&commands).is_empty(), "{limit:?}");
        let (reason, message) = condition(&commands).expect("a condition");
        assert_eq!(reason, "SchedulerError");
        assert!(message.contains("limit of one scheduling attempt was exceeded"), "{message}");
        let facts = scheduler.take_facts();
        let count = facts.iter().filter(|fact| **fact == Fact::Exhausted(limit)).count();
        assert_eq!(count, 2, "{facts:?}");
        // No event has it retried before its time.
        scheduler.handle(WatchEvent::Set(node("m", "8")), at(2));
        assert!(!scheduler.decide_next(at(2)));
        scheduler.net.pays = false;
        let mut scheduler = scheduler.with_limits(Limits::NONE);
        assert_eq!(names(&decide(&mut scheduler, 10)).len(), 2, "by itself");
        assert!(scheduler.is_sound());
    }
}

#[test]
fn attempt_that_exceeds_its_time_is_rejected_and_evicts_no_pod() {
    // It fits only with a victim.
    let low = with("low", "8", |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["spec"]["priority"] = json!(-1);
    });
    let clock = Rc::new(Cell::new(Duration::ZERO));
    let shared = Rc::clone(&clock);
    let mut scheduler = scheduler_with(vec![node("n", "8"), low, pod("bad", "1")]);
    scheduler = scheduler.with_clock(Rc::new(move || {
        // Each read of the clock takes a second.
        shared.set(shared.get() + Duration::from_secs(1));
        shared.get()
    }));
    scheduler.net.pays = true;
    let commands = decide(&mut scheduler, 1);
    assert!(!commands.iter().any(|c| matches!(c, Command::Evict { .. })), "{commands:?}");
    let (_, message) = condition(&commands).expect("a condition");
    assert!(message.contains("the time limit of one scheduling attempt"), "{message}");
    assert!(scheduler.cache.nominated_on("n").is_empty());
    scheduler.net.pays = false;
    let commands = decide(&mut scheduler, 10);
    assert!(commands.iter().any(|c| matches!(c, Command::Evict { .. })), "with time enough");
}

#[test]
fn namespace_over_its_time_share_is_queued_behind_other_namespaces() {
    let other = |name: &str| with(name, "1", |pod| pod["metadata"]["namespace"] = json!("other"));
    let mut scheduler = scheduler_with_slow_pod(900);
    scheduler.handle(WatchEvent::Set(pod("late", "1")), at(1));
    assert!(scheduler.decide_next(at(1)), "it is slow");
    scheduler.handle(WatchEvent::Set(other("quick")), at(2));
    assert!(scheduler.decide_next(at(2)));
    let commands = scheduler.take_commands();
    assert_eq!(names(&commands), ["bad", "quick"], "and not good, which came before");
    let lines = scheduler.queue_lines(9, at(2)).join("\n");
    assert!(lines.contains("namespaceOverShare=0.8s"), "{lines}");
    let of_default = ObjectKey::new("default", "good");
    let explanation = scheduler.explain(&of_default, None, at(2)).expect("it waits");
    assert!(explanation.to_string().contains("beyond its share"), "{explanation}");
    assert_eq!(names(&decide(&mut scheduler, 2)).len(), 2, "no other pod is pending");
}

#[test]
fn plugin_panic_is_a_scheduler_error_of_its_pod_only() {
    for point in ["filter", "score", "reserve", "permit"] {
        let mut scheduler = scheduler_with_plugin(
            &[node("n", "8"), node("m", "8"), pod("bad", "1"), pod("good", "1")],
            move |at, pod| {
                assert!(at != point || !is_named(pod, "bad"), "of {point}");
            },
        );
        let commands = decide(&mut scheduler, 1);
        assert!(!scheduler.is_torn(), "{point}");
        assert_eq!(names(&commands), ["good"], "{point}");
        let (reason, message) = condition(&commands).expect("a condition");
        assert_eq!(reason, "SchedulerError", "{point}");
        assert!(message.contains(&format!("of {point}")), "{message}");
        assert_eq!((scheduler.assumed(), scheduler.plugins.attempt_count()), (1, 1), "{point}");
        assert!(scheduler.is_sound());
    }
}

/// `bad` preempts, besides a nominated pod.
fn crowded() -> Vec<WatchedObject> {
    let low = with("low", "8", |pod| {
        pod["spec"]["nodeName"] = json!("n");
        pod["spec"]["priority"] = json!(-1);
    });
    let kept = with("kept", "7", |pod| {
        pod["status"] = json!({"nominatedNodeName": "m"});
        pod["spec"]["priority"] = json!(9);
        pod["spec"]["schedulingGates"] = json!([{"name": "gate"}]);
    });
    let bad = with("bad", "4", |pod| pod["spec"]["priority"] = json!(1));
    vec![node("n", "8"), node("m", "8"), low, kept, bad]
}

#[test]
fn panic_during_an_evaluation_leaves_the_cache_unchanged() {
    for point in ["filter", "beside", "score", "dry run"] {
        let mut scheduler = scheduler_with(crowded());
        let before = scheduler.shape();
        fault::arm(point, 0);
        let commands = decide(&mut scheduler, 1);
        assert!(!fault::disarm(), "{point} was passed");
        assert!(!scheduler.is_torn(), "{point}");
        let (reason, message) = condition(&commands).expect("a condition");
        assert_eq!(reason, "SchedulerError", "{point}");
        assert!(message.contains(&format!("injected at {point}")), "{message}");
        assert_eq!(scheduler.shape(), before, "{point}");
        assert!(!scheduler.decide_next(at(3)), "it waits for longer than usual");
        let commands = decide(&mut scheduler, 8);
        let goes = commands.iter().any(|command| matches!(command, Command::Evict { .. }));
        assert!(goes, "{point}: and is decided as if nothing had happened: {commands:?}");
        assert!(scheduler.is_sound());
    }
}

/// Hands over to a successor that lists these objects.
fn succeeded(mut torn: Scheduler, things: &[WatchedObject], now: u64) -> Scheduler {
    let mut successor = Scheduler::new(Vec::new(), without_second_look(), 1);
    torn.succeed(&mut successor, at(now));
    for kind in crate::watch_event::KINDS {
        successor.handle(WatchEvent::Begun(kind), at(now));
        for thing in things.iter().filter(|thing| thing.kind() == kind) {
            successor.handle(WatchEvent::Listed(thing.clone()), at(now));
        }
        successor.handle(WatchEvent::Complete(kind), at(now));
    }
    successor
}

#[test]
fn panic_during_a_cache_change_makes_a_successor_start_from_scratch() {
    for point in ["permit", "make"] {
        let mut scheduler = scheduler_with(things());
        fault::arm(point, 0);
        assert!(!scheduler.decide_next(at(1)));
        assert!(!fault::disarm(), "{point} was passed");
        assert!(scheduler.is_torn(), "{point}");
        let commands = scheduler.take_commands();
        assert!(names(&commands).is_empty(), "nothing of it is carried out: {commands:?}");
        let (_, message) = condition(&commands).expect("a condition");
        assert!(message.contains(&format!("injected at {point}")), "{message}");
        // A torn scheduler does nothing more.
        assert!(!scheduler.decide_next(at(1)));
        assert_eq!(scheduler.handle(WatchEvent::Set(pod("later", "1")), at(1)), None);
        let mut successor = succeeded(scheduler, &things(), 1);
        assert_eq!(names(&decide(&mut successor, 1)), ["good"], "bad was put aside");
        assert_eq!(names(&decide(&mut successor, 8)), ["bad"]);
        assert!(successor.is_sound());
    }
}

#[test]
fn object_whose_event_panics_counts_as_unreadable_until_its_next_version() {
    let mut scheduler = scheduler_with(things());
    let versioned = |version: &str, cpu: &str| {
        with("odd", cpu, |pod| pod["metadata"]["resourceVersion"] = json!(version))
    };
    fault::arm("event", 0);
    scheduler.handle(WatchEvent::Set(versioned("7", "1")), at(1));
    assert!(scheduler.is_torn());
    let all: Vec<WatchedObject> = things().into_iter().chain([versioned("7", "1")]).collect();
    fault::arm("event", usize::MAX);
    let mut successor = succeeded(scheduler, &all, 1);
    fault::disarm();
    assert_eq!(successor.cache.unreadable().get(&WatchedKind::Pod), Some(&1));
    let mut names_of = names(&decide(&mut successor, 1));
    names_of.sort_unstable();
    assert_eq!(names_of, ["bad", "good"]);
    // A later version is applied.
    successor.handle(WatchEvent::Set(versioned("8", "1")), at(2));
    assert_eq!(names(&decide(&mut successor, 2)), ["odd"]);
    assert_eq!(successor.cache.unreadable().get(&WatchedKind::Pod), Some(&0));
}

impl Scheduler {
    /// State that an evaluation must not change.
    fn shape(&self) -> (usize, Vec<String>, Vec<(Str, Nominee)>) {
        let cluster = &self.cache.cluster;
        let rows = ["n", "m"].map(|name| {
            let row = cluster.row(name).expect("it is there");
            let pods: Vec<_> = cluster.pods().on_node(row).map(|id| cluster.pod_name(id)).collect();
            format!("{name} {pods:?} {:?}", cluster.view().numbers(row))
        });
        let nominated = self.cache.nominated_on("m");
        (self.assumed(), rows.to_vec(), nominated)
    }

    fn pods_on(&self, node: &str) -> Vec<String> {
        let cluster = &self.cache.cluster;
        let row = cluster.row(node).expect("it is there");
        cluster.pods().on_node(row).map(|id| cluster.pod_name(id).to_string()).collect()
    }

    /// Returns true if an attempt has left nothing behind.
    pub(super) fn is_sound(&self) -> bool {
        !self.is_torn()
            && self.count(QueuePlace::InFlight) == 0
            && self.group.is_none()
            && self.net.is_idle()
            && !self.cache.is_changing.get()
            && self.cache.attempt_budget.exhausted().is_none()
    }
}

mod groups {
    use super::*;
    use crate::cycle::group_tests::{all_bound, conditions, scheduler_with_groups};
    use crate::cycle::tests::object;
    use crate::groups::GroupGates;

    /// A gang of two, of higher priority than the pod in its way.
    fn scheduler_with_gang() -> Scheduler {
        let gang = WatchedObject::PodGroup(object(json!({
            "metadata": {"name": "g", "namespace": "default", "uid": "g-g", "generation": 1},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "priority": 5},
        })));
        let member = |name: &str| {
            with(name, "3", |pod| {
                pod["spec"]["schedulingGroup"] = json!({"podGroupName": "g"});
                pod["spec"]["priority"] = json!(5);
            })
        };
        let low = with("low", "4", |pod| {
            pod["spec"]["nodeName"] = json!("n");
            pod["spec"]["priority"] = json!(-1);
        });
        let gates = GroupGates { gangs: true, preemption: true, ..GroupGates::default() };
        let things = [gang, node("n", "8"), low, member("a"), member("b")];
        scheduler_with_groups(gates, &things)
    }

    #[test]
    fn panic_in_any_dry_run_of_a_gang_evicts_no_pod_and_leaves_the_cache_unchanged() {
        let before = scheduler_with_gang().pods_on("n");
        // Each dry run calls the filter once: first with all pods, then without the pod in its way.
        for after in 0..8 {
            let mut scheduler = scheduler_with_gang();
            fault::arm("filter", after);
            let commands = decide(&mut scheduler, 1);
            if fault::disarm() {
                assert!(after > 2, "there is a search");
                assert!(commands.iter().any(|c| matches!(c, Command::Evict { .. })));
                return;
            }
            assert!(!scheduler.is_torn(), "{after}");
            let goes = commands.iter().any(|command| matches!(command, Command::Evict { .. }));
            assert!(!goes, "{after}: {commands:?}");
            assert_eq!(scheduler.pods_on("n"), before, "{after}");
            let (pods, groups) = conditions(&commands);
            assert_eq!((pods.len(), groups.len()), (2, 1), "{after}: {commands:?}");
            assert!(groups[0].2.contains("injected at filter"), "{groups:?}");
            assert!(scheduler.is_sound());
            assert!(decide(&mut scheduler, 3).is_empty(), "both wait");
            let commands = decide(&mut scheduler, 9);
            assert!(commands.iter().any(|c| matches!(c, Command::Evict { .. })), "{after}");
        }
        panic!("the search does not end");
    }

    #[test]
    fn exhausted_gang_is_refused_as_a_whole() {
        let mut scheduler = scheduler_with_gang().with_limits(Limits { work: 1, bytes: u64::MAX });
        scheduler.net.pays = true;
        let commands = decide(&mut scheduler, 1);
        assert!(all_bound(&commands).is_empty());
        assert!(!commands.iter().any(|c| matches!(c, Command::Evict { .. })));
        let (pods, groups) = conditions(&commands);
        assert_eq!((pods.len(), groups.len()), (2, 1), "{commands:?}");
        assert!(pods.iter().all(|(_, _, says)| says.contains("work limit")), "{pods:?}");
        assert!(groups[0].2.contains("work limit"), "{groups:?}");
        assert!(scheduler.is_sound());
        assert!(decide(&mut scheduler, 3).is_empty(), "both wait");
    }
}
