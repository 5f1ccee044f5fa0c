//! Container runtimes in the cache folder: nothing is installed on the host.
//!
//! Five containerd releases, because the agent must support them all: 2.1 to 2.4, and 1.7, which
//! has no RuntimeConfig. From 2.2 on they are built from Go modules at exact versions, see
//! `upstream::containerd`; 2.1 needs no Go, so that a demo needs none. The folder `tools` has the
//! programs that every release shares: CNI plugins, iptables, busybox, a registry. All the rest
//! comes from Debian's archive, each from the release that has it; apt's own mirror and keys are
//! used. A program that needs a newer libc than the host's gets a private one with patchelf, which
//! is why the path must be final.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

use crate::apt::PackageIndex;
use crate::cache;
use crate::shell::{capture, say, timed};
use crate::upstream::containerd;

/// Changes whenever the recipe below does, so that an older cache is rebuilt.
const RECIPE: &str = "2";

/// Names the release of nodes for which a test asks for no particular one.
const CHOICE: &str = "PINTLE_CONTAINERD";

/// A containerd release the agent is tested with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// containerd 2.4, the first that streams its lists.
    V2_4,
    /// containerd 2.3, which has long-term support.
    V2_3,
    /// containerd 2.2, the first that takes a pod's new resources.
    V2_2,
    /// containerd 2.1.
    V2_1,
    /// containerd 1.7 with runc 1.1; all others have runc 1.3.
    V1_7,
}

impl Version {
    /// All of them, newest first.
    pub const ALL: [Self; 5] = [Self::V2_4, Self::V2_3, Self::V2_2, Self::V2_1, Self::V1_7];
    /// Those that a run of all tests covers, one for each set of CRI calls and features.
    const SAMPLED: [Self; 3] = [Self::V2_4, Self::V2_1, Self::V1_7];

    /// The release of nodes for which a test asks for no particular one: 2.1, or the one that
    /// `PINTLE_CONTAINERD` names.
    pub fn usual() -> Result<Self> {
        let Some(name) = std::env::var_os(CHOICE).filter(|name| !name.is_empty()) else {
            return Ok(Self::V2_1);
        };
        let name = name.to_string_lossy();
        let found = Self::ALL.into_iter().find(|version| version.name() == name);
        found.with_context(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("{CHOICE}={name} is no release of containerd that is tested: {names}")
        })
    }

    /// The releases that a run of the tests covers: a sample, and the one that was chosen.
    pub fn sampled() -> Result<Vec<Self>> {
        let usual = Self::usual()?;
        let is_sampled = |version: &Self| Self::SAMPLED.contains(version) || *version == usual;
        Ok(Self::ALL.into_iter().filter(is_sampled).collect())
    }

    /// The release as its users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::V2_4 => "2.4",
            Self::V2_3 => "2.3",
            Self::V2_2 => "2.2",
            Self::V2_1 => "2.1",
            Self::V1_7 => "1.7",
        }
    }

    fn packages(self) -> &'static [&'static str] {
        match self {
            Self::V2_1 => &["containerd/sid", "runc/sid", "libc6/sid", "libseccomp2/sid"],
            Self::V1_7 => &["containerd/trixie", "runc/bookworm"],
            _ => &["runc/sid", "libc6/sid", "libseccomp2/sid"],
        }
    }

    /// True if Debian has no package of the release.
    fn is_module(self) -> bool {
        matches!(self, Self::V2_4 | Self::V2_3 | Self::V2_2)
    }

    /// Says what the release is made of, so that an older cache is rebuilt.
    fn stamp(self) -> Result<String> {
        match self.is_module() {
            true => Ok(format!("{RECIPE} {}", containerd::stamp(self.name())?)),
            false => Ok(RECIPE.to_owned()),
        }
    }
}

/// A runtime ready to start.
#[derive(Clone, Debug)]
pub struct Runtime {
    /// The release.
    pub version: Version,
    dir: PathBuf,
    tools: PathBuf,
}

impl Runtime {
    /// Finds the runtime in the cache or fetches it; needs root and the network the first time.
    pub fn ensure(version: Version) -> Result<Self> {
        let tools = tools()?;
        let name = format!("runtime/{}", version.name());
        let dir = cache::entry(&name, &version.stamp()?, |staging, done| {
            let text = format!("containerd {} and runc", version.name());
            timed("make", &text, || make_runtime(version, &tools, staging, done))
        })?;
        Ok(Self { version, dir, tools })
    }

    /// The folders with all that this runtime needs.
    pub fn dirs(&self) -> Vec<PathBuf> {
        vec![self.dir.clone(), self.tools.clone()]
    }

    /// A program of this runtime or of the shared tools.
    pub fn program(&self, name: &str) -> PathBuf {
        let own = self.dir.join("bin").join(name);
        if own.exists() { own } else { self.tools.join("bin").join(name) }
    }

    /// Folder of the CNI plugins.
    pub fn cni(&self) -> PathBuf {
        self.tools.join("cni")
    }

    /// A PATH on which this runtime's programs come before the host's.
    pub fn path(&self) -> String {
        let (own, tools) = (self.dir.join("bin"), self.tools.join("bin"));
        format!(
            "{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            own.display(),
            tools.display()
        )
    }
}

/// Tools that all versions share.
pub(crate) fn tools() -> Result<PathBuf> {
    cache::entry("runtime/tools", RECIPE, |staging, done| {
        timed("fetch", "CNI plugins, iptables, busybox, registry from the Debian archive", || {
            fetch_tools(staging, done)
        })
    })
}

pub(crate) fn index() -> Result<PackageIndex> {
    PackageIndex::update(&cache::dir()?.join("apt"), &["bookworm", "trixie", "sid"])
}

fn fetch_tools(staging: &Path, done: &Path) -> Result<()> {
    let unpacked = staging.join("x");
    let libs = [
        "libxtables12/bookworm",
        "libip4tc2/bookworm",
        "libip6tc2/bookworm",
        "libnftnl11/bookworm",
        "libmnl0/bookworm",
        "libnetfilter-conntrack3/bookworm",
        "libnfnetlink0/bookworm",
    ];
    let mut packages = vec![
        "containernetworking-plugins/sid",
        "busybox-static/bookworm",
        "docker-registry/bookworm",
        "patchelf/bookworm",
        "iptables/bookworm",
    ];
    packages.extend(libs);
    index()?.unpack(&packages, &unpacked)?;
    copy_all(&unpacked.join("containernetworking-plugins/usr/lib/cni"), &staging.join("cni"))?;
    let bin = staging.join("bin");
    for file in ["busybox-static/bin/busybox", "patchelf/usr/bin/patchelf"] {
        copy_into(&unpacked.join(file), &bin)?;
    }
    copy_into(&unpacked.join("docker-registry/usr/bin/docker-registry"), &bin)?;
    for lib in libs {
        let name = lib.split('/').next().expect("a package name");
        copy_all(&library_dir(&unpacked.join(name))?, &staging.join("iptables/lib"))?;
    }
    let iptables = library_dir(&unpacked.join("iptables"))?;
    copy_all(&iptables.join("xtables"), &staging.join("iptables/lib/xtables"))?;
    copy_into(&unpacked.join("iptables/usr/sbin/xtables-nft-multi"), &staging.join("iptables"))?;
    for name in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            iptables_wrapper(&bin, &done.join("iptables"), &format!("{name}{suffix}"))?;
        }
    }
    cache::remove(&unpacked)
}

/// iptables with its own libraries: the host may have none, or another variant.
fn iptables_wrapper(bin: &Path, home: &Path, name: &str) -> Result<()> {
    let home = home.display();
    let script = format!(
        "#!/bin/bash\nexport LD_LIBRARY_PATH={home}/lib XTABLES_LIBDIR={home}/lib/xtables\n\
         exec -a {name} {home}/xtables-nft-multi \"$@\"\n"
    );
    let path = bin.join(name);
    fs::write(&path, script)?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?)
}

fn make_runtime(version: Version, tools: &Path, staging: &Path, done: &Path) -> Result<()> {
    let unpacked = staging.join("x");
    index()?.unpack(version.packages(), &unpacked)?;
    let bin = staging.join("bin");
    if version.is_module() {
        containerd::build(version.name(), &bin)?;
    } else {
        for name in containerd::PROGRAMS {
            copy_into(&unpacked.join("containerd/usr/bin").join(name), &bin)?;
        }
    }
    copy_into(&unpacked.join("runc/usr/sbin/runc"), &bin)?;
    if version != Version::V1_7 {
        private_libc(&unpacked, tools, staging, done)?;
    }
    cache::remove(&unpacked)?;
    let found = capture(Command::new(bin.join("containerd")).arg("--version"))?;
    say("", found.trim());
    // A moving archive must not replace the version that is tested as 2.1.
    ensure!(is_release(&found, version), "this is not containerd {}: {found}", version.name());
    Ok(())
}

/// Returns whether `containerd --version` printed a version of this release.
fn is_release(printed: &str, version: Version) -> bool {
    let number = printed.split_whitespace().nth(2).unwrap_or_default().trim_start_matches('v');
    number.strip_prefix(version.name()).is_some_and(|patch| patch.starts_with('.'))
}

/// Gives runc the libc of its own release: the host's is older.
fn private_libc(unpacked: &Path, tools: &Path, staging: &Path, done: &Path) -> Result<()> {
    let lib = staging.join("lib");
    let (libc, seccomp) = (unpacked.join("libc6"), unpacked.join("libseccomp2"));
    let loader = find(&libc, |n| n.starts_with("ld-linux-"))?;
    let loader_name = loader.file_name().expect("a file has a name").to_owned();
    copy_into(&loader, &lib)?;
    copy_into(&find(&libc, |n| n == "libc.so.6")?, &lib)?;
    copy_into(&find(&seccomp, |n| n == "libseccomp.so.2")?, &lib)?;
    let at = done.join("lib");
    let mut patch = Command::new(tools.join("bin/patchelf"));
    patch.arg("--set-interpreter").arg(at.join(loader_name));
    patch.arg("--force-rpath").arg("--set-rpath").arg(&at).arg(staging.join("bin/runc"));
    capture(&mut patch).map(drop)
}

/// `usr/lib/<triplet>` of an unpacked package.
fn library_dir(package: &Path) -> Result<PathBuf> {
    let lib = package.join("usr/lib");
    let entries = fs::read_dir(&lib).with_context(|| format!("read {}", lib.display()))?;
    let mut dirs = entries.filter_map(|e| e.ok().map(|e| e.path()));
    dirs.find(|p| p.to_string_lossy().ends_with("-linux-gnu"))
        .ok_or_else(|| anyhow!("no library folder in {}", package.display()))
}

/// The first file below `dir` with a matching name.
fn find(dir: &Path, wanted: impl Fn(&str) -> bool + Copy) -> Result<PathBuf> {
    fn walk(dir: &Path, wanted: &dyn Fn(&str) -> bool) -> Option<PathBuf> {
        let mut below = Vec::new();
        for entry in fs::read_dir(dir).ok()?.flatten() {
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                below.push(entry.path());
            } else if wanted(&entry.file_name().to_string_lossy()) {
                return Some(entry.path());
            }
        }
        below.iter().find_map(|d| walk(d, wanted))
    }
    walk(dir, &wanted).ok_or_else(|| anyhow!("not found in {}", dir.display()))
}

/// Copies one file (through links) into a folder, made if missing.
fn copy_into(file: &Path, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir)?;
    let name = file.file_name().expect("a file has a name");
    fs::copy(file, dir.join(name)).with_context(|| format!("copy {}", file.display()))?;
    Ok(())
}

/// Copies the files and links of one folder, not its subfolders.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("read {}", from.display()))? {
        let path = entry?.path();
        let dest = to.join(path.file_name().expect("an entry has a name"));
        if path.is_symlink() {
            symlink(fs::read_link(&path)?, dest)?;
        } else if path.is_file() {
            fs::copy(&path, dest)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containerd_release_is_recognized_by_its_version_output() {
        let printed = "containerd github.com/containerd/containerd/v2 2.1.9 2.1.9~ds1-2\n";
        assert!(is_release(printed, Version::V2_1));
        assert!(!is_release(printed, Version::V1_7));
        assert!(!is_release(
            "containerd github.com/containerd/containerd/v2 2.10.1 x",
            Version::V2_1
        ));
        assert!(is_release(
            "containerd github.com/containerd/containerd 1.7.24~ds1 x",
            Version::V1_7
        ));
    }
}
