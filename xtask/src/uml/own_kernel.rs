//! A User-Mode Linux kernel of our own, for what Debian's lacks: cpuset, PSI, iptables.
//!
//! Input: Debian's source of the kernel, and `own_kernel.config`. Output: an entry of the cache with
//! the program alone: nothing of it is a module, and it wants no other libc than the host's. The
//! build takes 25 minutes of CPU and 3 GB once. cpuset depends on SMP, and a kernel with SMP panics
//! when its network device has no queue, which the patch prevents.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, ensure};

use crate::image::sha256;
use crate::shell::{capture, timed};
use crate::{apt, cache, runtime};

/// Changes whenever the recipe below does, but for the configuration.
const RECIPE: &str = "1";
/// The release of the kernel, as Debian's package is called.
const SOURCE: &str = "linux-source-7.2";
const CONFIG: &str = include_str!("own_kernel.config");
const PATCH: &str = include_str!("own_kernel.patch");
/// Programs that the build calls, and the packages that have them.
const TOOLS: [(&[&str], &str); 5] = [
    (&["gcc"], "gcc"),
    (&["make"], "make"),
    (&["bc"], "bc"),
    (&["xz"], "xz-utils"),
    (&["patch"], "patch"),
];
/// Packages that are used from the build's folder and not installed.
const PACKAGES: [&str; 4] =
    ["flex/bookworm", "bison/bookworm", "m4/bookworm", "libsigsegv2/bookworm"];

/// Digest of what the kernel is made of.
pub(super) fn stamp() -> String {
    sha256(format!("{RECIPE} {SOURCE}\n{CONFIG}{PATCH}").as_bytes())
}

/// Builds the kernel into a folder, as the program `linux`.
pub(super) fn build(staging: &Path) -> Result<()> {
    let text = format!("a User-Mode Linux kernel from {SOURCE}: half an hour, once");
    timed("build", &text, || {
        apt::install_missing(&TOOLS)?;
        let (unpacked, build) = (staging.join("x"), staging.join("build"));
        let source = format!("{SOURCE}/sid");
        runtime::index()?.unpack(&[&[&*source], &PACKAGES[..]].concat(), &unpacked)?;
        let archive = unpacked.join(SOURCE).join(format!("usr/src/{SOURCE}.tar.xz"));
        let tree = staging.join("source");
        fs::create_dir(&tree)?;
        let mut tar = Command::new("tar");
        tar.arg("-xJf").arg(&archive).arg("-C").arg(&tree).arg("--strip-components=1");
        capture(&mut tar)?;
        let patch = staging.join("patch");
        fs::write(&patch, PATCH)?;
        capture(Command::new("patch").args(["-p1", "-i"]).arg(&patch).current_dir(&tree))?;
        configure(&tree, &unpacked, &build)?;
        capture(make(&tree, &unpacked, &build).args(["vmlinux", "linux"]))?;
        let mut strip = Command::new("strip");
        capture(strip.arg("-g").arg("-o").arg(staging.join("linux")).arg(build.join("vmlinux")))?;
        fs::remove_file(&patch)?;
        [build, tree, unpacked].iter().try_for_each(|dir| cache::remove(dir))
    })
}

/// Writes the configuration: ours after the architecture's defaults, so that ours counts.
fn configure(tree: &Path, unpacked: &Path, build: &Path) -> Result<()> {
    let defaults = tree.join("arch/um/configs/x86_64_defconfig");
    let defaults =
        fs::read_to_string(&defaults).with_context(|| format!("read {}", defaults.display()))?;
    fs::create_dir_all(build)?;
    let file = build.join(".config");
    fs::write(&file, defaults + CONFIG)?;
    capture(make(tree, unpacked, build).arg("olddefconfig"))?;
    let missing = missing(CONFIG, &fs::read_to_string(&file)?);
    ensure!(missing.is_empty(), "the kernel does not take {missing:?}");
    Ok(())
}

/// `make` with the programs from the packages.
fn make(tree: &Path, unpacked: &Path, build: &Path) -> Command {
    let of = |package: &str, path: &str| unpacked.join(package).join(path);
    let usual = std::env::var("PATH").unwrap_or_default();
    let programs = ["flex", "bison", "m4"].map(|name| of(name, "usr/bin").display().to_string());
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let mut make = Command::new("nice");
    make.args(["make", "-s", &format!("-j{jobs}"), "ARCH=um"])
        .arg(format!("O={}", build.display()));
    make.current_dir(tree).env("PATH", format!("{}:{usual}", programs.join(":")));
    make.env("BISON_PKGDATADIR", of("bison", "usr/share/bison"));
    make.env("M4", of("m4", "usr/bin/m4"));
    make.env("LD_LIBRARY_PATH", of("libsigsegv2", "usr/lib/x86_64-linux-gnu"));
    make
}

/// Options that are asked for and that the written configuration has not.
fn missing<'a>(asked: &'a str, written: &str) -> Vec<&'a str> {
    let written: BTreeSet<&str> = written.lines().collect();
    let asked = asked.lines().filter(|line| line.starts_with("CONFIG_"));
    asked.filter(|line| !written.contains(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_the_kernel_drops_are_named() {
        let asked = "# a comment\nCONFIG_A=y\nCONFIG_B=y\n# CONFIG_C is not set\n";
        assert_eq!(missing(asked, "CONFIG_A=y\n# CONFIG_B is not set\n"), ["CONFIG_B=y"]);
    }

    #[test]
    fn configuration_has_the_options_that_debians_kernel_lacks() {
        for option in [
            "CPUSETS",
            "PSI",
            "IP_NF_IPTABLES",
            "NFT_COMPAT",
            "NETFILTER_XT_MATCH_RECENT",
            "OVERLAY_FS",
        ] {
            assert!(CONFIG.contains(&format!("\nCONFIG_{option}=y\n")), "{option}");
        }
    }
}
