//! Pod statuses against what the Go kubelet wrote.
//!
//! Each recording holds the status patches of one pod's life. They are replayed in order: the
//! runtime's state at a step is rebuilt from the recorded CRI calls and events (`replay::lives`),
//! the last recorded status is the previous one, and the derived status must equal the recorded one
//! field by field. Also the object that was read back must occur in the replay, or the replay
//! itself would be wrong.
//!
//! `PINTLE_RECORDED=DIR` replays another folder of recordings. A missing folder fails, unless it
//! says that nothing was recorded.

mod replay;

use pintle_agent_core::status;
use serde_json::{Value, json};

use replay::{ReplayedPod, compare, keep_cgroup, normal, statuses};

#[test]
fn every_recorded_status_is_derived_again() {
    let recordings = replay::recordings();
    let (mut steps, mut differences) = (0, Vec::new());
    for (name, recording) in &recordings {
        steps += play(name, recording, &mut differences);
    }
    println!("{} recordings, {steps} statuses", recordings.len());
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(recordings.is_empty() || steps > 0, "recordings without a single status");
}

/// A container's history is not taken from the status that is to be derived.
#[test]
fn recording_with_contradictory_calls_or_events_yields_differences() {
    let recordings = [
        ("readiness", include_str!("../../recorded/pods/readiness.json")),
        ("crashloop", include_str!("../../recorded/pods/crashloop.json")),
        ("minimal", include_str!("../../recorded/pods/minimal.json")),
    ];
    for (name, text) in recordings {
        let mut recording: Value = serde_json::from_str(text).expect("a recording");
        let mut differences = Vec::new();
        play(name, &recording, &mut differences);
        assert_eq!(differences, Vec::<String>::new(), "{name} as it was recorded");
        let calls = recording["cri_calls"].as_array_mut().expect("calls");
        match name {
            "readiness" => {
                // It never had the time to be healthy.
                let failed = json!({"reason": "Unhealthy", "message": "Readiness probe failed",
                    "fieldPath": "spec.containers{c}", "count": 1000});
                recording["events"].as_array_mut().expect("events").push(failed);
            }
            "crashloop" => recording["events"] = Value::Null,
            _ => {
                let create = calls.iter_mut().find(|call| call["method"] == "CreateContainer");
                create.expect("a container")["request"]["config"]["image"] = Value::Null;
            }
        }
        play(name, &recording, &mut differences);
        assert!(!differences.is_empty(), "{name}: an altered recording is accepted");
    }
}

/// Replays one recording; returns the number of statuses compared.
fn play(file: &str, recording: &Value, differences: &mut Vec<String>) -> usize {
    let seen = &recording["pod_when_seen"];
    let Some(name) = seen["metadata"]["name"].as_str() else {
        pintle_testbed::lacks(&format!("{file} has no pod_when_seen"));
        return 0;
    };
    let statuses = statuses(recording);
    if !statuses.iter().any(|status| normal(status) == normal(&seen["status"])) {
        differences.push(format!("{name}: the object read back is none of the replayed statuses"));
    }
    for (world, step) in ReplayedPod::all(recording, &statuses).into_iter().zip(1..) {
        let mut derived = status::derive(&world.input());
        keep_cgroup(&mut derived, &statuses[step - 1], &statuses[step]);
        let mut derived = normal(&serde_json::to_value(derived).expect("a status is JSON"));
        let want = normal(&statuses[step]);
        // The sandbox's condition is written before its address is read.
        if want.get("podIP").is_none() && want.get("startTime").is_some() {
            let fields = derived.as_object_mut().expect("an object");
            fields.remove("podIP");
            fields.remove("podIPs");
        }
        compare(&format!("{name} #{step}"), &want, &derived, differences);
    }
    statuses.len() - 1
}
