//! The harness itself: a node is up quickly, is separate from the host, and leaves nothing.

use std::path::Path;

use pintle_testbed::{LONG, Options, RawCri, TestNode, until};
use xtask::node::cgroups;
use xtask::runtime::Version;

fn bare(version: Version) -> TestNode {
    TestNode::start(Options { version, agent: false, ..Options::default() })
}

#[test]
fn every_containerd_release_starts_with_the_images_and_leaves_nothing_behind() {
    for version in Version::sampled().expect("releases") {
        let node = bare(version);
        let images = node.runtime_node().ctr(&["images", "ls", "-q"]).expect("ctr answers");
        for image in ["pintle.test/pause:1", "pintle.test/busybox:1", "pintle.test/box:1"] {
            assert!(images.contains(image), "containerd {}: {images}", version.name());
        }
        let (name, dir) = (node.runtime_node().name().to_owned(), node.dir().to_owned());
        drop(node);
        assert!(!dir.exists());
        assert_eq!(cgroups::below(&name).expect("readable"), [""; 0]);
        assert_eq!(xtask::node::process::marked(&name), [0; 0]);
    }
}

#[test]
fn a_killed_containerd_comes_back_in_the_same_namespaces() {
    let mut node = bare(Version::usual().expect("a release"));
    let node = node.runtime_node_mut();
    let before = std::fs::read_link(net_of(node.containerd_pid())).expect("it runs");
    node.kill_containerd();
    node.start_containerd().expect("it starts again");
    let after = std::fs::read_link(net_of(node.containerd_pid())).expect("it runs");
    assert_eq!(before, after);
    assert_ne!(after, std::fs::read_link("/proc/self/ns/net").expect("ours"));
}

fn net_of(pid: Option<u32>) -> std::path::PathBuf {
    Path::new("/proc").join(pid.expect("containerd runs").to_string()).join("ns/net")
}

#[test]
fn a_panicking_test_leaves_no_process_no_cgroup_and_no_folder() {
    let mut seen = None;
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let node = bare(Version::usual().expect("a release"));
        let cri = RawCri::connect(&node).expect("connected");
        let pod = cri.run_pod("lost").expect("a sandbox");
        let id = cri.run_container(&pod, "c", &["/box", "signals", "60000"]).expect("a container");
        let pids = [&pod.id, &id].map(|id| node.container_pid(id).expect("it runs"));
        // A frozen shim must not keep anything alive either.
        node.signal_shim(&pod.id, nix::sys::signal::Signal::SIGSTOP);
        seen = Some((node.runtime_node().name().to_owned(), node.dir().to_owned(), pids));
        panic!("on purpose");
    }));
    assert!(panicked.is_err());
    let (name, dir, pids) = seen.expect("the pod was there");
    assert!(!dir.exists());
    assert_eq!(cgroups::below(&name).expect("readable"), [""; 0]);
    until(LONG, "every process is gone", || {
        let left = xtask::node::process::marked(&name);
        anyhow::ensure!(left.is_empty(), "marked: {left:?}");
        // A killed process that waits for its parent has no command line any more.
        let left = pids.map(xtask::node::process::arguments);
        anyhow::ensure!(left.iter().all(|args| !args.iter().any(|a| a == "/box")), "{left:?}");
        Ok(())
    });
}
