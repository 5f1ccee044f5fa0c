//! A file system that answers nothing, as one whose server is dead: whatever looks at a file of it
//! waits until somebody gives up the mount.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use pintle_tests::manifest::{With, condition, container, pod};
use serde_json::json;
use xtask::node::agent::READ_ONLY_PORT;
use xtask::shell;

use crate::attacks;
use crate::ground::Ground;
use crate::support::{host, kill, with_host};

attacks!("hung":
    host_paths_on_a_dead_server,
    a_dead_server_inside_of_a_volume,
);

/// A mount in the node behind which nobody answers. It fails at once when this is dropped, and is
/// taken away.
struct Hung<'a> {
    ground: &'a Ground,
    at: PathBuf,
    server: Option<File>,
}

impl<'a> Hung<'a> {
    fn mount(ground: &'a Ground, at: &Path) -> Self {
        fs::create_dir_all(at).expect("made");
        let fuse = File::options().read(true).write(true).open("/dev/fuse");
        let server = fuse.expect("the kernel has FUSE");
        // The mount program names the descriptor, so it must get it.
        fcntl(&server, FcntlArg::F_SETFD(FdFlag::empty())).expect("kept for the mount");
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        let mut mount = ground.node.runtime_node().command(Path::new("mount"));
        mount.args(["-i", "-t", "fuse", "-o", &options, "dead"]).arg(at);
        shell::run(&mut mount).expect("mounted in the node");
        // Nobody else may hold what keeps the mount alive.
        fcntl(&server, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("for itself again");
        Self { ground, at: at.to_owned(), server: Some(server) }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        // What waits gets an error now.
        drop(self.server.take());
        let mut umount = self.ground.node.runtime_node().command(Path::new("umount"));
        let _ = shell::capture(umount.arg("-l").arg(&self.at));
    }
}

/// Twelve pods mount a folder there. The agent has to look at it for half of them, the runtime for
/// all that come so far.
fn host_paths_on_a_dead_server(ground: &mut Ground) {
    let dir = ground.node.dir().join("dead");
    let hung = Hung::mount(ground, &dir);
    for n in 0..12 {
        let mut volume = host(&dir.join("folder"));
        volume[0]["hostPath"]["type"] = json!(["Directory", ""][n % 2]);
        let name = format!("waits{n}");
        let waits = pod(&name, &[with_host(container("c", &["/box", "pause"]))]);
        ground.node.put(&format!("{name}.json"), &waits.with_spec("volumes", volume));
    }
    let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
    ground.bystander("while they wait");
    for n in 0..12 {
        ground.node.remove(&format!("waits{n}.json"));
    }
    ground.bystander("while they are to go");
    drop(hung);
}

/// The server of something that was mounted inside of a pod's volume dies: the pod's container dies
/// and is started again, the volume is measured, and the pod is removed.
fn a_dead_server_inside_of_a_volume(ground: &mut Ground) {
    let c = container("c", &["/box", "pause"])
        .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    let manifest = pod("holds", &[c]).with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]));
    ground.node.put("holds.json", &manifest);
    let holds = ground.node.pod_until("holds", "is ready", |p| condition(p, "Ready"));
    let uid = holds.metadata.uid.clone().expect("a uid");
    let volumes = ground.node.root().join("pods").join(uid).join("volumes");
    let hung = Hung::mount(ground, &volumes.join("kubernetes.io~empty-dir/v/dead"));
    let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
    kill(&ground.node, &holds, "c");
    ground.bystander("beside it");
    ground.node.remove("holds.json");
    ground.bystander("while it is to go");
    drop(hung);
    ground.node.gone("holds");
}
