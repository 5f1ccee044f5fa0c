//! The fake runtime's images and the registry they come from.
//!
//! An image has an id, tags and digests, and is found by any of them. The registry serves every
//! reference with an image made from its name, unless a test makes a reference missing or
//! password-protected. Pure.

use std::collections::{BTreeMap, BTreeSet};

use tonic::Status;

use crate::v1::{AuthConfig, Image, ImageSpec, Int64Value};

const IMAGE_BYTES: u64 = 4 << 20;

/// Images on the node, and answers of the registry.
#[derive(Clone, Debug, Default)]
pub(super) struct FakeImages {
    present: BTreeMap<String, Image>, // by id
    missing: BTreeSet<String>,
    passwords: BTreeMap<String, String>,
}

impl FakeImages {
    pub(super) fn find(&self, reference: &str) -> Option<&Image> {
        self.present.get(reference).or_else(|| {
            let wanted = normalise(reference);
            let mut images = self.present.values();
            images.find(|image| {
                image.repo_tags.contains(&wanted) || image.repo_digests.contains(&wanted)
            })
        })
    }

    pub(super) fn list(&self, filter: &str) -> Vec<Image> {
        if filter.is_empty() {
            return self.present.values().cloned().collect();
        }
        self.find(filter).cloned().into_iter().collect()
    }

    /// Puts an image on the node and returns the image reference for containers.
    pub(super) fn add(&mut self, reference: &str) -> String {
        let name = normalise(reference);
        let digest = digest(&name);
        let repository = repository(&name);
        let image = self.present.entry(digest.clone()).or_insert_with(|| Image {
            id: digest.clone(),
            repo_digests: vec![format!("{repository}@{digest}")],
            size: IMAGE_BYTES,
            uid: Some(Int64Value { value: 0 }),
            spec: Some(ImageSpec { image: digest.clone(), ..Default::default() }),
            ..Default::default()
        });
        if !name.contains('@') && !image.repo_tags.contains(&name) {
            image.repo_tags.push(name);
        }
        digest
    }

    pub(super) fn pull(
        &mut self,
        reference: &str,
        auth: Option<&AuthConfig>,
    ) -> Result<String, Status> {
        let name = normalise(reference);
        if self.missing.contains(&name) {
            let text = format!("failed to pull and unpack image {name:?}: {name}: not found");
            return Err(Status::not_found(text));
        }
        if let Some(password) = self.passwords.get(&name)
            && auth.is_none_or(|auth| auth.password != *password)
        {
            let text = format!("failed to pull and unpack image {name:?}: 401 Unauthorized");
            return Err(Status::unknown(text));
        }
        Ok(self.add(reference))
    }

    /// Removes the image with all its tags. An unknown one is fine.
    pub(super) fn remove(&mut self, reference: &str) {
        if let Some(id) = self.find(reference).map(|image| image.id.clone()) {
            self.present.remove(&id);
        }
    }

    pub(super) fn set_missing(&mut self, reference: &str) {
        self.missing.insert(normalise(reference));
    }

    pub(super) fn set_password(&mut self, reference: &str, password: &str) {
        self.passwords.insert(normalise(reference), password.to_owned());
    }

    pub(super) fn bytes(&self) -> (u64, u64) {
        (self.present.values().map(|image| image.size).sum(), self.present.len() as u64)
    }
}

/// `busybox` and `docker.io/library/busybox:latest` are the same image.
fn normalise(reference: &str) -> String {
    if reference.starts_with("sha256:") {
        return reference.to_owned();
    }
    let named = match reference.split_once('/') {
        None => format!("docker.io/library/{reference}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => reference.to_owned(),
        Some(_) => format!("docker.io/{reference}"),
    };
    let last = named.rsplit('/').next().unwrap_or_default();
    if last.contains([':', '@']) { named } else { format!("{named}:latest") }
}

fn repository(name: &str) -> &str {
    let name = name.split('@').next().unwrap_or(name);
    let path = name.rfind('/').map_or(0, |slash| slash + 1);
    name[path..].find(':').map_or(name, |colon| &name[..path + colon])
}

/// A stable digest of a name: the one it carries, or its bytes spread over 256 bits (FNV-1a).
fn digest(name: &str) -> String {
    if let Some(at) = name.find("sha256:") {
        return name[at..].to_owned();
    }
    let mut text = "sha256:".to_owned();
    for lane in 0u64..4 {
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325 ^ lane, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        text.push_str(&format!("{hash:016x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_found_by_short_name_full_name_digest_and_id() {
        let mut images = FakeImages::default();
        let id = images.add("busybox");
        let full = images.find("docker.io/library/busybox:latest").expect("by full name");
        assert_eq!(full.id, id);
        let digest = full.repo_digests[0].clone();
        assert!(digest.starts_with("docker.io/library/busybox@sha256:"), "{digest}");
        assert!(images.find(&digest).is_some() && images.find(&id).is_some());
        assert!(images.find("busybox:1.36").is_none());
        images.remove("busybox:latest");
        assert!(images.find(&id).is_none());
    }

    #[test]
    fn image_reference_with_a_registry_keeps_the_registry() {
        assert_eq!(normalise("localhost:5000/a/b:1"), "localhost:5000/a/b:1");
        assert_eq!(normalise("localhost/a"), "localhost/a:latest");
        assert_eq!(normalise("a/b"), "docker.io/a/b:latest");
        assert_eq!(repository("localhost:5000/a/b:1"), "localhost:5000/a/b");
    }

    #[test]
    fn fake_registry_refuses_missing_images_and_wrong_passwords() {
        let mut images = FakeImages::default();
        images.set_missing("nothing:1");
        images.set_password("private", "right");
        assert_eq!(
            images.pull("nothing:1", None).expect_err("missing").code(),
            tonic::Code::NotFound
        );
        let auth = |password: &str| AuthConfig { password: password.into(), ..Default::default() };
        assert!(images.pull("private", None).is_err());
        assert!(images.pull("private", Some(&auth("wrong"))).is_err());
        assert!(images.pull("private", Some(&auth("right"))).is_ok());
    }
}
