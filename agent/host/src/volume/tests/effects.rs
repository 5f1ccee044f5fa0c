//! Sizes, groups, sub-paths, teardown: what is not in the recordings.

use pintle_agent_core::volume::mounts::SubPath;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::PathBuf;

use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use serde_json::{Value, json};

use super::*;
use crate::volume::dir_fd::is_mount_point;
use crate::volume::execute::{remove_pod_dir, unmount_all};
use crate::volume::mount;
use crate::volume::mount::below;
use crate::volume::orphan::sweep;

/// A pod with one container `c`.
fn pod_with(volumes: Value, mounts: Value) -> Pod {
    pod(json!({"volumes": volumes, "containers": [{"name": "c", "volumeMounts": mounts}]}))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("stat").permissions().mode() & 0o7777
}

/// Plans, mounts and prepares the one container; its host paths in order.
fn run(root: &Path, pod: &Pod) -> Result<Vec<PathBuf>, String> {
    let volumes = plan(root, pod);
    mount(&volumes).map_err(|errors| errors.join("; "))?;
    let container = &pintle_api_types::pod::spec(pod).containers[0];
    let mounts = volumes.mounts(container, &no_env(), false).map_err(|e| e.to_string())?;
    prepare(&mounts).map_err(|e| e.to_string())?;
    Ok(mounts.into_iter().map(|m| m.host_path).collect())
}

fn end(root: &Path, pod: &Pod) {
    let dirs = plan(root, pod).dirs;
    unmount_all(&dirs).expect("taken away");
    remove_pod_dir(&dirs).expect("removed");
    assert_eq!(below(root).expect("mounts"), Vec::<PathBuf>::new());
    assert!(!dirs.pod().exists());
}

#[test]
fn memory_volume_is_a_tmpfs_of_its_size_limit_and_is_mounted_once() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let source = json!([{"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]);
        let pod = pod_with(source, json!([{"name": "m", "mountPath": "/m"}]));
        let dir = run(root.path(), &pod).expect("mounted").remove(0);
        let fs_of = statfs(&dir).expect("statfs");
        assert_eq!(fs_of.filesystem_type(), TMPFS_MAGIC);
        let bytes = fs_of.blocks() * u64::try_from(fs_of.block_size()).expect("positive");
        assert_eq!(bytes, 8 << 20);
        fs::write(dir.join("kept"), "data").expect("write");
        run(root.path(), &pod).expect("mounted again");
        assert_eq!(below(root.path()).expect("mounts").len(), 1, "no second mount on top");
        assert_eq!(fs::read_to_string(dir.join("kept")).expect("kept"), "data");
        end(root.path(), &pod);
    });
}

#[test]
fn volumes_belong_to_the_fs_group_of_their_pod() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volumes = json!([{"name": "e", "emptyDir": {}},
            {"name": "s", "secret": {"secretName": "sec1", "defaultMode": 0o400}}]);
        let mut pod = pod_with(volumes, json!([]));
        let spec = pod.spec.as_mut().expect("spec");
        spec.security_context =
            serde_json::from_value(json!({"fsGroup": 4242})).expect("a context");
        let dirs = plan(root.path(), &pod).dirs;
        run(root.path(), &pod).expect("mounted");
        let empty = dirs.volume("kubernetes.io~empty-dir", "e");
        assert_eq!(mode(&empty), 0o2777);
        assert_eq!(fs::metadata(&empty).expect("stat").gid(), 4242);
        let file = dirs.volume("kubernetes.io~secret", "s").join("user");
        assert_eq!(mode(&file), 0o440);
        assert_eq!(fs::metadata(&file).expect("stat").gid(), 4242);
        end(root.path(), &pod);
    });
}

#[test]
fn volumes_mounted_inside_a_payload_volume_get_their_mount_points() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volumes = json!([{"name": "cm", "configMap": {"name": "cm1"}},
            {"name": "e", "emptyDir": {}}]);
        let mounts = json!([{"name": "cm", "mountPath": "/cfg"},
            {"name": "e", "mountPath": "/cfg/cache/deep"}]);
        let pod = pod_with(volumes, mounts);
        let cfg = run(root.path(), &pod).expect("mounted").remove(0);
        assert!(cfg.join("cache/deep").is_dir());
        assert_eq!(fs::read_to_string(cfg.join("k1")).expect("k1"), "v1");
        run(root.path(), &pod).expect("again");
        assert!(cfg.join("cache/deep").is_dir(), "an update keeps the mount point");
        end(root.path(), &pod);
    });
}

#[test]
fn a_sub_path_that_is_missing_is_made_with_the_volumes_mode() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let host = tempfile::tempdir().expect("host");
        fs::set_permissions(host.path(), fs::Permissions::from_mode(0o2770)).expect("chmod");
        let volumes = json!([{"name": "h", "hostPath": {"path": host.path()}}]);
        let mounts = json!([{"name": "h", "mountPath": "/a", "subPath": "x/y/"}]);
        let pod = pod_with(volumes, mounts);
        let bound = run(root.path(), &pod).expect("mounted").remove(0);
        assert!(bound.ends_with("volume-subpaths/h/c/0"));
        assert_eq!((mode(&host.path().join("x")), mode(&bound)), (0o2770, 0o2770));
        fs::write(bound.join("file"), "from the container").expect("write");
        run(root.path(), &pod).expect("again");
        assert_eq!(below(root.path()).expect("mounts").len(), 1, "bound once");
        end(root.path(), &pod);
        let kept = fs::read_to_string(host.path().join("x/y/file")).expect("kept");
        assert_eq!(kept, "from the container", "what a hostPath points to is never deleted");
    });
}

#[test]
fn sub_paths_follow_links_inside_the_volume_and_links_out_of_the_volume_are_refused() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let host = tempfile::tempdir().expect("host");
        let outside = tempfile::tempdir().expect("outside");
        fs::create_dir(host.path().join("real")).expect("mkdir");
        fs::write(host.path().join("real/file"), "inside").expect("write");
        let link = |to: &Path, name: &str| symlink(to, host.path().join(name)).expect("symlink");
        link(Path::new("real"), "relative");
        link(&host.path().join("real"), "absolute");
        link(outside.path(), "out");
        link(Path::new("../../.."), "up");
        link(Path::new("/proc/self/root"), "magic");
        link(Path::new("loop"), "loop");
        link(Path::new("nowhere"), "dangling");
        let table = [
            ("relative", true),
            ("relative/file", true),
            ("absolute", true),
            ("absolute/file", true),
            ("out", false),
            ("out/made", false),
            ("up", false),
            ("up/made", false),
            ("magic/tmp", false),
            ("loop", false),
            ("dangling", false),
            ("real/file/below", false),
        ];
        for (path, allowed) in table {
            let volumes = json!([{"name": "h", "hostPath": {"path": host.path()}}]);
            let pod = pod_with(volumes, json!([{"name": "h", "mountPath": "/a", "subPath": path}]));
            let done = run(root.path(), &pod);
            assert_eq!(done.is_ok(), allowed, "{path}: {done:?}");
            if let Err(text) = done {
                assert!(
                    text.ends_with("subPath for volumeMount \"h\" of container \"c\"")
                        || text.ends_with(
                            "subPath directory for volumeMount \"h\" of container \"c\""
                        ),
                    "{text}"
                );
            }
            end(root.path(), &pod);
        }
        assert_eq!(fs::read_dir(outside.path()).expect("read").count(), 0, "nothing made outside");
    });
}

#[test]
fn data_behind_a_mount_left_in_a_volume_is_not_deleted() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let precious = tempfile::tempdir().expect("precious");
        fs::write(precious.path().join("data"), "keep me").expect("write");
        let pod = pod_with(
            json!([{"name": "e", "emptyDir": {}}]),
            json!([{"name": "e", "mountPath": "/e"}]),
        );
        let dir = run(root.path(), &pod).expect("mounted").remove(0);
        let inner = dir.join("inner");
        fs::create_dir(&inner).expect("mkdir");
        mount::bind(precious.path(), &inner).expect("bind");
        // The walk itself refuses the mount, even one of the same device.
        let refused = crate::volume::remove::remove_tree(&dir).expect_err("a mount is in the way");
        assert_eq!(refused.errno, nix::errno::Errno::EXDEV);
        // The teardown takes the mount off first.
        end(root.path(), &pod);
        assert_eq!(fs::read_to_string(precious.path().join("data")).expect("kept"), "keep me");
    });
}

#[test]
fn unmount_of_volumes_without_nested_mounts_does_not_list_all_mounts() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let pod = pod_with(
            json!([{"name": "e", "emptyDir": {}}, {"name": "m", "emptyDir": {"medium": "Memory"}},
                {"name": "c", "configMap": {"name": "cm1"}}]),
            json!([{"name": "e", "mountPath": "/e"}, {"name": "m", "mountPath": "/m"}]),
        );
        run(root.path(), &pod).expect("mounted");
        mount::LISTS_READ.with(|reads| reads.set(0));
        unmount_all(&plan(root.path(), &pod).dirs).expect("taken away");
        assert_eq!(mount::LISTS_READ.with(std::cell::Cell::get), 0);
        end(root.path(), &pod);
    });
}

#[test]
fn a_tree_deeper_than_any_stack_is_deleted() {
    let root = tempfile::tempdir().expect("root");
    let top = root.path().join("top");
    fs::create_dir(&top).expect("mkdir");
    let mut dir = crate::volume::dir_fd::open_dir(&top).expect("open");
    for _ in 0..3000 {
        nix::sys::stat::mkdirat(&dir, "d", nix::sys::stat::Mode::S_IRWXU).expect("mkdir");
        let flags = nix::fcntl::OFlag::O_DIRECTORY;
        let below =
            crate::volume::dir_fd::open_beneath(&dir, "d", flags, nix::fcntl::ResolveFlag::empty());
        dir = below.expect("open");
    }
    drop(dir);
    crate::volume::remove::remove_tree(&top).expect("removed");
    assert!(!top.exists());
}

#[test]
fn directories_of_another_plugin_are_left_alone_and_named_once() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let make = |uid: &str, dir: &str| {
            let dir = root.path().join("pods").join(uid).join(dir);
            fs::create_dir_all(&dir).expect("mkdir");
            dir
        };
        let csi = make("csi-1", "volumes/kubernetes.io~csi/pv/mount");
        let other = make("csi-2", "volumes/kubernetes.io~csi/pv/mount");
        make("empty", "volumes/kubernetes.io~empty-dir/e/sub");
        make("kept", "volumes/kubernetes.io~empty-dir/e/sub");
        for dir in [&csi, &other] {
            fs::write(dir.join("data"), "x").expect("write");
        }
        let keep = std::collections::BTreeSet::from(["kept".into()]);
        let swept = sweep(root.path(), &keep).expect("swept");
        assert_eq!(swept.removed, ["empty".into()]);
        assert_eq!(swept.kept.len(), 2);
        let warning = swept.warning().expect("a warning");
        assert!(
            warning.contains("(and 1 more)") && warning.contains("kubernetes.io~csi"),
            "{warning}"
        );
        assert!(csi.join("data").exists());
        assert!(root.path().join("pods/kept").exists());
        assert!(!root.path().join("pods/empty").exists());
    });
}

#[test]
fn failures_name_volume_path_and_cause_and_do_not_hide_each_other() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let volumes = json!([
            {"name": "h", "hostPath": {"path": "/etc/passwd", "type": "Directory"}},
            {"name": "s", "secret": {"secretName": "nope"}},
            {"name": "k", "configMap": {"name": "cm1", "items": [{"key": "no", "path": "p"}]}},
            {"name": "n", "flexVolume": {"driver": "x/y"}},
            {"name": "g", "emptyDir": {"medium": "HugePages"}},
            {"name": "ok", "emptyDir": {}}]);
        // Of a kind that is not served, an unused volume is passed over.
        let pod = pod_with(volumes, json!([{"name": "n", "mountPath": "/n"}]));
        let errors = mount(&plan(root.path(), &pod)).expect_err("refused");
        let expected = [
            "MountVolume.SetUp failed for volume \"h\" : hostPath type check failed: /etc/passwd is not a directory",
            "MountVolume.SetUp failed for volume \"s\" : secret \"nope\" not found",
            "MountVolume.SetUp failed for volume \"k\" : configmap references non-existent config key: no",
            "MountVolume.SetUp failed for volume \"n\" : no volume plugin matched: flexVolume",
            "MountVolume.SetUp failed for volume \"g\" : medium HugePages: \
             hugePages storage requested, but there is no resource request for huge pages",
        ];
        assert_eq!(errors, expected);
        assert!(plan(root.path(), &pod).dirs.volume("kubernetes.io~empty-dir", "ok").is_dir());
        end(root.path(), &pod);
    });
}

#[test]
fn mount_point_is_distinguished_from_a_directory_and_a_file() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        let at = |name: &str| root.path().join(name);
        fs::create_dir(at("dir")).expect("mkdir");
        fs::write(at("file"), "").expect("write");
        fs::write(at("other"), "").expect("write");
        for name in ["dir", "file", "none", "none/below"] {
            assert!(!is_mount_point(&at(name)).expect(name), "{name}");
        }
        mount::tmpfs(&at("dir"), Some(1 << 20)).expect("tmpfs");
        mount::bind(&at("other"), &at("file")).expect("bind");
        assert!(is_mount_point(&at("dir")).expect("dir"));
        assert!(is_mount_point(&at("file")).expect("file"));
        mount::unmount(&at("dir")).expect("unmounted");
        mount::unmount(&at("dir")).expect("twice is fine");
        mount::unmount(&at("file")).expect("unmounted");
        assert!(!is_mount_point(&at("dir")).expect("dir"));
    });
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config::with_cases(64))]
    #[test]
    fn no_sub_path_ever_reaches_outside_the_volume(
        links in proptest::collection::vec(("[ab]/[ab]|[ab]", path_of_parts()), 0..4),
        part in path_of_parts(),
    ) {
        with_private_mounts(move || {
            let world = tempfile::tempdir().expect("world");
            let volume = world.path().join("volume");
            fs::create_dir_all(volume.join("a/b")).expect("mkdir");
            fs::create_dir_all(world.path().join("outside/a")).expect("mkdir");
            for (at, to) in &links {
                let to = to.replace("ABS", &world.path().to_string_lossy());
                let _ = symlink(to, volume.join(at));
            }
            let before = identities(&world.path().join("outside"));
            let target = world.path().join("target/0");
            let part = SubPath { volume_root: volume.clone(), path: part.replace("ABS", "") };
            if crate::volume::sub_path::prepare(&part, &target).is_ok() {
                let meta = fs::metadata(&target).expect("stat");
                let inside = identities(&volume);
                assert!(inside.contains(&(meta.dev(), meta.ino())), "{part:?} with {links:?}");
            }
            mount::unmount(&target).expect("unmounted");
            assert_eq!(identities(&world.path().join("outside")), before, "made outside: {part:?}");
        });
    }
}

/// Paths that go up, down, round and out.
fn path_of_parts() -> impl proptest::strategy::Strategy<Value = String> {
    use proptest::prelude::*;
    let part = prop_oneof![
        Just("a"),
        Just("b"),
        Just(".."),
        Just("."),
        Just("outside"),
        Just("volume"),
        Just("ABS/volume/a"),
        Just("ABS/outside"),
        Just("/proc/self/root"),
    ];
    proptest::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"))
}

/// Device and inode of everything in a directory, itself included.
fn identities(dir: &Path) -> std::collections::BTreeSet<(u64, u64)> {
    let mut found = std::collections::BTreeSet::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        found.insert((meta.dev(), meta.ino()));
        left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|e| e.path()));
        if meta.is_symlink() {
            left.retain(|p| !p.starts_with(&path));
        }
    }
    found
}

#[test]
fn the_root_directory_propagates_mounts_and_is_prepared_once() {
    with_private_mounts(|| {
        let root = tempfile::tempdir().expect("root");
        for _ in 0..2 {
            crate::volume::execute::prepare_root(root.path()).expect("prepared");
            assert_eq!(below(root.path()).expect("mounts").len(), 1);
        }
        assert_eq!(mode(&root.path().join("pods")), 0o750);
        let info = fs::read_to_string("/proc/thread-self/mountinfo").expect("readable");
        let path = root.path().to_string_lossy();
        assert!(info.lines().any(|l| l.contains(&*path) && l.contains(" shared:")), "{info}");
        mount::unmount(root.path()).expect("unmounted");
    });
}
