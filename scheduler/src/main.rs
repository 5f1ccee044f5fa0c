//! `pintle-scheduler`: the scheduler without plugins of others.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pintle_scheduler::command_line(pintle_scheduler::framework::Registry::default())
}
