//! Words of explanations: spans of time, lists, exit codes, one-line messages. Pure.

use std::time::Duration;

use crate::observed::{ObservedPod, OomKill, RunState};
use pintle_api_types::ids::UnixNanos;

/// Longest quoted message within a sentence, in characters: this many from its beginning and its
/// end, where causes are.
const HEAD_CHARS: usize = 160;
const TAIL_CHARS: usize = 140;
/// Characters of an id that suffice to distinguish two, as `crictl` shows them.
const ID_CHARS: usize = 13;

/// A span of time for users: `0.8 s`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub fn span(time: Duration) -> String {
    let two = |first: u64, unit: &str, second: u64, small: &str| match second {
        0 => format!("{first} {unit}"),
        _ => format!("{first} {unit} {second} {small}"),
    };
    match time.as_secs() {
        0 => format!("0.{} s", time.subsec_millis() / 100),
        s @ 1..60 => format!("{s} s"),
        s @ 60..3600 => two(s / 60, "min", s % 60, "s"),
        s @ 3600..86_400 => two(s / 3600, "h", s / 60 % 60, "min"),
        s => two(s / 86_400, "d", s / 3600 % 24, "h"),
    }
}

/// `in 12 s`, or `now` for a past time; `None` without a time.
pub(super) fn in_time(now: UnixNanos, at: Option<UnixNanos>) -> Option<String> {
    let left = at?.since(now);
    if left.is_zero() { Some("now".to_owned()) } else { Some(format!("in {}", span(left))) }
}

/// `container a is` or `containers a, b and c are`.
pub(crate) fn list(what: &str, names: &[&str]) -> String {
    match names {
        [] => format!("no {what} is"),
        [one] => format!("{what} {one} is"),
        [most @ .., last] => format!("{what}s {} and {last} are", most.join(", ")),
    }
}

/// Names of the containers that run or may run.
pub(crate) fn running(observed: &ObservedPod) -> impl Iterator<Item = &str> {
    let running = observed
        .containers
        .iter()
        .filter(|c| matches!(c.state, RunState::Running | RunState::Unknown));
    running.map(|c| c.name.as_str())
}

/// The start of an id.
pub(crate) fn short(id: &str) -> &str {
    id.get(..ID_CHARS).unwrap_or(id)
}

/// A quoted message within a sentence: one line, bounded, without its full stop.
pub(crate) fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.trim_end_matches(['.', ':', ';']);
    let count = line.chars().count();
    if count <= HEAD_CHARS + TAIL_CHARS {
        return line.to_owned();
    }
    let head: String = line.chars().take(HEAD_CHARS).collect();
    let tail: String = line.chars().skip(count - TAIL_CHARS).collect();
    format!("{head} … {tail}")
}

/// The last line of a termination message.
pub(crate) fn termination_message(message: &str) -> Option<String> {
    let last = message.lines().rev().find(|line| !line.trim().is_empty())?;
    Some(one_line(last))
}

/// `exit code 137 (SIGKILL)`.
pub(crate) fn exit_code(code: i32) -> String {
    let signal = match code - 128 {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        7 => " (SIGBUS)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    };
    format!("exit code {code}{signal}")
}

/// `process stress (pid 7)`.
pub(crate) fn victim(oom: &OomKill) -> String {
    match (oom.comm.as_str(), oom.pid) {
        ("", 0) => "a process".to_owned(),
        ("", pid) => format!("process {pid}"),
        (comm, pid) => format!("process {comm} (pid {pid})"),
    }
}
