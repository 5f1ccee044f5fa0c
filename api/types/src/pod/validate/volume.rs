//! Volumes and their mounts.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    Container, DownwardAPIVolumeFile, KeyToPath, PodSpec, ProjectedVolumeSource, Volume,
    VolumeMount,
};
use serde_json::Value;

use super::{Errors, FieldError, Path, names};
use crate::quantity::Amount;

/// Types of a hostPath volume.
const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

/// All volumes; gives their names.
// k8s: pkg/apis/core/validation/validation.go ValidateVolumes
pub(super) fn check_all<'a>(
    errors: &mut Errors,
    path: &Path,
    spec: &'a PodSpec,
) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        let path = path.index(index);
        let name = volume.name.as_str();
        if name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        } else {
            errors.check(&path.child("name"), name, names::label);
        }
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(path.child("name"), name));
        }
        check_sources(errors, &path, volume);
    }
    seen
}

/// Exactly one source, and that one right.
// k8s: pkg/apis/core/validation/validation.go validateVolumeSource
fn check_sources(errors: &mut Errors, path: &Path, volume: &Volume) {
    let fields = serde_json::to_value(volume).unwrap_or(Value::Null);
    let sources = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
    let mut sources = sources.filter(|name| *name != "name");
    if sources.next().is_none() {
        errors.push(FieldError::required(path, "must specify a volume type"));
    }
    for second in sources {
        let detail = "may not specify more than 1 volume type";
        errors.push(FieldError::forbidden(path.child(second), detail));
    }
    if let Some(host_path) = &volume.host_path {
        check_host_path(
            errors,
            &path.child("hostPath"),
            &host_path.path,
            host_path.type_.as_deref(),
        );
    }
    if let Some(size) = volume.empty_dir.as_ref().and_then(|dir| dir.size_limit.as_ref())
        && Amount::parse(&size.0).is_none_or(Amount::is_negative)
    {
        let path = path.child("emptyDir").child("sizeLimit");
        errors
            .push(FieldError::forbidden(path, "SizeLimit field must be a valid resource quantity"));
    }
    if let Some(config_map) = &volume.config_map {
        let path = path.child("configMap");
        check_mode(errors, &path.child("defaultMode"), config_map.default_mode);
        check_keys(errors, &path.child("items"), config_map.items.as_deref());
    }
    if let Some(secret) = &volume.secret {
        let path = path.child("secret");
        if secret.secret_name.as_deref().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(path.child("secretName"), ""));
        }
        check_mode(errors, &path.child("defaultMode"), secret.default_mode);
        check_keys(errors, &path.child("items"), secret.items.as_deref());
    }
    if let Some(downward) = &volume.downward_api {
        let path = path.child("downwardAPI");
        check_mode(errors, &path.child("defaultMode"), downward.default_mode);
        check_downward(errors, &path, downward.items.as_deref());
    }
    if let Some(projected) = &volume.projected {
        check_projected(errors, &path.child("projected"), projected);
    }
    check_remote_sources(errors, path, volume);
}

fn check_remote_sources(errors: &mut Errors, path: &Path, volume: &Volume) {
    let mut require = |path: Path, value: &str| {
        if value.is_empty() {
            errors.push(FieldError::required(path, ""));
        }
    };
    if let Some(nfs) = &volume.nfs {
        require(path.child("nfs").child("server"), &nfs.server);
        require(path.child("nfs").child("path"), &nfs.path);
        if !nfs.path.is_empty() && !nfs.path.starts_with('/') {
            let path = path.child("nfs").child("path");
            errors.push(FieldError::invalid(path, nfs.path.as_str(), "must be an absolute path"));
        }
    } else if let Some(image) = &volume.image {
        let reference = image.reference.as_deref().unwrap_or_default();
        require(path.child("image").child("reference"), reference);
        let policies = ["Always", "IfNotPresent", "Never"];
        let path = path.child("image").child("pullPolicy");
        errors.one_of(&path, image.pull_policy.as_deref(), &policies);
    } else if let Some(claim) = &volume.persistent_volume_claim {
        require(path.child("persistentVolumeClaim").child("claimName"), &claim.claim_name);
    } else if let Some(csi) = &volume.csi {
        require(path.child("csi").child("driver"), &csi.driver);
    }
}

// k8s: pkg/apis/core/validation/validation.go validateHostPathVolumeSource
fn check_host_path(errors: &mut Errors, path: &Path, host_path: &str, kind: Option<&str>) {
    if host_path.is_empty() {
        errors.push(FieldError::required(path.child("path"), ""));
    } else {
        check_no_back_steps(errors, &path.child("path"), host_path);
    }
    if let Some(kind) = kind.filter(|kind| !HOST_PATH_TYPES.contains(kind)) {
        errors.push(FieldError::unsupported(path.child("type"), kind, &HOST_PATH_TYPES));
    }
}

fn check_no_back_steps(errors: &mut Errors, path: &Path, value: &str) {
    if value.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, value, "must not contain '..'"));
    }
}

/// A relative path without steps back.
// k8s: pkg/apis/core/validation/validation.go validateLocalDescendingPath
pub(super) fn check_local_path(errors: &mut Errors, path: &Path, value: &str) {
    if value.starts_with('/') {
        errors.push(FieldError::invalid(path, value, "must be a relative path"));
    }
    check_no_back_steps(errors, path, value);
}

/// A path of a file in a volume.
// k8s: pkg/apis/core/validation/validation.go validateLocalNonReservedPath
fn check_file_path(errors: &mut Errors, path: &Path, value: &str) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
        return;
    }
    check_local_path(errors, path, value);
    if value.starts_with("..") && !value.starts_with("../") && value != ".." {
        errors.push(FieldError::invalid(path, value, "must not start with '..'"));
    }
}

fn check_mode(errors: &mut Errors, path: &Path, mode: Option<i32>) {
    if let Some(mode) = mode.filter(|mode| !(0..=0o777).contains(mode)) {
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(path, mode, detail));
    }
}

fn check_keys(errors: &mut Errors, path: &Path, items: Option<&[KeyToPath]>) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        let path = path.index(index);
        if item.key.is_empty() {
            errors.push(FieldError::required(path.child("key"), ""));
        }
        check_file_path(errors, &path.child("path"), &item.path);
        check_mode(errors, &path.child("mode"), item.mode);
    }
}

fn check_downward(errors: &mut Errors, path: &Path, items: Option<&[DownwardAPIVolumeFile]>) {
    for (index, item) in items.into_iter().flatten().enumerate() {
        // Upstream leaves out the list's name and index here; the index is kept for the user.
        let path = path.child("items").index(index);
        check_file_path(errors, &path.child("path"), &item.path);
        check_mode(errors, &path.child("mode"), item.mode);
        match (&item.field_ref, &item.resource_field_ref) {
            (Some(_), Some(_)) => {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::new(&path, "Invalid value", detail));
            }
            (Some(field), None) => {
                super::container::check_version(errors, &path.child("fieldRef"), field);
                check_volume_field(errors, &path.child("fieldRef"), &field.field_path);
            }
            (None, Some(resource)) => {
                let path = path.child("resourceFieldRef");
                super::container::check_resource_field(errors, &path, resource, true);
            }
            (None, None) => {
                let detail = "one of fieldRef and resourceFieldRef is required";
                errors.push(FieldError::required(&path, detail));
            }
        }
    }
}

/// Fields of the pod that a file may hold; labels and annotations also one by one.
// k8s: pkg/apis/core/validation/validation.go validateObjectFieldSelector
fn check_volume_field(errors: &mut Errors, path: &Path, field: &str) {
    let path = path.child("fieldPath");
    let whole = ["metadata.annotations", "metadata.labels"];
    let plain = ["metadata.name", "metadata.namespace", "metadata.uid"];
    let key = field.strip_suffix("']").and_then(|field| field.split_once("['"));
    let is_known = match key {
        Some((map, _)) => whole.contains(&map),
        None => whole.contains(&field) || plain.contains(&field),
    };
    if field.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !is_known {
        let supported = [whole.as_slice(), &plain].concat();
        errors.push(FieldError::unsupported(path, field, &supported));
    }
}

fn check_projected(errors: &mut Errors, path: &Path, projected: &ProjectedVolumeSource) {
    check_mode(errors, &path.child("defaultMode"), projected.default_mode);
    for (index, source) in projected.sources.iter().flatten().enumerate() {
        let path = path.child("sources").index(index);
        let fields = serde_json::to_value(source).unwrap_or(Value::Null);
        let mut names = fields.as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        if names.next().is_none() {
            let detail = "must specify a projected volume source";
            errors.push(FieldError::required(&path, detail));
        }
        for second in names {
            let detail = "may not specify more than 1 volume type";
            errors.push(FieldError::forbidden(path.child(second), detail));
        }
        if let Some(downward) = &source.downward_api {
            check_downward(errors, &path.child("downwardAPI"), downward.items.as_deref());
        }
        if let Some(token) = &source.service_account_token {
            let path = path.child("serviceAccountToken");
            check_file_path(errors, &path.child("path"), &token.path);
            if let Some(seconds) = token.expiration_seconds.filter(|seconds| *seconds < 600) {
                let detail = "may not specify a duration less than 10 minutes";
                errors.push(FieldError::invalid(path.child("expirationSeconds"), seconds, detail));
            }
        }
    }
}

/// Mounts of a container.
// k8s: pkg/apis/core/validation/validation.go ValidateVolumeMounts
pub(super) fn check_mounts(
    errors: &mut Errors,
    path: &Path,
    container: &Container,
    volumes: &BTreeSet<&str>,
) {
    let privileged =
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    let mut paths = BTreeSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.index(index);
        if mount.name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        } else if !volumes.contains(mount.name.as_str()) {
            errors.push(FieldError::not_found(path.child("name"), &mount.name));
        }
        if mount.mount_path.is_empty() {
            errors.push(FieldError::required(path.child("mountPath"), ""));
        }
        if !paths.insert(mount.mount_path.as_str()) {
            let value = mount.mount_path.as_str();
            errors.push(FieldError::invalid(path.child("mountPath"), value, "must be unique"));
        }
        check_sub_paths(errors, &path, mount);
        check_propagation(errors, &path, mount, privileged);
    }
}

fn check_sub_paths(errors: &mut Errors, path: &Path, mount: &VolumeMount) {
    let own = |value: &Option<String>| value.clone().filter(|value| !value.is_empty());
    let (sub_path, sub_path_expr) = (own(&mount.sub_path), own(&mount.sub_path_expr));
    if let Some(value) = &sub_path {
        check_local_path(errors, &path.child("subPath"), value);
    }
    if let Some(value) = &sub_path_expr {
        if sub_path.is_some() {
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(path.child("subPathExpr"), value.as_str(), detail));
        }
        check_local_path(errors, &path.child("subPathExpr"), value);
    }
}

fn check_propagation(errors: &mut Errors, path: &Path, mount: &VolumeMount, privileged: bool) {
    let propagation = mount.mount_propagation.as_deref();
    let supported = ["Bidirectional", "HostToContainer", "None"];
    if propagation.is_some() {
        errors.one_of(&path.child("mountPropagation"), propagation, &supported);
    }
    if propagation == Some("Bidirectional") && !privileged {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(path.child("mountPropagation"), detail));
    }
    let recursive = mount.recursive_read_only.as_deref();
    if recursive.is_some() {
        let supported = ["Disabled", "Enabled", "IfPossible"];
        errors.one_of(&path.child("recursiveReadOnly"), recursive, &supported);
    }
    if matches!(recursive, Some("Enabled" | "IfPossible")) {
        let path = path.child("recursiveReadOnly");
        if mount.read_only != Some(true) {
            let detail = "may only be specified when readOnly is true";
            errors.push(FieldError::forbidden(&path, detail));
        }
        if propagation.is_some_and(|propagation| propagation != "None") {
            let detail = "may only be specified when mountPropagation is None or not specified";
            errors.push(FieldError::forbidden(&path, detail));
        }
    }
}
