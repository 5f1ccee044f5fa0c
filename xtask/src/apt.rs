//! apt-get, in two ways: installing build tools on this host, and fetching packages without
//! installing them.
//!
//! Fetched packages come from releases other than the host's (newer runtimes). They are looked up
//! in a private copy of apt's state, so that the host's own sources and pins stay as they are. The
//! mirror is the one that the host's apt already uses; apt checks the signatures.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use nix::fcntl::Flock;
use nix::unistd::Uid;

use crate::cache;
use crate::shell::{self, capture, capture_retried, say};

/// Debian's archive keys, as the package debian-archive-keyring installs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// How long another apt-get may hold dpkg's lock before ours gives up, in seconds.
const LOCK_WAIT: &str = "DPkg::Lock::Timeout=300";

/// Installs packages on the host for the programs among `wanted` (program, package) it lacks.
pub fn install_missing(wanted: &[(&[&str], &str)]) -> Result<()> {
    let lacks = |(programs, _): &&(&[&str], &str)| shell::which(programs).is_none();
    let packages: Vec<&str> = wanted.iter().filter(lacks).map(|(_, p)| *p).collect();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    require_debian(&format!("install these yourself: {list}"))?;
    require_root(&format!("install them first: apt-get install {list}"))?;
    say("install", &list);
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt.args(["-o", LOCK_WAIT, "install", "-y", "-qq", "--no-install-recommends"])
            .args(&packages);
        capture(&mut apt)
    };
    // A fresh machine has no package lists yet, an old one has stale ones.
    if install().is_err() {
        update()?;
        shell::retried(&install)?;
    }
    Ok(())
}

/// Refreshes the host's package lists.
fn update() -> Result<()> {
    capture_retried(Command::new("apt-get").args(["-qq", "update"])).map(drop)
}

/// Fails with one sentence unless this is Debian.
pub fn require_debian(remedy: &str) -> Result<()> {
    let os = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let is_debian = os.lines().any(|l| l == "ID=debian") && shell::which(&["apt-get"]).is_some();
    ensure!(is_debian, "this machine is not a Debian system with apt-get; {remedy}");
    Ok(())
}

/// Fails with one sentence unless we are root.
pub fn require_root(remedy: &str) -> Result<()> {
    ensure!(Uid::effective().is_root(), "this needs root; run as root, or {remedy}");
    Ok(())
}

/// A private package index over several releases.
pub struct PackageIndex {
    dir: PathBuf,
    /// Two runs of apt with the same lists would refuse each other.
    _alone: Flock<File>,
}

impl PackageIndex {
    /// Reads the package lists of `suites` into `dir`; lists already there are only refreshed.
    pub fn update(dir: &Path, suites: &[&str]) -> Result<Self> {
        Self::read(dir, suites, &["deb"])
    }

    /// The same for source packages as well.
    pub fn update_with_sources(dir: &Path, suites: &[&str]) -> Result<Self> {
        Self::read(dir, suites, &["deb", "deb-src"])
    }

    fn read(dir: &Path, suites: &[&str], kinds: &[&str]) -> Result<Self> {
        require_debian("fetching the container runtime works on Debian only")?;
        require_root("fetch the runtime once as root")?;
        for sub in ["lists/partial", "cache/archives/partial"] {
            fs::create_dir_all(dir.join(sub)).context("create apt's folders")?;
        }
        let alone = cache::lock_file(&dir.join("lock"))?;
        let mirror = mirror()?;
        let arch = arch()?;
        let mut sources = String::new();
        for (kind, suite) in kinds.iter().flat_map(|k| suites.iter().map(move |s| (k, s))) {
            sources += &format!("{kind} [signed-by={KEYRING} arch={arch}] {mirror} {suite} main\n");
        }
        fs::write(dir.join("sources.list"), sources)?;
        fs::write(dir.join("status"), "")?;
        let index = Self { dir: dir.to_owned(), _alone: alone };
        capture_retried(index.apt().arg("update")).context("update the private package index")?;
        Ok(index)
    }

    /// Downloads `package/suite` names and unpacks each into `into/package`.
    pub fn unpack(&self, packages: &[&str], into: &Path) -> Result<()> {
        let debs = into.join("debs");
        cache::remove(&debs)?;
        fs::create_dir_all(&debs)?;
        capture_retried(self.apt().arg("download").args(packages).current_dir(&debs))?;
        for file in fs::read_dir(&debs)? {
            let path = file?.path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            let package = name.split('_').next().unwrap_or(&name).to_owned();
            let dest = into.join(package);
            fs::create_dir_all(&dest)?;
            capture(Command::new("dpkg-deb").arg("-x").arg(&path).arg(&dest))?;
        }
        cache::remove(&debs)
    }

    /// Downloads the source archives of a package into a folder.
    pub fn source(&self, package: &str, into: &Path) -> Result<()> {
        let mut apt = self.apt();
        let cmd = apt.args(["source", "--download-only", package]).current_dir(into);
        capture_retried(cmd).map(drop)
    }

    /// Names of the packages that `package` depends on directly.
    pub fn depends(&self, package: &str) -> Result<Vec<String>> {
        let text = capture(self.tool("apt-cache").args(["depends", package]))?;
        let names = text.lines().filter_map(|l| l.trim().strip_prefix("Depends: "));
        Ok(names.map(str::to_owned).collect())
    }

    fn apt(&self) -> Command {
        let mut apt = self.tool("apt-get");
        apt.arg("-qq");
        apt
    }

    /// One of apt's programs, limited to our package lists.
    fn tool(&self, program: &str) -> Command {
        let at = |option: &str, file: &str| format!("{option}={}/{file}", self.dir.display());
        let mut apt = Command::new(program);
        for option in [
            at("Dir::Etc::sourcelist", "sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            at("Dir::State::lists", "lists"),
            at("Dir::State::status", "status"),
            at("Dir::Cache", "cache"),
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false".to_owned(),
        ] {
            apt.args(["-o", &option]);
        }
        apt
    }
}

/// Debian's name of this machine's architecture.
fn arch() -> Result<String> {
    Ok(capture(Command::new("dpkg").arg("--print-architecture"))?.trim().to_owned())
}

/// The name of the host's release, such as `bookworm`.
pub fn codename() -> Result<String> {
    let os = fs::read_to_string("/etc/os-release").context("read /etc/os-release")?;
    let codename = os.lines().find_map(|l| l.strip_prefix("VERSION_CODENAME="));
    Ok(codename.unwrap_or("stable").to_owned())
}

/// The archive that the host's own apt reads its release from; `$DEBIAN_MIRROR` overrides.
pub fn mirror() -> Result<String> {
    if let Ok(uri) = std::env::var("DEBIAN_MIRROR") {
        return Ok(uri);
    }
    let codename = format!("Codename: {}", codename()?);
    let ask = || {
        let mut apt = Command::new("apt-get");
        apt.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", &codename]);
        let text = capture(&mut apt).unwrap_or_default();
        text.lines().next().map(|l| l.trim().trim_end_matches('/').to_owned())
    };
    if let Some(uri) = ask() {
        return Ok(uri);
    }
    // Nothing downloaded yet: the lists know the mirror only after one update.
    update()?;
    match ask() {
        Some(uri) => Ok(uri),
        None => bail!("apt names no mirror for this release; set DEBIAN_MIRROR to one"),
    }
}
