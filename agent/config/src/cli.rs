//! The commands that ask a running agent: `pods`, `explain`, `timeline`, `plan`, `dump`.
//!
//! Input: arguments without the program's name. Output: a [`ClientCommand`], a text to print, or one
//! error per argument that cannot be used. Flags may stand before or after the command's name.

use std::path::PathBuf;

use super::node_flags::socket_below;
use super::{Command, ConfigError, usage};
use pintle_config::{help, suggest};

/// Names of the commands, for completion and "did you mean".
pub(crate) const NAMES: [&str; 6] = ["pods", "explain", "timeline", "plan", "dump", "completion"];
/// Flags of the commands that take a value.
pub(super) const VALUE_FLAGS: [&str; 8] =
    ["-o", "--output", "-n", "--namespace", "--color", "--width", "--socket", "--root-dir"];
/// Flags of the commands that take none.
pub(super) const SWITCHES: [&str; 5] = ["-w", "--watch", "--unhealthy", "-h", "--help"];

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// List the pods.
    Pods(PodFilter),
    /// Why is this pod not running?
    Explain(String),
    /// What happened to this pod, when?
    Timeline(String),
    /// What would be done for this pod now?
    Plan(String),
    /// Everything the agent believes, for a bug report.
    Dump,
}

/// Which pods `pods` lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// Only those of this namespace.
    pub namespace: Option<String>,
    /// Only those that are not as they should be.
    pub unhealthy: bool,
}

/// How to show the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// A table or sentences for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}

/// Whether to use colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Color {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Also into a file or a pipe.
    Always,
    /// Nowhere.
    Never,
}

/// A question for a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCommand {
    /// What to ask; pods are named `NAME` or `NAMESPACE/NAME` or by UID.
    pub question: Question,
    /// How to show the answer.
    pub output: OutputFormat,
    /// Ask again until interrupted, and show what has changed.
    pub watch: bool,
    /// Whether to use colours.
    pub color: Color,
    /// Columns after which a line of a table is cut; `None` is the terminal's width, or no limit
    /// where there is no terminal; 0 is no limit.
    pub width: Option<usize>,
    /// The agent's socket.
    pub socket: PathBuf,
}

#[derive(Default)]
struct Options {
    words: Vec<String>,
    output: OutputFormat,
    filter: PodFilter,
    watch: bool,
    color: Color,
    width: Option<usize>,
    socket: Option<String>,
    root_dir: Option<String>,
    help: bool,
}

/// Whether these arguments are a command's: the daemon takes nothing but flags.
pub(super) fn is_command(args: &[String]) -> bool {
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let name = arg.split_once('=').map_or(arg.as_str(), |(name, _)| name);
        match name {
            name if !name.starts_with('-') => return true,
            name if SWITCHES.contains(&name) => {}
            name if VALUE_FLAGS.contains(&name) => {
                let _value = (!arg.contains('=')).then(|| rest.next());
            }
            _ => return false,
        }
    }
    false
}

/// Reads a command and its flags.
pub(crate) fn parse(args: &[String]) -> Result<Command, Vec<ConfigError>> {
    let options = options(args)?;
    let (name, rest) = options.words.split_first().map_or(("", &[][..]), |(n, r)| (n, r));
    match name {
        "help" => return Ok(Command::Print(usage::daemon(false))),
        "version" => return Ok(Command::Print(help::version())),
        name if !NAMES.contains(&name) => return Err(vec![unknown(name)]),
        _ if options.help => return Ok(Command::Print(usage::client())),
        "completion" => {
            return usage::completion().script(rest).map(Command::Print).map_err(|e| vec![e]);
        }
        _ => {}
    }
    let question = question(name, rest, &options.filter).map_err(|error| vec![error])?;
    if let Some(error) = only_for_pods(&question, &options) {
        return Err(vec![error]);
    }
    let socket = options.socket.map(PathBuf::from);
    Ok(Command::Client(ClientCommand {
        question,
        output: options.output,
        watch: options.watch,
        color: options.color,
        width: options.width,
        socket: socket.unwrap_or_else(|| socket_below(options.root_dir.as_deref())),
    }))
}

fn unknown(name: &str) -> ConfigError {
    let remedy = suggest::did_you_mean(name, NAMES.into_iter());
    let remedy = remedy.unwrap_or_else(|| format!("use one of {}", NAMES.join(", ")));
    ConfigError::new(format!("command {name:?}"), "", "no such command exists", remedy)
}

fn question(name: &str, rest: &[String], filter: &PodFilter) -> Result<Question, ConfigError> {
    let one = |ask: fn(String) -> Question| match rest {
        [] => {
            let remedy = format!("write {name} POD");
            Err(ConfigError::new(format!("command {name:?}"), "", "the pod is missing", remedy))
        }
        [pod] => Ok(ask(pod.clone())),
        [_, more, ..] => Err(stray(more)),
    };
    match (name, rest) {
        ("explain", _) => one(Question::Explain),
        ("timeline", _) => one(Question::Timeline),
        ("plan", _) => one(Question::Plan),
        (_, [more, ..]) => Err(stray(more)),
        ("dump", []) => Ok(Question::Dump),
        (_, []) => Ok(Question::Pods(filter.clone())),
    }
}

/// Flags that would be ignored are refused instead.
fn only_for_pods(question: &Question, options: &Options) -> Option<ConfigError> {
    if matches!(question, Question::Pods(_)) {
        return None;
    }
    let remedy = "remove it, or ask for pods";
    let given = [
        ("--namespace", options.filter.namespace.is_some()),
        ("--unhealthy", options.filter.unhealthy),
        ("--watch", options.watch),
    ];
    let (flag, _) = given.into_iter().find(|(_, given)| *given)?;
    Some(ConfigError::new(flag, "", "only the command pods takes it", remedy))
}

fn stray(arg: &str) -> ConfigError {
    ConfigError::new(format!("argument {arg:?}"), "", "nothing is expected here", "remove it")
}

fn options(args: &[String]) -> Result<Options, Vec<ConfigError>> {
    let mut options = Options::default();
    let mut errors = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let (name, inline) = match arg.split_once('=') {
            Some((name, text)) if name.starts_with('-') => (name, Some(text.to_owned())),
            _ => (arg.as_str(), None),
        };
        let result = if !name.starts_with('-') {
            options.words.push(arg.clone());
            Ok(())
        } else if VALUE_FLAGS.contains(&name) {
            let value = inline.or_else(|| rest.next().cloned());
            options.value(name, value)
        } else {
            options.switch(name, inline)
        };
        errors.extend(result.err());
    }
    if errors.is_empty() { Ok(options) } else { Err(errors) }
}

impl Options {
    fn value(&mut self, name: &str, value: Option<String>) -> Result<(), ConfigError> {
        let missing =
            || ConfigError::new(name, "", "its value is missing", format!("write {name}=VALUE"));
        let value = value.ok_or_else(missing)?;
        match name {
            "-o" | "--output" => self.output = output(&value)?,
            "-n" | "--namespace" => self.filter.namespace = Some(value),
            "--color" => self.color = color(&value)?,
            "--width" => self.width = Some(width(&value)?),
            "--socket" => self.socket = Some(value),
            _ => self.root_dir = Some(value),
        }
        Ok(())
    }

    fn switch(&mut self, name: &str, value: Option<String>) -> Result<(), ConfigError> {
        if let Some(value) = value.filter(|_| SWITCHES.contains(&name)) {
            return Err(ConfigError::new(
                name,
                value,
                "it takes no value",
                format!("write {name}"),
            ));
        }
        match name {
            "-w" | "--watch" => self.watch = true,
            "--unhealthy" => self.filter.unhealthy = true,
            "-h" | "--help" => self.help = true,
            _ => {
                let known = VALUE_FLAGS.into_iter().chain(SWITCHES);
                let known = known.filter(|flag| flag.starts_with("--"));
                let remedy = suggest::did_you_mean(name, known.clone());
                let all = known.collect::<Vec<_>>().join(", ");
                let remedy = remedy.unwrap_or_else(|| format!("use one of {all}"));
                return Err(ConfigError::new(name, "", "no such flag exists", remedy));
            }
        }
        Ok(())
    }
}

fn output(text: &str) -> Result<OutputFormat, ConfigError> {
    match text {
        "table" => Ok(OutputFormat::Table),
        "json" => Ok(OutputFormat::Json),
        other => {
            let problem = "no such form exists";
            Err(ConfigError::new("-o", format!("{other:?}"), problem, "use table or json"))
        }
    }
}

fn color(text: &str) -> Result<Color, ConfigError> {
    match text {
        "auto" => Ok(Color::Auto),
        "always" => Ok(Color::Always),
        "never" => Ok(Color::Never),
        other => {
            let problem = "no such choice exists";
            let remedy = "use auto, always or never";
            Err(ConfigError::new("--color", format!("{other:?}"), problem, remedy))
        }
    }
}

fn width(text: &str) -> Result<usize, ConfigError> {
    let remedy = "give a number of columns, or 0 for no limit";
    text.parse()
        .map_err(|_| ConfigError::new("--width", format!("{text:?}"), "it is no number", remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn parsed(line: &str) -> Result<Command, Vec<ConfigError>> {
        parse(&words(line))
    }

    fn client(question: Question, socket: &str) -> ClientCommand {
        ClientCommand {
            question,
            output: OutputFormat::Table,
            watch: false,
            color: Color::Auto,
            width: None,
            socket: socket.into(),
        }
    }

    #[test]
    fn questions_take_a_pod_an_output_form_and_a_socket() {
        let default = "/var/lib/kubelet/pintle/agent.sock";
        let pods = || client(Question::Pods(PodFilter::default()), default);
        let json = |command| ClientCommand { output: OutputFormat::Json, ..command };
        for (line, expected) in [
            ("pods", pods()),
            ("dump", client(Question::Dump, default)),
            ("explain ns/web -o json", json(client(Question::Explain("ns/web".into()), default))),
            ("-o json explain ns/web", json(client(Question::Explain("ns/web".into()), default))),
            (
                "timeline --root-dir=/r web",
                client(Question::Timeline("web".into()), "/r/pintle/agent.sock"),
            ),
            ("--socket /s plan web --root-dir /r", client(Question::Plan("web".into()), "/s")),
            (
                "pods --watch --color=always --width 80",
                ClientCommand { watch: true, color: Color::Always, width: Some(80), ..pods() },
            ),
            (
                "pods -n shop --unhealthy",
                client(
                    Question::Pods(PodFilter { namespace: Some("shop".into()), unhealthy: true }),
                    default,
                ),
            ),
        ] {
            assert_eq!(parsed(line), Ok(Command::Client(expected)), "{line}");
        }
    }

    #[test]
    fn a_command_is_told_from_the_daemons_flags() {
        for (line, command) in [
            ("pods", true),
            ("explian web", true),
            ("-o json pods", true),
            ("--root-dir /r pods", true),
            ("--root-dir=/r --watch pods", true),
            ("--root-dir /r", false),
            ("--root-dir /r --config /c", false),
            ("--config /c", false),
            ("--v 4 --config=/c", false),
            ("", false),
        ] {
            assert_eq!(is_command(&words(line)), command, "{line}");
        }
    }

    #[test]
    fn wrong_commands_say_what_is_wrong() {
        for (line, said) in [
            ("explian web", "did you mean explain?"),
            ("explain", "the pod is missing"),
            ("pods web", "nothing is expected here"),
            ("explain a b", "nothing is expected here"),
            ("pods -o yaml", "use table or json"),
            ("pods --sock /s", "did you mean --socket?"),
            ("pods --zzz", "no such flag exists"),
            ("pods --socket", "its value is missing"),
            ("pods --width=wide", "a number of columns"),
            ("pods --color=red", "auto, always or never"),
            ("pods --watch=yes", "it takes no value"),
            ("explain web --watch", "only the command pods takes it"),
            ("completion", "the shell is missing"),
            ("completion tcsh", "use bash, zsh or fish"),
        ] {
            let errors = parsed(line).expect_err(line);
            assert!(errors[0].to_string().contains(said), "{line}: {}", errors[0]);
        }
    }
}
