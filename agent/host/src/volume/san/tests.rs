//! Disks of a storage network with a fake `iscsiadm`, a fake sysfs and links, and real file systems
//! on loop devices, each test in a mount namespace of its own. What a kernel does on a scan and on a
//! deletion, a thread does here.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIVolumeSource};
use pintle_agent_core::storage::disk::{fc_of_pod, iscsi_of_pod};
use pintle_agent_core::storage::{FoundVolume, Wanted};
use serde_json::{Value, json};

use super::*;
use crate::volume::tests::local::Disk;
use crate::volume::tests::with_private_mounts;

const IQN: &str = "iqn.2003-01.io.k8s:e2e.volume-1";
pub(super) const UID: &str = "8c1e4b9a-1111-4222-8333-123456789abc";

/// Longest wait of a disk that is well: shorter than the wait for one that is not.
const WELL_MAX: Duration = Duration::from_secs(60);

/// Sessions are made and ended as open-iscsi does; a portal in `refuse` does not let in, one in
/// `hang` does not answer, and `bad` is printed with an update that is refused.
const ISCSIADM: &str = r#"#!/bin/sh
S=STATE
echo "$*" >> $S/log
while [ $# -gt 0 ]; do
  case $1 in
    -m) m=$2; shift;; -p) p=$2; shift;; -T) t=$2; shift;; -o) o=$2; shift;;
    -v) v=$2; shift;; -n) n=$2; shift;; -I|-t) shift;; --*) a=$1;;
  esac
  shift
done
h=${p##*.}; h=${h%%:*}
d=$S/sys/class/iscsi_host/host$h
case "$m$a$o" in
  ifaceshow) printf 'iface.transport_name = tcp\niface.initiatorname = <empty>\n';;
  *update) if [ -e $S/bad ]; then echo "bad value $v of $n"; exit 7; fi;;
  node--login)
    while [ -e $S/hang/$p ]; do sleep 0.02; done
    [ -e $S/refuse/$p ] && { echo "no route to $p"; exit 8; }
    [ -e $d ] && exit 15
    c=$d/device/session$h/connection$h:0/iscsi_connection/connection$h:0
    mkdir -p $c $d/device/session$h/iscsi_session/session$h $S/sys/class/scsi_host/host$h
    echo $t > $d/device/session$h/iscsi_session/session$h/targetname
    for f in address persistent_address; do echo ${p%%:*} > $c/$f; done
    for f in port persistent_port; do echo ${p##*:} > $c/$f; done
    : > $S/sys/class/scsi_host/host$h/scan;;
  node--logout) [ -e $d ] || exit 21; rm -r $d $S/sys/class/scsi_host/host$h
    rm -f $S/dev/disk/by-path/ip-$p-iscsi-$t-lun-*;;
esac
exit 0
"#;

/// Flushes a map.
const MULTIPATH: &str = "#!/bin/sh\necho multipath \"$1 ${2##*/}\" >> STATE/log\n\
                         rm -r STATE/sys/block/${2##*/}\n";

/// A node with targets.
struct San {
    dir: tempfile::TempDir,
    host: SanHost,
    /// Disks by their LUN.
    disks: Vec<Disk>,
    has_ended: Arc<AtomicBool>,
    kernel: Option<JoinHandle<()>>,
    runtime: tokio::runtime::Runtime,
}

impl San {
    /// With this many LUNs, from 0.
    fn new(luns: usize) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |path: &str| dir.path().join(path);
        for folder in ["dev/disk/by-path", "sys/block", "sys/class/iscsi_host", "hang", "refuse"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        fs::write(at("log"), "").expect("written");
        let program = |name: &str, text: &str| {
            let path = at(name);
            let text = text.replace("STATE", &dir.path().to_string_lossy());
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("executable");
            path.to_string_lossy().into_owned()
        };
        let host = SanHost {
            dev: at("dev"),
            sys: at("sys"),
            iscsiadm: program("iscsiadm", ISCSIADM),
            multipath: program("multipath", MULTIPATH),
            link_wait: Duration::from_secs(10),
            multipath_wait: Duration::from_millis(500),
        };
        let disks: Vec<Disk> = (0..luns).map(|_| Disk::new()).collect();
        let has_ended = Arc::new(AtomicBool::new(false));
        let devices: Vec<PathBuf> = disks.iter().map(|disk| disk.device.clone()).collect();
        for device in &devices {
            let block = at("sys/block").join(device.file_name().expect("a name"));
            fs::create_dir_all(block.join("device")).expect("made");
            let number = fs::metadata(device).expect("stat").rdev();
            let (major, minor) = (nix::sys::stat::major(number), nix::sys::stat::minor(number));
            fs::write(block.join("dev"), format!("{major}:{minor}\n")).expect("written");
            fs::write(block.join("device/delete"), "").expect("written");
        }
        let (root, end) = (dir.path().to_owned(), Arc::clone(&has_ended));
        let kernel = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                react(&root, &devices);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        Self { dir, host, disks, has_ended, kernel: Some(kernel), runtime }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    /// The agent's root directory.
    fn root(&self) -> PathBuf {
        self.at("kubelet")
    }

    /// What was run since the last call, without options that all runs have.
    fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.at("log")).expect("read");
        fs::write(self.at("log"), "").expect("written");
        let short = |line: &str| {
            let line = line.replace("-t sendtargets ", "").replace("-I default ", "");
            line.replace(&format!("-T {IQN} "), "").replace(" -I default", "")
        };
        text.lines().map(short).collect()
    }

    fn stage(&self, volume: &Volume) -> Result<(), StageError> {
        self.stage_with(volume, &[])
    }

    fn stage_with(&self, volume: &Volume, secret: &[(&str, &str)]) -> Result<(), StageError> {
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let secret = secret.iter().map(text).collect();
        self.runtime.block_on(self.host.stage(&self.root(), volume, &secret))
    }

    fn publish(&self, volume: &Volume, group: Option<u32>) -> PathBuf {
        let policy = GroupPolicy::Always;
        let group = group.map(|group| GroupChange { group, policy });
        let (root, pod) = (self.root(), uid());
        let published = self.host.publish(&root, &pod, volume, group);
        self.runtime.block_on(published).expect("published");
        let dirs = PodDirs::new(&self.root(), &uid());
        dirs.volume(pod_folder(&volume.driver), &volume.name)
    }

    fn unpublish(&self, known: &Known) {
        let (root, pod) = (self.root(), uid());
        let done = self.host.unpublish(&root, &pod, known);
        self.runtime.block_on(done).expect("unpublished");
    }

    fn unstage(&self, known: &Known) -> Result<(), Cause> {
        self.runtime.block_on(self.host.unstage(&self.root(), known))
    }

    fn found(&self) -> Vec<FoundVolume> {
        let found = scan::scan(&self.root());
        assert_eq!(found.unreadable, []);
        found.volumes
    }

    /// Hosts with a session.
    fn sessions(&self) -> usize {
        fs::read_dir(self.at("sys/class/iscsi_host")).expect("read").count()
    }
}

impl Drop for San {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        if let Some(kernel) = self.kernel.take() {
            let _ = kernel.join();
        }
    }
}

/// A scan of a LUN shows its device and its link; a deletion takes them away.
fn react(root: &Path, devices: &[PathBuf]) {
    let hosts = root.join("sys/class/scsi_host");
    for host in fs::read_dir(&hosts).into_iter().flatten().flatten() {
        let asked = fs::read_to_string(host.path().join("scan")).unwrap_or_default();
        let Some(lun) = asked.strip_prefix("0 0 ").and_then(|lun| lun.parse::<usize>().ok()) else {
            continue;
        };
        let _ = fs::write(host.path().join("scan"), "");
        let Some(device) = devices.get(lun) else { continue };
        let number = host.file_name().to_string_lossy().replace("host", "");
        let session =
            root.join(format!("sys/class/iscsi_host/host{number}/device/session{number}"));
        let block = format!("target{number}:0:0/{number}:0:0:{lun}/block");
        let name = device.file_name().expect("a name");
        let _ = fs::create_dir_all(session.join(block).join(name));
        let link = format!("ip-10.0.0.{number}:3260-iscsi-{IQN}-lun-{lun}");
        let _ = symlink(device, root.join("dev/disk/by-path").join(link));
    }
    for device in devices {
        let name = device.file_name().expect("a name");
        let delete = root.join("sys/block").join(name).join("device/delete");
        if fs::read_to_string(&delete).is_ok_and(|text| text == "1") {
            for entry in fs::read_dir(root.join("dev/disk/by-path")).into_iter().flatten().flatten()
            {
                if fs::read_link(entry.path()).is_ok_and(|to| to == *device) {
                    let _ = fs::remove_file(entry.path());
                }
            }
            let _ = fs::write(&delete, "");
        }
    }
}

pub(super) fn uid() -> PodUid {
    PodUid::parse(UID).expect("a uid")
}

fn disk(lun: usize, more: Value) -> Volume {
    let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": lun,
        "iscsiInterface": "default"});
    for (key, value) in more.as_object().expect("fields") {
        source[key] = value.clone();
    }
    let source: ISCSIVolumeSource = serde_json::from_value(source).expect("a source");
    iscsi_of_pod(&source, &format!("data-{lun}"), "ns").expect("valid")
}

pub(super) fn known(volume: &Volume) -> Known {
    Known::of(&Wanted {
        pod: uid(),
        volume: volume.clone(),
        is_attached_first: false,
        is_republished: false,
        fs_group: None,
        selinux_label: None,
    })
}

#[test]
fn lun_is_attached_published_and_detached_without_data_loss() {
    with_private_mounts(|| {
        let san = San::new(1);
        let volume = disk(0, json!({}));
        san.stage(&volume).expect("staged");
        let want = [
            "-m iface -o show",
            "-m discoverydb -p 10.0.0.1:3260 -o new",
            "-m discoverydb -p 10.0.0.1:3260 --discover",
            "-m node -p 10.0.0.1:3260 -o update -n node.session.scan -v manual",
            "-m node -p 10.0.0.1:3260 --login",
            "-m node -p 10.0.0.1:3260 -o update -n node.startup -v manual",
        ];
        assert_eq!(san.log(), want);
        let dir = san.publish(&volume, Some(4242));
        fs::write(dir.join("kept"), "x").expect("written");
        assert_eq!(fs::metadata(&dir).expect("stat").gid(), 4242);
        // Twice is as once.
        san.stage(&volume).expect("staged");
        san.publish(&volume, Some(4242));
        assert_eq!(san.log(), Vec::<String>::new());

        let found = san.found();
        let pods: Vec<_> = found.iter().map(|found| found.pod.clone()).collect();
        assert_eq!(pods, [Some(uid()), None]);
        assert_eq!(found[0].known, known(&volume));
        assert_eq!(found[1].known.handle, volume.handle);

        san.unpublish(&found[0].known);
        assert!(!dir.exists());
        san.unstage(&found[1].known).expect("unstaged");
        let want = ["-m node -p 10.0.0.1:3260 --logout", "-m node -p 10.0.0.1:3260 -o delete"];
        assert_eq!(san.log(), want);
        assert_eq!((san.found(), san.sessions()), (vec![], 0));
        san.unstage(&found[1].known).expect("nothing is there");

        let read_only = disk(0, json!({"readOnly": true}));
        san.stage(&read_only).expect("staged");
        let dir = san.publish(&read_only, Some(4243));
        assert_eq!(fs::read(dir.join("kept")).expect("not formatted again"), b"x");
        let refused = fs::write(dir.join("new"), "").expect_err("read-only");
        assert_eq!(refused.raw_os_error(), Some(nix::libc::EROFS));
        assert_eq!(fs::metadata(&dir).expect("stat").gid(), 4242, "nothing is changed");
        san.unpublish(&known(&read_only));
        san.unstage(&known(&read_only)).expect("unstaged");
    });
}

#[test]
fn iscsi_session_of_two_luns_ends_when_the_last_lun_is_unstaged() {
    with_private_mounts(|| {
        let san = San::new(3);
        let (first, second) = (disk(0, json!({})), disk(2, json!({})));
        san.stage(&first).expect("staged");
        san.stage(&second).expect("staged");
        let logins = san.log().iter().filter(|line| line.ends_with("--login")).count();
        assert_eq!((logins, san.sessions()), (1, 1));
        let target = san.at("sys/class/iscsi_host/host1/device/session1/target1:0:0");
        let luns = fs::read_dir(target).expect("read").count();
        assert_eq!(luns, 2, "the LUN between them is not scanned");

        san.unstage(&known(&first)).expect("unstaged");
        assert_eq!((san.log(), san.sessions()), (vec![], 1));
        let found = san.found();
        assert_eq!(found.len(), 1);
        san.unstage(&found[0].known).expect("unstaged");
        assert_eq!((san.log().len(), san.sessions()), (2, 0));
    });
}

#[test]
fn leftover_folder_of_a_crash_before_the_mount_is_unstaged_with_its_sessions() {
    with_private_mounts(|| {
        let san = San::new(1);
        let volume = disk(0, json!({"portals": ["10.0.0.2"]}));
        let lost = disk(0, json!({"portals": ["10.0.0.2"], "fsType": "nonsense"}));
        let error = san.stage(&lost).expect_err("no such file system");
        assert!(matches!(error, StageError::Mount(_)), "{error}");
        assert_eq!(san.sessions(), 2);
        let found = san.found();
        assert_eq!(
            found.iter().map(|found| &found.known.handle).collect::<Vec<_>>(),
            [&volume.handle]
        );
        san.unstage(&found[0].known).expect("unstaged");
        assert_eq!((san.found(), san.sessions()), (vec![], 0), "both portals of its record");
    });
}

#[test]
fn disk_that_is_mounted_elsewhere_stays_attached() {
    with_private_mounts(|| {
        let san = San::new(1);
        let volume = disk(0, json!({}));
        san.stage(&volume).expect("staged");
        let other = san.at("other");
        fs::create_dir_all(&other).expect("made");
        let global = global_dir(&san.root(), &volume.driver, &volume.handle);
        mount::bind(&global, &other).expect("bound by the administrator");
        let error = san.unstage(&known(&volume)).expect_err("mounted");
        assert!(error.to_string().contains("is still mounted on this node"), "{error}");
        assert_eq!(san.sessions(), 1);
        assert_eq!(san.found().len(), 1, "its folder and record stay");
        mount::unmount(&other).expect("unmounted");
        san.unstage(&known(&volume)).expect("unstaged");
        assert_eq!(san.sessions(), 0);
    });
}

#[test]
fn multipath_device_is_used_if_present_and_a_lost_path_is_tolerated() {
    with_private_mounts(|| {
        let san = San::new(1);
        let device = &san.disks[0].device;
        let map = san.at("sys/block/dm-7");
        fs::create_dir_all(map.join("slaves").join(device.file_name().expect("a name")))
            .expect("made");
        symlink(device, san.at("dev/dm-7")).expect("linked");
        let volume = disk(0, json!({"portals": ["10.0.0.2:3260", "10.0.0.3"]}));
        fs::write(san.at("refuse/10.0.0.3:3260"), "").expect("written");
        san.stage(&volume).expect("two paths are enough");
        let log = san.log();
        let tries = log.iter().filter(|line| line.ends_with("-p 10.0.0.3:3260 --login")).count();
        assert_eq!((tries, san.sessions()), (2, 2), "{log:?}");
        san.unstage(&known(&volume)).expect("unstaged");
        assert_eq!(san.log().first().map(String::as_str), Some("multipath -f dm-7"));
        assert!(!map.exists() && san.sessions() == 0);

        for portal in ["10.0.0.1:3260", "10.0.0.2:3260"] {
            fs::write(san.at("refuse").join(portal), "").expect("written");
        }
        let error = san.stage(&volume).expect_err("no path");
        assert!(matches!(error, StageError::Attach(_)));
        let text = error.to_string();
        assert!(
            text.starts_with(
                "failed to get any path for iscsi disk, last err seen:\niscsi: failed"
            ),
            "{text}"
        );
        san.unstage(&known(&volume)).expect("nothing was attached");
        assert_eq!(san.found(), []);
    });
}

#[test]
fn secret_is_set_before_the_login_and_is_in_no_error() {
    with_private_mounts(|| {
        let san = San::new(1);
        let volume = disk(
            0,
            json!({"chapAuthSession": true, "chapAuthDiscovery": true,
            "secretRef": {"name": "chap"}}),
        );
        let secret = [
            ("node.session.auth.password", "s3cret"),
            ("discovery.sendtargets.auth.password", "f1nd"),
        ];
        san.stage_with(&volume, &secret).expect("staged");
        let log = san.log();
        let at = |part: &str| log.iter().position(|line| line.contains(part)).expect("run");
        assert!(at("discovery.sendtargets.auth.authmethod -v CHAP") < at("-v f1nd"));
        assert!(at("-v f1nd") < at("--discover"));
        assert!(at("node.session.auth.authmethod -v CHAP") < at("-v s3cret"));
        assert!(at("-v s3cret") < at("--login"));
        san.unstage(&known(&volume)).expect("unstaged");
        let global = global_dir(&san.root(), &volume.driver, &volume.handle);
        assert!(!global.exists());

        fs::write(san.at("bad"), "").expect("written");
        let mut only = volume.clone();
        if let Some(NetworkDisk::Iscsi(disk)) = only.disk.as_deref_mut() {
            disk.has_discovery_auth = true;
        }
        let error = san.stage_with(&only, &secret).expect_err("refused");
        let text = error.to_string();
        assert!(text.contains("failed to update discoverydb"), "{text}");
        assert!(!text.contains("f1nd") && !text.contains("s3cret"), "{text}");
        fs::remove_file(san.at("bad")).expect("removed");
        san.unstage(&known(&volume)).expect("unstaged");
    });
}

#[test]
fn initiator_interface_of_a_volume_is_deleted_with_its_last_session() {
    with_private_mounts(|| {
        let san = San::new(1);
        let volume = disk(0, json!({"initiatorName": "iqn.2020-01.x:me"}));
        san.stage(&volume).expect("staged");
        let own = "10.0.0.1:3260:data-0";
        let log = san.log();
        let update =
            format!("-m iface -I {own} -o update -n iface.initiatorname -v iqn.2020-01.x:me");
        assert!(log.contains(&format!("-m iface -I {own} -o new")), "{log:?}");
        assert!(log.contains(&update), "{log:?}");
        assert!(log.iter().any(|line| line.contains(&format!("-I {own} --login"))), "{log:?}");
        let found = san.found();
        san.unstage(&found[0].known).expect("unstaged by the folder alone");
        assert_eq!(san.log().last(), Some(&format!("-m iface -I {own} -o delete")));
    });
}

#[test]
fn block_volume_is_mapped_found_and_unmapped() {
    with_private_mounts(|| {
        let san = San::new(1);
        let mut volume = disk(0, json!({}));
        volume.is_block = true;
        volume.handle = format!("{DEVICES_DIR}/{}", volume.handle);
        san.stage(&volume).expect("staged");
        san.publish(&volume, None);
        let device = &san.disks[0].device;
        let link = PodDirs::new(&san.root(), &uid()).device(pod_folder(&volume.driver), "data-0");
        assert_eq!(&fs::read_link(&link).expect("a link"), device);
        let bound = global_dir(&san.root(), &volume.driver, &volume.handle).join(UID);
        let number = |path: &Path| fs::metadata(path).expect("stat").rdev();
        assert_eq!(number(&bound), number(device));

        let found = san.found();
        assert_eq!(
            found.iter().map(|found| found.known.is_block).collect::<Vec<_>>(),
            [true, true]
        );
        assert_eq!(found[0].known, known(&volume));
        san.unpublish(&found[0].known);
        assert!(!link.exists() && !bound.exists());
        san.unstage(&found[1].known).expect("unstaged");
        assert_eq!((san.found(), san.sessions()), (vec![], 0));
    });
}

#[test]
fn target_that_hangs_delays_no_other() {
    with_private_mounts(|| {
        let san = San::new(1);
        let other = "iqn.2003-01.io.k8s:other";
        let hung = disk(0, json!({"iqn": other, "targetPortal": "10.0.0.9"}));
        let well = disk(0, json!({}));
        fs::write(san.at("hang/10.0.0.9:3260"), "").expect("written");
        let none = BTreeMap::new();
        let root = san.root();
        san.runtime.block_on(async {
            let stuck = san.host.stage(&root, &hung, &none);
            tokio::pin!(stuck);
            let begun = Instant::now();
            tokio::select! {
                ended = &mut stuck => panic!("it hangs, and not: {ended:?}"),
                done = san.host.stage(&root, &well, &none) => done.expect("staged"),
            }
            assert!(begun.elapsed() < WELL_MAX, "nothing waited for the other");
            fs::remove_file(san.at("hang/10.0.0.9:3260")).expect("removed");
            // Its device never comes: the fake has links of one target only.
            fs::write(san.at("refuse/10.0.0.9:3260"), "").expect("written");
            stuck.await.expect_err("no path");
        });
        san.unstage(&known(&well)).expect("unstaged");
    });
}

#[test]
fn missing_open_iscsi_is_reported() {
    with_private_mounts(|| {
        let mut san = San::new(0);
        san.host.iscsiadm = "/nowhere/iscsiadm".to_owned();
        let volume = disk(0, json!({}));
        let error = san.stage(&volume).expect_err("no program");
        assert!(error.to_string().contains("iscsiadm cannot be run on this node"), "{error}");
        san.unstage(&known(&volume)).expect("nothing was attached");
        assert_eq!(san.found(), []);
    });
}

#[test]
fn fabric_disk_is_found_by_its_link_mounted_and_deleted() {
    with_private_mounts(|| {
        let san = San::new(1);
        let device = &san.disks[0].device;
        let scan = san.at("sys/class/scsi_host/host5/scan");
        fs::create_dir_all(scan.parent().expect("a folder")).expect("made");
        fs::write(&scan, "").expect("written");
        let source = json!({"targetWWNs": ["50060e80", "50060e81"], "lun": 3});
        let source: FCVolumeSource = serde_json::from_value(source).expect("a source");
        let volume = fc_of_pod(&source, "data").expect("valid");
        let link = san.at("dev/disk/by-path/pci-0000:41:00.0-fc-0x50060e81-lun-3");

        let mut early = San::new(0);
        early.host.link_wait = Duration::from_millis(50);
        let error = early.stage(&volume).expect_err("no link");
        assert_eq!(error.to_string(), "no fc disk found");

        symlink(device, &link).expect("linked");
        san.stage(&volume).expect("staged");
        assert_eq!(fs::read_to_string(&scan).expect("read"), "- - 3", "only that LUN");
        let dir = san.publish(&volume, None);
        fs::write(dir.join("kept"), "x").expect("written");
        let found = san.found();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].known, known(&volume));
        san.unpublish(&found[0].known);
        san.unstage(&found[1].known).expect("unstaged");
        assert_eq!(san.found(), []);
        let deadline = Instant::now() + Duration::from_secs(30);
        while link.exists() {
            assert!(Instant::now() < deadline, "the device is deleted");
            std::thread::sleep(Duration::from_millis(2));
        }
    });
}
