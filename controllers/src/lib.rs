//! The controller manager around `pintle-controllers-core` and `pintle-controllers-loops`.
//!
//! ```text
//!   arguments ─> options ─> process ─┬─> HTTPS port, lease, signals (threads of pintle-daemon)
//!                                    └─> leads ─> Context (clients, discovery, health, metrics) ─> run
//! ```
//! [`options`] reads the command line, [`process`] starts the parts of the daemon in order and ends
//! them, [`clients`] gives each controller an identity, [`discovery`] knows which resources there
//! are, `registry` sets the controllers up, `run` runs them: `watches` and `follow` bring watch
//! events, `dispatch` carries orders out, `explain` says why an object is not where it should be.
//! Decisions are made in the crates below; this one has the effects.
#![forbid(unsafe_code)]

pub mod clients;
mod counts;
mod debug;
pub mod discovery;
mod dispatch;
mod explain;
mod follow;
pub mod options;
pub mod process;
mod registry;
mod run;
mod shadow;
#[cfg(any(test, feature = "suites"))]
#[cfg_attr(not(feature = "suites"), allow(dead_code))] // then only its tests use it
mod suites;
mod watches;

use std::io::Write as _;
use std::process::ExitCode;

use pintle_config::given;

use self::options::ManagerAction;

/// The word that asks about one object.
const EXPLAIN: &str = "explain";

/// Does what the command line asks for.
pub fn command_line() -> ExitCode {
    pintle_heap::give_back_soon();
    let args = match given::texts(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(errors) => return complain(errors),
    };
    if let Some((EXPLAIN, rest)) = args.split_first().map(|(word, rest)| (word.as_str(), rest)) {
        return match explain::run(rest) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain([format!("{error:#}")]),
        };
    }
    match options::parse(&args) {
        Ok(ManagerAction::Print(text)) => match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain([error]),
        },
        Ok(ManagerAction::Run(options)) => match process::run(*options) {
            Ok(()) => ExitCode::SUCCESS,
            // With all causes, and without a trace of our own calls.
            Err(error) => complain([format!("{error:#}")]),
        },
        Err(errors) => complain(errors),
    }
}

fn complain(errors: impl IntoIterator<Item = impl std::fmt::Display>) -> ExitCode {
    for error in errors {
        // Before there is a logger; a standard error that is closed takes nothing.
        let _ = writeln!(std::io::stderr(), "pintle-controllers: {error}");
    }
    ExitCode::FAILURE
}
