//! The kernel of guests: Debian's User-Mode Linux as it is, or the one of `own_kernel`.
//!
//! `PINTLE_UML_KERNEL` chooses: `debian`, which is the default, or `own`. Output: an entry of the
//! cache. Debian's is a program, its modules, and the libc that it wants. The kernel is a program
//! of the newest release, because only that one runs processes by seccomp, twice as fast as by
//! ptrace. It wants a newer libc than the host's: the guest's start binds that libc over the host's
//! in a mount namespace of its own, as the kernel takes its memory from where its loader ends and
//! cannot be started by another one. Of the modules only those that a node needs are kept: all of
//! them are 166 MB.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::own_kernel;
use crate::cache;
use crate::runtime;
use crate::shell::{say, timed};

/// Names the kernel.
const CHOICE: &str = "PINTLE_UML_KERNEL";
/// Changes whenever the recipe below does.
const RECIPE: &str = "1";
/// Modules of a node: what containerd, the pod network and volumes use.
const MODULES: [&str; 6] = ["overlay", "veth", "bridge", "br_netfilter", "fuse", "loop"];
/// Files of the libc that are bound over the host's.
const LIBRARIES: [&str; 2] = ["ld-linux-x86-64.so.2", "libc.so.6"];

/// A kernel in the cache.
pub(super) struct Kernel {
    /// Folder with the program `linux`, and Debian's with `lib` and `modules`.
    dir: PathBuf,
}

impl Kernel {
    pub(super) fn program(&self) -> PathBuf {
        self.dir.join("linux")
    }

    /// The folder of the libc that it wants; `None` for the host's.
    pub(super) fn libraries(&self) -> Option<PathBuf> {
        Some(self.dir.join("lib")).filter(|dir| dir.exists())
    }

    /// The folder that has a folder of modules named by the kernel's version, if it has modules.
    pub(super) fn modules(&self) -> Option<PathBuf> {
        Some(self.dir.join("modules")).filter(|dir| dir.exists())
    }

    /// The version of its modules, such as `7.2.7`; empty without any.
    pub(super) fn version(&self) -> Result<String> {
        self.modules().map_or(Ok(String::new()), |modules| version_of(&modules))
    }
}

/// Finds the chosen kernel in the cache, fetches or builds it.
pub(super) fn kernel() -> Result<Kernel> {
    ensure!(cfg!(target_arch = "x86_64"), "a User-Mode Linux guest needs an x86-64 host");
    match std::env::var(CHOICE).as_deref() {
        Err(_) | Ok("" | "debian") => debian(),
        Ok("own") => {
            let stamp = own_kernel::stamp();
            let dir =
                cache::entry("uml/own-kernel", &stamp, |staging, _| own_kernel::build(staging))?;
            Ok(Kernel { dir })
        }
        Ok(other) => bail!("{CHOICE}={other}: there are `debian` and `own`"),
    }
}

/// Fails unless the chosen kernel has iptables, which Debian's lacks.
pub(super) fn require_iptables() -> Result<()> {
    let is_own = std::env::var(CHOICE).as_deref() == Ok("own");
    ensure!(is_own, "Debian's kernel has no iptables, which kube-proxy needs: set {CHOICE}=own");
    Ok(())
}

fn debian() -> Result<Kernel> {
    let dir = cache::entry("uml/kernel", RECIPE, |staging, _| {
        timed("fetch", "a User-Mode Linux kernel from the Debian archive", || fetch(staging))
    })?;
    Ok(Kernel { dir })
}

fn fetch(staging: &Path) -> Result<()> {
    let unpacked = staging.join("x");
    runtime::index()?.unpack(&["user-mode-linux/sid", "libc6/sid"], &unpacked)?;
    let package = unpacked.join("user-mode-linux");
    fs::copy(package.join("usr/bin/linux.uml"), staging.join("linux"))
        .context("take the kernel")?;
    fs::create_dir(staging.join("lib"))?;
    for name in LIBRARIES {
        let from = unpacked.join("libc6/usr/lib/x86_64-linux-gnu").join(name);
        fs::copy(&from, staging.join("lib").join(name))
            .with_context(|| format!("copy {}", from.display()))?;
    }
    let all = package.join("usr/lib/uml/modules");
    let version = version_of(&all)?;
    say("", &format!("User-Mode Linux {version}"));
    take_modules(&all.join(&version), &staging.join("modules").join(&version))?;
    cache::remove(&unpacked)
}

/// The only folder in a folder of modules.
fn version_of(modules: &Path) -> Result<String> {
    let mut entries = fs::read_dir(modules).context("read the kernel's modules")?;
    let entry = entries.next().context("a kernel has modules")??;
    Ok(entry.file_name().to_string_lossy().into_owned())
}

/// Copies the modules of a node, with those they depend on, and the indices of all.
fn take_modules(from: &Path, to: &Path) -> Result<()> {
    let list = fs::read_to_string(from.join("modules.dep")).context("read modules.dep")?;
    for file in wanted(&list, &MODULES) {
        let dest = to.join(&file);
        fs::create_dir_all(dest.parent().expect("a module lies in a folder"))?;
        fs::copy(from.join(&file), dest).with_context(|| format!("copy {file}"))?;
    }
    for entry in fs::read_dir(from)?.flatten().filter(|e| e.path().is_file()) {
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Files of the named modules and of all that these depend on, from lines `FILE: FILE FILE..`.
fn wanted(list: &str, names: &[&str]) -> BTreeSet<String> {
    let is_named = |file: &str| names.iter().any(|n| file.ends_with(&format!("/{n}.ko")));
    let lines = list.lines().filter_map(|line| line.split_once(':'));
    let named = lines.filter(|(file, _)| is_named(file));
    named
        .flat_map(|(file, needs)| std::iter::once(file).chain(needs.split_whitespace()))
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_selected_with_their_dependencies() {
        let list = "kernel/net/802/stp.ko: kernel/net/llc/llc.ko\n\
                    kernel/net/bridge/bridge.ko: kernel/net/802/stp.ko kernel/net/llc/llc.ko\n\
                    kernel/net/bridge/not_bridge.ko:\n";
        let files = wanted(list, &["bridge"]);
        let names =
            ["kernel/net/802/stp.ko", "kernel/net/bridge/bridge.ko", "kernel/net/llc/llc.ko"];
        assert_eq!(files, names.map(str::to_owned).into());
    }
}
