//! The command line of `explain`.
//!
//! Input: the arguments after the word. Output: [`ExplainOptions`], or one sentence. Pure.

use std::path::PathBuf;

use pintle_controllers_loops::explain::{ExplainedKind, UnknownKind};

/// The text of `--help`.
pub(super) const HELP: &str = "\
Says why an object is not where it should be, what the next write is, and what it waits for.

Usage: pintle-controllers explain KIND/NAME [FLAGS]
       pintle-controllers explain KIND NAME [FLAGS]

KIND: deployment (deploy), replicaset (rs), replicationcontroller (rc), statefulset (sts),
      daemonset (ds), job, cronjob (cj), namespace (ns), resourcequota (quota), serviceaccount (sa)

  -n, --namespace NAME          Namespace of the object (default: that of the kubeconfig's context)
      --kubeconfig FILE         Credentials (default: $KUBECONFIG, then ~/.kube/config)
      --server URL              Ask the controller manager at https://HOST:10257, with these
                                credentials; without it the cluster is read
      --insecure-skip-tls-verify
                                With --server: accept any certificate of the manager
  -o, --output text|json        Form of the answer (default: text)
  -h, --help                    Show this text
";

/// The arguments of the command.
#[derive(Debug, PartialEq)]
pub(super) struct ExplainOptions {
    pub(super) subject: &'static ExplainedKind,
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) server: Option<String>,
    pub(super) accepts_any_server: bool,
    pub(super) is_json: bool,
}

/// A mistake in the arguments.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum ArgumentError {
    #[error("explain needs one object, as KIND/NAME; --help shows how")]
    NoObject,
    #[error("{0} needs a value")]
    NoValue(String),
    #[error("explain has no flag {0}; --help shows those that it has")]
    UnknownFlag(String),
    #[error("--output {0:?}: use text or json")]
    Output(String),
    #[error("--insecure-skip-tls-verify is for --server alone")]
    Insecure,
    #[error(transparent)]
    Kind(#[from] UnknownKind),
}

/// Reads the arguments; `None` when help is wanted.
pub(super) fn parse(args: &[String]) -> Result<Option<ExplainOptions>, ArgumentError> {
    let mut words = Vec::new();
    let (mut namespace, mut kubeconfig, mut server) = (None, None, None);
    let (mut accepts_any_server, mut is_json) = (false, false);
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        let (flag, joined) = match arg.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => (flag, Some(value)),
            _ => (arg, None),
        };
        let mut value = || {
            let value = joined.or_else(|| args.next()).map(str::to_owned);
            value.ok_or_else(|| ArgumentError::NoValue(flag.to_owned()))
        };
        match flag {
            "-h" | "--help" => return Ok(None),
            "-n" | "--namespace" => namespace = Some(value()?),
            "--kubeconfig" => kubeconfig = Some(PathBuf::from(value()?)),
            "--server" => server = Some(value()?),
            "--insecure-skip-tls-verify" => accepts_any_server = joined != Some("false"),
            "-o" | "--output" => {
                is_json = match value()?.as_str() {
                    "json" => true,
                    "text" => false,
                    other => return Err(ArgumentError::Output(other.to_owned())),
                }
            }
            flag if flag.starts_with('-') => {
                return Err(ArgumentError::UnknownFlag(flag.to_owned()));
            }
            word => words.push(word),
        }
    }
    if accepts_any_server && server.is_none() {
        return Err(ArgumentError::Insecure);
    }
    let (kind, name) = match words[..] {
        [word] => word.split_once('/').ok_or(ArgumentError::NoObject)?,
        [kind, name] => (kind, name),
        _ => return Err(ArgumentError::NoObject),
    };
    if name.is_empty() || name.contains('/') {
        return Err(ArgumentError::NoObject);
    }
    let (subject, name) = (ExplainedKind::find(kind)?, name.to_owned());
    Ok(Some(ExplainOptions {
        subject,
        name,
        namespace,
        kubeconfig,
        server,
        accepts_any_server,
        is_json,
    }))
}
