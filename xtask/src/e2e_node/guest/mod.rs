//! The suite in a machine of its own: an emulated one, for tests that need all processes or all
//! memory of a machine, or a disk with project quotas; a User-Mode Linux guest for all others.
//!
//! Input: the suite's folder. Output: the command that boots the machine, runs the suite and powers
//! off. systemd is process 1, with its bus and logind; containerd and the registry are units, and
//! so is the agent, as the suite starts it. The machine sees the host's files and writes to few of
//! its folders. The disk of the emulated machine is made on the host, with the images in it:
//! copying them there takes minutes. The clock of both machines is the host's, so what tests wait
//! for is not slowed.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{NODE, STAND_INS, Set};
use crate::cluster::layout::{CONTROL, address};
use crate::cluster::{config, template};
use crate::image::registry::Storage;
use crate::image::{e2e, pulled};
use crate::node::agent::HEALTH_PORT;
use crate::runtime::{Runtime, Version};
use crate::shell::{capture, timed};
use crate::uml::WRITE_CPUINFO;
use crate::{apt, cache, repository};

/// The emulated machine's memory: the API server, etcd and the suite take 1.5 GiB of it.
const MEMORY_MIB: &str = "6144";
/// The guest's memory, of which its disks are a part.
const GUEST_MEMORY_MIB: &str = "10240";
/// The longest that the machine may run.
const SECONDS_MAX: &str = "10800";
/// Size of its disk, which is a sparse file of the host.
const DISK_BYTES: u64 = 12 << 30;
/// How long etcd, the API server and the agent may each take to start, which are emulated.
pub(super) const START_MAX: &str = "15m";
/// Folders of the disk, which the machine binds to where they belong.
const FOLDERS: [&str; 2] = ["kubelet", "pods"];

/// Files of the machine. Its disk is removed with it.
pub(super) struct GuestMachine {
    /// The folder that it writes to.
    share: PathBuf,
    dir: PathBuf,
    /// containerd's folder with the images in it.
    images: PathBuf,
    /// The disk of an emulated machine.
    disk: Option<GuestDisk>,
}

impl GuestMachine {
    /// Makes the disk, and the units and configurations in the suite's folder.
    pub(super) fn make(share: &Path, dir: &Path, set: Set) -> Result<Self> {
        let runtime = Runtime::ensure(Version::usual()?)?;
        let images = template()?;
        cache::sweep("vm-disk-")?;
        let disk = (set == Set::Guest).then(|| {
            timed("make", "the machine's disk with the images", || GuestDisk::fill(&images))
        });
        let disk = disk.transpose()?;
        let machine = Self { share: share.to_owned(), dir: dir.to_owned(), images, disk };
        machine.configure(&runtime)?;
        Ok(machine)
    }

    /// Puts a script in the place of the kubelet, which needs a clock speed to start, and User-Mode
    /// Linux has none.
    pub(super) fn give_clock_speed(&self) -> Result<()> {
        let (place, program) = (self.dir.join("bin/kubelet"), self.dir.join("kubelet/kubelet"));
        fs::create_dir_all(self.dir.join("kubelet"))?;
        fs::rename(&place, &program).context("move the kubelet")?;
        let script = format!(
            "#!/bin/sh\n{WRITE_CPUINFO}\nmount --bind /run/cpuinfo /proc/cpuinfo\n\
             (until curl -s -o /dev/null http://127.0.0.1:{HEALTH_PORT}/healthz; do sleep 0.2; done\n\
             umount /proc/cpuinfo) &\nexec {} \"$@\"\n",
            program.display()
        );
        fs::write(&place, script).context("write the script that starts the kubelet")?;
        Ok(fs::set_permissions(&place, Permissions::from_mode(0o755))?)
    }

    fn configure(&self, runtime: &Runtime) -> Result<()> {
        let write = |name: &str, text: String| {
            fs::write(self.dir.join(name), text).with_context(|| format!("write {name}"))
        };
        let registries = self.dir.join("registries");
        fs::create_dir_all(registries.join("_default"))?;
        write("registries/_default/hosts.toml", config::registry_hosts())?;
        write("containerd.toml", config::containerd(runtime, &registries, self.disk.is_none()))?;
        write("00-pods.conflist", config::pod_network(NODE))?;
        let registry = self.dir.join("registry");
        let storage = Storage::at(&registry);
        storage.add_layout(&e2e::layout()?.0)?;
        pulled::add_to(&storage)?;
        write("registry.yml", config::registry(&registry))?;
        let unit = |program: &str, args: &str, more: &str| {
            let (path, program) = (runtime.path(), runtime.program(program));
            let (program, dir) = (program.display(), self.dir.display());
            format!("[Service]\nEnvironment=PATH={path}\nExecStart={program} {args}\n{more}")
                .replace("@", &dir.to_string())
        };
        // The same settings as containerd's own unit.
        let more = "Type=notify\nDelegate=yes\nKillMode=process\nRestart=always\nRestartSec=5\n\
                    LimitNPROC=infinity\nLimitCORE=infinity\nTasksMax=infinity\n\
                    OOMScoreAdjust=-999\n";
        write("containerd.service", unit("containerd", "-c @/containerd.toml", more))?;
        write("registry.service", unit("docker-registry", "serve @/registry.yml", ""))?;
        write("start.sh", include_str!("start.sh").to_owned())?;
        for (name, text) in STAND_INS.into_iter().filter(|(name, _)| *name == "sudo") {
            let path = self.dir.join("bin").join(name);
            fs::write(&path, text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))?;
        }
        Ok(())
    }

    /// Boots the machine and runs `suite` there, with the runtime's programs on its PATH; what it
    /// prints is printed here.
    pub(super) fn command(&self, suite: &Command) -> Result<Command> {
        let mut cmd = Command::new(std::env::current_exe().context("find this program")?);
        if let Some(GuestDisk(disk)) = &self.disk {
            cmd.args(["vm", "--systemd", "--memory", MEMORY_MIB, "--seconds", SECONDS_MAX]);
            cmd.arg("--share").arg(&self.share).arg("--disk").arg(disk).arg("--");
        } else {
            cmd.args(["uml", "--memory", GUEST_MEMORY_MIB]);
            cmd.arg("--share").arg(repository()).arg("--share").arg(&self.share).arg("--");
        }
        let path = Runtime::ensure(Version::usual()?)?.path();
        let path = format!("PATH={}:{path}", self.dir.join("bin").display());
        cmd.arg("env").arg(path);
        let (node, control) = (address(NODE).to_string(), CONTROL.to_string());
        cmd.arg("bash").arg(self.dir.join("start.sh")).arg(&self.dir).args([NODE, &node, &control]);
        cmd.arg(&self.images);
        cmd.arg(suite.get_program()).args(suite.get_args().map(OsStr::to_owned));
        Ok(cmd)
    }
}

/// A file with a file system; it is removed with this.
struct GuestDisk(PathBuf);

impl GuestDisk {
    fn fill(template: &Path) -> Result<Self> {
        let disk = Self(cache::dir()?.join(format!("vm-disk-{}", std::process::id())));
        // With which the suite and the kubelet ask whether a disk has quotas, ext4 or not.
        apt::install_missing(&[(&["xfs_quota"], "xfsprogs")])?;
        let tree = disk.0.with_extension("tree");
        cache::remove(&tree)?;
        fs::create_dir_all(&tree)?;
        for name in FOLDERS {
            fs::create_dir(tree.join(name))?;
        }
        // Links, which are only read.
        capture(Command::new("cp").arg("-al").arg(template).arg(tree.join("containerd")))?;
        File::create(&disk.0)
            .and_then(|file| file.set_len(DISK_BYTES))
            .with_context(|| format!("make {}", disk.0.display()))?;
        let mut make = Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota", "-d"]);
        let made = capture(make.arg(&tree).arg(&disk.0));
        cache::remove(&tree)?;
        made.map(|_| disk)
    }
}

impl Drop for GuestDisk {
    fn drop(&mut self) {
        // The host has nothing else of it.
        let _ = fs::remove_file(&self.0);
    }
}
