//! A process is killed in the middle of making, updating and removing volumes, again and again:
//! readers never see a mix, and one sweep leaves nothing behind.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::volume::execute::{mount_all, remove_pod_dir, unmount_all};
use crate::volume::mount::below;
use crate::volume::orphan::sweep;

const ROOT: &str = "PINTLE_TEST_CRASH_ROOT";
const KILLS: u64 = 100;
/// Pods that the child makes and removes in turn.
const PODS: u64 = 3;
/// Longest time that a child may live after its first step.
const LIFE_MICROS_MAX: u64 = 40_000;

/// Every file of one version says so.
struct Versioned(u64);

impl ContentSource for Versioned {
    async fn config_map(&self, _: &str, _: &str) -> Result<KeyValues, ContentError> {
        let text = self.0.to_string();
        let mut files: KeyValues =
            (0..6).map(|n| (format!("k{n}"), text.as_bytes().into())).collect();
        // A key that only this version has.
        files.insert(format!("only-{}", self.0 % 2), text.into_bytes().into());
        Ok(files)
    }

    async fn secret(&self, ns: &str, name: &str) -> Result<KeyValues, ContentError> {
        self.config_map(ns, name).await
    }

    async fn token(&self, _: &TokenRequest) -> Result<String, ContentError> {
        Ok(self.0.to_string())
    }
}

fn crash_pod(root: &Path, number: u64) -> Pod {
    let mut pod = pod(json!({
        "volumes": [
            {"name": "disk", "emptyDir": {}},
            {"name": "cm", "configMap": {"name": "cm"}},
            {"name": "mem", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
            {"name": "sec", "secret": {"secretName": "sec"}},
            {"name": "host", "hostPath": {"path": root.join("host")}}],
        "containers": [{"name": "c", "volumeMounts": [
            {"name": "disk", "mountPath": "/d", "subPath": "a/b"},
            {"name": "host", "mountPath": "/h", "subPath": "precious"},
            {"name": "cm", "mountPath": "/f", "subPath": "k1"}]}]}));
    pod.metadata.uid = Some(format!("uid-{number}"));
    pod
}

/// Makes, updates and removes pods until it is killed.
fn live(root: &Path) -> ! {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let mut version = u64::from(std::process::id());
    println!("started");
    loop {
        version += 1;
        let pod = crash_pod(root, version % PODS);
        let volumes = plan(root, &pod);
        super::super::execute::make_pod_dirs(&volumes.dirs).expect("directories");
        for version in [version, version + 1, version + 2] {
            let content = Versioned(version);
            let uid = "u".into();
            let done =
                mount_all(&uid, &volumes, UsageMeasure::Walk, &content, jiff::Timestamp::now());
            runtime.block_on(done).expect("mounted");
            let container = &pintle_api_types::pod::spec(&pod).containers[0];
            let mounts = volumes.mounts(container, &no_env(), false).expect("planned");
            prepare(&mounts).expect("prepared");
        }
        fs::write(volumes.dirs.volume("kubernetes.io~empty-dir", "disk").join("file"), "x")
            .expect("written");
        if !version.is_multiple_of(2) {
            unmount_all(&volumes.dirs).expect("taken away");
            remove_pod_dir(&volumes.dirs).expect("removed");
        }
    }
}

#[test]
#[ignore = "the process that the next test kills"]
fn the_process_that_is_killed() {
    if let Some(root) = std::env::var_os(ROOT) {
        live(Path::new(&root));
    }
}

#[test]
fn a_hundred_kills_leave_no_mix_of_versions_no_orphan_and_lose_no_data() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let precious = root.path().join("host/precious/file");
        fs::create_dir_all(precious.parent().expect("a parent")).expect("mkdir");
        fs::write(&precious, "keep me").expect("write");
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for kill in 0..KILLS {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(kill);
            run_and_kill(root.path(), Duration::from_micros((random >> 33) % LIFE_MICROS_MAX));
            no_mix(root.path());
            if kill % 3 == 0 {
                repairs(root.path(), kill);
            }
            if kill % 2 == 0 {
                let swept = sweep(root.path(), &std::collections::BTreeSet::new()).expect("swept");
                assert_eq!(swept.warning(), None);
                assert_eq!(below(root.path()).expect("mounts"), Vec::<PathBuf>::new());
                // Not even made when the first child was killed at once.
                let left = fs::read_dir(root.path().join("pods")).map_or(0, Iterator::count);
                assert_eq!(left, 0, "directories left after kill {kill}");
            }
            assert_eq!(fs::read_to_string(&precious).expect("kept"), "keep me");
        }
        sweep(root.path(), &std::collections::BTreeSet::new()).expect("swept");
    });
}

/// Runs the child, in this thread's mounts, for `life` after its start.
fn run_and_kill(root: &Path, life: Duration) {
    let name = "volume::tests::crash::the_process_that_is_killed";
    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(ROOT, root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("spawned");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    // The harness prints the test's name on the same line.
    let started = output.lines().map_while(Result::ok).any(|line| line.ends_with("started"));
    std::thread::sleep(life);
    let early = child.try_wait().expect("waited");
    child.kill().expect("killed");
    child.wait().expect("waited");
    assert!(started && early.is_none(), "the child ended by itself: {early:?}");
}

fn payload_dirs(root: &Path) -> Vec<PathBuf> {
    let pods = fs::read_dir(root.join("pods")).into_iter().flatten().flatten();
    let volumes = pods.flat_map(|pod| {
        let dir = pod.path().join("volumes");
        [dir.join("kubernetes.io~configmap/cm"), dir.join("kubernetes.io~secret/sec")]
    });
    volumes.filter(|dir| dir.join("..data").is_dir()).collect()
}

/// Checks the files that a container would read through `..data`.
fn no_mix(root: &Path) {
    for dir in payload_dirs(root) {
        let read = |n: u32| {
            let path = dir.join(format!("..data/k{n}"));
            fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        let first = read(0);
        assert!(!first.is_empty());
        assert!((1..6).all(|n| read(n) == first), "a mix in {}", dir.display());
        let version: u64 = first.parse().expect("a version");
        assert!(dir.join(format!("..data/only-{}", version % 2)).exists());
        assert!(!dir.join(format!("..data/only-{}", (version + 1) % 2)).exists());
    }
}

/// The next write of a volume puts right what the kill left in it.
fn repairs(root: &Path, version: u64) {
    for number in 0..PODS {
        let pod = crash_pod(root, number);
        let volumes = plan(root, &pod);
        if !volumes.dirs.pod().exists() {
            continue;
        }
        super::super::execute::make_pod_dirs(&volumes.dirs).expect("directories");
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        let content = Versioned(version);
        let uid = "u".into();
        let done = mount_all(&uid, &volumes, UsageMeasure::Walk, &content, jiff::Timestamp::now());
        runtime.block_on(done).expect("mounted");
        for dir in [
            volumes.dirs.volume("kubernetes.io~configmap", "cm"),
            volumes.dirs.volume("kubernetes.io~secret", "sec"),
        ] {
            let names = fs::read_dir(&dir).expect("read").flatten().map(|e| e.file_name());
            let mut names: Vec<String> = names
                .map(|n| n.to_string_lossy().into_owned())
                .filter(|n| !n.starts_with("..2"))
                .collect();
            names.sort();
            let only = format!("only-{}", version % 2);
            assert_eq!(names, ["..data", "k0", "k1", "k2", "k3", "k4", "k5", &only]);
            assert_eq!(fs::read_dir(&dir).expect("read").count(), 9, "one version is left");
        }
    }
}
