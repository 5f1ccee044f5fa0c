//! The commands that ask the record of an agent, which need not run: `replay`, and `explain` and
//! `timeline` of a moment that is past.
//!
//! Effects: reads the record's files and the clock. Nothing of it asks an agent or changes
//! anything.

use pintle_agent_config::{ClientCommand, OutputFormat, PastMoment, RecordQuery, ReplayOf};
use pintle_agent_core::types::UnixNanos;
use pintle_daemon::{build, clock, tasks};
use serde_json::Value;

use super::look::{self, Cell, Style, TextStyle};
use super::{ClientError, show};
use crate::answers;
use crate::record::past::{self, PastQuery};
use crate::record::pod_inputs::{InputRow, PodInputs};
use crate::record::{self, FlightRecordError};

/// The report of a replay, and whether it equals the record.
pub(super) fn replayed(
    of: &ReplayOf,
    command: &ClientCommand,
) -> Result<(String, bool), ClientError> {
    tasks::keep_caught_quiet();
    let is_json = command.output == OutputFormat::Json;
    let mut pod = of.pod.as_ref().map(|pod| PodInputs::new(pod, is_json));
    let report = record::replay(&of.dir, moment(of.until), &mut |replay, frame| {
        if let Some(pod) = &mut pod {
            pod.see(replay, frame);
        }
    })?;
    if let (Some(asked), Some(pod)) = (&of.pod, &pod)
        && !pod.found()
    {
        let (path, pod) = (report.folder, asked.clone());
        return Err(FlightRecordError::UnknownPod { path, pod, more: Vec::new() }.into());
    }
    let text = match is_json {
        true => {
            let mut value = report.json();
            if let Some(pod) = pod {
                value["inputs"] = Value::from(pod.json);
            }
            let json = serde_json::to_string_pretty(&answers::versioned(value))?;
            look::plain_json(&format!("{json}\n"))
        }
        false => {
            let rows = pod.map(|pod| table(&pod.rows, &TextStyle::of(command)) + "\n");
            rows.unwrap_or_default() + &look::plain_lines(&report.text(&build::version()))
        }
    };
    Ok((text, report.is_equal()))
}

/// The answer of a record about a pod.
pub(super) fn answered(of: &RecordQuery) -> Result<Value, ClientError> {
    tasks::keep_caught_quiet();
    let asked = PastQuery { pod: &of.pod, explain: of.explain, at: moment(of.at) };
    Ok(past::answer(&of.dir, asked)?)
}

fn moment(of: Option<PastMoment>) -> Option<UnixNanos> {
    of.map(|moment| UnixNanos(moment.unix_nanos(clock::now().0)))
}

fn table(rows: &[InputRow], look: &TextStyle) -> String {
    let mut all = vec![show::titles(&["TIME", "INPUT, COMMAND", "TEXT"])];
    all.extend(rows.iter().map(|row| {
        let (mark, style) =
            if row.is_command { ("  -> ", Style::Good) } else { ("", Style::Plain) };
        let at = if row.is_command { String::new() } else { row.at.to_timestamp().to_string() };
        vec![at.into(), Cell::new(format!("{mark}{}", row.what), style), row.text.clone().into()]
    }));
    look.table(&all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::{Agent, desired};
    use pintle_agent_config::{Color, Subcommand};
    use std::path::Path;

    fn command(subcommand: Subcommand, output: OutputFormat) -> ClientCommand {
        let (color, socket) = (Color::Never, "/nonexistent".into());
        ClientCommand { subcommand, output, watch: false, color, width: None, socket }
    }

    fn replay(dir: &Path, pod: &str, output: OutputFormat) -> Result<(String, bool), ClientError> {
        let of = ReplayOf { dir: dir.to_owned(), pod: Some(pod.to_owned()), until: None };
        replayed(&of, &command(Subcommand::Replay(of.clone()), output))
    }

    #[test]
    fn a_replay_shows_the_inputs_and_commands_of_the_pod_that_is_asked_for() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut agent = Agent::begins(dir.path(), 1, 0, &build::version());
        agent.gets_ready();
        agent.takes(desired());
        agent.reads_nothing();
        let (text, is_equal) = replay(dir.path(), "ns/web", OutputFormat::Table).expect("a record");
        assert!(is_equal);
        let head = text.split("\n\n").next().expect("a table first");
        assert_eq!(
            head,
            "\
TIME                   INPUT, COMMAND   TEXT
2026-01-01T00:00:05Z   Desired          web_ns(u), generation 0, version 
                         -> Read        stamp 3
2026-01-01T00:00:06Z   Observed         no sandbox
                         -> Run         sync 4: make cgroup, directories and volumes ready; create the \
sandbox, attempt 0; start container c
                         -> Publish     Pending Initialized PodScheduled, stage Syncing"
        );
        let (json, _) = replay(dir.path(), "web", OutputFormat::Json).expect("a record");
        let json: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!((&json["equal"], &json["formatVersion"]), (&true.into(), &1.into()));
        assert_eq!(json["inputs"][0]["input"]["Desired"]["uid"], "u");
        let miss = replay(dir.path(), "db", OutputFormat::Table).expect_err("no such pod");
        assert!(miss.to_string().ends_with("has no pod db"), "{miss}");
    }
}
