//! The commands to a running agent: `pods`, `explain`, `timeline`, `plan`, `retry`, `pressure`,
//! `dump`; and those that read a recording: `replay`, and `explain` and `timeline` of a moment in
//! the past.
//!
//! Input: arguments without the program's name. Output: a [`ClientCommand`], a text to print, or
//! one error per invalid argument. Flags may stand before or after the command's name.

use std::path::PathBuf;

use super::moment::PastMoment;
use super::node_flags::{root_dir, socket_below};
use super::{Command, ConfigError, usage};
use pintle_config::{help, suggest};

/// Names of the commands, for completion and "did you mean".
pub(crate) const NAMES: [&str; 9] =
    ["pods", "explain", "timeline", "plan", "retry", "pressure", "dump", "replay", "completion"];
/// The commands' flags with a value.
pub(super) const VALUE_FLAGS: [&str; 11] = [
    "-o",
    "--output",
    "-n",
    "--namespace",
    "--color",
    "--width",
    "--socket",
    "--root-dir",
    "--at",
    "--until",
    "--pod",
];
/// The commands' flags without a value, and `--from-record` with its optional value.
pub(super) const SWITCHES: [&str; 6] =
    ["-w", "--watch", "--unhealthy", FROM_RECORD, "-h", "--help"];
const FROM_RECORD: &str = "--from-record";

/// A command of the command line and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subcommand {
    /// List the pods.
    Pods(PodFilter),
    /// Why a pod is not running.
    Explain(String),
    /// The history of a pod.
    Timeline(String),
    /// The commands that the agent would issue for this pod now.
    Plan(String),
    /// End all waits of this pod.
    Retry(String),
    /// How close the node is to evicting a pod.
    Pressure,
    /// The agent's whole state, for a bug report.
    Dump,
    /// Replay a recording and report any different decision.
    Replay(ReplayOf),
    /// The state of a pod in a record.
    Past(RecordQuery),
}

/// The record to replay, and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayOf {
    /// The record's folder, or the root directory of its agent.
    pub dir: PathBuf,
    /// Show inputs and commands of this pod's decisions.
    pub pod: Option<String>,
    /// The replay ends at this moment; `None` is the end of the record.
    pub until: Option<PastMoment>,
}

/// A query for a pod in a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordQuery {
    /// The record's folder, or the root directory of its agent.
    pub dir: PathBuf,
    /// The pod.
    pub pod: String,
    /// Explain why the pod was not running; if false, show its history.
    pub explain: bool,
    /// The moment; `None` is the end of the record.
    pub at: Option<PastMoment>,
}

/// Filter of `pods`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodFilter {
    /// Only pods of this namespace.
    pub namespace: Option<String>,
    /// Only unhealthy pods.
    pub unhealthy: bool,
}

/// Format of the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutputFormat {
    /// A table or sentences for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
}

/// Use of colours.
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

/// A command to a running agent, or a query of its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCommand {
    /// The subcommand; pods are named `NAME` or `NAMESPACE/NAME` or by UID.
    pub subcommand: Subcommand,
    /// Format of the answer.
    pub output: OutputFormat,
    /// Repeat the request until interrupted, and show changes.
    pub watch: bool,
    /// Use of colours.
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
    at: Option<PastMoment>,
    until: Option<PastMoment>,
    pod: Option<String>,
    /// Read a record instead of a running agent; the inner value is the record's folder, if given.
    from_record: Option<Option<String>>,
    help: bool,
}

/// True if these arguments are a command's, because the daemon takes only flags.
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
    let subcommand = subcommand(name, rest, &options).map_err(|error| vec![error])?;
    if let Some(error) = not_taken(name, &options) {
        return Err(vec![error]);
    }
    let socket = options.socket.map(PathBuf::from);
    Ok(Command::Client(ClientCommand {
        subcommand,
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

fn subcommand(name: &str, rest: &[String], options: &Options) -> Result<Subcommand, ConfigError> {
    let one = |ask: fn(String) -> Subcommand| match rest {
        [] => {
            let remedy = format!("write {name} POD");
            Err(ConfigError::new(format!("command {name:?}"), "", "the pod is missing", remedy))
        }
        [pod] => Ok(ask(pod.clone())),
        [_, more, ..] => Err(stray(more)),
    };
    match (name, rest) {
        ("explain", _) => one(Subcommand::Explain).map(|subcommand| options.then(subcommand)),
        ("timeline", _) => one(Subcommand::Timeline).map(|subcommand| options.then(subcommand)),
        ("plan", _) => one(Subcommand::Plan),
        ("retry", _) => one(Subcommand::Retry),
        ("replay", [] | [_]) => Ok(Subcommand::Replay(ReplayOf {
            dir: options.record(rest.first().map(String::as_str)),
            pod: options.pod.clone(),
            until: options.until,
        })),
        ("replay", [_, more, ..]) | (_, [more, ..]) => Err(stray(more)),
        ("pressure", []) => Ok(Subcommand::Pressure),
        ("dump", []) => Ok(Subcommand::Dump),
        (_, []) => Ok(Subcommand::Pods(options.filter.clone())),
    }
}

/// Returns an error for a flag that the command would ignore.
fn not_taken(name: &str, options: &Options) -> Option<ConfigError> {
    let given = [
        ("--namespace", options.filter.namespace.is_some(), &["pods"][..]),
        ("--unhealthy", options.filter.unhealthy, &["pods"]),
        ("--watch", options.watch, &["pods"]),
        ("--at", options.at.is_some(), &["explain", "timeline"]),
        (FROM_RECORD, options.from_record.is_some(), &["explain", "timeline"]),
        ("--until", options.until.is_some(), &["replay"]),
        ("--pod", options.pod.is_some(), &["replay"]),
    ];
    let (flag, _, takers) =
        given.into_iter().find(|(_, given, takers)| *given && !takers.contains(&name))?;
    let problem = match takers {
        [one] => format!("only the command {one} takes it"),
        several => format!("only the commands {} take it", several.join(" and ")),
    };
    let remedy = format!("remove it, or use {}", takers.join(" or "));
    Some(ConfigError::new(flag, "", problem, remedy))
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
    /// The subcommand, of a record if `--at` or `--from-record` is given.
    fn then(&self, subcommand: Subcommand) -> Subcommand {
        if self.at.is_none() && self.from_record.is_none() {
            return subcommand;
        }
        let dir = self.record(self.from_record.as_ref().and_then(Option::as_deref));
        let past = |pod, explain| Subcommand::Past(RecordQuery { dir, pod, explain, at: self.at });
        match subcommand {
            Subcommand::Explain(pod) => past(pod, true),
            Subcommand::Timeline(pod) => past(pod, false),
            other => other,
        }
    }

    /// The folder that was given, or the agent's root directory.
    fn record(&self, named: Option<&str>) -> PathBuf {
        named.map_or_else(|| root_dir(self.root_dir.as_deref()), PathBuf::from)
    }

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
            "--at" => self.at = Some(PastMoment::parse(name, &value)?),
            "--until" => self.until = Some(PastMoment::parse(name, &value)?),
            "--pod" => self.pod = Some(value),
            _ => self.root_dir = Some(value),
        }
        Ok(())
    }

    fn switch(&mut self, name: &str, value: Option<String>) -> Result<(), ConfigError> {
        if name == FROM_RECORD {
            self.from_record = Some(value);
            return Ok(());
        }
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
            let problem = "no such format exists";
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
        .map_err(|_| ConfigError::new("--width", format!("{text:?}"), "not a number", remedy))
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

    fn client(subcommand: Subcommand, socket: &str) -> ClientCommand {
        ClientCommand {
            subcommand,
            output: OutputFormat::Table,
            watch: false,
            color: Color::Auto,
            width: None,
            socket: socket.into(),
        }
    }

    #[test]
    fn commands_take_a_pod_an_output_format_and_a_socket() {
        let default = "/var/lib/kubelet/pintle/agent.sock";
        let pods = || client(Subcommand::Pods(PodFilter::default()), default);
        let json = |command| ClientCommand { output: OutputFormat::Json, ..command };
        for (line, expected) in [
            ("pods", pods()),
            ("dump", client(Subcommand::Dump, default)),
            ("explain ns/web -o json", json(client(Subcommand::Explain("ns/web".into()), default))),
            ("-o json explain ns/web", json(client(Subcommand::Explain("ns/web".into()), default))),
            (
                "timeline --root-dir=/r web",
                client(Subcommand::Timeline("web".into()), "/r/pintle/agent.sock"),
            ),
            ("--socket /s plan web --root-dir /r", client(Subcommand::Plan("web".into()), "/s")),
            ("retry ns/web", client(Subcommand::Retry("ns/web".into()), default)),
            (
                "pods --watch --color=always --width 80",
                ClientCommand { watch: true, color: Color::Always, width: Some(80), ..pods() },
            ),
            (
                "pods -n shop --unhealthy",
                client(
                    Subcommand::Pods(PodFilter { namespace: Some("shop".into()), unhealthy: true }),
                    default,
                ),
            ),
        ] {
            assert_eq!(parsed(line), Ok(Command::Client(expected)), "{line}");
        }
    }

    #[test]
    fn at_and_from_record_select_a_record() {
        let dir = |dir: &str| PathBuf::from(dir);
        let ten_minutes = Some(PastMoment::Ago(std::time::Duration::from_secs(600)));
        let past = |dir, explain, at| {
            Subcommand::Past(RecordQuery { dir, pod: "web".into(), explain, at })
        };
        let replay = |dir, pod: Option<&str>, until| {
            Subcommand::Replay(ReplayOf { dir, pod: pod.map(str::to_owned), until })
        };
        let default = || dir("/var/lib/kubelet");
        for (line, expected) in [
            ("explain web --at 10m", past(default(), true, ten_minutes)),
            ("timeline web --from-record", past(default(), false, None)),
            ("timeline --from-record=/r/flight web", past(dir("/r/flight"), false, None)),
            ("timeline web --at=10m --root-dir /r", past(dir("/r"), false, ten_minutes)),
            ("explain web --at 10m --from-record=/r", past(dir("/r"), true, ten_minutes)),
            ("replay", replay(default(), None, None)),
            ("replay --root-dir=/r", replay(dir("/r"), None, None)),
            ("replay /r --pod ns/web --until 10m", replay(dir("/r"), Some("ns/web"), ten_minutes)),
        ] {
            match parsed(line) {
                Ok(Command::Client(command)) => {
                    assert_eq!(command.subcommand, expected, "{line}")
                }
                other => panic!("{line}: {other:?}"),
            }
        }
    }

    #[test]
    fn command_is_distinguished_from_daemon_flags() {
        for (line, command) in [
            ("pods", true),
            ("explian web", true),
            ("-o json pods", true),
            ("--root-dir /r pods", true),
            ("--root-dir=/r --watch pods", true),
            ("--from-record --at 10m timeline web", true),
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
    fn error_of_an_invalid_command_names_the_mistake() {
        for (line, said) in [
            ("explian web", "did you mean explain?"),
            ("explain", "the pod is missing"),
            ("retry", "write retry POD"),
            ("retry a b", "nothing is expected here"),
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
            ("plan web --at 10m", "only the commands explain and timeline take it"),
            ("pods --from-record", "only the commands explain and timeline take it"),
            ("explain web --pod web", "only the command replay takes it"),
            ("explain web --at soon", "it is not a valid time"),
            ("replay a b", "nothing is expected here"),
            ("completion", "the shell is missing"),
            ("completion tcsh", "use bash, zsh or fish"),
        ] {
            let errors = parsed(line).expect_err(line);
            assert!(errors[0].to_string().contains(said), "{line}: {}", errors[0]);
        }
    }
}
