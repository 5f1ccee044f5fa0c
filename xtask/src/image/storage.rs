//! Images of CSI drivers and their sidecars, for upstream's storage suites.
//!
//! Input: the names of images in the suites' manifests, upstream's sidecars, and the tests' own
//! driver, which stands in for every program that is no Go module. Output: an OCI layout in the
//! cache with an image for each name. The driver's images have a small Debian below it, for the C
//! library and losetup; sidecars are static and alone in theirs.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use super::e2e::{config, copy, layer};
use super::layout::Layout;
use super::{parts, sha256, sha256_of_file};
use crate::cache;
use crate::node::agent;
use crate::upstream::{self, Program, Sidecar};

/// Changes whenever the recipe below does.
const RECIPE: &str = "1";
/// Folder of the suites' manifests in upstream's module.
const MANIFESTS: &str = "test/e2e/testing-manifests/storage-csi";
/// The manifests that the suites deploy.
const FILES: [&str; 6] = [
    "hostpath/hostpath/csi-hostpath-plugin.yaml",
    "mock/csi-mock-driver.yaml",
    "mock/csi-mock-driver-attacher.yaml",
    "mock/csi-mock-driver-resizer.yaml",
    "mock/csi-mock-driver-snapshotter.yaml",
    "mock/csi-mock-proxy.yaml",
];
/// Programs that the tests' driver stands in for.
const STAND_INS: [&str; 3] = ["csi-node-driver-registrar", "hostpathplugin", "livenessprobe"];
/// The driver's path in its images.
const DRIVER: &str = "pintle-csi-driver";

/// The layout's folder.
pub fn layout() -> Result<PathBuf> {
    let driver = agent::build(DRIVER)?;
    let names = references()?;
    let programs = sidecars()?;
    let mut sums = format!("{RECIPE} {} {}", parts::RECIPE, sha256_of_file(&driver)?);
    for (sidecar, program) in &programs {
        sums += &format!(" {} {}", sidecar.name(), sha256_of_file(program)?);
    }
    sums.extend(names.iter().map(|name| format!(" {name}")));
    cache::content_entry("storage-images", &sha256(sums.as_bytes()), |staging, _| {
        let mut layout = Layout::create(staging)?;
        let work = staging.join("work");
        let debian = layout.layer(&parts::debian()?)?;
        let driver = layer(&layout, &work, |root| copy(root, DRIVER, &driver, 0o755))?;
        let stand_in = [debian, driver];
        for name in &names {
            let program = program_of(name);
            if STAND_INS.contains(&program) {
                let entry = vec![format!("/{DRIVER}"), program.to_owned()];
                layout.image(name, config().entrypoint(entry).build()?, &stand_in)?;
                continue;
            }
            let of = programs.iter().find(|(sidecar, _)| sidecar.name() == program);
            let Some((_, path)) = of else { continue };
            let sidecar = layer(&layout, &work, |root| copy(root, program, path, 0o755))?;
            let entry = vec![format!("/{program}")];
            layout.image(name, config().entrypoint(entry).build()?, &[sidecar])?;
        }
        cache::remove(&work)?;
        layout.finish()
    })
}

fn sidecars() -> Result<Vec<(Sidecar, PathBuf)>> {
    let build = |sidecar: Sidecar| Ok((sidecar, Program::Sidecar(sidecar).ensure()?));
    Sidecar::ALL.into_iter().map(build).collect()
}

/// The names of images that the manifests have, and of which one of ours is made.
fn references() -> Result<BTreeSet<String>> {
    let mut all = BTreeSet::new();
    for file in FILES {
        let path = upstream::module_file("k8s.io/kubernetes", &format!("{MANIFESTS}/{file}"))?;
        let text = fs::read_to_string(&path).with_context(|| format!("read {file}"))?;
        all.extend(images_of(&text).filter(|name| is_ours(program_of(name))).map(str::to_owned));
    }
    let programs: BTreeSet<&str> = all.iter().map(|name| program_of(name)).collect();
    for program in STAND_INS {
        ensure!(programs.contains(program), "no manifest of the suites has {program}");
    }
    Ok(all)
}

fn is_ours(program: &str) -> bool {
    STAND_INS.contains(&program) || Sidecar::ALL.iter().any(|s| s.name() == program)
}

/// The images of a manifest's containers.
fn images_of(manifest: &str) -> impl Iterator<Item = &str> {
    manifest.lines().filter_map(|line| line.trim().strip_prefix("image:")).map(str::trim)
}

/// The program that an image is named after.
fn program_of(reference: &str) -> &str {
    let name = reference.rsplit('/').next().unwrap_or(reference);
    name.split(':').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_a_manifest_are_known_by_their_programs() {
        let manifest = "containers:\n- name: a\n  image: some.test/team/livenessprobe:v1\n\
                        - name: b\n  image: some.test/team/other:v2\n";
        let names: Vec<&str> = images_of(manifest).collect();
        assert_eq!(names, ["some.test/team/livenessprobe:v1", "some.test/team/other:v2"]);
        assert_eq!(program_of(names[0]), "livenessprobe");
        assert!(is_ours("livenessprobe") && is_ours("csi-attacher") && !is_ours("other"));
    }
}
