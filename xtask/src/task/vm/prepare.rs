//! The guest's boot files: a kernel, its modules as a small disk, a first program. Made once.
//!
//! The kernel is Debian's cloud kernel from the package archive; nothing but QEMU is installed on
//! the host. The modules that reach the host's files go into the initial RAM disk in the order in
//! which they depend on each other; all others are on the disk, for the guest's own modprobe.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::apt::{self, PackageIndex};
use crate::cache;
use crate::runtime::{Runtime, Version};
use crate::shell::{capture, timed};

/// Changes whenever the recipe below does.
const RECIPE: &str = "1";
/// Modules without which the guest sees no disk and no shared root.
const BOOT_MODULES: [&str; 4] = ["virtio_pci", "virtio_blk", "virtiofs", "overlay"];
/// Size of the modules' disk, a sparse file.
const DISK: &str = "400M";

/// Files of a guest.
pub(super) struct GuestFiles {
    pub(super) kernel: PathBuf,
    pub(super) initrd: PathBuf,
    pub(super) disk: PathBuf,
}

pub(super) fn guest() -> Result<GuestFiles> {
    ensure!(
        cfg!(target_arch = "x86_64"),
        "the guest is an x86-64 machine, and so must the host be"
    );
    let qemu: &[&str] = &["qemu-system-x86_64"];
    apt::install_missing(&[(qemu, "qemu-system-x86"), (&["mke2fs"], "e2fsprogs")])?;
    let dir = cache::entry("vm", RECIPE, |staging, _| {
        timed("fetch", "a kernel for the guest from the Debian archive", || make(staging))
    })?;
    let at = |name: &str| dir.join(name);
    Ok(GuestFiles { kernel: at("vmlinuz"), initrd: at("initrd"), disk: at("modules.img") })
}

fn make(staging: &Path) -> Result<()> {
    let index = PackageIndex::update(&cache::dir()?.join("apt-stable"), &["bookworm"])?;
    let depends = index.depends("linux-image-cloud-amd64")?;
    let kernel = depends.into_iter().find(|p| p.starts_with("linux-image-6"));
    let kernel = kernel.context("the cloud kernel's package names its version")?;
    let unpacked = staging.join("x");
    index.unpack(&[&kernel, "kmod", "libkmod2"], &unpacked)?;
    let layer = staging.join("layer");
    let version = lay_out(&unpacked, &kernel, &layer)?;
    let boot = unpacked.join(&kernel).join(format!("boot/vmlinuz-{version}"));
    fs::copy(boot, staging.join("vmlinuz"))?;
    let kmod = Kmod { dir: unpacked.clone(), layer: layer.clone() };
    kmod.run("depmod", &["-b", &layer.to_string_lossy(), &version])?;
    initrd(staging, &kmod, &version)?;
    let mut disk = Command::new("mke2fs");
    disk.args(["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"]).arg(&layer);
    disk.arg(staging.join("modules.img")).arg(DISK);
    disk.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    capture(&mut disk)?;
    cache::remove(&unpacked)?;
    cache::remove(&layer)
}

/// The disk's tree, as a merged `/usr` has it; returns the kernel's version.
fn lay_out(unpacked: &Path, kernel: &str, layer: &Path) -> Result<String> {
    fs::create_dir_all(layer.join("usr/lib"))?;
    symlink("usr/lib", layer.join("lib"))?;
    let modules = unpacked.join(kernel).join("lib/modules");
    fs::rename(&modules, layer.join("usr/lib/modules")).context("take the modules")?;
    let mut versions = fs::read_dir(layer.join("usr/lib/modules"))?;
    let version = versions.next().context("a kernel has modules")??.file_name();
    fs::create_dir_all(layer.join("usr/bin"))?;
    fs::create_dir_all(layer.join("usr/sbin"))?;
    fs::copy(unpacked.join("kmod/bin/kmod"), layer.join("usr/bin/kmod"))?;
    symlink("../bin/kmod", layer.join("usr/sbin/modprobe"))?;
    let libraries = layer.join("usr/lib/x86_64-linux-gnu");
    fs::create_dir_all(&libraries)?;
    for entry in fs::read_dir(unpacked.join("libkmod2/usr/lib/x86_64-linux-gnu"))? {
        let path = entry?.path();
        let name = path.file_name().expect("an entry has a name");
        fs::copy(&path, libraries.join(name))?;
    }
    Ok(version.to_string_lossy().into_owned())
}

/// kmod of the package: the host may have none.
struct Kmod {
    dir: PathBuf,
    layer: PathBuf,
}

impl Kmod {
    /// Runs it under one of the names that it answers to.
    fn run(&self, name: &str, args: &[&str]) -> Result<String> {
        let link = self.dir.join(name);
        if !link.is_symlink() {
            symlink(self.layer.join("usr/bin/kmod"), &link)?;
        }
        let mut cmd = Command::new(&link);
        cmd.args(args).env("LD_LIBRARY_PATH", self.layer.join("usr/lib/x86_64-linux-gnu"));
        capture(&mut cmd)
    }
}

fn initrd(staging: &Path, kmod: &Kmod, version: &str) -> Result<()> {
    let root = staging.join("initrd-root");
    for dir in ["bin", "dev", "proc", "m", "k", "l", "rw", "new"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let busybox = Runtime::ensure(Version::V2_1)?.program("busybox");
    fs::copy(&busybox, root.join("bin/busybox"))?;
    fs::write(root.join("init"), include_str!("init.sh"))?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    let layer = kmod.layer.to_string_lossy().into_owned();
    let mut args = vec!["-d", &layer, "-S", version, "-a", "--show-depends"];
    args.extend(BOOT_MODULES);
    let mut seen = Vec::new();
    for line in kmod.run("modprobe", &args)?.lines() {
        let Some(path) = line.strip_prefix("insmod ").map(str::trim) else { continue };
        if !seen.iter().any(|s| s == path) {
            // Numbered, so that the shell's order is the order of dependence.
            fs::copy(path, root.join(format!("m/{:02}.ko", seen.len())))?;
            seen.push(path.to_owned());
        }
    }
    ensure!(!seen.is_empty(), "modprobe names the modules to load");
    let mut pack = Command::new("sh");
    pack.arg("-c").arg("find . | \"$0\" cpio -o -H newc > ../initrd").arg(&busybox);
    capture(pack.current_dir(&root).stderr(Stdio::null()))?;
    cache::remove(&root)
}
