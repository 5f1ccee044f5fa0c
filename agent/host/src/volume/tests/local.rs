//! Local volumes on a real kernel: folders, disks, devices, groups, and what a crash leaves.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use k8s_openapi::api::core::v1::LocalVolumeSource;
use pintle_agent_core::types::{NodeFacts, PodUid};
use serde_json::{Value, json};

use super::*;
use crate::volume::claim::{ClaimedVolume, Claims};
use crate::volume::claimed::{ClaimedMounts, mount_claimed};
use crate::volume::execute::{make_pod_dirs, remove_pod_dir, unmount_all};
use crate::volume::kind::Local;
use crate::volume::layout::{LOCAL_PLUGIN, PodDirs, device_map, local_mount};
use crate::volume::{expand_local, mount, orphan};

/// Bytes of a disk in a file.
const DISK_BYTES: u64 = 16 << 20;

/// A loop device that is detached when it is dropped.
pub(crate) struct Disk {
    pub(crate) device: PathBuf,
    file: tempfile::NamedTempFile,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let file = tempfile::NamedTempFile::new().expect("a file");
        file.as_file().set_len(DISK_BYTES).expect("made large");
        let out = Command::new("losetup").args(["-f", "--show"]).arg(file.path()).output();
        let out = out.expect("losetup runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let device = PathBuf::from(String::from_utf8_lossy(&out.stdout).trim());
        Self { device, file }
    }

    /// Makes it so many times as large.
    fn grow(&self, factor: u64) {
        self.file.as_file().set_len(factor * DISK_BYTES).expect("made larger");
        let done = Command::new("losetup").arg("-c").arg(&self.device).status();
        assert!(done.expect("losetup runs").success());
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
    }
}

/// A pod with one claim of a local volume.
struct Claimant<'a> {
    uid: &'a str,
    path: &'a Path,
    /// Fields of the PersistentVolume.
    volume: Value,
    group: Option<u32>,
    is_read_only: bool,
}

impl<'a> Claimant<'a> {
    fn new(uid: &'a str, path: &'a Path) -> Self {
        Self { uid, path, volume: json!({}), group: None, is_read_only: false }
    }

    fn plan(&self, root: &Path) -> PodVolumes {
        let mut volume = self.volume.clone();
        volume["local"] = json!({"path": self.path});
        let is_block = volume["volumeMode"] == "Block";
        let uses = match is_block {
            true => json!({"volumeDevices": [{"name": "data", "devicePath": "/dev/x"}]}),
            false => json!({"volumeMounts": [{"name": "data", "mountPath": "/d"}]}),
        };
        let mut container = uses;
        container["name"] = json!("c");
        let pod = serde_json::from_value(json!({
            "metadata": {"name": self.uid, "namespace": "ns", "uid": self.uid},
            "spec": {"containers": [container], "securityContext": {"fsGroup": self.group},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]}}))
        .expect("a pod");
        let volume = json!({"metadata": {"name": "pv"}, "spec": volume});
        let volume = serde_json::from_value(volume).expect("a volume");
        let (claim, is_read_only) = ("c".to_owned(), self.is_read_only);
        let mut claims = Claims::default();
        claims.insert(
            "data",
            ClaimedVolume { claim, is_read_only, capacity: None, volume, is_migrated: false },
        );
        PodVolumes::plan(root, &NodeFacts::default(), &pod, &claims)
    }

    fn try_mount(&self, root: &Path) -> (PodDirs, ClaimedMounts) {
        let volumes = self.plan(root);
        make_pod_dirs(&volumes.dirs).expect("directories");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let outcome = runtime.expect("a runtime").block_on(mount_claimed(&volumes));
        (volumes.dirs, outcome)
    }

    fn mount(&self, root: &Path) -> (PodDirs, PathBuf) {
        let (dirs, outcome) = self.try_mount(root);
        assert_eq!(outcome.failures, []);
        let dir = dirs.volume(LOCAL_PLUGIN, "pv");
        (dirs, dir)
    }
}

fn end(dirs: &PodDirs) {
    unmount_all(dirs).expect("unmounted");
    remove_pod_dir(dirs).expect("removed");
    assert!(!dirs.pod().exists());
}

#[test]
fn local_folder_is_bound_for_each_pod_and_outlives_the_pods() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("kept"), "x").expect("written");
        let first = Claimant { group: Some(4242), ..Claimant::new("p", folder.path()) };
        let (dirs, dir) = first.mount(root.path());
        assert_eq!(fs::read(dir.join("kept")).expect("shown"), b"x");
        let meta = fs::metadata(folder.path().join("kept")).expect("stat");
        assert_eq!((meta.gid(), meta.mode() & 0o60), (4242, 0o60), "the pod's group writes");
        // Twice is as once.
        first.mount(root.path());
        assert_eq!(mount::below(&dir).expect("listed").len(), 1);

        let second = Claimant { group: Some(4243), is_read_only: true, ..first };
        let second = Claimant { uid: "q", ..second };
        let (others, outcome) = second.try_mount(root.path());
        assert_eq!(outcome.failures, []);
        let texts: Vec<_> = outcome.notices.iter().map(|notice| notice.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "The requested fsGroup is 4243, but the volume pv has GID 4242. The volume may not be \
              shareable."
            ]
        );
        let shown = others.volume(LOCAL_PLUGIN, "pv");
        fs::write(shown.join("new"), "x").expect_err("it is read-only");
        fs::write(dir.join("new"), "x").expect("the first is not");
        end(&dirs);
        assert_eq!(
            fs::read(shown.join("kept")).expect("shown"),
            b"x",
            "the other one has it still"
        );
        end(&others);
        let left = ["kept", "new"].map(|name| folder.path().join(name).exists());
        assert_eq!(left, [true; 2], "data stays");
    });
}

#[test]
fn local_disk_is_formatted_once_and_unmounted_with_its_last_pod() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let disk = Disk::new();
        let claimant = Claimant::new("p", &disk.device);
        let (refused, outcome) =
            Claimant { is_read_only: true, ..Claimant::new("r", &disk.device) }
                .try_mount(root.path());
        let text = outcome.failures[0].to_string();
        let begins =
            "MountVolume.MountDevice failed for volume \"pv\" : local: failed to mount device";
        assert!(text.starts_with(begins), "{text}");
        assert!(text.contains("unformatted disk"), "{text}");
        end(&refused);

        let (dirs, dir) = claimant.mount(root.path());
        fs::write(dir.join("kept"), "x").expect("written");
        let (others, _) = Claimant::new("q", &disk.device).mount(root.path());
        let global = local_mount(root.path(), "pv");
        end(&dirs);
        assert!(mount::is_mounted(&global).expect("listed"), "another pod has it");
        end(&others);
        assert!(!global.exists());
        let (dirs, dir) = claimant.mount(root.path());
        assert_eq!(fs::read(dir.join("kept")).expect("there"), b"x", "it is not formatted again");

        // A crash before the disk was unmounted: the sweep finds it.
        mount::unmount(&dir).expect("unmounted by hand");
        fs::remove_dir(&dir).expect("removed");
        orphan::sweep(root.path(), &[PodUid::from("p")].into()).expect("swept");
        assert!(!global.exists());
        end(&dirs);
    });
}

/// True for a process with CAP_SYS_RESOURCE.
fn may_grow_mounted() -> bool {
    const CAP_SYS_RESOURCE: u64 = 1 << 24;
    let status = fs::read_to_string("/proc/self/status").expect("read");
    let own = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("a line");
    u64::from_str_radix(own.trim(), 16).expect("a number") & CAP_SYS_RESOURCE != 0
}

#[test]
fn file_system_of_a_local_disk_grows_with_the_disk_and_a_folder_or_device_stays() {
    if !may_grow_mounted() {
        return xtask::skip("a mounted file system cannot be grown without CAP_SYS_RESOURCE");
    }
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let disk = Disk::new();
        let (dirs, dir) = Claimant::new("p", &disk.device).mount(root.path());
        fs::write(dir.join("kept"), "x").expect("written");
        let bytes = || {
            let of = nix::sys::statvfs::statvfs(&dir).expect("a file system");
            of.blocks() * of.fragment_size()
        };
        let before = bytes();
        disk.grow(3);
        let expand = |path: &Path, is_block| {
            let local = Local {
                is_block,
                path: path.to_owned(),
                ..Local::of(&LocalVolumeSource::default())
            };
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let uid = PodUid::from("p");
            let done = expand_local(&uid, root.path(), "pv", &local);
            runtime.expect("a runtime").block_on(done)
        };
        expand(&disk.device, true).expect("a device has no file system of ours");
        expand(root.path(), false).expect("a folder has the size of what is around it");
        assert_eq!(bytes(), before);
        expand(&disk.device, false).expect("grown");
        assert!(bytes() > 2 * DISK_BYTES, "{} of {before}", bytes());
        assert_eq!(fs::read(dir.join("kept")).expect("there"), b"x");
        end(&dirs);

        let error = expand(Path::new("/nowhere/disk"), false).expect_err("there is none");
        assert_eq!(error.to_string(), "path \"/nowhere/disk\" does not exist");
    });
}

#[test]
fn local_device_is_linked_for_each_pod_and_unlinked_when_the_pod_ends() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let disk = Disk::new();
        let block = json!({"volumeMode": "Block"});
        let claimant = Claimant { volume: block, ..Claimant::new("p", &disk.device) };
        let (dirs, outcome) = claimant.try_mount(root.path());
        assert_eq!((outcome.failures.len(), outcome.notices.len()), (0, 2), "{outcome:?}");
        let (_, again) = claimant.try_mount(root.path());
        assert_eq!((again.failures.len(), again.notices.len()), (0, 0), "one event a mapping");
        let link = dirs.device(LOCAL_PLUGIN, "pv");
        let device = fs::canonicalize(&disk.device).expect("a path");
        assert_eq!(fs::read_link(&link).expect("a link"), device);
        let map = device_map(root.path(), LOCAL_PLUGIN, "pv");
        let rdev = |path: &Path| fs::metadata(path).expect("stat").rdev();
        assert_eq!(rdev(&map.join("p")), rdev(&device));
        // A kubelet holds the device by a loop device on that file.
        let held = Command::new("losetup").arg("-f").arg(map.join("p")).status();
        assert!(held.expect("losetup runs").success());
        end(&dirs);
        assert!(!map.exists());

        let (dirs, _) = claimant.try_mount(root.path());
        mount::below(&map).expect("listed").iter().for_each(|point| {
            assert!(point.starts_with(&map), "{}", point.display());
        });
        fs::remove_dir_all(dirs.pod()).expect("lost");
        orphan::sweep(root.path(), &[].into()).expect("swept");
        assert!(!map.exists(), "the device of an unknown pod is released");
    });
}

#[test]
fn a_path_that_is_no_volume_is_refused_in_the_kubelets_words() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let begin = "MountVolume.NewMounter initialization failed for volume \"pv\" : ";
        for (path, why) in [
            (Path::new("/no/such"), "path \"/no/such\" does not exist"),
            (file.path(), "only directory and block device are supported"),
            (Path::new("/tmp/../etc"), "invalid path: /tmp/../etc must not contain '..'"),
        ] {
            let (_, outcome) = Claimant::new("p", path).try_mount(root.path());
            let texts: Vec<_> = outcome.failures.iter().map(ToString::to_string).collect();
            assert_eq!(texts, [format!("{begin}{why}")]);
        }
    });
}
