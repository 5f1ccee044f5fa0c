//! Volumes of plugins that this agent does not support: a kubelet set them up.
//!
//! Input: the plugin's directory in a pod's volumes. Nothing here unmounts or deletes data: only
//! the volume's driver can tear it down. Once nothing is mounted, the empty directories and CSI's
//! own record are removed, so that the pod can terminate. Mounts are read from the kernel's list.
// k8s: pkg/volume/csi/csi_mounter.go TearDownAt, removeMountDir

use std::fs;
use std::io;
use std::path::Path;

use super::csi_dirs::{PLUGIN_DIR, RECORD_FILE};
use super::error::{ForeignVolume, VolumeError, or_gone};
use super::mount;
use crate::csi::{UNFINISHED_RECORD_FILE, read_record};

/// Removes what is left of the plugin's unmounted volumes; returns an error for each mounted one.
pub(super) fn tear_down(plugin: &Path, volumes: &[std::path::PathBuf]) -> Vec<VolumeError> {
    let points = match mount::below(plugin) {
        Ok(points) => points,
        Err(failure) => return vec![VolumeError::PodDir(failure)],
    };
    // The kernel prints real paths; the plugin's directory is never a mount itself.
    let real = fs::canonicalize(plugin).unwrap_or_else(|_| plugin.to_owned());
    let is_csi = plugin.ends_with(PLUGIN_DIR);
    let mut failures = Vec::new();
    for volume in volumes {
        let name = volume.file_name().unwrap_or_default();
        let kind = plugin.file_name().unwrap_or_default().to_string_lossy().replace('~', "/");
        let own = real.join(name);
        let about = ForeignVolume {
            volume: name.to_string_lossy().into_owned(),
            driver: is_csi.then(|| driver(volume)).flatten().unwrap_or(kind),
        };
        if let Some(point) = points.iter().find(|point| point.starts_with(&own)) {
            failures.push(VolumeError::Foreign { about, point: point.clone() });
        } else if let Err(error) = remove_remains(volume, is_csi) {
            failures.push(VolumeError::ForeignFiles { about, dir: volume.clone(), error });
        }
    }
    failures
}

/// Removes the directories of a volume that is not mounted, if there is nothing in them.
fn remove_remains(volume: &Path, is_csi: bool) -> Result<(), String> {
    let gone = |done: io::Result<()>| or_gone(done).map_err(|error| error.to_string());
    if is_csi {
        gone(fs::remove_dir(volume.join("mount")))?;
        let records = [RECORD_FILE, UNFINISHED_RECORD_FILE];
        let is_record = |entry: fs::DirEntry| records.iter().any(|file| entry.file_name() == *file);
        if fs::read_dir(volume).into_iter().flatten().flatten().all(is_record) {
            for file in records {
                gone(fs::remove_file(volume.join(file)))?;
            }
        }
    }
    gone(fs::remove_dir(volume))
}

/// The driver in CSI's record.
fn driver(volume: &Path) -> Option<String> {
    read_record(volume).ok().flatten().map(|record| record.driver_name)
}

#[cfg(test)]
mod tests {
    use super::super::execute::{remove_pod_dir, unmount_all};
    use super::super::layout::PodDirs;
    use super::*;

    #[test]
    fn pod_with_a_mounted_csi_volume_is_removed_only_after_the_unmount() {
        crate::volume::tests::with_private_mounts(|| {
            let root = tempfile::tempdir().expect("root");
            let dirs = PodDirs::new(root.path(), &"u".into());
            let volume = dirs.volumes().join("kubernetes.io~csi/pv-1");
            let point = volume.join("mount");
            fs::create_dir_all(&point).expect("made");
            let record = r#"{"driverName":"ebs.csi.aws.com","volumeHandle":"vol-1"}"#;
            fs::write(volume.join(RECORD_FILE), record).expect("written");
            mount::tmpfs(&point, Some(64 << 10)).expect("mounted");
            fs::write(point.join("data"), "kept").expect("written");

            let errors = unmount_all(&dirs).expect_err("it is mounted");
            let want = format!(
                "volume \"pv-1\" of driver \"ebs.csi.aws.com\" is still mounted at {}: this agent \
                 cannot unpublish it, and the pod ends once it is unmounted",
                fs::canonicalize(&point).expect("a path").display()
            );
            assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), [want]);
            assert_eq!(fs::read(point.join("data")).expect("there"), b"kept");

            mount::unmount(&point).expect("unmounted by hand");
            unmount_all(&dirs).expect("nothing is mounted any more");
            remove_pod_dir(&dirs).expect("removed");
            assert!(!dirs.pod().exists());
        });
    }

    #[test]
    fn record_that_an_agent_died_writing_keeps_no_pod() {
        let root = tempfile::tempdir().expect("root");
        let dirs = PodDirs::new(root.path(), &"u".into());
        let volume = dirs.volumes().join("kubernetes.io~csi/pv-1");
        fs::create_dir_all(&volume).expect("made");
        fs::write(volume.join(UNFINISHED_RECORD_FILE), "{").expect("written");
        unmount_all(&dirs).expect("nothing is mounted");
        remove_pod_dir(&dirs).expect("removed");
        assert!(!dirs.pod().exists());
    }

    #[test]
    fn files_of_a_foreign_volume_are_never_deleted() {
        let root = tempfile::tempdir().expect("root");
        for (plugin, file) in [("kubernetes.io~csi", "mount/data"), ("example.com~x", "data")] {
            let dirs = PodDirs::new(root.path(), &plugin.replace(['.', '~'], "-").as_str().into());
            let volume = dirs.volumes().join(plugin).join("pv-1");
            fs::create_dir_all(volume.join("mount")).expect("made");
            fs::write(volume.join(file), "kept").expect("written");
            let errors = unmount_all(&dirs).expect_err("it has files");
            let text = errors[0].to_string();
            assert!(text.contains("still has files in") && text.contains("pv-1"), "{text}");
            assert_eq!(fs::read(volume.join(file)).expect("there"), b"kept");
        }
    }
}
