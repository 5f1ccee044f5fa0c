//! containerd, built from a Go module for each release of it.
//!
//! Input: the folder of the release in `tests/upstream/containerd`, whose go.mod requires one exact
//! version. Output: its three programs. They are static: without cgo they lack the plugin for btrfs
//! and lookups of users by the host's libraries, which no test uses.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::{MODULE_FILES, go, module_dir};
use crate::image::sha256;
use crate::shell;

/// The programs of a release.
pub(crate) const PROGRAMS: [&str; 3] = ["containerd", "ctr", "containerd-shim-runc-v2"];
/// The module, from version 2 on.
const MODULE: &str = "github.com/containerd/containerd/v2";

/// Builds the programs of a release such as `2.4` into a folder.
pub(crate) fn build(release: &str, bin: &Path) -> Result<()> {
    let version = version(&read(release, "go.mod")?)?;
    for program in PROGRAMS {
        let mut go = go()?;
        go.current_dir(dir(release)).args(["build", "-mod=readonly", "-trimpath", "-ldflags"]);
        // Without its number a program calls itself unknown.
        go.arg(format!("-s -w -X {MODULE}/version.Version={version}"));
        go.arg("-o").arg(bin.join(program)).arg(format!("{MODULE}/cmd/{program}"));
        shell::capture_retried(&mut go)?;
    }
    Ok(())
}

/// Digest of what a release is built from.
pub(crate) fn stamp(release: &str) -> Result<String> {
    let files = MODULE_FILES.map(|file| read(release, file));
    let all = files.into_iter().collect::<Result<Vec<_>>>()?.concat();
    Ok(sha256(all.as_bytes()))
}

fn dir(release: &str) -> PathBuf {
    module_dir().join("containerd").join(release)
}

fn read(release: &str, file: &str) -> Result<String> {
    let path = dir(release).join(file);
    fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The version that a go.mod requires, as containerd prints it.
fn version(module: &str) -> Result<String> {
    let mut words = module.lines().map(str::split_whitespace);
    let version = words.find_map(|mut words| {
        let is_it = words.any(|word| word == MODULE);
        words.next().filter(|_| is_it)
    });
    let version = version.with_context(|| format!("go.mod requires no {MODULE}"))?;
    Ok(version.trim_start_matches('v').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Version;

    #[test]
    fn each_release_requires_a_version_of_its_own() {
        for release in [Version::V2_4, Version::V2_3, Version::V2_2] {
            let name = release.name();
            let module = read(name, "go.mod").expect("a module");
            let required = version(&module).expect("a version");
            assert!(required.starts_with(&format!("{name}.")), "{required} is not {name}");
            assert!(
                read(name, "go.sum").expect("sums").contains(&format!("{MODULE} v{required} h1:"))
            );
        }
    }

    #[test]
    fn the_version_is_read_in_a_block_and_alone() {
        let alone = format!("module m\n\nrequire {MODULE} v2.4.2 // indirect\n");
        let block = format!("module m\n\nrequire (\n\tk8s.io/api v0.1.0\n\t{MODULE} v2.4.2\n)\n");
        for text in [alone, block] {
            assert_eq!(version(&text).expect("a version"), "2.4.2");
        }
        version("module m\n").expect_err("no version");
    }
}
