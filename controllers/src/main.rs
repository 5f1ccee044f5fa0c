//! `pintle-controllers`: the controller manager.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pintle_controllers::command_line()
}
