//! The CRI client on every containerd release that we promise to work with.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use pintle_cri::v1::{AuthConfig, ContainerState, ImageSpec};
use pintle_cri::v1::{
    ContainerStatusRequest, ExecSyncRequest, GetEventsRequest, PodSandboxStatusRequest,
    PullImageRequest, RemovePodSandboxRequest, RuntimeConfigRequest, StopContainerRequest,
    StopPodSandboxRequest,
};
use pintle_testbed::registry::{ImageRegistry, PASSWORD, USER};
use pintle_testbed::{LONG, Options, RawCri, TestNode, until};
use xtask::runtime::Version;

fn bare(version: Version) -> TestNode {
    TestNode::start(Options { version, agent: false, ..Options::default() })
}

/// One pod's whole life by raw calls: network, logs, exec, stop, removal, nothing left.
fn pod_starts_and_ends(version: Version) {
    let node = bare(version);
    let cri = RawCri::connect(&node).expect("connected");
    let pod = cri.run_pod("raw").expect("a sandbox");
    let id = cri.run_container(&pod, "web", &["/box", "serve", "http=8080"]).expect("a container");

    let request = PodSandboxStatusRequest { pod_sandbox_id: pod.id.clone(), verbose: false };
    let status = cri.block(cri.client.pod_sandbox_status(request)).expect("a status").status;
    let ip = status.and_then(|s| s.network).expect("a network").ip;
    let address = SocketAddr::from((ip.parse::<IpAddr>().expect("an address"), 8080));
    until(LONG, "the pod answers over the network", || {
        let answer = node.get_from(address, "/")?;
        anyhow::ensure!(answer.body == "healthy", "{answer:?}");
        Ok(())
    });

    let cmd = ["sh", "-c", "echo out; echo err >&2; exit 7"].map(str::to_owned).to_vec();
    let request = ExecSyncRequest { container_id: id.clone(), cmd, timeout: 20 };
    let exec = cri.block(cri.client.exec_sync(request)).expect("exec");
    assert_eq!((exec.stdout.as_slice(), exec.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!(exec.exit_code, 7);

    assert!(node.container_pid(&id).is_some());
    let request = StopContainerRequest { container_id: id.clone(), timeout: 30 };
    cri.block(cri.client.stop_container(request)).expect("stopped");
    let request = ContainerStatusRequest { container_id: id, verbose: false };
    let status = cri.block(cri.client.container_status(request)).expect("a status").status;
    let status = status.expect("a status");
    assert_eq!(status.state(), ContainerState::ContainerExited);
    assert_eq!(status.exit_code, 0, "SIGTERM ends it in order");
    let log = fs::read_to_string(node.pod_logs().join("raw/web.log")).expect("a log");
    assert!(log.contains("stdout F serving"), "{log}");

    let request = StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() };
    cri.block(cri.client.stop_pod_sandbox(request)).expect("stopped");
    let request = RemovePodSandboxRequest { pod_sandbox_id: pod.id };
    cri.block(cri.client.remove_pod_sandbox(request)).expect("removed");
    until(LONG, "no shim, mount or network is left", || {
        let left = node.leftovers();
        let is_clean = left.shims.is_empty() && left.mounts.is_empty() && left.netns.is_empty();
        anyhow::ensure!(is_clean, "{left:#?}");
        Ok(())
    });
}

#[test]
fn pod_runs_and_is_removed_on_containerd_2_4() {
    pod_starts_and_ends(Version::V2_4);
}

#[test]
fn pod_runs_and_is_removed_on_the_usual_containerd() {
    pod_starts_and_ends(Version::usual().expect("a release"));
}

#[test]
fn pod_runs_and_is_removed_on_containerd_1_7() {
    pod_starts_and_ends(Version::V1_7);
}

#[test]
fn only_containerd_1_7_lacks_runtime_config_and_every_release_has_events() {
    for version in Version::sampled().expect("releases") {
        let node = bare(version);
        let cri = RawCri::connect(&node).expect("connected");
        let config = cri.block(cri.client.runtime_config(RuntimeConfigRequest {}));
        assert_eq!(config.is_ok(), version != Version::V1_7, "{}: {config:?}", version.name());
        let first = cri.block(async {
            let events = cri.client.get_container_events(GetEventsRequest {});
            let mut events = events.expect("the stream is opened with the first item");
            let wait = std::time::Duration::from_secs(2);
            tokio::time::timeout(wait, events.next()).await
        });
        // Silence means that it is implemented: there is nothing to report yet.
        let is_refused = matches!(&first, Ok(Some(Err(e))) if e.is_unimplemented());
        assert!(!is_refused, "{}: {first:?}", version.name());
    }
}

#[test]
fn pull_succeeds_only_with_the_right_password_and_a_throttled_pull_is_slow() {
    let node = bare(Version::usual().expect("a release"));
    let cri = RawCri::connect(&node).expect("connected");
    let registry = ImageRegistry::start(&node, 5000, true).expect("a registry");
    let image = registry.add("team/app", "1", 64 << 10).expect("an image").reference;
    let pull = |image: &str, password: Option<&str>| {
        let auth = password.map(|p| AuthConfig {
            username: USER.to_owned(),
            password: p.to_owned(),
            ..AuthConfig::default()
        });
        let image = Some(ImageSpec { image: image.to_owned(), ..ImageSpec::default() });
        cri.block(cri.client.pull_image(PullImageRequest { image, auth, sandbox_config: None }))
    };
    pull(&image, None).expect_err("no password");
    pull(&image, Some("wrong")).expect_err("a wrong password");
    pull(&image, Some(PASSWORD)).expect("the right password");
    pull("127.0.0.1:5000/team/app:2", Some(PASSWORD)).expect_err("no such tag");

    // As much again through a proxy takes as long as its rate says, which nothing local does.
    registry.add("team/slow", "1", 256 << 10).expect("an image");
    let slow = registry.slow_address(&node, 5001, 1 << 20).expect("a proxy");
    let begin = std::time::Instant::now();
    pull(&format!("{slow}/team/slow:1"), Some(PASSWORD)).expect("slow, but right");
    let least = std::time::Duration::from_secs_f64(256.0 / 1024.0);
    assert!(begin.elapsed() >= least, "{:?}", begin.elapsed());
}
