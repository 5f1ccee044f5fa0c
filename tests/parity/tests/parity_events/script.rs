//! Behaviour of the fake runtime, as recorded: images, ends of containers, commands, failing calls.

use std::collections::BTreeSet;
use std::time::Duration;

use pintle_cri::Method;
use pintle_cri::fake::{Behaviour, ExecAnswer, OnStop};
use pintle_parity::stand::Stand;
use serde_json::{Value, json};
use tonic::Code;

use crate::replay::statuses;

/// Run time of a container that ended within the second in which it was started.
const AT_ONCE: Duration = Duration::from_millis(50);
/// Time that a container takes to end when it is stopped.
const STOPS: Duration = Duration::from_millis(20);

/// A pod status' lists of containers.
pub(crate) const CONTAINERS: [&str; 3] =
    ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// Objects and images that existed when the pods were recorded.
pub(crate) fn prepare(stand: &Stand, recordings: &[(String, Value)]) {
    let objects = [
        ("configmaps/cm1", json!({"data": {"k1": "v1", "k2": "v2"}})),
        ("configmaps/kube-root-ca.crt", json!({"data": {"ca.crt": "a certificate"}})),
        ("secrets/sec1", json!({"data": {"user": "Ym9i", "pass": "czNjcmV0"}})),
    ];
    for (path, object) in objects {
        stand.api.put(&format!("/api/v1/namespaces/gold/{path}"), object);
    }
    for (_, recording) in recordings {
        let pod = &recording["pod_when_seen"];
        let namespace = text(&pod["metadata"]["namespace"]);
        let account = text(&pod["spec"]["serviceAccountName"]);
        if !account.is_empty() {
            let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}");
            stand.api.put(&path, json!({}));
        }
    }
    let events = recordings.iter().flat_map(|(_, recording)| items(&recording["events"]));
    for text in events.filter_map(|event| event["message"].as_str()) {
        if let Some(image) = quoted(text, "Container image ", " already present") {
            stand.runtime.add_image(image);
        }
    }
}

/// `"x"` between two texts, without its quotes.
fn quoted<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let rest = text.strip_prefix(before)?.strip_prefix('"')?;
    let (name, rest) = rest.split_once('"')?;
    rest.starts_with(after).then_some(name)
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Has the runtime treat this pod, `namespace/name`, as recorded.
pub(crate) fn play(stand: &Stand, pod: &str, recording: &Value) {
    pulls(stand, recording);
    failures(stand, pod, recording);
    commands(stand, pod, recording);
    let lives = lives(recording);
    for life in &lives {
        // Later attempts behave like the last recorded one.
        let is_last = !lives.iter().any(|l| l.name == life.name && l.attempt > life.attempt);
        if is_last {
            stand.runtime.script(&format!("{pod}/{}#", life.name), life.behaviour.clone());
        }
    }
    for life in lives {
        stand.runtime.script(&format!("{pod}/{}#{}.", life.name, life.attempt), life.behaviour);
    }
}

/// Pulls that failed, with the registry's words.
fn pulls(stand: &Stand, recording: &Value) {
    for told in items(&recording["events"]).map(|event| text(&event["message"])) {
        let Some(rest) = told.strip_prefix("Failed to pull image \"") else { continue };
        let Some((image, error)) = rest.split_once("\": ") else { continue };
        let (code, words) = match error.strip_prefix("rpc error: code = ") {
            Some(error) => error.split_once(" desc = ").unwrap_or(("Unknown", error)),
            None => ("Unknown", error),
        };
        stand.runtime.on(Method::PullImage).matching(image).fail(code_of(code), words);
    }
}

/// A code as Go or the protocol spells it.
fn code_of(name: &str) -> Code {
    let name = name.replace('_', "").to_lowercase();
    let all = (0..17).map(Code::from_i32);
    let mut found = all.filter(|code| format!("{code:?}").to_lowercase() == name);
    found.next().unwrap_or(Code::Unknown)
}

fn failures(stand: &Stand, pod: &str, recording: &Value) {
    let mut seen = BTreeSet::new();
    for call in items(&recording["cri_calls"]).filter(|call| !call["error"].is_null()) {
        let config = &call["request"]["config"]["metadata"]["name"];
        let (method, subject) = match text(&call["method"]) {
            "RunPodSandbox" => (Method::RunPodSandbox, pod.to_owned()),
            "CreateContainer" => (Method::CreateContainer, format!("{pod}/{}", text(config))),
            // A start that is refused is a part of the container's life.
            _ => continue,
        };
        if !seen.insert((method.name(), subject.clone())) {
            continue;
        }
        let same = |other: &&Value| other["method"] == call["method"] && !other["error"].is_null();
        let times = items(&recording["cri_calls"]).filter(same).count();
        let fault = stand.runtime.on(method).matching(&subject);
        let fault = fault.times(u32::try_from(times).expect("few calls"));
        fault.fail(code_of(text(&call["error"]["code"])), text(&call["error"]["details"]));
    }
}

fn commands(stand: &Stand, pod: &str, recording: &Value) {
    for call in items(&recording["cri_calls"]).filter(|call| call["method"] == "ExecSync") {
        let (request, response) = (&call["request"], &call["response"]);
        let words: Vec<&str> = items(&request["cmd"]).map(text).collect();
        let limit: u64 = text(&request["timeout"]).parse().unwrap_or(0);
        let answer = match (call["error"]["code"].as_str(), limit) {
            (None, _) => {
                let code = response["exit_code"].as_i64().unwrap_or(0);
                ExecAnswer::exit(i32::try_from(code).unwrap_or(-1), &decoded(&response["stdout"]))
            }
            (Some("DEADLINE_EXCEEDED"), 1..) => ExecAnswer::takes(Duration::from_secs(limit + 1)),
            (Some(_), _) => ExecAnswer::error(text(&call["error"]["details"])),
        };
        let stderr = decoded(&response["stderr"]).into_bytes();
        let answer = ExecAnswer { stderr, ..answer };
        stand.runtime.script_exec(&format!("{pod}/"), &words.join(" "), answer);
    }
}

/// Bytes are recorded in base64.
fn decoded(value: &Value) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text(value).bytes().filter_map(|b| DIGITS.iter().position(|d| *d == b));
    let (mut bits, mut count, mut bytes) = (0_usize, 0, Vec::new());
    for digit in digits {
        bits = (bits << 6 | digit) & 0xff_ffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).expect("a byte"));
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// One attempt of a container.
struct AttemptLife {
    name: String,
    attempt: u64,
    behaviour: Behaviour,
}

/// Name, attempt and id of each container that was created.
fn created(recording: &Value) -> Vec<(String, u64, String)> {
    let calls = items(&recording["cri_calls"]).filter(|call| call["method"] == "CreateContainer");
    let of = |call: &Value| {
        let metadata = &call["request"]["config"]["metadata"];
        let attempt = metadata["attempt"].as_u64().unwrap_or(0);
        (
            text(&metadata["name"]).to_owned(),
            attempt,
            text(&call["response"]["container_id"]).into(),
        )
    };
    calls.map(of).collect()
}

fn lives(recording: &Value) -> Vec<AttemptLife> {
    let ends = ends(recording);
    let stopped = |id: &str| {
        let mut calls = items(&recording["cri_calls"]);
        calls.any(|c| c["method"] == "StopContainer" && c["request"]["container_id"] == id)
    };
    let refused = |id: &str| {
        let mut calls = items(&recording["cri_calls"]);
        let call = calls.find(|call| {
            let start = call["method"] == "StartContainer" && !call["error"].is_null();
            start && call["request"]["container_id"] == id
        });
        call.map(|call| text(&call["error"]["details"]).replace(id, "{id}"))
    };
    let of = |(name, attempt, id): (String, u64, String)| {
        if let Some(words) = refused(&id) {
            let behaviour = Behaviour::start_error(&words);
            return AttemptLife { name, attempt, behaviour };
        }
        let end = ends.iter().find(|end| text(&end["containerID"]).ends_with(&id));
        let code = end.and_then(|end| end["exitCode"].as_i64()).unwrap_or(137);
        let code = i32::try_from(code).unwrap_or(-1);
        let mut behaviour =
            Behaviour { on_stop: OnStop::Exits(STOPS, code), ..Behaviour::default() };
        if let Some(end) = end.filter(|_| !stopped(&id) && !id.is_empty()) {
            behaviour.exits = Some((lasted(end), code));
            let reason = text(&end["reason"]);
            behaviour.exit_reason = (reason == "OOMKilled").then(|| reason.to_owned());
        }
        AttemptLife { name, attempt, behaviour }
    };
    created(recording).into_iter().map(of).collect()
}

/// The ends of containers that any status reported.
fn ends(recording: &Value) -> Vec<Value> {
    let statuses = statuses(recording);
    let containers =
        statuses.iter().flat_map(|s| CONTAINERS.iter().flat_map(|list| items(&s[*list])));
    let states = containers.flat_map(|container| [&container["state"], &container["lastState"]]);
    states.map(|state| state["terminated"].clone()).filter(|end| !end.is_null()).collect()
}

fn lasted(end: &Value) -> Duration {
    let at = |field: &str| text(&end[field]).parse::<jiff::Timestamp>().ok();
    let lasted = at("startedAt").zip(at("finishedAt")).map(|(from, to)| to.duration_since(from));
    lasted.and_then(|lasted| Duration::try_from(lasted).ok()).unwrap_or_default().max(AT_ONCE)
}
