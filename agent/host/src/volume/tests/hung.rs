//! A file system that does not answer holds up the pod that names it, and nobody else.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::rc::Rc;

use nix::mount::MsFlags;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::PodDirs;
use serde_json::{Value, json};

use super::*;

/// Opcode of the kernel's first question.
const FUSE_INIT: u32 = 26;
/// Length of a question's header, and of an answer's.
const HEADS: (usize, usize) = (40, 16);

/// A mount whose server says that it is there and never says anything again.
struct Hung {
    /// Closing it gives up everybody who waits.
    device: Option<File>,
    path: std::path::PathBuf,
}

impl Hung {
    fn mount(path: &Path) -> Self {
        let mut device =
            File::options().read(true).write(true).open("/dev/fuse").expect("FUSE is built in");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        nix::mount::mount(Some("hung"), path, Some("fuse"), MsFlags::empty(), Some(&*options))
            .expect("mounted");
        let mut question = vec![0; 64 << 10];
        let length = device.read(&mut question).expect("the kernel's first question");
        assert!(length >= HEADS.0);
        let word = |at: usize| u32::from_le_bytes(question[at..at + 4].try_into().expect("four"));
        assert_eq!(word(4), FUSE_INIT);
        // Version 7.31 with the smallest of everything: 64 bytes of answer after the head.
        let mut answer = vec![0_u8; HEADS.1 + 64];
        let total = u32::try_from(answer.len()).expect("small");
        answer[0..4].copy_from_slice(&total.to_le_bytes());
        answer[8..16].copy_from_slice(&question[8..16]);
        answer[16..20].copy_from_slice(&7_u32.to_le_bytes());
        answer[20..24].copy_from_slice(&31_u32.to_le_bytes());
        answer[36..40].copy_from_slice(&4096_u32.to_le_bytes());
        device.write_all(&answer).expect("answered");
        Self { device: Some(device), path: path.to_owned() }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        drop(self.device.take());
        let _ = nix::mount::umount2(&self.path, nix::mount::MntFlags::MNT_DETACH);
    }
}

fn pod_with(volume: Value) -> Pod {
    pod(json!({"containers": [], "volumes": [volume]}))
}

#[test]
fn pods_on_a_server_that_hangs_wait_alone() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let dead = root.path().join("dead");
        std::fs::create_dir(&dead).expect("made");
        let hung = Hung::mount(&dead);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async {
            let mounted = Rc::new(Cell::new(0));
            let path = dead.join("share");
            let waiting: Vec<_> = (0..20)
                .map(|number| {
                    let uid = PodUid::from(format!("hung{number}"));
                    let volume = json!({"name": "v",
                        "hostPath": {"path": path, "type": "Directory"}});
                    let home = root.path().join(uid.as_str());
                    let (volumes, mounted) = (plan(&home, &pod_with(volume)), Rc::clone(&mounted));
                    tokio::task::spawn_local(async move {
                        crate::volume::execute::make_pod_dirs(&volumes.dirs).expect("made");
                        let now = jiff::Timestamp::now();
                        let done =
                            crate::volume::execute::mount_all(&uid, &volumes, &Objects, now).await;
                        mounted.set(mounted.get() + 1);
                        done
                    })
                })
                .collect();
            // Others come and go as ever: this thread is there for them, and so are other threads.
            for number in 0..10 {
                let uid = PodUid::from(format!("well{number}"));
                let volume = json!({"name": "v", "configMap": {"name": "cm1"}});
                let volumes = plan(&root.path().join(uid.as_str()), &pod_with(volume));
                crate::volume::execute::make_pod_dirs(&volumes.dirs).expect("made");
                let now = jiff::Timestamp::now();
                let done = crate::volume::execute::mount_all(&uid, &volumes, &Objects, now).await;
                assert_eq!(done, Ok(vec![]));
            }
            assert_eq!(mounted.get(), 0, "those on the dead server wait");
            drop(hung);
            for one in waiting {
                let errors = one.await.expect("no panic").expect_err("the server is gone");
                assert!(errors[0].to_string().contains("MountVolume.SetUp failed"), "{errors:?}");
            }
        });
    });
}

#[test]
fn a_full_or_read_only_disk_is_told_as_a_failed_mount_and_made_good_later() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        crate::volume::mount::tmpfs(root.path(), Some(64 << 10)).expect("tmpfs");
        let volume = json!({"name": "v", "configMap": {"name": "cm1"}});
        let volumes = plan(root.path(), &pod_with(volume));
        super::super::execute::make_pod_dirs(&volumes.dirs).expect("made");
        let full = root.path().join("full");
        std::fs::write(&full, vec![0; 128 << 10]).expect_err("the disk is full");
        let errors = mount(&volumes).expect_err("no room");
        assert!(errors[0].contains("MountVolume.SetUp failed for volume \"v\""), "{errors:?}");
        assert!(errors[0].contains("no space left on device"), "{errors:?}");
        std::fs::remove_file(&full).expect("room again");
        mount(&volumes).expect("mounted");

        let other = tempfile::tempdir().expect("root");
        crate::volume::mount::bind(root.path(), other.path()).expect("bound");
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        nix::mount::mount(None::<&str>, other.path(), None::<&str>, flags, None::<&str>)
            .expect("read-only");
        let volume = json!({"name": "w", "emptyDir": {}});
        let volumes = plan(other.path(), &pod_with(volume));
        let error = super::super::execute::make_pod_dirs(&PodDirs::new(other.path(), &"x".into()));
        assert!(error.expect_err("read-only").to_string().contains("EROFS"));
        let uid = PodUid::from("x");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let now = jiff::Timestamp::now();
        let mounted = crate::volume::execute::mount_all(&uid, &volumes, &Objects, now);
        let errors = runtime.expect("a runtime").block_on(mounted).expect_err("read-only");
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("read-only file system"), "{errors:?}");
    });
}
