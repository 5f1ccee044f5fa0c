//! Name, namespace, labels and annotations.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Errors, FieldError, Path, names};

/// Bytes of all annotations of an object together.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

// k8s: staging/src/k8s.io/apimachinery/pkg/api/validation/objectmeta.go ValidateObjectMeta
pub(crate) fn check(errors: &mut Errors, metadata: &ObjectMeta) {
    let path = Path::root("metadata");
    match metadata.name.as_deref() {
        None | Some("") => {
            errors
                .push(FieldError::required(path.child("name"), "name or generateName is required"));
        }
        Some(name) => errors.check(&path.child("name"), name, names::subdomain),
    }
    match metadata.namespace.as_deref() {
        None | Some("") => errors.push(FieldError::required(path.child("namespace"), "")),
        Some(namespace) => errors.check(&path.child("namespace"), namespace, names::label),
    }
    check_owners(errors, &path, metadata);
    let labels = path.child("labels");
    for (key, value) in metadata.labels.iter().flatten() {
        errors.check(&labels, key, names::qualified);
        errors.check(&labels, value, names::label_value);
    }
    let annotations = path.child("annotations");
    let mut bytes = 0;
    for (key, value) in metadata.annotations.iter().flatten() {
        // Unlike a label's key, an annotation's may have upper case in its prefix.
        let lower = key.to_lowercase();
        for detail in names::qualified(&lower) {
            errors.push(FieldError::invalid(&annotations, key.as_str(), &detail));
        }
        bytes += key.len() + value.len();
    }
    if bytes > ANNOTATIONS_BYTES_MAX {
        errors.push(FieldError::too_long(&annotations, ANNOTATIONS_BYTES_MAX));
    }
}

/// Checks the fields with which the API server manages the object.
fn check_owners(errors: &mut Errors, path: &Path, metadata: &ObjectMeta) {
    errors.not_negative(&path.child("generation"), metadata.generation);
    if let Some(prefix) = metadata.generate_name.as_deref().filter(|prefix| !prefix.is_empty()) {
        // It may end in a dash, since more follows.
        let name = prefix.strip_suffix('-').map_or(prefix.to_owned(), |start| format!("{start}a"));
        errors.check(&path.child("generateName"), &name, names::subdomain);
    }
    for (index, finalizer) in metadata.finalizers.iter().flatten().enumerate() {
        let path = path.child("finalizers");
        errors.check(&path, finalizer, names::qualified);
        let standard = ["kubernetes", "foregroundDeletion", "orphan"];
        if !finalizer.contains('/') && !standard.contains(&finalizer.as_str()) {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path.index(index), finalizer.as_str(), detail));
        }
    }
    for owner in metadata.owner_references.iter().flatten() {
        let path = path.child("ownerReferences");
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                let path = path.child(field);
                errors.push(FieldError::invalid(path, "", "must not be empty"));
            }
        }
    }
}
