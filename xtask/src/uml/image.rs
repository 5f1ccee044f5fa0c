//! The root of a guest: a small Debian with systemd, as a folder of the host.
//!
//! Output: an entry of the cache, named by the sum of what it is made of. The Debian is of the
//! host's own release, so that programs built on the host run in the guest; it is made once. The
//! image is linked from it, with the kernel's modules, the first program and the units on top; the
//! agent's unit is the one that users get. Guests share an image: they only read it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::kernel::Kernel;
use crate::image::{parts, sha256};
use crate::shell::{capture, timed};
use crate::{apt, cache};

/// Changes whenever the recipe below does, but for what is part of the sum.
const RECIPE: &str = "1";
/// What the guest's own scripts and the tests call.
const PACKAGES: &str = "systemd,dbus,kmod,iproute2,procps,curl";

/// Files of the image: where, with which mode, what.
const FILES: [File; 10] = [
    File { path: "usr/sbin/guest-init", mode: 0o755, text: include_str!("image/guest-init") },
    File { path: "usr/sbin/host-command", mode: 0o755, text: include_str!("image/host-command") },
    File::unit("host-command.socket", include_str!("image/host-command.socket")),
    File::unit("host-command@.service", include_str!("image/host-command@.service")),
    File::unit("containerd.service", include_str!("image/containerd.service")),
    File::unit("pintle-agent.service", include_str!("../../../deploy/pintle-agent.service")),
    File { path: "etc/hostname", mode: 0o644, text: "node\n" },
    File { path: "etc/hosts", mode: 0o644, text: include_str!("image/hosts") },
    // The kernel's 128 instances are too few for the nodes of several tests.
    File {
        path: "etc/sysctl.d/50-guest.conf",
        mode: 0o644,
        text: "fs.inotify.max_user_instances = 1024\n",
    },
    // Without it systemd takes the guest for one that boots for the first time, and asks questions.
    File { path: "etc/machine-id", mode: 0o644, text: "c0ffee00c0ffee00c0ffee00c0ffee00\n" },
];
/// Units that no guest needs, some of which would wait for what it lacks.
const MASKED: [&str; 11] = [
    "systemd-timesyncd.service",
    "systemd-firstboot.service",
    "systemd-update-utmp.service",
    "systemd-binfmt.service",
    "systemd-random-seed.service",
    "systemd-sysusers.service",
    "systemd-modules-load.service",
    "systemd-journal-flush.service",
    "systemd-remount-fs.service",
    "ldconfig.service",
    "getty.target",
];
/// Where units are.
const UNITS: &str = "etc/systemd/system";
/// The unit that is started with the guest.
const STARTED: &str = "host-command.socket";

struct File {
    path: &'static str,
    mode: u32,
    text: &'static str,
}

impl File {
    const fn unit(name: &'static str, text: &'static str) -> Self {
        Self { path: name, mode: 0o644, text }
    }

    /// The path in the image: a unit has only its name.
    fn place(&self) -> PathBuf {
        if self.path.contains('/') { self.path.into() } else { Path::new(UNITS).join(self.path) }
    }
}

/// Finds the image in the cache or makes it.
pub(super) fn root(kernel: &Kernel) -> Result<PathBuf> {
    let debian = debian()?;
    let version = kernel.version()?;
    let mut sum = format!("{RECIPE} {PACKAGES} {version} {} {STARTED}\n", MASKED.join(" "));
    for file in FILES {
        sum += &format!("{} {:o}\n{}", file.path, file.mode, file.text);
    }
    let dir = cache::content_entry("uml/image", &sha256(sum.as_bytes()), |staging, _| {
        timed("make", "the guest's root", || make(&debian, kernel, &staging.join("root")))
    })?;
    Ok(dir.join("root"))
}

fn debian() -> Result<PathBuf> {
    let release = apt::codename()?;
    let stamp = format!("{RECIPE} {release} {PACKAGES}");
    let dir = cache::entry("uml/debian", &stamp, |staging, _| {
        timed("make", "a Debian with systemd", || parts::bootstrap(staging, &release, PACKAGES))
    })?;
    Ok(dir.join("root"))
}

fn make(debian: &Path, kernel: &Kernel, root: &Path) -> Result<()> {
    // Links: an image costs the host names, no space. What differs is a new file.
    capture(Command::new("cp").arg("-al").arg(debian).arg(root))?;
    if let Some(from) = kernel.modules() {
        let modules = root.join("usr/lib/modules");
        fs::create_dir_all(&modules)?;
        capture(Command::new("cp").arg("-al").arg(from.join(".")).arg(&modules))?;
    }
    for file in FILES {
        let path = root.join(file.place());
        fs::create_dir_all(path.parent().expect("a file lies in a folder"))?;
        replace(&path)?;
        fs::write(&path, file.text).with_context(|| format!("write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(file.mode))?;
    }
    // At boot systemd would empty this folder, where shares may be.
    let cleaned = root.join("etc/tmpfiles.d/tmp.conf");
    replace(&cleaned)?;
    symlink("/dev/null", cleaned)?;
    // No name server answers: what asks for one must not wait.
    replace(&root.join("etc/resolv.conf"))?;
    fs::write(root.join("etc/resolv.conf"), "")?;
    let units = root.join(UNITS);
    for name in MASKED {
        replace(&units.join(name))?;
        symlink("/dev/null", units.join(name))?;
    }
    replace(&units.join("default.target"))?;
    symlink("/lib/systemd/system/multi-user.target", units.join("default.target"))?;
    // Nothing that Debian's packages start: no timers, no console.
    for entry in fs::read_dir(&units)?.flatten() {
        if entry.path().extension().is_some_and(|kind| kind == "wants") {
            cache::remove(&entry.path())?;
        }
    }
    let wanted = units.join("multi-user.target.wants");
    fs::create_dir(&wanted)?;
    symlink(format!("../{STARTED}"), wanted.join(STARTED))?;
    Ok(())
}

/// Makes room for a file of our own: a file that is written in place is the Debian's as well.
fn replace(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(e).with_context(|| format!("replace {}", path.display()))
        }
        _ => Ok(()),
    }
}
