//! Services.

use pintle_api_types::symbol::Symbol;
use serde::Deserialize;

use super::facts;
use crate::meta::{Meta, or_default};

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its metadata.
    pub metadata: Meta,
    /// The desired state.
    pub spec: ServiceSpec,
}
facts!(Service, SERVICES, whole: false);

/// The spec of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type")]
    pub kind: Symbol,
    /// Its ports.
    #[serde(deserialize_with = "or_default")]
    pub ports: Box<[ServicePort]>,
    /// A load balancer gets node ports.
    pub allocate_load_balancer_node_ports: Option<bool>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// The port on nodes; 0 when it has none.
    pub node_port: i32,
}
