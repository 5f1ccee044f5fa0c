//! The two files on a real disk, and projects of a real ext4 where the kernel has quotas: in the
//! guest of `cargo xtask vm` (docs/TESTING.md).

use std::process::Command;
use std::time::Instant;

use serde_json::json;

use super::*;
use crate::volume::execute::{mount_all, unmount_all};
use crate::volume::layout::{EMPTY_DIR_PLUGIN, PodDirs};
use crate::volume::orphan;
use crate::volume::plan::PodVolumes;
use crate::volume::tests::{RecordedObjects, plan, pod, with_private_mounts};

const FOLDERS: &str = "10:/srv\n1048577:/r/pods/u/a\n1048578:/r/pods/u/b\n1048579:/r/other/c\n";
const NAMES: &str = "srv:10\nvolume1048577:1048577\nvolume1048578:1048578\nvolume1048579:1048579\n";

fn written(folder: &Path) -> ProjectFiles {
    let files = ProjectFiles::in_folder(folder);
    fs::write(&files.folders, FOLDERS).expect("written");
    fs::write(&files.names, NAMES).expect("written");
    files
}

fn texts(files: &ProjectFiles) -> (String, String) {
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    (text(&files.folders), text(&files.names))
}

#[test]
fn a_project_is_released_and_the_files_keep_all_else() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = written(dir.path());
    fs::set_permissions(&files.folders, Permissions::from_mode(0o664)).expect("set");
    files.release(Path::new("/r/pods/u/none")).expect("nothing to do");
    assert_eq!(texts(&files), (FOLDERS.to_owned(), NAMES.to_owned()));
    files.release(Path::new("/r/pods/u/a")).expect("released");
    let left = (
        "10:/srv\n1048578:/r/pods/u/b\n1048579:/r/other/c\n".to_owned(),
        "srv:10\nvolume1048578:1048578\nvolume1048579:1048579\n".to_owned(),
    );
    assert_eq!(texts(&files), left);
    let mode = fs::metadata(&files.folders).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o664, "as its owner set it");
    files.release(Path::new("/r/pods/u/a")).expect("twice is once");
    assert_eq!(texts(&files), left);
}

#[test]
fn release_and_sweep_without_project_files_succeed_and_create_none() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = ProjectFiles::in_folder(dir.path());
    files.release(Path::new("/r/pods/u/a")).expect("nothing to do");
    files.sweep(Path::new("/r/pods")).expect("nothing to do");
    assert!(files.listed().0.is_empty());
    assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 0);
}

#[test]
fn sweep_frees_only_projects_of_removed_folders_below_the_pods_directory() {
    let dir = tempfile::tempdir().expect("a folder");
    let pods = dir.path().join("pods");
    let volume = |name: &str| pods.join("u").join(name);
    fs::create_dir_all(volume("there")).expect("made");
    fs::create_dir_all(volume(".deleting~going")).expect("made");
    let files = ProjectFiles::in_folder(dir.path());
    let mut list = Projects::parse("10:/no/such/folder\n", "");
    for (id, name) in (FIRST..).zip(["there", "going", "gone"]) {
        list.add(id, volume(name).to_str().expect("UTF-8"));
    }
    files.write_folders(&list).expect("written");
    files.write_names(&list).expect("written");
    files.sweep(&pods).expect("swept");
    list.remove(|path| path.ends_with("/gone"));
    assert_eq!(texts(&files), (list.folders_text(), list.names_text()));
    assert_eq!(list.folders().count(), 3);
}

#[test]
fn project_files_locked_by_another_process_are_left_unchanged() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = written(dir.path());
    for path in [&files.folders, &files.names] {
        let other = File::open(path).expect("there");
        let other = Flock::lock(other, FlockArg::LockExclusive).map_err(|(_, e)| e).expect("free");
        let refused = files.release(Path::new("/r/pods/u/a"));
        assert!(matches!(&refused, Err(ProjectFailure::Locked(of)) if of == path), "{refused:?}");
        assert_eq!(texts(&files), (FOLDERS.to_owned(), NAMES.to_owned()));
        drop(other);
    }
    files.release(Path::new("/r/pods/u/a")).expect("it is free");
}

#[test]
fn irregular_project_file_is_neither_read_nor_replaced() {
    for (what, put) in xtask::disk::STRANGE {
        let dir = tempfile::tempdir().expect("a folder");
        let files = ProjectFiles::in_folder(dir.path());
        put(&files.folders);
        assert!(locked(&files.folders).is_err(), "{what}");
        assert!(files.release(Path::new("/r/pods/u/a")).is_err(), "{what}");
        let kind = fs::symlink_metadata(&files.folders).expect("it stays").file_type();
        assert!(!kind.is_file(), "{what}");
    }
}

#[test]
fn volume_without_kernel_project_quotas_gets_no_project() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("a folder");
        xtask::disk::small(root.path(), 1 << 20);
        let files = ProjectFiles::in_folder(root.path());
        let volume = root.path().join("volume");
        fs::create_dir(&volume).expect("made");
        assert!(matches!(files.assign(&volume), Ok(None)), "memory is walked");
        assert_eq!(texts(&files), Default::default());
        let volumes = plan(root.path(), &a_pod("uid-1"));
        mount(&volumes);
        assert!(volumes.dirs.volume(EMPTY_DIR_PLUGIN, "a").is_dir(), "it is set up all the same");
        unmount_all(&volumes.dirs).expect("taken away");
    });
}

fn a_pod(uid: &str) -> k8s_openapi::api::core::v1::Pod {
    let mut pod = pod(json!({"hostUsers": false, "containers": [], "volumes": [
        {"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}},
        {"name": "memory", "emptyDir": {"medium": "Memory"}},
        {"name": "map", "configMap": {"name": "cm1"}}]}));
    pod.metadata.uid = Some(uid.to_owned());
    pod
}

fn mount(volumes: &PodVolumes) {
    crate::volume::execute::make_pod_dirs(&volumes.dirs).expect("directories");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
    let (uid, now) = ("u".into(), jiff::Timestamp::now());
    let done = mount_all(&uid, volumes, UsageMeasure::Project, &RecordedObjects, now);
    assert_eq!(runtime.block_on(done), Ok(Vec::new()));
}

/// Runs `test` with an ext4 that counts projects and a private `/etc`.
fn with_project_quotas(test: impl FnOnce(&Path) + Send + 'static) {
    with_private_mounts(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let (image, disk) = (dir.path().join("image"), dir.path().join("disk"));
        fs::create_dir(&disk).expect("made");
        File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("an image");
        let made = Command::new("mkfs.ext4")
            .args(["-q", "-N", "131072", "-O", "project,quota", "-E", "quotatype=prjquota"])
            .arg(&image)
            .status();
        assert!(made.expect("mkfs.ext4 runs").success());
        let mounted =
            Command::new("mount").args(["-o", "loop,prjquota"]).arg(&image).arg(&disk).output();
        let mounted = mounted.expect("mount runs");
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr);
            let why = why.lines().next().unwrap_or_default();
            xtask::skip(&format!("this kernel has no project quotas: {why}"));
            return;
        }
        xtask::disk::small(Path::new("/etc"), 1 << 20);
        test(&disk);
        let ended = nix::mount::umount2(&disk, nix::mount::MntFlags::MNT_DETACH);
        ended.expect("unmounted");
    });
}

/// The usage by a walk.
fn walk(dir: &Path) -> ProjectUsage {
    let meta = fs::symlink_metadata(dir).expect("there");
    let own = ProjectUsage { bytes: meta.blocks() * 512, inodes: 1 };
    if !meta.is_dir() {
        return own;
    }
    fs::read_dir(dir).expect("there").flatten().fold(own, |sum, entry| {
        let below = walk(&entry.path());
        ProjectUsage { bytes: sum.bytes + below.bytes, inodes: sum.inodes + below.inodes }
    })
}

fn projects_of(dirs: &PodDirs) -> Vec<Option<u32>> {
    let listed = ProjectFiles::host().listed();
    let volumes = ["a", "b"].map(|name| dirs.volume(EMPTY_DIR_PLUGIN, name));
    volumes.iter().map(|dir| listed.0.get(dir).copied()).collect()
}

#[test]
fn on_ext4_project_usage_equals_a_walk_and_projects_are_freed_with_their_volumes() {
    with_project_quotas(|root| {
        let (first, second) = (plan(root, &a_pod("uid-1")), plan(root, &a_pod("uid-2")));
        mount(&first);
        assert_eq!(projects_of(&first.dirs), [Some(FIRST), Some(FIRST + 1)]);
        let [a, b] = ["a", "b"].map(|name| first.dirs.volume(EMPTY_DIR_PLUGIN, name));
        let usage = |dir: &Path| ProjectFiles::host().listed().usage(dir).expect("counted");
        assert_eq!((usage(&a), usage(&b)), (walk(&a), walk(&b)), "empty");
        fs::create_dir_all(a.join("x/y")).expect("made");
        for n in 0..50 {
            fs::write(a.join(format!("x/y/{n}")), vec![1; 1000 * n]).expect("nothing limits it");
        }
        fs::hard_link(a.join("x/y/9"), b.join("9")).expect_err("a file has one project");
        assert_eq!((usage(&a), usage(&b)), (walk(&a), walk(&b)), "not on the disk yet");
        nix::unistd::sync();
        let held = usage(&a);
        assert_eq!(held, walk(&a));
        assert!(held.inodes == 53 && held.bytes > 1_000_000, "{held:?}");
        for (plugin, other) in [("kubernetes.io~configmap", "map"), (EMPTY_DIR_PLUGIN, "memory")] {
            let other = first.dirs.volume(plugin, other);
            assert!(other.is_dir() && ProjectFiles::host().listed().usage(&other).is_none());
        }

        let before = texts(&ProjectFiles::host());
        mount(&first);
        assert_eq!(texts(&ProjectFiles::host()), before, "another start of the agent");
        mount(&second);
        assert_eq!(projects_of(&second.dirs), [Some(FIRST + 2), Some(FIRST + 3)]);
        // Killed between the list and the folder.
        let open = open_dir(&b).expect("there");
        project::assign(open.as_fd(), 0).expect("taken off");
        drop(open); // a folder that is open counts until it is closed
        assert_eq!(ProjectFiles::host().listed().usage(&b), None, "walked meanwhile");
        assert_eq!(ProjectFiles::host().assign(&b).expect("given again"), Some(FIRST + 1));
        assert_eq!(usage(&b), walk(&b));

        unmount_all(&first.dirs).expect("taken away");
        assert_eq!(projects_of(&first.dirs), [None, None]);
        let open = open_dir(root).expect("there");
        let left = project::usage(open.as_fd(), FIRST).expect("asked").expect("counted");
        assert_eq!(left, ProjectUsage::default(), "nothing counts for a project that is free");
        // A project in use that no file names is not assigned.
        fs::create_dir(root.join("stranger")).expect("made");
        let stranger = open_dir(&root.join("stranger")).expect("there");
        assert_eq!(project::assign(stranger.as_fd(), FIRST), Ok(true));
        mount(&first);
        assert_eq!(projects_of(&first.dirs), [Some(FIRST + 1), Some(FIRST + 4)]);

        // Killed between the removal and the list: the sweep of another start frees it.
        for name in ["a", "b"] {
            fs::remove_dir(second.dirs.volume(EMPTY_DIR_PLUGIN, name)).expect("gone");
        }
        orphan::sweep_unless(root, |_| true).expect("swept");
        assert_eq!(projects_of(&second.dirs), [None, None]);
        unmount_all(&first.dirs).expect("taken away");
        unmount_all(&second.dirs).expect("taken away");
        assert_eq!(texts(&ProjectFiles::host()), Default::default());
    });
}

#[test]
fn on_ext4_project_usage_of_100_000_files_equals_that_of_a_walk() {
    with_project_quotas(|root| {
        let volumes = plan(root, &a_pod("uid-1"));
        mount(&volumes);
        let a = volumes.dirs.volume(EMPTY_DIR_PLUGIN, "a");
        for folder in 0..100 {
            let folder = a.join(folder.to_string());
            fs::create_dir(&folder).expect("made");
            (0..1000).for_each(|n| drop(File::create(folder.join(n.to_string())).expect("made")));
        }
        let begun = Instant::now();
        let walked = walk(&a);
        let walk_took = begun.elapsed();
        let listed = ProjectFiles::host().listed();
        let begun = Instant::now();
        let counted = listed.usage(&a);
        println!("a walk took {walk_took:?}, the call {:?}", begun.elapsed());
        assert_eq!(counted, Some(walked));
        assert_eq!(walked.inodes, 100_101);
        unmount_all(&volumes.dirs).expect("taken away");
    });
}
