//! The help of the command line: `--help`, the help of its commands, completion scripts.

use pintle_config::completion::{After, Choices, Completion};
use pintle_config::help::line;

use super::cli::{NAMES, SWITCHES, VALUE_FLAGS};
use super::flag_table;

/// Prints the pods' names for the scripts; nothing when no agent answers.
const POD_NAMES: &str =
    "pintle-agent pods --color=never --width=0 2>/dev/null | awk 'NR>1 && NF>5 {print $1\"/\"$2}'";
/// Commands that take a pod.
const WITH_POD: [&str; 4] = ["explain", "timeline", "plan", "retry"];

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
        out.push_str("       pintle-agent explain|timeline POD [--at TIME] [-o json]\n");
        out.push_str("       pintle-agent plan|retry POD [-o json]\n");
        out.push_str("       pintle-agent replay [DIR] [--pod POD] [--until TIME] [-o json]\n");
        out.push_str("       pintle-agent pressure [-o json]\n");
        out.push_str("       pintle-agent dump | completion bash|zsh|fish\n");
    }
    out.push_str(&flag_table::TABLE.help());
    out
}

/// Help of the commands that ask a running agent or its record.
pub(crate) fn client() -> String {
    let mut out = String::from("Usage: pintle-agent COMMAND [FLAGS]\n\nCommands:\n");
    for (command, help) in [
        ("  pods", "List all pods and what they are doing"),
        ("  explain POD", "Say in one sentence why a pod is not running"),
        ("  timeline POD", "Show what happened to a pod, to the microsecond"),
        ("  plan POD", "Show what the agent would do for a pod now, without doing it"),
        ("  retry POD", "Retry now what a pod waits to retry: a restart, a pull, a volume"),
        ("  pressure", "Show how close the node is to evicting pods, and the first victims"),
        ("  dump", "Print the agent's whole state as JSON, for a bug report"),
        ("  replay [DIR]", "Replay a recording and report any different decision"),
        ("  completion SHELL", "Print a completion script for bash, zsh or fish"),
    ] {
        line(&mut out, command, help);
    }
    out.push_str("\nPOD is NAME, NAMESPACE/NAME or a UID.\n");
    out.push_str("TIME is 2026-01-31T21:15:00Z, 21:15:00 (UTC), or 10m for ten minutes ago.\n");
    out.push_str("DIR is ROOT, ROOT/flight, or a copy of it; default ROOT.\n\nFlags:\n");
    for (flag, help) in [
        (
            "  -o, --output=table|json",
            "Form of the answer; JSON keeps its fields within formatVersion",
        ),
        ("  -n, --namespace=NAME", "pods: only pods of this namespace"),
        ("      --unhealthy", "pods: only unhealthy pods"),
        ("  -w, --watch", "pods: show the list again whenever it changes, until interrupted"),
        (
            "      --at=TIME",
            "explain, timeline: as it was then, from the record; also of pods that are gone",
        ),
        (
            "      --from-record[=DIR]",
            "explain, timeline: from the record, at its end or at TIME; no agent has to run",
        ),
        ("      --until=TIME", "replay: end at this time"),
        ("      --pod=POD", "replay: show each input and command of this pod"),
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

/// The words of the commands.
pub(crate) fn completion() -> Completion {
    let texts = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    let after = |words: &[&str], choices| After { words: texts(words), choices };
    Completion {
        program: "pintle-agent".to_owned(),
        commands: texts(&NAMES),
        value_flags: texts(&VALUE_FLAGS),
        switches: texts(&SWITCHES),
        after: vec![
            after(&["-o", "--output"], Choices::Words(&["table", "json"])),
            after(&["--color"], Choices::Words(&["auto", "always", "never"])),
            after(&["--socket"], Choices::Files),
            after(&["--root-dir"], Choices::Files),
            after(&["replay"], Choices::Files),
            after(&["--pod"], Choices::Output(POD_NAMES)),
            after(&["completion"], Choices::Words(&["bash", "zsh", "fish"])),
            after(&WITH_POD, Choices::Output(POD_NAMES)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_knows_every_command_and_flag() {
        for shell in ["bash", "zsh", "fish"] {
            let script = completion().script(&[shell.to_owned()]).expect(shell);
            let bare = |flag: &str| flag.trim_start_matches('-').to_owned();
            let flags = VALUE_FLAGS.into_iter().chain(SWITCHES).map(bare);
            for word in NAMES.into_iter().map(str::to_owned).chain(flags) {
                let known = script.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                let mut known = known.map(|w| w.trim_start_matches('-'));
                assert!(known.any(|w| w == word), "{shell} lacks {word}:\n{script}");
            }
        }
    }

    #[test]
    fn bash_accepts_the_completion_script_and_completes_with_it() {
        let script = completion().script(&["bash".to_owned()]).expect("bash");
        let check = format!(
            "{script}\nCOMP_WORDS=(pintle-agent ti); COMP_CWORD=1; _pintle_agent; \
             echo \"${{COMPREPLY[*]}}\""
        );
        let out = std::process::Command::new("bash").args(["-c", &check]).output();
        let out = out.expect("bash is on every machine that builds this");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "timeline\n", "{out:?}");
    }
}
