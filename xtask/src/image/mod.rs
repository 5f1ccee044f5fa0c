//! OCI images made from files: no registry, no docker, no network.
//!
//! Input: layers (tar bytes) and an image configuration. Output: an archive that
//! `ctr images import` takes, or the folder tree that a docker-registry serves. Layers are stored
//! uncompressed: they are small, and start-up of a test node is what we pay for. Equal input gives
//! equal digests, so an image made again is the same image.

pub mod control;
pub mod e2e;
pub mod layout;
pub(crate) mod parts;
pub mod pulled;
pub mod registry;
pub mod set;
pub mod storage;
pub mod tar;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;

use anyhow::{Context, Result};
use oci_spec::image::{
    Arch, Config, Descriptor, DescriptorBuilder, ImageConfigurationBuilder, ImageIndexBuilder,
    ImageManifest, ImageManifestBuilder, MediaType, Os, PlatformBuilder, RootFsBuilder,
    Sha256Digest,
};
use sha2::{Digest, Sha256};

use self::registry::{Source, Storage};
use self::tar::Tar;
use crate::shell::capture;

/// An image: its reference and its blobs in memory.
pub struct Image {
    /// Full name, for example `pintle.test/box:1`.
    pub reference: String,
    manifest: Vec<u8>,
    config: Vec<u8>,
    layers: Vec<Vec<u8>>,
}

impl Image {
    /// Puts layers and configuration together under a name.
    pub fn new(reference: &str, config: Config, layers: Vec<Vec<u8>>) -> Result<Self> {
        let blobs: Vec<Blob> = layers.iter().map(|l| Blob::of(l)).collect();
        let config = config_blob(config, &blobs)?;
        let manifest = manifest_blob(&Blob::of(&config), &blobs)?;
        Ok(Self { reference: reference.to_owned(), manifest, config, layers })
    }

    /// The manifest's digest, `sha256:...`, for a pull by digest.
    pub fn digest(&self) -> String {
        format!("sha256:{}", sha256(&self.manifest))
    }

    /// Puts the image into a docker-registry's storage folder as `repository:tag`.
    pub fn write_registry(&self, storage: &Path, repository: &str, tag: &str) -> Result<()> {
        let storage = Storage::at(storage);
        for blob in self.blobs() {
            storage.put(repository, &sha256(blob), &Source::Bytes(blob))?;
        }
        storage.tag(repository, tag, &sha256(&self.manifest))
    }

    fn blobs(&self) -> impl Iterator<Item = &Vec<u8>> {
        self.layers.iter().chain([&self.config, &self.manifest])
    }
}

/// One archive with all the images, layers shared, for `ctr images import`.
pub fn archive(images: &[Image]) -> Result<Vec<u8>> {
    let mut out = Tar::default();
    out.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    let mut manifests = Vec::new();
    for image in images {
        let manifest = Blob::of(&image.manifest);
        let mut entry = with_platform(manifest.descriptor(MediaType::ImageManifest)?)?;
        entry.set_annotations(Some(HashMap::from([(
            layout::NAME.to_owned(),
            image.reference.clone(),
        )])));
        manifests.push(entry);
    }
    let index = ImageIndexBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageIndex)
        .manifests(manifests)
        .build()?;
    out.file("index.json", 0o644, &serde_json::to_vec(&index)?);
    let mut written = std::collections::BTreeSet::new();
    for blob in images.iter().flat_map(Image::blobs) {
        let sha = sha256(blob);
        if written.insert(sha.clone()) {
            out.file(&format!("blobs/sha256/{sha}"), 0o644, blob);
        }
    }
    Ok(out.finish())
}

/// Lower-case hexadecimal SHA-256.
pub fn sha256(data: &[u8]) -> String {
    Sha256::digest(data).iter().map(|b| format!("{b:02x}")).collect()
}

/// The same of a file of any size.
pub(crate) fn sha256_of_file(path: &Path) -> Result<String> {
    let line = capture(Command::new("sha256sum").arg(path))?;
    Ok(line.split(' ').next().context("a sum")?.to_owned())
}

/// The sum and the length of something that an image refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// Lower-case hexadecimal SHA-256.
    pub sha: String,
    /// Its length.
    pub bytes: u64,
}

impl Blob {
    fn of(data: &[u8]) -> Self {
        Self { sha: sha256(data), bytes: data.len() as u64 }
    }

    fn descriptor(&self, kind: MediaType) -> Result<Descriptor> {
        Ok(DescriptorBuilder::default()
            .media_type(kind)
            .digest(Sha256Digest::from_str(&self.sha)?)
            .size(self.bytes)
            .build()?)
    }
}

/// An image's configuration, for layers that are not compressed.
fn config_blob(config: Config, layers: &[Blob]) -> Result<Vec<u8>> {
    let diff_ids = layers.iter().map(|l| format!("sha256:{}", l.sha)).collect::<Vec<_>>();
    let rootfs = RootFsBuilder::default().typ("layers").diff_ids(diff_ids).build()?;
    let config = ImageConfigurationBuilder::default()
        .architecture(host_arch())
        .os(Os::Linux)
        .config(config)
        .rootfs(rootfs)
        .build()?;
    Ok(serde_json::to_vec(&config)?)
}

fn manifest_blob(config: &Blob, layers: &[Blob]) -> Result<Vec<u8>> {
    let layers = layers.iter().map(|l| l.descriptor(MediaType::ImageLayer));
    let manifest: ImageManifest = ImageManifestBuilder::default()
        .schema_version(2u32)
        .media_type(MediaType::ImageManifest)
        .config(config.descriptor(MediaType::ImageConfig)?)
        .layers(layers.collect::<Result<Vec<_>>>()?)
        .build()?;
    Ok(serde_json::to_vec(&manifest)?)
}

/// Says in an index for which machines a manifest is.
fn with_platform(mut entry: Descriptor) -> Result<Descriptor> {
    let platform = PlatformBuilder::default().architecture(host_arch()).os(Os::Linux);
    entry.set_platform(Some(platform.build()?));
    Ok(entry)
}

fn host_arch() -> Arch {
    if cfg!(target_arch = "aarch64") { Arch::ARM64 } else { Arch::Amd64 }
}

fn write(path: &Path, data: &[u8]) -> Result<()> {
    let parent = path.parent().expect("a blob lies inside the storage folder");
    fs::create_dir_all(parent).with_context(|| format!("create {}", parent.display()))?;
    fs::write(path, data).with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(text: &[u8]) -> Image {
        let mut layer = Tar::default();
        layer.file("hello", 0o644, text);
        Image::new("pintle.test/x:1", Config::default(), vec![layer.finish()]).expect("an image")
    }

    #[test]
    fn equal_input_gives_equal_digests_and_other_input_another() {
        assert_eq!(image(b"a").digest(), image(b"a").digest());
        assert_ne!(image(b"a").digest(), image(b"b").digest());
    }

    #[test]
    fn registry_folder_holds_every_blob_under_its_digest() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let image = image(b"a");
        image.write_registry(dir.path(), "team/x", "1").expect("written");
        for blob in image.blobs() {
            let sha = sha256(blob);
            let path = format!("docker/registry/v2/blobs/sha256/{}/{sha}/data", &sha[..2]);
            assert_eq!(&fs::read(dir.path().join(path)).expect("the blob"), blob);
        }
    }
}
