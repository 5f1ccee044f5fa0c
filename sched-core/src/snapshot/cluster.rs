//! The writer: builds the tables from API objects and changes them by deltas.
//!
//! Input: nodes, pods, namespaces, workloads. Output: a `View` to read, `Program`s to run.
//! Owner: one thread. Bounds: a pod delta touches its node's row, one entry a counter that counts
//! Bounds: a pod delta touches its node's row, one entry a counter that counts it, and one number a
//! topology key; a node delta also re-counts the pods of that node, and checks the images that
//! nodes have when its own changed. Never walks all pods, except to create a counter that is new,
//! and to free names.
//! Why one writer: readers hold published epochs, so nothing here needs a lock.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use super::changes::Changes;
use super::counter_budget::{CounterBudget, CounterLimits};
use super::objects::{NodeSpec, OWN_KEYS, ObjectError};
use super::pods::{PodId, PodTable};
use super::replica::PodChange;
use super::shared_programs::SharedPrograms;
use super::sweep::Free;
use super::view::{CounterColumns, SparseColumns, View};
use super::workloads::Owners;
use crate::attempt_budget::Exhausted;
use crate::bits::Bits;
use crate::chunk::{CHUNK_ROWS, Numbers};
use crate::columns::counter_index::CounterIndex;
use crate::columns::counters::{CounterId, TermId, TermKey};
use crate::columns::index;
use crate::config::{Profile, Strategy};
use crate::intern::{FastMap, Interner, LabelsId, Str};
use crate::program::Program;
use crate::requests::PodRequests;
use crate::snapshot::template::Templates;

/// Reason why a delta was rejected; the tables are unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeltaError {
    /// The object is invalid.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// No such node.
    #[error("node {0:?} is not known")]
    UnknownNode(String),
    /// No such pod.
    #[error("pod {0:?} is not known")]
    UnknownPod(String),
    /// The pod exists already.
    #[error("pod {0:?} is already on node {1:?}")]
    PodExists(String, String),
    /// Limit of terms of pods on nodes, which are kept with the classes that they select.
    #[error("the affinity terms of pods in namespace {0:?} select too many other pods")]
    TermsOfNamespace(String),
    /// The pod costs more than the attempt may spend.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
}

/// Pods of one namespace with the same labels, as far as selectors distinguish them.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodClass {
    pub(crate) namespace: Option<Str>,
    pub(crate) labels: Arc<[(Str, Str)]>,
    /// True if the pods have labels at all, those included that `labels` leaves out.
    pub(crate) labelled: bool,
    /// Counters that count these pods, ascending.
    pub(crate) counters: Vec<CounterId>,
}

/// The cluster and its tables.
#[derive(Clone, Debug)]
pub struct Cluster {
    pub(crate) view: View,
    pub(crate) interner: Interner,
    pub(crate) pods: PodTable,
    pub(crate) classes: Vec<PodClass>,
    pub(super) class_ids: FastMap<(Str, LabelsId, bool), u32>,
    pub(super) counter_ids: CounterIndex,
    pub(crate) counter_budget: CounterBudget,
    pub(super) term_ids: HashMap<TermKey, TermId>,
    /// `OWN_KEYS`; true if a selector has mentioned the key.
    pub(crate) own_keys: [(Str, bool); OWN_KEYS.len()],
    pub(crate) namespaces: FastMap<Str, LabelsId>,
    pub(crate) owners: Owners,
    pub(super) digests: Vec<u64>,
    free_rows: Vec<u32>,
    /// Extended resources that nodes list, with the number of nodes.
    offered: FastMap<Str, u32>,
    /// Extended resources that device classes offer.
    pub(crate) of_devices: BTreeSet<String>,
    pub(super) programs: SharedPrograms,
    /// Templates of workloads.
    pub(crate) templates: Templates,
    /// Keyed hashes of strings that tenants choose.
    pub(super) keyed: RandomState,
    pub(super) free: Free,
    /// Changes by pods, and each change of a row's numbers, while a reader follows them.
    pub(crate) log: Option<Vec<PodChange>>,
}

/// Returns for utilisation and balance if the kernels cover a profile's scores.
fn kernels_cover(profile: &Profile) -> (bool, bool) {
    let pair = |a: &str, b: &str| (a == "cpu" && b == "memory") || (a == "memory" && b == "cpu");
    let fit = profile.strategy == Strategy::LeastAllocated
        && matches!(&profile.fit_resources[..], [(a, v), (b, w)] if pair(a, b) && v == w);
    (fit, matches!(&profile.balanced_resources[..], [a, b] if pair(a, b)))
}

impl Cluster {
    /// Sets the profile by which pods are compiled and decided from now on. A program belongs to
    /// the profile by which it was compiled.
    pub fn use_profile(&mut self, profile: &Arc<Profile>) {
        if Arc::ptr_eq(&self.view.profile, profile) {
            return;
        }
        (self.view.fit_is_default, self.view.balance_is_default) = kernels_cover(profile);
        self.view.profile = Arc::clone(profile);
    }

    /// Sets the limits of counters kept for pending pods; further ones are created for each
    /// attempt.
    pub fn limit_counters(&mut self, limits: CounterLimits) {
        self.counter_budget.limits = limits;
    }

    /// An empty cluster.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        let mut interner = Interner::default();
        let wildcard_ip = interner.intern("0.0.0.0");
        let empty_text = interner.intern("");
        let own_keys = OWN_KEYS.map(|key| (interner.intern(key), false));
        let (fit_is_default, balance_is_default) = kernels_cover(&profile);
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
                changes: Changes::default(),
                wide: Arc::default(),
                wide_rows: Arc::default(),
                unschedulable: Arc::default(),
                keys: Arc::default(),
                sparse: SparseColumns::default(),
                wildcard_ip,
                empty_text,
                fit_is_default,
                balance_is_default,
                counts: CounterColumns::default(),
            },
            interner,
            pods: PodTable::default(),
            classes: Vec::new(),
            class_ids: FastMap::default(),
            counter_ids: CounterIndex::default(),
            counter_budget: CounterBudget::default(),
            term_ids: HashMap::new(),
            own_keys,
            namespaces: FastMap::default(),
            owners: Owners::default(),
            digests: Vec::new(),
            free_rows: Vec::new(),
            offered: FastMap::default(),
            of_devices: BTreeSet::new(),
            programs: SharedPrograms::default(),
            templates: Templates::default(),
            keyed: RandomState::new(),
            free: Free::default(),
            log: None,
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

    /// Returns the text of an interned string; empty if it was freed.
    #[must_use]
    pub fn text(&self, id: Str) -> &str {
        self.interner.text(id)
    }

    /// Name of the node in a row.
    #[must_use]
    pub fn node_name(&self, row: u32) -> &str {
        self.interner.text(self.view.names[row as usize])
    }

    /// Sets the extended resources that device classes offer, for pods compiled later.
    // k8s: noderesources/fit.go shouldDelegateResourceToDRA
    pub fn set_of_devices(&mut self, names: BTreeSet<String>) {
        if self.of_devices != names {
            self.of_devices = names;
            self.templates.clear();
        }
    }

    /// Returns the nodes that list an extended resource, and those with more than zero of it.
    #[must_use]
    pub fn rows_offering(&self, resource: &str) -> (Bits, Bits) {
        let (mut named, mut some) = (Bits::default(), Bits::default());
        named.reset(self.view.rows);
        some.reset(self.view.rows);
        let column =
            self.interner.find(resource).and_then(|name| self.view.sparse.scalars.get(&name));
        for row in self.view.valid.iter() {
            if let Some(amount) = column.and_then(|column| column.allocatable(row)) {
                named.set(row);
                if amount > 0 {
                    some.set(row);
                }
            }
        }
        (named, some)
    }

    /// Returns the id of an extended resource or a size of huge pages, if any node or pod ever
    /// listed it.
    #[must_use]
    pub fn scalar(&self, resource: &str) -> Option<Str> {
        self.interner.find(resource)
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
        format!("{}/{}", namespace.map_or("", |n| self.text(n)), self.text(pod.name))
    }

    /// Requests of a bound pod.
    #[must_use]
    pub fn pod_requests(&self, id: PodId) -> &PodRequests {
        self.pods.requests.get(self.pods.get(id).requests)
    }

    /// Returns the numbers of a node without these of its pods.
    #[must_use]
    pub fn numbers_without(&self, row: u32, gone: &[PodId]) -> Numbers {
        let mut numbers = self.view.numbers(row);
        for id in gone {
            numbers.change(self.pod_requests(*id), -1);
        }
        numbers
    }

    /// Returns the shared program equal to `program`.
    pub(crate) fn share(&mut self, program: Program) -> Arc<Program> {
        self.programs.share(self.keyed.hash_one(&program), program)
    }

    // ---- nodes --------------------------------------------------------------------------------

    /// Adds a node, or changes the one of that name; returns its row.
    ///
    /// # Errors
    /// The node is invalid.
    pub fn set_node(&mut self, node: &Node) -> Result<u32, DeltaError> {
        let spec = self.read_node(node)?;
        Ok(self.place_node(&spec))
    }

    /// Parses a node once, to be placed any number of times.
    ///
    /// # Errors
    /// The node is invalid.
    pub fn read_node(&mut self, node: &Node) -> Result<NodeSpec, DeltaError> {
        self.sweep_if_due();
        Ok(NodeSpec::of(node, &mut self.interner)?)
    }

    /// Adds a parsed node, or changes the one of its name; returns its row.
    pub fn place_node(&mut self, spec: &NodeSpec) -> u32 {
        let digest = self.keyed.hash_one(spec);
        if let Some(row) = self.view.row_of(spec.name) {
            if self.digests[row as usize] != digest {
                let pods = self.detach_all(row);
                self.clear_row(row, &spec.images);
                self.fill_row(row, spec, digest);
                self.attach_all(row, &pods);
            }
            return row;
        }
        let row = self.free_rows.pop().unwrap_or_else(|| self.new_row());
        Arc::make_mut(&mut self.view.names)[row as usize] = spec.name;
        Arc::make_mut(&mut self.view.row_index).insert(row, &self.view.names);
        Arc::make_mut(&mut self.view.valid).set(row);
        self.view.nodes += 1;
        self.fill_row(row, spec, digest);
        let pods = self.pods.orphans(spec.name);
        self.attach_all(row, &pods);
        row
    }

    /// Removes a node; its pods stay known and count again if it comes back.
    ///
    /// # Errors
    /// There is no such node.
    pub fn remove_node(&mut self, name: &str) -> Result<(), DeltaError> {
        let row = self.row(name).ok_or_else(|| DeltaError::UnknownNode(name.to_owned()))?;
        self.detach_all(row);
        self.clear_row(row, &[]);
        Arc::make_mut(&mut self.view.row_index).remove(row, &self.view.names);
        Arc::make_mut(&mut self.view.names)[row as usize] = self.view.wildcard_ip;
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

    /// Clears a row, except for images that will be there again.
    fn clear_row(&mut self, row: u32, staying: &[(Str, i64)]) {
        self.set_numbers(row, &Numbers::default());
        Arc::make_mut(&mut self.view.unschedulable).clear(row);
        Arc::make_mut(&mut self.view.keys).clear(row);
        if self.view.sparse.taints.iter().any(|(_, rows)| rows.contains(row)) {
            let taints = Arc::make_mut(&mut self.view.sparse.taints);
            taints.iter_mut().for_each(|(_, rows)| _ = rows.remove(row));
            taints.retain(|(_, rows)| !rows.is_empty());
        }
        let staying: std::collections::HashSet<Str> = staying.iter().map(|(n, _)| *n).collect();
        for name in self.view.sparse.images.keys_where(|image| image.rows.contains(row)) {
            // Its size is that of the first node that has it: of this one, if no other has.
            let alone =
                self.view.sparse.images.get(&name).is_some_and(|image| image.rows.len() == 1);
            if alone {
                self.view.sparse.images.remove(&name);
            } else if !staying.contains(&name) {
                self.view.sparse.images.entry(name).rows.remove(row);
            }
        }
        for name in self.view.sparse.features.keys_where(|rows| rows.contains(row)) {
            let rows = self.view.sparse.features.entry(name);
            rows.remove(row);
            if rows.is_empty() {
                self.view.sparse.features.remove(&name);
            }
        }
        let scalars = &mut self.view.sparse.scalars;
        self.offered.retain(|name, nodes| {
            if scalars.get(name).is_some_and(|column| column.allocatable(row).is_some()) {
                scalars.entry(*name).set_allocatable(row, None);
                *nodes -= 1;
            }
            *nodes > 0
        });
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
        self.set_numbers(row, &numbers);
        if spec.unschedulable {
            Arc::make_mut(&mut self.view.unschedulable).set(row);
        }
        let keys = Arc::make_mut(&mut self.view.keys);
        for (key, value) in &spec.labels {
            keys.set(row, rows, *key, *value, self.interner.text(*value).parse().ok());
        }
        for taint in &spec.taints {
            let taints = Arc::make_mut(&mut self.view.sparse.taints);
            let at = taints.iter().position(|(t, _)| t == taint).unwrap_or_else(|| {
                taints.push((*taint, Default::default()));
                taints.len() - 1
            });
            taints[at].1.insert(row, rows);
        }
        for (name, size_bytes) in &spec.images {
            if self.view.sparse.images.get(name).is_some_and(|image| image.rows.contains(row)) {
                continue;
            }
            let image = self.view.sparse.images.entry(*name);
            if image.rows.is_empty() {
                image.size_bytes = *size_bytes;
            }
            image.rows.insert(row, rows);
        }
        for feature in &spec.features {
            self.view.sparse.features.entry(*feature).insert(row, rows);
        }
        for (name, amount) in &spec.allocatable.scalars {
            let name = self.interner.intern(name);
            self.view.sparse.scalars.entry(name).set_allocatable(row, Some(*amount));
            *self.offered.entry(name).or_default() += 1;
        }
        self.view.epoch += 1;
    }

    /// Replaces the numbers of a row.
    pub(super) fn set_numbers(&mut self, row: u32, numbers: &Numbers) {
        self.view.record(&mut self.log, PodChange::Numbers(row, *numbers));
    }
}
