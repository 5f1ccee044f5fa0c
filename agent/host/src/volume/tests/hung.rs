//! A file system that does not answer holds up the pod that names it, and nobody else.

use std::cell::Cell;
use std::rc::Rc;

use nix::mount::MsFlags;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::PodDirs;
use serde_json::{Value, json};
use xtask::disk::Hung;

use super::*;

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
                        let done = crate::volume::execute::mount_all(
                            &uid,
                            &volumes,
                            Measure::Walk,
                            &Objects,
                            now,
                        )
                        .await;
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
                let done =
                    crate::volume::execute::mount_all(&uid, &volumes, Measure::Walk, &Objects, now)
                        .await;
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
        let mounted =
            crate::volume::execute::mount_all(&uid, &volumes, Measure::Walk, &Objects, now);
        let errors = runtime.expect("a runtime").block_on(mounted).expect_err("read-only");
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("read-only file system"), "{errors:?}");
    });
}
