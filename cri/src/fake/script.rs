//! Behaviour of the fake runtime's containers and commands: scripts, chosen by name.
//!
//! Input: a test's scripts. Output: for a container, when it exits by itself and how it handles its
//! stop signal; for a command, its output, exit code and duration. A script is chosen by text that
//! `namespace/pod/container#ATTEMPT.` must contain; the last one wins, so that a test can replace
//! an earlier one. Pure: durations only, no clock.

use std::time::Duration;

/// Behaviour of a container once it is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    /// The start fails with this message, as for a command that does not exist. `{id}` in it is
    /// the container's id.
    pub start_error: Option<String>,
    /// Exits by itself after so long, with this code.
    pub exits: Option<(Duration, i32)>,
    /// Its reaction to its stop signal.
    pub on_stop: OnStop,
    /// Reported as the exit's reason instead of Completed or Error, such as OOMKilled.
    pub exit_reason: Option<String>,
}

/// A container's reaction to its stop signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnStop {
    /// Exits after so long with this code, unless its grace period ends before.
    Exits(Duration, i32),
    /// Waits to be killed at the end of its grace period.
    Ignores,
}

/// Exit code of a process that SIGTERM ended.
pub const EXIT_TERMINATED: i32 = 143;
/// Exit code of a process that SIGKILL ended.
pub const EXIT_KILLED: i32 = 137;
/// Exit code of a container with a command that could not be started.
pub const EXIT_START_ERROR: i32 = 128;
/// Exit code of a container that ended while the runtime was not there to see it.
pub const EXIT_UNSEEN: i32 = 255;

impl Default for Behaviour {
    /// Runs until it is stopped, and then ends at once.
    fn default() -> Self {
        Self {
            start_error: None,
            exits: None,
            on_stop: OnStop::Exits(Duration::ZERO, EXIT_TERMINATED),
            exit_reason: None,
        }
    }
}

impl Behaviour {
    /// Exits by itself.
    pub fn exits(after: Duration, code: i32) -> Self {
        Self { exits: Some((after, code)), ..Self::default() }
    }

    /// Cannot be started.
    pub fn start_error(message: &str) -> Self {
        Self { start_error: Some(message.to_owned()), ..Self::default() }
    }

    /// Has to be killed.
    pub fn ignores_stop() -> Self {
        Self { on_stop: OnStop::Ignores, ..Self::default() }
    }

    /// Needs so long to stop, and then exits with this code.
    pub fn stops(after: Duration, code: i32) -> Self {
        Self { on_stop: OnStop::Exits(after, code), ..Self::default() }
    }
}

/// The answer to a command run with ExecSync.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecAnswer {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The exit code.
    pub exit_code: i32,
    /// Its duration; longer than the request's timeout means DeadlineExceeded.
    pub takes: Duration,
    /// The command cannot be run at all, with this message.
    pub error: Option<String>,
}

impl ExecAnswer {
    /// Exits at once with this code and output.
    pub fn exit(exit_code: i32, stdout: &str) -> Self {
        Self { exit_code, stdout: stdout.into(), ..Self::default() }
    }

    /// Runs for so long and then succeeds.
    pub fn takes(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    /// Cannot be run, as a command that does not exist.
    pub fn error(message: &str) -> Self {
        Self { error: Some(message.to_owned()), ..Self::default() }
    }
}

/// All scripts of a runtime.
#[derive(Clone, Debug, Default)]
pub(super) struct Scripts {
    containers: Vec<(String, Behaviour)>,
    commands: Vec<(String, String, ExecAnswer)>,
}

impl Scripts {
    pub(super) fn set_container(&mut self, matching: &str, behaviour: Behaviour) {
        self.containers.push((matching.to_owned(), behaviour));
    }

    pub(super) fn set_command(&mut self, matching: &str, command: &str, answer: ExecAnswer) {
        self.commands.push((matching.to_owned(), command.to_owned(), answer));
    }

    pub(super) fn container(&self, name: &str) -> Behaviour {
        let mut latest_first = self.containers.iter().rev();
        let found = latest_first.find(|(matching, _)| name.contains(matching.as_str()));
        found.map(|(_, behaviour)| behaviour.clone()).unwrap_or_default()
    }

    pub(super) fn command(&self, name: &str, command: &[String]) -> ExecAnswer {
        let line = command.join(" ");
        let mut latest_first = self.commands.iter().rev();
        let found = latest_first.find(|(matching, command, _)| {
            name.contains(matching.as_str()) && line.contains(command.as_str())
        });
        found.map(|(_, _, answer)| answer.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_script_of_a_container_wins_and_other_containers_keep_the_default() {
        let mut scripts = Scripts::default();
        scripts.set_container("", Behaviour::ignores_stop());
        scripts.set_container("shop/web", Behaviour::start_error("no such file"));
        assert_eq!(scripts.container("shop/api/main"), Behaviour::ignores_stop());
        assert_eq!(scripts.container("shop/web/main"), Behaviour::start_error("no such file"));
        scripts.set_container("shop/web/main", Behaviour::default());
        assert_eq!(scripts.container("shop/web/main"), Behaviour::default());
    }

    #[test]
    fn command_is_matched_by_container_and_arguments() {
        let mut scripts = Scripts::default();
        scripts.set_command("web", "cat /ready", ExecAnswer::exit(1, "no"));
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(scripts.command("a/web/b", &words("cat /ready")).exit_code, 1);
        assert_eq!(scripts.command("a/web/b", &words("true")).exit_code, 0);
        assert_eq!(scripts.command("a/api/b", &words("cat /ready")).exit_code, 0);
    }
}
