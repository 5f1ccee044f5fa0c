//! The writer: builds the tables from API objects and changes them by deltas.
//!
//! Input: nodes, pods, namespaces, workloads. Output: a `View` to read, `Program`s to run.
//! Owner: one thread. Bounds: a pod delta touches its node's row, one entry a counter that counts
//! it, and one number a topology key; a node delta also re-counts the pods of that node.
//! Never walks all pods, except to begin a counter that nobody asked for before.
//! Why one writer: readers hold published epochs, so nothing here needs a lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, ReplicationController, Service};

use super::chunk::{CHUNK_ROWS, Numbers};
use super::counters::{CounterId, CounterKey, CowVec, TermId, TermKey};
use super::index;
use super::objects::{NodeSpec, ObjectError, PodSpec, pod_key};
use super::pods::{NONE, PodId, PodRow, PodTable};
use super::view::View;
use crate::config::{Profile, Strategy};
use crate::intern::{FastMap, Interner, LabelsId, Str, fast_hash};
use crate::program::Program;
use crate::requests::PodRequests;
use crate::selector::Selector;

/// Compiled programs kept; beyond, the cache starts again.
const PROGRAMS_MAX: usize = 1 << 16;

/// Why a delta was refused; the tables are as before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The object cannot be used.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// No such node.
    #[error("node {0:?} is not known")]
    UnknownNode(String),
    /// No such pod.
    #[error("pod {0:?} is not known")]
    UnknownPod(String),
    /// The pod is there already.
    #[error("pod {0:?} is already on node {1:?}")]
    PodExists(String, String),
}

/// Pods of one namespace with the same labels.
#[derive(Clone, Debug)]
pub(crate) struct Class {
    pub(crate) namespace: Str,
    pub(crate) labels: Arc<[(Str, Str)]>,
    /// Counters that count these pods.
    pub(super) counters: Vec<CounterId>,
}

/// Workloads whose selectors default topology spread looks at, by namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    pub(crate) services: FastMap<Str, BTreeMap<Str, BTreeMap<String, String>>>,
    pub(crate) controllers: FastMap<(Str, Str), BTreeMap<String, String>>,
    pub(crate) replica_sets: FastMap<(Str, Str), Selector>,
    pub(crate) stateful_sets: FastMap<(Str, Str), Selector>,
}

/// The cluster and its tables.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(crate) view: View,
    pub(crate) interner: Interner,
    pub(crate) pods: PodTable,
    pub(crate) classes: Vec<Class>,
    pub(super) class_ids: FastMap<(Str, LabelsId), u32>,
    pub(super) counter_ids: FastMap<CounterKey, CounterId>,
    pub(super) term_ids: FastMap<TermKey, TermId>,
    pub(crate) namespaces: FastMap<Str, LabelsId>,
    pub(crate) owners: Owners,
    pub(super) digests: Vec<u64>,
    free_rows: Vec<u32>,
    pub(crate) programs: FastMap<u64, Vec<Arc<Program>>>,
    programs_len: usize,
}

impl Cluster {
    /// An empty cluster.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let mut interner = Interner::default();
        let wildcard_ip = interner.intern("0.0.0.0");
        let empty_text = interner.intern("");
        let pair =
            |a: &str, b: &str| (a == "cpu" && b == "memory") || (a == "memory" && b == "cpu");
        let fit_is_default = profile.strategy == Strategy::LeastAllocated
            && matches!(&profile.fit_resources[..], [(a, v), (b, w)] if pair(a, b) && v == w);
        let balance_is_default = matches!(&profile.balanced_resources[..], [a, b] if pair(a, b));
        Self {
            view: View {
                profile: Arc::new(profile),
                epoch: 0,
                whole: 0,
                rows: 0,
                valid: Arc::default(),
                nodes: 0,
                names: Arc::default(),
                row_index: Arc::default(),
                chunks: Arc::default(),
                wide: Arc::default(),
                wide_rows: Arc::default(),
                unschedulable: Arc::default(),
                keys: Arc::default(),
                taints: Arc::default(),
                images: Arc::default(),
                features: Arc::default(),
                scalars: Arc::default(),
                ports: Arc::default(),
                wildcard_ip,
                empty_text,
                fit_is_default,
                balance_is_default,
                counters: CowVec::default(),
                terms: CowVec::default(),
                terms_version: 0,
                class_terms: CowVec::default(),
            },
            interner,
            pods: PodTable::default(),
            classes: Vec::new(),
            class_ids: FastMap::default(),
            counter_ids: FastMap::default(),
            term_ids: FastMap::default(),
            namespaces: FastMap::default(),
            owners: Owners::default(),
            digests: Vec::new(),
            free_rows: Vec::new(),
            programs: FastMap::default(),
            programs_len: 0,
        }
    }

    /// The current epoch, to read in place.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// A copy of the current epoch, to hand to other threads.
    #[must_use]
    pub fn publish(&self) -> View {
        self.view.clone()
    }

    /// Text of an interned string.
    #[must_use]
    pub fn text(&self, id: Str) -> &str {
        self.interner.text(id)
    }

    /// Name of the node in a row.
    #[must_use]
    pub fn node_name(&self, row: u32) -> &str {
        self.interner.text(self.view.names[row as usize])
    }

    /// Row of a node.
    #[must_use]
    pub fn row(&self, node: &str) -> Option<u32> {
        self.interner.find(node).and_then(|name| self.view.row_of(name))
    }

    /// The bound pods.
    #[must_use]
    pub fn pods(&self) -> &PodTable {
        &self.pods
    }

    /// "namespace/name" of a bound pod.
    #[must_use]
    pub fn pod_name(&self, id: PodId) -> String {
        let pod = self.pods.get(id);
        let namespace = self.classes[pod.class as usize].namespace;
        format!("{}/{}", self.interner.text(namespace), self.interner.text(pod.name))
    }

    /// Requests of a bound pod.
    #[must_use]
    pub fn pod_requests(&self, id: PodId) -> &PodRequests {
        self.pods.requests.get(self.pods.get(id).requests)
    }

    // ---- namespaces and workloads -------------------------------------------------------------

    /// Adds or changes a namespace.
    pub fn set_namespace(&mut self, namespace: &Namespace) {
        let Some(name) = namespace.metadata.name.as_deref() else { return };
        let name = self.interner.intern(name);
        let labels = self.interner.intern_labels(namespace.metadata.labels.iter().flatten());
        if self.namespaces.insert(name, labels) == Some(labels) {
            return;
        }
        self.forget_programs();
        for class in 0..self.classes.len() {
            let terms = self.terms_selecting(class as u32);
            *self.view.class_terms.get_mut(class as u32) = terms;
        }
    }

    /// Adds or changes a service.
    pub fn set_service(&mut self, service: &Service) {
        let Some((namespace, name)) = self.identity(&service.metadata) else { return };
        let services = self.owners.services.entry(namespace).or_default();
        match service.spec.as_ref().and_then(|s| s.selector.clone()) {
            Some(selector) => services.insert(name, selector),
            None => services.remove(&name),
        };
        self.forget_programs();
    }

    /// Adds or changes a replication controller.
    pub fn set_replication_controller(&mut self, controller: &ReplicationController) {
        let Some(key) = self.identity(&controller.metadata) else { return };
        let selector = controller.spec.as_ref().and_then(|s| s.selector.clone());
        self.owners.controllers.insert(key, selector.unwrap_or_default());
        self.forget_programs();
    }

    /// Adds or changes a replica set; one whose selector cannot be read selects nothing.
    pub fn set_replica_set(&mut self, set: &ReplicaSet) {
        let Some(key) = self.identity(&set.metadata) else { return };
        let selector = set.spec.as_ref().map(|s| &s.selector);
        let selector = Selector::from_api(selector, &mut self.interner);
        self.owners.replica_sets.insert(key, selector.unwrap_or(Selector::Nothing));
        self.forget_programs();
    }

    /// Adds or changes a stateful set; one whose selector cannot be read selects nothing.
    pub fn set_stateful_set(&mut self, set: &StatefulSet) {
        let Some(key) = self.identity(&set.metadata) else { return };
        let selector = set.spec.as_ref().map(|s| &s.selector);
        let selector = Selector::from_api(selector, &mut self.interner);
        self.owners.stateful_sets.insert(key, selector.unwrap_or(Selector::Nothing));
        self.forget_programs();
    }

    fn identity(
        &mut self,
        metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta,
    ) -> Option<(Str, Str)> {
        let name = self.interner.intern(metadata.name.as_deref()?);
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        Some((self.interner.intern(namespace), name))
    }

    fn forget_programs(&mut self) {
        self.programs.clear();
        self.programs_len = 0;
    }

    /// The shared program equal to `program`.
    pub(crate) fn share(&mut self, program: Program) -> Arc<Program> {
        let hash = fast_hash(&program);
        if let Some(same) = self.programs.get(&hash).into_iter().flatten().find(|p| ***p == program)
        {
            return Arc::clone(same);
        }
        if self.programs_len >= PROGRAMS_MAX {
            self.forget_programs();
        }
        let program = Arc::new(program);
        self.programs.entry(hash).or_default().push(Arc::clone(&program));
        self.programs_len += 1;
        program
    }

    // ---- nodes --------------------------------------------------------------------------------

    /// Adds a node, or changes one of that name; returns its row.
    ///
    /// # Errors
    /// When the node cannot be read.
    pub fn set_node(&mut self, node: &Node) -> Result<u32, DeltaError> {
        let spec = NodeSpec::of(node, &mut self.interner)?;
        let digest = fast_hash(&spec);
        if let Some(row) = self.view.row_of(spec.name) {
            if self.digests[row as usize] != digest {
                let pods = self.detach_all(row);
                self.clear_row(row);
                self.fill_row(row, &spec, digest);
                self.attach_all(row, &pods);
            }
            return Ok(row);
        }
        let row = self.free_rows.pop().unwrap_or_else(|| self.new_row());
        Arc::make_mut(&mut self.view.names)[row as usize] = spec.name;
        Arc::make_mut(&mut self.view.row_index).insert(row, &self.view.names);
        Arc::make_mut(&mut self.view.valid).set(row);
        self.view.nodes += 1;
        self.fill_row(row, &spec, digest);
        let pods = self.pods.orphans(spec.name);
        self.attach_all(row, &pods);
        Ok(row)
    }

    /// Removes a node; its pods stay known and count again should it come back.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn remove_node(&mut self, name: &str) -> Result<(), DeltaError> {
        let row = self.row(name).ok_or_else(|| DeltaError::UnknownNode(name.to_owned()))?;
        self.detach_all(row);
        self.clear_row(row);
        Arc::make_mut(&mut self.view.row_index).remove(row, &self.view.names);
        Arc::make_mut(&mut self.view.valid).clear(row);
        self.view.nodes -= 1;
        self.free_rows.push(row);
        self.free_rows.sort_unstable_by(|a, b| b.cmp(a));
        Ok(())
    }

    fn new_row(&mut self) -> u32 {
        let row = u32::try_from(self.view.rows).expect("fewer than 2^32 nodes");
        self.view.rows += 1;
        if (row as usize).is_multiple_of(CHUNK_ROWS) {
            Arc::make_mut(&mut self.view.chunks).push(Arc::default());
        }
        index::push(Arc::make_mut(&mut self.view.names), self.view.wildcard_ip);
        for bits in [&mut self.view.valid, &mut self.view.wide_rows, &mut self.view.unschedulable] {
            Arc::make_mut(bits).grow(self.view.rows);
        }
        index::push(&mut self.digests, 0);
        row
    }

    fn detach_all(&mut self, row: u32) -> Vec<PodId> {
        let pods: Vec<PodId> = self.pods.on_node(row).collect();
        pods.iter().for_each(|id| self.detach(*id));
        pods
    }

    fn attach_all(&mut self, row: u32, pods: &[PodId]) {
        pods.iter().for_each(|id| self.attach(*id, row));
        self.view.epoch += 1;
    }

    fn clear_row(&mut self, row: u32) {
        self.view.set_numbers(row, &Numbers::default());
        Arc::make_mut(&mut self.view.unschedulable).clear(row);
        Arc::make_mut(&mut self.view.keys).clear(row);
        for (_, rows) in Arc::make_mut(&mut self.view.taints) {
            rows.remove(row);
        }
        Arc::make_mut(&mut self.view.images).retain(|_, image| {
            image.rows.remove(row);
            !image.rows.is_empty()
        });
        for rows in Arc::make_mut(&mut self.view.features).values_mut() {
            rows.remove(row);
        }
        for column in Arc::make_mut(&mut self.view.scalars).values_mut() {
            column.allocatable.remove(&row);
        }
        self.view.epoch += 1;
    }

    fn fill_row(&mut self, row: u32, spec: &NodeSpec, digest: u64) {
        let rows = self.view.rows;
        self.digests[row as usize] = digest;
        let a = &spec.allocatable;
        let numbers = Numbers {
            cpu: a.cpu_milli,
            mem: a.mem_bytes,
            eph: a.eph_bytes,
            pods: spec.pods,
            ..Numbers::default()
        };
        self.view.set_numbers(row, &numbers);
        if spec.unschedulable {
            Arc::make_mut(&mut self.view.unschedulable).set(row);
        }
        let keys = Arc::make_mut(&mut self.view.keys);
        for (key, value) in self.interner.labels(spec.labels).iter() {
            keys.set(row, *key, *value, self.interner.text(*value).parse().ok());
        }
        let taints = Arc::make_mut(&mut self.view.taints);
        for taint in &spec.taints {
            let at = taints.iter().position(|(t, _)| t == taint).unwrap_or_else(|| {
                taints.push((*taint, Default::default()));
                taints.len() - 1
            });
            taints[at].1.insert(row, rows);
        }
        let images = Arc::make_mut(&mut self.view.images);
        for (name, size_bytes) in &spec.images {
            let image = images.entry(*name).or_default();
            if image.rows.is_empty() {
                image.size_bytes = *size_bytes;
            }
            image.rows.insert(row, rows);
        }
        for feature in &spec.features {
            let features = Arc::make_mut(&mut self.view.features);
            features.entry(*feature).or_default().insert(row, rows);
        }
        for (name, amount) in &spec.allocatable.scalars {
            let name = self.interner.intern(name);
            let scalars = Arc::make_mut(&mut self.view.scalars);
            scalars.entry(name).or_default().allocatable.insert(row, *amount);
        }
        self.view.epoch += 1;
    }

    // ---- pods ---------------------------------------------------------------------------------

    /// Adds a bound pod, changes one of the same identity, or confirms an assumed one. A pod in a
    /// final phase is taken out: it no longer counts.
    ///
    /// # Errors
    /// When the pod cannot be read or names no node.
    pub fn set_pod(&mut self, pod: &Pod) -> Result<PodId, DeltaError> {
        let node = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|n| !n.is_empty());
        let node = node.ok_or(ObjectError::NoNode)?.to_owned();
        self.place(pod, &node, false)
    }

    /// Places a pod on a node before the API knows it.
    ///
    /// # Errors
    /// When the pod cannot be read, is there already, or the node is not known.
    pub fn assume(&mut self, pod: &Pod, node: &str) -> Result<PodId, DeltaError> {
        if self.row(node).is_none() {
            return Err(DeltaError::UnknownNode(node.to_owned()));
        }
        let key = pod_key(pod, &mut self.interner);
        if let Some(id) = self.pods.find(key) {
            let there = self.text(self.pods.get(id).node_name).to_owned();
            return Err(DeltaError::PodExists(self.pod_name(id), there));
        }
        self.place(pod, node, true)
    }

    /// Takes back an assumption.
    ///
    /// # Errors
    /// When the pod is not known.
    pub fn forget(&mut self, pod: &Pod) -> Result<(), DeltaError> {
        self.remove_pod(pod)
    }

    /// Removes a pod.
    ///
    /// # Errors
    /// When the pod is not known.
    pub fn remove_pod(&mut self, pod: &Pod) -> Result<(), DeltaError> {
        let key = pod_key(pod, &mut self.interner);
        let id = self.pods.find(key);
        let id = id.ok_or_else(|| DeltaError::UnknownPod(self.text(key).to_owned()))?;
        self.remove(id);
        Ok(())
    }

    /// Removes a pod by id.
    pub fn remove(&mut self, id: PodId) {
        if self.pods.get(id).row != NONE {
            self.detach(id);
        }
        self.pods.remove(id);
        self.view.epoch += 1;
    }

    fn place(&mut self, pod: &Pod, node: &str, assumed: bool) -> Result<PodId, DeltaError> {
        let spec = PodSpec::of(pod, &mut self.interner)?;
        Ok(self.place_spec(&spec, node, assumed))
    }

    /// Reads a pod once, to be placed any number of times.
    ///
    /// # Errors
    /// When the pod cannot be read.
    pub fn read_pod(&mut self, pod: &Pod) -> Result<PodSpec, DeltaError> {
        let spec = PodSpec::of(pod, &mut self.interner)?;
        // Its terms become known now, so that a view published after this shows whom they select.
        for term in &spec.terms {
            self.term(term);
        }
        Ok(spec)
    }

    /// Places a pod that was read before; replaces one of the same identity.
    pub fn place_spec(&mut self, spec: &PodSpec, node: &str, assumed: bool) -> PodId {
        let node_name = self.interner.intern(node);
        self.place_on(spec, node_name, assumed)
    }

    /// As `place_spec`, the node's name being interned already.
    pub(crate) fn place_on(&mut self, spec: &PodSpec, node_name: Str, assumed: bool) -> PodId {
        if let Some(id) = self.pods.find(spec.key) {
            self.remove(id);
        }
        let class = self.class(spec.namespace, spec.labels);
        let terms = spec.terms.iter().map(|t| self.term(t)).collect();
        let mut row = PodRow::new(spec.key, spec.name, node_name, class);
        row.requests = self.pods.requests.intern(spec.requests.clone());
        row.terms = self.pods.terms.intern(terms);
        row.ports = self.pods.ports.intern(spec.ports.clone());
        row.priority = spec.priority;
        row.start_ns = spec.start_ns;
        row.terminating = spec.terminating;
        row.daemon = spec.daemon;
        row.assumed = assumed;
        let id = self.pods.insert(row);
        if let Some(row) = self.view.row_of(node_name) {
            self.attach(id, row);
        }
        self.view.epoch += 1;
        id
    }

    fn attach(&mut self, id: PodId, row: u32) {
        self.pods.attach(id, row);
        self.count(id, row, 1);
    }

    fn detach(&mut self, id: PodId) {
        let row = self.pods.get(id).row;
        self.pods.detach(id);
        self.count(id, row, -1);
    }

    /// Adds a pod's numbers to everything that depends on them, or takes them away.
    fn count(&mut self, id: PodId, row: u32, delta: i32) {
        let pod = self.pods.get(id);
        let sign = i64::from(delta);
        let requests = self.pods.requests.get(pod.requests);
        let mut n = self.view.numbers(row);
        n.cpu_used = n.cpu_used.wrapping_add(sign.wrapping_mul(requests.plain.cpu_milli));
        n.mem_used = n.mem_used.wrapping_add(sign.wrapping_mul(requests.plain.mem_bytes));
        n.eph_used = n.eph_used.wrapping_add(sign.wrapping_mul(requests.plain.eph_bytes));
        n.cpu_nonzero = n.cpu_nonzero.wrapping_add(sign.wrapping_mul(requests.nonzero_cpu_milli));
        n.mem_nonzero = n.mem_nonzero.wrapping_add(sign.wrapping_mul(requests.nonzero_mem_bytes));
        n.pods_used += sign;
        self.view.set_numbers(row, &n);
        for (name, amount) in &requests.plain.scalars {
            let name = self.interner.intern(name);
            let scalars = Arc::make_mut(&mut self.view.scalars);
            let used = scalars.entry(name).or_default().used.entry(row).or_default();
            *used = used.wrapping_add(sign.wrapping_mul(*amount));
        }
        self.count_ports(id, row, delta);
        let pod = self.pods.get(id);
        let live = !pod.terminating;
        for counter in &self.classes[pod.class as usize].counters {
            let counter = self.view.counters.get_mut(counter.0);
            if live || !counter.key.live_only {
                counter.add(row, delta, &self.view.keys);
            }
        }
        for term in self.pods.terms.get(pod.terms) {
            self.view.terms_version += 1;
            self.view.terms.get_mut(term.0).add(row, delta, &self.view.keys);
        }
    }

    fn count_ports(&mut self, id: PodId, row: u32, delta: i32) {
        let ports = self.pods.ports.get(self.pods.get(id).ports);
        for port in ports {
            let table = Arc::make_mut(&mut self.view.ports);
            let users = table.entry((port.protocol, port.port)).or_default();
            let at = users.iter().position(|(ip, r, _)| (*ip, *r) == (port.ip, row));
            let at = at.unwrap_or_else(|| {
                users.push((port.ip, row, 0));
                users.len() - 1
            });
            let count = &mut users[at].2;
            *count = count.checked_add_signed(delta).expect("a port is freed where it was taken");
            if *count == 0 {
                users.swap_remove(at);
            }
        }
    }
}
