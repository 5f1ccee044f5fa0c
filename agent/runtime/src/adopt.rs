//! Adopted pods in another cgroup than this agent would have made: the place of the cgroup,
//! operations on it, and the log of the differences.
//!
//! Effects of `observed::adopted`, which decides. Input: a sync's order; its record has the runtime
//! specs of the adopted containers. A pod that lives elsewhere is followed, resized and in the end
//! removed there. A cgroup is removed elsewhere only if it has the pod's uid in its name. Bounds:
//! one record per pod of the logged differences.

use std::path::PathBuf;
use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use pintle_agent_core::observed::{CgroupHome, adopted};
use pintle_agent_core::sync::plan::Action;
use pintle_agent_core::types::with_causes;
use pintle_agent_core::worker::Failure;
use pintle_agent_host::cgroup::{CgroupError, Cgroups};

use crate::execute::{Executor, SyncOrder};
use crate::start::ContainerStart;

/// Timeline entry about the differences.
const ADOPTED: &str = "AdoptedAsItIs";

/// True if this sync gives the pod a new sandbox, and with it the usual cgroup.
pub(super) fn makes_sandbox(order: &SyncOrder) -> bool {
    order.actions.iter().any(|action| matches!(action, Action::CreateSandbox { .. }))
}

impl Executor {
    /// The pod's cgroup during this sync.
    fn home(&self, order: &SyncOrder, pod: &Pod) -> CgroupHome {
        match makes_sandbox(order) {
            true => CgroupHome::Usual,
            false => adopted::cgroup_home(&self.node.cgroup, pod, &order.observed),
        }
    }

    /// The pod's own cgroup in another place, with its directory, when it is really there.
    pub(super) async fn elsewhere(
        &self,
        order: &SyncOrder,
        pod: &Pod,
    ) -> Option<(String, PathBuf)> {
        let CgroupHome::Elsewhere(path) = self.home(order, pod) else { return None };
        let (cgroups, name) = Cgroups::around(&path).ok()?;
        let dir =
            cgroups.on_disk(&name, |tree, name| tree.dir(name, "memory").filter(|d| d.is_dir()));
        Some((path, dir.await.ok()??))
    }

    /// True if no container of the pod will be in the usual cgroup.
    pub(super) fn stays_together(&self, order: &SyncOrder, pod: &Pod) -> bool {
        let starts = |action: &Action| matches!(action, Action::StartContainer { .. });
        let home = self.home(order, pod);
        adopted::parent_of_new(&self.node.cgroup, &home).is_some()
            || !order.actions.iter().any(starts)
    }

    /// The cgroup of a new container when its sandbox lives elsewhere.
    pub(super) fn parent_of_new(&self, start: &ContainerStart<'_>) -> Option<String> {
        let home = self.home(start.order, start.pod);
        adopted::parent_of_new(&self.node.cgroup, &home)
    }

    /// True if a new container is not below the cgroup that is followed, which is the sandbox's.
    pub(super) fn starts_outside(&self, start: &ContainerStart<'_>) -> bool {
        let home = self.home(start.order, start.pod);
        matches!(home, CgroupHome::Elsewhere(_)) && self.parent_of_new(start).is_none()
    }

    /// The pod's own cgroup wherever it is, and the client that operates on it; `None` when it has
    /// none.
    pub(super) fn own_cgroup(
        &self,
        order: &SyncOrder,
        pod: &Pod,
    ) -> Result<Option<(Rc<Cgroups>, String)>, CgroupError> {
        let Some(cgroups) = &self.cgroups else { return Ok(None) };
        Ok(match self.home(order, pod) {
            CgroupHome::Usual => Some((Rc::clone(cgroups), self.cgroup_name(pod))),
            CgroupHome::Elsewhere(path) => {
                let (cgroups, name) = Cgroups::around(&path)?;
                Some((Rc::new(cgroups), name))
            }
            CgroupHome::Shared(_) => None,
        })
    }

    /// Removes the pod's cgroups elsewhere; no process of it runs any more.
    pub(super) async fn remove_elsewhere(&self, order: &SyncOrder) -> Result<(), Failure> {
        let failed = |error: CgroupError| Failure::new("FailedRemoveCgroup", with_causes(&error));
        for path in adopted::own_elsewhere(&self.node.cgroup, &order.observed) {
            let (cgroups, name) = Cgroups::around(&path).map_err(failed)?;
            cgroups.remove_pod(&name).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Logs the differences once for each sandbox that was there before this agent.
    pub(super) fn log_differences(&self, order: &SyncOrder, pod: &Pod) {
        let observed = &order.observed;
        let Some(sandbox) = observed.newest_sandbox().filter(|_| !makes_sandbox(order)) else {
            return;
        };
        let differences = adopted::differences(&self.node.cgroup, pod, observed);
        if differences.is_empty()
            || self
                .foreign
                .differing
                .borrow_mut()
                .insert(order.uid.clone(), sandbox.id.clone())
                .as_ref()
                == Some(&sandbox.id)
        {
            return;
        }
        for text in differences {
            tracing::warn!(pod = %order.uid, name = observed.name, "it runs on as it is: {text}");
            self.recorder.trouble(&order.uid, ADOPTED, None, &text);
        }
    }

    /// Nothing is left of the pod.
    pub(super) fn forget_differences(&self, order: &SyncOrder) {
        self.foreign.differing.borrow_mut().remove(&order.uid);
    }
}
