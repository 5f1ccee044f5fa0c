//! Entry point of `pintle-agent`, also when invoked as `kubelet`.
//!
//! Reads the command line; a configuration that cannot be used ends with one line per problem and
//! exit code 1.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use pintle_agent::config::{self, Command};

fn main() -> ExitCode {
    match config::parse(std::env::args_os()) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Run(config)) => {
            for warning in &config.warnings {
                eprintln!("warning: {warning}");
            }
            eprintln!("this build reads its configuration and stops");
            ExitCode::FAILURE
        }
        Ok(Command::Client(_)) => {
            eprintln!("this build has no running agent to ask");
            ExitCode::FAILURE
        }
        Err(errors) => {
            for error in errors {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}
