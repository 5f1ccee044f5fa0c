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
