//! Stops containers and sandboxes: hook, wait for one's turn, StopContainer, StopPodSandbox.
//!
//! Effects only; what is stopped, in which order and with how much time is decided in `stop`. All
//! containers of a pod are stopped in parallel. Dropping the future gives up hooks and waits and
//! cancels the calls; stopping again is harmless, so a shorter grace period is a drop and a retry.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer

use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use pintle_cri::{Client, v1};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::observed::ObservedPod;
use crate::runtime::hooks::{HookTarget, Hooks};
use crate::runtime::start::rpc_text;
use crate::runtime::stop_order::{GRACE_SECONDS_MAX, GRACE_SECONDS_MIN, Stop, stop_pod};
use crate::status::timeline::Recorder;
use crate::types::PodUid;
use crate::worker::Failure;

/// Stops what runs of pods.
#[derive(Clone, Debug)]
pub struct Killer {
    client: Client,
    hooks: Hooks,
    recorder: Recorder,
}

impl Killer {
    /// A killer that stops through this client.
    pub fn new(client: Client, hooks: Hooks, recorder: Recorder) -> Self {
        Self { client, hooks, recorder }
    }

    /// Stops every container of the pod in its order, then every sandbox.
    pub async fn kill_pod(
        &self,
        pod: Option<&Pod>,
        observed: &ObservedPod,
        grace_seconds: Option<i64>,
    ) -> Result<(), Failure> {
        let stops = stop_pod(pod, observed, grace_seconds);
        let (ended, turns) = watch::channel(vec![false; stops.len()]);
        let each = stops.iter().enumerate().map(|(index, stop)| {
            let (mut turns, ended) = (turns.clone(), &ended);
            async move {
                let result = self.stop(observed, stop, "", Some(&mut turns)).await;
                ended.send_modify(|all| all[index] = true);
                result.map_err(|failure| ("KillContainer", stop.name.clone(), failure))
            }
        });
        let mut failed: Vec<_> = join_all(each).await.into_iter().filter_map(Result::err).collect();
        for sandbox in &observed.sandboxes {
            let request =
                v1::StopPodSandboxRequest { pod_sandbox_id: sandbox.id.as_str().to_owned() };
            match self.client.stop_pod_sandbox(request).await {
                Err(error) if !error.is_not_found() => {
                    let failure = Failure::new("KillPodSandboxError", rpc_text(&error));
                    failed.push(("KillPodSandbox", observed.uid.to_string(), failure));
                    break;
                }
                _ => {}
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let text = format!("error killing pod: {}", told(&failed));
        self.recorder.event(&observed.uid, true, "FailedKillPod", &text, None);
        Err(failed.remove(0).2)
    }

    /// Stops one container; `turns` tells which of the pod's other stops are over.
    pub async fn stop(
        &self,
        observed: &ObservedPod,
        stop: &Stop,
        message: &str,
        turns: Option<&mut watch::Receiver<Vec<bool>>>,
    ) -> Result<(), Failure> {
        let uid: &PodUid = &observed.uid;
        let text = match message {
            "" => format!("Stopping container {}", stop.name),
            text => text.to_owned(),
        };
        self.recorder.event(uid, false, "Killing", &text, Some(&stop.name));
        let mut left = stop.grace_seconds;
        if let Some(hook) = stop.pre_stop.as_ref().filter(|_| left > 0) {
            let begun = Instant::now();
            let target = HookTarget {
                uid,
                pod: uid.as_str(),
                name: &stop.name,
                container: &stop.id,
                ips: observed.newest_sandbox().map_or(&[], |s| &s.ips),
                ports: &stop.ports,
            };
            let limit = Duration::from_secs(left.unsigned_abs());
            let ran = tokio::time::timeout(limit, self.hooks.run(&target, hook)).await;
            if let Ok(Err(_)) = ran {
                // The hook's output may hold secrets: it is not repeated here.
                let text = "PreStopHook failed";
                self.recorder.event(uid, true, "FailedPreStopHook", text, Some(&stop.name));
            }
            left -= seconds(begun.elapsed());
        }
        if let Some(turns) = turns.filter(|_| left > 0 && !stop.after.is_empty()) {
            let begun = Instant::now();
            let over = turns.wait_for(|all| stop.after.iter().all(|index| all[*index]));
            let _ = tokio::time::timeout(Duration::from_secs(left.unsigned_abs()), over).await;
            left -= seconds(begun.elapsed());
        }
        let request = v1::StopContainerRequest {
            container_id: stop.id.as_str().to_owned(),
            timeout: left.clamp(GRACE_SECONDS_MIN, GRACE_SECONDS_MAX),
        };
        match self.client.stop_container(request).await {
            Err(error) if !error.is_not_found() => {
                Err(Failure::new("KillContainerError", rpc_text(&error)))
            }
            _ => Ok(()),
        }
    }
}

/// What went wrong, as the kubelet puts it together.
// k8s: pkg/kubelet/container/sync_result.go PodSyncResult.Error
fn told(failed: &[(&str, String, Failure)]) -> String {
    let one = |(action, target, failure): &(&str, String, Failure)| {
        let Failure { reason, message, .. } = failure;
        format!("failed to {action:?} for {target:?} with {reason}: {message:?}")
    };
    match failed {
        [failure] => one(failure),
        failures => format!("[{}]", failures.iter().map(one).collect::<Vec<_>>().join(", ")),
    }
}

fn seconds(elapsed: Duration) -> i64 {
    i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_kills_are_told_as_the_kubelet_tells_them() {
        let of = |action, target: &str, reason: &str| {
            (action, target.to_owned(), Failure::new(reason, "rpc error: code = Unknown desc = no"))
        };
        let container = of("KillContainer", "c", "KillContainerError");
        let one = "failed to \"KillContainer\" for \"c\" with KillContainerError: \"rpc error: \
                   code = Unknown desc = no\"";
        assert_eq!(told(std::slice::from_ref(&container)), one);
        let sandbox = of("KillPodSandbox", "uid", "KillPodSandboxError");
        let two = "failed to \"KillPodSandbox\" for \"uid\" with KillPodSandboxError: \"rpc \
                   error: code = Unknown desc = no\"";
        assert_eq!(told(&[container, sandbox]), format!("[{one}, {two}]"));
    }
}
