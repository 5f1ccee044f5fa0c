//! What `--help` and `--version` print.
//!
//! Output: texts that end in a newline. The version is one line of the kubelet's form, because
//! installers read it: `Kubernetes v` and a semantic version, with ours as build metadata.

use std::fmt::Write as _;

use super::flag_table::{self, FlagKind, Target};

/// The version of Kubernetes whose behaviour this agent has.
pub const KUBERNETES_VERSION: &str = "v1.36.2";
/// Column at which the help text of a flag begins, and the width of a line.
const HELP_COLUMN: usize = 44;

/// `Kubernetes v1.36.2+pintle.0.1.0`
pub fn version() -> String {
    format!("Kubernetes {KUBERNETES_VERSION}+pintle.{}\n", env!("CARGO_PKG_VERSION"))
}

/// What the kubelet of this version calls itself towards the API server.
pub fn user_agent() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let own = env!("CARGO_PKG_VERSION");
    format!("kubelet/{KUBERNETES_VERSION} (linux/{arch}) pintle/{own}")
}

/// Help of the daemon; as `kubelet` there are no commands.
pub(crate) fn daemon(invoked_as_kubelet: bool) -> String {
    let mut out = String::new();
    if invoked_as_kubelet {
        out.push_str("kubelet (pintle-agent): runs the pods of this node.\n\n");
        out.push_str("Usage: kubelet [FLAGS]\n");
    } else {
        out.push_str("pintle-agent: runs the pods of this node, in place of the kubelet.\n\n");
        out.push_str("Usage: pintle-agent [FLAGS]\n");
        out.push_str("       pintle-agent pods [-n NAMESPACE] [--unhealthy] [--watch] [-o json]\n");
        out.push_str("       pintle-agent explain|timeline|plan POD [-o json]\n");
        out.push_str("       pintle-agent dump | completion bash|zsh|fish\n");
    }
    for group in flag_table::groups() {
        let _ = write!(out, "\n{}:\n", group.title);
        for flag in group.flags {
            let form = match flag.kind {
                FlagKind::Bool | FlagKind::Help | FlagKind::Version => String::new(),
                kind => format!("={}", kind.name()),
            };
            let field = match flag.target {
                Target::Field(path) => format!(" [{path}]"),
                Target::Node(_) => String::new(),
            };
            line(&mut out, &format!("  --{}{form}", flag.name), &format!("{}{field}", flag.help));
        }
    }
    out.push_str("\n[field] is the field of the --config file that the flag overrides.\n");
    out
}

/// Help of the commands that ask a running agent.
pub(crate) fn client() -> String {
    let mut out = String::from("Usage: pintle-agent COMMAND [FLAGS]\n\nCommands:\n");
    for (command, help) in [
        ("  pods", "List all pods and what they are doing"),
        ("  explain POD", "Say in one sentence why a pod is not running"),
        ("  timeline POD", "Show what happened to a pod, to the microsecond"),
        ("  plan POD", "Show what the agent would do for a pod now, without doing it"),
        ("  dump", "Print everything the agent believes as JSON, for a bug report"),
        ("  completion SHELL", "Print a completion script for bash, zsh or fish"),
    ] {
        line(&mut out, command, help);
    }
    out.push_str("\nPOD is NAME, NAMESPACE/NAME or a UID.\n\nFlags:\n");
    for (flag, help) in [
        (
            "  -o, --output=table|json",
            "Form of the answer; JSON keeps its fields within formatVersion",
        ),
        ("  -n, --namespace=NAME", "pods: only those of this namespace"),
        ("      --unhealthy", "pods: only those that are not as they should be"),
        ("  -w, --watch", "pods: show the list again whenever it changes, until interrupted"),
        ("      --color=auto|always|never", "Colours; auto is on a terminal without NO_COLOR"),
        (
            "      --width=COLUMNS",
            "Cut the lines of tables; default the terminal's width, 0 for no limit",
        ),
        ("      --socket=PATH", "The agent's socket; default ROOT/pintle/agent.sock"),
        ("      --root-dir=ROOT", "The agent's root folder; default /var/lib/kubelet"),
        ("  -h, --help", "Show this text"),
    ] {
        line(&mut out, flag, help);
    }
    out
}

fn line(out: &mut String, left: &str, right: &str) {
    if left.len() < HELP_COLUMN {
        let _ = writeln!(out, "{left:HELP_COLUMN$}{right}");
    } else {
        let _ = writeln!(out, "{left}\n{:HELP_COLUMN$}{right}", "");
    }
}
