//! Extenders: HTTP servers that filter, score, choose victims and bind.
//!
//! ```text
//!   cycle ─Command::Consult─> dispatcher ─> filter, one after the other ─> prioritize
//!     ^────────────────────── Consulted ─────────────────────────────────────┘
//! ```
//! Input: the configuration; for a pod the nodes that pass all filters. Output: the nodes left,
//! reasons for the others, scores to add. Owner: the dispatcher has the connections; the rest is
//! pure. Bounds: one pod at a time, `httpTimeout` for an answer; `ANSWER_BYTES` of the dispatcher.
// k8s: pkg/scheduler/extender.go

pub mod consulted;
#[cfg(test)]
mod tests;
pub mod wire;

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Node, Pod};
use pintle_api_types::duration::GoDuration;
use serde::Deserialize;

use crate::pod_fields::PodRef;

/// Default limit of the wait for an answer.
// k8s: pkg/scheduler/extender.go DefaultExtenderTimeout
const TIMEOUT: Duration = Duration::from_secs(5);

/// Configuration of an extender.
// k8s: staging/src/k8s.io/kube-scheduler/config/v1/types.go Extender
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Extender {
    /// Its URL: `http://HOST:PORT/PATH`.
    pub url_prefix: String,
    /// Path of the filter verb; empty if it does not filter.
    pub filter_verb: String,
    /// Path of the preempt verb.
    pub preempt_verb: String,
    /// Path of the prioritize verb.
    pub prioritize_verb: String,
    /// Weight of its scores.
    pub weight: i64,
    /// Path of the bind verb.
    pub bind_verb: String,
    /// Use TLS; without a CA in `tls_config` any certificate is accepted.
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    /// Trusted CAs and client certificate.
    pub tls_config: Option<TlsConfig>,
    /// Limit of the wait for an answer.
    pub http_timeout: Option<GoDuration>,
    /// It caches nodes, and is sent names alone.
    pub node_cache_capable: bool,
    /// It is called for pods that request one of these; for all pods if empty.
    pub managed_resources: Vec<ManagedResource>,
    /// Pods are decided without it if it does not answer.
    pub ignorable: bool,
}

/// A resource that an extender manages.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    /// Its name.
    pub name: String,
    /// NodeResourcesFit ignores the resource.
    pub ignored_by_scheduler: bool,
}

/// TLS to an extender; data are base64 and override files.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[allow(missing_docs)] // the names are those of the file
pub struct TlsConfig {
    pub insecure: bool,
    pub server_name: String,
    pub cert_file: String,
    pub key_file: String,
    pub ca_file: String,
    pub cert_data: String,
    pub key_data: String,
    pub ca_data: String,
}

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsConfig").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Extender {
    /// Is the extender called for the pod?
    // k8s: extender.go IsInterested
    pub fn is_interested(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return self.managed_resources.is_empty() };
        let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        self.managed_resources.is_empty() || containers.any(|container| self.manages(container))
    }

    fn manages(&self, container: &Container) -> bool {
        let Some(resources) = &container.resources else { return false };
        let named = [&resources.requests, &resources.limits].into_iter().flatten();
        let mut names = named.flat_map(BTreeMap::keys);
        names.any(|name| self.managed_resources.iter().any(|managed| managed.name == *name))
    }

    /// Returns the limit of the wait for an answer.
    pub fn timeout(&self) -> Duration {
        let given = self.http_timeout.filter(|given| !given.is_zero());
        given.map_or(TIMEOUT, GoDuration::to_std)
    }

    /// Does it filter or score?
    pub fn filters_or_scores(&self) -> bool {
        !self.filter_verb.is_empty() || !self.prioritize_verb.is_empty()
    }

    /// Returns the URL of a verb.
    pub fn url(&self, verb: &str) -> String {
        format!("{}/{verb}", self.url_prefix.trim_end_matches('/'))
    }
}

/// Returns what upstream's validation rejects: the field within `extenders`, and the reason.
// k8s: pkg/scheduler/apis/config/validation/validation.go validateExtenders
pub fn mistake(extenders: &[Extender]) -> Option<(String, String)> {
    let mut managed = HashSet::new();
    for (at, extender) in extenders.iter().enumerate() {
        let path = |field: &str| format!("extenders[{at}].{field}");
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let problem = format!("is {}, but must be above zero to score", extender.weight);
            return Some((path("weight"), problem));
        }
        for (number, resource) in extender.managed_resources.iter().enumerate() {
            let field = path(&format!("managedResources[{number}].name"));
            let name = &resource.name;
            if !is_extended(name) {
                return Some((field, format!("{name:?} is no name of an extended resource")));
            }
            if !managed.insert(name) {
                return Some((field, format!("{name:?} is managed by two extenders")));
            }
        }
    }
    let binders = extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
    let problem = || format!("{binders} have a bindVerb: only one extender can bind");
    (binders > 1).then(|| ("extenders".to_owned(), problem()))
}

// k8s: pkg/apis/core/v1/helper/helpers.go IsExtendedResourceName
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}

/// Failure of an extender.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtenderError {
    /// A certificate or key in its configuration is invalid.
    #[error("extenders: tlsConfig.{field}: {problem}")]
    Tls {
        /// The field.
        field: &'static str,
        /// The fault.
        problem: String,
    },
    /// Its address or credentials are invalid.
    #[error("{0}")]
    Access(String),
    /// The request cannot be sent, or its answer cannot be read.
    #[error("Post {url:?}: {problem}")]
    Post {
        /// The address.
        url: String,
        /// The fault.
        problem: String,
    },
    /// It does not answer.
    #[error("Post {url:?}: no answer within {limit:?}")]
    Late {
        /// The address.
        url: String,
        /// Its `httpTimeout`.
        limit: Duration,
    },
    /// A pod of a group waits for no extender any longer.
    #[error("no extender answered about a pod of a group within {} s", .0.as_secs())]
    GroupLate(Duration),
    /// The call ended without an answer.
    #[error("the task that asks extenders ended without an answer")]
    NoTask,
    /// It answers with another code than 200.
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Code {
        /// The verb.
        verb: String,
        /// The address.
        url: String,
        /// The code.
        code: u16,
    },
    /// The error in its answer.
    #[error("{0}")]
    Answered(String),
    /// It leaves a node that it was not asked about.
    #[error(
        "extender {url:?} claims a filtered node {node:?} which is not found in the input node list"
    )]
    UnknownNode {
        /// The extender.
        url: String,
        /// The node.
        node: String,
    },
    /// It leaves a node without victims.
    #[error("expected at least one victim pod on node {0:?}")]
    NoVictim(String),
    /// It names victims on a node that is no candidate.
    #[error("nodeinfo not found for node name {0:?}")]
    NoCandidate(String),
    /// It names a victim that is not on the node.
    #[error(
        "extender: {url} claims to preempt pod (UID: &{{{uid}}}) on node: {node}, but the pod is \
         not found on that node"
    )]
    UnknownVictim {
        /// The extender.
        url: String,
        /// The pod.
        uid: String,
        /// The node.
        node: String,
    },
}

/// Request to extenders.
#[derive(Clone, Debug, PartialEq)]
pub struct Consult {
    /// The pod, whole.
    pub pod: Rc<Pod>,
    /// Its name and uid.
    pub about: PodRef,
    /// The question.
    pub question: ExtenderCall,
}

/// A question.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtenderCall {
    /// Filter and score these nodes.
    Nodes {
        /// Names of the nodes.
        names: Vec<Rc<str>>,
        /// The nodes in the same order, if an extender needs objects; otherwise empty.
        objects: Vec<Rc<Node>>,
    },
    /// Victims by node; the extender may drop nodes or victims.
    Victims(BTreeMap<String, Victims>),
}

/// Victims on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Victims {
    /// The pods.
    pub pods: Vec<PodRef>,
    /// Number of victims that violate a disruption budget.
    pub violations: i64,
    /// The other pods there, which an extender may choose as victims instead.
    pub others: Rc<[PodRef]>,
}

/// Answers of extenders.
#[derive(Clone, Debug, PartialEq)]
pub struct Consulted {
    /// The pod.
    pub about: PodRef,
    /// The answer, or the error that ends the attempt.
    pub answer: Result<ExtenderReply, ExtenderError>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtenderReply {
    /// Answer about nodes.
    Nodes(consulted::Nodes),
    /// Answer about victims, by node.
    Victims(BTreeMap<String, Victims>),
}
