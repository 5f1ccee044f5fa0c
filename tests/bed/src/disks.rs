//! Small disks of a cluster's node: one for the agent's folder and the logs, one for containerd.
//!
//! Input: a node without pods. Output: two ext4 file systems, each in a sparse file, mounted in the
//! node's mount namespace alone: the last process of the node takes them along, whatever happens to
//! the test. A test that shares its cluster gives the node its own folders back when it ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use nix::sys::statvfs::statvfs;
use xtask::cluster::node::agent_process;
use xtask::image::{self, set};
use xtask::shell;

use crate::cluster::TestCluster;

/// Sizes that hold the agent's files and the runtime's, and leave little beside.
const NODE_MIB: u64 = 320;
const IMAGE_MIB: u64 = 512;
/// All the inodes of the node's disk.
pub const NODE_INODES: u64 = 12_000;
/// The images that no pod uses; each holds `UNUSED_BYTES`.
pub const UNUSED: [&str; 2] = ["pintle.test/unused:1", "pintle.test/unused:2"];
const UNUSED_BYTES: usize = 40 << 20;

/// Mount point, in the node, of the disk with the agent's folder and the logs.
pub const NODE_FS: &str = "/var/lib/kubelet";
/// The same for containerd.
pub const IMAGE_FS: &str = "/var/lib/containerd";

/// `$1` a folder for the disks, `$2` and `$3` their sizes, `$4` the inodes of the first.
const MOUNT: &str = r#"
mkdir -p "$1"
disk() {
    truncate -s "$2M" "$1.img"
    mkfs.ext4 -q -F -m 0 $3 "$1.img"
    mkdir -p "$1"
    mount -o loop "$1.img" "$1"
}
disk "$1/node" "$2" "-N $4"
disk "$1/image" "$3"
mkdir "$1/node/kubelet" "$1/node/logs" "$1/image/containerd"
mount --bind "$1/node/kubelet" /var/lib/kubelet
mount --bind "$1/node/logs" /var/log/pods
mount --bind "$1/image/containerd" /var/lib/containerd
"#;
const UNMOUNT: &str = r#"
for at in /var/lib/kubelet /var/log/pods /var/lib/containerd "$1/node" "$1/image"; do
    umount -l "$at"
done
rm -r "$1"
"#;

/// A node on small disks, until this is dropped.
pub struct SmallDisks<'a> {
    test: &'a TestCluster,
    node: String,
}

impl<'a> SmallDisks<'a> {
    /// Gives them to a node that has no pods; its agent does not run afterwards.
    pub fn mount(test: &'a TestCluster, node: &str) -> Self {
        let disks = Self { test, node: node.to_owned() };
        disks.make().expect("a node can have small disks");
        disks
    }

    fn make(&self) -> Result<()> {
        self.stop()?;
        let sizes = [NODE_MIB, IMAGE_MIB, NODE_INODES].map(|size| size.to_string());
        self.run(MOUNT, &sizes)?;
        self.test.cluster().start(&self.containerd())?;
        self.import(&set::archive()?.path)
    }

    /// Adds images that no container uses, on the runtime's disk.
    pub fn add_unused_images(&self) -> Result<()> {
        let images = UNUSED.iter().map(|name| set::fat(name, UNUSED_BYTES));
        let archive = self.dir().join("unused.tar");
        fs::write(&archive, image::archive(&images.collect::<Result<Vec<_>>>()?)?)?;
        self.import(&archive)?;
        Ok(fs::remove_file(archive)?)
    }

    /// Names of the images that the runtime has.
    pub fn images(&self) -> Result<Vec<String>> {
        let mut ctr = self.test.cluster().node_command(&self.node, Path::new("ctr"))?;
        let names = shell::capture(ctr.args(["-n", "k8s.io", "images", "list", "--quiet"]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    fn import(&self, archive: &Path) -> Result<()> {
        let mut ctr = self.test.cluster().node_command(&self.node, Path::new("ctr"))?;
        shell::capture(ctr.args(["-n", "k8s.io", "images", "import"]).arg(archive)).map(drop)
    }

    /// Free space there: bytes, inodes.
    pub fn free(&self, at: &str) -> (u64, u64) {
        let root = self.test.cluster().node_root(&self.node).expect("the node's machine runs");
        let found = statvfs(&root.join(at.trim_start_matches('/'))).expect("a file system");
        (found.blocks_available() * found.fragment_size(), found.files_free())
    }

    /// Has a file take everything but so much.
    pub fn leave(&self, at: &str, mib: u64) {
        let excess = self.free(at).0.saturating_sub(mib << 20);
        let text = format!("fallocate -l {excess} {at}/ballast");
        self.run(&text, &[]).expect("there is more");
    }

    /// Gives that back.
    pub fn lighten(&self, at: &str) {
        self.run(&format!("rm {at}/ballast"), &[]).expect("there is ballast");
    }

    fn dir(&self) -> PathBuf {
        self.test.cluster().layout().node(&self.node).join("disks")
    }

    fn containerd(&self) -> String {
        format!("{}-containerd", self.node)
    }

    fn run(&self, text: &str, args: &[String]) -> Result<()> {
        let mut sh = self.test.cluster().node_command(&self.node, Path::new("sh"))?;
        sh.args(["-ec", text, "sh"]).arg(self.dir()).args(args);
        shell::capture(&mut sh).map(drop)
    }

    fn stop(&self) -> Result<()> {
        self.test.cluster().kill(&agent_process(&self.node))?;
        self.test.cluster().stop(&self.containerd())
    }

    fn unmount(&self) -> Result<()> {
        let delete = ["delete", "pods", "--all", "--grace-period=1", "--timeout=60s"];
        self.test.kubectl(&delete).context("the pods go")?;
        self.stop()?;
        self.run(UNMOUNT, &[])
    }
}

impl Drop for SmallDisks<'_> {
    fn drop(&mut self) {
        // Replays the recorded decisions about the disks before they are gone.
        let is_fine = !thread::panicking();
        let replayed = if is_fine { self.test.cluster().replay_agents() } else { Ok(()) };
        if let Err(error) = self.test.cluster().start(&agent_process(&self.node)) {
            shell::say("leftover", &format!("{error:#}"));
        }
        if let Err(error) = self.unmount() {
            shell::say("leftover", &format!("{error:#}"));
        }
        replayed.expect("the agent decides again what it decided");
    }
}
