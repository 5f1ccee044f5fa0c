//! Runs a plugin with a request and reads its answer.
//!
//! An effect. Bounds: `TIMEOUT` a run, `OUTPUT_BYTES_MAX` of answer, `COMPLAINT_BYTES_MAX` of its
//! standard error, which the log shows. A run that is given up is killed.
// k8s: pkg/credentialprovider/plugin/plugin.go ExecPlugin, runPlugin

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use pintle_agent_metrics::Metrics;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

use super::config::ProviderSettings;
use super::wire::{self, ProviderRequest, Response, ResponseError};

/// How long a plugin may take.
const TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 1 } else { 60 });
/// Longest answer.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;
/// Shown bytes of its standard error.
const COMPLAINT_BYTES_MAX: u64 = 4 << 10;

struct ProviderExit {
    status: ExitStatus,
    answer: Vec<u8>,
    complaint: Vec<u8>,
}

/// Reason why a call of a plugin has no response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PluginRunError {
    #[error(
        "error execing credential provider plugin {name} for image {image}: {error}: {complaint}"
    )]
    Exec { name: String, image: String, error: String, complaint: String },
    #[error(transparent)]
    Response(#[from] ResponseError),
    #[error("{0}")]
    Panicked(String),
}

/// Calls a plugin.
pub(super) async fn run(
    settings: &ProviderSettings,
    request: &ProviderRequest,
    metrics: &Metrics,
) -> Result<Response, PluginRunError> {
    let begun = Instant::now();
    let text = request.text(&settings.api_version);
    let ended = tokio::time::timeout(TIMEOUT, carry_out(settings, text.as_bytes())).await;
    let (name, image) = (&settings.name, &request.image);
    let (answer, complaint) = match ended {
        Ok(Ok(ended)) if ended.status.success() => (Ok(ended.answer), Vec::new()),
        Ok(Ok(ended)) => (Err(ended.status.to_string()), ended.complaint),
        Ok(Err(error)) => (Err(error.to_string()), Vec::new()),
        Err(_) => (Err("context deadline exceeded".to_owned()), Vec::new()),
    };
    metrics.credential_providers().ran(name, begun.elapsed(), answer.is_ok());
    let answer = answer.map_err(|error| {
        let complaint = String::from_utf8_lossy(&complaint).trim_end().to_owned();
        PluginRunError::Exec { name: name.clone(), image: image.clone(), error, complaint }
    })?;
    Ok(wire::parse(&answer, &settings.api_version)?)
}

async fn carry_out(settings: &ProviderSettings, request: &[u8]) -> std::io::Result<ProviderExit> {
    let mut child = Command::new(&settings.program)
        .args(&settings.args)
        .envs(settings.env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // One that does not read its request has its reasons.
            let _ = stdin.write_all(request).await;
        }
    };
    let read = read(stdout, OUTPUT_BYTES_MAX);
    let complain = self::read(stderr, COMPLAINT_BYTES_MAX);
    let ((), answer, complaint, status) = tokio::join!(write, read, complain, child.wait());
    let (answer, complaint) = (answer?, complaint?);
    if answer.len() as u64 > OUTPUT_BYTES_MAX {
        let text = format!("it printed more than {OUTPUT_BYTES_MAX} bytes");
        return Err(std::io::Error::other(text));
    }
    Ok(ProviderExit { status: status?, answer, complaint })
}

/// Up to a byte more than `bytes_max`; the rest is discarded, so that the writer can end.
async fn read(from: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        let mut limited = from.take(bytes_max + 1);
        limited.read_to_end(&mut bytes).await?;
        tokio::io::copy(limited.get_mut(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}
