//! The runtime handler of a pod's RuntimeClass.
//!
//! Read when a sandbox is made, which is rare, rather than watched; the last answer stands in while
//! the API server cannot be asked. Bound: `CLASSES_MAX` remembered.
// k8s: pkg/kubelet/runtimeclass/runtimeclass_manager.go LookupRuntimeHandler

use std::cell::RefCell;
use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use pintle_api::TenantShare;
use serde::Deserialize;

use super::Objects;
use super::wire::{self, WireError};

/// Number of cached classes.
const CLASSES_MAX: usize = 256;

/// Handlers by class.
#[derive(Debug, Default)]
pub(super) struct Classes(RefCell<BTreeMap<String, String>>);

#[derive(Deserialize)]
struct ClassWire {
    handler: String,
}

/// Reason why the handler is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeClassError {
    /// The class does not exist.
    #[error("runtimeclass.node.k8s.io {0:?} not found")]
    NotFound(String),
    /// The class cannot be read, and never was.
    #[error("failed to lookup RuntimeClass {class}: {why}")]
    Read {
        /// Its name.
        class: String,
        /// The fault.
        why: String,
    },
}

impl Objects {
    /// Name of the handler that a pod's sandbox is to run with, empty for the default; or why it
    /// is not known.
    pub async fn runtime_handler(&self, pod: &Pod) -> Result<String, RuntimeClassError> {
        let class =
            pintle_api_types::pod::spec(pod).runtime_class_name.as_deref().unwrap_or_default();
        // The kubelet without an API server takes no notice of the field.
        let Some(shared) = self.0.as_ref().filter(|_| !class.is_empty()) else {
            return Ok(String::new());
        };
        let classes = &shared.classes.0;
        let path = format!("/apis/node.k8s.io/v1/runtimeclasses/{class}");
        match wire::read::<ClassWire>(&shared.client, &TenantShare::default(), &path).await {
            Ok(found) => {
                let mut classes = classes.borrow_mut();
                if classes.len() < CLASSES_MAX || classes.contains_key(class) {
                    classes.insert(class.to_owned(), found.handler.clone());
                }
                Ok(found.handler)
            }
            Err(WireError::NotFound(_)) => {
                classes.borrow_mut().remove(class);
                Err(RuntimeClassError::NotFound(class.to_owned()))
            }
            Err(error) => classes.borrow().get(class).cloned().ok_or_else(|| {
                let (class, why) = (class.to_owned(), error.to_string());
                RuntimeClassError::Read { class, why }
            }),
        }
    }

    /// The handler of a sandbox that exists: the one that was found last, or the default when it
    /// cannot be looked up.
    pub async fn known_handler(&self, pod: &Pod) -> String {
        let class =
            pintle_api_types::pod::spec(pod).runtime_class_name.as_deref().unwrap_or_default();
        let found = self.0.as_ref().and_then(|s| s.classes.0.borrow().get(class).cloned());
        match found {
            Some(handler) => handler,
            // After a restart of the agent.
            None => self.runtime_handler(pod).await.unwrap_or_default(),
        }
    }
}
