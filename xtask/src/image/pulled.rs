//! Images that upstream's node suite pulls besides those of the other suites: it pulls every image
//! of its list, also those that no test of ours starts.
//!
//! Input: a registry's storage. Output: the images in it, and on no node. Images that no test
//! starts share one layer of many small files: tests of image garbage collection wait until the
//! removal of unused images has freed more than ten thousand inodes, and all other images together,
//! which are on one small Debian, have half of that.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci_spec::image::Config;

use super::layout::Layout;
use super::registry::Storage;
use super::{e2e, sha256};
use crate::cache;
use crate::shell::timed;

/// Changes whenever the recipe below does.
const RECIPE: &str = "1";
/// Images that no test starts: performance tests, cadvisor, NFS volumes, device plugins.
const UNSTARTED: [&str; 8] = [
    "gcr.io/cadvisor/cadvisor:v0.47.2",
    "registry.k8s.io/e2e-test-images/node-perf/npb-ep:1.6.0",
    "registry.k8s.io/e2e-test-images/node-perf/npb-is:1.7.0",
    "registry.k8s.io/e2e-test-images/node-perf/pytorch-wide-deep:1.0.0",
    "registry.k8s.io/e2e-test-images/volume/nfs:1.6.0",
    "registry.k8s.io/node-problem-detector/node-problem-detector:v1.34.0",
    "docker.io/nfvpe/sriov-device-plugin:v3.1",
    "registry.k8s.io/e2e-test-images/sample-device-plugin:1.7",
];
/// Folders of the layer, and empty files in each of them.
const FOLDERS: usize = 20;
const FILES: usize = 1_000;

/// Puts the images into a registry's storage that has those of the suites.
pub fn add_to(storage: &Storage) -> Result<()> {
    // Perl is in the Debian below this one.
    let (of, perl) = ("e2e-test-images/agnhost", "e2e-test-images/perl");
    storage.add_as(&e2e::layout()?.0, of, perl, "5.26")?;
    storage.add_layout(&unstarted()?)
}

/// The layout of the images that nothing starts.
fn unstarted() -> Result<PathBuf> {
    let digest = sha256(format!("{RECIPE} {UNSTARTED:?} {FOLDERS} {FILES}").as_bytes());
    cache::content_entry("pulled-images", &digest, |staging, _| {
        timed("make", "the images that are only pulled", || write(staging, FOLDERS, FILES))
    })
}

fn write(dir: &Path, folders: usize, files: usize) -> Result<()> {
    let mut layout = Layout::create(dir)?;
    let work = dir.join("work");
    for folder in 0..folders {
        let folder = work.join(folder.to_string());
        fs::create_dir_all(&folder)?;
        for file in 0..files {
            File::create(folder.join(file.to_string())).context("make a small file")?;
        }
    }
    let layer = layout.layer(&work)?;
    cache::remove(&work)?;
    for name in UNSTARTED {
        layout.image(name, Config::default(), std::slice::from_ref(&layer))?;
    }
    layout.finish()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::shell::capture;

    #[test]
    fn the_images_share_a_layer_of_small_files_and_each_is_served_under_its_name() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (made, served) = (dir.path().join("made"), dir.path().join("served"));
        write(&made, 2, 3).expect("made");
        let blobs: Vec<_> = fs::read_dir(made.join("blobs/sha256"))
            .expect("blobs")
            .map(|entry| entry.expect("a blob").path())
            .collect();
        // A configuration and a manifest each.
        assert_eq!(blobs.len(), 1 + 2 * UNSTARTED.len());
        let bytes = |path: &&PathBuf| fs::metadata(path).expect("a blob").len();
        let layer = blobs.iter().max_by_key(bytes).expect("the layer");
        let listed = capture(Command::new("tar").arg("-tf").arg(layer)).expect("a tar archive");
        assert_eq!(listed.lines().filter(|line| !line.ends_with('/')).count(), 6, "{listed}");
        Storage::at(&served).add_layout(&made).expect("served");
        for name in UNSTARTED {
            let (repository, tag) = name.rsplit_once(':').expect("a tag");
            let (_, repository) = repository.split_once('/').expect("a host");
            let path = format!("repositories/{repository}/_manifests/tags/{tag}/current/link");
            assert!(served.join("docker/registry/v2").join(path).is_file(), "{name}");
        }
    }
}
