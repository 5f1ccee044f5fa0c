//! `pintle-scheduler`: the scheduler without out-of-tree plugins.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pintle_scheduler::command_line(pintle_scheduler::framework::Registry::default())
}
