//! The driver behind its socket, called by the agent's own client: effects on the disk, lifecycle,
//! faults, and what the log says of them. Needs root for bind mounts.

use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Parser as _;
use pintle_agent_plugins::csi::Node;
use pintle_agent_plugins::{CallError, Code, Drivers};
use pintle_csi_driver::Settings;
use pintle_csi_driver::faults::{Fault, FaultFile, Rule};
use pintle_csi_driver::log::{Line, LogFile, Phase};
use pintle_plugins_v1::csi::volume_capability::access_mode::Mode;
use pintle_plugins_v1::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use pintle_plugins_v1::csi::*;
use tempfile::TempDir;
use tokio::task::JoinHandle;

/// Longer than anything here takes, so that a failure is one and no hang.
const PATIENCE: Duration = Duration::from_secs(60);
const NAME: &str = "csi.test.pintle.dev";

/// A driver that has registered, for a node that runs nothing.
struct TestedDriver {
    temp: TempDir,
    drivers: Drivers,
    driver: JoinHandle<()>,
}

impl TestedDriver {
    async fn new(flags: &[&str]) -> Self {
        let temp = tempfile::tempdir().expect("a folder");
        let (drivers, _, registrar) =
            pintle_agent_plugins::start(&temp.path().join("registry")).expect("it starts");
        tokio::spawn(registrar.run());
        let driver = start(temp.path(), flags);
        let world = Self { temp, drivers, driver };
        world.node().await;
        world
    }

    /// The service of the registered driver.
    async fn node(&self) -> Node {
        let mut drivers = self.drivers.clone();
        let registered = async {
            loop {
                if let Some(driver) = drivers.find(NAME) {
                    return driver.node.clone();
                }
                drivers.changed().await.expect("the registrar runs");
            }
        };
        tokio::time::timeout(PATIENCE, registered).await.expect("registered in time")
    }

    fn path(&self, name: &str) -> String {
        self.temp.path().join(name).display().to_string()
    }

    fn state(&self) -> PathBuf {
        self.temp.path().join("state")
    }

    fn faults(&self, rules: &[Rule]) {
        FaultFile::new(&self.state()).write(rules).expect("written");
    }

    fn lines(&self) -> Vec<Line> {
        LogFile::new(&self.state()).read().expect("a log")
    }

    fn violations(&self) -> Vec<String> {
        let lines = self.lines().into_iter();
        lines.filter(|line| line.phase == Phase::Violation).map(|line| line.text).collect()
    }

    /// Publishes a volume that is made for the pod.
    async fn publish_ephemeral(&self, id: &str, target: &str) -> Result<(), CallError> {
        let context = [("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned())];
        let request = NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            target_path: self.path(target),
            volume_capability: Some(capability(false)),
            volume_context: context.into(),
            secrets: [("password".to_owned(), "s3cret".to_owned())].into(),
            ..Default::default()
        };
        self.node().await.publish(&request).await
    }

    async fn unpublish(&self, id: &str, target: &str) -> Result<(), CallError> {
        let (volume_id, target_path) = (id.to_owned(), self.path(target));
        self.node().await.unpublish(&NodeUnpublishVolumeRequest { volume_id, target_path }).await
    }
}

impl Drop for TestedDriver {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

fn start(folder: &Path, flags: &[&str]) -> JoinHandle<()> {
    let path = |name: &str| folder.join(name).display().to_string();
    let mut all = vec!["csi-driver".to_owned()];
    for (flag, name) in [("endpoint", "csi.sock"), ("registry", "registry"), ("state", "state")] {
        all.push(format!("--{flag}={}", path(name)));
    }
    all.extend(flags.iter().map(ToString::to_string));
    let settings = Settings::try_parse_from(all).expect("flags");
    tokio::spawn(async move { pintle_csi_driver::serve(settings).await.expect("it serves") })
}

fn capability(is_block: bool) -> VolumeCapability {
    VolumeCapability {
        access_type: Some(match is_block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume::default()),
        }),
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
    }
}

/// Writes a state that has one volume: what its controller would have made.
fn volume(state: &Path, is_block: bool) -> &'static str {
    const ID: &str = "vol-00000001";
    let content = state.join("volumes").join(ID);
    std::fs::create_dir_all(content.parent().expect("a folder")).expect("a folder");
    match is_block {
        true => std::fs::File::create(&content).and_then(|file| file.set_len(1 << 20)),
        false => std::fs::create_dir(&content),
    }
    .expect("content");
    let volume = serde_json::json!({
        "name": "pvc-1", "size_bytes": 1 << 20, "is_block": is_block, "is_ephemeral": false,
        "source": null, "parameters": {}, "topology": {}, "attached": {}, "nodes": {},
    });
    let all = serde_json::json!({"volumes": {ID: volume}, "snapshots": {}, "ids": 1});
    std::fs::write(state.join("state.json"), all.to_string()).expect("a state");
    ID
}

fn stage(id: &str, path: &str, is_block: bool) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
        volume_capability: Some(capability(is_block)),
        ..Default::default()
    }
}

fn publish(id: &str, staging: &str, target: &str, is_block: bool) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: Some(capability(is_block)),
        ..Default::default()
    }
}

fn unstage(id: &str, path: &str) -> NodeUnstageVolumeRequest {
    let (volume_id, staging_target_path) = (id.to_owned(), path.to_owned());
    NodeUnstageVolumeRequest { volume_id, staging_target_path }
}

#[tokio::test]
async fn volume_is_staged_published_unpublished_and_unstaged_with_its_data_kept() {
    let world = TestedDriver::new(&["--without=attach"]).await;
    let id = volume(&world.state(), false);
    let (node, staging, target) = (world.node().await, world.path("stage"), world.path("pod"));
    node.stage(&stage(id, &staging, false)).await.expect("staged");
    node.publish(&publish(id, &staging, &target, false)).await.expect("published");
    std::fs::write(Path::new(&target).join("file"), "data").expect("a volume that can be written");
    node.publish(&publish(id, &staging, &target, false)).await.expect("a repetition");
    let stats = node.volume_stats(id, Path::new(&target)).await.expect("stats");
    assert!(stats.bytes.is_some_and(|bytes| bytes.total == 1 << 20 && bytes.used > 0));
    assert!(stats.health.is_some_and(|health| !health.is_abnormal));
    assert!(world.violations().is_empty());
    let refused = node.unstage(&unstage(id, &staging)).await.expect_err("it is published");
    assert_eq!(refused.code, Code::FailedPrecondition);
    assert!(world.violations()[0].contains("unstage of a volume that is published"));
    world.unpublish(id, "pod").await.expect("unpublished");
    node.unstage(&unstage(id, &staging)).await.expect("unstaged");
    assert!(!Path::new(&target).exists() && Path::new(&staging).read_dir().is_ok());
    let content = world.state().join("volumes").join(id).join("file");
    assert_eq!(std::fs::read_to_string(content).expect("the data"), "data");
}

#[tokio::test]
async fn device_is_published_as_a_device_and_grows() {
    let world = TestedDriver::new(&["--without=attach"]).await;
    let id = volume(&world.state(), true);
    let (node, staging, target) = (world.node().await, world.path("stage"), world.path("device"));
    node.stage(&stage(id, &staging, true)).await.expect("staged");
    node.publish(&publish(id, &staging, &target, true)).await.expect("published");
    let file = std::fs::metadata(&target).expect("a file");
    assert!(file.file_type().is_block_device());
    let request = NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: target.clone(),
        capacity_range: Some(CapacityRange { required_bytes: 3 << 20, limit_bytes: 0 }),
        ..Default::default()
    };
    assert_eq!(node.expand(&request).await.expect("expanded"), 3 << 20);
    let mut device = std::fs::File::open(&target).expect("the device");
    let end = std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0)).expect("its size");
    assert_eq!(end, 3 << 20);
    drop(device);
    world.unpublish(id, "device").await.expect("unpublished");
    node.unstage(&unstage(id, &staging)).await.expect("unstaged");
    assert!(!Path::new(&target).exists());
}

#[tokio::test]
async fn ephemeral_volume_is_deleted_on_unpublish_and_no_secret_is_logged() {
    let world = TestedDriver::new(&[]).await;
    world.publish_ephemeral("csi-abc", "pod").await.expect("published");
    assert!(world.state().join("volumes/csi-abc").is_dir());
    world.unpublish("csi-abc", "pod").await.expect("unpublished");
    assert!(!world.state().join("volumes/csi-abc").exists());
    let text = std::fs::read_to_string(world.state().join("calls.jsonl")).expect("a log");
    assert!(text.contains("password") && !text.contains("s3cret"), "{text}");
    let refused = world.publish_ephemeral("../out", "pod").await.expect_err("it leads out");
    assert_eq!(refused.code, Code::InvalidArgument);
}

#[tokio::test]
async fn call_answered_twice_takes_effect_and_fails_for_the_client() {
    let world = TestedDriver::new(&["--without=attach"]).await;
    let id = volume(&world.state(), false);
    let (node, staging) = (world.node().await, world.path("stage"));
    world.faults(&[Rule::new("NodeStageVolume", Fault::Twice).times(1)]);
    let error = node.stage(&stage(id, &staging, false)).await.expect_err("two answers");
    assert_eq!(error.message, "more than one answer");
    assert!(!error.is_final(), "it may have been staged");
    node.unstage(&unstage(id, &staging)).await.expect("it was, and is unstaged");
    assert!(world.violations().is_empty());
}

#[tokio::test]
async fn faults_fail_calls_lose_answers_and_hang_until_they_are_lifted() {
    let world = TestedDriver::new(&[]).await;
    let method = "NodePublishVolume";
    let fail = |code: Code| Fault::Fail { code: code as i32, message: "on demand".to_owned() };
    world.faults(&[Rule::new(method, fail(Code::Internal)).times(1)]);
    let failed = world.publish_ephemeral("csi-a", "a").await.expect_err("it fails");
    assert!(failed.is_final() && !Path::new(&world.path("a")).exists());
    world.faults(&[Rule::new(method, fail(Code::Unavailable)).after().times(1)]);
    let lost = world.publish_ephemeral("csi-a", "a").await.expect_err("the answer is lost");
    assert!(!lost.is_final() && Path::new(&world.path("a")).exists());
    world.publish_ephemeral("csi-a", "a").await.expect("a repetition");
    world.faults(&[Rule::new("NodeUnpublishVolume", Fault::Hang)]);
    let node = world.node().await;
    let (volume_id, target_path) = ("csi-a".to_owned(), world.path("a"));
    let hanging = tokio::spawn(async move {
        node.unpublish(&NodeUnpublishVolumeRequest { volume_id, target_path }).await
    });
    let has_begun =
        |line: &Line| line.method == "NodeUnpublishVolume" && line.phase == Phase::Begin;
    while !world.lines().iter().any(has_begun) {
        tokio::task::yield_now().await;
    }
    world.publish_ephemeral("csi-b", "b").await.expect("another volume is not held up");
    assert!(!hanging.is_finished());
    world.faults(&[]);
    let ended = tokio::time::timeout(PATIENCE, hanging).await.expect("it goes on");
    ended.expect("no panic").expect("unpublished");
    world.unpublish("csi-b", "b").await.expect("unpublished");
    assert!(world.violations().is_empty());
}

#[tokio::test]
async fn driver_facts_match_its_flags() {
    let flags = ["--max-volumes=5", "--topology=test.pintle.dev/zone=a", "--without=stats,stage"];
    let world = TestedDriver::new(&flags).await;
    let driver = world.drivers.find(NAME).expect("registered");
    assert_eq!((driver.facts.node_id.as_str(), driver.facts.max_volumes), ("node-1", Some(5)));
    assert_eq!(driver.facts.topology["test.pintle.dev/zone"], "a");
    assert!(driver.capabilities.expands && driver.capabilities.mounts_for_group);
    assert!(!driver.capabilities.stages && !driver.capabilities.has_stats);
}
