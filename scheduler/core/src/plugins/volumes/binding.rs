//! VolumeBinding: volumes that claims have or could have, by node.
//!
//! Input: the claims of a pod. Output: for a node the volumes that would be bound and the claims
//! that would be provisioned there, or the reason there are none. Bounds: the volumes of the
//! claims' classes; the nodes of each volume are a set, so that a node costs a bit a volume, once
//! for all claims that share it.
// k8s: pkg/scheduler/framework/plugins/volumebinding/binder.go FindPodVolumes

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pintle_api_types::key::ObjectKey;
use pintle_api_types::object::key_of;
use pintle_api_types::quantity::Amount;
use pintle_sched_core::Cluster;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::bits::Bits;

use super::candidates::{Candidates, Matcher, PURPOSE, VolumeCandidate};
use super::in_tree::{self, InTree};
use super::{Volumes, annotation, class_of_claim, is_bound, version, volume_name};

const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const NOT_ENOUGH: &str = "node(s) did not have enough free storage";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// Annotation of a claim: its provisioner is to create a volume for this node.
pub(super) const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// A class without a provisioner.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Nodes and volumes that the claims of a pod allow.
#[derive(Clone, Debug, Default)]
pub(super) struct Binding {
    /// Nodes of bound claims' volumes; `None` for a volume that does not exist.
    bound: Vec<Option<Rc<Bits>>>,
    /// Claims to be bound when the pod has a node, and how often they are named in a row: those
    /// already being provisioned in the pod's order, then the others, the smallest first.
    wanted: Vec<(Rc<LateClaim>, usize)>,
    /// Candidate volumes, by list number.
    lists: Vec<Candidates>,
    /// Budget of the attempt: once it is exhausted no node passes.
    spent: Rc<AttemptBudget>,
}

/// Nodes of a volume, at a version of it and at a count of node changes.
#[derive(Debug)]
pub(super) struct Reach {
    version: String,
    nodes_changed: u64,
    /// By its own node affinity, used when volumes are chosen.
    own: Rc<Bits>,
    /// As the CSI driver translates it on migrated nodes, used for bound volumes.
    used: Rc<Bits>,
}

/// A claim that is bound when its pod has a node.
#[derive(Debug)]
struct LateClaim {
    key: ObjectKey,
    size: Amount,
    /// It is being provisioned on this node; the inner `None` is a node that no longer exists.
    selected: Option<Option<u32>>,
    /// The volume with a `claimRef` to the claim, and its nodes: no other fits, unless it is chosen
    /// for the same claim already, which a pod may name twice.
    given: Option<(Rc<str>, Rc<Bits>)>,
    /// The list of candidate volumes, and the first in it that is large enough.
    list: (usize, usize),
    /// Nodes where it can be provisioned, and of these the ones with enough capacity.
    provision: Option<(Bits, Option<Bits>)>,
}

/// Volumes chosen on a node so far.
struct ChosenVolumes<'a> {
    row: u32,
    taken: HashSet<&'a str>,
    /// The first volume of each list not skipped yet: earlier ones are taken, on other nodes, or
    /// too small for the remaining claims.
    next: Vec<usize>,
    bindings: Vec<(String, ObjectKey)>,
    made: Vec<&'a LateClaim>,
}

/// Volumes of a pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Volumes that exist, and their claims.
    pub bindings: Vec<(String, ObjectKey)>,
    /// Claims to be provisioned.
    pub provisions: Vec<ObjectKey>,
}

impl Binding {
    /// Returns the volumes on a node, or the reasons there are none.
    pub(super) fn at(&self, row: u32) -> Result<Choice, Vec<&'static str>> {
        if self.pay(self.bound.len() as u64).is_err() {
            return Err(vec![BIND_CONFLICT]);
        }
        let mut reasons = Vec::new();
        let first = self.bound.iter().find(|rows| rows.as_ref().is_none_or(|r| !r.get(row)));
        if matches!(first, Some(Some(_))) {
            reasons.push(NODE_CONFLICT);
        }
        let chosen = self.choose(row);
        if let Err(reason) = chosen {
            reasons.push(reason);
        }
        if matches!(first, Some(None)) {
            reasons.push(NO_VOLUME);
        }
        match (chosen, reasons.is_empty()) {
            (Ok(choice), true) => Ok(choice),
            _ => Err(reasons),
        }
    }

    /// Charges the attempt.
    pub(super) fn pay(&self, work: u64) -> Result<(), Exhausted> {
        self.spent.pay(work, PURPOSE)
    }

    fn choose(&self, row: u32) -> Result<Choice, &'static str> {
        let all = self.wanted.iter().map(|(wanted, _)| wanted);
        if all.clone().any(|w| w.selected.is_some_and(|selected| selected != Some(row))) {
            return Err(BIND_CONFLICT);
        }
        let mut chosen = ChosenVolumes {
            row,
            taken: HashSet::new(),
            next: vec![0; self.lists.len()],
            bindings: Vec::new(),
            made: all.filter(|w| w.selected.is_some()).map(|w| &**w).collect(),
        };
        for (wanted, times) in self.wanted.iter().filter(|(w, _)| w.selected.is_none()) {
            for _ in 0..*times {
                // Once no volume is left for a claim, none will be for its next mention.
                if !self.choose_one(wanted, &mut chosen).map_err(|_| BIND_CONFLICT)? {
                    chosen.made.push(wanted);
                    break;
                }
            }
        }
        self.provisioned(chosen)
    }

    /// Chooses a volume for a claim; false if there is none.
    fn choose_one<'a>(
        &'a self,
        wanted: &'a LateClaim,
        chosen: &mut ChosenVolumes<'a>,
    ) -> Result<bool, Exhausted> {
        self.pay(2)?;
        let found = match wanted.given.as_ref().filter(|(name, _)| !chosen.taken.contains(&**name))
        {
            Some((name, rows)) => rows.get(chosen.row).then_some(name),
            None => {
                let (list, first) = wanted.list;
                let from = chosen.next[list].max(first);
                let rest = self.lists[list].get(from..).unwrap_or_default();
                let is_it = |c: &VolumeCandidate| {
                    c.rows.get(chosen.row) && !chosen.taken.contains(&*c.name)
                };
                let at = rest.iter().position(is_it);
                chosen.next[list] = from + at.map_or(rest.len(), |at| at + 1);
                self.pay((chosen.next[list] - from) as u64)?;
                at.map(|at| &rest[at].name)
            }
        };
        let Some(name) = found else { return Ok(false) };
        chosen.taken.insert(name);
        chosen.bindings.push((name.to_string(), wanted.key.clone()));
        Ok(true)
    }

    /// Returns the choice, if the claims without a volume can be provisioned.
    fn provisioned(&self, chosen: ChosenVolumes<'_>) -> Result<Choice, &'static str> {
        let ChosenVolumes { row, bindings, made, .. } = chosen;
        self.pay(made.len() as u64).map_err(|_| BIND_CONFLICT)?;
        let (mut provisions, mut seen) = (Vec::new(), HashSet::new());
        for wanted in made {
            let Some((nodes, roomy)) = &wanted.provision else { return Err(BIND_CONFLICT) };
            if !nodes.get(row) {
                return Err(BIND_CONFLICT);
            }
            if roomy.as_ref().is_some_and(|roomy| !roomy.get(row)) {
                return Err(NOT_ENOUGH);
            }
            // One volume is provisioned, however often the pod names the claim.
            if seen.insert(&wanted.key) {
                provisions.push(wanted.key.clone());
            }
        }
        Ok(Choice { bindings, provisions })
    }
}

/// Returns the largest volume that fits, in whole bytes; `None` if the object states none.
// k8s: binder.go volumeLimit, capacitySufficient
pub(super) fn limit(capacity: &CSIStorageCapacity) -> Option<i64> {
    let size = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
    size.and_then(|size| Amount::parse(&size.0)).map(Amount::units)
}

impl Volumes {
    /// Evaluates these claims; the pod names them in this order.
    pub(super) fn binding(
        &mut self,
        cluster: &mut Cluster,
        claims: &[ObjectKey],
        order: &[usize],
        spent: &Rc<AttemptBudget>,
    ) -> Result<Binding, Exhausted> {
        let (mut bound, mut wanted) = (Vec::new(), Vec::with_capacity(claims.len()));
        let mut matcher: Option<Matcher> = None;
        for key in claims {
            let mut found = None;
            if let Some(claim) = self.claim(key).cloned() {
                if is_bound(&claim) {
                    let volume = volume_name(&claim).and_then(|name| self.volume(name)).cloned();
                    bound.push(volume.map(|volume| self.usable(cluster, &volume)));
                } else if self.waits_for_consumer(&claim) {
                    let known = match &mut matcher {
                        Some(known) => known,
                        None => matcher.insert(Matcher::of(self, spent)?),
                    };
                    found = Some(Rc::new(self.wanted(&claim, cluster, known, spent)?));
                }
            }
            wanted.push(found);
        }
        let mut named: Vec<Rc<LateClaim>> =
            order.iter().filter_map(|at| wanted[*at].clone()).collect();
        named.sort_by_key(|w| w.selected.is_none().then_some(w.size));
        let in_a_row = named.chunk_by(Rc::ptr_eq).map(|all| (Rc::clone(&all[0]), all.len()));
        let lists = matcher.map(|matcher| matcher.lists).unwrap_or_default();
        Ok(Binding { bound, wanted: in_a_row.collect(), lists, spent: Rc::clone(spent) })
    }

    fn wanted(
        &mut self,
        claim: &PersistentVolumeClaim,
        cluster: &mut Cluster,
        matcher: &mut Matcher,
        spent: &AttemptBudget,
    ) -> Result<LateClaim, Exhausted> {
        let selected = annotation(&claim.metadata, SELECTED).map(|node| cluster.row(node));
        let given = matcher.given(claim).map(|volume| {
            let name = volume.metadata.name.as_deref().unwrap_or_default();
            (name.into(), self.reachable(cluster, &volume))
        });
        let list = matcher.list(claim, self, cluster, spent)?;
        let class = self.classes.get(class_of_claim(claim)).cloned();
        let capacities = self.capacities.len() as u64;
        spent.pay(8 + if class.is_some() { capacities } else { 0 }, PURPOSE)?;
        let provision = class.and_then(|class| self.provision(cluster, claim, &class));
        let key = key_of(claim);
        let size = self.claims.get(&key).map(|claim| requested_storage(claim)).unwrap_or_default();
        Ok(LateClaim { key, size, selected, given, list, provision })
    }

    /// Returns the nodes where a claim can get this volume. Only node labels count: requirements on
    /// node names are ignored.
    // k8s: component-helpers/storage/volume/helpers.go CheckNodeAffinity
    pub(super) fn reachable(
        &mut self,
        cluster: &mut Cluster,
        volume: &PersistentVolume,
    ) -> Rc<Bits> {
        Rc::clone(&self.reach(cluster, volume).own)
    }

    /// Returns the nodes where a pod can use this volume, which is bound to its claim.
    // k8s: binder.go tryTranslatePVToCSI
    pub(super) fn usable(&mut self, cluster: &mut Cluster, volume: &PersistentVolume) -> Rc<Bits> {
        Rc::clone(&self.reach(cluster, volume).used)
    }

    fn reach(&mut self, cluster: &mut Cluster, volume: &PersistentVolume) -> &Reach {
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let nodes_changed = self.nodes_changed;
        let is_good = |known: &Reach| {
            known.version == version(&volume.metadata) && known.nodes_changed == nodes_changed
        };
        if !self.reachable.get(name).is_some_and(is_good) {
            let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
            let required = affinity.and_then(|affinity| affinity.required.as_ref());
            let terms = required.map(|required| required.node_selector_terms.clone());
            let own = Rc::new(rows(cluster, terms.clone()));
            let used = match in_tree::plugin_of(volume) {
                Some(plugin) => Rc::new(self.of_driver(cluster, plugin, volume, terms, &own)),
                None => Rc::clone(&own),
            };
            let version = version(&volume.metadata).to_owned();
            self.reachable.insert(name.to_owned(), Reach { version, nodes_changed, own, used });
        }
        &self.reachable[name]
    }

    /// Returns the nodes of a volume: on migrated nodes as the driver defines them, elsewhere its
    /// own.
    fn of_driver(
        &self,
        cluster: &mut Cluster,
        plugin: InTree,
        volume: &PersistentVolume,
        own_terms: Option<Vec<NodeSelectorTerm>>,
        own: &Bits,
    ) -> Bits {
        let mut moved = Bits::with_rows(cluster.all_rows().words().len() * 64);
        let nodes = self.csi_nodes.iter().filter(|(_, node)| in_tree::has_moved(plugin, node));
        nodes.filter_map(|(name, _)| cluster.row(name)).for_each(|row| moved.set(row));
        let mut used = own.clone();
        used.and_not(&moved);
        // A volume that the driver cannot translate fits no node of that driver.
        if !moved.is_empty() && in_tree::of_volume(volume).is_some() {
            let is_free = own_terms.is_none();
            let terms = in_tree::terms(plugin, volume, own_terms.unwrap_or_default());
            let mut of_driver = rows(cluster, (!is_free || !terms.is_empty()).then_some(terms));
            of_driver.and(&moved);
            used.or(&of_driver);
        }
        used
    }

    /// Returns the nodes where a volume can be provisioned, and of these the ones with enough
    /// capacity.
    // k8s: binder.go checkVolumeProvisions, hasEnoughCapacity
    fn provision(
        &self,
        cluster: &mut Cluster,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
    ) -> Option<(Bits, Option<Bits>)> {
        if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER {
            return None;
        }
        let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
        let terms = topologies.iter().map(|term| {
            let all = term.match_label_expressions.iter().flatten();
            let all = all.map(|r| requirement(&r.key, "In", Some(r.values.clone())));
            NodeSelectorTerm { match_expressions: Some(all.collect()), match_fields: None }
        });
        let terms: Vec<NodeSelectorTerm> = terms.collect();
        let nodes =
            if terms.is_empty() { cluster.all_rows() } else { cluster.rows_matching(&terms) };
        let driver = self.drivers.get(&class.provisioner);
        let counts = driver.is_some_and(|driver| driver.spec.storage_capacity == Some(true));
        if !counts || requests(claim).is_none() {
            return Some((nodes, None));
        }
        let size = requested_storage(claim).units();
        let mut roomy = Bits::default();
        roomy.reset(nodes.words().len() * 64);
        let name = class.metadata.name.as_deref().unwrap_or_default();
        for capacity in self.capacities.values().filter(|c| c.storage_class_name == name) {
            if let Some(topology) = &capacity.node_topology
                && limit(capacity).is_some_and(|limit| limit >= size)
            {
                roomy.or(&cluster.rows_with(requirements(topology)));
            }
        }
        Some((nodes, Some(roomy)))
    }
}

fn requirement(key: &str, operator: &str, values: Option<Vec<String>>) -> NodeSelectorRequirement {
    NodeSelectorRequirement { key: key.to_owned(), operator: operator.to_owned(), values }
}

/// Returns the nodes that meet any of these terms; all if there are no terms.
fn rows(cluster: &mut Cluster, terms: Option<Vec<NodeSelectorTerm>>) -> Bits {
    let Some(terms) = terms else { return cluster.all_rows() };
    let terms: Option<Vec<_>> = terms.into_iter().map(without_names).collect();
    match terms {
        Some(terms) => cluster.rows_matching(&terms),
        None => cluster.all_rows(),
    }
}

/// Returns a node selector term without its requirements on names; `None` for a term without other
/// requirements, which every node meets.
// k8s: component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go nodeSelectorTerm.match
fn without_names(mut term: NodeSelectorTerm) -> Option<NodeSelectorTerm> {
    let names = term.match_fields.take().is_some_and(|fields| !fields.is_empty());
    let labels = term.match_expressions.as_ref().is_some_and(|all| !all.is_empty());
    (labels || !names).then_some(term)
}

/// Converts a label selector to node requirements: the operators are the same.
fn requirements(selector: &LabelSelector) -> Vec<NodeSelectorRequirement> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| requirement(key, "In", Some(vec![value.clone()])));
    let more = selector.match_expressions.iter().flatten();
    let more = more.map(|r| requirement(&r.key, &r.operator, r.values.clone()));
    labels.chain(more).collect()
}

pub(super) fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let value = |key: &String| labels.and_then(|labels| labels.get(key));
    let meets = |r: NodeSelectorRequirement| {
        let among = |value: &String| r.values.iter().flatten().any(|v| v == value);
        match (r.operator.as_str(), value(&r.key)) {
            ("In", Some(value)) => among(value),
            ("NotIn", found) => found.is_none_or(|value| !among(value)),
            ("Exists", found) => found.is_some(),
            ("DoesNotExist", found) => found.is_none(),
            _ => false,
        }
    };
    requirements(selector).into_iter().all(meets)
}

fn requests(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage")
}

/// Returns the storage that a claim requests.
pub(super) fn requested_storage(claim: &PersistentVolumeClaim) -> Amount {
    requests(claim).and_then(|size| Amount::parse(&size.0)).unwrap_or_default()
}

pub(super) fn capacity(volume: &PersistentVolume) -> Amount {
    let all = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    all.and_then(|all| Amount::parse(&all.get("storage")?.0)).unwrap_or_default()
}

/// Checks mode and attributes class, then access modes. `None` if the former differ; else says if
/// the volume offers all access modes of the claim.
pub(super) fn modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<bool> {
    let (claim, volume) = (claim.spec.as_ref()?, volume.spec.as_ref()?);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    let fits = mode(&claim.volume_mode) == mode(&volume.volume_mode)
        && class(&claim.volume_attributes_class_name)
            == class(&volume.volume_attributes_class_name);
    let has = |wanted: &String| volume.access_modes.iter().flatten().any(|mode| mode == wanted);
    fits.then(|| claim.access_modes.iter().flatten().all(has))
}

/// Does the volume's `claimRef` name the claim? `None` for a volume without `claimRef`.
// k8s: component-helpers/storage/volume/pv_helpers.go IsVolumeBoundToClaim
pub(super) fn belongs(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<bool> {
    let to = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = to.uid.as_deref().filter(|uid| !uid.is_empty());
    let is_uid = uid.is_none_or(|uid| Some(uid) == claim.metadata.uid.as_deref());
    let is_name = to.name == claim.metadata.name && to.namespace == claim.metadata.namespace;
    Some(is_name && is_uid)
}
