//! Reads pods from the runtime: the only place that turns CRI answers into observed records.
//!
//! Two questions: `list` (every pod, ids and states only) and `read` (one pod, in full). What
//! cannot change any more is not asked for again: a container that has exited is read once and its
//! record kept for as long as the runtime lists it, so a recorded exit code never changes later; a
//! running one is asked again only when its listed state changed. Bounds: one list and one read
//! per pod under way (the driver sees to it), one cached record per pod.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go GetPodStatus

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pintle_agent_core::labels;
use pintle_agent_core::observed::read_back;
use pintle_agent_core::observed::{
    ObservedContainer, ObservedPod, ObservedSandbox, RunState, digest_code,
};
use pintle_agent_core::types::{ContainerId, PodUid, SandboxId, Version};
use pintle_agent_core::worker::ListedPod;
use pintle_cri::{Client, Error, v1};

use super::listing::Listing;
use super::termination_message;

/// Reads pods through one CRI client.
#[derive(Clone, Debug)]
pub struct Reader {
    client: Client,
    listing: Listing,
    cache: Rc<RefCell<HashMap<PodUid, Rc<ObservedPod>>>>,
    /// Counts the changes of resources, of any pod.
    epoch: Rc<Cell<u64>>,
}

/// Has a pod's running containers asked for in full once it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Reinspect {
    reader: Reader,
    uid: PodUid,
}

impl Drop for Reinspect {
    fn drop(&mut self) {
        self.reader.reinspect(&self.uid);
    }
}

/// Running containers are asked for in full at the next read.
fn forget_running(pod: &mut ObservedPod) {
    pod.containers.retain(|container| container.state != RunState::Running);
}

impl Reader {
    /// A reader with nothing cached.
    pub fn new(client: Client) -> Self {
        Self {
            listing: Listing::new(client.clone()),
            client,
            cache: Rc::default(),
            epoch: Rc::default(),
        }
    }

    /// Every pod that the runtime knows, with the digest by which a change shows.
    pub async fn list(&self) -> Result<Vec<ListedPod>, Error> {
        let (sandboxes, containers) = tokio::try_join!(
            self.client.list_pod_sandbox(v1::ListPodSandboxRequest { filter: None }),
            self.client.list_containers(v1::ListContainersRequest { filter: None }),
        )?;
        let mut pods: BTreeMap<PodUid, ListedPod> = BTreeMap::new();
        let mut note = |labels: &BTreeMap<String, String>, id: String, state: u8| {
            let Some(who) = labels::identity(labels) else { return };
            let pod = pods.entry(who.uid.clone()).or_insert_with(|| ListedPod {
                uid: who.uid,
                namespace: who.namespace,
                name: who.name,
                digest: Vec::new(),
            });
            pod.digest.push((id, state));
        };
        for sandbox in sandboxes.items {
            let not_ready = sandbox.state() != v1::PodSandboxState::SandboxReady;
            note(&sandbox.labels, sandbox.id, u8::from(not_ready));
        }
        for container in containers.containers {
            let state = digest_code(read_back::run_state(container.state()));
            note(&container.labels, container.id, state);
        }
        let mut listed: Vec<_> = pods.into_values().collect();
        listed.iter_mut().for_each(|pod| pod.digest.sort_unstable());
        let mut cache = self.cache.borrow_mut();
        self.listing.counted(listed.len());
        cache.retain(|uid, _| listed.binary_search_by(|p| p.uid.cmp(uid)).is_ok());
        Ok(listed)
    }

    /// One pod in full; a pod of which the runtime has nothing is an empty record.
    pub async fn read(&self, uid: &PodUid, names: (&str, &str)) -> Result<ObservedPod, Error> {
        let epoch = self.epoch.get();
        let lists = self.listing.of(uid).await?;
        let cached = self.cache.borrow().get(uid).cloned();
        let mut pod = ObservedPod::empty(uid.clone(), names.0, names.1);
        for listed in lists.sandboxes {
            pod.sandboxes.extend(self.sandbox(listed, cached.as_deref()).await?);
        }
        for listed in lists.containers {
            pod.containers.extend(self.container(uid, listed, cached.as_deref()).await?);
        }
        pod.sort();
        pod.version = Version(cached.map_or(1, |c| c.version.0 + 1));
        let mut kept = pod.clone();
        if self.epoch.get() != epoch {
            forget_running(&mut kept);
        }
        self.cache.borrow_mut().insert(uid.clone(), Rc::new(kept));
        Ok(pod)
    }

    /// Has the pod's running containers asked for in full at the next read after this guard is
    /// gone, whatever ends it: their resources change meanwhile, which no state tells.
    pub fn reinspect_after(&self, uid: &PodUid) -> Reinspect {
        Reinspect { reader: self.clone(), uid: uid.clone() }
    }

    fn reinspect(&self, uid: &PodUid) {
        // A read under way has numbers of before: it must not keep them.
        self.epoch.set(self.epoch.get() + 1);
        let mut cache = self.cache.borrow_mut();
        if let Some(known) = cache.get_mut(uid) {
            forget_running(Rc::make_mut(known));
        }
    }

    /// What a container said that ran when it was last read and ended with this code since then.
    pub async fn termination_message(&self, id: &ContainerId, code: i32) -> Option<String> {
        let (uid, container) = {
            let cache = self.cache.borrow();
            let mut all = cache.iter().flat_map(|(uid, pod)| {
                pod.containers.iter().map(move |container| (uid, container))
            });
            let found = all.find(|(_, c)| c.id == *id && c.state == RunState::Running)?;
            (found.0.clone(), found.1.clone())
        };
        termination_message::at_end(&uid, &container, code).await
    }

    async fn sandbox(
        &self,
        listed: v1::PodSandbox,
        cached: Option<&ObservedPod>,
    ) -> Result<Option<ObservedSandbox>, Error> {
        let ready = listed.state() == v1::PodSandboxState::SandboxReady;
        let mut known = cached.into_iter().flat_map(|c| &c.sandboxes);
        if let Some(same) = known.find(|s| s.id.as_str() == listed.id) {
            if same.ready == ready {
                return Ok(Some(same.clone()));
            }
            if !ready {
                // The addresses of a dead sandbox stay in the status; the runtime has lost them.
                return Ok(Some(ObservedSandbox { ready, ..same.clone() }));
            }
        }
        let request =
            v1::PodSandboxStatusRequest { pod_sandbox_id: listed.id.clone(), verbose: false };
        match self.client.pod_sandbox_status(request).await {
            Ok(answer) => {
                Ok(answer.status.as_ref().and_then(read_back::sandbox).map(|(_, sandbox)| sandbox))
            }
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn container(
        &self,
        uid: &PodUid,
        listed: v1::Container,
        cached: Option<&ObservedPod>,
    ) -> Result<Option<ObservedContainer>, Error> {
        let state = read_back::run_state(listed.state());
        let mut known = cached.into_iter().flat_map(|c| &c.containers);
        let same = known.find(|c| c.id.as_str() == listed.id);
        if let Some(same) = same.filter(|c| c.state == state || c.state == RunState::Exited) {
            return Ok(Some(same.clone()));
        }
        let request =
            v1::ContainerStatusRequest { container_id: listed.id.clone(), verbose: false };
        let status = match self.client.container_status(request).await {
            Ok(answer) => answer.status,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let sandbox = SandboxId::from(listed.pod_sandbox_id);
        let record = status.as_ref().and_then(|status| read_back::container(status, &sandbox));
        let Some((_, mut container)) = record else { return Ok(None) };
        if container.state == RunState::Exited {
            termination_message::append(uid, &mut container).await;
        }
        Ok(Some(container))
    }
}
