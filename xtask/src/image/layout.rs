//! Writes an OCI layout folder: images with layers too large to hold in memory.
//!
//! Input: folders that become layers. Output: a folder as the OCI image specification lays it out,
//! which the runtime imports as a tar stream. Files are owned by root unless they say otherwise and
//! have no times, so that equal input gives equal digests. `tar` and `sha256sum` do the reading:
//! they are several times faster than what a development build of ours would be.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use oci_spec::image::{Config, Descriptor, ImageIndexBuilder, ImageManifest, MediaType};

use super::{Blob, config_blob, manifest_blob, sha256, sha256_of_file, with_platform, write};
use crate::shell::capture;

/// The annotation that names an image of a layout.
pub const NAME: &str = "io.containerd.image.name";

/// A layout being written.
pub struct Layout {
    dir: PathBuf,
    manifests: Vec<Descriptor>,
}

impl Layout {
    /// An empty layout in a folder.
    pub fn create(dir: &Path) -> Result<Self> {
        let blobs = dir.join("blobs/sha256");
        fs::create_dir_all(&blobs).with_context(|| format!("create {}", blobs.display()))?;
        Ok(Self { dir: dir.to_owned(), manifests: Vec::new() })
    }

    /// Makes a layer of everything in a folder.
    pub fn layer(&self, folder: &Path) -> Result<Blob> {
        let path = self.dir.join("layer");
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--mtime=@0", "--numeric-owner", "--one-file-system"]);
        tar.args(["--format=gnu", "--file"]).arg(&path).arg("-C").arg(folder).arg(".");
        capture(&mut tar)?;
        let sha = sha256_of_file(&path)?;
        let bytes = fs::metadata(&path)?.len();
        fs::rename(&path, self.blob(&sha))?;
        Ok(Blob { sha, bytes })
    }

    /// Adds an image. Its name is one of its labels, so that each has a digest of its own: a
    /// runtime may report one image under another's name otherwise.
    pub fn image(&mut self, reference: &str, mut config: Config, layers: &[Blob]) -> Result<()> {
        let mut labels = config.labels().clone().unwrap_or_default();
        labels.insert("pintle.test/name".to_owned(), reference.to_owned());
        config.set_labels(Some(labels));
        let config = config_blob(config, layers)?;
        let config = self.small(&config)?;
        let manifest = manifest_blob(&config, layers)?;
        let manifest = self.small(&manifest)?;
        let mut entry = with_platform(manifest.descriptor(MediaType::ImageManifest)?)?;
        let name = (NAME.to_owned(), reference.to_owned());
        entry.set_annotations(Some(HashMap::from([name])));
        self.manifests.push(entry);
        Ok(())
    }

    /// Puts the blobs of an image that was added into a folder as agnhost's `fake-registry-server`
    /// serves it, under another name and tag.
    // k8s: test/images/agnhost/fakeregistryserver/prepare_registry.sh
    pub fn serve(&self, reference: &str, to: &Path, name: &str, tag: &str) -> Result<()> {
        let named = |entry: &&Descriptor| {
            let names = entry.annotations().as_ref();
            names.and_then(|all| all.get(NAME)).is_some_and(|name| name == reference)
        };
        let entry = self.manifests.iter().find(named);
        let sha = entry.with_context(|| format!("no image is {reference}"))?.digest().digest();
        let bytes = fs::read(self.blob(sha))?;
        let manifest: ImageManifest = serde_json::from_slice(&bytes)?;
        let place = |kind: &str, sha: &str| {
            to.join(format!("{name}/{kind}/sha256/{}/{sha}/data", &sha[..2]))
        };
        write(&place("manifests", sha), &bytes)?;
        write(&to.join(format!("{name}/manifests/{tag}")), format!("sha256:{sha}\n").as_bytes())?;
        for part in manifest.layers().iter().chain([manifest.config()]) {
            let sha = part.digest().digest();
            write(&place("blobs", sha), &fs::read(self.blob(sha))?)?;
        }
        Ok(())
    }

    /// Writes the index: without it the folder is no layout.
    pub fn finish(self) -> Result<()> {
        let index = ImageIndexBuilder::default()
            .schema_version(2u32)
            .media_type(MediaType::ImageIndex)
            .manifests(self.manifests)
            .build()?;
        fs::write(self.dir.join("index.json"), serde_json::to_vec(&index)?)?;
        Ok(fs::write(self.dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?)
    }

    fn small(&self, bytes: &[u8]) -> Result<Blob> {
        let blob = Blob { sha: sha256(bytes), bytes: bytes.len() as u64 };
        fs::write(self.blob(&blob.sha), bytes)?;
        Ok(blob)
    }

    fn blob(&self, sha: &str) -> PathBuf {
        self.dir.join("blobs/sha256").join(sha)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Writes a layout of images that share one small layer, which it returns.
    pub(in crate::image) fn of_one_layer(dir: &Path, names: &[&str]) -> Blob {
        let from = tempfile::tempdir().expect("a temporary folder");
        fs::write(from.path().join("hello"), "hello").expect("written");
        let mut layout = Layout::create(dir).expect("created");
        let layer = layout.layer(from.path()).expect("a layer");
        for name in names {
            layout.image(name, Config::default(), std::slice::from_ref(&layer)).expect("added");
        }
        layout.finish().expect("finished");
        layer
    }

    #[test]
    fn every_blob_is_stored_under_its_digest_and_the_index_names_every_image() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let to = dir.path().join("to");
        of_one_layer(&to, &["pintle.test/a:1", "pintle.test/b:1"]);
        let blobs = fs::read_dir(to.join("blobs/sha256")).expect("blobs");
        let blobs: Vec<_> = blobs.flatten().map(|e| e.path()).collect();
        assert_eq!(blobs.len(), 5, "one layer, and a configuration and a manifest each");
        for blob in blobs {
            let sum = sha256(&fs::read(&blob).expect("readable"));
            assert_eq!(blob.file_name().and_then(|n| n.to_str()), Some(sum.as_str()));
        }
        let index = fs::read_to_string(to.join("index.json")).expect("an index");
        assert!(index.contains("pintle.test/a:1") && index.contains("pintle.test/b:1"), "{index}");
    }

    #[test]
    fn image_served_by_a_fake_registry_is_found_by_its_tag_and_its_digests() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut layout = Layout::create(&dir.path().join("to")).expect("created");
        fs::create_dir(dir.path().join("from")).expect("created");
        let layer = layout.layer(&dir.path().join("from")).expect("a layer");
        let layers = std::slice::from_ref(&layer);
        layout.image("pintle.test/a:1", Config::default(), layers).expect("added");
        let served = dir.path().join("served");
        layout.serve("pintle.test/a:1", &served, "b", "2").expect("served");
        let tag = fs::read_to_string(served.join("b/manifests/2")).expect("the tag");
        let sha = tag.trim_end().strip_prefix("sha256:").expect("a sum").to_owned();
        for (kind, sha) in [("manifests", &sha), ("blobs", &layer.sha)] {
            let path = served.join(format!("b/{kind}/sha256/{}/{sha}/data", &sha[..2]));
            assert_eq!(sha256(&fs::read(path).expect("it is there")), *sha);
        }
        assert!(layout.serve("pintle.test/c:1", &served, "c", "1").is_err());
    }
}
