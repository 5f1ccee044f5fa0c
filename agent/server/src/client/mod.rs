//! The commands that ask a running agent: `pods`, `explain`, `timeline`, `plan`, `retry`, `dump`;
//! and those that ask its record (`recorded`).
//!
//! Input: a `ClientCommand`. Output: a table or sentences for people, JSON for programs, on
//! standard output; refusals on standard error with exit code 1. Blocking, in a process of its own:
//! one request over the agent's socket, bounded in time and size by `http`; with `--watch` one each
//! `WATCH_PERIOD`.

mod http;
mod look;
mod recorded;
mod show;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use pintle_agent_config::{ClientCommand, OutputFormat, PodFilter, Subcommand};
use serde_json::Value;

use crate::record::FlightRecordError;
use look::TextStyle;

/// Interval of `--watch`: people need no newer answer.
const WATCH_PERIOD: Duration = Duration::from_secs(1);
/// Puts the cursor into the upper left corner and clears the screen below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// Reason why there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("{0}")]
    Http(#[from] http::HttpError),
    #[error("the agent's answer is not JSON ({0}); is the agent of another version?")]
    NotJson(#[from] serde_json::Error),
    /// There is no agent; a record of one can be read instead.
    #[error("{0}\n  what it has recorded: add --from-record")]
    NoAgent(http::HttpError),
    #[error("{0}")]
    Record(#[from] FlightRecordError),
    #[error("standard output: {0}; not all of the answer is written")]
    Output(io::Error),
    #[error("{error}{}", more.iter().map(|line| format!("\n  {line}")).collect::<String>())]
    Refused { error: String, more: Vec<String> },
}

/// Asks, prints, and returns the exit code.
pub fn run(command: &ClientCommand) -> ExitCode {
    let result = match &command.subcommand {
        Subcommand::Replay(of) => recorded::replayed(of, command).and_then(|(text, is_equal)| {
            write(&mut io::stdout(), &text)?;
            Ok(if is_equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }),
        _ if command.watch => watch(command).map(|()| ExitCode::SUCCESS),
        _ => answer(command).and_then(|text| {
            write(&mut io::stdout(), &text)?;
            Ok(ExitCode::SUCCESS)
        }),
    };
    result.unwrap_or_else(|error| failed(&error))
}

/// Prints a text that needs no agent: help, a version, a completion script.
pub fn print(text: &str) -> ExitCode {
    match write(&mut io::stdout(), text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &ClientError) -> ExitCode {
    let _ = writeln!(io::stderr(), "error: {error}");
    ExitCode::FAILURE
}

/// False when the reader closed standard output, as `head`, which is no failure; a full disk is
/// one.
fn write(out: &mut impl Write, text: &str) -> Result<bool, ClientError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(ClientError::Output(error)),
    }
}

/// Prints the list whenever it changes, until standard output is closed or the agent goes away.
fn watch(command: &ClientCommand) -> Result<(), ClientError> {
    let on_screen = io::stdout().is_terminal() && command.output == OutputFormat::Table;
    let mut shown = String::new();
    loop {
        let text = answer(command)?;
        let is_first = shown.is_empty();
        if text != shown {
            let fresh = match (on_screen, command.output) {
                (true, _) => format!("{CLEAR}{text}"),
                (false, OutputFormat::Json) => text.clone(),
                (false, OutputFormat::Table) if is_first => text.clone(),
                (false, OutputFormat::Table) => show::changed_lines(&shown, &text),
            };
            if !write(&mut io::stdout(), &fresh)? {
                return Ok(());
            }
            shown = text;
        }
        std::thread::sleep(WATCH_PERIOD);
    }
}

fn answer(command: &ClientCommand) -> Result<String, ClientError> {
    let mut value = match &command.subcommand {
        Subcommand::Replay(of) => return Ok(recorded::replayed(of, command)?.0),
        Subcommand::Past(past) => recorded::answered(past)?,
        subcommand => ask(&command.socket, subcommand).map_err(|error| match error {
            ClientError::Http(error @ http::HttpError::NoAgent { .. })
                if is_of_past(subcommand) =>
            {
                ClientError::NoAgent(error)
            }
            error => error,
        })?,
    };
    if let Subcommand::Pods(filter) = &command.subcommand {
        choose(&mut value, filter);
    }
    let look = TextStyle::of(command);
    Ok(match (command.output, &command.subcommand) {
        (OutputFormat::Json, _) if command.watch => look::plain_json(&format!("{value}\n")),
        (OutputFormat::Json, _) | (_, Subcommand::Dump | Subcommand::Replay(_)) => {
            look::plain_json(&format!("{}\n", serde_json::to_string_pretty(&value)?))
        }
        (OutputFormat::Table, Subcommand::Pods(_)) => show::pods(&value, &look),
        (OutputFormat::Table, Subcommand::Explain(_)) => show::explanation(&value),
        (OutputFormat::Table, Subcommand::Timeline(_)) => show::timeline(&value, &look),
        (OutputFormat::Table, Subcommand::Pressure) => show::pressure(&value, &look),
        (OutputFormat::Table, Subcommand::Plan(_)) => show::plan(&value),
        (OutputFormat::Table, Subcommand::Retry(_)) => show::retried(&value),
        (OutputFormat::Table, Subcommand::Past(past)) => {
            let shown = if past.explain {
                show::explanation(&value)
            } else {
                show::timeline(&value, &look)
            };
            shown + &show::record(&value["record"])
        }
    })
}

/// True if a record can answer as well.
fn is_of_past(subcommand: &Subcommand) -> bool {
    matches!(subcommand, Subcommand::Explain(_) | Subcommand::Timeline(_))
}

/// Leaves out the pods that were not asked for.
fn choose(value: &mut Value, filter: &PodFilter) {
    let wanted = |pod: &Value| {
        filter.namespace.as_ref().is_none_or(|namespace| pod["namespace"] == namespace.as_str())
            && !(filter.unhealthy && pod["healthy"] == true)
    };
    if let Some(pods) = value["pods"].as_array_mut() {
        let all = pods.len();
        pods.retain(wanted);
        value["hidden"] = Value::from(all - value["pods"].as_array().map_or(0, Vec::len));
    }
}

fn path_of(subcommand: &Subcommand) -> String {
    match subcommand {
        Subcommand::Pods(_) => "/pods".to_owned(),
        Subcommand::Dump => "/dump".to_owned(),
        Subcommand::Pressure => "/pressure".to_owned(),
        Subcommand::Explain(pod) => format!("/explain?pod={}", encoded(pod)),
        Subcommand::Timeline(pod) => format!("/timeline?pod={}", encoded(pod)),
        Subcommand::Plan(pod) => format!("/plan?pod={}", encoded(pod)),
        Subcommand::Retry(pod) => format!("/retry?pod={}", encoded(pod)),
        // No agent is asked.
        Subcommand::Replay(_) | Subcommand::Past(_) => String::new(),
    }
}

fn ask(socket: &Path, subcommand: &Subcommand) -> Result<Value, ClientError> {
    let changes = matches!(subcommand, Subcommand::Retry(_));
    let method = if changes { "POST" } else { "GET" };
    let answer = http::ask(socket, method, &path_of(subcommand))?;
    let value: Value = serde_json::from_slice(&answer.body)?;
    if answer.status == 200 {
        return Ok(value);
    }
    let text = |value: &Value| look::plain(value.as_str().unwrap_or_default());
    let more = value["more"].as_array().into_iter().flatten().map(text).collect();
    Err(ClientError::Refused { error: text(&value["error"]), more })
}

/// Escapes characters that may not stand in a query.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    let escape = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_agent_config::Color;
    use serde_json::json;

    #[test]
    fn failed_output_write_is_an_error_but_a_closed_pipe_is_not() {
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
        let error = write(&mut full, "x").expect_err("no room").to_string();
        assert!(error.starts_with("standard output: No space left on device"), "{error}");
        let (reader, mut pipe) = io::pipe().expect("a pipe");
        assert!(write(&mut pipe, "x").expect("the pipe is read"));
        drop(reader);
        assert!(!write(&mut pipe, "x").expect("no error"));
    }

    #[test]
    fn a_pods_name_is_escaped_for_the_query() {
        let path = path_of(&Subcommand::Explain("ns/we b&x=ä".into()));
        assert_eq!(path, "/explain?pod=ns/we%20b%26x%3D%C3%A4");
    }

    #[test]
    fn pods_are_chosen_by_namespace_and_health() {
        let all = json!({"pods": [
            {"namespace": "a", "name": "well", "healthy": true},
            {"namespace": "a", "name": "ill", "healthy": false},
            {"namespace": "b", "name": "ill", "healthy": false},
        ]});
        for (namespace, unhealthy, left, hidden) in [
            (None, false, 3, 0),
            (Some("a"), false, 2, 1),
            (Some("a"), true, 1, 2),
            (None, true, 2, 1),
        ] {
            let mut answer = all.clone();
            choose(&mut answer, &PodFilter { namespace: namespace.map(str::to_owned), unhealthy });
            assert_eq!(answer["pods"].as_array().map(Vec::len), Some(left), "{answer}");
            assert_eq!(answer["hidden"], hidden, "{answer}");
        }
    }

    #[test]
    fn error_without_a_running_agent_names_the_socket_and_the_remedy() {
        let command = ClientCommand {
            subcommand: Subcommand::Pods(PodFilter::default()),
            output: OutputFormat::Table,
            watch: false,
            color: Color::Never,
            width: None,
            socket: "/nonexistent/agent.sock".into(),
        };
        let error = answer(&command).expect_err("no agent listens").to_string();
        assert!(error.contains("no agent listens on /nonexistent/agent.sock"), "{error}");
        assert!(error.contains("--root-dir"), "{error}");
        let past = ClientCommand { subcommand: Subcommand::Timeline("web".into()), ..command };
        let error = answer(&past).expect_err("no agent listens").to_string();
        assert!(error.ends_with("\n  what it has recorded: add --from-record"), "{error}");
    }
}
