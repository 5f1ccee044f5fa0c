//! Which volumes claims have, or could have, on which nodes.
//!
//! Input: the claims of a pod. Output: for a node the volumes that would be bound and the claims that
//! would be provisioned there, or why there are none. Bounds: the volumes of the claims' classes; the
//! nodes of each volume are a set, so that a node costs a bit a volume.
// k8s: pkg/scheduler/framework/plugins/volumebinding/binder.go FindPodVolumes

use std::collections::BTreeMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{
    NodeSelectorRequirement, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim,
};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use pintle_api::informer::ObjectKey;
use pintle_api_types::quantity::Amount;
use pintle_sched_core::Cluster;
use pintle_sched_core::bits::Bits;

use super::in_tree::{self, InTree};
use super::{Volumes, annotation, class_of_claim, class_of_volume, is_bound, version, volume_name};

const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const NOT_ENOUGH: &str = "node(s) did not have enough free storage";
const NO_VOLUME: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
/// A claim whose provisioner was told to make a volume for this node.
pub(super) const SELECTED: &str = "volume.kubernetes.io/selected-node";
/// A class without a provisioner.
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// What the claims of a pod allow.
#[derive(Clone, Debug, Default)]
pub(super) struct Binding {
    /// Nodes of the volumes that claims have; `None` for a volume that is not there.
    bound: Vec<Option<Rc<Bits>>>,
    /// Claims that get their volumes with a node: those that are being provisioned in the pod's
    /// order, then the others, the smallest first.
    wanted: Vec<Wanted>,
}

/// A volume and its nodes.
type Candidate = (String, Rc<Bits>);

/// Nodes that a volume can be on: of its version, and of the nodes as they were.
#[derive(Debug)]
pub(super) struct Reach {
    version: String,
    nodes_changed: u64,
    /// As it says itself: so volumes are chosen.
    own: Rc<Bits>,
    /// As the driver says on nodes where that has taken its plugin's place: so it is used.
    used: Rc<Bits>,
}

/// A claim that gets its volume with a node.
#[derive(Clone, Debug)]
struct Wanted {
    key: ObjectKey,
    /// It is being provisioned on this node; there may be no node of that name any more.
    selected: Option<Option<u32>>,
    /// The volume that somebody gave to it, with its nodes: no other will do, unless it is chosen
    /// for the same claim already, which a pod may name twice.
    given: Option<Candidate>,
    /// Volumes that would do, the best first, with their nodes.
    candidates: Vec<Candidate>,
    /// Nodes where one can be made, and of these those with room for it.
    provision: Option<(Bits, Option<Bits>)>,
}

/// Volumes of a pod on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Volumes that exist, and their claims.
    pub bindings: Vec<(String, ObjectKey)>,
    /// Claims for which one is made.
    pub provisions: Vec<ObjectKey>,
}

impl Binding {
    /// The volumes on a node, or why there are none.
    pub(super) fn at(&self, row: u32) -> Result<Choice, Vec<&'static str>> {
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

    fn choose(&self, row: u32) -> Result<Choice, &'static str> {
        let mut choice = Choice::default();
        if self.wanted.iter().any(|w| w.selected.is_some_and(|selected| selected != Some(row))) {
            return Err(BIND_CONFLICT);
        }
        let (mut made, found): (Vec<&Wanted>, Vec<&Wanted>) =
            self.wanted.iter().partition(|wanted| wanted.selected.is_some());
        for wanted in found {
            let bindings = &choice.bindings;
            let is_free = |(name, _): &&Candidate| bindings.iter().all(|(taken, _)| taken != name);
            let is_there = |(_, rows): &&Candidate| rows.get(row);
            let found = match wanted.given.as_ref().filter(is_free) {
                Some(given) => Some(given).filter(is_there),
                None => wanted.candidates.iter().filter(is_there).find(is_free),
            };
            match found {
                Some((name, _)) => choice.bindings.push((name.clone(), wanted.key.clone())),
                None => made.push(wanted),
            }
        }
        for wanted in made {
            let Some((nodes, roomy)) = &wanted.provision else { return Err(BIND_CONFLICT) };
            if !nodes.get(row) {
                return Err(BIND_CONFLICT);
            }
            if roomy.as_ref().is_some_and(|roomy| !roomy.get(row)) {
                return Err(NOT_ENOUGH);
            }
            choice.provisions.push(wanted.key.clone());
        }
        Ok(choice)
    }
}

/// The largest volume that there is room for, in whole bytes; `None` for none.
// k8s: binder.go volumeLimit, capacitySufficient
pub(super) fn limit(capacity: &CSIStorageCapacity) -> Option<i64> {
    let size = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref());
    size.and_then(|size| Amount::parse(&size.0)).map(Amount::units)
}

impl Volumes {
    /// What these claims allow.
    pub(super) fn binding(&mut self, cluster: &mut Cluster, claims: &[ObjectKey]) -> Binding {
        let mut binding = Binding::default();
        for key in claims {
            let Some(claim) = self.claim(key).cloned() else { continue };
            if is_bound(&claim) {
                let volume = volume_name(&claim).and_then(|name| self.volume(name)).cloned();
                binding.bound.push(volume.map(|volume| self.usable(cluster, &volume)));
            } else if self.waits_for_consumer(&claim) {
                binding.wanted.push(self.wanted(cluster, key, &claim));
            }
        }
        let size = |key: &ObjectKey| self.claims.get(key).map(|claim| asked(claim));
        binding.wanted.sort_by_key(|w| w.selected.is_none().then(|| size(&w.key)));
        binding
    }

    fn wanted(
        &mut self,
        cluster: &mut Cluster,
        key: &ObjectKey,
        claim: &PersistentVolumeClaim,
    ) -> Wanted {
        let selected = annotation(&claim.metadata, SELECTED).map(|node| cluster.row(node));
        let (given, candidates) = self.candidates(claim);
        let mut with_nodes = |volume: Rc<PersistentVolume>| {
            let name = volume.metadata.name.clone().unwrap_or_default();
            (name, self.reachable(cluster, &volume))
        };
        let given = given.map(&mut with_nodes);
        let candidates = candidates.into_iter().map(with_nodes).collect();
        let class = self.classes.get(class_of_claim(claim)).cloned();
        let provision = class.and_then(|class| self.provision(cluster, claim, &class));
        Wanted { key: key.clone(), selected, given, candidates, provision }
    }

    /// Nodes where a claim can have this volume. Their labels alone count: what a term says of a
    /// node's name is not asked.
    // k8s: component-helpers/storage/volume/helpers.go CheckNodeAffinity
    fn reachable(&mut self, cluster: &mut Cluster, volume: &PersistentVolume) -> Rc<Bits> {
        Rc::clone(&self.reach(cluster, volume).own)
    }

    /// Nodes where a pod can use this volume, which its claim has.
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
            let used = match InTree::of(volume) {
                Some(plugin) => Rc::new(self.of_driver(cluster, plugin, (volume, terms), &own)),
                None => Rc::clone(&own),
            };
            let version = version(&volume.metadata).to_owned();
            self.reachable.insert(name.to_owned(), Reach { version, nodes_changed, own, used });
        }
        &self.reachable[name]
    }

    /// Nodes of a volume: where its plugin has moved as the driver says, elsewhere its own.
    fn of_driver(
        &self,
        cluster: &mut Cluster,
        plugin: InTree,
        (volume, own_terms): (&PersistentVolume, Option<Vec<NodeSelectorTerm>>),
        own: &Bits,
    ) -> Bits {
        let mut moved = Bits::with_rows(cluster.all_rows().words().len() * 64);
        let nodes = self.csi_nodes.iter().filter(|(_, node)| plugin.has_moved(node));
        nodes.filter_map(|(name, _)| cluster.row(name)).for_each(|row| moved.set(row));
        let mut used = own.clone();
        used.and_not(&moved);
        // One that its driver cannot have can be on no node of that driver.
        if !moved.is_empty() && in_tree::of_volume(volume).is_some() {
            let is_free = own_terms.is_none();
            let terms = in_tree::terms(plugin, volume, own_terms.unwrap_or_default());
            let mut of_driver = rows(cluster, (!is_free || !terms.is_empty()).then_some(terms));
            of_driver.and(&moved);
            used.or(&of_driver);
        }
        used
    }

    /// The volume that was given to a claim, and others that it could have, the best first.
    // k8s: component-helpers/storage/volume/pv_helpers.go FindMatchingVolume
    fn candidates(
        &self,
        claim: &PersistentVolumeClaim,
    ) -> (Option<Rc<PersistentVolume>>, Vec<Rc<PersistentVolume>>) {
        let size = asked(claim);
        let class = class_of_claim(claim);
        let (mut given, mut found) = (None, Vec::new());
        for name in self.volumes.keys() {
            let Some(volume) = self.volume(name) else { continue };
            let room = capacity(volume);
            if class_of_volume(volume) != class
                || room < size
                || modes(claim, volume).is_none()
                || volume.metadata.deletion_timestamp.is_some()
            {
                continue;
            }
            match belongs(volume, claim) {
                Some(false) => continue,
                Some(true) => {
                    given.get_or_insert_with(|| Rc::clone(volume));
                    continue;
                }
                None => {}
            }
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let labels = volume.metadata.labels.as_ref();
            let is_wanted = selector.is_none_or(|selector| matches(selector, labels));
            if phase == Some("Available") && is_wanted && modes(claim, volume) == Some(true) {
                found.push((room, Rc::clone(volume)));
            }
        }
        found.sort_by_key(|(room, _)| *room);
        (given, found.into_iter().map(|(_, volume)| volume).collect())
    }

    /// Where a volume can be made, and of these the nodes with room for it.
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
        let size = asked(claim).units();
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

/// Nodes that meet any of these terms, or all where there are none to meet.
fn rows(cluster: &mut Cluster, terms: Option<Vec<NodeSelectorTerm>>) -> Bits {
    let Some(terms) = terms else { return cluster.all_rows() };
    let terms: Option<Vec<_>> = terms.into_iter().map(without_names).collect();
    match terms {
        Some(terms) => cluster.rows_matching(&terms),
        None => cluster.all_rows(),
    }
}

/// A term of nodes without what it says of their names; `None` for one that says nothing else,
/// which all meet.
// k8s: component-helpers/scheduling/corev1/nodeaffinity/nodeaffinity.go nodeSelectorTerm.match
fn without_names(mut term: NodeSelectorTerm) -> Option<NodeSelectorTerm> {
    let names = term.match_fields.take().is_some_and(|fields| !fields.is_empty());
    let labels = term.match_expressions.as_ref().is_some_and(|all| !all.is_empty());
    (labels || !names).then_some(term)
}

/// A selector of labels as one of nodes: the operators are the same.
fn requirements(selector: &LabelSelector) -> Vec<NodeSelectorRequirement> {
    let labels = selector.match_labels.iter().flatten();
    let labels = labels.map(|(key, value)| requirement(key, "In", Some(vec![value.clone()])));
    let more = selector.match_expressions.iter().flatten();
    let more = more.map(|r| requirement(&r.key, &r.operator, r.values.clone()));
    labels.chain(more).collect()
}

fn matches(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
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

/// What a claim asks for.
fn asked(claim: &PersistentVolumeClaim) -> Amount {
    requests(claim).and_then(|size| Amount::parse(&size.0)).unwrap_or_default()
}

fn capacity(volume: &PersistentVolume) -> Amount {
    let all = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    all.and_then(|all| Amount::parse(&all.get("storage")?.0)).unwrap_or_default()
}

/// Whether a volume is of the claim's mode and attributes, and then whether it can be accessed as the
/// claim wants.
fn modes(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<bool> {
    let (claim, volume) = (claim.spec.as_ref()?, volume.spec.as_ref()?);
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "Filesystem".to_owned());
    let class = |class: &Option<String>| class.clone().unwrap_or_default();
    let fits = mode(&claim.volume_mode) == mode(&volume.volume_mode)
        && class(&claim.volume_attributes_class_name)
            == class(&volume.volume_attributes_class_name);
    let has = |wanted: &String| volume.access_modes.iter().flatten().any(|mode| mode == wanted);
    fits.then(|| claim.access_modes.iter().flatten().all(has))
}

/// Whether a volume belongs to a claim; `None` for one that belongs to nobody.
// k8s: component-helpers/storage/volume/pv_helpers.go IsVolumeBoundToClaim
pub(super) fn belongs(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<bool> {
    let to = volume.spec.as_ref()?.claim_ref.as_ref()?;
    let uid = to.uid.as_deref().filter(|uid| !uid.is_empty());
    let is_uid = uid.is_none_or(|uid| Some(uid) == claim.metadata.uid.as_deref());
    let is_name = to.name == claim.metadata.name && to.namespace == claim.metadata.namespace;
    Some(is_name && is_uid)
}
