//! Entry point of `pintle-agent`, also when invoked as `kubelet`.
//!
//! Reads the command line; a configuration that cannot be used ends with one line per problem and
//! exit code 1.

#![forbid(unsafe_code)]

use std::io::Write as _;
use std::process::ExitCode;

use pintle_agent::app;
use pintle_agent_config::modes::LogFormat;
use pintle_agent_config::{self as config, Command, Config};
use pintle_agent_server::client;
use pintle_daemon::{logging, tasks};

fn main() -> ExitCode {
    pintle_heap::give_back_soon();
    match config::parse(std::env::args_os()) {
        Ok(Command::Print(text)) => client::print(&text),
        Ok(Command::Run(config)) => run(*config),
        Ok(Command::Client(command)) => client::run(&command),
        Err(errors) => {
            errors.iter().for_each(|error| complain(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn run(config: Config) -> ExitCode {
    let format = match config.kubelet.logging.format {
        LogFormat::Text => logging::Format::Text,
        LogFormat::Json => logging::Format::Json,
    };
    logging::init(format, config.kubelet.logging.verbosity);
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    tasks::log_panics();
    let ran = app::thread::run(async {
        let code = match app::run(config).await {
            Ok(()) => 0,
            Err(error) => {
                complain(&format!("{error:#}"));
                1
            }
        };
        // All state is saved; taking the ring apart would cost another second.
        std::process::exit(code)
    });
    let Err(error) = ran;
    complain(&format!("the main thread cannot be set up: {error}"));
    ExitCode::FAILURE
}

/// Prints an error before there is a logger; a closed standard error is ignored.
fn complain(text: &str) {
    let _ = writeln!(std::io::stderr(), "error: {text}");
}
