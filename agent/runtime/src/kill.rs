//! Stops containers and sandboxes: hook, wait for one's turn, StopContainer, StopPodSandbox.
//!
//! Effects only; `stop` decides the containers, their order and their time. All containers of a pod
//! are stopped in parallel. A hook that outlives the grace period continues until its container has
//! stopped. Sandboxes that were stopped are remembered until they are removed: a repeated stop has
//! the runtime take down the network once more. Dropping the future gives up waits and cancels
//! calls, but for the hook: it belongs to the container's next stop as well, which is reported as
//! one with the first and has no more time than that had left. So a shorter grace period is a drop
//! and a retry.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go killContainer

use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{FutureExt, LocalBoxFuture, Shared, join_all};
use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::ObservedPod;
use pintle_agent_core::sync::stop_order::{
    ContainerStop, GRACE_SECONDS_MAX, GRACE_SECONDS_MIN, stop_pod,
};
use pintle_agent_core::timeline::Recorder;
use pintle_agent_core::types::{ContainerId, PodUid, SandboxId};
use pintle_agent_core::worker::Failure;
use pintle_cri::{Client, v1};
use pintle_daemon::tasks;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::hooks::{HookTarget, Hooks};

/// Stopped sandboxes that are remembered; with more, all are forgotten and stopped once more.
const STOPPED_MAX: usize = 4096;

/// A preStop hook under way: it continues while a clone is polled, and is cut with the last of
/// them.
type PreStop = Shared<LocalBoxFuture<'static, ()>>;

/// A stop of a container that has begun, and not ended since.
#[derive(Debug)]
struct BegunStop {
    hook: PreStop,
    at: Instant,
    grace_seconds: i64,
}

/// Stops the containers of pods. Clones share their state.
#[derive(Clone, Debug)]
pub struct Killer {
    client: Client,
    stopped: Rc<RefCell<HashSet<SandboxId>>>,
    begun: Rc<RefCell<BTreeMap<(PodUid, ContainerId), BegunStop>>>,
    hooks: Hooks,
    recorder: Recorder,
}

impl Killer {
    /// A killer that stops through this client.
    pub fn new(client: Client, hooks: Hooks, recorder: Recorder) -> Self {
        Self { client, stopped: Rc::default(), begun: Rc::default(), hooks, recorder }
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
                // A container that depends on one that could not be stopped waits its whole time.
                ended.send_modify(|all| all[index] = result.is_ok());
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
        let text = format!("error killing pod: {}", join_errors(&failed));
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

    /// Stops one container; `turns` shows which of the pod's other stops are over.
    pub async fn stop(
        &self,
        observed: &ObservedPod,
        stop: &ContainerStop,
        message: &str,
        turns: Option<&mut watch::Receiver<Vec<bool>>>,
    ) -> Result<(), Failure> {
        let (hook, mut left) = self.begin(observed, stop, message);
        let waited = Instant::now();
        let limit = Duration::from_secs(left.max(0).unsigned_abs());
        let hooked = tokio::time::timeout(limit, hook.clone()).await.is_ok();
        left -= seconds(waited.elapsed());
        let stopping = self.stop_after_turn(stop, left, turns);
        let mut stopping = std::pin::pin!(stopping);
        // The hook continues through the minimum time that every container has.
        let done = tokio::select! {
            biased;
            () = hook, if !hooked => stopping.await,
            done = &mut stopping => done,
        };
        self.begun.borrow_mut().remove(&(observed.uid.clone(), stop.id.clone()));
        done
    }

    /// The container's hook, and the seconds that are left. A hook begun by a stop that was given
    /// up is not begun again, whatever caused the next stop, because the kubelet gives none up.
    // k8s: pkg/kubelet/kubelet.go SyncPod, SyncTerminatingPod (not cancelled with their context)
    fn begin(&self, observed: &ObservedPod, stop: &ContainerStop, message: &str) -> (PreStop, i64) {
        let at = Instant::now();
        let mut grace_seconds = stop.grace_seconds;
        let key = (observed.uid.clone(), stop.id.clone());
        let mut begun = self.begun.borrow_mut();
        let hook = match begun.remove(&key) {
            Some(before) => {
                grace_seconds =
                    grace_seconds.min(before.grace_seconds - seconds(before.at.elapsed()));
                before.hook
            }
            None => {
                let text = match message {
                    "" => format!("Stopping container {}", stop.name),
                    text => text.to_owned(),
                };
                self.recorder.event(&observed.uid, false, "Killing", &text, Some(&stop.name));
                self.pre_stop(observed, stop)
            }
        };
        begun.insert(key, BegunStop { hook: hook.clone(), at, grace_seconds });
        (hook, grace_seconds)
    }

    /// Stops of the pod's containers that were given up are not resumed.
    pub fn forget(&self, uid: &PodUid) {
        self.begun.borrow_mut().retain(|(pod, _), _| pod != uid);
    }

    /// Runs the container's preStop hook to its end, if there is time for one.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go executePreStopHook
    fn pre_stop(&self, observed: &ObservedPod, stop: &ContainerStop) -> PreStop {
        let hook = stop.pre_stop.clone().filter(|_| stop.grace_seconds > 0);
        let Some(hook) = hook else { return std::future::ready(()).boxed_local().shared() };
        let (hooks, recorder) = (self.hooks.clone(), self.recorder.clone());
        let ips = observed.newest_sandbox().map(|s| s.ips.clone()).unwrap_or_default();
        let (uid, stop) = (observed.uid.clone(), stop.clone());
        let running = async move {
            let target = HookTarget {
                uid: &uid,
                pod: uid.as_str(),
                name: &stop.name,
                container: &stop.id,
                ips: &ips,
                ports: &stop.ports,
            };
            let ran = tasks::caught(hooks.run(&target, &hook)).await;
            if let Err(panic) = &ran {
                tasks::counted("hook");
                tracing::error!(pod = %uid, container = stop.name, "{panic}");
            }
            if !matches!(ran, Ok(Ok(()))) {
                // The hook's output may hold secrets: it is not repeated here.
                let text = "PreStopHook failed";
                recorder.event(&uid, true, "FailedPreStopHook", text, Some(&stop.name));
            }
        };
        running.boxed_local().shared()
    }

    /// Waits until those are over that have to be, then has the runtime stop the container.
    async fn stop_after_turn(
        &self,
        stop: &ContainerStop,
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

/// The errors of the stops, joined as the kubelet does.
// k8s: pkg/kubelet/container/sync_result.go PodSyncResult.Error
fn join_errors(failed: &[(&str, String, Failure)]) -> String {
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
    use pintle_cri::fake::{Behaviour, CallRecord, ExecAnswer};
    use pintle_cri::{Code, Method};

    use super::*;
    use crate::probe::testing::ProbedRuntime;

    #[test]
    fn failed_kills_are_reported_in_the_kubelets_wording() {
        let of = |action, target: &str, reason: &str| {
            (action, target.to_owned(), Failure::new(reason, "rpc error: code = Unknown desc = no"))
        };
        let container = of("KillContainer", "c", "KillContainerError");
        let one = "failed to \"KillContainer\" for \"c\" with KillContainerError: \"rpc error: \
                   code = Unknown desc = no\"";
        assert_eq!(join_errors(std::slice::from_ref(&container)), one);
        let sandbox = of("KillPodSandbox", "uid", "KillPodSandboxError");
        let two = "failed to \"KillPodSandbox\" for \"uid\" with KillPodSandboxError: \"rpc \
                   error: code = Unknown desc = no\"";
        assert_eq!(join_errors(&[container, sandbox]), format!("[{one}, {two}]"));
    }

    fn killer(runtime: &ProbedRuntime, recorder: &Recorder) -> Killer {
        let hooks = Hooks::new(runtime.client.clone(), recorder.clone());
        Killer::new(runtime.client.clone(), hooks, recorder.clone())
    }

    /// Gives the kill up once the runtime has this call of it.
    async fn give_up(
        runtime: &ProbedRuntime,
        at: Method,
        kill: impl Future<Output = Result<(), Failure>>,
    ) {
        let called = async {
            while runtime.fake.calls_of(at, "").is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            ended = kill => panic!("it ended: {ended:?}"),
            () = called => {}
        }
    }

    fn kills_told(recorder: &Recorder, observed: &ObservedPod) -> u32 {
        let entries = recorder.entries(&observed.uid);
        entries.iter().filter(|entry| entry.what == "Killing").map(|entry| entry.count).sum()
    }

    fn graces(runtime: &ProbedRuntime) -> Vec<i64> {
        let calls = runtime.fake.calls_of(Method::StopContainer, "");
        let request = |call: &CallRecord| call.request::<v1::StopContainerRequest>();
        calls.iter().filter_map(request).map(|request| request.timeout).collect()
    }

    /// The kubelet lets a kill run to the end of its grace period, and retries one that failed.
    #[tokio::test]
    async fn abandoned_stop_keeps_its_grace_period_and_a_failed_stop_starts_over() {
        let runtime = ProbedRuntime::start().await;
        let hook = serde_json::json!({"exec": {"command": ["true"]}});
        let container = serde_json::json!({"lifecycle": {"preStop": hook}});
        let (pod, observed) = runtime.pod(&container);
        let recorder = Recorder::default();
        let killer = killer(&runtime, &recorder);
        let kill = |grace| killer.kill_pod(Some(&pod), &observed, Some(grace));
        let begun = || {
            let hooks = runtime.fake.calls_of(Method::ExecSync, "").len();
            (hooks, kills_told(&recorder, &observed))
        };
        let _hangs = runtime.fake.on(Method::StopContainer).times(1).hang();
        give_up(&runtime, Method::StopContainer, kill(30)).await;
        let _fails = runtime.fake.on(Method::StopContainer).times(1).fail(Code::Internal, "no");
        kill(600).await.expect_err("the runtime fails");
        assert_eq!(begun(), (1, 1));
        kill(600).await.expect("it stops");
        assert_eq!(begun(), (2, 2));
        let graces = graces(&runtime);
        assert!(graces[0] <= 30 && graces[1] <= graces[0] && graces[2] > 30, "{graces:?}");
    }

    #[tokio::test]
    async fn sidecar_of_a_container_that_failed_to_stop_is_kept_for_the_grace_period() {
        let runtime = ProbedRuntime::start().await;
        let (mut pod, mut observed) = runtime.pod(&serde_json::json!({}));
        let sidecar = serde_json::json!([{"name": "s", "restartPolicy": "Always"}]);
        let spec = std::sync::Arc::make_mut(&mut pod).spec.as_mut().expect("it has one");
        spec.init_containers = serde_json::from_value(sidecar).expect("containers");
        let mut sidecar = observed.containers[0].clone();
        (sidecar.id, sidecar.name) = (ContainerId::from("sidecar"), "s".to_owned());
        observed.containers.push(sidecar);
        let stopping = runtime.fake.on(Method::StopContainer).times(1);
        let _fails = stopping.fail(Code::Internal, "no");
        let killer = killer(&runtime, &Recorder::default());
        killer.kill_pod(Some(&pod), &observed, Some(1)).await.expect_err("the runtime fails");
        let stops = runtime.fake.calls_of(Method::StopContainer, "");
        let [main, sidecar] = &stops[..] else { panic!("both are stopped, each once") };
        let failed = main.ended.expect("it was answered").0;
        assert!(sidecar.at - failed > Duration::from_millis(900), "{sidecar:?} after {main:?}");
    }

    #[tokio::test]
    async fn abandoned_stop_is_forgotten_with_its_pod() {
        let runtime = ProbedRuntime::start().await;
        let (pod, observed) = runtime.pod(&serde_json::json!({}));
        let recorder = Recorder::default();
        let killer = killer(&runtime, &recorder);
        let _hangs = runtime.fake.on(Method::StopContainer).times(1).hang();
        let given_up = killer.kill_pod(Some(&pod), &observed, Some(30));
        give_up(&runtime, Method::StopContainer, given_up).await;
        assert_eq!(killer.begun.borrow().len(), 1);
        killer.forget(&PodUid::from("another"));
        assert_eq!(killer.begun.borrow().len(), 1);
        killer.forget(&observed.uid);
        assert_eq!(killer.begun.borrow().len(), 0);
    }

    /// A sandbox without a known stop may never have been stopped, and its network is still there.
    #[tokio::test]
    async fn sandbox_is_stopped_once_before_removal_and_again_after_a_failed_removal() {
        let runtime = ProbedRuntime::start().await;
        let (pod, observed) = runtime.pod(&serde_json::json!({}));
        let id = &observed.sandboxes[0].id;
        let killer = || killer(&runtime, &Recorder::default());
        let stops = || runtime.fake.calls_of(Method::StopPodSandbox, "").len();
        let first = killer();
        first.kill_pod(Some(&pod), &observed, Some(1)).await.expect("it stops");
        assert_eq!(stops(), 1);
        let _lift = runtime.fake.on(Method::RemovePodSandbox).times(1).fail(Code::Internal, "no");
        first.remove_sandbox(id).await.expect_err("the runtime fails");
        assert_eq!(stops(), 1, "it was stopped before");
        first.remove_sandbox(id).await.expect("it is removed");
        assert_eq!(stops(), 2, "the failed removal may have left a part");
        killer().remove_sandbox(id).await.expect("it is gone");
        assert_eq!(stops(), 3, "stopped by an agent that ran before, or not at all");
    }

    /// The hook is not cut at the end of the grace period: it has the time of the kill as well.
    #[tokio::test]
    async fn pre_stop_hook_outliving_the_grace_period_runs_until_its_container_stops() {
        let runtime = ProbedRuntime::start().await;
        let long = Duration::from_secs(600);
        runtime.fake.script("", Behaviour::stops(Duration::from_millis(50), 0));
        runtime.fake.script_exec("", "sleep", ExecAnswer::takes(long));
        let hook = serde_json::json!({"exec": {"command": ["sleep", "600"]}});
        let container = serde_json::json!({"lifecycle": {"preStop": hook}});
        let (pod, observed) = runtime.pod(&container);
        let recorder = Recorder::default();
        let killer = killer(&runtime, &recorder);
        // A hook of a stop that was given up is neither cut short, nor reported again, nor run
        // again.
        let given_up = killer.kill_pod(Some(&pod), &observed, Some(600));
        give_up(&runtime, Method::ExecSync, given_up).await;
        let killed = killer.kill_pod(Some(&pod), &observed, Some(1));
        tokio::time::timeout(long, killed).await.expect("it ends").expect("it stops");
        assert_eq!(runtime.fake.calls_of(Method::ExecSync, "").len(), 1);
        assert_eq!(kills_told(&recorder, &observed), 1);
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
