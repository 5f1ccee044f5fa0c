//! Runs lifecycle hooks: exec, HTTP, sleep.
//!
//! Effects. An exec hook has no time limit of its own: postStart blocks the start, preStop is cut
//! off by the end of its container. An HTTP hook fails only when no answer comes; its status is
//! ignored, and HTTPS is not verified and falls back to HTTP, without credentials, when the peer
//! uses that, as for the kubelet. Logs and events never contain output of a hook, because it may
//! hold secrets. Bounds: of a command's outputs and of an answer only the first bytes are kept.
// k8s: pkg/kubelet/lifecycle/handlers.go

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, LifecycleHandler};
use pintle_agent_core::env::downward::go_quote;
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{ContainerId, PodUid};
use pintle_agent_metrics::Metrics;
use pintle_api_types::pod::containers;
use pintle_cri::{Client, v1};

use crate::http;
use crate::resolver::Resolver;

/// The name that servers see.
const USER_AGENT: &str = "kube-lifecycle/1.36";
/// Longest answer of an HTTP hook that is read, in bytes.
const BODY_BYTES_MAX: usize = 10 * 1024;
/// Limit of the shown output of a failed hook: a command may print more than the API server takes
/// of a whole pod.
const MESSAGE_BYTES_MAX: usize = 10 * 1024;

/// The container for which a hook is run.
#[derive(Clone, Copy, Debug)]
pub struct HookTarget<'a> {
    /// The pod.
    pub uid: &'a PodUid,
    /// How messages call the pod.
    pub pod: &'a str,
    /// How they call the container.
    pub name: &'a str,
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
    metrics: Option<Arc<Metrics>>,
    resolver: Resolver,
}

/// Counts a sleep that ends before its time, because its waiter is gone.
struct Sleep<'a>(Option<&'a Metrics>);

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(metrics) = self.0 {
            metrics.hook_cut();
        }
    }
}

/// The failure of a hook, as a container's status shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HookError {
    /// The hook has no handler.
    #[error("Cannot run handler: invalid handler: neither exec, httpGet nor sleep")]
    Invalid,
    /// Its command or request failed.
    #[error("{0}")]
    Failed(String),
}

/// The failure of a hook's request.
#[derive(Debug, thiserror::Error)]
enum HookCallError {
    #[error("the hook's port has no number")]
    NoPort,
    #[error("the pod has no address yet")]
    NoAddress,
    #[error("{0}")]
    Call(String),
}

impl Hooks {
    /// Hooks of containers of this runtime.
    pub fn new(client: Client, recorder: Recorder) -> Self {
        Self { client, recorder, metrics: None, resolver: Resolver::default() }
    }

    /// The same, counted.
    #[must_use]
    pub fn counted_in(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = Some(metrics);
        self
    }

    /// Runs one hook to its end; the error is for the container's status, not for logs.
    pub async fn run(
        &self,
        target: &HookTarget<'_>,
        hook: &LifecycleHandler,
    ) -> Result<(), HookError> {
        if let Some(exec) = &hook.exec {
            return self.exec(target, exec.command.clone().unwrap_or_default()).await;
        }
        if let Some(get) = &hook.http_get {
            return self.http(target, get).await;
        }
        if let Some(sleep) = &hook.sleep {
            let mut cut = Sleep(self.metrics.as_deref());
            tokio::time::sleep(Duration::from_secs(sleep.seconds.unsigned_abs())).await;
            cut.0 = None;
            return Ok(());
        }
        Err(HookError::Invalid)
    }

    async fn exec(&self, target: &HookTarget<'_>, cmd: Vec<String>) -> Result<(), HookError> {
        let what = format!("Exec lifecycle hook ([{}])", cmd.join(" "));
        let line = cmd.join(" ");
        let container_id = target.container.as_str().to_owned();
        let request = v1::ExecSyncRequest { container_id, cmd, timeout: 0 };
        let answer = self.client.exec_cut(request, None, MESSAGE_BYTES_MAX).await;
        let answer = answer.map_err(|e| failed(&what, target, &with_output(&e.rpc_text(), "")))?;
        if answer.exit_code == 0 {
            return Ok(());
        }
        let [stdout, stderr] = [&answer.stdout, &answer.stderr].map(|o| String::from_utf8_lossy(o));
        let error = format!("command '{line}' exited with {}: {stderr}", answer.exit_code);
        Err(failed(&what, target, &with_output(&error, &format!("{stdout}{stderr}"))))
    }

    async fn http(&self, target: &HookTarget<'_>, get: &HTTPGetAction) -> Result<(), HookError> {
        let what = format!("HTTP lifecycle hook ({})", get.path.as_deref().unwrap_or_default());
        self.ask(target, get).await.map_err(|error| failed(&what, target, &error.to_string()))
    }

    async fn ask(&self, target: &HookTarget<'_>, get: &HTTPGetAction) -> Result<(), HookCallError> {
        let port = containers::port_number(&get.port, target.ports).ok_or(HookCallError::NoPort)?;
        let named = get.host.clone().filter(|host| !host.is_empty());
        let host = named
            .or_else(|| target.ips.first().map(ToString::to_string))
            .ok_or(HookCallError::NoAddress)?;
        let request = http::Get {
            body_bytes_max: BODY_BYTES_MAX,
            resolver: self.resolver.clone(),
            ..http::Get::of(get, host, port, USER_AGENT)
        };
        match http::get(&request).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_plain_text_answer() => {
                // If that fails as well, the first error is reported.
                let first = HookCallError::Call(http::words::failed(&request, &error));
                let host = http::authority(&request.host, request.port);
                http::get(&request.in_clear_text()).await.map_err(|_| first)?;
                let text = format!(
                    "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP \
                     succeeded"
                );
                self.recorder.event(target.uid, true, "LifecycleHTTPFallback", &text, None);
                if let Some(metrics) = &self.metrics {
                    metrics.hook_fell_back();
                }
                Ok(())
            }
            Err(error) => Err(HookCallError::Call(http::words::failed(&request, &error))),
        }
    }
}

/// The message of a container's status about a failed hook.
fn failed(what: &str, target: &HookTarget<'_>, error: &str) -> HookError {
    let (name, pod) = (go_quote(target.name), go_quote(target.pod));
    let mut text = format!("{what} for Container {name} in Pod {pod} failed - error: {error}");
    text.truncate(text.floor_char_boundary(MESSAGE_BYTES_MAX));
    HookError::Failed(text)
}

fn with_output(error: &str, output: &str) -> String {
    format!("{error}, message: {}", go_quote(output))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_hook_is_reported_in_the_kubelets_wording() {
        let (uid, container) = (PodUid::from("u"), ContainerId::from("c"));
        let target = HookTarget {
            uid: &uid,
            pod: "p_ns(u)",
            name: "main",
            container: &container,
            ips: &[],
            ports: &[],
        };
        let error = with_output("command 'sh -c false' exited with 9: no\n", "no\n");
        assert_eq!(
            failed("Exec lifecycle hook ([sh -c false])", &target, &error).to_string(),
            "Exec lifecycle hook ([sh -c false]) for Container \"main\" in Pod \"p_ns(u)\" failed - \
             error: command 'sh -c false' exited with 9: no\n, message: \"no\\n\""
        );
        let loud = failed("Exec lifecycle hook ([yes])", &target, &"ä".repeat(1 << 20));
        let loud = loud.to_string();
        assert!(loud.starts_with("Exec lifecycle hook ([yes]) for") && loud.ends_with('ä'));
        assert!(loud.len() <= MESSAGE_BYTES_MAX, "{}", loud.len());
    }

    /// Answers each connection in turn in plain HTTP; returns its port and the received requests.
    async fn plain_server(answers: usize) -> (u16, tokio::task::JoinHandle<Vec<String>>) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let served = tokio::spawn(async move {
            let mut asked = Vec::new();
            for _ in 0..answers {
                let (mut stream, _) = listener.accept().await.expect("a connection comes");
                let mut request = vec![0; 16 * 1024];
                let length = stream.read(&mut request).await.expect("a request");
                asked.push(String::from_utf8_lossy(&request[..length]).into_owned());
                let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
                stream.write_all(answer).await.expect("it is taken");
            }
            asked
        });
        (port, served)
    }

    async fn runs(get: serde_json::Value) -> Result<(), HookError> {
        let deadlines = pintle_cri::Deadlines::default();
        let client = Client::connect("unix:///nowhere", deadlines).expect("a path");
        let hook = serde_json::from_value(serde_json::json!({"httpGet": get})).expect("a hook");
        run(&Hooks::new(client, Recorder::default()), hook).await
    }

    async fn run(hooks: &Hooks, hook: LifecycleHandler) -> Result<(), HookError> {
        let (uid, container) = (PodUid::from("u"), ContainerId::from("c"));
        let ips = [IpAddr::from([127, 0, 0, 1])];
        let (pod, name) = ("p_ns(u)", "main");
        let target =
            HookTarget { uid: &uid, pod, name, container: &container, ips: &ips, ports: &[] };
        hooks.run(&target, &hook).await
    }

    #[tokio::test]
    async fn a_hook_asks_as_upstream_does() {
        let (port, served) = plain_server(1).await;
        runs(serde_json::json!({"port": port, "path": "/a b?c=d e#f"})).await.expect("an answer");
        let asked = served.await.expect("it ran")[0].clone();
        let expected = format!(
            "GET /a%20b?c=d e HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\
             User-Agent: kube-lifecycle/1.36\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(asked, expected);
    }

    #[tokio::test]
    async fn http_hook_without_a_response_is_reported_with_its_url_and_dial_error() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        drop(listener);
        let told = runs(serde_json::json!({"port": port, "path": "/x"})).await;
        let want = format!(
            "HTTP lifecycle hook (/x) for Container \"main\" in Pod \"p_ns(u)\" failed - error: Get \
             \"http://127.0.0.1:{port}/x\": dial tcp 127.0.0.1:{port}: connect: connection refused"
        );
        assert_eq!(told, Err(HookError::Failed(want)));
    }

    #[tokio::test]
    async fn hook_whose_command_cannot_run_is_reported_with_the_runtimes_error() {
        let runtime = crate::probe::testing::ProbedRuntime::start().await;
        let refuses = runtime.fake.on(pintle_cri::Method::ExecSync);
        let _lift = refuses.fail(pintle_cri::Code::Unknown, "no such file");
        let hooks = Hooks::new(runtime.client.clone(), Recorder::default());
        let hook = serde_json::json!({"exec": {"command": ["nosuch"]}});
        let told = run(&hooks, serde_json::from_value(hook).expect("a hook")).await;
        let want = "Exec lifecycle hook ([nosuch]) for Container \"main\" in Pod \"p_ns(u)\" failed \
                    - error: rpc error: code = Unknown desc = no such file, message: \"\"";
        assert_eq!(told, Err(HookError::Failed(want.to_owned())));
    }

    #[tokio::test]
    async fn a_hook_that_falls_back_to_http_does_not_send_its_credential() {
        let (port, served) = plain_server(2).await;
        let headers = serde_json::json!([{"name": "authorization", "value": "Bearer secret"},
                                         {"name": "X-Kept", "value": "yes"}]);
        let hook = serde_json::json!({"port": port, "scheme": "HTTPS", "httpHeaders": headers});
        runs(hook).await.expect("an answer");
        let asked = served.await.expect("it ran");
        let clear = asked[1].to_ascii_lowercase();
        assert!(
            clear.starts_with("get / http/1.1\r\n") && clear.contains("x-kept: yes"),
            "{clear}"
        );
        assert!(!clear.contains("authorization") && !clear.contains("secret"), "{clear}");
    }
}
