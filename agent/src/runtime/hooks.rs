//! Runs lifecycle hooks: exec, HTTP, sleep.
//!
//! Effects. An exec hook has no time limit of its own: postStart blocks the start, preStop is cut
//! off by the grace period of its caller. An HTTP hook fails only when no answer comes; its status
//! is ignored, and HTTPS is not verified and falls back to HTTP, as for the kubelet. Output of a
//! hook never goes into logs or events: it may hold secrets.
// k8s: pkg/kubelet/lifecycle/handlers.go

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, LifecycleHandler};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use pintle_cri::{Client, v1};

use crate::http;
use crate::status::timeline::Recorder;
use crate::types::{ContainerId, PodUid};

/// Longest answer of an HTTP hook that is read, in bytes.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// Whom a hook is run for.
#[derive(Clone, Copy, Debug)]
pub struct HookTarget<'a> {
    /// The pod.
    pub uid: &'a PodUid,
    /// The container.
    pub container: &'a ContainerId,
    /// The pod's addresses; the first one is the default host of an HTTP hook.
    pub ips: &'a [IpAddr],
    /// The container's ports, for a hook that names one.
    pub ports: &'a [ContainerPort],
}

/// Runs hooks through one CRI client.
#[derive(Clone, Debug)]
pub struct Hooks {
    client: Client,
    recorder: Recorder,
}

impl Hooks {
    /// Hooks of containers of this runtime.
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self { client, recorder }
    }

    /// Runs one hook to its end; the error is for the container's status, not for logs.
    pub async fn run(
        &self,
        target: &HookTarget<'_>,
        hook: &LifecycleHandler,
    ) -> Result<(), String> {
        if let Some(exec) = &hook.exec {
            return self.exec(target, exec.command.clone().unwrap_or_default()).await;
        }
        if let Some(get) = &hook.http_get {
            return self.http(target, get).await;
        }
        if let Some(sleep) = &hook.sleep {
            tokio::time::sleep(Duration::from_secs(sleep.seconds.unsigned_abs())).await;
            return Ok(());
        }
        Err("invalid handler: neither exec, httpGet nor sleep".to_owned())
    }

    async fn exec(&self, target: &HookTarget<'_>, cmd: Vec<String>) -> Result<(), String> {
        let shown = cmd.clone();
        let container_id = target.container.as_str().to_owned();
        let request = v1::ExecSyncRequest { container_id, cmd, timeout: 0 };
        let answer = self.client.call_within(request, None).await.map_err(|e| e.to_string())?;
        match answer.exit_code {
            0 => Ok(()),
            code => Err(format!(
                "Exec lifecycle hook ({shown:?}) failed - error: command '{}' exited with {code}: \
                 {}, message: {:?}",
                shown.join(" "),
                String::from_utf8_lossy(&answer.stderr),
                String::from_utf8_lossy(&answer.stdout),
            )),
        }
    }

    async fn http(&self, target: &HookTarget<'_>, get: &HTTPGetAction) -> Result<(), String> {
        let port = port_number(&get.port, target.ports).ok_or("the hook's port has no number")?;
        let named = get.host.clone().filter(|host| !host.is_empty());
        let host = named
            .or_else(|| target.ips.first().map(ToString::to_string))
            .ok_or("the pod has no address yet")?;
        let headers = get.http_headers.iter().flatten();
        let mut request = http::Get {
            tls: get.scheme.as_deref() == Some("HTTPS"),
            host,
            port,
            path: get.path.clone().unwrap_or_default(),
            headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
            body_bytes_max: BODY_BYTES_MAX,
        };
        request.headers.push(("User-Agent".to_owned(), "kube-lifecycle/1.36".to_owned()));
        match http::get(&request).await {
            Ok(_) => Ok(()),
            Err(error) if request.tls && error.is_plain_text_answer() => {
                request.tls = false;
                http::get(&request).await.map_err(|e| e.to_string())?;
                let host = http::authority(&request.host, request.port);
                let text = format!(
                    "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP \
                     succeeded"
                );
                self.recorder.event(target.uid, true, "LifecycleHTTPFallback", &text, None);
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A port's number, looked up by name among the container's ports.
pub fn port_number(port: &IntOrString, ports: &[ContainerPort]) -> Option<u16> {
    let number = match port {
        IntOrString::Int(number) => Some(*number),
        IntOrString::String(name) => ports
            .iter()
            .find(|p| p.name.as_deref() == Some(name))
            .map(|p| p.container_port)
            .or_else(|| name.parse().ok()),
    };
    number.and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0)
}
