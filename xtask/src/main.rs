//! `cargo xtask TASK`: chooses a task and prints its error as one readable chain.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use xtask::task;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match task::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
