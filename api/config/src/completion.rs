//! Completion scripts of a command line, for bash, zsh and fish. Pure.
//!
//! Input: the words of a program. Output: a script that completes commands, flags and their values,
//! made from the same tables that the command line is read by, so it cannot fall behind them.

use crate::error::ConfigError;
use crate::flag::FlagTable;

/// The words of a program.
#[derive(Clone, Debug, Default)]
pub struct Completion {
    /// The program's name.
    pub program: String,
    /// Its commands; a daemon may have none.
    pub commands: Vec<String>,
    /// Flags that take a value, with their dashes.
    pub value_flags: Vec<String>,
    /// Flags that take none.
    pub switches: Vec<String>,
    /// Completions after some of these words.
    pub after: Vec<After>,
}

/// Completions after some words.
#[derive(Clone, Debug)]
pub struct After {
    /// Commands, or spellings of one flag.
    pub words: Vec<String>,
    /// The completions.
    pub choices: Choices,
}

/// The values to choose from.
#[derive(Clone, Debug)]
pub enum Choices {
    /// These words.
    Words(&'static [&'static str]),
    /// Names of files.
    Files,
    /// The output of a shell command.
    Output(&'static str),
}

impl FlagTable {
    /// The words of a daemon that has flags alone.
    pub fn completion(&self, program: &str) -> Completion {
        let (switches, value_flags): (Vec<_>, Vec<_>) =
            self.flags().partition(|flag| flag.kind.needs_no_value());
        let names = |flags: Vec<&crate::flag::Flag>| {
            flags.into_iter().map(|flag| format!("--{}", flag.name)).collect()
        };
        Completion {
            program: program.to_owned(),
            value_flags: names(value_flags),
            switches: names(switches),
            ..Completion::default()
        }
    }
}

impl Completion {
    /// The script for the shell that the arguments of the command `completion` name.
    pub fn script(&self, args: &[String]) -> Result<String, ConfigError> {
        let wrong = |value: &str, problem: &str| {
            ConfigError::new("command \"completion\"", value, problem, "use bash, zsh or fish")
        };
        match args {
            [] => Err(wrong("", "the shell is missing")),
            [shell] => match shell.as_str() {
                "bash" => Ok(self.bash()),
                "zsh" => {
                    Ok(format!("autoload -U +X bashcompinit && bashcompinit\n{}", self.bash()))
                }
                "fish" => Ok(self.fish()),
                other => Err(wrong(&format!("{other:?}"), "no script exists for this shell")),
            },
            [_, more, ..] => Err(wrong(&format!("{more:?}"), "one shell is expected")),
        }
    }

    fn bash(&self) -> String {
        let case = |after: &After| {
            let words = after.words.join("|");
            let choices = match &after.choices {
                Choices::Words(choices) => format!("choices='{}'", choices.join(" ")),
                Choices::Files => "COMPREPLY=($(compgen -f -- \"$word\")); return".to_owned(),
                Choices::Output(command) => format!("choices=$({command})"),
            };
            format!("        {words}) {choices} ;;\n")
        };
        let cases: String = self.after.iter().map(case).collect();
        let flags = [&self.value_flags[..], &self.switches[..]].concat().join(" ");
        let commands = self.commands.join(" ");
        let function = format!("_{}", self.program.replace('-', "_"));
        format!(
            "{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} last=${{COMP_WORDS[COMP_CWORD-1]}} choices
    case $last in
{cases}        *) if [[ $word == -* ]]; then choices='{flags}'; else choices='{commands}'; fi ;;
    esac
    COMPREPLY=($(compgen -W \"$choices\" -- \"$word\"))
}}
complete -F {function} {}
",
            self.program
        )
    }

    fn fish(&self) -> String {
        let program = &self.program;
        let mut out = format!("complete -c {program} -f\n");
        for name in &self.commands {
            out += &format!("complete -c {program} -n __fish_use_subcommand -a {name}\n");
        }
        for flag in &self.value_flags {
            out += &format!("complete -c {program} {} -r\n", spelled(flag));
        }
        for flag in &self.switches {
            out += &format!("complete -c {program} {}\n", spelled(flag));
        }
        for After { words, choices } in &self.after {
            let (flags, commands): (Vec<_>, Vec<_>) =
                words.iter().partition(|word| word.starts_with('-'));
            let choices = match choices {
                Choices::Words(choices) => format!("'{}'", choices.join(" ")),
                // Of flags that take a value, fish completes files of its own accord.
                Choices::Files => continue,
                Choices::Output(command) => {
                    format!("\"({})\"", command.replace('"', "\\\"").replace('$', "\\$"))
                }
            };
            if !flags.is_empty() {
                let flags: Vec<String> = flags.into_iter().map(|flag| spelled(flag)).collect();
                out += &format!("complete -c {program} {} -x -a {choices}\n", flags.join(" "));
            }
            if !commands.is_empty() {
                let seen = commands.into_iter().cloned().collect::<Vec<_>>().join(" ");
                let seen = format!("'__fish_seen_subcommand_from {seen}'");
                out += &format!("complete -c {program} -n {seen} -a {choices}\n");
            }
        }
        out
    }
}

/// A flag as fish wants it written.
fn spelled(flag: &str) -> String {
    match flag.strip_prefix("--") {
        Some(long) => format!("-l {long}"),
        None => format!("-s {}", flag.trim_start_matches('-')),
    }
}
