//! All sandboxes and containers that the runtime has: in one list, or by pods where that is longer
//! than an answer may be.
//!
//! Lists carry every label and annotation, and answers end at 16 MiB: a few pods with much of both
//! must not make the list of all pods fail. So sandboxes are listed by the uid of each pod that is
//! known: from the last list, from its containers, from its directory, which is there before its
//! first sandbox. Containers are listed by sandbox, and if that is still too long, by state as
//! well. A pod with a list that is still too long is named and left as it was. Only a sandbox
//! without containers of an unknown pod stays hidden until the list is short again. Bounds: one
//! call after the other; the log names the longest pods when they change.
// k8s: pkg/kubelet/pleg/generic.go Relist, which fails there

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pintle_agent_core::labels;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::layout::pods_dir;
use pintle_cri::{Client, Error, v1};
use pintle_daemon::blocking::{self, JobPlace};

use super::listing::PodLists;

/// Pods that the log names.
const NAMED_MAX: usize = 5;
/// Least label and annotation bytes of a pod that is named.
const NAMED_BYTES_MIN: usize = 64 * 1024;

/// Lists everything; clones report a list that is too long once.
#[derive(Clone, Debug)]
pub(super) struct Everything {
    client: Client,
    pods_dir: Option<Rc<Path>>,
    said: Rc<RefCell<Option<String>>>,
}

/// All sandboxes and containers of the runtime.
#[derive(Debug, Default)]
pub(super) struct RuntimeListing {
    pub(super) lists: PodLists,
    /// Pods with a list of their own that is too long.
    pub(super) unlisted: BTreeSet<PodUid>,
}

impl Everything {
    pub(super) fn new(client: Client) -> Self {
        Self { client, pods_dir: None, said: Rc::default() }
    }

    /// Pods have their directories below that of the agent.
    pub(super) fn below(&mut self, root: &Path) {
        self.pods_dir = Some(pods_dir(root).into());
    }

    /// All pods; `known` are the pods that the caller knows.
    pub(super) async fn list(
        &self,
        known: impl FnOnce() -> BTreeSet<PodUid>,
    ) -> Result<RuntimeListing, Error> {
        let (sandboxes, containers) = tokio::try_join!(
            async { unless_too_long(list_sandboxes(&self.client, None).await) },
            async { unless_too_long(list_containers(&self.client, None).await) },
        )?;
        let (sandboxes, containers) = match (sandboxes, containers) {
            (Some(sandboxes), Some(containers)) => {
                if self.said.take().is_some() {
                    tracing::info!("the runtime's list of everything fits into an answer again");
                }
                return Ok(RuntimeListing {
                    lists: PodLists { sandboxes, containers },
                    ..RuntimeListing::default()
                });
            }
            parts => parts,
        };
        let mut found = RuntimeListing::default();
        found.lists.sandboxes = match sandboxes {
            Some(all) => all,
            None => {
                let of_containers = containers.iter().flatten();
                let mut uids = known();
                uids.extend(of_containers.filter_map(|c| labels::pod_uid(&c.labels)));
                uids.extend(self.with_directory().await);
                self.sandboxes_of(uids, &mut found.unlisted).await?
            }
        };
        found.lists.containers = match containers {
            Some(all) => all,
            None => self.containers_in(&found.lists.sandboxes, &mut found.unlisted).await?,
        };
        self.log_longest(&found);
        Ok(found)
    }

    async fn sandboxes_of(
        &self,
        uids: BTreeSet<PodUid>,
        unlisted: &mut BTreeSet<PodUid>,
    ) -> Result<Vec<v1::PodSandbox>, Error> {
        let mut all = Vec::new();
        for uid in uids {
            match unless_too_long(sandboxes(&self.client, sandboxes_with(&uid)).await)? {
                Some(found) => all.extend(found),
                None => _ = unlisted.insert(uid),
            }
        }
        Ok(all)
    }

    async fn containers_in(
        &self,
        sandboxes: &[v1::PodSandbox],
        unlisted: &mut BTreeSet<PodUid>,
    ) -> Result<Vec<v1::Container>, Error> {
        let mut all = Vec::new();
        for sandbox in sandboxes {
            match unless_too_long(containers(&self.client, within(sandbox)).await)? {
                Some(found) => all.extend(found),
                None => unlisted.extend(labels::pod_uid(&sandbox.labels)),
            }
        }
        Ok(all)
    }

    /// Pods that have a directory; none when it cannot be read, since others know most of them.
    async fn with_directory(&self) -> Vec<PodUid> {
        let Some(dir) = self.pods_dir.as_deref().map(PathBuf::from) else { return Vec::new() };
        let read = move || {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter_map(|entry| Some(entry.file_name().to_str()?.into())).collect()
        };
        blocking::run(JobPlace::own("pods of the runtime"), read).await.unwrap_or_default()
    }

    /// Logs the pods with the largest parts of a list that is too long, once until these are
    /// others.
    fn log_longest(&self, found: &RuntimeListing) {
        let longest = longest(&found.lists);
        let unlisted: Vec<_> = found.unlisted.iter().map(PodUid::as_str).collect();
        let text = format!("{longest} {unlisted:?}");
        if self.said.replace(Some(text.clone())).is_some_and(|said| said == text) {
            return;
        }
        tracing::warn!(
            %longest,
            ?unlisted,
            "the runtime's list of everything is longer than an answer may be, so each pod is asked \
             for; those named have the most labels and annotations"
        );
    }
}

/// Namespace, name and bytes of the pods with the most labels and annotations.
fn longest(lists: &PodLists) -> String {
    let mut bytes: BTreeMap<(String, String), usize> = BTreeMap::new();
    let sandboxes = lists.sandboxes.iter().map(|s| (&s.labels, &s.annotations));
    let containers = lists.containers.iter().map(|c| (&c.labels, &c.annotations));
    for (labels, annotations) in sandboxes.chain(containers) {
        let Some(who) = labels::identity(labels) else { continue };
        let own: usize = labels.iter().chain(annotations).map(|(k, v)| k.len() + v.len()).sum();
        *bytes.entry((who.namespace, who.name)).or_default() += own;
    }
    let mut all: Vec<_> = bytes.into_iter().filter(|(_, n)| *n >= NAMED_BYTES_MIN).collect();
    all.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let named = all.iter().take(NAMED_MAX);
    let named = named.map(|((ns, name), bytes)| format!("{ns}/{name} ({} KiB)", bytes / 1024));
    named.collect::<Vec<_>>().join(", ")
}

/// Every container: an error when there is one that cannot be listed.
pub async fn all_containers(client: &Client) -> Result<Vec<v1::Container>, Error> {
    if let Some(all) = unless_too_long(list_containers(client, None).await)? {
        return Ok(all);
    }
    let mut all = Vec::new();
    for sandbox in sandboxes(client, v1::PodSandboxFilter::default()).await? {
        all.extend(containers(client, within(&sandbox)).await?);
    }
    Ok(all)
}

/// Sandboxes that match, by state where they are too many.
pub(super) async fn sandboxes(
    client: &Client,
    filter: v1::PodSandboxFilter,
) -> Result<Vec<v1::PodSandbox>, Error> {
    if let Some(all) = unless_too_long(list_sandboxes(client, Some(filter.clone())).await)? {
        return Ok(all);
    }
    let mut all = BTreeMap::new();
    // In the order of a sandbox's states: one that changes meanwhile is not missed.
    for state in [v1::PodSandboxState::SandboxReady, v1::PodSandboxState::SandboxNotready] {
        let state = Some(v1::PodSandboxStateValue { state: state.into() });
        let part = list_sandboxes(client, Some(v1::PodSandboxFilter { state, ..filter.clone() }));
        all.extend(part.await?.into_iter().map(|sandbox| (sandbox.id.clone(), sandbox)));
    }
    Ok(all.into_values().collect())
}

/// Containers that match, by state where they are too many.
pub(super) async fn containers(
    client: &Client,
    filter: v1::ContainerFilter,
) -> Result<Vec<v1::Container>, Error> {
    use v1::ContainerState::{
        ContainerCreated, ContainerExited, ContainerRunning, ContainerUnknown,
    };
    if let Some(all) = unless_too_long(list_containers(client, Some(filter.clone())).await)? {
        return Ok(all);
    }
    let mut all = BTreeMap::new();
    // As above.
    for state in [ContainerUnknown, ContainerCreated, ContainerRunning, ContainerExited] {
        let state = Some(v1::ContainerStateValue { state: state.into() });
        let part = list_containers(client, Some(v1::ContainerFilter { state, ..filter.clone() }));
        all.extend(part.await?.into_iter().map(|container| (container.id.clone(), container)));
    }
    Ok(all.into_values().collect())
}

/// Sandboxes of one pod.
pub(super) fn sandboxes_with(uid: &PodUid) -> v1::PodSandboxFilter {
    let label_selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_string())]);
    v1::PodSandboxFilter { label_selector, ..Default::default() }
}

fn within(sandbox: &v1::PodSandbox) -> v1::ContainerFilter {
    v1::ContainerFilter { pod_sandbox_id: sandbox.id.clone(), ..Default::default() }
}

/// Sandboxes that match, or all, in one answer.
pub(super) async fn list_sandboxes(
    client: &Client,
    filter: Option<v1::PodSandboxFilter>,
) -> Result<Vec<v1::PodSandbox>, Error> {
    let answer = client.list_pod_sandbox(v1::ListPodSandboxRequest { filter }).await;
    answer.map(|answer| answer.items)
}

/// Containers that match, or all, in one answer.
pub(super) async fn list_containers(
    client: &Client,
    filter: Option<v1::ContainerFilter>,
) -> Result<Vec<v1::Container>, Error> {
    let answer = client.list_containers(v1::ListContainersRequest { filter }).await;
    answer.map(|answer| answer.containers)
}

fn unless_too_long<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.is_too_long() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
