//! Reads pods from the runtime: the only place that turns CRI answers into observed records.
//!
//! Two requests: `list` (every pod, ids and states only) and `read` (one pod, in full). Final state
//! is not read again: a container that has exited is read once and its record kept for as long as
//! the runtime lists it, so a recorded exit code never changes later; a running one is read again
//! only when its listed state changed. For containers and sandboxes from before this agent the
//! runtime spec is read once (`verbose`), which costs a runtime several times as much and never
//! changes; for the agent's own it is not. Bounds: one list and one read per pod under way (the
//! driver sees to it), one cached record per pod, one spec per sandbox and container.
// k8s: pkg/kubelet/kuberuntime/kuberuntime_manager.go GetPodStatus

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use pintle_agent_core::labels;
use pintle_agent_core::observed::read_back;
use pintle_agent_core::observed::{
    ObservedContainer, ObservedPod, ObservedSandbox, RunState, SpecFacts, VerboseStatus,
    digest_code, digest_of,
};
use pintle_agent_core::types::{ContainerId, PodUid, SandboxId, Version};
use pintle_agent_core::worker::ListedPod;
use pintle_cri::{Client, Error, v1};

use super::everything::Everything;
use super::listing::Listing;
use super::termination_message;

/// Reads pods through one CRI client.
#[derive(Clone, Debug)]
pub struct PodReader {
    client: Client,
    everything: Everything,
    listing: Listing,
    cache: Rc<RefCell<HashMap<PodUid, Rc<ObservedPod>>>>,
    /// Counts the changes of resources, of any pod.
    epoch: Rc<Cell<u64>>,
    /// Runtime specs by the id for which they were requested; `None` for objects of this agent and
    /// for those without a reported spec.
    specs: Rc<RefCell<HashMap<String, Option<SpecFacts>>>>,
}

/// Has a pod's running containers read in full once it is dropped.
#[derive(Debug)]
#[must_use]
pub struct Reinspect {
    reader: PodReader,
    uid: PodUid,
}

impl Drop for Reinspect {
    fn drop(&mut self) {
        self.reader.reinspect(&self.uid);
    }
}

/// A runtime that cannot return the spec of a container may still know its state: containerd asks
/// its shim for the one and not for the other.
async fn with_or_without<T, F>(verbose: bool, ask: impl Fn(bool) -> F) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    match ask(verbose).await {
        Err(error) if verbose && !error.is_not_found() => ask(false).await,
        answer => answer,
    }
}

/// Running containers are read in full at the next read.
fn forget_running(pod: &mut ObservedPod) {
    pod.containers.retain(|container| container.state != RunState::Running);
}

impl PodReader {
    /// A reader with nothing cached.
    pub fn new(client: Client) -> Self {
        Self {
            everything: Everything::new(client.clone()),
            listing: Listing::new(client.clone()),
            client,
            cache: Rc::default(),
            epoch: Rc::default(),
            specs: Rc::default(),
        }
    }

    /// Sets the agent's directory. It has the pods' directories, by which pods are found when the
    /// runtime cannot list them all.
    pub fn below(mut self, root: &Path) -> Self {
        self.everything.below(root);
        self
    }

    /// This agent made that sandbox or container, so its spec is known.
    pub fn made(&self, id: &str) {
        self.specs.borrow_mut().insert(id.to_owned(), None);
    }

    /// Every pod that the runtime knows, with the digest by which a change shows.
    pub async fn list(&self) -> Result<Vec<ListedPod>, Error> {
        let known = || self.cache.borrow().keys().cloned().collect();
        let found = self.everything.list(known).await?;
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
        for sandbox in found.lists.sandboxes {
            let not_ready = sandbox.state() != v1::PodSandboxState::SandboxReady;
            note(&sandbox.labels, sandbox.id, u8::from(not_ready));
        }
        for container in found.lists.containers {
            let state = digest_code(read_back::run_state(container.state()));
            note(&container.labels, container.id, state);
        }
        for known in found.unlisted.iter().filter_map(|uid| self.as_last_read(uid)) {
            pods.insert(known.uid.clone(), known);
        }
        let mut listed: Vec<_> = pods.into_values().collect();
        listed.iter_mut().for_each(|pod| pod.digest.sort_unstable());
        let there: HashSet<&str> =
            listed.iter().flat_map(|pod| pod.digest.iter().map(|(id, _)| id.as_str())).collect();
        self.specs.borrow_mut().retain(|id, _| there.contains(id.as_str()));
        let mut cache = self.cache.borrow_mut();
        self.listing.counted(listed.len());
        cache.retain(|uid, _| listed.binary_search_by(|p| p.uid.cmp(uid)).is_ok());
        Ok(listed)
    }

    fn as_last_read(&self, uid: &PodUid) -> Option<ListedPod> {
        let cache = self.cache.borrow();
        let pod = cache.get(uid)?;
        let (namespace, name) = (pod.namespace.clone(), pod.name.clone());
        Some(ListedPod { uid: uid.clone(), namespace, name, digest: digest_of(pod) })
    }

    /// One pod in full; a pod without any record in the runtime is an empty record.
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
        pod.specs = self.specs_of(&pod);
        pod.version = Version(cached.map_or(1, |c| c.version.0 + 1));
        let mut kept = pod.clone();
        if self.epoch.get() != epoch {
            forget_running(&mut kept);
        }
        self.cache.borrow_mut().insert(uid.clone(), Rc::new(kept));
        Ok(pod)
    }

    /// Has the pod's running containers inspected in full at the next read after this guard is
    /// dropped, because their resources change meanwhile, which no state shows.
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

    /// The container with this id, and its pod, if it ran at the last read.
    pub fn running(&self, id: &ContainerId) -> Option<(PodUid, ObservedContainer)> {
        let cache = self.cache.borrow();
        let mut all = cache
            .iter()
            .flat_map(|(uid, pod)| pod.containers.iter().map(move |container| (uid, container)));
        let found = all.find(|(_, c)| c.id == *id && c.state == RunState::Running)?;
        Some((found.0.clone(), found.1.clone()))
    }

    /// Keeps the spec from the first verbose answer; other answers have none.
    fn learn(&self, id: &str, info: &BTreeMap<String, String>) {
        let mut specs = self.specs.borrow_mut();
        if !specs.contains_key(id) {
            specs.insert(id.to_owned(), VerboseStatus::read(info).spec);
        }
    }

    /// The known specs of the pod's sandboxes and containers.
    fn specs_of(&self, pod: &ObservedPod) -> BTreeMap<String, SpecFacts> {
        let known = self.specs.borrow();
        let sandboxes = pod.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
        let ids = sandboxes.chain(pod.containers.iter().map(|container| container.id.as_str()));
        ids.filter_map(|id| Some((id.to_owned(), known.get(id)?.clone()?))).collect()
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
        let id = listed.id;
        let ask = async |verbose| {
            let request = v1::PodSandboxStatusRequest { pod_sandbox_id: id.clone(), verbose };
            self.client.pod_sandbox_status(request).await
        };
        let verbose = !self.specs.borrow().contains_key(&id);
        match with_or_without(verbose, ask).await {
            Ok(answer) => {
                self.learn(&id, &answer.info);
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
        let id = listed.id;
        let ask = async |verbose| {
            let request = v1::ContainerStatusRequest { container_id: id.clone(), verbose };
            self.client.container_status(request).await
        };
        let is_new = !self.specs.borrow().contains_key(&id);
        let status = match with_or_without(is_new && state != RunState::Exited, ask).await {
            Ok(answer) => {
                self.learn(&id, &answer.info);
                answer.status
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use pintle_cri::fake::FakeRuntime;
    use pintle_cri::{Code, Deadlines, Method};

    const PARENT: &str = "/old/kubepods/besteffort/podu";

    fn sandbox_config(attempt: u32) -> v1::PodSandboxConfig {
        let labels = [
            (labels::POD_NAME, "p"),
            (labels::POD_NAMESPACE, "ns"),
            (labels::POD_UID, "u"),
            (labels::CONTAINER_NAME, "c"),
        ];
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "p".to_owned(),
                namespace: "ns".to_owned(),
                uid: "u".to_owned(),
                attempt,
            }),
            labels: labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: PARENT.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    /// Ids of a new sandbox and of a container that runs in it.
    async fn run(client: &Client, attempt: u32) -> (String, String) {
        let config = Some(sandbox_config(attempt));
        let request = v1::RunPodSandboxRequest { config: config.clone(), ..Default::default() };
        let sandbox = client.run_pod_sandbox(request).await.expect("a sandbox").pod_sandbox_id;
        let image = Some(v1::ImageSpec { image: "i".to_owned(), ..Default::default() });
        let pull = v1::PullImageRequest { image: image.clone(), ..Default::default() };
        client.pull_image(pull).await.expect("an image");
        let metadata = Some(v1::ContainerMetadata { name: "c".to_owned(), attempt });
        let labels = config.as_ref().expect("made above").labels.clone();
        let container = v1::ContainerConfig { metadata, image, labels, ..Default::default() };
        let create = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(container),
            sandbox_config: config,
        };
        let container = client.create_container(create).await.expect("a container").container_id;
        let start = v1::StartContainerRequest { container_id: container.clone() };
        client.start_container(start).await.expect("started");
        (sandbox, container)
    }

    #[tokio::test]
    async fn pod_is_read_without_specs_when_its_verbose_status_fails() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        run(&client, 0).await;
        for method in [Method::PodSandboxStatus, Method::ContainerStatus] {
            runtime.on(method).times(1).fail(Code::Internal, "the shim does not answer");
        }
        let reader = PodReader::new(client);
        let pod = reader.read(&PodUid::from("u"), ("ns", "p")).await.expect("it answers");
        assert_eq!((pod.sandboxes.len(), pod.containers.len(), pod.specs.len()), (1, 1, 0));
    }

    #[tokio::test]
    async fn spec_is_read_once_for_preexisting_containers_and_never_for_created_ones() {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        let (sandbox, container) = run(&client, 0).await;
        let reader = PodReader::new(client.clone());
        let uid = PodUid::from("u");
        let read = async || reader.read(&uid, ("ns", "p")).await.expect("it answers");
        let at = |id: &str| Some(format!("{PARENT}/{id}"));
        let cgroups = |pod: &ObservedPod| -> BTreeMap<String, Option<String>> {
            pod.specs.iter().map(|(id, facts)| (id.clone(), facts.cgroup.clone())).collect()
        };
        let first = read().await;
        let expected = [(&sandbox, at(&sandbox)), (&container, at(&container))];
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(id, path)| (id.clone(), path)).collect();
        assert_eq!(cgroups(&first), expected);
        // Its state changes, its resources do: it is read again, and the spec is not.
        drop(reader.reinspect_after(&uid));
        reader.list().await.expect("it answers");
        runtime.clear_calls();
        assert_eq!(cgroups(&read().await), expected, "kept when the rest is read again");
        let (own_sandbox, own_container) = run(&client, 1).await;
        reader.made(&own_sandbox);
        reader.made(&own_container);
        let both = read().await;
        assert_eq!((both.sandboxes.len(), both.containers.len()), (2, 2));
        assert_eq!(cgroups(&both), expected, "our own cgroups are not read");
        let containers = runtime.calls_of(Method::ContainerStatus, "").into_iter();
        let containers = containers.filter_map(|c| c.request::<v1::ContainerStatusRequest>());
        let sandboxes = runtime.calls_of(Method::PodSandboxStatus, "").into_iter();
        let sandboxes = sandboxes.filter_map(|c| c.request::<v1::PodSandboxStatusRequest>());
        let verbose: Vec<_> =
            containers.map(|r| r.verbose).chain(sandboxes.map(|r| r.verbose)).collect();
        assert_eq!(verbose, [false; 3], "the first container again, then ours");
    }
}
