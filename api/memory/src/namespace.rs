//! The life cycle of namespaces.
//!
//! Input: deletions of namespaces. Output: the namespace, which is `Terminating` until its own
//! finalizers are gone; the subresource `finalize` takes them, see [`crate::change`]. Pure.
// k8s: pkg/registry/core/namespace/storage/storage.go Delete

use std::sync::Arc;

use jiff::Timestamp;
use pintle_api_types::kind::{self, Kind};
use pintle_api_types::request::{Answer, ApiError, DeleteOptions, Propagation, Target};
use serde_json::Value;

use crate::server::Server;
use crate::{errors, meta};

/// Namespaces that cannot be deleted.
// k8s: pkg/kubeapiserver/options/plugins.go, plugin namespace/lifecycle
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

impl Server {
    pub(crate) fn delete_namespace(
        &mut self,
        target: &Target,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Answer {
        let name = target.key.name();
        let old = Arc::clone(self.existing(target)?);
        check(target.kind, &old, options)?;
        if IMMORTAL.contains(&name) {
            return Err(errors::forbidden("namespaces", name, "this namespace may not be deleted"));
        }
        if meta::is_deleting(&old) {
            let holds = old["spec"]["finalizers"].as_array().is_some_and(|list| !list.is_empty());
            return match holds {
                true => Ok(Value::clone(&old)),
                false => self.delete_stored(target, options, now),
            };
        }
        let mut object = Value::clone(&old);
        meta::set(&mut object, "deletionTimestamp", meta::time(now).into());
        meta::child(&mut object, "status").insert("phase".to_owned(), "Terminating".into());
        set_collector_finalizer(&mut object, options.propagation);
        Ok(Value::clone(&*self.write(kind::NAMESPACES, object)))
    }
}

fn check(kind: Kind, object: &Value, options: &DeleteOptions) -> Result<(), ApiError> {
    let check = |asked: &Option<String>, stored: &str, what: &str| match asked {
        Some(asked) if asked != stored => {
            let why = format!(
                "Precondition failed: {what} in precondition: {asked}, {what} in object meta: \
                 {stored}"
            );
            Err(errors::conflict(kind.plural, meta::name(object), &why))
        }
        _ => Ok(()),
    };
    check(&options.uid, meta::text(object, "uid"), "UID")?;
    check(&options.version, meta::version(object), "ResourceVersion")
}

fn set_collector_finalizer(object: &mut Value, propagation: Option<Propagation>) {
    let Some(propagation) = propagation else { return };
    let mut finalizers = meta::finalizers(object);
    finalizers.retain(|one| one != "orphan" && one != "foregroundDeletion");
    match propagation {
        Propagation::Orphan => finalizers.push("orphan".to_owned()),
        Propagation::Foreground => finalizers.push("foregroundDeletion".to_owned()),
        Propagation::Background => {}
    }
    let value = if finalizers.is_empty() { Value::Null } else { finalizers.into() };
    meta::set(object, "finalizers", value);
}
