//! Credential plugins: programs that print our credentials.
//!
//! Input: the `exec` section of a user. Output: a token, a certificate with its key, or both, kept
//! until they expire or the server refuses them. One run at a time. Bounds: `TIMEOUT` a run,
//! `OUTPUT_BYTES_MAX` of output.
// k8s: staging/src/k8s.io/client-go/plugin/pkg/client/auth/exec/exec.go

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, Command};

use crate::error::ConnectError;
use crate::kubeconfig::{Exec, KubeconfigCluster};
use crate::observer::{Observer, PluginRun};
use crate::user;

/// Longest run of a plugin.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes that a plugin may print.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// A credential is not used this short before its end.
const MARGIN: Duration = Duration::from_secs(10);
/// The cluster's extension with settings for plugins.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/client_config.go clusterExtensionKey
const EXTENSION: &str = "client.authentication.k8s.io/exec";
const GROUP: &str = "client.authentication.k8s.io/";
const VERSIONS: [&str; 2] =
    ["client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"];

/// The output of a plugin.
#[derive(Clone, Default, PartialEq)]
pub(crate) struct Credential {
    /// The run of this plugin that printed it.
    pub(crate) run: u64,
    pub(crate) token: Option<String>,
    /// PEM of certificate and key.
    pub(crate) pair: Option<(Vec<u8>, Vec<u8>)>,
    expires_at: Option<jiff::Timestamp>,
    /// The server refused it.
    refused: bool,
}

/// A plugin and its last output.
pub(crate) struct ExecPlugin {
    command: String,
    args: Vec<String>,
    env: Vec<(String, String)>,
    version: String,
    hint: Option<String>,
    /// `KUBERNETES_EXEC_INFO`.
    info: String,
    turn: tokio::sync::Mutex<()>,
    known: Mutex<Option<Credential>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredential {
    api_version: String,
    status: Option<ExecCredentialStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ExecCredentialStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<jiff::Timestamp>,
}

impl ExecPlugin {
    /// A plugin of a valid section; nothing is run yet.
    pub(crate) fn new(
        path: &Path,
        exec: &Exec,
        cluster: &KubeconfigCluster,
    ) -> Result<Self, ConnectError> {
        let version = exec.api_version.clone();
        if !VERSIONS.contains(&version.as_str()) {
            let problem = format!("{version:?} is not known");
            let remedy = "use client.authentication.k8s.io/v1";
            return Err(ConnectError::field(path, "exec.apiVersion", problem, remedy));
        }
        if exec.interactive_mode == "Always" {
            let (field, problem) = ("exec.interactiveMode", "a daemon has no terminal");
            return Err(ConnectError::field(path, field, problem, "use Never or IfAvailable"));
        }
        let env = exec.env.iter().map(|variable| (variable.name.clone(), variable.value.clone()));
        Ok(Self {
            command: exec.command.clone(),
            args: exec.args.clone(),
            env: env.collect(),
            info: info(&version, exec.provide_cluster_info.then_some(cluster)),
            version,
            hint: Some(exec.install_hint.clone()).filter(|hint| !hint.is_empty()),
            turn: tokio::sync::Mutex::default(),
            known: Mutex::default(),
        })
    }

    /// The section as upstream shows it.
    pub(crate) fn contents(&self) -> Value {
        let env = self.env.iter().map(|(name, value)| format!("{name}={value}"));
        json!({"apiVersion": self.version, "command": self.command, "args": self.args,
            "env": env.collect::<Vec<_>>()})
    }

    /// The current credential; runs the program when there is none.
    pub(crate) async fn credential(
        &self,
        observer: Option<&dyn Observer>,
    ) -> Result<Credential, io::Error> {
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.known() {
            return Ok(known);
        }
        let run = tokio::time::timeout(TIMEOUT, self.run()).await;
        let late = |_| (PluginRun::Failed, Err(io::Error::other("it did not end within 60 s")));
        let (end, run) = run.unwrap_or_else(late);
        if let Some(observer) = observer {
            observer.plugin_ran(end);
        }
        let mut credential = run.map_err(|error| {
            let hint = self.hint.as_deref().map(|hint| format!("; {hint}")).unwrap_or_default();
            io::Error::other(format!("exec plugin {}: {error}{hint}", self.command))
        })?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        credential.run = known.as_ref().map_or(0, |before| before.run) + 1;
        *known = Some(credential.clone());
        Ok(credential)
    }

    /// Invalidates the credential of that run. A call for an earlier run changes nothing, because
    /// the server often refuses many requests with one credential.
    // k8s: exec.go maybeRefreshCreds
    pub(crate) fn refused(&self, run: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known.as_mut().filter(|known| known.run == run) {
            known.refused = true;
        }
    }

    fn known(&self) -> Option<Credential> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let soon = jiff::Timestamp::now() + MARGIN;
        let holds = !known.refused && known.expires_at.is_none_or(|at| at > soon);
        holds.then_some(known)
    }

    async fn run(&self) -> (PluginRun, Result<Credential, io::Error>) {
        let (status, output) = match self.start() {
            Err(error) => return (PluginRun::NotFound, Err(error)),
            Ok(child) => match ended(child).await {
                Err(error) => return (PluginRun::Failed, Err(error)),
                Ok(ended) => ended,
            },
        };
        if !status.success() {
            let error = io::Error::other(format!("it ended with {status}"));
            return (PluginRun::Exited(status.code().unwrap_or(-1)), Err(error));
        }
        (PluginRun::Well, parse(&output, &self.version).map_err(io::Error::other))
    }

    fn start(&self) -> io::Result<Child> {
        Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", &self.info)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
    }
}

/// Reports faults of a section, used or not.
// k8s: staging/src/k8s.io/client-go/tools/clientcmd/validation.go validateAuthInfo
pub(crate) fn validate(path: &Path, exec: &Exec) -> Result<(), ConnectError> {
    let fail =
        |field, problem: String, remedy| Err(ConnectError::field(path, field, problem, remedy));
    let missing = || "it is not set".to_owned();
    if exec.command.is_empty() {
        return fail("exec.command", missing(), "name the plugin's program");
    }
    if exec.api_version.is_empty() {
        return fail("exec.apiVersion", missing(), "use client.authentication.k8s.io/v1");
    }
    if exec.env.iter().any(|variable| variable.name.is_empty()) {
        return fail("exec.env", "a variable has no name".to_owned(), "name it");
    }
    // k8s: tools/clientcmd/api/v1/defaults.go SetDefaults_ExecConfig
    let has_default = exec
        .api_version
        .strip_prefix(GROUP)
        .is_some_and(|version| version == "v1beta1" || version == "v1alpha1");
    match exec.interactive_mode.as_str() {
        "" if has_default => Ok(()),
        "" => fail("exec.interactiveMode", missing(), "use Never or IfAvailable"),
        "Never" | "IfAvailable" | "Always" => Ok(()),
        other => {
            let problem = format!("{other:?} is not known");
            fail("exec.interactiveMode", problem, "use Never or IfAvailable")
        }
    }
}

/// The exit status and the output.
async fn ended(mut child: Child) -> io::Result<(ExitStatus, Vec<u8>)> {
    let mut output = Vec::new();
    if let Some(stdout) = child.stdout.take() {
        stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut output).await?;
    }
    Ok((child.wait().await?, output))
}

/// The plugin's input.
// k8s: staging/src/k8s.io/client-go/rest/exec.go ConfigToExecCluster
fn info(version: &str, cluster: Option<&KubeconfigCluster>) -> String {
    let mut spec = json!({"interactive": false});
    if let Some(cluster) = cluster {
        let own = cluster.extensions.iter().find(|one| one.name == EXTENSION);
        let filled = |text: &String| (!text.is_empty()).then(|| text.clone());
        let flag = |set: bool| set.then_some(true);
        spec["cluster"] = json!({
            "server": cluster.server,
            "tls-server-name": filled(&cluster.tls_server_name),
            "insecure-skip-tls-verify": flag(cluster.insecure_skip_tls_verify),
            "certificate-authority-data": authority(cluster),
            "proxy-url": filled(&cluster.proxy_url),
            "disable-compression": flag(cluster.disable_compression),
            "config": own.map(|own| &own.extension),
        });
        if let Some(fields) = spec["cluster"].as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
    }
    json!({"apiVersion": version, "kind": "ExecCredential", "spec": spec}).to_string()
}

/// The server's authorities in base64. Another place reports a file that cannot be read.
fn authority(cluster: &KubeconfigCluster) -> Option<String> {
    let source = user::source(&cluster.certificate_authority, &cluster.certificate_authority_data)?;
    Some(STANDARD.encode(source.read().ok()?))
}

/// Output of a plugin that is no credential.
#[derive(Debug, thiserror::Error)]
enum ExecOutputError {
    #[error("it printed no ExecCredential: {0}")]
    Malformed(serde_json::Error),
    #[error("it speaks {it}, not {we}")]
    Version { it: String, we: String },
    #[error("it printed no status")]
    NoStatus,
    #[error("it printed one of certificate and key only")]
    HalfPair,
    #[error("it printed neither a token nor a certificate")]
    Empty,
}

fn parse(output: &[u8], version: &str) -> Result<Credential, ExecOutputError> {
    let answer: ExecCredential =
        serde_json::from_slice(output).map_err(ExecOutputError::Malformed)?;
    if answer.api_version != version {
        return Err(ExecOutputError::Version { it: answer.api_version, we: version.to_owned() });
    }
    let status = answer.status.ok_or(ExecOutputError::NoStatus)?;
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    let cert = filled(status.client_certificate_data);
    let pair = match (cert, filled(status.client_key_data)) {
        (Some(cert), Some(key)) => Some((cert.into_bytes(), key.into_bytes())),
        (None, None) => None,
        _ => return Err(ExecOutputError::HalfPair),
    };
    let token = filled(status.token);
    if token.is_none() && pair.is_none() {
        return Err(ExecOutputError::Empty);
    }
    let expires_at = status.expiration_timestamp;
    Ok(Credential { token, pair, expires_at, ..Credential::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(status: &str) -> Result<Credential, ExecOutputError> {
        let text = format!("{{\"apiVersion\":\"{}\",\"status\":{status}}}", VERSIONS[1]);
        parse(text.as_bytes(), VERSIONS[1])
    }

    #[test]
    fn answers_are_complete_or_refused() {
        assert_eq!(said(r#"{"token":"t"}"#).expect("a token").token.as_deref(), Some("t"));
        let both = r#"{"clientCertificateData":"c","clientKeyData":"k"}"#;
        assert!(said(both).expect("a pair").pair.is_some());
        assert!(said(r#"{"clientCertificateData":"c"}"#).is_err());
        assert!(said("{}").is_err());
        assert!(
            parse(b"{\"apiVersion\":\"x\",\"status\":{\"token\":\"t\"}}", VERSIONS[0]).is_err()
        );
        assert!(parse(b"nonsense", VERSIONS[0]).is_err());
    }

    #[test]
    fn plugin_receives_cluster_info_and_its_own_extension() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ca.crt");
        std::fs::write(&file, "PEM").expect("written");
        let mut cluster: KubeconfigCluster = serde_json::from_value(json!({
            "server": "https://a", "certificate-authority": file, "disable-compression": true,
            "extensions": [{"name": "other", "extension": 1},
                {"name": EXTENSION, "extension": {"audience": "x"}}],
        }))
        .expect("a cluster");
        let told = |cluster: &KubeconfigCluster| {
            let info: serde_json::Value =
                serde_json::from_str(&info(VERSIONS[0], Some(cluster))).expect("JSON");
            info["spec"]["cluster"].clone()
        };
        let mut want = json!({"server": "https://a", "disable-compression": true,
            "certificate-authority-data": STANDARD.encode("PEM"), "config": {"audience": "x"}});
        assert_eq!(told(&cluster), want);
        cluster.certificate_authority_data.0 = b"hi".to_vec();
        want["certificate-authority-data"] = json!("aGk=");
        assert_eq!(told(&cluster), want, "what is in the kubeconfig goes before a file");
    }

    #[tokio::test]
    async fn failed_plugin_runs_are_classified_by_cause() {
        for (command, script, want) in [
            ("sh", "exit 3", PluginRun::Exited(3)),
            ("sh", "kill -9 $$", PluginRun::Exited(-1)),
            ("sh", "echo nonsense", PluginRun::Well),
            ("/nowhere/plugin", "", PluginRun::NotFound),
        ] {
            let exec: Exec = serde_json::from_value(json!({
                "apiVersion": VERSIONS[0], "command": command, "args": ["-c", script],
                "interactiveMode": "Never",
            }))
            .expect("a section");
            let plugin = ExecPlugin::new(Path::new("k"), &exec, &KubeconfigCluster::default())
                .expect("a plugin");
            let (end, said) = plugin.run().await;
            assert_eq!((end, said.is_err()), (want, true), "{script}");
        }
    }

    #[tokio::test]
    async fn plugin_is_rerun_when_its_credential_expires_or_is_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let script = "echo x >> \"$LOG\"; \
            echo \"{\\\"apiVersion\\\":\\\"client.authentication.k8s.io/v1\\\",\
            \\\"status\\\":{\\\"token\\\":\\\"$SAY\\\"$END}}\"";
        let log = dir.path().join("log");
        let end = ",\"expirationTimestamp\":\"2020-01-01T00:00:00Z\"";
        let plugin = |end: &str| {
            let exec: Exec = serde_json::from_value(json!({
                "apiVersion": VERSIONS[0], "command": "sh", "args": ["-c", script],
                "interactiveMode": "Never",
                "env": [{"name": "SAY", "value": "t"}, {"name": "LOG", "value": log},
                        {"name": "END", "value": end}],
            }))
            .expect("a section");
            ExecPlugin::new(Path::new("k"), &exec, &KubeconfigCluster::default()).expect("a plugin")
        };
        let runs = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
        let lasting = plugin("");
        for _ in 0..3 {
            let said = lasting.credential(None).await.expect("a credential");
            assert_eq!(said.token.as_deref(), Some("t"));
        }
        assert_eq!(runs(), 1);
        let first = lasting.credential(None).await.expect("a credential").run;
        lasting.refused(first);
        let second = lasting.credential(None).await.expect("a credential").run;
        assert_eq!(runs(), 2);
        // Another request had the first one, too, and its answer comes late.
        lasting.refused(first);
        assert_eq!(lasting.credential(None).await.expect("a credential").run, second);
        assert_eq!(runs(), 2);
        let expired = plugin(end);
        expired.credential(None).await.expect("a credential");
        expired.credential(None).await.expect("a credential");
        assert_eq!(runs(), 4);
    }
}
