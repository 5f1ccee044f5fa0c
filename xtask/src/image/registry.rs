//! The folder tree that a docker-registry serves.
//!
//! Written straight to disk: a push would need the image in a containerd first, and a test of pulls
//! wants it to be absent there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci_spec::image::{ImageIndex, ImageManifest};

use super::{layout, write};

/// A registry's storage folder.
pub struct Storage {
    root: PathBuf,
}

/// Source of a blob.
pub enum Source<'a> {
    /// Its bytes.
    Bytes(&'a [u8]),
    /// A file on the same file system, which never changes.
    File(&'a Path),
}

impl Storage {
    /// The storage in a folder, which need not be there yet.
    pub fn at(dir: &Path) -> Self {
        Self { root: dir.join("docker/registry/v2") }
    }

    /// Puts a blob of a repository under its sum.
    pub fn put(&self, repository: &str, sha: &str, source: &Source) -> Result<()> {
        let path = self.root.join(format!("blobs/sha256/{}/{sha}/data", &sha[..2]));
        match source {
            Source::Bytes(bytes) => write(&path, bytes)?,
            Source::File(_) if path.exists() => {}
            Source::File(file) => {
                fs::create_dir_all(path.parent().expect("it has a folder"))?;
                fs::hard_link(file, &path)
                    .or_else(|_| fs::copy(file, &path).map(drop))
                    .with_context(|| format!("copy {}", file.display()))?;
            }
        }
        self.link(repository, &format!("_layers/sha256/{sha}"), sha)
    }

    /// Tags a stored manifest.
    pub fn tag(&self, repository: &str, tag: &str, sha: &str) -> Result<()> {
        self.link(repository, &format!("_manifests/revisions/sha256/{sha}"), sha)?;
        self.link(repository, &format!("_manifests/tags/{tag}/index/sha256/{sha}"), sha)?;
        self.link(repository, &format!("_manifests/tags/{tag}/current"), sha)
    }

    fn link(&self, repository: &str, path: &str, sha: &str) -> Result<()> {
        let dir = self.root.join("repositories").join(repository).join(path);
        write(&dir.join("link"), format!("sha256:{sha}").as_bytes())
    }

    /// Puts every image of an OCI layout there, under its name without the registry's.
    pub fn add_layout(&self, dir: &Path) -> Result<()> {
        for (name, sha) in images(dir)? {
            let (repository, tag) =
                split(&name).with_context(|| format!("{name} is not HOST/REPOSITORY:TAG"))?;
            self.add(dir, &sha, repository, tag)?;
        }
        Ok(())
    }

    /// Stores the first image of this repository in an OCI layout again, under another name.
    pub fn add_as(&self, dir: &Path, of: &str, repository: &str, tag: &str) -> Result<()> {
        let is_it = |name: &str| split(name).is_some_and(|(repository, _)| repository == of);
        let found = images(dir)?.into_iter().find(|(name, _)| is_it(name));
        let (_, sha) = found.with_context(|| format!("no image of the layout is {of}"))?;
        self.add(dir, &sha, repository, tag)
    }

    fn add(&self, dir: &Path, sha: &str, repository: &str, tag: &str) -> Result<()> {
        let blob = |sha: &str| dir.join("blobs/sha256").join(sha);
        let manifest: ImageManifest = serde_json::from_slice(&fs::read(blob(sha))?)?;
        let parts = manifest.layers().iter().chain([manifest.config()]);
        for sha in parts.map(|part| part.digest().digest()).chain([sha]) {
            self.put(repository, sha, &Source::File(&blob(sha)))?;
        }
        self.tag(repository, tag, sha)
    }
}

/// The images of an OCI layout: names, and sums of their manifests.
fn images(dir: &Path) -> Result<Vec<(String, String)>> {
    let index = fs::read(dir.join("index.json")).context("read the layout's index")?;
    let index: ImageIndex = serde_json::from_slice(&index)?;
    let named = index.manifests().iter().map(|entry| {
        let name = entry.annotations().as_ref().and_then(|all| all.get(layout::NAME));
        let name = name.context("an image of the layout has no name")?;
        Ok((name.clone(), entry.digest().digest().to_owned()))
    });
    named.collect()
}

/// `HOST/REPOSITORY:TAG` without the host.
fn split(name: &str) -> Option<(&str, &str)> {
    name.split_once('/')?.1.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::layout::tests::of_one_layer;

    #[test]
    fn images_of_a_layout_are_served_under_their_names_without_the_registry_host() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let to = dir.path().join("to");
        let layer = of_one_layer(&to, &["pintle.test/team/x:1"]);
        let served = dir.path().join("served");
        Storage::at(&served).add_layout(&to).expect("served");
        let again = Storage::at(&served).add_as(&to, "team/x", "team/y", "2");
        again.expect("served under another name");
        assert!(Storage::at(&served).add_as(&to, "team/z", "team/y", "2").is_err());
        let root = served.join("docker/registry/v2");
        let tag = "repositories/team/x/_manifests/tags/1/current/link";
        let other = root.join("repositories/team/y/_manifests/tags/2/current/link");
        assert_eq!(fs::read(other).expect("it"), fs::read(root.join(tag)).expect("the tag"));
        let link = fs::read_to_string(root.join(tag)).expect("the tag");
        let sha = link.strip_prefix("sha256:").expect("a sum");
        for sha in [sha, &layer.sha] {
            let data = format!("blobs/sha256/{}/{sha}/data", &sha[..2]);
            let bytes = fs::read(root.join(data)).expect("the blob");
            assert_eq!(crate::image::sha256(&bytes), sha);
            let link = format!("repositories/team/x/_layers/sha256/{sha}/link");
            assert!(root.join(link).exists());
        }
    }

    #[test]
    fn a_name_without_a_host_or_a_tag_is_refused() {
        assert_eq!(split("host/a/b:1"), Some(("a/b", "1")));
        assert_eq!(split("b:1"), None);
        assert_eq!(split("host/b"), None);
    }
}
