//! A runtime with lists that are longer than its answers may be.

use pintle_agent_core::types::{ContainerId, PodUid};
use pintle_cri::fake::FakeRuntime;
use pintle_cri::{Deadlines, Method};

use super::*;
use crate::observed::PodReader;

/// Two of it fit into an answer, three do not.
const LARGE: usize = 6 << 20;

struct ListingScene {
    dir: tempfile::TempDir,
    runtime: FakeRuntime,
    client: Client,
}

async fn scene() -> ListingScene {
    let dir = tempfile::tempdir().expect("a folder");
    let runtime = FakeRuntime::start(&dir.path().join("c.sock")).await.expect("it starts");
    let client = Client::connect(&runtime.endpoint(), Deadlines::default()).expect("a path");
    let image = Some(v1::ImageSpec { image: "i".to_owned(), ..Default::default() });
    let pull = v1::PullImageRequest { image, ..Default::default() };
    client.pull_image(pull).await.expect("an image");
    ListingScene { dir, runtime, client }
}

fn labels_of(uid: &str, container: &str) -> BTreeMap<String, String> {
    let pairs = [
        (labels::POD_NAME, "p"),
        (labels::POD_NAMESPACE, "ns"),
        (labels::POD_UID, uid),
        (labels::CONTAINER_NAME, container),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn note(bytes: usize) -> BTreeMap<String, String> {
    BTreeMap::from([("note".to_owned(), "x".repeat(bytes))])
}

impl ListingScene {
    async fn sandbox(&self, uid: &str, bytes: usize) -> String {
        let config = v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: "p".to_owned(),
                namespace: "ns".to_owned(),
                uid: uid.to_owned(),
                attempt: 0,
            }),
            labels: labels_of(uid, ""),
            annotations: note(bytes),
            ..Default::default()
        };
        let request = v1::RunPodSandboxRequest { config: Some(config), ..Default::default() };
        self.client.run_pod_sandbox(request).await.expect("a sandbox").pod_sandbox_id
    }

    async fn container(&self, sandbox: &str, uid: &str, name: &str, bytes: usize) -> String {
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: "i".to_owned(), ..Default::default() }),
            labels: labels_of(uid, name),
            annotations: note(bytes),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.to_owned(),
            config: Some(config),
            sandbox_config: Some(v1::PodSandboxConfig::default()),
        };
        let id = self.client.create_container(request).await.expect("a container").container_id;
        let start = v1::StartContainerRequest { container_id: id.clone() };
        self.client.start_container(start).await.expect("started");
        id
    }
}

/// Uids, and how much of each there is.
async fn listed(reader: &PodReader) -> Vec<(String, usize)> {
    let listed = reader.list().await.expect("it answers");
    listed.into_iter().map(|pod| (pod.uid.to_string(), pod.digest.len())).collect()
}

fn each(uids: &[&str], things: usize) -> Vec<(String, usize)> {
    uids.iter().map(|uid| ((*uid).to_owned(), things)).collect()
}

#[tokio::test]
async fn containers_too_large_for_one_list_are_listed_by_sandbox() {
    let scene = scene().await;
    for uid in ["a", "b", "c"] {
        let sandbox = scene.sandbox(uid, 0).await;
        scene.container(&sandbox, uid, "c", LARGE).await;
    }
    let reader = PodReader::new(scene.client.clone());
    assert_eq!(listed(&reader).await, each(&["a", "b", "c"], 2));
    assert_eq!(all_containers(&scene.client).await.expect("listed").len(), 3);
    // A read in a group does not fail because the other pods' lists are too long.
    let read = ["a", "b", "c"].map(PodUid::from);
    let read = read.iter().map(|uid| reader.read(uid, ("ns", "p")));
    for pod in futures_util::future::join_all(read).await {
        assert_eq!(pod.expect("its own list is short enough").containers.len(), 1);
    }
}

#[tokio::test]
async fn sandboxes_too_large_for_one_list_are_listed_by_known_pod() {
    let scene = scene().await;
    for uid in ["a", "b", "c", "d"] {
        scene.sandbox(uid, LARGE).await;
        std::fs::create_dir_all(scene.dir.path().join("pods").join(uid)).expect("a directory");
    }
    let sandbox = scene.sandbox("e", 0).await;
    scene.container(&sandbox, "e", "c", 0).await;
    let reader = PodReader::new(scene.client.clone()).below(scene.dir.path());
    let mut all = each(&["a", "b", "c", "d"], 1);
    all.push(("e".to_owned(), 2));
    assert_eq!(listed(&reader).await, all, "by directories, and the last by its container");
    // A pod that was read is known without its directory.
    reader.read(&"d".into(), ("ns", "p")).await.expect("it answers");
    std::fs::remove_dir(scene.dir.path().join("pods/d")).expect("empty");
    assert_eq!(listed(&reader).await, all);
}

#[tokio::test]
async fn pod_too_large_for_a_list_is_read_by_state_or_keeps_its_last_observation() {
    let scene = scene().await;
    let small = scene.sandbox("a", 0).await;
    scene.container(&small, "a", "c", 0).await;
    let sandbox = scene.sandbox("b", 0).await;
    let gone = scene.container(&sandbox, "b", "c0", LARGE).await;
    let stop = v1::StopContainerRequest { container_id: gone.clone(), timeout: 0 };
    scene.client.stop_container(stop).await.expect("stopped");
    for name in ["c1", "c2"] {
        scene.container(&sandbox, "b", name, LARGE).await;
    }
    let reader = PodReader::new(scene.client.clone());
    let of = |uid: &str, things| (uid.to_owned(), things);
    assert_eq!(listed(&reader).await, [of("a", 2), of("b", 4)]);
    let pod = reader.read(&"b".into(), ("ns", "p")).await.expect("by state");
    assert!(pod.containers.iter().any(|c| c.id == ContainerId::from(gone.as_str())));
    assert_eq!(pod.containers.len(), 3);
    // A third that runs is too much for its state, too.
    scene.container(&sandbox, "b", "c3", LARGE).await;
    let error = reader.read(&"b".into(), ("ns", "p")).await.expect_err("too long");
    assert!(error.is_too_long(), "{error}");
    assert_eq!(listed(&reader).await, [of("a", 2), of("b", 4)], "as it was read");
    assert_eq!(listed(&PodReader::new(scene.client.clone())).await, [of("a", 2), of("b", 1)]);
    assert!(all_containers(&scene.client).await.is_err(), "no image may be taken from it");
}

#[tokio::test]
async fn a_list_that_fails_for_another_reason_is_no_list() {
    let scene = scene().await;
    scene.sandbox("a", 0).await;
    let fault = scene.runtime.on(Method::ListContainers);
    fault.times(1).fail(pintle_cri::Code::Unavailable, "it restarts");
    let reader = PodReader::new(scene.client.clone());
    assert!(reader.list().await.is_err());
    assert_eq!(listed(&reader).await, each(&["a"], 1));
}

#[test]
fn the_longest_pods_are_named() {
    let sandbox = |name: &str, bytes| {
        let mut labels = labels_of(name, "");
        labels.insert(labels::POD_NAME.to_owned(), name.to_owned());
        v1::PodSandbox { labels, annotations: note(bytes), ..Default::default() }
    };
    let sizes = [("a", 100), ("b", 70_000), ("c", LARGE)];
    let sandboxes = sizes.map(|(name, bytes)| sandbox(name, bytes)).into();
    let text = longest(&PodLists { sandboxes, containers: Vec::new() });
    assert_eq!(text, "ns/c (6144 KiB), ns/b (68 KiB)");
}
