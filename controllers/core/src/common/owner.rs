//! References between an object and its controller.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/controller_ref.go

use pintle_api_types::kind::Kind;
use serde_json::{Value, json};

use crate::meta::Meta;

/// The reference by which an object names its controller.
// k8s: staging/src/k8s.io/apimachinery/pkg/apis/meta/v1/controller_ref.go NewControllerRef
pub fn controller_reference(kind: Kind, owner: &Meta) -> Value {
    json!({
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "name": &*owner.name,
        "uid": owner.uid.as_str(),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}
