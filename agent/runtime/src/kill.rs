//! Stops containers and sandboxes: hook, wait for one's turn, StopContainer, StopPodSandbox.
//!
//! Effects only; what is stopped, in which order and with how much time is decided in `stop`. All
//! containers of a pod are stopped in parallel. A hook that outlives the grace period goes on until
//! its container has stopped. Sandboxes that were stopped are remembered until they are removed: a
//! repeated stop has the runtime take down the network once more. Dropping the future gives up hooks
//! and waits and cancels the calls; stopping again is harmless, so a shorter grace period is a drop
//! and a retry.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::sync::stop_order::{GRACE_SECONDS_MAX, GRACE_SECONDS_MIN, Stop, stop_pod};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{PodUid, SandboxId};
use pintle_agent_core::worker::Failure;
use pintle_cri::{Client, v1};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::hooks::{HookTarget, Hooks};

/// Stopped sandboxes that are remembered; with more, all are forgotten and stopped once more.
const STOPPED_MAX: usize = 4096;

/// Stops what runs of pods. Clones share what they remember.
#[derive(Clone, Debug)]
pub struct Killer {
    client: Client,
    stopped: Rc<RefCell<HashSet<SandboxId>>>,
    hooks: Hooks,
    recorder: Recorder,
}

impl Killer {
    /// A killer that stops through this client.
    pub fn new(client: Client, hooks: Hooks, recorder: Recorder) -> Self {
        Self { client, stopped: Rc::default(), hooks, recorder }
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
            if let Err(error) = self.stop_sandbox(&sandbox.id).await {
                let failure = Failure::new("KillPodSandboxError", error.rpc_text());
                failed.push(("KillPodSandbox", observed.uid.to_string(), failure));
                break;
            }
        }
        if failed.is_empty() {
            return Ok(());
        }
        let text = format!("error killing pod: {}", told(&failed));
        self.recorder.event(&observed.uid, true, "FailedKillPod", &text, None);
        Err(failed.remove(0).2)
    }

    /// Stops a sandbox and takes down its network.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), pintle_cri::Error> {
        let request = v1::StopPodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        match self.client.stop_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        let mut stopped = self.stopped.borrow_mut();
        if stopped.len() >= STOPPED_MAX {
            stopped.clear();
        }
        stopped.insert(id.clone());
        Ok(())
    }

    /// Removes a sandbox, which is stopped first unless that was done.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_gc.go removeSandbox
    pub async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), pintle_cri::Error> {
        let is_stopped = self.stopped.borrow().contains(id);
        if !is_stopped {
            self.stop_sandbox(id).await?;
        }
        // Where removing fails, the next try stops it once more.
        self.stopped.borrow_mut().remove(id);
        let request = v1::RemovePodSandboxRequest { pod_sandbox_id: id.as_str().to_owned() };
        match self.client.remove_pod_sandbox(request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
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
        let hook = self.pre_stop(observed, stop);
        let mut hook = std::pin::pin!(hook);
        let mut hooked = stop.pre_stop.is_none() || left <= 0;
        if !hooked {
            let begun = Instant::now();
            let limit = Duration::from_secs(left.unsigned_abs());
            hooked = tokio::time::timeout(limit, &mut hook).await.is_ok();
            left -= seconds(begun.elapsed());
        }
        let stopping = self.stop_after_turn(stop, left, turns);
        let mut stopping = std::pin::pin!(stopping);
        // The hook goes on through the time that every container is given at least.
        tokio::select! {
            biased;
            () = &mut hook, if !hooked => stopping.await,
            done = &mut stopping => done,
        }
    }

    /// Runs the container's preStop hook to its end.
    async fn pre_stop(&self, observed: &ObservedPod, stop: &Stop) {
        let Some(hook) = &stop.pre_stop else { return };
        let uid = &observed.uid;
        let target = HookTarget {
            uid,
            pod: uid.as_str(),
            name: &stop.name,
            container: &stop.id,
            ips: observed.newest_sandbox().map_or(&[], |s| &s.ips),
            ports: &stop.ports,
        };
        if self.hooks.run(&target, hook).await.is_err() {
            // The hook's output may hold secrets: it is not repeated here.
            let text = "PreStopHook failed";
            self.recorder.event(uid, true, "FailedPreStopHook", text, Some(&stop.name));
        }
    }

    /// Waits until those are over that have to be, then has the runtime stop the container.
    async fn stop_after_turn(
        &self,
        stop: &Stop,
        mut left: i64,
        turns: Option<&mut watch::Receiver<Vec<bool>>>,
    ) -> Result<(), Failure> {
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
                Err(Failure::new("KillContainerError", error.rpc_text()))
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
    use pintle_cri::fake::{Behaviour, ExecAnswer};
    use pintle_cri::{Code, Method};

    use super::*;
    use crate::probe::testing::Runtime;

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

    /// What no stop is known of was perhaps stopped by nobody, and its network is still there.
    #[tokio::test]
    async fn a_sandbox_is_stopped_once_before_it_is_removed_and_again_when_that_fails() {
        let runtime = Runtime::start().await;
        let (pod, observed) = runtime.pod(&serde_json::json!({}));
        let id = &observed.sandboxes[0].id;
        let recorder = Recorder::default();
        let hooks = Hooks::new(runtime.client.clone(), recorder.clone());
        let killer = || Killer::new(runtime.client.clone(), hooks.clone(), recorder.clone());
        let stops = || runtime.fake.calls_of(Method::StopPodSandbox, "").len();
        let first = killer();
        first.kill_pod(Some(&pod), &observed, Some(1)).await.expect("it stops");
        assert_eq!(stops(), 1);
        let _lift = runtime.fake.on(Method::RemovePodSandbox).times(1).fail(Code::Internal, "no");
        first.remove_sandbox(id).await.expect_err("the runtime fails");
        assert_eq!(stops(), 1, "it was stopped before");
        first.remove_sandbox(id).await.expect("it is removed");
        assert_eq!(stops(), 2, "nobody knows what the failed removal left");
        killer().remove_sandbox(id).await.expect("it is gone");
        assert_eq!(stops(), 3, "stopped by an agent that ran before, or not at all");
    }

    /// The hook is not cut at the end of the grace period: it has the time of the kill as well.
    #[tokio::test]
    async fn a_hook_that_outlives_the_grace_period_goes_on_until_its_container_has_stopped() {
        let runtime = Runtime::start().await;
        let long = Duration::from_secs(600);
        runtime.fake.script("", Behaviour::stops(Duration::from_millis(50), 0));
        runtime.fake.script_exec("", "sleep", ExecAnswer::takes(long));
        let hook = serde_json::json!({"exec": {"command": ["sleep", "600"]}});
        let container = serde_json::json!({"lifecycle": {"preStop": hook}});
        let (pod, observed) = runtime.pod(&container);
        let recorder = Recorder::default();
        let hooks = Hooks::new(runtime.client.clone(), recorder.clone());
        let killer = Killer::new(runtime.client.clone(), hooks, recorder);
        let killed = killer.kill_pod(Some(&pod), &observed, Some(1));
        tokio::time::timeout(long, killed).await.expect("it ends").expect("it stops");
        let stop = runtime.fake.calls_of(Method::StopContainer, "").remove(0);
        let stopped = stop.ended.expect("it was answered").0;
        let cancelled = async {
            loop {
                let exec = runtime.fake.calls_of(Method::ExecSync, "").remove(0);
                match exec.ended {
                    Some((at, _)) => return at,
                    None => tokio::task::yield_now().await,
                }
            }
        };
        let cancelled = tokio::time::timeout(long, cancelled).await.expect("it is given up");
        assert!(cancelled >= stopped, "the hook ended before its container");
    }
}
