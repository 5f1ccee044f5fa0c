//! Completion scripts of the command line, for bash, zsh and fish. Pure.
//!
//! Input: the name of a shell. Output: a script that completes commands, flags and, by asking the
//! agent, the names of pods. It is made from the tables of `cli`, so it cannot fall behind them.

use super::ConfigError;
use super::cli::{NAMES, SWITCHES, VALUE_FLAGS};

/// How the scripts ask for the pods' names; nothing when no agent answers.
const POD_NAMES: &str =
    "pintle-agent pods --color=never --width=0 2>/dev/null | awk 'NR>1 && NF>5 {print $1\"/\"$2}'";
/// Commands that take a pod.
const WITH_POD: &str = "explain|timeline|plan";

/// The script for the shell that the arguments name.
pub(crate) fn of(args: &[String]) -> Result<String, ConfigError> {
    let wrong = |value: &str, problem: &str| {
        ConfigError::new("command \"completion\"", value, problem, "use bash, zsh or fish")
    };
    match args {
        [] => Err(wrong("", "the shell is missing")),
        [shell] => match shell.as_str() {
            "bash" => Ok(bash()),
            "zsh" => Ok(format!("autoload -U +X bashcompinit && bashcompinit\n{}", bash())),
            "fish" => Ok(fish()),
            other => Err(wrong(&format!("{other:?}"), "no script exists for this shell")),
        },
        [_, more, ..] => Err(wrong(&format!("{more:?}"), "one shell is expected")),
    }
}

fn bash() -> String {
    let commands = NAMES.join(" ");
    let flags: Vec<&str> = VALUE_FLAGS.into_iter().chain(SWITCHES).collect();
    let flags = flags.join(" ");
    format!(
        "_pintle_agent() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD-1]}} choices
    case $last in
        -o|--output) choices='table json' ;;
        --color) choices='auto always never' ;;
        --socket|--root-dir) COMPREPLY=($(compgen -f -- \"$word\")); return ;;
        completion) choices='bash zsh fish' ;;
        {WITH_POD}) choices=$({POD_NAMES}) ;;
        *) if [[ $word == -* ]]; then choices='{flags}'; else choices='{commands}'; fi ;;
    esac
    COMPREPLY=($(compgen -W \"$choices\" -- \"$word\"))
}}
complete -F _pintle_agent pintle-agent
"
    )
}

fn fish() -> String {
    let mut out = String::from("complete -c pintle-agent -f\n");
    for name in NAMES {
        out += &format!("complete -c pintle-agent -n __fish_use_subcommand -a {name}\n");
    }
    let spelled = |flag: &str| match flag.strip_prefix("--") {
        Some(long) => format!("-l {long}"),
        None => format!("-s {}", flag.trim_start_matches('-')),
    };
    for flag in VALUE_FLAGS {
        out += &format!("complete -c pintle-agent {} -r\n", spelled(flag));
    }
    for flag in SWITCHES {
        out += &format!("complete -c pintle-agent {}\n", spelled(flag));
    }
    out += "complete -c pintle-agent -s o -l output -x -a 'table json'\n";
    out += "complete -c pintle-agent -l color -x -a 'auto always never'\n";
    out += "complete -c pintle-agent -n '__fish_seen_subcommand_from completion' \
            -a 'bash zsh fish'\n";
    let seen = WITH_POD.replace('|', " ");
    out + &format!(
        "complete -c pintle-agent -n '__fish_seen_subcommand_from {seen}' \
         -a \"({})\"\n",
        POD_NAMES.replace('"', "\\\"").replace('$', "\\$")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_script_knows_every_command_and_flag() {
        for shell in ["bash", "zsh", "fish"] {
            let script = of(&[shell.to_owned()]).expect(shell);
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
    fn bash_accepts_its_script_and_completes_with_it() {
        let script = of(&["bash".to_owned()]).expect("bash");
        let check = format!(
            "{script}\nCOMP_WORDS=(pintle-agent ti); COMP_CWORD=1; _pintle_agent; \
             echo \"${{COMPREPLY[*]}}\""
        );
        let out = std::process::Command::new("bash").args(["-c", &check]).output();
        let out = out.expect("bash is on every machine that builds this");
        assert_eq!(String::from_utf8_lossy(&out.stdout), "timeline\n", "{out:?}");
    }
}
