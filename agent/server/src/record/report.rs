//! The report of a replay: sentences for people, JSON for programs. Pure.

use std::fmt::{self, Display, Formatter};

use pintle_agent_core::flight::{Digest, ReplayDifference, ReplayOutcome};
use pintle_agent_core::types::{Now, UnixNanos};
use pintle_agent_core::worker::{Command, PodsInput};
use serde_json::{Value, json};

use super::{FolderReport, Lost};
use crate::words;

/// Commands of a difference that are shown; behind the first that differs there may be many.
const COMMANDS_MAX: usize = 20;
/// Things that were lost that are shown.
const LOST_MAX: usize = 40;

impl Display for Lost {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Segments(numbers) if numbers.start() == numbers.end() => {
                write!(f, "segment {}: its file is missing", numbers.start())
            }
            Self::Segments(numbers) => {
                write!(
                    f,
                    "segments {} to {}: their files are missing",
                    numbers.start(),
                    numbers.end()
                )
            }
            Self::Segment(number) => write!(f, "segment {number}: nothing of it was written"),
            Self::Misnamed { name, holds } => {
                write!(f, "segment {name}: its file holds segment {holds}, and is passed over")
            }
            Self::Head(number) => write!(f, "segment {number}: its head is broken"),
            Self::Batches { segment, loss } => write!(f, "segment {segment}: {loss}"),
            Self::State { segment, message } => {
                write!(f, "segment {segment}: a state that is none ({message})")
            }
        }
    }
}

impl FolderReport {
    /// The report for people.
    pub fn text(&self, version: &str) -> String {
        let (first, last) = (self.segments.first(), self.segments.last());
        let segments = match (first, last) {
            (Some(first), Some(last)) if first == last => format!("segment {first}"),
            (Some(first), Some(last)) => format!("segments {first} to {last}"),
            _ => "no segment".to_owned(),
        };
        let mut out = vec![format!(
            "{}: {segments}, {}.{} MiB",
            self.folder.display(),
            self.bytes >> 20,
            ((self.bytes % (1 << 20)) * 10) >> 20
        )];
        for (index, run) in self.runs.iter().enumerate() {
            out.push(String::new());
            self.add_run(&mut out, index, run, version);
        }
        if self.passed > 0 || self.unknown > 0 || !self.lost.is_empty() {
            out.push(String::new());
        }
        if self.passed > 0 {
            out.push(format!(
                "{} frames could not be replayed: no start of the agent and no state is before them",
                self.passed
            ));
        }
        if self.unknown > 0 {
            out.push(format!(
                "{} frames were written by another version of the agent, and {version} cannot read \
                 them: use the program that recorded them",
                self.unknown
            ));
        }
        out.extend(self.lost.iter().take(LOST_MAX).map(|lost| format!("Lost: {lost}")));
        if let Some(more @ 1..) = self.lost.len().checked_sub(LOST_MAX) {
            out.push(format!("and {more} more"));
        }
        out.extend([String::new(), self.verdict(version)]);
        out.join("\n") + "\n"
    }

    fn add_run(&self, out: &mut Vec<String>, index: usize, run: &ReplayOutcome, version: &str) {
        let span = match (run.began_at, run.ended_at) {
            (Some(from), Some(to)) => format!(": {} to {}", time(from), time(to)),
            _ => ": no input".to_owned(),
        };
        let of = run.version.as_deref().unwrap_or("whose start is not kept");
        out.push(format!("Run {} of the agent ({of}){span}", index + 1));
        if let Some(other) = run.version.as_deref().filter(|other| *other != version) {
            out.push(format!(
                "  recorded by {other} and replayed by {version}, which may decide differently"
            ));
        }
        out.push(format!("  inputs with the same commands: {}", run.equal));
        match &run.state_differs {
            None => {
                out.push(format!("  states that were compared and are the same: {}", run.states))
            }
            Some(at) => out.push(format!("  STATE DIFFERS at {at}, after {} the same", run.states)),
        }
        if let Some(difference) = &run.difference {
            self.add_difference(out, difference);
        }
        if let Some(panicked) = &run.panicked {
            let input = self.shown(panicked.now, &panicked.input);
            out.push(format!("  PANIC at input {}: {input}", run.equal + 1));
            out.push(format!("    {}", panicked.message));
        }
        if let Some((now, input)) = &run.unanswered {
            let input = self.shown(*now, input);
            out.push(format!("  the last input has no answer; the agent ended there: {input}"));
        }
        if run.torn {
            out.push("  the run went on, and what follows was lost".to_owned());
        }
    }

    fn add_difference(&self, out: &mut Vec<String>, difference: &ReplayDifference) {
        let input = self.shown(difference.now, &difference.input);
        out.push(format!("  DIFFERENT at input {}: {input}", difference.index + 1));
        let (then, now) = (&difference.recorded, &difference.replayed);
        out.push(format!("    commands then: {}, now: {}", then.len(), now.len()));
        let all = then.len().max(now.len());
        for at in 0..all.min(COMMANDS_MAX) {
            let words = now.get(at).map(|(_, command)| self.command(command));
            out.push(match (then.get(at), now.get(at), words) {
                (Some(then), Some((now, _)), Some(words)) if then == now => {
                    format!("    {}. the same: {words}", at + 1)
                }
                (Some(_), _, Some(words)) => format!("    {}. now another one: {words}", at + 1),
                (None, _, Some(words)) => format!("    {}. only now: {words}", at + 1),
                _ => format!("    {}. only then", at + 1),
            });
        }
        if all > COMMANDS_MAX {
            out.push(format!("    and {} more", all - COMMANDS_MAX));
        }
    }

    fn verdict(&self, version: &str) -> String {
        let until = self.until.map(|at| format!(" until {}", time(at))).unwrap_or_default();
        let equal: u64 = self.runs.iter().map(|run| run.equal).sum();
        let failed = self.runs.iter().filter(|run| !run.is_equal());
        let others = failed.clone().filter(|run| run.version.as_deref() != Some(version)).count();
        match (failed.count(), others) {
            _ if self.runs.is_empty() => format!("Nothing of the record{until} can be replayed."),
            (0, _) => format!("The same came of all {equal} inputs{until}."),
            (failed, others) if failed == others => format!(
                "Something else came of {failed} of {} runs, of other versions or of ones that are \
                 not known.",
                self.runs.len()
            ),
            (failed, _) => format!("Something else came of {failed} of {} runs.", self.runs.len()),
        }
    }

    /// `2026-01-01T00:00:00.5Z Observed of pod ns/web (uid u): 1 sandbox, c running`.
    fn shown(&self, now: Now, input: &PodsInput) -> String {
        let (what, text) = words::input(input);
        let pod = words::pod_of(input).map(|uid| {
            let name = self.names.get(uid).map(String::as_str).unwrap_or_default();
            format!(" of pod {name} (uid {uid})")
        });
        format!("{} {what}{}: {text}", time(now.wall), pod.unwrap_or_default())
    }

    fn command(&self, command: &Command) -> String {
        let (what, text) = words::command(command);
        let name = words::pod_of_command(command).and_then(|uid| self.names.get(uid));
        let name = name.map(|name| format!(" of pod {name}")).unwrap_or_default();
        format!("{what}{name}: {text}")
    }

    /// The report for programs.
    pub fn json(&self) -> Value {
        json!({
            "folder": self.folder.display().to_string(),
            "segments": self.segments,
            "bytes": self.bytes,
            "equal": self.is_equal(),
            "runs": self.runs.iter().map(|run| self.run_json(run)).collect::<Vec<_>>(),
            "passedFrames": self.passed,
            "lost": self.lost.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }

    fn run_json(&self, run: &ReplayOutcome) -> Value {
        let input = |now: Now, input: &PodsInput| {
            let uid = words::pod_of(input);
            json!({
                "unixNanos": now.wall,
                "pod": uid.and_then(|uid| self.names.get(uid)),
                "uid": uid,
                "input": input,
            })
        };
        let difference = run.difference.as_ref().map(|found| {
            let replayed = found.replayed.iter();
            let replayed = replayed
                .map(|(digest, command)| json!({"digest": hex(*digest), "command": command}));
            json!({
                "index": found.index,
                "at": input(found.now, &found.input),
                "recorded": found.recorded.iter().copied().map(hex).collect::<Vec<_>>(),
                "replayed": replayed.collect::<Vec<_>>(),
            })
        });
        let panicked = run
            .panicked
            .as_ref()
            .map(|found| json!({"at": input(found.now, &found.input), "message": found.message}));
        json!({
            "version": run.version,
            "beganUnixNanos": run.began_at,
            "endedUnixNanos": run.ended_at,
            "equal": run.is_equal(),
            "equalInputs": run.equal,
            "equalStates": run.states,
            "stateDiffers": run.state_differs,
            "difference": difference,
            "panic": panicked,
            "unanswered": run.unanswered.as_ref().map(|(now, of)| input(*now, of)),
            "torn": run.torn,
        })
    }
}

/// Digests of 64 bits are no numbers of JSON.
fn hex(digest: Digest) -> String {
    format!("{:016x}", digest.0)
}

/// A time of the record as people read it.
pub(crate) fn time(at: UnixNanos) -> String {
    at.to_timestamp().to_string()
}
