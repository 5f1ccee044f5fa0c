//! Templates: what pods of one workload have in common, read and compiled once.
//!
//! Input: a pod. Output: the program and the row of the pod before it that was equal in everything
//! they are made of. Owner: the writer of the cluster. Bounds: `TEMPLATES_MAX`, then all are
//! dropped; a lookup is a hash of some fields and a comparison of all, without allocating. A
//! template is valid while no other input of compiling changes: a change drops all of them (labels
//! of namespaces, device classes, label keys of selectors, a sweep), except events of workloads,
//! which count for their namespace alone.
//! Why fields are compared and not only hashed: two pods that share a hash must not share a
//! program. Pods with allocated resources of containers in their status have no template.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Affinity, Container, ContainerPort, ContainerRestartRule, Pod, PodSchedulingGate,
    PodSpec as ApiSpec, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::objects::{OWN_KEYS, PodSpec, own_key};
use super::workloads::Owners;
use crate::config::Profile;
use crate::intern::{FastHasher, FastMap};
use crate::program::Program;

/// Limit of templates; a few hundred bytes to some tens of kilobytes each.
const TEMPLATES_MAX: usize = 4096;

/// Own labels of pods that some selector mentions, by position in `OWN_KEYS`.
pub(crate) type Asked = [bool; OWN_KEYS.len()];

/// All templates, by a hash of some of their fields; on a collision the later one stays.
#[derive(Clone, Debug, Default)]
pub(crate) struct Templates {
    by_print: FastMap<u64, Template>,
}

/// Pods that are equal in all inputs of programs and rows.
#[derive(Clone, Debug)]
pub(crate) struct Template {
    like: Like,
    /// Time of the last change of a workload in the namespace.
    workloads: u64,
    /// The parsed pod, without its identity.
    pub(crate) spec: PodSpec,
    /// Compiled by a profile.
    program: Option<(Arc<Profile>, Arc<Program>)>,
}

impl Template {
    /// Returns the program for a profile.
    pub(crate) fn program(&self, profile: &Arc<Profile>) -> Option<&Arc<Program>> {
        let (by, program) = self.program.as_ref()?;
        Arc::ptr_eq(by, profile).then_some(program)
    }
}

impl Templates {
    /// Returns the template of a pod with this print.
    pub(crate) fn find(
        &self,
        print: u64,
        pod: &Pod,
        asked: &Asked,
        owners: &Owners,
    ) -> Option<&Template> {
        let found = self.by_print.get(&print)?;
        let current = found.workloads == owners.changed(found.spec.namespace);
        (current && found.like.is(pod, asked)).then_some(found)
    }

    /// Keeps a parsed pod.
    pub(crate) fn keep(
        &mut self,
        print: u64,
        pod: &Pod,
        workloads: u64,
        spec: &PodSpec,
        program: Option<(&Arc<Profile>, &Arc<Program>)>,
    ) {
        if self.by_print.len() >= TEMPLATES_MAX {
            self.by_print.clear();
        }
        let program = program.map(|(by, program)| (Arc::clone(by), Arc::clone(program)));
        let like = Like::of(pod);
        self.by_print.insert(print, Template { like, workloads, spec: spec.clone(), program });
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.by_print.clear();
    }
}

/// Fields that determine programs and rows, except those that a row takes from each pod.
#[derive(Clone, Debug)]
struct Like {
    namespace: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    /// API version, kind and name.
    controllers: Box<[(String, String, String)]>,
    spec: Option<Box<LikeSpec>>,
}

#[derive(Clone, Debug)]
struct LikeSpec {
    containers: Box<[LikeContainer]>,
    init_containers: Box<[LikeContainer]>,
    images: Box<[Option<String>]>,
    affinity: Option<Box<Affinity>>,
    host: (Option<bool>, Option<bool>),
    node_selector: Option<BTreeMap<String, String>>,
    overhead: Option<BTreeMap<String, Quantity>>,
    requests: Option<BTreeMap<String, Quantity>>,
    gates: Option<Vec<PodSchedulingGate>>,
    tolerations: Option<Vec<Toleration>>,
    spread: Option<Vec<TopologySpreadConstraint>>,
    priority: Option<i32>,
}

#[derive(Clone, Debug)]
struct LikeContainer {
    image: Option<String>,
    ports: Option<Vec<ContainerPort>>,
    requests: Option<BTreeMap<String, Quantity>>,
    restart_policy: Option<String>,
    rules: Option<Vec<ContainerRestartRule>>,
}

fn controllers(pod: &Pod) -> impl Iterator<Item = (&str, &str, &str)> {
    let owners = pod.metadata.owner_references.iter().flatten();
    owners
        .filter(|o| o.controller == Some(true))
        .map(|o| (o.api_version.as_str(), o.kind.as_str(), o.name.as_str()))
}

fn image_volumes(spec: &ApiSpec) -> impl Iterator<Item = &Option<String>> {
    spec.volumes.iter().flatten().filter_map(|v| v.image.as_ref()).map(|image| &image.reference)
}

fn requests(container: &Container) -> Option<&BTreeMap<String, Quantity>> {
    container.resources.as_ref().and_then(|r| r.requests.as_ref())
}

impl Like {
    fn of(pod: &Pod) -> Self {
        let owned = |(a, b, c): (&str, &str, &str)| (a.to_owned(), b.to_owned(), c.to_owned());
        Self {
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            controllers: controllers(pod).map(owned).collect(),
            spec: pod.spec.as_ref().map(|spec| Box::new(LikeSpec::of(spec))),
        }
    }

    fn is(&self, pod: &Pod, asked: &Asked) -> bool {
        let meta = &pod.metadata;
        let own = self.controllers.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str()));
        self.namespace == meta.namespace
            && same_labels(self.labels.as_ref(), meta.labels.as_ref(), asked)
            && own.eq(controllers(pod))
            && match (&self.spec, &pod.spec) {
                (Some(like), Some(spec)) => like.is(spec),
                (None, None) => true,
                _ => false,
            }
    }
}

impl LikeSpec {
    fn of(spec: &ApiSpec) -> Self {
        let all = |list: &[Container]| list.iter().map(LikeContainer::of).collect();
        Self {
            containers: all(&spec.containers),
            init_containers: all(spec.init_containers.as_deref().unwrap_or_default()),
            images: image_volumes(spec).cloned().collect(),
            affinity: spec.affinity.clone().map(Box::new),
            host: (spec.host_network, spec.host_users),
            node_selector: spec.node_selector.clone(),
            overhead: spec.overhead.clone(),
            requests: spec.resources.as_ref().and_then(|r| r.requests.clone()),
            gates: spec.scheduling_gates.clone(),
            tolerations: spec.tolerations.clone(),
            spread: spec.topology_spread_constraints.clone(),
            priority: spec.priority,
        }
    }

    fn is(&self, spec: &ApiSpec) -> bool {
        let init = spec.init_containers.as_deref().unwrap_or_default();
        let requests = spec.resources.as_ref().and_then(|r| r.requests.as_ref());
        self.priority == spec.priority
            && same_containers(&self.containers, &spec.containers)
            && same_containers(&self.init_containers, init)
            && self.node_selector == spec.node_selector
            && self.affinity.as_deref() == spec.affinity.as_ref()
            && self.tolerations == spec.tolerations
            && self.spread == spec.topology_spread_constraints
            && self.images.iter().eq(image_volumes(spec))
            && self.host == (spec.host_network, spec.host_users)
            && self.overhead == spec.overhead
            && self.requests.as_ref() == requests
            && self.gates == spec.scheduling_gates
    }
}

fn same_containers(like: &[LikeContainer], containers: &[Container]) -> bool {
    like.len() == containers.len() && like.iter().zip(containers).all(|(like, c)| like.is(c))
}

impl LikeContainer {
    fn of(container: &Container) -> Self {
        Self {
            image: container.image.clone(),
            ports: container.ports.clone(),
            requests: requests(container).cloned(),
            restart_policy: container.restart_policy.clone(),
            rules: container.restart_policy_rules.clone(),
        }
    }

    fn is(&self, container: &Container) -> bool {
        self.image == container.image
            && self.requests.as_ref() == requests(container)
            && self.ports == container.ports
            && self.restart_policy == container.restart_policy
            && self.rules == container.restart_policy_rules
    }
}

/// Returns true if labels are equal, ignoring values of own labels that no selector mentions.
fn same_labels(
    a: Option<&BTreeMap<String, String>>,
    b: Option<&BTreeMap<String, String>>,
    asked: &Asked,
) -> bool {
    let (Some(a), Some(b)) = (a, b) else { return a.is_none() && b.is_none() };
    let counts = |key: &str| own_key(key).is_none_or(|at| asked[usize::from(at)]);
    a.len() == b.len() && a.iter().zip(b).all(|((k, v), (l, w))| k == l && (v == w || !counts(k)))
}

/// Returns a hash that usually distinguishes templates; `None` for a pod that has none.
pub(crate) fn print(pod: &Pod, asked: &Asked) -> Option<u64> {
    if let Some(status) = &pod.status {
        let all = [&status.container_statuses, &status.init_container_statuses];
        let mut given = all.into_iter().flatten().flatten();
        if status.resources.is_some()
            || status.allocated_resources.is_some()
            || given.any(|c| c.resources.is_some() || c.allocated_resources.is_some())
        {
            return None;
        }
    }
    let mut hash = FastHasher::default();
    let text = |hash: &mut FastHasher, text: &str| hash.write(text.as_bytes());
    text(&mut hash, pod.metadata.namespace.as_deref().unwrap_or_default());
    for (key, value) in pod.metadata.labels.iter().flatten() {
        if own_key(key).is_none_or(|at| asked[usize::from(at)]) {
            text(&mut hash, value);
        }
    }
    controllers(pod).for_each(|(_, _, name)| text(&mut hash, name));
    let Some(spec) = &pod.spec else { return Some(hash.finish()) };
    for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
        text(&mut hash, container.image.as_deref().unwrap_or_default());
        for port in container.ports.iter().flatten() {
            hash.write_u32(port.host_port.unwrap_or_default().cast_unsigned());
        }
        for (_, amount) in requests(container).into_iter().flatten() {
            text(&mut hash, &amount.0);
        }
    }
    for (_, value) in spec.node_selector.iter().flatten() {
        text(&mut hash, value);
    }
    let lengths = [
        spec.tolerations.as_ref().map_or(0, Vec::len),
        spec.topology_spread_constraints.as_ref().map_or(0, Vec::len),
        usize::from(spec.affinity.is_some()),
    ];
    lengths.iter().for_each(|length| hash.write_usize(*length));
    hash.write_u32(spec.priority.unwrap_or_default().cast_unsigned());
    Some(hash.finish())
}
