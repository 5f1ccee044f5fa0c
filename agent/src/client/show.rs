//! Answers for people: a table of pods, an explanation, a timeline, a plan. Pure.
//!
//! Input: the agent's JSON. Output: text that ends with a line end. A field that is missing shows as
//! empty, so that an older command can read a newer agent.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::status::explain::span;

/// Blanks between two columns.
const GAP: usize = 3;

/// Said while pods may be missing from the table.
const STARTING: &str = "The agent is starting: the container runtime has not answered yet, or a \
                        source of pods has not been read.\n";

/// The table of pods.
pub(super) fn pods(answer: &Value) -> String {
    let head = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "WHY"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for pod in items(&answer["pods"]) {
        let age = pod["ageSeconds"].as_u64().map(age).unwrap_or_else(|| "-".to_owned());
        let ip = text(&pod["ip"]);
        rows.push(vec![
            text(&pod["namespace"]),
            text(&pod["name"]),
            format!("{}/{}", pod["ready"], pod["containers"]),
            text(&pod["status"]),
            pod["restarts"].to_string(),
            age,
            if ip.is_empty() { "-".to_owned() } else { ip },
            text(&pod["why"]),
        ]);
    }
    let mut out = match rows.len() {
        1 => "This node has no pods.\n".to_owned(),
        _ => table(&rows),
    };
    if answer["sourcesReady"] == false {
        out.push_str(STARTING);
    }
    section(&mut out, "API server:", &answer["apiServer"]);
    section(&mut out, "Being removed:", &answer["beingRemoved"]);
    section(&mut out, "Broken manifests:", &answer["brokenManifests"]);
    out
}

/// One pod's explanation.
pub(super) fn explanation(answer: &Value) -> String {
    let mut out = format!("{}: {}\n", text(&answer["pod"]), text(&answer["sentence"]));
    let _ = writeln!(out, "  reason: {}", text(&answer["reason"]));
    if let Some(remedy) = answer["remedy"].as_str() {
        let _ = writeln!(out, "  remedy: {remedy}");
    }
    for line in items(&answer["details"]) {
        let _ = writeln!(out, "  - {}", text(line));
    }
    out
}

/// One pod's timeline: microseconds since it was first seen.
pub(super) fn timeline(answer: &Value) -> String {
    let head = ["SINCE SEEN", "WHAT", "CONTAINER", "TEXT"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let entries: Vec<&Value> = items(&answer["entries"]).collect();
    for entry in &entries {
        let count = entry["count"].as_u64().unwrap_or(1);
        let last = micros(entry["lastSinceSeenMicros"].as_i64().unwrap_or_default());
        let last = last.trim_start();
        let times = match count {
            0 | 1 => String::new(),
            _ => format!(" ({count} times, last at {last})"),
        };
        let mark = if entry["warning"] == true { "! " } else { "" };
        rows.push(vec![
            micros(entry["sinceSeenMicros"].as_i64().unwrap_or_default()),
            format!("{mark}{}", text(&entry["what"])),
            text(&entry["container"]),
            format!("{}{times}", text(&entry["text"]).replace('\n', " ")),
        ]);
    }
    let seen = entries.first().and_then(|entry| entry["unixNanos"].as_i64());
    let seen = seen.and_then(|at| jiff::Timestamp::from_nanosecond(at.into()).ok());
    let seen = seen.map(|at| format!(", first seen {at}")).unwrap_or_default();
    format!("{} (uid {}){seen}\n{}", text(&answer["pod"]), text(&answer["uid"]), table(&rows))
}

/// What the agent would do.
pub(super) fn plan(answer: &Value) -> String {
    let mut out = format!("{} (stage {})\n", text(&answer["pod"]), text(&answer["stage"]));
    let mut steps = |title: &str, list: &Value| {
        if items(list).next().is_some() {
            let _ = writeln!(out, "{title}");
        }
        for (index, step) in items(list).enumerate() {
            let _ = writeln!(out, "  {}. {}", index + 1, text(&step["text"]));
        }
    };
    steps("Under way:", &answer["underWay"]);
    steps("Would do now:", &answer["actions"]);
    for held in items(&answer["held"]) {
        let left = Duration::from_secs(held["leftSeconds"].as_u64().unwrap_or_default());
        let name = text(&held["container"]);
        let _ = writeln!(out, "Waits: container {name} may start in {}", span(left));
    }
    let idle = ["underWay", "actions", "held"].iter().all(|f| items(&answer[*f]).next().is_none());
    if idle {
        out.push_str("Nothing to do.\n");
    }
    out
}

fn section(out: &mut String, title: &str, list: &Value) {
    if items(list).next().is_some() {
        let _ = writeln!(out, "\n{title}");
    }
    for line in items(list) {
        let _ = writeln!(out, "  {}", text(line));
    }
}

/// Columns as wide as their widest cell; the last one is not padded.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or_default() + GAP).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}");
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A pod's age as `kubectl` prints it, shortened to its largest unit.
fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Seconds with six digits.
fn micros(us: i64) -> String {
    format!("{:>5}.{:06} s", us / 1_000_000, (us % 1_000_000).abs())
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_are_a_table_with_the_reason_of_those_in_trouble() {
        let answer = json!({
            "pods": [
                {"namespace": "default", "name": "web-node", "ready": 1, "containers": 1,
                 "status": "Running", "restarts": 0, "ageSeconds": 300, "ip": "10.88.0.2",
                 "healthy": true, "why": ""},
                {"namespace": "default", "name": "job-node", "ready": 0, "containers": 2,
                 "status": "CrashLoopBackOff", "restarts": 3, "ageSeconds": 61,
                 "healthy": false, "why": "Container c ended with exit code 1."},
            ],
            "beingRemoved": ["default/old (uid 1)"],
            "brokenManifests": ["/m/x.yaml: line 3: kind is missing"],
        });
        assert_eq!(
            pods(&answer),
            "\
NAMESPACE   NAME       READY   STATUS             RESTARTS   AGE   IP          WHY
default     web-node   1/1     Running            0          5m    10.88.0.2
default     job-node   0/2     CrashLoopBackOff   3          61s   -           Container c ended \
with exit code 1.

Being removed:
  default/old (uid 1)

Broken manifests:
  /m/x.yaml: line 3: kind is missing
"
        );
        assert_eq!(pods(&json!({"pods": []})), "This node has no pods.\n");
        let starting = pods(&json!({"pods": [], "sourcesReady": false}));
        assert!(starting.contains("The agent is starting"), "{starting}");
    }

    #[test]
    fn an_explanation_is_a_sentence_a_reason_a_remedy_and_details() {
        let answer = json!({"pod": "default/web", "sentence": "Has failed.", "reason": "Failed",
            "remedy": "do something", "details": ["container c: waits"]});
        assert_eq!(
            explanation(&answer),
            "default/web: Has failed.\n  reason: Failed\n  remedy: do something\n  \
             - container c: waits\n"
        );
    }

    #[test]
    fn a_timeline_counts_microseconds_since_the_pod_was_seen() {
        let answer = json!({"pod": "default/web", "uid": "u", "entries": [
            {"unixNanos": 1_700_000_000_000_000_000_i64, "sinceSeenMicros": 0, "what": "Seen",
             "event": false, "warning": false, "count": 1},
            {"unixNanos": 1_700_000_001_234_567_000_i64, "sinceSeenMicros": 1_234_567,
             "what": "BackOff", "container": "c", "text": "Back-off", "event": true,
             "warning": true, "count": 4, "lastSinceSeenMicros": 9_000_000},
        ]});
        assert_eq!(
            timeline(&answer),
            "\
default/web (uid u), first seen 2023-11-14T22:13:20Z
SINCE SEEN       WHAT        CONTAINER   TEXT
    0.000000 s   Seen
    1.234567 s   ! BackOff   c           Back-off (4 times, last at 9.000000 s)
"
        );
    }

    #[test]
    fn a_plan_lists_its_steps_and_what_has_to_wait() {
        let answer = json!({"pod": "default/web", "stage": "Syncing", "underWay": [],
            "actions": [{"text": "make volumes ready"}, {"text": "start container c"}],
            "held": [{"container": "d", "leftSeconds": 80}]});
        assert_eq!(
            plan(&answer),
            "default/web (stage Syncing)\nWould do now:\n  1. make volumes ready\n  \
             2. start container c\nWaits: container d may start in 1 min 20 s\n"
        );
        let idle = json!({"pod": "a/b", "stage": "Syncing"});
        assert_eq!(plan(&idle), "a/b (stage Syncing)\nNothing to do.\n");
    }
}
