//! File systems of a dead server, of a slow one, and of one that returns errors. A read or stat of
//! a file on the first kind blocks until the mount is aborted.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use nix::errno::Errno;
use pintle_testbed::attacks;
use pintle_testbed::manifest::{With, condition, container, pod};
use pintle_testbed::{LONG, until};
use serde_json::json;
use xtask::disk::{DiskFault, DiskOperation, Faulty, mount_fuse};
use xtask::node::agent::READ_ONLY_PORT;
use xtask::shell;

use crate::ground::AttackedNode;
use crate::support::{host, kill, running, with_host};

attacks!(AttackedNode, "hung":
    host_paths_on_a_dead_server,
    a_dead_server_inside_of_a_volume,
    volumes_of_a_dead_file_server,
    a_disk_of_messages_and_volumes_that_is_late_fails_and_hangs,
);

/// Pods on the dead file server; the test aborts their mounts one after the other.
const DEAD_PODS: usize = 6;

/// A mount in the node without answers from its server. Dropping this aborts and unmounts it.
struct Hung<'a> {
    ground: &'a AttackedNode,
    at: PathBuf,
    server: Option<File>,
}

impl<'a> Hung<'a> {
    fn mount(ground: &'a AttackedNode, at: &Path) -> Self {
        fs::create_dir_all(at).expect("made");
        let fuse = File::options().read(true).write(true).open("/dev/fuse");
        let server = fuse.expect("the kernel has FUSE");
        let options =
            format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", server.as_raw_fd());
        mount_in_node(ground, at, &server, &options);
        Self { ground, at: at.to_owned(), server: Some(server) }
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        // Waiting calls get an error now.
        drop(self.server.take());
        umount_in_node(self.ground, &self.at);
    }
}

fn mount_in_node(ground: &AttackedNode, at: &Path, server: &File, options: &str) {
    mount_fuse(ground.node.runtime_node().command(Path::new("mount")), server, options, at);
}

fn umount_in_node(ground: &AttackedNode, at: &Path) {
    let mut umount = ground.node.runtime_node().command(Path::new("umount"));
    let _ = shell::capture(umount.arg("-l").arg(at));
}

/// A mount in the node with operations that fail as the test sets.
struct Sick<'a> {
    ground: &'a AttackedNode,
    at: PathBuf,
    disk: Option<Faulty>,
}

impl<'a> Sick<'a> {
    fn mount(ground: &'a AttackedNode, at: &Path) -> Self {
        let mount = |device: &File, options: &str| mount_in_node(ground, at, device, options);
        let disk = Some(Faulty::mount_by(at, mount));
        Self { ground, at: at.to_owned(), disk }
    }

    /// Sets this fault for every operation.
    fn all(&self, fault: DiskFault) {
        let disk = self.disk.as_ref().expect("until it is dropped");
        DiskOperation::ALL.into_iter().for_each(|operation| disk.set(operation, fault));
    }

    fn hung(&self) -> usize {
        self.disk.as_ref().map_or(0, Faulty::hung)
    }
}

impl Drop for Sick<'_> {
    fn drop(&mut self) {
        drop(self.disk.take());
        umount_in_node(self.ground, &self.at);
    }
}

/// Twelve pods mount a folder there. The agent must stat it for half of them, the runtime for all
/// that get so far.
fn host_paths_on_a_dead_server(ground: &mut AttackedNode) {
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

/// The server of a mount inside of a pod's volume dies: the pod's container dies and restarts, the
/// volume is measured, and the pod is removed.
fn a_dead_server_inside_of_a_volume(ground: &mut AttackedNode) {
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

/// The server of the NFS volumes of several pods dies while a process of the node waits for it in
/// each, and the pods are removed: they end, and delay no other pod.
fn volumes_of_a_dead_file_server(ground: &mut AttackedNode) {
    let names: Vec<_> = (0..DEAD_PODS).map(|n| format!("nfs{n}")).collect();
    let mut dead = Vec::new();
    for name in &names {
        let manifest = pod(name, &[container("c", &["/box", "pause"])]);
        ground.node.put(&format!("{name}.json"), &manifest);
        let ready = ground.node.pod_until(name, "is ready", |p| condition(p, "Ready"));
        let uid = ready.metadata.uid.expect("a uid");
        let volumes = ground.node.root().join("pods").join(uid).join("volumes");
        let at = volumes.join("kubernetes.io~nfs/data");
        let hung = Hung::mount(ground, &at);
        let mut waits = ground.node.runtime_node().command(Path::new("stat"));
        let waits = waits.arg(at.join("x")).spawn().expect("started");
        dead.push((hung, waits));
    }
    let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
    ground.bystander("beside volumes of a dead file server");
    for name in &names {
        ground.node.remove(&format!("{name}.json"));
    }
    ground.bystander("while their pods are to go");
    // Nothing gives the mounts up but the agent.
    names.iter().for_each(|name| ground.node.gone(name));
    for (hung, mut waits) in dead {
        drop(hung);
        waits.wait().expect("its call was broken off");
    }
}

/// The disk of a pod's volume and its containers' messages is slow, then fails, then hangs, while
/// the container dies and restarts, is measured, and the pod is removed.
fn a_disk_of_messages_and_volumes_that_is_late_fails_and_hangs(ground: &mut AttackedNode) {
    let c = container("c", &["/box", "pause"])
        .with("volumeMounts", json!([{"name": "v", "mountPath": "/v"}]));
    let manifest = pod("sick", &[c]).with_spec("volumes", json!([{"name": "v", "emptyDir": {}}]));
    ground.node.put("sick.json", &manifest);
    let sick = ground.node.pod_until("sick", "is ready", |p| condition(p, "Ready"));
    let dir = ground.node.root().join("pods").join(sick.metadata.uid.expect("a uid"));
    let messages = Sick::mount(ground, &dir.join("containers/c"));
    let volume = Sick::mount(ground, &dir.join("volumes/kubernetes.io~empty-dir/v"));
    let faults = [
        ("late", DiskFault::Slow(Duration::from_millis(300))),
        ("failing", DiskFault::Fails(Errno::EIO)),
    ];
    for (how, fault) in faults {
        [&messages, &volume].into_iter().for_each(|disk| disk.all(fault));
        kill(&ground.node, &running(&ground.node, "sick", &["c"]), "c");
        let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
        ground.bystander(&format!("beside a disk that is {how}"));
    }
    [&messages, &volume].into_iter().for_each(|disk| disk.all(DiskFault::Hangs));
    until(LONG, "the agent comes to a file that hangs", || {
        let _ = ground.node.get(READ_ONLY_PORT, "/stats/summary");
        ensure!(messages.hung() > 0, "it has not");
        Ok(())
    });
    ground.bystander("beside a disk that hangs");
    ground.node.remove("sick.json");
    ground.bystander("while its pod is to go");
    drop((messages, volume));
    ground.node.gone("sick");
}
