//! Order of out-of-tree plugins among in-tree ones.

use std::rc::Rc;

use serde_json::json;

use super::{Script, running};
use crate::cycle::tests::{condition, decide, node, pod, with};
use crate::framework::{Points, Rejection};

fn profile(sets: &str) -> String {
    format!("plugins: {{multiPoint: {{enabled: [{{name: Script}}]}}, {sets}}}")
}

#[test]
fn first_rejecting_filter_in_configured_order_is_reported() {
    // the point's plugin set, the node's message, the rejecting plugin
    for (sets, said, by) in [
        ("", "1 Insufficient cpu", "NodeResourcesFit"),
        ("filter: {enabled: [{name: Script}]}", "1 no licence", "OutOfTree"),
        (
            "filter: {enabled: [{name: NodeResourcesFit}, {name: Script}]}",
            "1 Insufficient cpu",
            "NodeResourcesFit",
        ),
        (
            "filter: {disabled: [{name: NodeResourcesFit}], enabled: [{name: NodeResourcesFit}]}",
            "1 no licence",
            "OutOfTree",
        ),
    ] {
        let script = Rc::<Script>::default();
        let no = Rejection::Unresolvable("no licence".to_owned());
        script.rejects.borrow_mut().insert("a", no);
        let all = |s: Rc<Script>| Points::default().pre_filter(s.clone()).filter(s);
        let things = [node("a", "1"), pod("p", "2")];
        let (mut scheduler, _) = running(&profile(sets), &things, &script, all);
        let (_, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
        assert!(message.starts_with(&format!("0/1 nodes are available: {said}. ")), "{message}");
        let rejected = scheduler.queue.rejected().iter().filter(|(_, count)| **count > 0);
        let rejected: Vec<&str> = rejected.map(|((plugin, _), _)| plugin.name()).collect();
        assert_eq!(rejected, [by], "{sets}");
    }
}

#[test]
fn first_rejecting_pre_filter_in_configured_order_is_reported() {
    let conflict = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        {"nodeSelectorTerms": [{"matchFields": [
            {"key": "metadata.name", "operator": "In", "values": ["a"]},
            {"key": "metadata.name", "operator": "In", "values": ["b"]}]}]}}});
    let claim = "persistentvolumeclaim \"c\" not found";
    let terms = "pod affinity terms conflict";
    let (hard, soft) = (Rejection::Unresolvable, Rejection::Unschedulable);
    type No = fn(String) -> Rejection;
    // the point's plugin set, the plugin's rejection, the message
    for (sets, no, said) in [
        ("", hard as No, terms),
        ("preFilter: {enabled: [{name: VolumeZone}]}", hard, claim),
        ("preFilter: {enabled: [{name: Script}]}", hard, "no licence"),
        ("preFilter: {enabled: [{name: VolumeBinding}, {name: Script}]}", hard, claim),
        // An UnschedulableAndUnresolvable result wins over an earlier Unschedulable one.
        ("preFilter: {enabled: [{name: Script}]}", soft, terms),
        ("preFilter: {enabled: [{name: Script}, {name: VolumeBinding}]}", soft, claim),
    ] {
        let script = Rc::<Script>::default();
        *script.refuses.borrow_mut() = Some(no("no licence".to_owned()));
        let things = [
            node("a", "8"),
            with("p", "1", |pod| {
                pod["spec"]["affinity"] = conflict.clone();
                pod["spec"]["volumes"] =
                    json!([{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]);
            }),
        ];
        let all = |s: Rc<Script>| Points::default().pre_filter(s);
        let (mut scheduler, _) = running(&profile(sets), &things, &script, all);
        let (_, message) = condition(&decide(&mut scheduler, 0)).expect("a condition");
        let want = format!("0/1 nodes are available: {said}. ");
        assert!(message.starts_with(&want), "{sets}: {message}");
    }
}
