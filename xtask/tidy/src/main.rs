//! `cargo tidy`: prints files over the style's limits, or the error as one readable chain.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    xtask_tidy::run().unwrap_or_else(|error| {
        eprintln!("tidy: {error:#}");
        ExitCode::FAILURE
    })
}
