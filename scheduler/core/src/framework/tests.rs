//! Calls of out-of-tree plugins, and the effect of their answers.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::config;
use crate::cycle::tests::{
    at, bound, condition, decide, deliver_lists, node, nominated, pod, with, without_second_look,
};
use crate::cycle::{BindingResult, Command, Fact, Scheduler};
use crate::queue::QueuePlace;
use crate::watch_event::{WatchEvent, WatchedObject};

mod metered;
mod places;
mod refused;
mod seats;

/// A plugin with scripted answers.
#[derive(Default)]
struct Script {
    gate: RefCell<Option<String>>,
    refuses: RefCell<Option<Rejection>>,
    only: RefCell<Option<Vec<&'static str>>>,
    rejects: RefCell<BTreeMap<&'static str, Rejection>>,
    scores: RefCell<BTreeMap<&'static str, i64>>,
    room: RefCell<Option<Result<Option<String>, Rejection>>>,
    reserve: RefCell<Option<Rejection>>,
    permit: RefCell<Option<Result<Permission, Rejection>>>,
    pre_bind: RefCell<Option<String>>,
    deaf: Cell<bool>,
    calls: RefCell<Vec<String>>,
}

impl Script {
    fn call(&self, what: &str, pod: &Pod) {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        self.calls.borrow_mut().push(format!("{what} {name}"));
    }
}

impl PreEnqueue for Script {
    fn pre_enqueue(&self, _: &Pod) -> Result<(), PluginError> {
        self.gate.borrow().clone().map_or(Ok(()), |said| Err(PluginError::new(said)))
    }
}

impl QueueSort for Script {
    fn rank(&self, pod: &Pod) -> i64 {
        // The reverse of the usual order.
        pod.spec.as_ref().and_then(|spec| spec.priority).unwrap_or(0).into()
    }
}

impl PreFilter for Script {
    fn pre_filter(&self, state: &CycleState, pod: &Pod) -> Result<Nodes, Rejection> {
        state.write(pod.metadata.name.clone());
        self.refuses.borrow().clone().map_or(Ok(()), Err)?;
        let only = self.only.borrow();
        let names = only.as_ref().map(|names| names.iter().map(|&n| n.to_owned()).collect());
        Ok(names.map_or(Nodes::All, Nodes::Only))
    }
}

impl Filter for Script {
    fn filter(&self, state: &CycleState, pod: &Pod, node: &NodeInfo<'_>) -> Result<(), Rejection> {
        assert_eq!(state.read::<Option<String>>().as_deref(), Some(&pod.metadata.name));
        let rejects = self.rejects.borrow();
        rejects.get(node.name()).cloned().map_or(Ok(()), Err)
    }
}

impl Score for Script {
    fn score(&self, _: &CycleState, _: &Pod, node: &NodeInfo<'_>) -> Result<i64, PluginError> {
        Ok(self.scores.borrow().get(node.name()).copied().unwrap_or(0))
    }
}

impl PostFilter for Script {
    fn post_filter(&self, _: &CycleState, _: &Pod, _: &str) -> Result<Option<String>, Rejection> {
        self.room.borrow().clone().unwrap_or(Ok(None))
    }
}

impl Reserve for Script {
    fn reserve(&self, _: &CycleState, pod: &Pod, _: &str) -> Result<(), Rejection> {
        self.call("reserve", pod);
        self.reserve.borrow().clone().map_or(Ok(()), Err)
    }
    fn unreserve(&self, _: &CycleState, pod: &Pod, _: &str) {
        self.call("unreserve", pod);
    }
}

impl Permit for Script {
    fn permit(&self, _: &CycleState, _: &Pod, _: &str) -> Result<Permission, Rejection> {
        self.permit.borrow().clone().unwrap_or(Ok(Permission::Granted))
    }
}

impl PreBind for Script {
    fn pre_bind<'a>(
        &'a self,
        _: &'a CycleState,
        pod: &'a Pod,
        _: &'a str,
    ) -> LocalBoxFuture<'a, Result<(), PluginError>> {
        self.call("prebind", pod);
        let said = self.pre_bind.borrow().clone();
        let done = said.map_or(Ok(()), |said| Err(PluginError::new(said)));
        std::future::ready(done).boxed_local()
    }
}

impl Bind for Script {
    fn bind<'a>(
        &'a self,
        _: &'a CycleState,
        pod: &'a Pod,
        _: &'a str,
    ) -> LocalBoxFuture<'a, Option<Result<(), PluginError>>> {
        self.call("bind", pod);
        std::future::ready(Some(Ok(()))).boxed_local()
    }
}

impl PostBind for Script {
    fn post_bind(&self, _: &CycleState, pod: &Pod, _: &str) {
        self.call("postbind", pod);
    }
}

impl EnqueueExtensions for Script {
    fn may_help(&self, _: &Pod, _: Happened) -> bool {
        !self.deaf.get()
    }
}

const HEAD: &str =
    "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nprofiles:\n- ";
const EVERYWHERE: &str = "plugins: {multiPoint: {enabled: [{name: Script, weight: 1000}]}}";

fn registry(script: &Rc<Script>, points: impl Fn(Rc<Script>) -> Points + 'static) -> Registry {
    let script = Rc::clone(script);
    Registry::default().with("Script", move |_, _| Ok(points(Rc::clone(&script))))
}

/// A scheduler with the plugin at these points, configured by this profile.
fn running(
    text: &str,
    things: &[WatchedObject],
    script: &Rc<Script>,
    points: impl Fn(Rc<Script>) -> Points + 'static,
) -> (Scheduler, Handle) {
    let registry = registry(script, points);
    let file = format!("{HEAD}{text}\n");
    let (profiles, chosen) = config::profiles_with(&file, &registry).expect("a good file");
    let handle = Handle::default();
    let plugins = registry.plugins(&chosen[0], &handle).expect("good plugins");
    let scheduler = Scheduler::new(profiles, without_second_look(), 1);
    let plugins = vec![Some(Rc::new(plugins))];
    let mut scheduler = scheduler.with_plugins(plugins, handle.clone());
    deliver_lists(&mut scheduler, things);
    (scheduler, handle)
}

fn where_to(commands: &[Command]) -> Vec<(String, String)> {
    let all = commands.iter().filter_map(bound);
    all.map(|(pod, node)| (pod.key.name().to_owned(), node.to_string())).collect()
}

fn pair(pod: &str, node: &str) -> Vec<(String, String)> {
    vec![(pod.to_owned(), node.to_owned())]
}

#[test]
fn out_of_tree_filters_and_scores_count_together_with_upstream_plugins() {
    let script = Rc::<Script>::default();
    script.rejects.borrow_mut().insert("a", Rejection::Unschedulable("no licence".to_owned()));
    *script.scores.borrow_mut() = [("b", 1), ("c", 2)].into();
    let things = [node("a", "8"), node("b", "8"), node("c", "1"), pod("p", "1"), pod("q", "1")];
    let all = |s: Rc<Script>| Points::default().pre_filter(s.clone()).filter(s.clone()).score(s);
    let (mut scheduler, _) = running(EVERYWHERE, &things, &script, all);
    // The fuller node loses by the plugin's weight of a thousand.
    let mut found = where_to(&decide(&mut scheduler, 0));
    found.sort();
    let nodes: Vec<&str> = found.iter().map(|(_, node)| node.as_str()).collect();
    assert!(nodes.contains(&"c") && nodes.contains(&"b"), "{found:?}");
}

#[test]
fn out_of_tree_filter_message_is_reported_and_its_hint_decides_requeueing() {
    let script = Rc::<Script>::default();
    script.rejects.borrow_mut().insert("a", Rejection::Unresolvable("no licence".to_owned()));
    let things = [node("a", "8"), pod("p", "1")];
    let all = |s: Rc<Script>| Points::default().pre_filter(s.clone()).filter(s.clone()).events(s);
    let (mut scheduler, _) = running(EVERYWHERE, &things, &script, all);
    let (reason, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
    let why = "0/1 nodes are available: 1 no licence. no new claims to deallocate, preemption: \
        0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    assert_eq!((reason.as_str(), message.as_str()), ("Unschedulable", why));
    script.rejects.borrow_mut().clear();
    let licensed = |value: &str| {
        let WatchedObject::Node(mut node) = node("a", "8") else { unreachable!("a node") };
        node.metadata.annotations = Some([("licence".to_owned(), value.to_owned())].into());
        WatchedObject::Node(node)
    };
    script.deaf.set(true);
    scheduler.handle(WatchEvent::Set(licensed("1")), at(30));
    assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1, "the plugin says it is no use");
    script.deaf.set(false);
    scheduler.handle(WatchEvent::Set(licensed("2")), at(31));
    assert_eq!(where_to(&decide(&mut scheduler, 31)), pair("p", "a"));
}

#[test]
fn nodes_excluded_by_a_pre_filter_are_reported_separately() {
    let named = |names: &[&str]| {
        let term = |name| {
            json!({"matchFields": [{"key": "metadata.name", "operator": "In",
            "values": [name]}]})
        };
        let terms: Vec<_> = names.iter().map(term).collect();
        with("p", "2", |pod| {
            pod["spec"]["affinity"] = json!({"nodeAffinity":
                {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
        })
    };
    let both = "node(s) didn't satisfy plugin(s) [NodeAffinity Script]";
    // the nodes that the plugin allows, the pod, the expected message
    for (only, pod, want) in [
        (
            vec!["b"],
            pod("p", "2"),
            "1 Insufficient cpu, 2 node(s) didn't satisfy plugin(s) [Script].".to_owned(),
        ),
        (vec!["b", "c"], named(&["a", "b"]), format!("1 Insufficient cpu, 2 {both}.")),
        (vec!["c"], named(&["a", "b"]), format!("{both} simultaneously.")),
        (vec![], pod("p", "2"), "node(s) didn't satisfy plugin Script.".to_owned()),
    ] {
        let script = Rc::<Script>::default();
        *script.only.borrow_mut() = Some(only);
        let things = [node("a", "8"), node("b", "1"), node("c", "1"), pod];
        let all = |s: Rc<Script>| Points::default().pre_filter(s);
        let (mut scheduler, _) = running(EVERYWHERE, &things, &script, all);
        let message = condition(&decide(&mut scheduler, 0)).expect("a condition").1;
        assert!(message.starts_with(&format!("0/3 nodes are available: {want} ")), "{message}");
    }
}

#[test]
fn post_filter_after_preemption_ends_the_message_as_upstream_does() {
    let full = "0/1 nodes are available: 1 Insufficient cpu.";
    let all = format!(
        "{full} no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is \
         not helpful for scheduling."
    );
    let no = |text: &str| text.to_owned();
    let answers = [
        (Ok(None), all.clone(), Some("")),
        (Err(Rejection::Unschedulable(no("t"))), format!("{all}, t"), Some("")),
        (Ok(Some(no("a"))), no(full), None),
        (Err(Rejection::Unresolvable(no("t"))), format!("{full} t"), None),
        (Err(Rejection::Error(no("boom"))), format!("{full} boom"), None),
    ];
    for (answer, message, kept) in answers {
        let script = Rc::<Script>::default();
        *script.room.borrow_mut() = Some(answer.clone());
        let large = with("p", "2", |pod| pod["status"] = json!({"nominatedNodeName": "a"}));
        let things = [node("a", "1"), large];
        let (mut scheduler, _) =
            running(EVERYWHERE, &things, &script, |s| Points::default().post_filter(s));
        let commands = decide(&mut scheduler, 0);
        let told = (no("Unschedulable"), message);
        assert_eq!(condition(&commands), Some(told), "{answer:?}");
        // The end of its own nomination may help the pod, so the nomination is written twice.
        let mut written = nominated(&commands);
        written.dedup();
        let is_kept = scheduler.cache.nominated_on("a").len() == 1;
        assert_eq!((is_kept, &written), (kept.is_none(), &kept.into_iter().map(no).collect()));
        assert_eq!(scheduler.count(QueuePlace::Unschedulable), 1, "{answer:?}");
    }
    let script = Rc::<Script>::default();
    *script.room.borrow_mut() = Some(Err(Rejection::Unschedulable(no("t"))));
    let alone = "plugins: {multiPoint: {enabled: [{name: Script}], \
        disabled: [{name: DefaultPreemption}, {name: DynamicResources}]}}";
    let things = [node("a", "1"), pod("p", "2")];
    let (mut scheduler, _) = running(alone, &things, &script, |s| Points::default().post_filter(s));
    let (_, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
    assert_eq!(message, format!("{full} t"));
}

#[test]
fn pod_rejected_as_unschedulable_waits_for_its_terminating_victim() {
    let leaves = with("x", "1", |pod| {
        pod["spec"]["nodeName"] = json!("a");
        pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        pod["status"]["conditions"] = json!([{"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler"}]);
    });
    let waits = with("p", "1", |pod| {
        pod["spec"]["priority"] = json!(10);
        pod["status"] = json!({"nominatedNodeName": "a"});
    });
    let no = || "no".to_owned();
    for (refuses, end, is_kept) in [
        (Rejection::Unschedulable(no()), "due to a terminating pod on the nominated node.", true),
        (Rejection::Unresolvable(no()), "1 Preemption is not helpful for scheduling.", false),
    ] {
        let script = Rc::<Script>::default();
        *script.refuses.borrow_mut() = Some(refuses);
        let things = [node("a", "1"), leaves.clone(), waits.clone()];
        let (mut scheduler, _) =
            running(EVERYWHERE, &things, &script, |s| Points::default().pre_filter(s));
        let (_, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
        assert!(message.ends_with(end), "{message}");
        assert_eq!(!scheduler.cache.nominated_on("a").is_empty(), is_kept);
    }
}

#[test]
fn a_failing_filter_is_an_error() {
    let script = Rc::<Script>::default();
    script.rejects.borrow_mut().insert("a", Rejection::Error("no answer".to_owned()));
    let all = |s: Rc<Script>| Points::default().pre_filter(s.clone()).filter(s);
    let (mut scheduler, _) = running(EVERYWHERE, &[node("a", "8"), pod("p", "1")], &script, all);
    let found = condition(&decide(&mut scheduler, 0)).expect("a condition");
    let why = "running Filter plugin \"Script\": no answer";
    assert_eq!((found.0.as_str(), found.1.as_str()), ("SchedulerError", why));
    let failed = Fact::Searched { profile: 0, failed: true };
    assert!(scheduler.take_facts().contains(&failed), "it counts as one");
}

#[test]
fn a_score_out_of_range_is_an_error() {
    let script = Rc::<Script>::default();
    script.scores.borrow_mut().insert("a", 101);
    let all = |s: Rc<Script>| Points::default().score(s);
    let (mut scheduler, _) = running(EVERYWHERE, &[node("a", "8"), pod("p", "1")], &script, all);
    let message = condition(&decide(&mut scheduler, 0)).expect("a condition").1;
    assert!(message.contains("\"Script\" returns an invalid score 101"), "{message}");
}

#[test]
fn out_of_tree_gate_opens_on_an_event_if_its_plugin_admits_the_pod() {
    let script = Rc::<Script>::default();
    *script.gate.borrow_mut() = Some("not yet".to_owned());
    let all = |s: Rc<Script>| Points::default().pre_enqueue(s);
    let (mut scheduler, _) = running(EVERYWHERE, &[node("a", "8"), pod("p", "1")], &script, all);
    assert_eq!(decide(&mut scheduler, 0), []);
    assert_eq!(scheduler.count(QueuePlace::Gated), 1);
    scheduler.handle(WatchEvent::Set(node("b", "8")), at(1));
    assert_eq!(scheduler.count(QueuePlace::Gated), 1, "it still says no");
    script.gate.borrow_mut().take();
    scheduler.handle(WatchEvent::Set(node("c", "8")), at(2));
    assert_eq!(where_to(&decide(&mut scheduler, 2)).len(), 1);
}

#[test]
fn another_order_of_the_queue() {
    let script = Rc::<Script>::default();
    let high = with("high", "1", |pod| pod["spec"]["priority"] = json!(5));
    let things = [node("a", "8"), high, pod("low", "1")];
    let text = "plugins: {queueSort: {enabled: [{name: Script}], disabled: [{name: '*'}]}}";
    let (mut scheduler, _) = running(text, &things, &script, |s| Points::default().queue_sort(s));
    let order: Vec<String> =
        where_to(&decide(&mut scheduler, 0)).into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(order, ["low", "high"]);
}

#[test]
fn failed_reserve_releases_the_node_and_sets_a_condition() {
    let script = Rc::<Script>::default();
    *script.reserve.borrow_mut() = Some(Rejection::Unschedulable("all taken".to_owned()));
    let all = |s: Rc<Script>| Points::default().reserve(s);
    let (mut scheduler, _) = running(EVERYWHERE, &[node("a", "1"), pod("p", "1")], &script, all);
    let found = condition(&decide(&mut scheduler, 0)).expect("a condition");
    let why = "0/1 nodes are available: 1 all taken.";
    assert_eq!((found.0.as_str(), found.1.as_str()), ("Unschedulable", why));
    assert_eq!(*script.calls.borrow(), ["reserve p", "unreserve p"]);
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Unschedulable)), (0, 1));
    script.reserve.borrow_mut().take();
    scheduler.handle(WatchEvent::Set(node("b", "1")), at(30));
    assert_eq!(where_to(&decide(&mut scheduler, 30)).len(), 1, "room is as before");
}

fn waiting(script: &Rc<Script>, seconds: u64) -> (Scheduler, Handle) {
    let time = Duration::from_secs(seconds);
    *script.permit.borrow_mut() = Some(Ok(Permission::Wait(time)));
    let all = |s: Rc<Script>| {
        Points::default().reserve(s.clone()).permit(s.clone()).pre_bind(s.clone()).post_bind(s)
    };
    let (mut scheduler, handle) =
        running(EVERYWHERE, &[node("a", "1"), pod("p", "1")], script, all);
    let commands = decide(&mut scheduler, 0);
    assert_eq!(where_to(&commands), []);
    assert_eq!(nominated(&commands), ["a"], "others learn which node it waits for");
    let shown = handle.waiting_pods();
    assert_eq!((&*shown[0].node, &*shown[0].pending[0], shown.len()), ("a", "Script", 1));
    (scheduler, handle)
}

#[test]
fn pod_waits_in_permit_and_is_bound_when_allowed() {
    let script = Rc::<Script>::default();
    let (mut scheduler, handle) = waiting(&script, 60);
    handle.allow("p", "Another");
    scheduler.attend(at(1));
    assert_eq!(scheduler.take_commands(), []);
    handle.allow("p", "Script");
    scheduler.attend(at(2));
    let commands = scheduler.take_commands();
    let Some(Command::Bind { pod, node, attempt: Some(attempt), .. }) = commands.first() else {
        panic!("it is bound: {commands:?}");
    };
    assert_eq!(attempt.pre_bind(node).now_or_never(), Some(Ok(())));
    assert_eq!(attempt.bind(node).now_or_never(), Some(None), "the default binds it");
    scheduler.ended(pod, node, BindingResult::Bound, at(3));
    assert_eq!(*script.calls.borrow(), ["reserve p", "prebind p", "postbind p"]);
    assert_eq!((handle.waiting_pods().len(), scheduler.next_due(false)), (0, None));
}

#[test]
fn pod_rejected_in_permit_releases_its_node() {
    let script = Rc::<Script>::default();
    let (mut scheduler, handle) = waiting(&script, 60);
    handle.reject("p", "Script", "not today");
    scheduler.attend(at(1));
    let commands = scheduler.take_commands();
    let found = condition(&commands).expect("a condition");
    let why = "0/1 nodes are available: 1 not today.";
    assert_eq!((found.0.as_str(), found.1.as_str()), ("Unschedulable", why));
    assert_eq!(nominated(&commands), [""], "the node is not kept for it any more");
    assert_eq!(*script.calls.borrow(), ["reserve p", "unreserve p"]);
    assert_eq!((scheduler.assumed(), scheduler.count(QueuePlace::Backoff)), (0, 1));
}

#[test]
fn permission_that_does_not_come_in_time_is_refused() {
    let script = Rc::<Script>::default();
    let (mut scheduler, handle) = waiting(&script, 90);
    assert_eq!(scheduler.next_due(true), Some(at(90)));
    scheduler.attend(at(89));
    assert_eq!(scheduler.take_commands(), []);
    scheduler.attend(at(90));
    let message = condition(&scheduler.take_commands()).expect("a condition").1;
    let why = "0/1 nodes are available: 1 rejected due to timeout after waiting 1m30s at plugin \
        Script.";
    assert_eq!((message.as_str(), handle.waiting_pods().len()), (why, 0));
}

#[test]
fn pod_deleted_while_waiting_in_permit_is_unreserved_and_forgotten() {
    let script = Rc::<Script>::default();
    let (mut scheduler, handle) = waiting(&script, 60);
    scheduler.handle(WatchEvent::Gone(pod("p", "1")), at(1));
    assert_eq!(*script.calls.borrow(), ["reserve p", "unreserve p"]);
    assert_eq!((scheduler.assumed(), handle.waiting_pods().len()), (0, 0));
    script.permit.borrow_mut().take();
    scheduler.handle(WatchEvent::Set(pod("q", "1")), at(2));
    assert_eq!(where_to(&decide(&mut scheduler, 2)), pair("q", "a"));
}

/// Deletes or updates a pod that waits for Permit; checks the event and the metrics.
fn removed(told: WatchEvent) -> (Vec<Command>, Scheduler) {
    let (mut scheduler, handle) = waiting(&Rc::default(), 60);
    scheduler.take_facts();
    scheduler.handle(told, at(3));
    assert_eq!((scheduler.assumed(), handle.waiting_pods().len()), (0, 0));
    let facts = scheduler.take_facts();
    let took = Duration::from_secs(3);
    let waited = Fact::Permitted { result: "Unschedulable", took };
    let refused = Fact::Refused { profile: 0, is_error: false, since: took };
    assert_eq!(facts, [waited, refused]);
    let commands = scheduler.take_commands();
    let note = commands.iter().find_map(|command| match command {
        Command::RecordEvent(note) if note.reason == "FailedScheduling" => Some(note.note.as_str()),
        _ => None,
    });
    assert_eq!(note, Some("0/1 nodes are available: 1 removed."));
    (commands, scheduler)
}

#[test]
fn pod_deleted_while_waiting_in_permit_gets_an_event_and_is_counted() {
    let (_, scheduler) = removed(WatchEvent::Gone(pod("p", "1")));
    assert!(scheduler.queue.get("p").is_none());
    let leaves = with("p", "1", |pod| {
        pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        pod["metadata"]["finalizers"] = json!(["a/b"]);
    });
    let (commands, mut scheduler) = removed(WatchEvent::Set(leaves));
    let (reason, _) = condition(&commands).expect("a condition");
    assert_eq!((reason.as_str(), nominated(&commands)), ("Unschedulable", vec![String::new()]));
    scheduler.handle(WatchEvent::Set(pod("q", "1")), at(4));
    assert_eq!(nominated(&decide(&mut scheduler, 60)), ["a"], "its room is free");
}

#[test]
fn a_victim_that_waits_for_permission_is_not_deleted() {
    let script = Rc::<Script>::default();
    let (mut scheduler, _) = waiting(&script, 60);
    script.permit.borrow_mut().take();
    let high = with("high", "1", |pod| pod["spec"]["priority"] = json!(5));
    scheduler.handle(WatchEvent::Set(high), at(1));
    let commands = decide(&mut scheduler, 1);
    let evicts = commands.iter().any(|command| matches!(command, Command::Evict { .. }));
    assert!(!evicts, "{commands:?}");
    let commands: Vec<Command> = commands.into_iter().chain(decide(&mut scheduler, 30)).collect();
    assert_eq!(where_to(&commands), pair("high", "a"));
    assert_eq!(script.calls.borrow()[..2], ["reserve p", "unreserve p"]);
}

#[test]
fn out_of_tree_bind_plugin_replaces_the_default_binder() {
    let script = Rc::<Script>::default();
    let text = "plugins: {bind: {enabled: [{name: Script}], disabled: [{name: DefaultBinder}]}}";
    let things = [node("a", "1"), pod("p", "1")];
    let (mut scheduler, _) = running(text, &things, &script, |s| Points::default().bind(s));
    let commands = decide(&mut scheduler, 0);
    let Some(Command::Bind { node, attempt: Some(attempt), .. }) = commands.first() else {
        panic!("it is bound: {commands:?}");
    };
    assert_eq!(attempt.bind(node).now_or_never(), Some(Some(Ok(()))));
    assert_eq!(*script.calls.borrow(), ["bind p"]);
}

#[test]
fn invalid_plugin_configuration_is_reported_in_one_sentence() {
    let script = Rc::<Script>::default();
    let registry = registry(&script, |s| Points::default().score(s)).with("Picky", |args, _| {
        match args.is_null() {
            true => Ok(Points::default()),
            false => Err(PluginError::new("knows no arguments")),
        }
    });
    let refused = |text: &str| {
        let (_, chosen) = config::profiles_with(&format!("{HEAD}{text}\n"), &registry)
            .expect("as far as the file is concerned");
        let plugins = registry.plugins(&chosen[0], &Handle::default());
        plugins.map(|_| ()).expect_err("it is refused").to_string()
    };
    let error = refused("plugins: {filter: {enabled: [{name: Script}]}}");
    assert_eq!(error, "plugins.filter: plugin \"Script\" is not asked at this point");
    let error = refused(
        "plugins: {multiPoint: {enabled: [{name: Picky}]}}\n  \
         pluginConfig: [{name: Picky, args: {a: 1}}]",
    );
    assert_eq!(error, "pluginConfig[Picky].args: knows no arguments");
    let unknown = format!("{HEAD}plugins: {{multiPoint: {{enabled: [{{name: Nobody}}]}}}}\n");
    let error = config::profiles_with(&unknown, &registry).expect_err("unknown").to_string();
    assert!(error.contains("\"Nobody\" is not known"), "{error}");
    let quiet = "plugins: {multiPoint: {enabled: [{name: Script, weight: 7}, {name: Picky}]}, \
        score: {disabled: [{name: Script}]}}";
    let (_, chosen) =
        config::profiles_with(&format!("{HEAD}{quiet}\n"), &registry).expect("a good file");
    assert_eq!(chosen[0].at("score"), [("Picky".to_owned(), 1)]);
    assert_eq!(chosen[0].at("filter")[0], ("Script".to_owned(), 7));
}
