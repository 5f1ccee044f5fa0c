//! Carries out a resize: the pod's cgroup and its running containers, step by step.
//!
//! Effects of `Action::ResizePod`. The order of the writes is `resize::steps`' alone. The first
//! failure ends the action; completed writes stay, and the next sync continues from there, because
//! every write may be repeated.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go doPodResizeAction

use std::rc::Rc;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::cgroup::CgroupLimits;
use pintle_agent_core::cgroup::formulas;
use pintle_agent_core::request;
use pintle_agent_core::resize::steps;
use pintle_agent_core::resize::steps::{PodFigures, ResizeOrder, ResizeStep, Resource};
use pintle_agent_core::resize::{ContainerUpdate, Figures};
use pintle_agent_core::types::with_causes;
use pintle_agent_core::worker::Failure;
use pintle_agent_host::cgroup::Cgroups;
use pintle_api_types::pod;
use pintle_cri::{Code, v1};

use crate::execute::{Executor, SyncOrder};

/// Reason of a failed resize.
// k8s: pkg/kubelet/container/sync_result.go ErrResizePodInPlace
const REASON: &str = "ResizePodInPlaceError";

fn fail(text: impl Into<String>) -> Failure {
    Failure::new(REASON, text)
}

/// The pod's cgroup on the way from one set of numbers to another.
struct PodCgroup {
    cgroups: Rc<Cgroups>,
    name: String,
    limits: CgroupLimits,
    now: PodFigures,
    then: PodFigures,
}

impl Executor {
    /// Brings running containers and the pod's cgroup to the allocated resources.
    pub(super) async fn resize(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        resize: &ResizeOrder<'_>,
    ) -> Result<(), Failure> {
        let mut of_pod = self.pod_cgroup(order, pod).await?;
        self.refuse_used(pod, resize.updates, of_pod.as_ref()).await?;
        let (now, then) = of_pod.as_ref().map(|p| (p.now, p.then)).unwrap_or_default();
        let mut have: Vec<Figures> = resize.updates.iter().map(|update| update.from).collect();
        let _anew = self.reader.reinspect_after(&order.uid);
        for step in steps::steps(resize, &now, &then) {
            match (step, of_pod.as_mut()) {
                (ResizeStep::Container(index, resource), _) => {
                    let update = &resize.updates[index];
                    advance(&mut have[index], &update.to, resource);
                    self.update_container(pod, update, &have[index]).await?;
                }
                (step, Some(of_pod)) => self.update_pod(order, pod, of_pod, step).await?,
                (_, None) => {}
            }
        }
        self.count_in_class(&order.uid, Some(pod)).await;
        Ok(())
    }

    async fn pod_cgroup(&self, order: &SyncOrder, pod: &Pod) -> Result<Option<PodCgroup>, Failure> {
        let own = self.own_cgroup(order, pod).map_err(|error| fail(with_causes(&error)))?;
        let Some((cgroups, name)) = own else { return Ok(None) };
        let limits = self.cgroup_limits(pod);
        let now = cgroups.on_disk(&name, |tree, name| tree.figures(name)).await;
        let now = now.flatten().map_err(|error| fail(with_causes(&error)))?;
        // A limit that the pod has not is left as it is.
        let then = PodFigures {
            memory_limit: limits.memory_limit.unwrap_or(now.memory_limit),
            cpu_quota_us: limits.cpu_quota_us.map_or(now.cpu_quota_us, |quota| {
                cgroups.rounded_quota(quota, limits.cpu_period_us.unwrap_or_default())
            }),
            cpu_shares: limits.cpu_shares.map_or(now.cpu_shares, |s| cgroups.rounded_shares(s)),
        };
        Ok(Some(PodCgroup { cgroups, name, limits, now, then }))
    }

    /// Refuses a limit below the usage, because the kernel would kill processes.
    // k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go validateMemoryResizeAction
    async fn refuse_used(
        &self,
        pod: &Pod,
        updates: &[ContainerUpdate],
        of_pod: Option<&PodCgroup>,
    ) -> Result<(), Failure> {
        let mut refused = Vec::new();
        let described = pod::described(pod);
        let unread = || fail(format!("unable to read memory usage for pod {described:?}"));
        if let Some(of_pod) = of_pod.filter(|p| p.then.memory_limit < p.now.memory_limit) {
            let read = of_pod.cgroups.on_disk(&of_pod.name, |tree, name| tree.memory_usage(name));
            let usage = read.await.flatten().map_err(|_| unread())?;
            let limit = of_pod.then.memory_limit;
            if usage >= limit {
                refused.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({usage})"
                ));
            }
        }
        for (update, limit) in steps::shrinking(updates) {
            let name = &update.name;
            let request = v1::ContainerStatsRequest { container_id: update.id.as_str().to_owned() };
            let stats = self.client.container_stats(request).await.map_err(|_| unread())?.stats;
            let usage = stats.and_then(|stats| stats.memory?.usage_bytes).map(|usage| usage.value);
            match usage.map(|usage| i64::try_from(usage).unwrap_or(i64::MAX)) {
                None => refused.push(format!("missing container {name:?} memory usage")),
                Some(usage) if usage >= limit => refused.push(format!(
                    "attempting to set container {name:?} memory limit ({limit}) below current \
                     usage ({usage})"
                )),
                Some(_) => {}
            }
        }
        match refused.as_slice() {
            [] => Ok(()),
            [one] => Err(fail(format!("cannot decrease memory limits: {one}"))),
            all => Err(fail(format!("cannot decrease memory limits: [{}]", all.join(", ")))),
        }
    }

    async fn update_container(
        &self,
        pod: &Pod,
        update: &ContainerUpdate,
        figures: &Figures,
    ) -> Result<(), Failure> {
        let found = pod::containers::find(pod::spec(pod), &update.name);
        let Some((_, container)) = found else { return Ok(()) };
        let mut container = container.clone();
        container.resources = Some(figures.requirements());
        let linux = request::container_resources(&self.node, pod, &container, false);
        let request = v1::UpdateContainerResourcesRequest {
            container_id: update.id.as_str().to_owned(),
            linux: Some(linux),
            ..Default::default()
        };
        let answer = self.client.update_container_resources(request).await;
        answer.map(drop).map_err(|error| fail(error.rpc_text()))
    }

    /// The runtime comes first, because it may refuse; the kernel second.
    async fn update_pod(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        of_pod: &mut PodCgroup,
        step: ResizeStep,
    ) -> Result<(), Failure> {
        let limits = &of_pod.limits;
        let (before, mut after) = (of_pod.now, of_pod.now);
        let change = match step {
            ResizeStep::PodMemory => {
                after.memory_limit = of_pod.then.memory_limit;
                CgroupLimits { memory_limit: limits.memory_limit, ..CgroupLimits::default() }
            }
            ResizeStep::PodQuota => {
                after.cpu_quota_us = of_pod.then.cpu_quota_us;
                CgroupLimits {
                    cpu_period_us: limits.cpu_period_us,
                    cpu_quota_us: limits.cpu_quota_us,
                    ..CgroupLimits::default()
                }
            }
            _ => {
                after.cpu_shares = of_pod.then.cpu_shares;
                CgroupLimits { cpu_shares: limits.cpu_shares, ..CgroupLimits::default() }
            }
        };
        self.update_sandbox_resources(order, pod, &after).await?;
        let begun = Instant::now();
        let updated = of_pod.cgroups.update_pod(&of_pod.name, &change).await;
        self.metrics.cgroup("update", begun.elapsed());
        if let Err(error) = updated {
            // Best effort: the runtime returns to the resources in force.
            let _ = self.update_sandbox_resources(order, pod, &before).await;
            return Err(fail(with_causes(&error)));
        }
        of_pod.now = after;
        Ok(())
    }

    // k8s: pkg/kubelet/kuberuntime/kuberuntime_container.go updatePodSandboxResources
    async fn update_sandbox_resources(
        &self,
        order: &SyncOrder,
        pod: &Pod,
        figures: &PodFigures,
    ) -> Result<(), Failure> {
        let Some(sandbox) = order.observed.newest_sandbox() else { return Ok(()) };
        let overhead = request::overhead_resources(&self.node, pod);
        let has_overhead = pod::spec(pod).overhead.is_some();
        let less = |value: i64, overhead: i64| match has_overhead && value > 0 {
            true => value.saturating_sub(overhead),
            false => value,
        };
        let shares = i64::try_from(figures.cpu_shares).unwrap_or(i64::MAX);
        let resources = v1::LinuxContainerResources {
            cpu_period: self.node.limits.cpu_period_us,
            cpu_quota: less(figures.cpu_quota_us, overhead.cpu_quota),
            cpu_shares: less(shares, overhead.cpu_shares).max(formulas::SHARES_MIN.cast_signed()),
            memory_limit_in_bytes: less(figures.cri_memory_limit(), overhead.memory_limit_in_bytes),
            ..Default::default()
        };
        let request = v1::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox.id.as_str().to_owned(),
            overhead: Some(overhead),
            resources: Some(resources),
        };
        match self.client.update_pod_sandbox_resources(request).await {
            Ok(_) => Ok(()),
            // containerd 2.2 answers "not implemented" with the code Unknown; this can be removed
            // with it.
            Err(error)
                if error.code == Code::Unimplemented
                    || error.code == Code::Unknown && error.message.contains("not implemented") =>
            {
                Ok(())
            }
            Err(error) => Err(fail(format!(
                "failed to notify runtime for UpdatePodSandboxResources; resize rejected: {}",
                error.rpc_text()
            ))),
        }
    }
}

/// Takes over one resource's numbers.
fn advance(have: &mut Figures, to: &Figures, resource: Resource) {
    match resource {
        Resource::Memory => {
            (have.memory_limit, have.memory_request) = (to.memory_limit, to.memory_request);
        }
        Resource::Cpu => (have.cpu_limit, have.cpu_request) = (to.cpu_limit, to.cpu_request),
    }
}
