//! Candidate volumes of unbound claims, found once for all claims with equal requirements.
//!
//! Input: the volumes of the API, claims of one pod. Output: for a claim the volume reserved for
//! it, and a list of others, the smallest first. Owner: one PreFilter of a pod. Bounds: one walk
//! over the volumes, and one over those of a class for each kind of claim; claims of one kind share
//! their list. Why shared: a pod may name thousands of claims, and a class may have thousands of
//! volumes.
// k8s: component-helpers/storage/volume/pv_helpers.go FindMatchingVolume

use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use pintle_api_types::quantity::Amount;
use pintle_sched_core::Cluster;
use pintle_sched_core::attempt_budget::{AttemptBudget, Exhausted};
use pintle_sched_core::bits::Bits;

use super::binding::{belongs, capacity, matches, modes, requested_storage};
use super::{Volumes, class_of_claim, class_of_volume};

/// Label of budget steps spent on matching.
pub(super) const PURPOSE: &str = "matching volumes to claims";

/// A volume and its nodes.
#[derive(Clone, Debug)]
pub(super) struct VolumeCandidate {
    room: Amount,
    pub(super) name: Rc<str>,
    pub(super) rows: Rc<Bits>,
}

/// Volumes, ordered by size.
pub(super) type Candidates = Rc<[VolumeCandidate]>;

/// Properties of a claim that decide which volumes fit, except its size: class, mode, attributes
/// class, access modes and selector.
type Kind = (String, String, String, Vec<String>, String);

/// Namespace and name.
type Owner = (Option<String>, Option<String>);

/// Volumes of one class that are not being deleted.
#[derive(Debug, Default)]
struct OfClass {
    /// Available volumes without `claimRef`, the smallest first.
    free: Vec<(Amount, Rc<PersistentVolume>)>,
    /// Volumes with `claimRef`, by the name of the claim.
    owned: HashMap<Owner, Vec<Rc<PersistentVolume>>>,
}

/// Volumes by class, and the candidate lists built from them.
#[derive(Debug)]
pub(super) struct Matcher {
    classes: HashMap<String, OfClass>,
    kinds: HashMap<Kind, usize>,
    pub(super) lists: Vec<Candidates>,
}

impl Matcher {
    /// Groups the volumes by class.
    pub(super) fn of(volumes: &Volumes, spent: &AttemptBudget) -> Result<Self, Exhausted> {
        spent.pay(volumes.volumes.len() as u64 * 8, PURPOSE)?;
        let mut classes: HashMap<String, OfClass> = HashMap::new();
        for name in volumes.volumes.keys() {
            let Some(volume) = volumes.volume(name) else { continue };
            if volume.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let class = class_of_volume(volume);
            if !classes.contains_key(class) {
                classes.insert(class.to_owned(), OfClass::default());
            }
            let Some(of_class) = classes.get_mut(class) else { continue };
            if let Some(to) = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()) {
                let owner = (to.namespace.clone(), to.name.clone());
                of_class.owned.entry(owner).or_default().push(Rc::clone(volume));
                continue;
            }
            let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
            if phase == Some("Available") {
                of_class.free.push((capacity(volume), Rc::clone(volume)));
            }
        }
        classes.values_mut().for_each(|of_class| of_class.free.sort_by_key(|(room, _)| *room));
        Ok(Self { classes, kinds: HashMap::new(), lists: Vec::new() })
    }

    /// Returns the volume reserved for a claim.
    pub(super) fn given(&self, claim: &PersistentVolumeClaim) -> Option<Rc<PersistentVolume>> {
        let owner = (claim.metadata.namespace.clone(), claim.metadata.name.clone());
        let size = requested_storage(claim);
        let does = |volume: &&Rc<PersistentVolume>| {
            capacity(volume) >= size
                && modes(claim, volume).is_some()
                && belongs(volume, claim) == Some(true)
        };
        self.classes.get(class_of_claim(claim))?.owned.get(&owner)?.iter().find(does).cloned()
    }

    /// Returns the number of a claim's candidate list, and in it the index of the first volume that
    /// is large enough.
    pub(super) fn list(
        &mut self,
        claim: &PersistentVolumeClaim,
        volumes: &mut Volumes,
        cluster: &mut Cluster,
        spent: &AttemptBudget,
    ) -> Result<(usize, usize), Exhausted> {
        let kind = kind(claim);
        let at = match self.kinds.get(&kind) {
            Some(at) => *at,
            None => {
                let list = self.new_list(claim, volumes, cluster, spent)?;
                self.lists.push(list);
                self.kinds.insert(kind, self.lists.len() - 1);
                self.lists.len() - 1
            }
        };
        let size = requested_storage(claim);
        Ok((at, self.lists[at].partition_point(|candidate| candidate.room < size)))
    }

    fn new_list(
        &self,
        claim: &PersistentVolumeClaim,
        volumes: &mut Volumes,
        cluster: &mut Cluster,
        spent: &AttemptBudget,
    ) -> Result<Candidates, Exhausted> {
        let of_class = self.classes.get(class_of_claim(claim));
        let free = of_class.map_or(&[][..], |of_class| &of_class.free);
        let selector = claim.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        let words = selector.map_or(0, |s| {
            let values = s.match_expressions.iter().flatten();
            let values = values.map(|r| 1 + r.values.as_ref().map_or(0, Vec::len));
            s.match_labels.as_ref().map_or(0, |labels| labels.len()) + values.sum::<usize>()
        });
        spent.pay_bytes((free.len() * size_of::<VolumeCandidate>()) as u64, PURPOSE)?;
        let mut list = Vec::new();
        for (room, volume) in free {
            spent.pay(4 + 8 * words as u64, PURPOSE)?;
            let labels = volume.metadata.labels.as_ref();
            if modes(claim, volume) != Some(true) || !selector.is_none_or(|s| matches(s, labels)) {
                continue;
            }
            let name = volume.metadata.name.as_deref().unwrap_or_default().into();
            let rows = volumes.reachable(cluster, volume);
            list.push(VolumeCandidate { room: *room, name, rows });
        }
        Ok(list.into())
    }
}

fn kind(claim: &PersistentVolumeClaim) -> Kind {
    let spec = claim.spec.as_ref();
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    let mut access: Vec<String> =
        spec.and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
    access.sort_unstable();
    access.dedup();
    let selector = spec.and_then(|spec| spec.selector.as_ref());
    (
        class_of_claim(claim).to_owned(),
        text(spec.and_then(|spec| spec.volume_mode.as_ref())),
        text(spec.and_then(|spec| spec.volume_attributes_class_name.as_ref())),
        access,
        selector.map(|selector| format!("{selector:?}")).unwrap_or_default(),
    )
}
