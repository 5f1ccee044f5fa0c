//! Names first processes of containers to the kernel source, where it cannot find them by itself.
//!
//! Effects. Input: a container that was started, or those that a pod's record shows running. The
//! pid is read right before it is used: an older one may belong to another process now.

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{RunState, VerboseStatus, adopted};
use pintle_agent_core::types::{ContainerId, ContainerKind, PodUid};
use pintle_api_types::pod;
use pintle_cri::v1;

use crate::execute::{Executor, SyncOrder};
use crate::start::ContainerStart;

impl Executor {
    /// Names the first process to the kernel source where that cannot find it by itself.
    pub(super) async fn follow(&self, start: &ContainerStart<'_>, id: &ContainerId) {
        if self.must_be_named(start.pod, Some(start.kind)) || self.starts_outside(start) {
            self.follow_one(&start.order.uid, id).await;
        }
    }

    /// The same for containers that ran before the pod was followed: those of an earlier agent.
    pub(super) async fn follow_running(&self, order: &SyncOrder, pod: &Pod, followed: &str) {
        let outside = adopted::outside(&order.observed, followed);
        for container in &order.observed.containers {
            let kind = pod::containers::find(pod::spec(pod), &container.name).map(|(kind, _)| kind);
            let named = self.must_be_named(pod, kind) || outside.contains(container.id.as_str());
            if container.state == RunState::Running && named {
                self.follow_one(&order.uid, &container.id).await;
            }
        }
    }

    async fn follow_one(&self, uid: &PodUid, id: &ContainerId) {
        let pid = first_process(&self.client, id.as_str()).await;
        // A container that has ended already is seen by the read after the sync.
        if pid != Some(0) {
            self.tracker.watch_init(uid, id, pid).await;
        }
    }

    /// The kernel source finds pid 1 of a namespace by itself.
    fn must_be_named(&self, pod: &Pod, kind: Option<ContainerKind>) -> bool {
        let spec = pod::spec(pod);
        self.tracker.needs_pids()
            || spec.share_process_namespace == Some(true)
            || spec.host_pid == Some(true)
            || kind == Some(ContainerKind::Ephemeral)
    }
}

/// Pid of a container's first process, from the runtime's verbose answer; 0 for one that has ended,
/// `None` when the runtime does not report it.
async fn first_process(client: &pintle_cri::Client, id: &str) -> Option<u32> {
    let request = v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: true };
    let answer = match client.container_status(request).await {
        Err(error) if error.is_not_found() => return Some(0),
        answer => answer.ok()?,
    };
    VerboseStatus::read(&answer.info).pid
}
