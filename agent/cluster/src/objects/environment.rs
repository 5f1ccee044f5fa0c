//! The objects that one container's variables refer to, gathered before they are computed.
//!
//! A pure function computes the variables; so every object that it may need is fetched first. A
//! container waits for the services, except in static pods: one of these may be the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Service};
use pintle_agent_core::env::variables::LookupError;
use pintle_agent_core::types::PodUid;

use super::Objects;
use super::object::KeptObject;
use super::references::{ObjectName, ReferenceKind};

/// How long a container waits for the services to become known.
const SERVICES_WAIT_MAX: Duration = Duration::from_secs(10);

type Found = BTreeMap<ObjectName, Result<Rc<KeptObject>, LookupError>>;

/// The objects that a container's variables refer to.
#[derive(Debug, Default)]
pub struct ContainerObjects {
    found: Found,
    services: Option<Vec<Service>>,
    api: bool,
}

impl Objects {
    /// Gathers the objects that a container of a registered pod refers to.
    pub async fn environment(
        &self,
        uid: &PodUid,
        pod: &Pod,
        container: &Container,
    ) -> ContainerObjects {
        let Some(shared) = &self.0 else {
            return ContainerObjects { services: Some(Vec::new()), ..ContainerObjects::default() };
        };
        let namespace = pintle_api_types::pod::namespace(pod);
        let mut found = Found::new();
        for key in needed(namespace, container) {
            let object = self.object(uid, &key).await;
            found.insert(key, object);
        }
        let patience = match pintle_api_types::pod::is_static(pod) {
            true => Duration::ZERO,
            false => SERVICES_WAIT_MAX,
        };
        let services = shared.services.of(namespace, patience).await;
        ContainerObjects { found, services, api: true }
    }
}

/// The objects that a container's variables refer to.
fn needed(namespace: &str, container: &Container) -> BTreeSet<ObjectName> {
    let mut keys = BTreeSet::new();
    let mut add = |kind, name: &str| {
        keys.insert(ObjectName::new(kind, namespace, name));
    };
    for source in container.env_from.iter().flatten() {
        if let Some(reference) = &source.config_map_ref {
            add(ReferenceKind::ConfigMap, &reference.name);
        }
        if let Some(reference) = &source.secret_ref {
            add(ReferenceKind::Secret, &reference.name);
        }
    }
    let variables = container.env.iter().flatten();
    for source in variables.filter_map(|variable| variable.value_from.as_ref()) {
        if let Some(reference) = &source.config_map_key_ref {
            add(ReferenceKind::ConfigMap, &reference.name);
        }
        if let Some(reference) = &source.secret_key_ref {
            add(ReferenceKind::Secret, &reference.name);
        }
    }
    keys
}

impl ContainerObjects {
    fn find(&self, key: &ObjectName) -> Result<&KeptObject, LookupError> {
        match self.found.get(key) {
            Some(Ok(object)) => Ok(object),
            Some(Err(error)) => Err(error.clone()),
            None if self.api => Err(LookupError::NotFound),
            None => Err(LookupError::NoApi),
        }
    }

    /// A config map.
    pub fn config_map(&self, namespace: &str, name: &str) -> Result<&ConfigMap, LookupError> {
        let object = self.find(&ObjectName::new(ReferenceKind::ConfigMap, namespace, name))?;
        object.config_map().ok_or(LookupError::NotFound)
    }

    /// A secret.
    pub fn secret(&self, namespace: &str, name: &str) -> Result<&Secret, LookupError> {
        let object = self.find(&ObjectName::new(ReferenceKind::Secret, namespace, name))?;
        object.secret().ok_or(LookupError::NotFound)
    }

    /// The services in the pod's environment; `None` while they are not known.
    pub fn services(&self) -> Option<&[Service]> {
        self.services.as_deref()
    }
}
