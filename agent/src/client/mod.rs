//! The commands that ask a running agent: `pods`, `explain`, `timeline`, `plan`.
//!
//! Input: a `ClientCommand`. Output: a table or sentences for people, JSON for programs, on standard
//! output; refusals on standard error with exit code 1. Blocking, in a process of its own: one
//! request over the agent's socket, bounded in time and size by `http`.

mod http;
mod show;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use crate::config::{ClientCommand, OutputFormat, Question};

/// Why there is nothing to print.
#[derive(Debug, thiserror::Error)]
enum ClientError {
    #[error("{0}")]
    Http(#[from] http::HttpError),
    #[error("the agent's answer cannot be read: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("{error}{}", more.iter().map(|line| format!("\n  {line}")).collect::<String>())]
    Refused { error: String, more: Vec<String> },
}

/// Asks, prints, and says how it went.
pub fn run(command: &ClientCommand) -> ExitCode {
    match answer(command) {
        Ok(text) => {
            // A reader that has seen enough, as `head`, is no reason to fail.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn answer(command: &ClientCommand) -> Result<String, ClientError> {
    let value = ask(&command.socket, &path_of(&command.question))?;
    Ok(match (command.output, &command.question) {
        (OutputFormat::Json, _) => format!("{}\n", serde_json::to_string_pretty(&value)?),
        (OutputFormat::Table, Question::Pods) => show::pods(&value),
        (OutputFormat::Table, Question::Explain(_)) => show::explanation(&value),
        (OutputFormat::Table, Question::Timeline(_)) => show::timeline(&value),
        (OutputFormat::Table, Question::Plan(_)) => show::plan(&value),
    })
}

fn path_of(question: &Question) -> String {
    match question {
        Question::Pods => "/pods".to_owned(),
        Question::Explain(pod) => format!("/explain?pod={}", encoded(pod)),
        Question::Timeline(pod) => format!("/timeline?pod={}", encoded(pod)),
        Question::Plan(pod) => format!("/plan?pod={}", encoded(pod)),
    }
}

fn ask(socket: &Path, path: &str) -> Result<Value, ClientError> {
    let answer = http::get(socket, path)?;
    let value: Value = serde_json::from_slice(&answer.body)?;
    if answer.status == 200 {
        return Ok(value);
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let more = value["more"].as_array().into_iter().flatten().map(text).collect();
    Err(ClientError::Refused { error: text(&value["error"]), more })
}

/// Escapes what may not stand in a query.
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

    #[test]
    fn a_pods_name_is_escaped_for_the_query() {
        let path = path_of(&Question::Explain("ns/we b&x=ä".into()));
        assert_eq!(path, "/explain?pod=ns/we%20b%26x%3D%C3%A4");
    }

    #[test]
    fn without_an_agent_the_error_names_the_socket_and_what_to_do() {
        let command = ClientCommand {
            question: Question::Pods,
            output: OutputFormat::Table,
            socket: "/nonexistent/agent.sock".into(),
        };
        let error = answer(&command).expect_err("nobody listens").to_string();
        assert!(error.contains("no agent listens on /nonexistent/agent.sock"), "{error}");
        assert!(error.contains("--root-dir"), "{error}");
    }
}
