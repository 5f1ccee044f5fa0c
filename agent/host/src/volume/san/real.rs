//! The same steps against a real target: the kernel's own, over the loopback device, with open-iscsi
//! and udev. It needs a kernel with both ends, as the emulated guest's (TESTING.md has the command);
//! elsewhere these tests name themselves as skipped.

use std::process::Command;
use std::time::Instant;

use k8s_openapi::api::core::v1::ISCSIVolumeSource;
use pintle_agent_core::storage::disk::iscsi_of_pod;
use serde_json::{Value, json};

use super::tests::{UID, known, uid};
use super::*;
use crate::volume::tests::with_private_mounts;

const CONFIG: &str = "/sys/kernel/config/target";
/// Addresses at which targets listen; the second one only where a test wants two paths.
const PORTALS: [&str; 2] = ["127.0.0.1:3260", "127.0.0.1:3261"];
const DISK_BYTES: u64 = 64 << 20;
/// A guest without KVM is slow.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A target of the kernel with LUNs over files.
struct ScsiTarget {
    iqn: String,
    files: tempfile::TempDir,
    luns: usize,
}

impl ScsiTarget {
    /// `None` where the kernel or the programs are missing.
    fn new(name: &str, luns: usize) -> Option<Self> {
        let has_program = Command::new("iscsiadm").arg("--version").output().is_ok();
        if !has_program || !Path::new(CONFIG).exists() {
            xtask::skip("no open-iscsi, or no iSCSI target in this kernel");
            return None;
        }
        let files = tempfile::tempdir().expect("a folder");
        let target = Self { iqn: format!("iqn.2026-01.io.pintle:{name}"), files, luns };
        for lun in 0..luns {
            let file = target.files.path().join(format!("{lun}.img"));
            fs::File::create(&file).and_then(|file| file.set_len(DISK_BYTES)).expect("a file");
            let core = target.core(lun);
            fs::create_dir_all(&core).expect("a disk of the target");
            let name = file.display();
            put(&core.join("control"), &format!("fd_dev_name={name},fd_dev_size={DISK_BYTES}"));
            put(&core.join("enable"), "1");
            let own = target.group().join(format!("lun/lun_{lun}"));
            fs::create_dir_all(&own).expect("a LUN");
            std::os::unix::fs::symlink(&core, own.join("link")).expect("linked");
        }
        let free =
            [("authentication", "0"), ("generate_node_acls", "1"), ("cache_dynamic_acls", "1")];
        for (key, value) in free.into_iter().chain([("demo_mode_write_protect", "0")]) {
            put(&target.group().join("attrib").join(key), value);
        }
        target.listen(PORTALS[0]);
        target.enable(true);
        Some(target)
    }

    fn listen(&self, portal: &str) {
        fs::create_dir_all(self.group().join("np").join(portal)).expect("a portal");
    }

    fn core(&self, lun: usize) -> PathBuf {
        let name = self.iqn.rsplit(':').next().unwrap_or_default();
        Path::new(CONFIG).join(format!("core/fileio_{lun}/{name}{lun}"))
    }

    fn group(&self) -> PathBuf {
        Path::new(CONFIG).join("iscsi").join(&self.iqn).join("tpgt_1")
    }

    fn enable(&self, is_on: bool) {
        put(&self.group().join("enable"), if is_on { "1" } else { "0" });
    }

    fn volume(&self, lun: usize, more: Value) -> Volume {
        let mut source = json!({"targetPortal": "127.0.0.1", "iqn": self.iqn, "lun": lun,
            "iscsiInterface": "default"});
        for (key, value) in more.as_object().expect("fields") {
            source[key] = value.clone();
        }
        let source: ISCSIVolumeSource = serde_json::from_value(source).expect("a source");
        iscsi_of_pod(&source, &format!("data-{lun}"), "ns").expect("valid")
    }

    fn sessions(&self) -> usize {
        host().sessions_of(&self.iqn).expect("read").len()
    }
}

impl Drop for ScsiTarget {
    fn drop(&mut self) {
        let _ = fs::write(self.group().join("enable"), "0");
        for portal in PORTALS {
            let _ = fs::remove_dir(self.group().join("np").join(portal));
        }
        for lun in 0..self.luns {
            let own = self.group().join(format!("lun/lun_{lun}"));
            let _ = fs::remove_file(own.join("link"));
            let _ = fs::remove_dir(own);
            let _ = fs::remove_dir(self.core(lun));
        }
        let _ = fs::remove_dir(self.group());
    }
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// The real programs; in a slow guest a multipath device is waited for longer.
fn host() -> SanHost {
    SanHost { multipath_wait: WAIT_MAX, ..SanHost::default() }
}

/// A node's root directory with the real programs.
struct SanNode {
    root: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
}

impl SanNode {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Self { root: tempfile::tempdir().expect("root"), runtime: runtime.expect("a runtime") }
    }

    fn stage(&self, volume: &Volume, secret: &[(&str, &str)]) -> Result<(), StageError> {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let secret = secret.iter().map(text).collect();
        let host = host();
        self.runtime.block_on(host.stage(self.root.path(), volume, &secret))
    }

    fn publish(&self, volume: &Volume) -> PathBuf {
        let (host, pod) = (host(), uid());
        let published = host.publish(self.root.path(), &pod, volume, None);
        self.runtime.block_on(published).expect("published");
        let dirs = PodDirs::new(self.root.path(), &uid());
        dirs.volume(pod_folder(&volume.driver), &volume.name)
    }

    /// Takes away what is found on the disk, as an agent that knows nothing else.
    fn end(&self) {
        let host = host();
        let found = scan::scan(self.root.path());
        assert_eq!(found.unreadable, []);
        for found in found.volumes {
            let (root, known) = (self.root.path(), found.known);
            match found.pod {
                Some(pod) => self.runtime.block_on(host.unpublish(root, &pod, &known)),
                None => self.runtime.block_on(host.unstage(root, &known)),
            }
            .unwrap_or_else(|why| panic!("{known:?}: {why}"));
        }
        assert_eq!(scan::scan(self.root.path()).volumes, []);
    }
}

#[test]
fn luns_of_a_real_target_share_its_session_and_keep_their_files() {
    with_private_mounts(|| {
        let Some(target) = ScsiTarget::new("shared", 3) else { return };
        let node = SanNode::new();
        let (first, third) = (target.volume(0, json!({})), target.volume(2, json!({})));
        node.stage(&first, &[]).expect("staged");
        node.stage(&third, &[]).expect("staged");
        assert_eq!(target.sessions(), 1);
        let sessions = host().sessions_of(&target.iqn).expect("read");
        let luns: Vec<u16> = sessions[0].luns.iter().map(|found| found.lun).collect();
        assert_eq!(luns, [0, 2], "only those that were asked for");
        let dir = node.publish(&first);
        fs::write(dir.join("kept"), "x").expect("written");

        let (host, third) = (host(), known(&third));
        let done = host.unstage(node.root.path(), &third);
        node.runtime.block_on(done).expect("unstaged");
        assert_eq!(target.sessions(), 1);
        node.end();
        assert_eq!(target.sessions(), 0);

        let read_only = target.volume(0, json!({"readOnly": true}));
        node.stage(&read_only, &[]).expect("staged");
        let dir = node.publish(&read_only);
        assert_eq!(fs::read(dir.join("kept")).expect("read"), b"x");
        node.end();
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn real_target_that_disappears_and_returns_loses_no_data() {
    with_private_mounts(|| {
        let Some(target) = ScsiTarget::new("away", 1) else { return };
        let node = SanNode::new();
        let volume = target.volume(0, json!({}));
        node.stage(&volume, &[]).expect("staged");
        let file = node.publish(&volume).join("kept");
        target.enable(false);
        let written = file.clone();
        let writer = std::thread::spawn(move || {
            let mut file = fs::File::create(&written)?;
            std::io::Write::write_all(&mut file, b"through")?;
            file.sync_all()
        });
        std::thread::sleep(Duration::from_secs(3));
        // Another target is not delayed by it.
        let other = ScsiTarget::new("well", 1).expect("as the first one");
        let well = other.volume(0, json!({}));
        node.stage(&well, &[]).expect("staged");
        target.enable(true);
        let begun = Instant::now();
        while !writer.is_finished() {
            assert!(begun.elapsed() < WAIT_MAX, "the session comes back");
            std::thread::sleep(Duration::from_millis(100));
        }
        writer.join().expect("no panic").expect("written");
        assert_eq!(fs::read(&file).expect("read"), b"through");
        node.end();
        assert_eq!((target.sessions(), other.sessions()), (0, 0));
    });
}

#[test]
fn real_target_with_a_chap_secret_refuses_a_wrong_password() {
    with_private_mounts(|| {
        let Some(target) = ScsiTarget::new("chap", 1) else { return };
        put(&target.group().join("attrib/authentication"), "1");
        put(&target.group().join("auth/userid"), "bob");
        put(&target.group().join("auth/password"), "s3cret-s3cret");
        let node = SanNode::new();
        let more = json!({"chapAuthSession": true, "secretRef": {"name": "chap"}});
        let volume = target.volume(0, more);
        let user = ("node.session.auth.username", "bob");
        let password = |text| ("node.session.auth.password", text);
        let error = node.stage(&volume, &[user, password("wr0ng-wr0ng-wr0")]).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("failed to attach disk") && !text.contains("wr0ng"), "{text}");
        node.stage(&volume, &[user, password("s3cret-s3cret")]).expect("staged");
        node.end();
        assert_eq!(target.sessions(), 0);
    });
}

#[test]
fn block_volume_of_a_real_target_is_mapped_and_unmapped() {
    with_private_mounts(|| {
        let Some(target) = ScsiTarget::new("block", 1) else { return };
        let node = SanNode::new();
        let mut volume = target.volume(0, json!({}));
        volume.is_block = true;
        volume.handle = format!("{DEVICES_DIR}/{}", volume.handle);
        node.stage(&volume, &[]).expect("staged");
        node.publish(&volume);
        let bound = global_dir(node.root.path(), &volume.driver, &volume.handle).join(UID);
        fs::write(&bound, "raw").expect("written to the device");
        node.end();
        assert_eq!(target.sessions(), 0);
        let file = fs::read(target.files.path().join("0.img")).expect("read");
        assert_eq!(&file[..3], b"raw");
    });
}

#[test]
fn two_paths_to_a_real_target_are_one_device_that_survives_a_lost_path() {
    with_private_mounts(|| {
        let Some(target) = ScsiTarget::new("paths", 1) else { return };
        target.listen(PORTALS[1]);
        let node = SanNode::new();
        let volume = target.volume(0, json!({"portals": [PORTALS[1]]}));
        node.stage(&volume, &[]).expect("staged");
        assert_eq!(target.sessions(), 2);
        let dir = node.publish(&volume);
        let mounts = fs::read_to_string("/proc/thread-self/mountinfo").expect("read");
        let of_volume = mounts.lines().find(|line| line.contains(&*dir.to_string_lossy()));
        let mount = of_volume.expect("it is mounted");
        assert!(mount.contains("/dev/dm-") || mount.contains("/dev/mapper/"), "{mount}");

        let name = format!("ip-{}-iscsi-{}-lun-0", PORTALS[0], target.iqn);
        let path = fs::canonicalize(Path::new("/dev/disk/by-path").join(name)).expect("a path");
        let disk = path.file_name().expect("a name");
        let state = Path::new("/sys/block").join(disk).join("device/state");
        put(&state, "offline\n");
        let mut file = fs::File::create(dir.join("kept")).expect("made");
        std::io::Write::write_all(&mut file, b"by the other path").expect("written");
        file.sync_all().expect("written by the other path");
        put(&state, "running\n");
        node.end();
        assert_eq!(target.sessions(), 0);
        let left = fs::read_dir("/sys/block").expect("read").flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
        let is_map = |name: &std::ffi::OsString| name.to_string_lossy().starts_with("dm-");
        assert!(!left.iter().any(is_map), "no multipath device is left: {left:?}");
    });
}
