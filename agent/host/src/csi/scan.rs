//! What the disk says about volumes of drivers, at start: pods' folders and global folders.
//!
//! Input: the root directory. Output: every volume that has a record, and the folders without a
//! readable one, each with a reason. Nothing is changed. Bounds: `VOLUMES_MAX` volumes, records of
//! `RECORD_BYTES_MAX` bytes; links are not followed.
// k8s: pkg/kubelet/volumemanager/reconciler/reconstruct_common.go getVolumesFromPodDir

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use pintle_agent_core::storage::csi::Lifecycle;
use pintle_agent_core::storage::{FoundVolume, Known};
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::csi_dirs::{CsiDirs, MOUNT, PLUGIN_DIR, RECORD_FILE};
use pintle_agent_core::volume::layout::{PodDirs, pods_dir};

use super::{ReadError, read_record, remove_unfinished};

/// More volumes than a node can have pods and drivers for.
const VOLUMES_MAX: usize = 1 << 16;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Volumes that may be staged or published.
    pub volumes: Vec<FoundVolume>,
    /// Folders of volumes without a readable record, with the reason. They stay.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// Removes what an agent left that died before it asked a driver to stage: records that are not
/// complete, and the folders that were made for them. Comes before everything else, since a new
/// agent writes such files itself.
pub fn remove_unstaged(root: &Path) {
    let dirs = CsiDirs::new(root);
    let devices = dirs.devices();
    let drivers = folders(&dirs.plugin()).into_iter().filter(|driver| *driver != devices);
    for folder in drivers.flat_map(|driver| folders(&driver)) {
        remove_empty(&folder);
    }
    for device in folders(&devices) {
        if remove_empty(&device.join("data")) {
            remove_empty(&device.join("dev"));
            remove_empty(&device);
        }
    }
}

/// Returns whether the folder went; with anything else in it, it stays.
fn remove_empty(folder: &Path) -> bool {
    remove_unfinished(folder).is_ok() && fs::remove_dir(folder).is_ok()
}

/// Looks at everything below the root directory.
pub fn scan(root: &Path) -> Found {
    let dirs = CsiDirs::new(root);
    let mut found = Found::default();
    for pod in folders(&pods_dir(root)) {
        let Some(uid) = pod.file_name().and_then(|name| PodUid::parse(name.to_str()?)) else {
            continue;
        };
        for volume in folders(&PodDirs::new(root, &uid).volumes().join(PLUGIN_DIR)) {
            found.add(&volume, Some(uid.clone()), false);
        }
    }
    let devices = dirs.devices();
    for driver in folders(&dirs.plugin()).into_iter().filter(|driver| *driver != devices) {
        for volume in folders(&driver) {
            found.add_staged(&dirs, &volume);
        }
    }
    for device in folders(&devices) {
        found.add_device(&dirs, &device);
    }
    found
}

/// Names of the folders of a pod's volumes without a record that can be read. A folder with neither
/// record nor target is of a volume that is not published: the record comes before the target and
/// goes after it.
pub fn without_record(dirs: &PodDirs) -> Vec<String> {
    let volumes = folders(&dirs.volumes().join(PLUGIN_DIR)).into_iter();
    let has_target = |folder: &Path| {
        let target = fs::symlink_metadata(folder.join(MOUNT));
        !target.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    };
    let lost = volumes.filter(|folder| match read_record(folder) {
        Ok(Some(_)) => false,
        Ok(None) => has_target(folder),
        Err(_) => true,
    });
    let name = |folder: PathBuf| Some(folder.file_name()?.to_str()?.to_owned());
    lost.filter_map(name).collect()
}

impl Found {
    fn add(&mut self, folder: &Path, pod: Option<PodUid>, is_block: bool) {
        match known(folder, is_block) {
            Ok(Some(known)) if self.volumes.len() < VOLUMES_MAX => {
                self.volumes.push(FoundVolume { known, pod });
            }
            Ok(Some(_)) => self.unreadable.push((folder.to_owned(), "too many".to_owned())),
            Ok(None) => {}
            Err(why) => self.unreadable.push((folder.to_owned(), why.to_string())),
        }
    }

    /// A global folder is the hash of the handle that its record names, or some other agent's.
    fn add_staged(&mut self, dirs: &CsiDirs, folder: &Path) {
        match known(folder, false) {
            Ok(Some(known)) if dirs.global(&known.driver, &known.handle) != folder => {
                let why = "its record names another volume".to_owned();
                self.unreadable.push((folder.to_owned(), why));
            }
            Ok(None) if folder.join("globalmount").exists() => {
                self.unreadable.push((folder.to_owned(), format!("{RECORD_FILE} is missing")));
            }
            _ => self.add(folder, None, false),
        }
    }

    fn add_device(&mut self, dirs: &CsiDirs, folder: &Path) {
        let data = folder.join("data");
        let Ok(Some(known)) = known(&data, true) else {
            // `staging` and `publish` are no devices.
            return self.add(&data, None, true);
        };
        let maps = [dirs.device_publish(&known.name), folder.join("dev")];
        let pods = maps.iter().flat_map(|map| fs::read_dir(map).into_iter().flatten().flatten());
        let pods = pods.filter_map(|entry| PodUid::parse(entry.file_name().to_str()?));
        for pod in pods.collect::<BTreeSet<_>>() {
            self.add(&data, Some(pod), true);
        }
        self.add(&data, None, true);
    }
}

/// What the record in a folder says; `None` without one.
fn known(folder: &Path, is_block: bool) -> Result<Option<Known>, ReadError> {
    let Some(record) = read_record(folder)? else { return Ok(None) };
    let lifecycle = match record.volume_lifecycle_mode.as_str() {
        "Ephemeral" => Lifecycle::Ephemeral,
        _ => Lifecycle::Persistent,
    };
    let (driver, handle) = (record.driver_name, record.volume_handle);
    let name = record.spec_vol_id;
    // The disk does not tell whether it is migrated, as for the kubelet.
    let is_migrated = false;
    let selinux_label = Some(record.se_linux_mount_context).filter(|label| !label.is_empty());
    Ok(Some(Known { driver, handle, name, lifecycle, is_block, is_migrated, selinux_label }))
}

/// The folders in a folder, in order.
fn folders(parent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut folders: Vec<_> = folders.map(|entry| entry.path()).collect();
    folders.sort();
    folders
}

#[cfg(test)]
mod tests {
    use super::super::UNFINISHED_RECORD_FILE;
    use super::*;

    const UID: &str = "8c1e4b9a-1111-4222-8333-123456789abc";

    fn put(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    }

    #[test]
    fn everything_with_a_record_is_found_and_the_rest_is_named() {
        let root = tempfile::tempdir().expect("a folder");
        let dirs = CsiDirs::new(root.path());
        let uid = PodUid::parse(UID).expect("a uid");
        let record = |name: &str, handle: &str, mode: &str| {
            format!(
                r#"{{"driverName":"d","specVolID":"{name}","volumeHandle":"{handle}","volumeLifecycleMode":"{mode}"}}"#
            )
        };
        let at = |name: &str| dirs.volume(&uid, name).join(RECORD_FILE);
        put(&at("pv-1"), &record("pv-1", "h1", "Persistent"));
        put(&at("scratch"), &record("scratch", "csi-1", "Ephemeral"));
        put(&at("broken"), "");
        put(&dirs.global("d", "h1").join(RECORD_FILE), r#"{"driverName":"d","volumeHandle":"h1"}"#);
        fs::create_dir_all(dirs.staging("d", "lost")).expect("made");
        put(&dirs.device_data("raw").join(RECORD_FILE), &record("raw", "h2", ""));
        put(&dirs.device_target(&uid, "raw"), "");
        fs::create_dir_all(dirs.device_staging("raw")).expect("made");

        let found = scan(root.path());
        let shown: Vec<String> = found
            .volumes
            .iter()
            .map(|volume| {
                let known = &volume.known;
                let pod = if volume.pod.is_some() { "pod" } else { "global" };
                format!(
                    "{pod} {} {} {:?} {}",
                    known.handle, known.name, known.lifecycle, known.is_block
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "pod h1 pv-1 Persistent false",
                "pod csi-1 scratch Ephemeral false",
                "global h1  Persistent false",
                "pod h2 raw Persistent true",
                "global h2 raw Persistent true",
            ]
        );
        let unreadable: Vec<_> = found.unreadable.iter().map(|(path, _)| path.clone()).collect();
        assert_eq!(unreadable, [dirs.volume(&uid, "broken"), dirs.global("d", "lost")]);
    }

    #[test]
    fn folders_of_a_pod_without_a_readable_record_are_named() {
        let root = tempfile::tempdir().expect("a folder");
        let (csi, uid) = (CsiDirs::new(root.path()), PodUid::parse(UID).expect("a uid"));
        let record = r#"{"driverName":"d","specVolID":"good","volumeHandle":"h"}"#;
        put(&csi.volume(&uid, "good").join(RECORD_FILE), record);
        put(&csi.volume(&uid, "empty").join(RECORD_FILE), "");
        fs::create_dir_all(csi.target(&uid, "gone")).expect("made");
        fs::create_dir_all(csi.volume(&uid, "unpublished")).expect("made");
        let dirs = PodDirs::new(root.path(), &uid);
        assert_eq!(without_record(&dirs), ["empty", "gone"]);
    }

    #[test]
    fn folder_of_a_volume_that_was_never_staged_is_removed_and_staged_volumes_are_kept() {
        let root = tempfile::tempdir().expect("a folder");
        let dirs = CsiDirs::new(root.path());
        let folder = |handle: &str| dirs.global("d", handle);
        fs::create_dir_all(folder("empty")).expect("made");
        put(&folder("begun").join(UNFINISHED_RECORD_FILE), "{");
        put(&folder("staged").join(RECORD_FILE), r#"{"driverName":"d","volumeHandle":"staged"}"#);
        put(&folder("staged").join(UNFINISHED_RECORD_FILE), "{");
        put(&dirs.device_data("raw").join(UNFINISHED_RECORD_FILE), "{");
        put(&dirs.device_data("kept").join(RECORD_FILE), "{}");
        fs::create_dir_all(dirs.staging("d", "lost")).expect("made");
        remove_unstaged(root.path());
        assert!(!folder("empty").exists() && !folder("begun").exists());
        assert!(folder("staged").join(RECORD_FILE).exists());
        assert!(!folder("staged").join(UNFINISHED_RECORD_FILE).exists());
        assert!(dirs.staging("d", "lost").exists());
        assert_eq!(folders(&dirs.devices()), [dirs.devices().join("kept")]);
    }

    #[test]
    fn node_without_volumes_has_none() {
        let root = tempfile::tempdir().expect("a folder");
        let found = scan(root.path());
        assert!(found.volumes.is_empty() && found.unreadable.is_empty());
    }
}
