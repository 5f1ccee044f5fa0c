//! CRI calls that the runtime received for a pod, from containerd's own log.
//!
//! Calls in their order: sandboxes run and stopped, containers created, started, stopped with which
//! grace, changed. Commands and pulls depend on time, so they are a set. Immediate repetitions
//! count once, because both agents repeat a stop until it is done. Removals are left out: both
//! agents collect garbage at their own time.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use serde_json::{Value, json};

use super::normal::Normal;

/// The calls for one pod, with those in one order that both agents make in any.
pub(super) fn sorted(mut calls: Value, pod: &Value) -> Value {
    if let Some(order) = calls["order"].as_array_mut() {
        sort_stops(order, &main_containers(pod));
    }
    calls
}

/// Containers that may be stopped in any order, and whether their grace period is known: a hook
/// uses up a part of it.
fn main_containers(pod: &Value) -> BTreeMap<String, bool> {
    let all = pod["spec"]["containers"].as_array().into_iter().flatten();
    let known = |container: &Value| {
        let hook = &container["lifecycle"]["preStop"];
        hook["exec"].is_null() && hook["httpGet"].is_null()
    };
    all.map(|c| (super::flat::show(&c["name"]), known(c))).collect()
}

/// The patterns of the lines that matter.
struct Patterns {
    run: Regex,
    sandbox: Regex,
    create: Regex,
    container: Regex,
    by_id: Regex,
    exec: Regex,
}

impl Patterns {
    fn new() -> Self {
        let new = |pattern: &str| Regex::new(pattern).expect("the patterns are good");
        Self {
            run: new(r"^RunPodSandbox for .*Uid:([^,]+),.*Attempt:(\d+),\}$"),
            sandbox: new(r#"^RunPodSandbox for .*Uid:([^,]+),.* returns sandbox id "(\w+)""#),
            create: new(
                r#"^CreateContainer within sandbox "(\w+)" for container .*Name:([^,]+),Attempt:(\d+)"#,
            ),
            container: new(concat!(
                r#"^CreateContainer within sandbox "(\w+)" for "#,
                r#".*Name:([^,]+),Attempt:(\d+).* returns container id "(\w+)""#
            )),
            by_id: new(
                r#"^(StartContainer|StopContainer|StopPodSandbox|UpdateContainerResources) for "(\w+)"(.*)$"#,
            ),
            exec: new(r#"^(ExecSync|Exec|Attach|PortForward) for "(\w+)"( with command .*)$"#),
        }
    }
}

/// The calls for one pod, from containerd's log.
pub(super) fn parse(log: &str, uid: &str, normal: &Normal) -> Value {
    let patterns = Patterns::new();
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let (mut order, mut others) = (Vec::<String>::new(), BTreeSet::new());
    for message in log.lines().filter_map(message) {
        let mut call = None;
        if let Some(c) = patterns.sandbox.captures(&message) {
            if &c[1] == uid {
                names.insert(c[2].to_owned(), "sandbox".to_owned());
            }
        } else if let Some(c) = patterns.run.captures(&message) {
            call = (&c[1] == uid).then(|| format!("RunPodSandbox attempt {}", &c[2]));
        } else if let Some(c) = patterns.container.captures(&message) {
            if names.contains_key(&c[1]) {
                names.insert(c[4].to_owned(), format!("{}#{}", &c[2], &c[3]));
            }
        } else if let Some(c) = patterns.create.captures(&message) {
            call = names.get(&c[1]).map(|_| format!("CreateContainer {}#{}", &c[2], &c[3]));
        } else if let Some(c) = patterns.exec.captures(&message) {
            if let Some(name) = names.get(&c[2]) {
                others.insert(normal.text(&format!("{} {name}{}", &c[1], &c[3])));
            }
        } else if let Some(c) = patterns.by_id.captures(&message) {
            let rest = c[3].to_owned();
            let is_answer = rest.contains(" returns ") || rest.contains(" failed");
            let name = names.get(&c[2]).filter(|_| !is_answer);
            call = name.map(|name| normal.text(&format!("{} {name}{rest}", &c[1])));
        }
        order.extend(call.filter(|call| order.last() != Some(call)));
    }
    once(&mut order);
    json!({"order": order, "commands": others})
}

/// Main containers are stopped at the same time, so the order of their stops is random. Sidecars
/// are stopped afterwards, with the rest of the grace period.
fn sort_stops(order: &mut [Value], main: &BTreeMap<String, bool>) {
    let name = |call: &str| {
        let name = call.strip_prefix("StopContainer ").and_then(|c| c.split('#').next());
        name.map(str::to_owned)
    };
    let is_main = |call: &str| name(call).map(|name| main.contains_key(&name));
    let is_timed = |call: &str| name(call).map(|name| main.get(&name) == Some(&true));
    for call in order.iter_mut() {
        let text = call.as_str().unwrap_or_default();
        if let (Some(false), Some((what, _))) = (is_timed(text), text.split_once(" with timeout "))
        {
            *call = Value::from(format!("{what} with the time left"));
        }
    }
    let is_stop = |call: &Value| call.as_str().and_then(is_main) == Some(true);
    for stops in order.chunk_by_mut(|a, b| is_stop(a) && is_stop(b)) {
        stops.sort_by_key(ToString::to_string);
    }
}

/// Calls that make something: each of them counts.
const MAKING: [&str; 3] = ["RunPodSandbox", "CreateContainer", "StartContainer"];

/// Later repetitions of the same call are left out, except calls that create something twice.
fn once(calls: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    calls.retain(|call| {
        seen.insert(call.clone()) || MAKING.iter().any(|making| call.starts_with(making))
    });
}

/// The message of a line of containerd's log.
fn message(line: &str) -> Option<String> {
    let (_, rest) = line.split_once(" msg=\"")?;
    let mut text = String::new();
    let mut chars = rest.chars();
    loop {
        match chars.next()? {
            '"' => return Some(text),
            '\\' => text.push(chars.next()?),
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_stops_of_main_containers_in_a_row_are_sorted() {
        let mut order = [
            "StopContainer s#0 with timeout 7 (s)",
            "StopContainer b#0 with timeout 4 (s)",
            "StopContainer a#0 x",
            "StopContainer z#0 x",
            "StopContainer c#0",
        ]
        .map(Value::from);
        let main = [("a", true), ("b", false), ("c", true)];
        sort_stops(&mut order, &main.map(|(name, timed)| (name.to_owned(), timed)).into());
        let expected = [
            "StopContainer s#0 with the time left",
            "StopContainer a#0 x",
            "StopContainer b#0 with the time left",
            "StopContainer z#0 x",
            "StopContainer c#0",
        ];
        assert_eq!(order, expected.map(Value::from));
    }

    #[test]
    fn calls_of_one_pod_are_found_by_the_ids_that_were_returned() {
        let line =
            |text: &str| format!("time=\"x\" level=info msg=\"{}\"\n", text.replace('"', "\\\""));
        let log: String = [
            "RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:u,Namespace:n,Attempt:0,}",
            "RunPodSandbox for &PodSandboxMetadata{Name:b,Uid:v,Namespace:n,Attempt:0,}",
            "RunPodSandbox for &PodSandboxMetadata{Name:a,Uid:u,Namespace:n,Attempt:0,} returns sandbox id \"s1\"",
            "CreateContainer within sandbox \"s1\" for container &ContainerMetadata{Name:m,Attempt:0,}",
            "CreateContainer within sandbox \"s1\" for &ContainerMetadata{Name:m,Attempt:0,} \
             returns container id \"c1\"",
            "StartContainer for \"c1\"",
            "StartContainer for \"c1\" returns successfully",
            "ExecSync for \"c1\" with command [ls] and timeout 1 (s)",
            "StopContainer for \"c1\" with timeout 30 (s)",
            "StopPodSandbox for \"s1\"",
            "StopContainer for \"c2\" with timeout 30 (s)",
            "StopPodSandbox for \"s1\"",
        ]
        .map(line)
        .concat();
        let calls = parse(&log, "u", &Normal::new(Vec::new()));
        let order = [
            "RunPodSandbox attempt 0",
            "CreateContainer m#0",
            "StartContainer m#0",
            "StopContainer m#0 with timeout 30 (s)",
            "StopPodSandbox sandbox",
        ];
        assert_eq!(calls["order"], json!(order));
        assert_eq!(calls["commands"], json!(["ExecSync m#0 with command [ls] and timeout 1 (s)"]));
    }
}
