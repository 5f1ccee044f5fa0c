//! The lists that a read begins with, shared by reads that come together.
//!
//! Input: a pod's uid. Output: the sandboxes and containers that the runtime lists for it, from a
//! call that began after the request. A lone request is a filtered list. Requests that arrive while
//! a list is under way wait for its end and then share one list of everything: thirty pods that end
//! at once cost the runtime a few lists rather than thirty each time the kernel is ahead of it, and
//! the runtime goes through all its containers for a filtered list anyway. A few among many pods
//! are listed one by one: to take in a list of all of them costs more than their own, and a pod's
//! start must not cost more on a fuller node. Bounds: one shared list at a time; a request given up
//! gives up its place. A failed shared list is repeated by each, so that each caller has the error
//! of its own call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use pintle_agent_core::labels;
use pintle_agent_core::types::PodUid;
use pintle_cri::{Client, Error, v1};
use tokio::sync::oneshot;

use super::everything;

/// The runtime's lists for one pod.
#[derive(Clone, Debug, Default)]
pub(super) struct PodLists {
    pub(super) sandboxes: Vec<v1::PodSandbox>,
    pub(super) containers: Vec<v1::Container>,
}

/// A list of everything is made when it answers at least one request for this many pods.
const PODS_PER_QUESTION: usize = 8;

/// Answers requests for lists; clones share the queue.
#[derive(Clone, Debug)]
pub(super) struct Listing {
    client: Client,
    line: Rc<RefCell<ListedLine>>,
}

#[derive(Debug, Default)]
struct ListedLine {
    busy: bool,
    waiting: Vec<(PodUid, oneshot::Sender<Message>)>,
    /// Pods of the last complete list.
    pods: usize,
}

#[derive(Debug)]
enum Message {
    /// The answer.
    Lists(PodLists),
    /// There is no shared list, or it failed: make a call of your own.
    Alone,
    /// You make the next list.
    Lead(Lead),
}

/// The right to list; passed on when dropped.
#[derive(Debug)]
struct Lead(Option<Rc<RefCell<ListedLine>>>);

impl Listing {
    pub(super) fn new(client: Client) -> Self {
        Self { client, line: Rc::default() }
    }

    /// The runtime has this many pods.
    pub(super) fn counted(&self, pods: usize) {
        self.line.borrow_mut().pods = pods;
    }

    /// The sandboxes and containers of this pod, now or later.
    pub(super) async fn of(&self, uid: &PodUid) -> Result<PodLists, Error> {
        let next = {
            let mut line = self.line.borrow_mut();
            if line.busy {
                let (answer, next) = oneshot::channel();
                line.waiting.push((uid.clone(), answer));
                Some(next)
            } else {
                line.busy = true;
                None
            }
        };
        let Some(next) = next else {
            let _lead = Lead(Some(Rc::clone(&self.line)));
            return self.filtered(uid).await;
        };
        match next.await {
            Ok(Message::Lists(lists)) => Ok(lists),
            Ok(Message::Lead(_lead)) => self.shared(uid).await,
            Ok(Message::Alone) | Err(_) => self.filtered(uid).await,
        }
    }

    /// One list for all current waiters.
    async fn shared(&self, uid: &PodUid) -> Result<PodLists, Error> {
        let group = std::mem::take(&mut self.line.borrow_mut().waiting);
        let worth_it = (group.len() + 1) * PODS_PER_QUESTION >= self.line.borrow().pods;
        if group.is_empty() || !worth_it {
            for (_, answer) in group {
                let _ = answer.send(Message::Alone); // fails if the waiter is gone
            }
            return self.filtered(uid).await;
        }
        let wanted = group.iter().map(|(uid, _)| uid).chain([uid]);
        let mut wanted: BTreeMap<_, _> =
            wanted.map(|uid| (uid.clone(), PodLists::default())).collect();
        let listed = self.all().await.map(|all| pick(all, &mut wanted));
        for (uid, answer) in group {
            let message = match &listed {
                Ok(()) => Message::Lists(wanted.get(&uid).cloned().unwrap_or_default()),
                Err(_) => Message::Alone,
            };
            let _ = answer.send(message); // fails if the waiter is gone
        }
        match listed {
            // The lists of other pods are too long.
            Err(error) if error.is_too_long() => self.filtered(uid).await,
            listed => listed.map(|()| wanted.remove(uid).unwrap_or_default()),
        }
    }

    async fn filtered(&self, uid: &PodUid) -> Result<PodLists, Error> {
        let of_sandboxes = everything::sandboxes_with(uid);
        let label_selector = of_sandboxes.label_selector.clone();
        let of_containers = v1::ContainerFilter { label_selector, ..Default::default() };
        let (sandboxes, containers) = tokio::try_join!(
            everything::sandboxes(&self.client, of_sandboxes),
            everything::containers(&self.client, of_containers),
        )?;
        Ok(PodLists { sandboxes, containers })
    }

    async fn all(&self) -> Result<PodLists, Error> {
        let (sandboxes, containers) = tokio::try_join!(
            everything::list_sandboxes(&self.client, None),
            everything::list_containers(&self.client, None),
        )?;
        Ok(PodLists { sandboxes, containers })
    }
}

/// Moves the entries of the wanted pods.
fn pick(all: PodLists, wanted: &mut BTreeMap<PodUid, PodLists>) {
    for sandbox in all.sandboxes {
        let uid = labels::pod_uid(&sandbox.labels);
        if let Some(lists) = uid.and_then(|uid| wanted.get_mut(&uid)) {
            lists.sandboxes.push(sandbox);
        }
    }
    for container in all.containers {
        let uid = labels::pod_uid(&container.labels);
        if let Some(lists) = uid.and_then(|uid| wanted.get_mut(&uid)) {
            lists.containers.push(container);
        }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        let Some(line) = self.0.take() else { return };
        loop {
            let next = {
                let mut line = line.borrow_mut();
                if line.waiting.is_empty() {
                    line.busy = false;
                    return;
                }
                line.waiting.remove(0).1
            };
            match next.send(Message::Lead(Lead(Some(Rc::clone(&line))))) {
                Ok(()) => return,
                // That caller has given up: its message is emptied, and the next one gets the turn.
                Err(Message::Lead(mut lead)) => lead.0 = None,
                Err(_) => unreachable!("what was sent comes back"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pintle_cri::fake::FakeRuntime;
    use pintle_cri::{Deadlines, Method};

    use super::*;

    async fn with_pods(names: &[String]) -> (tempfile::TempDir, FakeRuntime, Listing) {
        let dir = tempfile::tempdir().expect("a folder");
        let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
        let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
        for name in names {
            let config = v1::PodSandboxConfig {
                metadata: Some(v1::PodSandboxMetadata {
                    name: name.clone(),
                    uid: name.clone(),
                    ..Default::default()
                }),
                labels: BTreeMap::from([(labels::POD_UID.to_owned(), name.clone())]),
                ..Default::default()
            };
            let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
            client.run_pod_sandbox(request).await.expect("a sandbox");
        }
        (dir, runtime, Listing::new(client))
    }

    #[tokio::test]
    async fn concurrent_requests_share_a_list_and_each_gets_its_own_pod() {
        let names: Vec<String> = (0..30).map(|n| format!("uid-{n}")).collect();
        let (_dir, runtime, listing) = with_pods(&names).await;
        runtime.clear_calls();
        let ask = async |name: &String| {
            let lists = listing.of(&PodUid::from(name.as_str())).await.expect("listed");
            let uids = lists.sandboxes.iter().map(|s| s.labels[labels::POD_UID].as_str());
            assert_eq!(uids.collect::<Vec<_>>(), [name]);
        };
        futures_util::future::join_all(names.iter().map(ask)).await;
        assert_eq!(runtime.calls_of(Method::ListPodSandbox, "").len(), 2);
        assert!(!listing.line.borrow().busy);
    }

    #[tokio::test]
    async fn few_requests_among_many_pods_are_listed_individually() {
        let names: Vec<String> = (0..40).map(|n| format!("uid-{n}")).collect();
        let (_dir, runtime, listing) = with_pods(&names).await;
        listing.counted(names.len());
        runtime.clear_calls();
        let ask = async |name: &String| {
            let lists = listing.of(&PodUid::from(name.as_str())).await.expect("listed");
            assert_eq!(lists.sandboxes.len(), 1);
        };
        futures_util::future::join_all(names[..3].iter().map(ask)).await;
        assert_eq!(runtime.calls_of(Method::ListPodSandbox, "").len(), 3);
        assert!(!listing.line.borrow().busy);
    }

    #[tokio::test]
    async fn abandoned_list_request_does_not_block_other_pods() {
        let names = ["a".to_owned(), "b".to_owned()];
        let (_dir, runtime, listing) = with_pods(&names).await;
        let hung = runtime.on(Method::ListPodSandbox).times(1).hang();
        let uid = PodUid::from("a");
        tokio::select! {
            biased;
            _ = async { tokio::join!(listing.of(&uid), listing.of(&uid)) } => panic!("it hangs"),
            () = until_called(&runtime) => {}
        }
        hung.lift();
        let lists = listing.of(&PodUid::from("b")).await.expect("listed");
        assert_eq!(lists.sandboxes.len(), 1);
    }

    async fn until_called(runtime: &FakeRuntime) {
        while runtime.calls_of(Method::ListPodSandbox, "").is_empty() {
            tokio::task::yield_now().await;
        }
    }
}
