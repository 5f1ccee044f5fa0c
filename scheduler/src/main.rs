//! `pintle-scheduler`: command line of the scheduler.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand};

/// Kubernetes scheduler that looks at every node for every pod.
#[derive(Parser)]
#[command(name = "pintle-scheduler", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Place the pending pods of a dump and tell where, why, and what would make the rest fit.
    Simulate(Box<pintle_scheduler::simulate::Options>),
}

fn main() -> std::process::ExitCode {
    pintle_heap::give_back_soon();
    let result = match Cli::parse().command {
        Command::Simulate(options) => pintle_scheduler::simulate::run(&options),
    };
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            // A mistake in a file is the user's to read, without a trace of our own calls.
            eprintln!("pintle-scheduler: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
