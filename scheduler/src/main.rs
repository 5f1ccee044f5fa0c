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
    /// Schedule the pods of a cluster, in the place of kube-scheduler.
    Run(pintle_scheduler::run::Options),
    /// Place the pending pods of a dump and tell where, why, and what would make the rest fit.
    Simulate(Box<pintle_scheduler::simulate::Options>),
    /// Follow a cluster that kube-scheduler schedules and compare its decisions; writes nothing.
    Shadow(pintle_scheduler::app::Options),
    /// Say why a pod of a live cluster has no place, or why it is where it is.
    Explain(pintle_scheduler::explain::command::ExplainOptions),
    /// Place pods on a live cluster as it is now, without doing it.
    WhatIf(pintle_scheduler::explain::command::WhatIfOptions),
}

fn main() -> std::process::ExitCode {
    pintle_heap::give_back_soon();
    let result = match Cli::parse().command {
        Command::Run(options) => pintle_scheduler::run::run(&options),
        Command::Simulate(options) => pintle_scheduler::simulate::run(&options),
        Command::Shadow(options) => pintle_scheduler::app::run(&options),
        Command::Explain(options) => pintle_scheduler::explain::command::explain(&options),
        Command::WhatIf(options) => pintle_scheduler::explain::command::what_if(&options),
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
