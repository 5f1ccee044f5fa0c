//! Preemption and PostFilter for a pod that an out-of-tree PreFilter plugin rejects on all nodes.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};

use super::{EVERYWHERE, Script, running};
use crate::cycle::Command;
use crate::cycle::tests::{at, condition, decide, node, nominated, question, with};
use crate::extender::{Consulted, Extender, ExtenderReply};
use crate::framework::{Points, Rejection};
use crate::watch_event::WatchedObject;

const HEAD: &str = "0/1 nodes are available: no licence.";

fn of(name: &str, cpu: &str, priority: i32, node: Option<&str>) -> WatchedObject {
    with(name, cpu, |pod| {
        pod["spec"]["priority"] = json!(priority);
        pod["spec"]["nodeName"] = node.map_or(Value::Null, |node| json!(node));
    })
}

fn tainted() -> WatchedObject {
    let WatchedObject::Node(mut node) = node("a", "8") else { unreachable!("a node") };
    let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
    node.spec.get_or_insert_default().taints = serde_json::from_value(taint).expect("a taint");
    WatchedObject::Node(node)
}

fn all(script: Rc<Script>) -> Points {
    Points::default().pre_filter(script.clone()).filter(script.clone()).post_filter(script)
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
fn pod_rejected_by_a_pre_filter_preempts_only_if_victims_make_room() {
    let low = || of("low", "1", 1, Some("a"));
    let helps_not = |why: &str| {
        format!("{HEAD} no new claims to deallocate, preemption: 0/1 nodes are available: 1 {why}.")
    };
    // the node and its pod, the filter's rejection, the victims, the message
    for (things, says, goes, told) in [
        (vec![node("a", "1"), low()], None, vec!["low"], HEAD.to_owned()),
        (
            vec![node("a", "1"), of("high", "1", 10, Some("a"))],
            None,
            vec![],
            helps_not("No preemption victims found for incoming pod"),
        ),
        (vec![tainted(), low()], None, vec![], helps_not("node(s) had untolerated taint(s)")),
        (vec![node("a", "1"), low()], Some("no seat"), vec![], helps_not("no seat")),
        // The rejecting PreFilter plugin is not called again, and the pod fits without victims.
        (
            vec![node("a", "8"), low()],
            None,
            vec![],
            format!("{HEAD} preemption: expected at least one victim pod on node \"a\""),
        ),
    ] {
        let script = Rc::<Script>::default();
        *script.refuses.borrow_mut() = Some(Rejection::Unschedulable("no licence".to_owned()));
        let says = says.map(|why: &str| ("a", Rejection::Unschedulable(why.to_owned())));
        script.rejects.borrow_mut().extend(says);
        let things: Vec<WatchedObject> =
            things.into_iter().chain([of("p", "1", 9, None)]).collect();
        let (mut scheduler, _) = running(EVERYWHERE, &things, &script, all);
        let commands = decide(&mut scheduler, 0);
        assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), told)));
        assert_eq!(victims(&commands), goes);
        let kept = if goes.is_empty() { vec![] } else { vec!["a".to_owned()] };
        assert_eq!(nominated(&commands), kept);
    }
}

#[test]
fn out_of_tree_post_filter_may_nominate_a_node_after_a_pre_filter_rejection() {
    let no = || "no licence".to_owned();
    // the PreFilter rejection, the message, whether PostFilter ran
    for (refuses, told, is_asked) in [
        (Rejection::Unschedulable(no()), HEAD.to_owned(), true),
        (Rejection::Unresolvable(no()), HEAD.to_owned(), true),
    ] {
        let script = Rc::<Script>::default();
        *script.refuses.borrow_mut() = Some(refuses);
        *script.room.borrow_mut() = Some(Ok(Some("a".to_owned())));
        let things = [node("a", "1"), of("p", "1", 9, None)];
        let (mut scheduler, _) = running(EVERYWHERE, &things, &script, all);
        let commands = decide(&mut scheduler, 0);
        assert_eq!(condition(&commands), Some(("Unschedulable".to_owned(), told)));
        assert_eq!(!scheduler.cache.nominated_on("a").is_empty(), is_asked);
    }
}

#[test]
fn dynamic_resources_post_filter_fails_after_an_earlier_pre_filter_rejects() {
    let first =
        |point: &str| format!("plugins: {{multiPoint: {{enabled: [{{name: Script}}]}}{point}}}");
    let hopeless = " no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is \
        not helpful for scheduling.";
    // the PreFilter set, the text after the reason
    for (point, said) in [
        ("", hopeless),
        (", preFilter: {enabled: [{name: Script}]}", " not found"),
        (", preFilter: {enabled: [{name: DynamicResources}, {name: Script}]}", hopeless),
    ] {
        let script = Rc::<Script>::default();
        *script.refuses.borrow_mut() = Some(Rejection::Unresolvable("no licence".to_owned()));
        let things = [node("a", "1"), of("p", "1", 9, None)];
        let (mut scheduler, _) = running(&first(point), &things, &script, all);
        let (_, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
        assert_eq!(message, format!("{HEAD}{said}"), "{point}");
    }
}

#[test]
fn out_of_tree_post_filter_runs_after_extenders_leave_no_candidate() {
    let full = "0/1 nodes are available: 1 Insufficient cpu.";
    let nobody =
        format!("{full} no new claims to deallocate, preemption: no candidate node for preemption");
    let no = |text: &str| text.to_owned();
    for (answer, told, is_kept) in [
        (Ok(None), nobody.clone(), false),
        (Err(Rejection::Unschedulable(no("t"))), format!("{nobody}, t"), false),
        (Err(Rejection::Unresolvable(no("t"))), format!("{full} t"), false),
        (Ok(Some(no("a"))), no(full), true),
    ] {
        let script = Rc::<Script>::default();
        *script.room.borrow_mut() = Some(answer);
        let things = [node("a", "1"), of("low", "1", 1, Some("a")), of("p", "1", 9, None)];
        let (scheduler, _) = running(EVERYWHERE, &things, &script, all);
        let extender = Extender { preempt_verb: no("preempt"), ..Extender::default() };
        let mut scheduler = scheduler.with_extenders(vec![extender]);
        let consult = question(&decide(&mut scheduler, 0)).expect("it is asked");
        let answer = Ok(ExtenderReply::Victims(BTreeMap::new()));
        scheduler.consulted(Consulted { about: consult.about, answer }, at(0));
        let commands = scheduler.take_commands();
        assert_eq!(condition(&commands), Some((no("Unschedulable"), told)));
        assert_eq!(!scheduler.cache.nominated_on("a").is_empty(), is_kept);
    }
}
