//! On the host's real hierarchies, each test below a root of its own that it removes again.

use std::process::{Child, Command, Stdio};

use super::*;

/// A cgroup root of one test; gone when the test ends, however it ends.
struct Root {
    cgroups: Cgroups,
    name: String,
}

impl Root {
    /// `None`, said in one line, where cgroups cannot be made at all.
    fn new(test: &str) -> Option<Self> {
        let name = format!("pintle-test-{}-{test}", std::process::id());
        let cgroups = Cgroups::open(&format!("/{name}")).ok()?;
        match cgroups.create_pod("kubepods", &CgroupLimits::default()) {
            Ok(()) => Some(Self { cgroups, name }),
            Err(error) => {
                eprintln!("skipped: cgroups cannot be made here: {error}");
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

#[test]
fn a_pod_cgroup_exists_in_every_hierarchy_with_its_limits() {
    let Some(root) = Root::new("limits") else { return };
    let pod = "kubepods/poda";
    assert!(!root.cgroups.exists(pod));
    root.cgroups.create_pod(pod, &guaranteed()).expect("created");
    assert!(root.cgroups.exists(pod));
    if root.cgroups.is_v2() {
        assert_eq!(root.read(pod, "", "cpu.max"), "50000 100000");
        assert_eq!(root.read(pod, "", "memory.max"), (64 << 20).to_string());
    } else {
        assert_eq!(root.read(pod, "cpu", "cpu.shares"), "512");
        assert_eq!(root.read(pod, "cpu", "cpu.cfs_quota_us"), "50000");
        assert_eq!(root.read(pod, "memory", "memory.limit_in_bytes"), (64 << 20).to_string());
        assert!(!root.read(pod, "cpuset", "cpuset.cpus").is_empty(), "a v1 cpuset needs CPUs");
        assert!(root.cgroups.dir(pod, "systemd").is_none_or(|dir| dir.is_dir()));
    }
    assert_eq!(root.read(pod, "pids", "pids.max"), "100");
}

#[test]
fn an_update_lifts_limits_again() {
    let Some(root) = Root::new("update") else { return };
    let pod = "kubepods/poda";
    root.cgroups.create_pod(pod, &guaranteed()).expect("created");
    let open = CgroupLimits {
        cpu_shares: Some(2),
        cpu_quota_us: Some(-1),
        memory_limit: Some(-1),
        pids_max: Some(-1),
        ..CgroupLimits::default()
    };
    root.cgroups.update_pod(pod, &open).expect("updated");
    assert_eq!(root.read(pod, "pids", "pids.max"), "max");
    if !root.cgroups.is_v2() {
        assert_eq!(root.read(pod, "cpu", "cpu.shares"), "2");
        assert_eq!(root.read(pod, "cpu", "cpu.cfs_quota_us"), "-1");
        assert_eq!(root.read(pod, "memory", "memory.limit_in_bytes"), "9223372036854771712");
    }
}

#[test]
fn the_quality_of_service_tree_is_made_and_updated_in_place() {
    let Some(root) = Root::new("qos") else { return };
    let shares = |s| CgroupLimits { cpu_shares: Some(s), ..CgroupLimits::default() };
    let mut limits = QosLimits { node: shares(2048), burstable: shares(2), besteffort: shares(2) };
    root.cgroups.ensure_qos(&limits).expect("made");
    let id = root.cgroups.id("kubepods/burstable", "cpu");
    assert!(id.is_some());
    limits.burstable = shares(300);
    root.cgroups.ensure_qos(&limits).expect("updated");
    assert_eq!(root.cgroups.id("kubepods/burstable", "cpu"), id, "the cgroup stays the same one");
    if !root.cgroups.is_v2() {
        assert_eq!(root.read("kubepods/burstable", "cpu", "cpu.shares"), "300");
    }
}

#[tokio::test]
async fn removal_kills_what_still_runs_in_nested_cgroups_and_leaves_nothing() {
    let Some(root) = Root::new("remove") else { return };
    let pod = "kubepods/besteffort/poda";
    root.cgroups.create_pod(pod, &CgroupLimits::default()).expect("created");
    let mut sleeper = Sleeper::inside(&root, "kubepods/besteffort/poda/container");
    let pid = i32::try_from(sleeper.0.id()).expect("a pid");
    assert!(root.cgroups.pids(pod).expect("read").contains(&pid));
    root.cgroups.remove_pod(pod).await.expect("removed");
    assert!(root.cgroups.dirs(pod).all(|dir| !dir.exists()));
    let status = sleeper.0.wait().expect("waited");
    assert!(!status.success(), "the process was killed");
    assert!(root.cgroups.exists("kubepods"), "nothing above was touched");
    root.cgroups.remove_pod(pod).await.expect("gone already is fine");
}

#[test]
fn names_that_climb_out_of_the_root_are_refused() {
    let Ok(cgroups) = Cgroups::open("/pintle-test-names") else { return };
    for name in ["", "/kubepods", "kubepods/../..", "kubepods//pod", "."] {
        let refused = cgroups.create_pod(name, &CgroupLimits::default());
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
