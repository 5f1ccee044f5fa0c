//! A node's folder on a file system of its own, which a test may fill without filling the host's.
//!
//! Effects. A sparse file of the wanted size holds the file system; deleted blocks are given back
//! to the host. It is mounted on the node's folder, so that host and node see the same files.

use std::fs::{self, File};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};
use nix::sys::statvfs::statvfs;

use super::layout::Layout;
use crate::shell::capture;

/// Makes the file system and mounts it; an existing mount stays.
pub(super) fn mount(layout: &Layout, node: &str, bytes: u64) -> Result<()> {
    let (file, at) = (layout.disk(node), layout.node(node));
    if file.exists() {
        return Ok(());
    }
    let free =
        statvfs(layout.dir()).with_context(|| format!("look at {}", layout.dir().display()))?;
    let free = free.blocks_available().saturating_mul(free.fragment_size());
    let (wanted, there) = (bytes >> 30, free >> 30);
    ensure!(free > bytes, "the node's disk may grow to {wanted} GiB, and {there} GiB are free");
    File::create(&file)
        .and_then(|disk| disk.set_len(bytes))
        .with_context(|| format!("make {}", file.display()))?;
    capture(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&file))?;
    capture(Command::new("mount").args(["-o", "loop,discard"]).arg(&file).arg(&at))?;
    // The tools' own; nothing of the node.
    fs::remove_dir(at.join("lost+found")).context("empty the new file system")
}

/// Unmounts it, if the node has one; `down` removes the file with the cluster's folder.
pub(super) fn unmount(layout: &Layout, node: &str) -> Result<()> {
    if !layout.disk(node).exists() {
        return Ok(());
    }
    match umount2(&layout.node(node), MntFlags::MNT_DETACH) {
        // A run that was ended before it was mounted.
        Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno).with_context(|| format!("unmount the disk of {node}")),
    }
}
