//! containerd's own API on every release that we promise to work with: hints and image import.

use std::time::Duration;

use pintle_cri::containerd::{Containerd, Hint, HintKind, Hints, ImportError};
use pintle_cri::fake::Flavor;
use pintle_cri::v1::{
    self, ContainerConfig, ContainerMetadata, CreateContainerRequest, ExecSyncRequest, ImageSpec,
    ImageStatusRequest, LinuxContainerConfig, LinuxContainerResources, RemoveImageRequest,
    StartContainerRequest, StopContainerRequest,
};
use pintle_cri::{CriCall, Method, StreamCall};
use pintle_testbed::{LONG, Options, RawCri, RawPod, TestNode, until};
use xtask::image::set;
use xtask::runtime::Version;

/// Far more than a subscription takes.
const SUBSCRIBES: Duration = Duration::from_millis(500);

fn bare(version: Version) -> TestNode {
    TestNode::start(Options { version, agent: false, ..Options::default() })
}

fn usual() -> Version {
    Version::usual().expect("PINTLE_CONTAINERD names a release")
}

fn containerd(node: &TestNode, cri: &RawCri) -> Containerd {
    let endpoint = format!("unix://{}", node.runtime_node().socket().display());
    cri.block(async { Containerd::connect(&endpoint) }).expect("a valid endpoint")
}

/// The next hint about that container that `wanted` accepts.
fn hint(cri: &RawCri, hints: &mut Hints, id: &str, wanted: impl Fn(&HintKind) -> bool) -> Hint {
    let wait = async {
        loop {
            let hint = hints.next().await.expect("the stream goes on").expect("a hint");
            if hint.id == id && wanted(&hint.kind) {
                return hint;
            }
        }
    };
    cri.block(async { tokio::time::timeout(LONG, wait).await }).expect("the hint comes")
}

fn hog(cri: &RawCri, pod: &RawPod) -> String {
    const LIMIT_BYTES: i64 = 32 << 20;
    let resources =
        LinuxContainerResources { memory_limit_in_bytes: LIMIT_BYTES, ..Default::default() };
    let config = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "hog".to_owned(), attempt: 0 }),
        image: Some(ImageSpec { image: set::BOX.to_owned(), ..Default::default() }),
        command: ["/box", "hog", "256"].map(str::to_owned).to_vec(),
        log_path: "hog.log".to_owned(),
        linux: Some(LinuxContainerConfig { resources: Some(resources), security_context: None }),
        ..Default::default()
    };
    let request = CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        config: Some(config),
        sandbox_config: Some(pod.config.clone()),
    };
    let created = cri.block(cri.client.create_container(request)).expect("created");
    let container_id = created.container_id;
    let start = StartContainerRequest { container_id: container_id.clone() };
    cri.block(cri.client.start_container(start)).expect("started");
    container_id
}

fn task_events_become_hints(version: Version) {
    let node = bare(version);
    let cri = RawCri::connect(&node).expect("connected");
    let mut hints = containerd(&node, &cri).hints();
    // containerd does not confirm a subscription. This one is made while nothing happens, which
    // takes less time than a sandbox; the sandbox's own start is the first that it brings.
    let nothing = cri.block(async { tokio::time::timeout(SUBSCRIBES, hints.next()).await });
    assert!(nothing.is_err(), "{nothing:?}");
    let pod = cri.run_pod("hints").expect("a sandbox");
    hint(&cri, &mut hints, &pod.id, |kind| matches!(kind, HintKind::Started { .. }));

    let id = cri.run_container(&pod, "c", &["/box", "signals"]).expect("a container");
    let started = hint(&cri, &mut hints, &id, |_| true);
    let pid = node.container_pid(&id).expect("it runs");
    let pid = u32::try_from(pid).expect("a pid");
    assert_eq!(started.kind, HintKind::Started { pid });
    let cmd = ["/box", "exit", "3"].map(str::to_owned).to_vec();
    let exec = ExecSyncRequest { container_id: id.clone(), cmd, timeout: 20 };
    cri.block(cri.client.exec_sync(exec)).expect("exec");
    let stop = StopContainerRequest { container_id: id.clone(), timeout: 0 };
    cri.block(cri.client.stop_container(stop)).expect("stopped");
    // The command's exit, had it become a hint, would come first. On a busy machine the deletion of
    // the task may be reported before its exit.
    let exited = hint(&cri, &mut hints, &id, |kind| *kind != HintKind::Deleted);
    assert_eq!(exited.kind, HintKind::Exited { pid, code: 137 });
    assert!(exited.at >= started.at, "{exited:?} {started:?}");

    let id = hog(&cri, &pod);
    // The shim sometimes loses its OOM event when the container exits: then the exit code shows it.
    let told =
        |kind: &HintKind| matches!(kind, HintKind::OomKilled | HintKind::Exited { code: 137, .. });
    hint(&cri, &mut hints, &id, told);
}

#[test]
fn task_events_become_hints_on_containerd_2_4() {
    task_events_become_hints(Version::V2_4);
}

#[test]
fn task_events_become_hints_on_the_usual_containerd() {
    task_events_become_hints(usual());
}

#[test]
fn task_events_become_hints_on_containerd_1_7() {
    task_events_become_hints(Version::V1_7);
}

/// Removes an image, imports the archive it came from, and runs a container of it.
fn a_removed_image_comes_back(version: Version) {
    let node = bare(version);
    let cri = RawCri::connect(&node).expect("connected");
    let containerd = containerd(&node, &cri);
    let image = || Some(ImageSpec { image: set::BOX.to_owned(), ..Default::default() });
    cri.block(cri.client.remove_image(RemoveImageRequest { image: image() })).expect("removed");
    let present = || {
        let request = ImageStatusRequest { image: image(), verbose: false };
        cri.block(cri.client.image_status(request)).expect("a status").image.is_some()
    };
    assert!(!present());
    cri.block(import(&containerd)).expect("imported");
    until(LONG, "CRI sees the image", || {
        let images = node.runtime_node().ctr(&["images", "ls"])?;
        anyhow::ensure!(present(), "{images}");
        Ok(())
    });
    let pod = cri.run_pod("import").expect("a sandbox");
    cri.run_container(&pod, "c", &["/box", "signals"]).expect("the image runs");
    assert_eq!(cri.block(containerd.ingests()).expect("answers"), [], "nothing is being fetched");
}

async fn import(containerd: &Containerd) -> Result<(), ImportError> {
    let archive = set::archive().expect("the archive of the test images").path;
    let file = tokio::fs::File::open(archive).await.expect("readable");
    containerd.import(file).await
}

#[test]
fn a_removed_image_comes_back_by_import_on_containerd_2_4() {
    a_removed_image_comes_back(Version::V2_4);
}

#[test]
fn a_removed_image_comes_back_by_import_on_the_usual_containerd() {
    a_removed_image_comes_back(usual());
}

#[test]
fn a_removed_image_comes_back_by_import_on_containerd_1_7() {
    a_removed_image_comes_back(Version::V1_7);
}

#[test]
fn an_archive_that_is_none_is_refused() {
    let node = bare(usual());
    let cri = RawCri::connect(&node).expect("connected");
    let containerd = containerd(&node, &cri);
    let garbage = vec![0x5a; 1 << 20];
    let refused = cri.block(async {
        tokio::time::timeout(LONG, containerd.import(garbage.as_slice())).await.expect("ends")
    });
    assert!(matches!(refused, Err(ImportError::Containerd(_))), "{refused:?}");
}

/// Returns whether a call with an empty request is refused as unimplemented.
fn lacks<R: CriCall>(cri: &RawCri) -> (Method, bool) {
    let answer = cri.block(cri.client.call(R::default()));
    (R::METHOD, answer.is_err_and(|error| error.is_unimplemented()))
}

fn lacks_stream<R: StreamCall>(cri: &RawCri) -> (Method, bool) {
    let refused = cri.block(async {
        let mut replies = cri.client.stream(R::default()).expect("asked for the first time");
        // Silence means that it is implemented: there is nothing to report yet.
        let first = tokio::time::timeout(SUBSCRIBES, replies.next()).await;
        matches!(first, Ok(Some(Err(error))) if error.is_unimplemented())
    });
    (R::METHOD, refused)
}

#[test]
fn fake_runtime_lacks_the_same_calls_as_the_real_releases() {
    for version in Version::sampled().expect("releases") {
        let flavor = match version {
            Version::V2_4 => Flavor::Containerd24,
            Version::V2_3 => Flavor::Containerd23,
            Version::V2_2 => Flavor::Containerd22,
            Version::V2_1 => Flavor::Containerd21,
            Version::V1_7 => Flavor::Containerd17,
        };
        let node = bare(version);
        let cri = RawCri::connect(&node).expect("connected");
        let real = [
            lacks::<v1::RuntimeConfigRequest>(&cri),
            lacks::<v1::UpdateRuntimeConfigRequest>(&cri),
            lacks::<v1::UpdatePodSandboxResourcesRequest>(&cri),
            lacks::<v1::CheckpointContainerRequest>(&cri),
            lacks::<v1::ListContainerStatsRequest>(&cri),
            lacks::<v1::ListPodSandboxStatsRequest>(&cri),
            lacks::<v1::ListMetricDescriptorsRequest>(&cri),
            lacks::<v1::ListPodSandboxMetricsRequest>(&cri),
            lacks::<v1::ImageFsInfoRequest>(&cri),
            lacks_stream::<v1::GetEventsRequest>(&cri),
            lacks_stream::<v1::StreamPodSandboxesRequest>(&cri),
            lacks_stream::<v1::StreamContainersRequest>(&cri),
            lacks_stream::<v1::StreamContainerStatsRequest>(&cri),
            lacks_stream::<v1::StreamPodSandboxStatsRequest>(&cri),
            lacks_stream::<v1::StreamPodSandboxMetricsRequest>(&cri),
            lacks_stream::<v1::StreamImagesRequest>(&cri),
        ];
        let fake = real.map(|(method, _)| (method, flavor.lacks(method)));
        assert_eq!(real, fake, "containerd {}", version.name());
    }
}
