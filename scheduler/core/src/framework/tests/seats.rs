//! A plugin that counts pods per node and follows the pods that dry runs add and remove.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::super::*;
use super::{EVERYWHERE, HEAD, pair, where_to};
use crate::config;
use crate::cycle::tests::{
    at, condition, decide, deliver_lists, node, pod, with, without_second_look,
};
use crate::cycle::{Command, Scheduler};
use crate::watch_event::{WatchEvent, WatchedObject};

/// A plugin by which every node has one seat.
struct Seats {
    handle: Handle,
    calls: Rc<RefCell<Vec<String>>>,
    follows: bool,
}

/// Taken seats by node.
#[derive(Clone)]
struct Taken(BTreeMap<String, i64>);

impl Seats {
    fn change(&self, what: &str, state: &CycleState, other: &Pod, node: &NodeInfo<'_>, by: i64) {
        let other = other.metadata.name.as_deref().unwrap_or_default();
        self.calls.borrow_mut().push(format!("{what} {other} {}", node.name()));
        let mut taken = state.read::<Taken>().map(|taken| (*taken).clone()).expect("prepared");
        *taken.0.entry(node.name().to_owned()).or_default() += by;
        state.write(taken);
    }
}

impl PreFilter for Seats {
    fn pre_filter(&self, state: &CycleState, _: &Pod) -> Result<Nodes, Rejection> {
        let mut taken = Taken(BTreeMap::new());
        for (node, _) in self.handle.pods_on_nodes() {
            *taken.0.entry(node.to_string()).or_default() += 1;
        }
        state.write(taken);
        Ok(Nodes::All)
    }

    fn extensions(&self) -> Option<&dyn PreFilterExtensions> {
        self.follows.then_some(self as &dyn PreFilterExtensions)
    }
}

impl PreFilterExtensions for Seats {
    fn add_pod(
        &self,
        state: &CycleState,
        _: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if other.metadata.name.as_deref() == Some("stiff") {
            return Err(Rejection::Unschedulable("it cannot sit down again".to_owned()));
        }
        self.change("add", state, other, node, 1);
        Ok(())
    }

    fn remove_pod(
        &self,
        state: &CycleState,
        _: &Pod,
        other: &Pod,
        node: &NodeInfo<'_>,
    ) -> Result<(), Rejection> {
        if other.metadata.name.as_deref() == Some("nailed") {
            return Err(Rejection::Unschedulable("it cannot stand up".to_owned()));
        }
        self.change("remove", state, other, node, -1);
        Ok(())
    }
}

impl Filter for Seats {
    fn filter(&self, state: &CycleState, _: &Pod, node: &NodeInfo<'_>) -> Result<(), Rejection> {
        let taken = state.read::<Taken>().expect("prepared");
        match taken.0.get(node.name()) {
            Some(1..) => Err(Rejection::Unschedulable("no seat".to_owned())),
            _ => Ok(()),
        }
    }
}

fn of(name: &str, priority: i32, node: Option<&str>) -> WatchedObject {
    with(name, "1", |pod| {
        pod["spec"]["priority"] = json!(priority);
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
    })
}

type Calls = Rc<RefCell<Vec<String>>>;

fn running(things: &[WatchedObject], follows: bool) -> (Scheduler, Calls) {
    let calls = Calls::default();
    let kept = Rc::clone(&calls);
    let registry = Registry::default().with("Script", move |_, handle| {
        let (handle, calls) = (handle.clone(), Rc::clone(&calls));
        let seats = Rc::new(Seats { handle, calls, follows });
        Ok(Points::default().pre_filter(seats.clone()).filter(seats))
    });
    let file = format!("{HEAD}{EVERYWHERE}\n");
    let (profiles, chosen) = config::profiles_with(&file, &registry).expect("a good file");
    let handle = Handle::default();
    let plugins = registry.plugins(&chosen[0], &handle).expect("good plugins");
    let scheduler = Scheduler::new(profiles, without_second_look(), 1);
    let mut scheduler = scheduler.with_plugins(vec![Some(Rc::new(plugins))], handle);
    deliver_lists(&mut scheduler, things);
    (scheduler, kept)
}

/// The victims' names.
fn victims(commands: &[Command]) -> Vec<String> {
    let of = |command: &Command| match command {
        Command::Evict { victims, .. } => victims.iter().map(|v| v.key.name().to_owned()).collect(),
        _ => Vec::new(),
    };
    commands.iter().flat_map(of).collect()
}

#[test]
fn dry_run_removes_victims_from_plugin_state() {
    let things =
        [node("a", "8"), of("low", 1, Some("a")), of("lower", 0, Some("a")), of("high", 9, None)];
    let (mut scheduler, calls) = running(&things, true);
    assert_eq!(victims(&decide(&mut scheduler, 0)), ["low", "lower"]);
    // Both pods are removed, and neither can be reprieved.
    let told = ["remove low a", "remove lower a", "add low a", "remove low a", "add lower a"];
    assert_eq!(calls.borrow()[..5], told);
}

#[test]
fn no_pod_is_preempted_in_vain_without_pre_filter_extensions() {
    let things = [node("a", "8"), of("low", 1, Some("a")), of("high", 9, None)];
    let (mut scheduler, calls) = running(&things, false);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(victims(&commands), [""; 0]);
    assert!(condition(&commands).is_some_and(|(_, why)| why.contains("1 no seat")));
    assert_eq!(*calls.borrow(), [""; 0]);
}

#[test]
fn a_pod_that_a_plugin_cannot_think_away_stays() {
    let things = [node("a", "8"), of("nailed", 1, Some("a")), of("high", 9, None)];
    let commands = decide(&mut running(&things, true).0, 0);
    assert_eq!(victims(&commands), [""; 0]);
    let why = condition(&commands).expect("a condition").1;
    assert!(why.ends_with("preemption: 0/1 nodes are available: 1 it cannot stand up."), "{why}");
}

#[test]
fn pod_that_a_plugin_fails_to_add_back_is_preempted_and_others_are_recounted() {
    let things =
        [node("a", "8"), of("stiff", 1, Some("a")), of("lower", 0, Some("a")), of("high", 9, None)];
    let (mut scheduler, calls) = running(&things, true);
    assert_eq!(victims(&decide(&mut scheduler, 0)), ["stiff", "lower"]);
    let told = ["remove stiff a", "remove lower a", "remove stiff a"];
    assert_eq!(calls.borrow()[..3], told);
}

#[test]
fn room_that_is_kept_for_a_pod_is_in_the_count_of_a_plugin() {
    // A gated pod is nominated to the node and takes its seat.
    let kept = |name| {
        with(name, "1", |pod| {
            pod["spec"]["priority"] = json!(9);
            pod["spec"]["schedulingGates"] = json!([{"name": "g"}]);
            pod["status"] = json!({"nominatedNodeName": "a"});
        })
    };
    let (mut scheduler, calls) = running(&[node("a", "8"), kept("kept"), pod("p", "1")], true);
    assert_eq!(where_to(&decide(&mut scheduler, 0)), []);
    assert!(calls.borrow().iter().any(|call| call == "add kept a"), "{:?}", calls.borrow());
    scheduler.handle(WatchEvent::Gone(kept("kept")), at(30));
    assert_eq!(where_to(&decide(&mut scheduler, 30)), pair("p", "a"));
}
