//! Upstream's module with a patch in it, and the test programs that are built from it.
//!
//! Input: Go's module cache and a folder of `tests/upstream` with a patch. Output: a second module
//! cache in ours, where everything is a link to the first but the files that the patch changes or
//! adds; Go's build cache has all other packages from the components already. Files of a module
//! cache cannot be replaced by an overlay, and another path of the module would compile all of it
//! again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::patch::Patch;
use super::{MODULE_FILES, VERSION, go, linker_flags, module_dir, module_file};
use crate::cache;
use crate::image::sha256;
use crate::shell::{capture, timed};

/// Changes whenever the way of building does.
const RECIPE: &str = "2";
/// The module's folder in a module cache, without its version.
const MODULE: &str = "kubernetes";

/// A patch of upstream's module that the repository has.
pub(super) struct ModulePatch {
    name: &'static str,
    dir: PathBuf,
    patch: Patch,
    stamp: String,
}

impl ModulePatch {
    /// Reads the patch of the folder of this name, with an underscore before it: Go ignores such
    /// folders.
    pub(super) fn read(name: &'static str) -> Result<Self> {
        let dir = module_dir().join(format!("_{name}"));
        let path = dir.join("patch.txt");
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let patch = Patch::parse(&text)?;
        let mut all = format!("{RECIPE} {VERSION}\n{text}").into_bytes();
        for (_, ours) in &patch.added {
            all.extend(fs::read(dir.join(ours)).with_context(|| format!("read {ours}"))?);
        }
        for file in MODULE_FILES {
            all.extend(fs::read(module_dir().join(file))?);
        }
        Ok(Self { name, dir, patch, stamp: sha256(&all) })
    }

    /// Digest of the patched module's sources.
    pub(super) fn stamp(&self) -> &str {
        &self.stamp
    }

    /// Finds the patched module or makes it.
    pub(super) fn ensure(self) -> Result<Patched> {
        let modules = module_file("k8s.io/kubernetes", "")?;
        let modules = modules.ancestors().nth(2).context("a module lies in a module cache")?;
        let kind = format!("{}-modules", self.name);
        let cache = cache::content_entry(&kind, &self.stamp, |staging, _| {
            link_all(modules, staging, &self.patch, &self.dir)
        })?;
        Ok(Patched { cache, stamp: self.stamp })
    }
}

/// Upstream's module with a patch in it.
pub(crate) struct Patched {
    cache: PathBuf,
    stamp: String,
}

impl Patched {
    /// The module with the patch of this name.
    pub(crate) fn ensure(name: &'static str) -> Result<Self> {
        ModulePatch::read(name)?.ensure()
    }

    /// The module cache that it is in.
    pub(crate) fn modules(&self) -> &Path {
        &self.cache
    }

    /// The folder of a package of upstream's module.
    pub(crate) fn package(&self, path: &str) -> PathBuf {
        self.cache.join(format!("k8s.io/{MODULE}@{VERSION}")).join(path)
    }

    /// The test program of a package of upstream's module.
    pub(crate) fn test_program(&self, path: &str) -> Result<PathBuf> {
        let name = path.replace('/', "_");
        let done = cache::entry(&format!("upstream/{name}"), &self.stamp, |staging, _| {
            timed("build", &format!("tests of {path}"), || {
                let mut go = self.go()?;
                // Upstream vets its tests; with it every package would be read once more.
                go.args(["test", "-c", "-vet=off", "-mod=readonly", "-trimpath", "-ldflags"]);
                go.arg(linker_flags()).arg("-o").arg(staging.join(&name));
                capture(go.arg(format!("k8s.io/{MODULE}/{path}"))).map(drop)
            })
        })?;
        Ok(done.join(name))
    }

    /// `go` in the module's folder, with upstream's module from here.
    pub(super) fn go(&self) -> Result<Command> {
        let mut go = go()?;
        go.env("GOMODCACHE", &self.cache);
        Ok(go)
    }
}

/// Links a module cache into `staging` and lays the patch over it.
fn link_all(modules: &Path, staging: &Path, patch: &Patch, ours: &Path) -> Result<()> {
    let versioned = format!("{MODULE}@{VERSION}");
    let k8s = staging.join("k8s.io");
    fs::create_dir(&k8s)?;
    for (from, to) in
        [(modules.to_owned(), staging.to_owned()), (modules.join("k8s.io"), k8s.clone())]
    {
        for entry in fs::read_dir(&from).with_context(|| format!("list {}", from.display()))? {
            let name = entry?.file_name();
            if name != "k8s.io" && name != *versioned {
                symlink(from.join(&name), to.join(&name))?;
            }
        }
    }
    let module = k8s.join(&versioned);
    link_tree(&modules.join("k8s.io").join(&versioned), &module)?;
    for file in patch.files() {
        let path = module.join(file);
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        // The file itself is also the other cache's.
        fs::remove_file(&path)?;
        fs::write(&path, patch.apply(file, &text)?)?;
    }
    for folder in patch.folders() {
        let count = change_each(&module.join(folder), folder, patch)?;
        ensure!(count > 0, "nothing below {folder} has what is to be changed in each of its files");
    }
    for (path, file) in &patch.added {
        let path = module.join(path);
        fs::create_dir_all(path.parent().context("a file lies in a folder")?)?;
        fs::copy(ours.join(file), path).with_context(|| format!("lay {file}"))?;
    }
    Ok(())
}

/// Changes the files of Go below a folder; how many.
fn change_each(dir: &Path, folder: &str, patch: &Patch) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))? {
        let entry = entry?;
        let path = entry.path();
        if entry.file_type()?.is_dir() {
            count += change_each(&path, folder, patch)?;
        } else if path.extension().is_some_and(|extension| extension == "go")
            && let Some(text) = patch.apply_each(folder, &fs::read_to_string(&path)?)
        {
            // The file itself is also the other cache's.
            fs::remove_file(&path)?;
            fs::write(&path, text)?;
            count += 1;
        }
    }
    Ok(count)
}

/// A folder with the same files under their names: links where the file system has them, else
/// copies. Links by name would do for Go but for files that it embeds.
fn link_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type()?.is_dir() {
            link_tree(&from, &to)?;
        } else if fs::hard_link(&from, &to).is_err() {
            fs::copy(&from, &to).with_context(|| format!("copy {}", from.display()))?;
        }
    }
    Ok(())
}
