//! Parts of the suites' images that the runtime's tools do not have: a small Debian, and a busybox
//! with every applet. Both come from Debian's archive and stay in the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::apt::{self, PackageIndex};
use crate::cache;
use crate::shell::{capture, timed};

/// Changes whenever a recipe below does.
pub(super) const RECIPE: &str = "1";
/// Packages whose programs the suites call in agnhost's and nginx's images.
const PACKAGES: &str = "bind9-dnsutils,curl,iproute2,netcat-openbsd,nginx-light";
/// Line of busybox's own configuration for a dynamic build.
const NOT_STATIC: &str = "# CONFIG_STATIC is not set";
/// Folders of the small Debian that no program reads.
const UNREAD: [&str; 6] = [
    "usr/share/doc",
    "usr/share/info",
    "usr/share/locale",
    "usr/share/man",
    "var/cache/apt",
    "var/lib/apt/lists",
];

/// A Debian of the packages that the suites need, as a folder.
pub(super) fn debian() -> Result<PathBuf> {
    let dir = cache::entry("debian", RECIPE, |staging, _| {
        let text = "a small Debian for images";
        timed("make", text, || bootstrap(staging, "bookworm", PACKAGES))
    })?;
    Ok(dir.join("root"))
}

/// Makes a Debian of this release in `staging/root`, of what is essential and these packages.
pub(crate) fn bootstrap(staging: &Path, release: &str, packages: &str) -> Result<()> {
    let unpacked = staging.join("x");
    let index = PackageIndex::update(&cache::dir()?.join("apt-bookworm"), &["bookworm"])?;
    index.unpack(&["debootstrap/bookworm"], &unpacked)?;
    let home = unpacked.join("debootstrap");
    let root = staging.join("root");
    // In mounts of its own: it mounts /proc and /sys inside, and may be stopped half way.
    let mut cmd = Command::new("nice");
    cmd.args(["unshare", "-m", "--propagation", "private"]);
    cmd.arg(home.join("usr/sbin/debootstrap"));
    cmd.args(["--variant=minbase", &format!("--include={packages}"), release]);
    cmd.arg(&root).arg(apt::mirror()?);
    cmd.env("DEBOOTSTRAP_DIR", home.join("usr/share/debootstrap"));
    cmd.env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    capture(&mut cmd)?;
    for dir in UNREAD {
        cache::remove(&root.join(dir))?;
    }
    for dir in ["dev", "proc", "sys"] {
        cache::remove(&root.join(dir))?;
        fs::create_dir(root.join(dir))?;
    }
    cache::remove(&unpacked)
}

/// busybox, static and with every applet: Debian's own static one leaves some out.
pub(super) fn busybox() -> Result<PathBuf> {
    let dir = cache::entry("busybox", RECIPE, |staging, _| {
        timed("build", "busybox with every applet", || build_busybox(staging))
    })?;
    Ok(dir.join("busybox"))
}

fn build_busybox(staging: &Path) -> Result<()> {
    apt::install_missing(&[(&["gcc"], "gcc"), (&["make"], "make"), (&["bzip2"], "bzip2")])?;
    let work = staging.join("x");
    fs::create_dir_all(&work)?;
    let index = cache::dir()?.join("apt-sources");
    PackageIndex::update_with_sources(&index, &["trixie"])?.source("busybox", &work)?;
    let files = fs::read_dir(&work)?.flatten().map(|e| e.path());
    let is_source = |p: &PathBuf| p.to_string_lossy().contains(".orig.tar");
    let archive = files.into_iter().find(is_source).context("busybox has no source archive")?;
    let source = work.join("source");
    fs::create_dir(&source)?;
    let mut tar = Command::new("tar");
    capture(tar.arg("-xf").arg(&archive).args(["--strip-components=1", "-C"]).arg(&source))?;
    let make = |target: &str| {
        // Questions that a changed configuration raises are answered with their defaults.
        let script = format!("yes '' | nice make {target}");
        capture(Command::new("sh").args(["-c", &script]).current_dir(&source))
    };
    make("defconfig")?;
    let path = source.join(".config");
    let config = fs::read_to_string(&path)?;
    ensure!(config.contains(NOT_STATIC), "busybox has another configuration than expected");
    // `tc` needs kernel headers of another age.
    let config = config.replace(NOT_STATIC, "CONFIG_STATIC=y");
    fs::write(&path, config.replace("CONFIG_TC=y", "# CONFIG_TC is not set"))?;
    make("oldconfig")?;
    make("-j2 busybox")?;
    fs::copy(source.join("busybox"), staging.join("busybox"))?;
    cache::remove(&work)
}
