//! On the host's real hierarchies, each test below a root of its own that it removes again.

use std::fs;
use std::process::{Child, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::super::tree::remove_tree;
use super::*;

/// A cgroup root of one test; removed when the test ends or panics.
struct Root {
    cgroups: Cgroups,
    name: String,
}

impl Root {
    /// `None`, with one line of output, where cgroups cannot be created at all.
    async fn new(test: &str) -> Option<Self> {
        let name = format!("pintle-test-{}-{test}", std::process::id());
        let cgroups = Cgroups::open(&format!("/{name}")).ok()?;
        match cgroups.create_pod("kubepods", &CgroupLimits::default()).await {
            Ok(()) => Some(Self { cgroups, name }),
            Err(error) => {
                xtask::skip(&format!("cgroups cannot be made here: {error}"));
                None
            }
        }
    }

    fn read(&self, name: &str, controller: &str, file: &str) -> String {
        let path = self.cgroups.dir(name, controller).expect("mounted").join(file);
        fs::read_to_string(path).expect("readable").trim().to_owned()
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let all = Cgroups::open("/").expect("opened before");
        for pid in all.pids(&self.name).unwrap_or_default() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        for dir in all.dirs(&self.name) {
            let _ = remove_tree(&dir);
        }
    }
}

/// A sleeping process inside a cgroup of every hierarchy.
struct Sleeper(Child);

impl Sleeper {
    fn inside(root: &Root, name: &str) -> Self {
        let child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().expect("spawn");
        for dir in root.cgroups.dirs(name) {
            fs::create_dir_all(&dir).expect("mkdir");
            for file in ["cpuset.cpus", "cpuset.mems"] {
                // v1 refuses processes in a cpuset without CPUs; the runtime fills it in life.
                if let Ok(value) = fs::read_to_string(dir.parent().expect("below").join(file)) {
                    let _ = fs::write(dir.join(file), value.trim());
                }
            }
            fs::write(dir.join("cgroup.procs"), child.id().to_string()).expect("join");
        }
        Self(child)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn guaranteed() -> CgroupLimits {
    CgroupLimits {
        cpu_shares: Some(512),
        cpu_quota_us: Some(50_000),
        cpu_period_us: Some(100_000),
        memory_limit: Some(64 << 20),
        pids_max: Some(100),
        ..CgroupLimits::default()
    }
}

#[tokio::test]
async fn a_pod_cgroup_exists_in_every_hierarchy_with_its_limits() {
    let Some(root) = Root::new("limits").await else { return };
    let pod = "kubepods/poda";
    assert!(!root.cgroups.exists(pod));
    root.cgroups.create_pod(pod, &guaranteed()).await.expect("created");
    assert!(root.cgroups.exists(pod));
    if root.cgroups.is_v2() {
        assert_eq!(root.read(pod, "", "cpu.max"), "50000 100000");
        assert_eq!(root.read(pod, "", "memory.max"), (64 << 20).to_string());
        assert_eq!(root.read(pod, "", "cpu.weight"), "20");
    } else {
        assert_eq!(root.read(pod, "cpu", "cpu.shares"), "512");
        assert_eq!(root.read(pod, "cpu", "cpu.cfs_quota_us"), "50000");
        assert_eq!(root.read(pod, "memory", "memory.limit_in_bytes"), (64 << 20).to_string());
        assert!(!root.read(pod, "cpuset", "cpuset.cpus").is_empty(), "a v1 cpuset needs CPUs");
        assert!(root.cgroups.dir(pod, "systemd").is_none_or(|dir| dir.is_dir()));
    }
    assert_eq!(root.read(pod, "pids", "pids.max"), "100");
}

#[tokio::test]
async fn an_update_lifts_limits_again() {
    let Some(root) = Root::new("update").await else { return };
    let pod = "kubepods/poda";
    root.cgroups.create_pod(pod, &guaranteed()).await.expect("created");
    let open = CgroupLimits {
        cpu_shares: Some(2),
        cpu_quota_us: Some(-1),
        memory_limit: Some(-1),
        pids_max: Some(-1),
        ..CgroupLimits::default()
    };
    root.cgroups.update_pod(pod, &open).await.expect("updated");
    assert_eq!(root.read(pod, "pids", "pids.max"), "max");
    if root.cgroups.is_v2() {
        assert_eq!(root.read(pod, "", "cpu.weight"), "1");
        assert_eq!(root.read(pod, "", "cpu.max"), "max 100000");
        assert_eq!(root.read(pod, "", "memory.max"), "max");
    } else {
        assert_eq!(root.read(pod, "cpu", "cpu.shares"), "2");
        assert_eq!(root.read(pod, "cpu", "cpu.cfs_quota_us"), "-1");
        assert_eq!(root.read(pod, "memory", "memory.limit_in_bytes"), "9223372036854771712");
    }
}

#[tokio::test]
async fn the_quality_of_service_tree_is_made_and_updated_in_place() {
    let Some(root) = Root::new("qos").await else { return };
    let shares = |s| CgroupLimits { cpu_shares: Some(s), ..CgroupLimits::default() };
    let mut limits = QosLimits { node: shares(2048), burstable: shares(2), besteffort: shares(2) };
    root.cgroups.ensure_qos(&limits).await.expect("made");
    let id = root.cgroups.id("kubepods/burstable", "cpu");
    assert!(id.is_some());
    limits.burstable = shares(300);
    root.cgroups.ensure_qos(&limits).await.expect("updated");
    assert_eq!(root.cgroups.id("kubepods/burstable", "cpu"), id, "the cgroup stays the same one");
    if !root.cgroups.is_v2() {
        assert_eq!(root.read("kubepods/burstable", "cpu", "cpu.shares"), "300");
    }
}

#[tokio::test]
async fn process_that_left_the_cgroup_is_not_killed_by_its_pid() {
    let Some(root) = Root::new("left").await else { return };
    let pod = "kubepods/besteffort/podb";
    root.cgroups.create_pod(pod, &CgroupLimits::default()).await.expect("created");
    let mut sleeper = Sleeper::inside(&root, "kubepods/besteffort/podb/container");
    let pid = i32::try_from(sleeper.0.id()).expect("a pid");
    // As if the PID had been read and belonged to another process now.
    for dir in root.cgroups.dirs("kubepods") {
        fs::write(dir.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
    root.cgroups.kill(pod, &[pid]).expect("read");
    assert!(sleeper.0.try_wait().expect("asked").is_none(), "it lives");
    sleeper.0.kill().expect("killed");
    sleeper.0.wait().expect("waited");
}

#[tokio::test]
async fn cgroup_removal_kills_processes_in_nested_cgroups_and_removes_every_directory() {
    let Some(root) = Root::new("remove").await else { return };
    let pod = "kubepods/besteffort/poda";
    root.cgroups.create_pod(pod, &CgroupLimits::default()).await.expect("created");
    assert!(root.cgroups.has_no_process(pod));
    let mut sleeper = Sleeper::inside(&root, "kubepods/besteffort/poda/container");
    let pid = i32::try_from(sleeper.0.id()).expect("a pid");
    assert!(root.cgroups.pids(pod).expect("read").contains(&pid));
    assert!(!root.cgroups.has_no_process(pod));
    root.cgroups.remove_pod(pod).await.expect("removed");
    assert!(!root.cgroups.has_no_process(pod), "it does not exist");
    assert!(root.cgroups.dirs(pod).all(|dir| !dir.exists()));
    let status = sleeper.0.wait().expect("waited");
    assert!(!status.success(), "the process was killed");
    assert!(root.cgroups.exists("kubepods"), "nothing above was touched");
    root.cgroups.remove_pod(pod).await.expect("gone already is fine");
}

#[tokio::test]
async fn processes_in_the_cgroup_of_an_unknown_pod_are_killed_by_the_second_sweep() {
    use crate::cgroup::sweep::Strangers;
    let Some(root) = Root::new("sweep").await else { return };
    let class = "kubepods/besteffort".to_owned();
    let pod = |name: &str| format!("{class}/pod{name}");
    for name in ["known", "strange", "empty", "coming"] {
        root.cgroups.create_pod(&pod(name), &CgroupLimits::default()).await.expect("created");
    }
    let run = |name: &str| Sleeper::inside(&root, &format!("{}/container", pod(name)));
    let [mut known, mut strange, mut coming] = ["known", "strange", "coming"].map(run);
    let strangers = Strangers::default();
    let uid_of = |leaf: &str| leaf.strip_prefix("pod").map(PodUid::from);
    let sweep = async |all_known: &[&str]| {
        let is_known = |uid: &PodUid| all_known.contains(&uid.as_str());
        root.cgroups.sweep(std::slice::from_ref(&class), uid_of, &strangers, is_known).await;
    };
    sweep(&["known"]).await;
    assert!(root.cgroups.dirs(&pod("empty")).all(|dir| !dir.exists()));
    for sleeper in [&mut known, &mut strange, &mut coming] {
        assert!(sleeper.0.try_wait().expect("asked").is_none(), "it may be on its way");
    }
    sweep(&["known", "coming"]).await;
    assert!(!strange.0.wait().expect("waited").success(), "it was killed");
    assert!(root.cgroups.dirs(&pod("strange")).all(|dir| !dir.exists()));
    for sleeper in [&mut known, &mut coming] {
        assert!(sleeper.0.try_wait().expect("asked").is_none(), "its pod is known");
    }
    assert!(root.cgroups.exists(&class), "nothing above was touched");
}

#[tokio::test]
async fn cgroup_missing_from_some_hierarchies_is_swept_from_the_remaining_hierarchies() {
    use crate::cgroup::sweep::Strangers;
    let Some(root) = Root::new("partly").await else { return };
    let class = "kubepods/besteffort".to_owned();
    let count = root.cgroups.dirs(&class).count();
    let pod = |number: usize| format!("{class}/pod{number}");
    for number in 0..count {
        root.cgroups.create_pod(&pod(number), &CgroupLimits::default()).await.expect("created");
        for (_, dir) in root.cgroups.dirs(&pod(number)).enumerate().filter(|(n, _)| *n != number) {
            fs::remove_dir(dir).expect("removed");
        }
    }
    let uid_of = |leaf: &str| leaf.strip_prefix("pod").map(PodUid::from);
    let strangers = Strangers::default();
    root.cgroups.sweep(std::slice::from_ref(&class), uid_of, &strangers, |_| false).await;
    for number in 0..count {
        assert!(root.cgroups.dirs(&pod(number)).all(|dir| !dir.exists()), "hierarchy {number}");
    }
}

#[tokio::test]
async fn names_that_climb_out_of_the_root_are_refused() {
    let Ok(cgroups) = Cgroups::open("/pintle-test-names") else { return };
    for name in ["", "/kubepods", "kubepods/../..", "kubepods//pod", "."] {
        let refused = cgroups.create_pod(name, &CgroupLimits::default()).await;
        assert!(matches!(refused, Err(CgroupError::BadName(_))), "{name:?}");
    }
}

#[test]
fn the_runtimes_parent_path_starts_at_the_configured_root() {
    for (root, path) in [("/", "/kubepods/podx"), ("/a/b", "/a/b/kubepods/podx")] {
        let Ok(cgroups) = Cgroups::open(root) else { return };
        assert_eq!(cgroups.runtime_path("kubepods/podx"), path);
    }
}

/// The steps of a resize in order, and the values read before and after it.
#[tokio::test]
async fn a_resize_is_written_step_by_step_and_read_back() {
    let Some(root) = Root::new("resize").await else { return };
    let cgroups = &root.cgroups;
    let pod = "kubepods/burstable/poda";
    cgroups.create_pod(pod, &guaranteed()).await.expect("created");
    resized(cgroups, pod).await;
    let sleeper = Sleeper::inside(&root, "kubepods/burstable/poda/container");
    let charged = || cgroups.memory_usage(pod).expect("read");
    assert!(charged() >= 0, "{}", sleeper.0.id());
    if cgroups.is_v2() {
        let files = ["memory.min", "memory.low", "memory.high"];
        let unified = files.map(|file| (file.to_owned(), (8 << 20).to_string())).to_vec();
        let limits = CgroupLimits { unified, ..CgroupLimits::default() };
        cgroups.update_pod(pod, &limits).await.expect("updated");
        for file in files {
            assert_eq!(root.read(pod, "", file), (8 << 20).to_string(), "{file}");
        }
    }
}

/// Grows and shrinks one resource after the other; what reads back is what was rounded before.
async fn resized(cgroups: &Cgroups, pod: &str) {
    let all = CgroupLimits::default;
    let (period, quota) = (100_000, 25_500);
    let steps = [
        CgroupLimits { memory_limit: Some(128 << 20), ..all() },
        CgroupLimits { cpu_period_us: Some(period), cpu_quota_us: Some(quota), ..all() },
        CgroupLimits { cpu_shares: Some(256), ..all() },
        CgroupLimits { memory_limit: Some(32 << 20), ..all() },
        CgroupLimits { cpu_period_us: Some(period), cpu_quota_us: Some(-1), ..all() },
    ];
    let mut want = cgroups.figures(pod).expect("read");
    assert_eq!((want.memory_limit, want.cpu_quota_us), (64 << 20, 50_000));
    assert_eq!(want.cpu_shares, cgroups.rounded_shares(512));
    for step in steps {
        cgroups.update_pod(pod, &step).await.expect("updated");
        want.memory_limit = step.memory_limit.unwrap_or(want.memory_limit);
        let rounded = |quota| cgroups.rounded_quota(quota, period);
        want.cpu_quota_us = step.cpu_quota_us.map_or(want.cpu_quota_us, rounded);
        want.cpu_shares =
            step.cpu_shares.map_or(want.cpu_shares, |shares| cgroups.rounded_shares(shares));
        assert_eq!(cgroups.figures(pod).expect("read"), want, "{step:?}");
    }
}

#[test]
fn existing_cgroup_root_is_distinguished_from_a_missing_root() {
    let Ok(top) = Cgroups::open("/") else { return };
    assert!(top.has_root());
    let missing = Cgroups::open("/pintle-test-nobody/made-it").expect("opened before");
    assert!(!missing.has_root());
}

/// Needs a host where systemd runs: `cargo xtask vm --systemd`.
#[tokio::test]
async fn slices_are_made_limited_and_stopped_by_systemd() {
    if !systemd::is_running() {
        xtask::skip("systemd does not run on this host");
        return;
    }
    let root = format!("/pintle-test-{}", std::process::id());
    let setup = CgroupSetup { root, driver: CgroupDriver::Systemd, ..CgroupSetup::default() };
    let cgroups = Cgroups::of(&setup).expect("opened");
    let path = setup.pod(QosClass::Burstable, &pintle_agent_core::types::PodUid::from("a-b"));
    let pod = setup.below_root(&path);
    let show = |name: &str| {
        let mut cmd = Command::new("systemctl");
        cmd.args(["show", "--value", "--property", name, unit::unit_of(pod)]);
        let out = cmd.output().expect("systemctl runs");
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    };
    assert!(!cgroups.exists(pod));
    cgroups.create_pod(pod, &guaranteed()).await.expect("created");
    assert!(cgroups.exists(pod));
    assert_eq!((show("ActiveState").as_str(), show("TasksMax").as_str()), ("active", "100"));
    resized(&cgroups, pod).await;
    cgroups.create_pod(pod, &guaranteed()).await.expect("there already");
    let before = cgroups.figures(pod).expect("read");
    let reload = Command::new("systemctl").arg("daemon-reload").status().expect("systemctl runs");
    assert!(reload.success());
    assert_eq!(cgroups.figures(pod).expect("read"), before, "systemd writes what we wrote");
    cgroups.remove_pod(pod).await.expect("removed");
    assert!(!cgroups.exists(pod));
    assert_eq!(show("ActiveState"), "inactive");
    cgroups.remove_pod(pod).await.expect("gone already is fine");
    let top = pod.split('/').next().expect("a slice");
    cgroups.remove_pod(top).await.expect("removed with what is in it");
    assert!(!cgroups.exists(top));
}
