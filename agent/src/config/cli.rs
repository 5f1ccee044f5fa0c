//! The commands that ask a running agent: `pods`, `explain`, `timeline`, `plan`.
//!
//! Input: arguments without the program's name, the first of which is no flag. Output: a
//! [`ClientCommand`], or one error per argument that cannot be used.

use std::path::PathBuf;

use super::node_flags::socket_below;
use super::{Command, ConfigError, help, suggest};

/// Names of the commands, for "did you mean".
const NAMES: [&str; 4] = ["pods", "explain", "timeline", "plan"];

/// What to ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// List all pods.
    Pods,
    /// Why is this pod not running?
    Explain(String),
    /// What happened to this pod, when?
    Timeline(String),
    /// What would be done for this pod now?
    Plan(String),
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

/// A question for a running agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCommand {
    /// What to ask; pods are named `NAME` or `NAMESPACE/NAME` or by UID.
    pub question: Question,
    /// How to show the answer.
    pub output: OutputFormat,
    /// The agent's socket.
    pub socket: PathBuf,
}

#[derive(Default)]
struct Options {
    pod: Option<String>,
    output: OutputFormat,
    socket: Option<String>,
    root_dir: Option<String>,
    help: bool,
}

/// Reads the command that begins with `args[0]`.
pub(super) fn parse(args: &[String]) -> Result<Command, Vec<ConfigError>> {
    let (name, rest) = args.split_first().map_or(("", [].as_slice()), |(n, r)| (n.as_str(), r));
    match name {
        "help" => return Ok(Command::Print(help::daemon(false))),
        "version" => return Ok(Command::Print(help::version())),
        name if !NAMES.contains(&name) => return Err(vec![unknown(name)]),
        _ => {}
    }
    let options = options(rest)?;
    if options.help {
        return Ok(Command::Print(help::client()));
    }
    let question = question(name, options.pod).map_err(|error| vec![error])?;
    let socket = options.socket.map(PathBuf::from);
    Ok(Command::Client(ClientCommand {
        question,
        output: options.output,
        socket: socket.unwrap_or_else(|| socket_below(options.root_dir.as_deref())),
    }))
}

fn unknown(name: &str) -> ConfigError {
    let remedy = suggest::did_you_mean(name, NAMES.into_iter());
    let remedy = remedy.unwrap_or_else(|| format!("use one of {}", NAMES.join(", ")));
    ConfigError::new(format!("command {name:?}"), "", "no such command exists", remedy)
}

fn question(name: &str, pod: Option<String>) -> Result<Question, ConfigError> {
    let needed = |pod: Option<String>| {
        pod.ok_or_else(|| {
            let remedy = format!("write {name} POD");
            ConfigError::new(format!("command {name:?}"), "", "the pod is missing", remedy)
        })
    };
    match (name, pod) {
        ("explain", pod) => needed(pod).map(Question::Explain),
        ("timeline", pod) => needed(pod).map(Question::Timeline),
        ("plan", pod) => needed(pod).map(Question::Plan),
        (_, None) => Ok(Question::Pods),
        (_, Some(pod)) => Err(stray(&pod)),
    }
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
        let mut value = || {
            inline.clone().or_else(|| rest.next().cloned()).ok_or_else(|| {
                ConfigError::new(name, "", "its value is missing", format!("write {name}=VALUE"))
            })
        };
        let result = match name {
            "-o" | "--output" => value().and_then(|v| output(&v)).map(|o| options.output = o),
            "--socket" => value().map(|path| options.socket = Some(path)),
            "--root-dir" => value().map(|path| options.root_dir = Some(path)),
            "-h" | "--help" => {
                options.help = true;
                Ok(())
            }
            name if name.starts_with('-') => {
                let remedy = "use -o, --socket, --root-dir or --help";
                Err(ConfigError::new(name, "", "no such flag exists", remedy))
            }
            _ if options.pod.is_some() => Err(stray(arg)),
            _ => {
                options.pod = Some(arg.clone());
                Ok(())
            }
        };
        errors.extend(result.err());
    }
    if errors.is_empty() { Ok(options) } else { Err(errors) }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, Vec<ConfigError>> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn questions_take_a_pod_an_output_form_and_a_socket() {
        let client = |question, output, socket: &str| {
            Ok(Command::Client(ClientCommand { question, output, socket: socket.into() }))
        };
        let default = "/var/lib/kubelet/pintle/agent.sock";
        assert_eq!(parsed("pods"), client(Question::Pods, OutputFormat::Table, default));
        assert_eq!(
            parsed("explain ns/web -o json"),
            client(Question::Explain("ns/web".into()), OutputFormat::Json, default)
        );
        assert_eq!(
            parsed("timeline --root-dir=/r web"),
            client(Question::Timeline("web".into()), OutputFormat::Table, "/r/pintle/agent.sock")
        );
        assert_eq!(
            parsed("plan web --socket /s --root-dir /r"),
            client(Question::Plan("web".into()), OutputFormat::Table, "/s")
        );
    }

    #[test]
    fn wrong_commands_say_what_is_wrong() {
        for (line, said) in [
            ("explian web", "did you mean explain?"),
            ("explain", "the pod is missing"),
            ("pods web", "nothing is expected here"),
            ("explain a b", "nothing is expected here"),
            ("pods -o yaml", "use table or json"),
            ("pods --sock /s", "no such flag exists"),
            ("pods --socket", "its value is missing"),
        ] {
            let errors = parsed(line).expect_err(line);
            assert!(errors[0].to_string().contains(said), "{line}: {}", errors[0]);
        }
    }
}
