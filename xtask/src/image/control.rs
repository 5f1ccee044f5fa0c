//! Images of the control plane, under the names that kubeadm gives to its static pods.
//!
//! Input: the combined program of upstream's components. Output: an OCI layout in the cache whose
//! images share one layer with that program; the pod's command chooses the component. Each has the
//! tag of an earlier patch release, too, so that a cluster can be upgraded.
//! etcd and the sandbox's image are among those of `e2e`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use anyhow::Result;

use super::e2e::{config, copy, layer};
use super::layout::Layout;
use super::sha256;
use crate::cache;
use crate::upstream::{self, Program, VERSION};

/// Changes whenever the recipe below does.
const RECIPE: &str = "2";
/// The release from which a cluster is upgraded.
pub const EARLIER: &str = "v1.36.2";
/// The components that are static pods.
const COMPONENTS: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// The layout's folder.
pub fn layout() -> Result<PathBuf> {
    let digest = sha256(format!("{RECIPE} {}", upstream::stamp()?).as_bytes());
    cache::content_entry("control-images", &digest, |staging, _| {
        let combined = fs::canonicalize(Program::Components.ensure()?.join(COMPONENTS[0]))?;
        let mut layout = Layout::create(staging)?;
        let work = staging.join("work");
        let programs = layer(&layout, &work, |root| {
            copy(root, "usr/local/bin/components", &combined, 0o755)?;
            COMPONENTS.iter().try_for_each(|name| {
                Ok(symlink("components", root.join("usr/local/bin").join(name))?)
            })
        })?;
        for (name, tag) in COMPONENTS.into_iter().flat_map(|n| [(n, EARLIER), (n, VERSION)]) {
            let reference = format!("registry.k8s.io/{name}:{tag}");
            layout.image(&reference, config().build()?, std::slice::from_ref(&programs))?;
        }
        cache::remove(&work)?;
        layout.finish()
    })
}
