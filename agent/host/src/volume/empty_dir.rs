//! emptyDir on disk, memory or huge pages, and the directory beneath every payload volume.
//!
//! Input: a decided `EmptyDir` and its directory. Output: directory, mount, ready marker.
//! Idempotent: the marker says that the volume was set up in full, so a restart does not touch a
//! volume in use.
// k8s: pkg/volume/emptydir/empty_dir.go SetUpAt

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::dir_fd::{is_mount_point, make_dir_all};
use super::error::{Cause, Context, IoFailure};
use super::layout::DIR_MODE;
use super::mount;
use super::ownership::give_to_group;
use super::plan::{EmptyDir, Medium};
use super::project::{self, UsageMeasure};

/// Mode of the volume itself: every user of the pod may write.
const VOLUME_MODE: u32 = 0o777;
/// Mode of the directory that holds a plugin's volumes.
const PLUGIN_MODE: u32 = 0o755;
/// File that marks a volume as set up.
pub const READY: &str = "ready";

/// Sets up the volume at `dir`, with its marker in `ready_dir`.
pub fn set_up(
    dir: &Path,
    ready_dir: &Path,
    volume: &EmptyDir,
    group: Option<u32>,
    measure: UsageMeasure,
) -> Result<(), Cause> {
    if is_ready(dir, ready_dir, volume)? {
        return Ok(());
    }
    match &volume.medium {
        Medium::Disk => make_volume_dir(dir)?,
        Medium::Memory(size) => {
            make_volume_dir(dir)?;
            if !is_mount_point(dir)? {
                mount::tmpfs(dir, *size)?;
            }
        }
        Medium::HugePages(page) => {
            let page = page.clone().map_err(|error| error.to_string())?;
            make_volume_dir(dir)?;
            if !is_mount_point(dir)? {
                mount::hugetlbfs(dir, page)?;
            }
        }
        Medium::Unknown(medium) => return Err(format!("unknown storage medium {medium:?}").into()),
    }
    if let Some(group) = group {
        give_to_group(dir, group, false)?;
    }
    if volume.medium == Medium::Disk && measure == UsageMeasure::Project {
        // Before the marker: no container has begun, so there is nothing yet to be counted.
        project::measure(dir);
    }
    Ok(mark_ready(ready_dir)?)
}

fn is_ready(dir: &Path, ready_dir: &Path, volume: &EmptyDir) -> Result<bool, IoFailure> {
    if !ready_dir.join(READY).is_file() {
        return Ok(false);
    }
    match volume.medium {
        Medium::Disk => Ok(dir.is_dir()),
        _ => is_mount_point(dir),
    }
}

fn make_volume_dir(dir: &Path) -> Result<(), IoFailure> {
    if let Some(plugin) = dir.parent() {
        make_dir_all(plugin, PLUGIN_MODE)?;
    }
    match fs::create_dir(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && dir.is_dir() => {}
        Err(e) => return Err(IoFailure::of("mkdir", dir, &e)),
    }
    let mode = fs::metadata(dir).on("stat", dir)?.permissions().mode();
    if mode & 0o777 != VOLUME_MODE {
        // Also after a kill between mkdir and chmod.
        fs::set_permissions(dir, fs::Permissions::from_mode(VOLUME_MODE)).on("chmod", dir)?;
    }
    Ok(())
}

// k8s: pkg/volume/util/util.go SetReady
fn mark_ready(ready_dir: &Path) -> Result<(), IoFailure> {
    make_dir_all(ready_dir, DIR_MODE)?;
    let ready = ready_dir.join(READY);
    fs::write(&ready, "").on("create", &ready)
}
