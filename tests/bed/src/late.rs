//! A disk of a node that delays reads of uncached data, so that a reader with a cold cache is
//! visible.
//!
//! Input: how to run a program in the node's namespaces. Output: a mount there with files of zeros,
//! served by this process and cached by the kernel like those of any disk. Bounds: a file takes no
//! memory here, whatever its size. Unmounted when it is dropped; waiting readers get an error then.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use xtask::disk::{DiskFault, DiskOperation, Faulty, mount_fuse};
use xtask::shell;

/// How long it takes for 128 KiB once it is `slow`.
const READ: Duration = Duration::from_millis(4);

/// See the module's header.
pub struct Late<C: Fn(&str) -> Result<Command>> {
    in_node: C,
    at: PathBuf,
    disk: Option<Faulty>,
}

impl<C: Fn(&str) -> Result<Command>> Late<C> {
    /// Mounts it on the folder `at`, as fast as it can be; `files` are names and their MiB.
    pub fn mount(in_node: C, at: &Path, files: &[(&str, u64)]) -> Self {
        let disk = Faulty::mount_by(at, |device: &File, options| {
            mount_fuse(in_node("mount").expect("a node"), device, options, at);
        });
        disk.let_cache();
        let late = Self { in_node, at: at.to_owned(), disk: Some(disk) };
        for (name, mib) in files {
            let mut truncate = (late.in_node)("truncate").expect("a node");
            truncate.args(["-s", &format!("{mib}M")]).arg(at.join(name));
            shell::capture(&mut truncate).expect("a file");
        }
        late
    }

    /// Delays all later reads of uncached data.
    pub fn slow(&self) {
        let disk = self.disk.as_ref().expect("until it is dropped");
        disk.set(DiskOperation::Read, DiskFault::Slow(READ));
    }
}

impl<C: Fn(&str) -> Result<Command>> Drop for Late<C> {
    fn drop(&mut self) {
        drop(self.disk.take());
        // The node may be gone, and the mount with it.
        if let Ok(mut umount) = (self.in_node)("umount") {
            let _ = shell::capture(umount.arg("-l").arg(&self.at));
        }
    }
}

/// The parts of a file that are read, and how.
#[derive(Clone, Copy, Debug)]
pub struct Parts {
    /// All that is read.
    pub mib: u64,
    /// Size of one read.
    pub part_mib: u64,
    /// How many times; from twice on it counts as used.
    pub times: u32,
}

/// A shell's text that reads `/file/NAME` for ever, part by part; `after` is run after all of it.
pub fn reads_for_ever(name: &str, parts: Parts, after: &str) -> String {
    let Parts { mib, part_mib, times } = parts;
    let dd = format!("dd if=/file/{name} of=/dev/null bs=1M skip=$at count={part_mib} 2>/dev/null");
    format!(
        "while :; do at=0; while [ $at -lt {mib} ]; do times=0; while [ $times -lt {times} ]; do \
         {dd} || exit 7; times=$((times + 1)); done; at=$((at + {part_mib})); done; {after} done"
    )
}
