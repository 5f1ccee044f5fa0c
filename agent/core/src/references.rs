//! Which config maps and secrets a pod refers to: pure.
//!
//! Input: a pod. Output: each object once, and whether files of the pod show its content, which
//! then have to be written again when it changes. A variable keeps its value until the container
//! restarts. References by way of other objects (claims, storage classes) are not among them.
// k8s: pkg/api/v1/pod/util.go VisitPodSecretNames, VisitPodConfigmapNames

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, Pod, Volume};

/// Kind of a named object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ReferenceKind {
    /// `ConfigMap`.
    ConfigMap,
    /// `Secret`.
    Secret,
}

impl ReferenceKind {
    /// Name of the resource in messages: `configmap`.
    pub fn singular(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        }
    }

    /// Name of the resource in paths: `configmaps`.
    pub fn plural(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
        }
    }
}

/// Names an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// Kind.
    pub kind: ReferenceKind,
    /// Namespace: always the pod's own.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectName {
    /// Of these parts.
    pub fn new(kind: ReferenceKind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.singular(), self.namespace, self.name)
    }
}

/// How a pod uses an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReferenceUse {
    /// A volume shows its content.
    pub files: bool,
    /// Images are pulled with it.
    pub pulls: bool,
}

const VARIABLE: ReferenceUse = ReferenceUse { files: false, pulls: false };
const FILES: ReferenceUse = ReferenceUse { files: true, pulls: false };

/// Everything that a pod refers to.
pub type References = BTreeMap<ObjectName, ReferenceUse>;

/// The objects that a pod refers to.
pub fn of(pod: &Pod) -> References {
    let mut found = FoundReferences {
        namespace: pintle_api_types::pod::namespace(pod),
        references: References::new(),
    };
    let spec = pintle_api_types::pod::spec(pod);
    for reference in spec.image_pull_secrets.iter().flatten() {
        found.add(
            ReferenceKind::Secret,
            &reference.name,
            ReferenceUse { pulls: true, ..ReferenceUse::default() },
        );
    }
    for (_, container) in pintle_api_types::pod::containers::all(spec) {
        found.variables(container.env_from.as_deref(), container.env.as_deref());
    }
    for container in spec.ephemeral_containers.iter().flatten() {
        found.variables(container.env_from.as_deref(), container.env.as_deref());
    }
    for volume in spec.volumes.iter().flatten() {
        found.volume(volume);
    }
    found.references
}

struct FoundReferences<'a> {
    namespace: &'a str,
    references: References,
}

impl FoundReferences<'_> {
    fn add(&mut self, kind: ReferenceKind, name: &str, usage: ReferenceUse) {
        // Validation lets empty names of pull secrets pass.
        if name.is_empty() {
            return;
        }
        let key = ObjectName::new(kind, self.namespace, name);
        let known = self.references.entry(key).or_default();
        known.files |= usage.files;
        known.pulls |= usage.pulls;
    }

    fn variables(&mut self, from: Option<&[EnvFromSource]>, env: Option<&[EnvVar]>) {
        for source in from.unwrap_or_default() {
            if let Some(reference) = &source.config_map_ref {
                self.add(ReferenceKind::ConfigMap, &reference.name, VARIABLE);
            }
            if let Some(reference) = &source.secret_ref {
                self.add(ReferenceKind::Secret, &reference.name, VARIABLE);
            }
        }
        for source in env.unwrap_or_default().iter().filter_map(|v| v.value_from.as_ref()) {
            if let Some(reference) = &source.config_map_key_ref {
                self.add(ReferenceKind::ConfigMap, &reference.name, VARIABLE);
            }
            if let Some(reference) = &source.secret_key_ref {
                self.add(ReferenceKind::Secret, &reference.name, VARIABLE);
            }
        }
    }

    fn volume(&mut self, volume: &Volume) {
        if let Some(source) = &volume.config_map {
            self.add(ReferenceKind::ConfigMap, &source.name, FILES);
        }
        if let Some(source) = &volume.secret {
            self.add(
                ReferenceKind::Secret,
                source.secret_name.as_deref().unwrap_or_default(),
                FILES,
            );
        }
        let projections = volume.projected.iter().flat_map(|p| p.sources.iter().flatten());
        for source in projections {
            if let Some(reference) = &source.config_map {
                self.add(ReferenceKind::ConfigMap, &reference.name, FILES);
            }
            if let Some(reference) = &source.secret {
                self.add(ReferenceKind::Secret, &reference.name, FILES);
            }
        }
    }
}
