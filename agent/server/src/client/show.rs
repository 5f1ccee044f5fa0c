//! Answers for people: a table of pods, an explanation, a timeline, a plan. Pure.
//!
//! Input: the agent's JSON. Output: text that ends with a line end. A field that is missing shows
//! as empty, so that an older command can read a newer agent.

use std::fmt::Write as _;
use std::time::Duration;

use pintle_agent_core::explain::span;
use serde_json::Value;

use super::look::{self, Cell, Style, TextStyle};

/// Index of the age among the words of a pod's line.
const AGE_COLUMN: usize = 5;

/// Printed while pods may be missing from the table and the agent gives no reason.
const STARTING: &str =
    "the container runtime has not answered yet, or a source of pods has not been read.";

/// The table of pods.
pub(super) fn pods(answer: &Value, look: &TextStyle) -> String {
    let head = ["NAMESPACE", "NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "WHY"];
    let mut rows = vec![titles(&head)];
    for pod in items(&answer["pods"]) {
        let age = pod["ageSeconds"].as_u64().map(age).unwrap_or_else(|| "-".to_owned());
        let ip = text(&pod["ip"]);
        let style = if pod["healthy"] == false { Style::Bad } else { Style::Good };
        rows.push(vec![
            text(&pod["namespace"]).into(),
            text(&pod["name"]).into(),
            format!("{}/{}", pod["ready"], pod["containers"]).into(),
            Cell::new(text(&pod["status"]), style),
            pod["restarts"].to_string().into(),
            age.into(),
            if ip.is_empty() { "-".to_owned() } else { ip }.into(),
            text(&pod["why"]).into(),
        ]);
    }
    let mut out = match (rows.len(), answer["hidden"].as_u64()) {
        (1, Some(hidden @ 1..)) => format!("None of this node's {hidden} pods is one of these.\n"),
        (1, _) => "This node has no pods.\n".to_owned(),
        _ => look.table(&rows),
    };
    if answer["sourcesReady"] == false {
        let awaited = text(&answer["startWaitsFor"]);
        let awaited = if awaited.is_empty() { STARTING } else { &awaited };
        let _ = writeln!(out, "The agent is starting: {awaited}");
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
    if answer["remedy"].is_string() {
        let _ = writeln!(out, "  remedy: {}", text(&answer["remedy"]));
    }
    for line in items(&answer["details"]) {
        let _ = writeln!(out, "  - {}", text(line));
    }
    out
}

/// One pod's timeline: microseconds since it was first seen.
pub(super) fn timeline(answer: &Value, look: &TextStyle) -> String {
    let mut rows = vec![titles(&["SINCE SEEN", "WHAT", "CONTAINER", "TEXT"])];
    let entries: Vec<&Value> = items(&answer["entries"]).collect();
    for entry in &entries {
        let count = entry["count"].as_u64().unwrap_or(1);
        let last = micros(entry["lastSinceSeenMicros"].as_i64().unwrap_or_default());
        let last = last.trim_start();
        let times = match count {
            0 | 1 => String::new(),
            _ => format!(" ({count} times, last at {last})"),
        };
        let (mark, style) = match entry["warning"] == true {
            true => ("! ", Style::Bad),
            false => ("", Style::Plain),
        };
        rows.push(vec![
            micros(entry["sinceSeenMicros"].as_i64().unwrap_or_default()).into(),
            Cell::new(format!("{mark}{}", text(&entry["what"])), style),
            text(&entry["container"]).into(),
            format!("{}{times}", text(&entry["text"])).into(),
        ]);
    }
    let seen = entries.first().and_then(|entry| entry["unixNanos"].as_i64());
    let seen = seen.and_then(|at| jiff::Timestamp::from_nanosecond(at.into()).ok());
    let seen = seen.map(|at| format!(", first seen {at}")).unwrap_or_default();
    format!("{} (uid {}){seen}\n{}", text(&answer["pod"]), text(&answer["uid"]), look.table(&rows))
}

/// The record and the moment of an answer.
pub(super) fn record(answer: &Value) -> String {
    let at = answer["unixNanos"].as_i64().unwrap_or_default();
    let at = jiff::Timestamp::from_nanosecond(at.into()).unwrap_or_default();
    let mut out = format!("As of {at}, from the record in {}\n", text(&answer["folder"]));
    for note in items(&answer["notes"]) {
        let _ = writeln!(out, "  - {}", text(note));
    }
    out
}

/// The commands that the agent would issue.
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

/// The waits of a pod that a retry ended.
pub(super) fn retried(answer: &Value) -> String {
    let pod = text(&answer["pod"]);
    let mut out = match items(&answer["waits"]).next() {
        Some(_) => format!("{pod} is tried again now.\n"),
        None => format!("{pod} had nothing to wait for.\n"),
    };
    for wait in items(&answer["waits"]) {
        let left = span(Duration::from_secs(wait["leftSeconds"].as_u64().unwrap_or_default()));
        let reason = match text(&wait["reason"]) {
            reason if reason.is_empty() => reason,
            reason => format!(" ({reason})"),
        };
        let _ = writeln!(out, "  {} would have waited {left}{reason}", text(&wait["what"]));
    }
    out
}

/// How close the node is to each threshold, the next victims, and the evicted pods.
pub(super) fn pressure(answer: &Value, look: &TextStyle) -> String {
    let mut rows =
        vec![titles(&["SIGNAL", "LEFT", "THRESHOLD", "OF", "TREND", "MET", "FIRST TO GO"])];
    for signal in items(&answer["signals"]) {
        let name = text(&signal["signal"]);
        let amount = |value: &Value| amount(&name, value.as_f64().unwrap_or_default());
        let trend = signal["perSecond"].as_f64().filter(|slope| slope.abs() >= 1.0);
        let trend = trend.map_or("-".to_owned(), |slope| {
            let sign = if slope < 0.0 { '-' } else { '+' };
            format!("{sign}{}/s", self::amount(&name, slope.abs()))
        });
        let time = |value: &Value| value.as_u64().map(|s| span(Duration::from_secs(s)));
        let (met, style) = match (time(&signal["metForSeconds"]), time(&signal["metInSeconds"])) {
            (Some(since), _) => (format!("for {since}"), Style::Bad),
            (None, Some(left)) => (format!("in {left}"), Style::Good),
            (None, None) => ("-".to_owned(), Style::Good),
        };
        let next = &signal["next"];
        let next = match next["pod"].as_str() {
            Some(pod) => format!("{pod}: {}", text(&next["why"])),
            None if signal["isBlind"] == true => "not known yet: pods are being counted".to_owned(),
            None => "-".to_owned(),
        };
        rows.push(vec![
            name.clone().into(),
            amount(&signal["available"]).into(),
            amount(&signal["threshold"]).into(),
            amount(&signal["capacity"]).into(),
            trend.into(),
            Cell::new(met, style),
            next.into(),
        ]);
    }
    let mut out = match rows.len() {
        1 => "Nothing has been measured yet, or no threshold is set.\n".to_owned(),
        _ => look.table(&rows),
    };
    for signal in items(&answer["signals"]).filter(|signal| signal["stall"].is_object()) {
        let _ = writeln!(out, "{}: {}", text(&signal["signal"]), text(&signal["stall"]["words"]));
    }
    for (index, eviction) in items(&answer["evictions"]).enumerate() {
        if index == 0 {
            out.push_str("Evicted:\n");
        }
        // The sentence names the pod.
        let (at, sentence) = (text(&eviction["at"]), text(&eviction["sentence"]));
        let _ = writeln!(out, "  {at} {sentence}");
    }
    out + &images(&answer["images"], look)
}

/// The images that would be deleted, and why others are kept; empty when they are unknown.
fn images(answer: &Value, look: &TextStyle) -> String {
    let mut rows = vec![titles(&["IMAGE", "SIZE", "UNUSED", "WHAT BECOMES OF IT"])];
    for image in items(&answer["images"]) {
        let unused = image["unusedSeconds"].as_u64().filter(|seconds| *seconds > 0);
        let unused = unused.map_or("-".to_owned(), |s| span(Duration::from_secs(s)));
        let style = if image["goes"] == true { Style::Bad } else { Style::Good };
        rows.push(vec![
            text(&image["name"]).into(),
            amount("", image["bytes"].as_f64().unwrap_or_default()).into(),
            unused.into(),
            Cell::new(text(&image["why"]), style),
        ]);
    }
    if rows.len() == 1 {
        return String::new();
    }
    let used = answer["usedPercent"].as_u64().map_or_else(
        || "How full the disk of the images is cannot be read".to_owned(),
        |percent| format!("The disk of the images is {percent}% full"),
    );
    let (high, low) = (&answer["highPercent"], &answer["lowPercent"]);
    let rule = match answer["isOn"] == true {
        true => format!("from {high}% on unused ones go until it is {low}% full"),
        false => "images go only when pods would have to go else".to_owned(),
    };
    format!("\n{used}; {rule}.\n{}", look.table(&rows))
}

/// Bytes with a unit, inodes and process numbers without.
fn amount(signal: &str, value: f64) -> String {
    const UNITS: [&str; 5] = ["", "Ki", "Mi", "Gi", "Ti"];
    let is_count = signal.ends_with("inodesFree") || signal.starts_with("pid");
    let (mut value, mut unit) = (value, 0);
    while !is_count && value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = usize::from(unit > 0 && value < 100.0);
    format!("{value:.digits$}{}", UNITS[unit])
}

fn section(out: &mut String, title: &str, list: &Value) {
    if items(list).next().is_some() {
        let _ = writeln!(out, "\n{title}");
    }
    for line in items(list) {
        let _ = writeln!(out, "  {}", text(line));
    }
}

/// The lines of a list that were not in the one before; the ages of pods are no change.
pub(super) fn changed_lines(before: &str, now: &str) -> String {
    let key = |line: &str| {
        let words = line.split_whitespace().enumerate();
        words.filter(|(index, _)| *index != AGE_COLUMN).map(|(_, w)| w.to_owned()).collect()
    };
    let known: std::collections::BTreeSet<Vec<String>> = before.lines().map(key).collect();
    now.lines().filter(|line| !known.contains(&key(line))).map(|line| format!("{line}\n")).collect()
}

pub(super) fn titles(names: &[&str]) -> Vec<Cell> {
    names.iter().map(|name| Cell::new(*name, Style::Title)).collect()
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
    look::plain(value.as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const PLAIN: TextStyle = TextStyle { color: false, width: None };

    #[test]
    fn pressure_table_shows_units_and_the_first_eviction_candidate() {
        let answer = json!({
            "signals": [
                {"signal": "memory.available", "available": 734_003_200, "capacity": 8_589_934_592_u64,
                 "threshold": 104_857_600, "perSecond": -10_485_760.0, "metInSeconds": 60,
                 "metForSeconds": null, "next": {"pod": "ns/hog", "why": "it uses more"}},
                {"signal": "nodefs.inodesFree", "available": 5000, "capacity": 9000,
                 "threshold": 6000, "perSecond": 0.2, "metInSeconds": null, "metForSeconds": 7},
            ],
            "evictions": [{"at": "2026-01-01T00:00:00Z", "pod": "ns/a",
                           "sentence": "ns/a was evicted for memory.available: alone"}],
        });
        let expected = "\
SIGNAL              LEFT    THRESHOLD   OF      TREND       MET        FIRST TO GO
memory.available    700Mi   100Mi       8.0Gi   -10.0Mi/s   in 1 min   ns/hog: it uses more
nodefs.inodesFree   5000    6000        9000    -           for 7 s    -
Evicted:
  2026-01-01T00:00:00Z ns/a was evicted for memory.available: alone
";
        assert_eq!(pressure(&answer, &PLAIN), expected);
        let images = json!({"usedPercent": 91, "highPercent": 85, "lowPercent": 80, "isOn": true,
        "images": [
            {"name": "reg/a:1", "bytes": 3_145_728, "unusedSeconds": 7200, "goes": true,
             "why": "goes first"},
            {"name": "reg/b:1", "bytes": 10, "unusedSeconds": 0, "goes": false,
             "why": "stays: a container has it"},
        ]});
        let more = "
The disk of the images is 91% full; from 85% on unused ones go until it is 80% full.
IMAGE     SIZE    UNUSED   WHAT BECOMES OF IT
reg/a:1   3.0Mi   2 h      goes first
reg/b:1   10      -        stays: a container has it
";
        let mut with_images = answer.clone();
        with_images["images"] = images;
        assert_eq!(pressure(&with_images, &PLAIN), format!("{expected}{more}"));
        let mut with_stall = answer;
        with_stall["signals"][0]["stall"] = json!({"words": "stall 0.10%, less than 10.00%"});
        let shown = pressure(&with_stall, &PLAIN);
        assert!(shown.contains("\nmemory.available: stall 0.10%, less than 10.00%\nEvicted:\n"));
        assert!(pressure(&json!({}), &PLAIN).starts_with("Nothing has been measured"));
    }

    #[test]
    fn watch_prints_only_lines_that_changed_in_more_than_their_age() {
        let before = "NAME READY\na b 1/1 Running 0 5s -\na c 0/1 Pending 0 5s -\n";
        let now = "NAME READY\na b 1/1 Running 0 6s -\na c 1/1 Running 0 6s -\n";
        assert_eq!(changed_lines(before, now), "a c 1/1 Running 0 6s -\n");
    }

    #[test]
    fn empty_filtered_pod_list_shows_the_number_of_hidden_pods() {
        let shown = pods(&json!({"pods": [], "hidden": 3}), &PLAIN);
        assert_eq!(shown, "None of this node's 3 pods is one of these.\n");
    }

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
            pods(&answer, &PLAIN),
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
        assert_eq!(pods(&json!({"pods": []}), &PLAIN), "This node has no pods.\n");
        let starting = pods(&json!({"pods": [], "sourcesReady": false}), &PLAIN);
        assert!(
            starting.ends_with(
                "\nThe agent is starting: the container runtime has not \
            answered yet, or a source of pods has not been read.\n"
            ),
            "{starting}"
        );
        let why = json!({"pods": [], "sourcesReady": false, "startWaitsFor": "no such socket"});
        assert!(pods(&why, &PLAIN).ends_with("\nThe agent is starting: no such socket\n"));
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
            timeline(&answer, &PLAIN),
            "\
default/web (uid u), first seen 2023-11-14T22:13:20Z
SINCE SEEN       WHAT        CONTAINER   TEXT
    0.000000 s   Seen
    1.234567 s   ! BackOff   c           Back-off (4 times, last at 9.000000 s)
"
        );
    }

    #[test]
    fn retry_output_lists_every_wait_that_was_skipped() {
        let answer = json!({"pod": "default/web", "waits": [
            {"what": "all of the pod", "reason": "FailedMount", "leftSeconds": 8},
            {"what": "container web", "reason": "CrashLoopBackOff", "leftSeconds": 252},
            {"what": "its resize", "reason": "", "leftSeconds": 0},
        ]});
        assert_eq!(
            retried(&answer),
            "default/web is tried again now.\n  all of the pod would have waited 8 s (FailedMount)\n  \
             container web would have waited 4 min 12 s (CrashLoopBackOff)\n  its resize would have \
             waited 0.0 s\n"
        );
        let idle = json!({"pod": "default/web", "waits": []});
        assert_eq!(retried(&idle), "default/web had nothing to wait for.\n");
    }

    #[test]
    fn plan_lists_its_steps_and_the_containers_that_must_wait() {
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

    #[test]
    fn control_characters_of_container_messages_never_reach_the_terminal() {
        let said = "died\x1b]0;root\u{7}\n  reason: Fine\u{9b}2J";
        let answer = json!({"pod": said, "sentence": said, "reason": said, "remedy": said,
            "details": [said], "stage": said, "actions": [{"text": said}],
            "held": [{"container": said, "leftSeconds": 1}], "beingRemoved": [said],
            "folder": said, "notes": [said], "pods": [{"name": said, "ready": 0, "why": said}]});
        let all =
            [explanation(&answer), plan(&answer), pods(&answer, &PLAIN), super::record(&answer)];
        for shown in all {
            assert!(!shown.chars().any(|c| c.is_control() && c != '\n'), "{shown:?}");
            assert!(!shown.contains("\n  reason: Fine"), "{shown:?}");
        }
    }

    #[test]
    fn answer_from_a_record_names_the_record_folder_and_its_time() {
        let record = json!({"folder": "/r/flight", "unixNanos": 1_700_000_000_500_000_000_i64,
            "notes": ["a part of the record is lost: see replay"]});
        assert_eq!(
            super::record(&record),
            "As of 2023-11-14T22:13:20.5Z, from the record in /r/flight\n  \
             - a part of the record is lost: see replay\n"
        );
    }
}
