//! A file system that does not answer delays only the pod that uses it.

use std::cell::Cell;
use std::rc::Rc;

use nix::mount::MsFlags;
use pintle_agent_core::types::PodUid;
use pintle_agent_core::volume::PodDirs;
use pintle_agent_core::volume::layout::NFS_PLUGIN;
use pintle_daemon::blocking;
use pintle_daemon::blocking::JobPlace;
use serde_json::{Value, json};
use xtask::disk::Hung;

use super::*;
use crate::volume::execute::{remove_pod_dir, unmount_all, unmount_remote};

fn pod_with(volume: Value) -> Pod {
    pod(json!({"containers": [], "volumes": [volume]}))
}

fn pod_of(uid: &str, volume: Value) -> Pod {
    let mut pod = pod_with(volume);
    pod.metadata.uid = Some(uid.to_owned());
    pod
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
                            UsageMeasure::Walk,
                            &RecordedObjects,
                            now,
                        )
                        .await;
                        mounted.set(mounted.get() + 1);
                        done
                    })
                })
                .collect();
            // Other pods start and end as usual: neither this thread nor the pool's are blocked.
            for number in 0..10 {
                let uid = PodUid::from(format!("well{number}"));
                let volume = json!({"name": "v", "configMap": {"name": "cm1"}});
                let volumes = plan(&root.path().join(uid.as_str()), &pod_with(volume));
                crate::volume::execute::make_pod_dirs(&volumes.dirs).expect("made");
                let now = jiff::Timestamp::now();
                let done = crate::volume::execute::mount_all(
                    &uid,
                    &volumes,
                    UsageMeasure::Walk,
                    &RecordedObjects,
                    now,
                )
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

/// File systems that hang, with a process in each, stand in for volumes of a dead NFS server.
#[test]
fn pods_of_a_dead_server_end_and_delay_no_other_removal() {
    const DEAD: usize = 3;
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volume_of = |uid: &str| {
            let dirs = PodDirs::new(root.path(), &uid.into());
            let dir = dirs.volume(NFS_PLUGIN, "data");
            std::fs::create_dir_all(&dir).expect("made");
            (dirs, dir)
        };
        let mut servers = Vec::new();
        let dead: Vec<_> = (0..DEAD)
            .map(|number| {
                let (dirs, dir) = volume_of(&format!("dead{number}"));
                servers.push(Hung::mount(&dir));
                let user = std::thread::spawn(move || std::fs::metadata(dir.join("x")).map(drop));
                (PodUid::from(format!("dead{number}")), dirs, user)
            })
            .collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime.expect("a runtime"), async {
            let ended = Rc::new(Cell::new(0));
            let ending = dead.into_iter().map(|(uid, dirs, user)| {
                let ended = Rc::clone(&ended);
                tokio::task::spawn_local(async move {
                    let given_up = unmount_remote(&uid, &dirs).await.expect("unmounted");
                    ended.set(ended.get() + 1);
                    (given_up, dirs, user)
                })
            });
            let ending: Vec<_> = ending.collect();
            for number in 0..10 {
                let name = format!("well{number}");
                let uid = PodUid::from(name.clone());
                let volume = json!({"name": "v", "configMap": {"name": "cm1"}});
                let volumes = plan(root.path(), &pod_of(&name, volume));
                crate::volume::execute::make_pod_dirs(&volumes.dirs).expect("made");
                let now = jiff::Timestamp::now();
                let done = crate::volume::execute::mount_all(
                    &uid,
                    &volumes,
                    UsageMeasure::Walk,
                    &RecordedObjects,
                    now,
                );
                assert_eq!(done.await, Ok(vec![]));
                // Of a server that answers.
                let (dirs, dir) = volume_of(&name);
                crate::volume::mount::tmpfs(&dir, Some(64 << 10)).expect("mounted");
                assert_eq!(unmount_remote(&uid, &dirs).await, Ok(vec![]));
                let remove = move || unmount_all(&dirs).map(|()| remove_pod_dir(&dirs));
                let removed = blocking::run(JobPlace::removal(&uid), remove).await;
                removed.expect("a thread").expect("unmounted").expect("removed");
            }
            assert!(ended.get() < DEAD, "those of the dead server take their time");
            for one in ending {
                let (given_up, dirs, user) = one.await.expect("no panic");
                let [text] = &given_up[..] else { panic!("{given_up:?}") };
                assert!(text.starts_with("Volume \"data\" was unmounted by force: its server did"));
                user.join().expect("no panic").expect_err("its call was broken off");
                unmount_all(&dirs).expect("nothing is mounted");
                remove_pod_dir(&dirs).expect("removed");
            }
        });
    });
}

#[test]
fn full_or_read_only_disk_is_a_mount_failure_and_the_mount_succeeds_later() {
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
        let mounted = crate::volume::execute::mount_all(
            &uid,
            &volumes,
            UsageMeasure::Walk,
            &RecordedObjects,
            now,
        );
        let errors = runtime.expect("a runtime").block_on(mounted).expect_err("read-only");
        let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert!(errors[0].contains("read-only file system"), "{errors:?}");
    });
}
