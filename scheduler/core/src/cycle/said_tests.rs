//! Conditions and events of rejected pods, and when they are repeated.

use serde_json::{Value, json};

use super::tests::{at, bound, condition, decide, node, pod, scheduler_with, with};
use super::*;
use crate::watch_event::{WatchEvent, WatchedObject};

/// The pod with this condition in its status.
fn with_condition(
    name: &str,
    (reason, message): &(String, String),
    generation: u64,
) -> WatchedObject {
    with(name, "1", |pod| {
        pod["metadata"]["generation"] = json!(generation);
        pod["status"]["conditions"] = json!([{"type": "PodScheduled", "status": "False",
            "reason": reason, "message": message, "observedGeneration": 1}]);
    })
}

fn on_node(pod: &mut Value) {
    pod["spec"]["nodeName"] = json!("n");
}

#[test]
fn condition_is_written_again_after_a_different_condition() {
    let other = |name| with(name, "1", on_node);
    let mut scheduler = scheduler_with(vec![node("n", "1"), other("first"), pod("p", "1")]);
    let full = condition(&decide(&mut scheduler, 0)).expect("there is no room");
    scheduler.handle(WatchEvent::Set(with_condition("p", &full, 1)), at(1));
    scheduler.handle(WatchEvent::Gone(other("first")), at(2));
    let (pod, node) = decide(&mut scheduler, 9).iter().find_map(bound).expect("there is room");
    scheduler.ended(&pod, &node, BindingResult::Failed("refused".to_owned()), at(10));
    let failed = condition(&scheduler.take_commands()).expect("a condition");
    assert_eq!(failed.1, "refused");
    // This condition may be written at any time from now on.
    scheduler.handle(WatchEvent::Set(other("second")), at(11));
    assert_eq!(condition(&decide(&mut scheduler, 60)), Some(full));
}

#[test]
fn equal_condition_is_not_rewritten_for_a_changed_pod() {
    let full = {
        let mut scheduler =
            scheduler_with(vec![node("n", "1"), with("o", "1", on_node), pod("p", "1")]);
        condition(&decide(&mut scheduler, 0)).expect("there is no room")
    };
    let things = vec![node("n", "1"), with("o", "1", on_node), with_condition("p", &full, 2)];
    let commands = decide(&mut scheduler_with(things), 0);
    let writes = |command: &Command| matches!(command, Command::Status { .. });
    assert!(!commands.iter().any(writes), "{commands:?}");
}
