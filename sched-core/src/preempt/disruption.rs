//! Disruption budgets as preemption reads them, by namespace and then by class of pods.
//!
//! Input: budgets in the order of their namespaces, pods. Output: the budgets that guard a pod.
//! Owner: pure functions, and one search for victims. Bounds: the budgets of the pods' own
//! namespaces, each compared once with each class of pods that the search meets.
//! Why by class: a user may create very many budgets, and each node has many pods.

use std::collections::HashMap;
use std::rc::Rc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::PURPOSE;
use crate::attempt_budget::{AttemptBudget, Exhausted};
use crate::intern::{FastMap, Interner, Lease, Str};
use crate::selector::Selector;
use crate::snapshot::Cluster;
use crate::snapshot::pods::PodId;

/// A disruption budget as preemption reads it.
#[derive(Clone, Debug)]
pub struct Budget {
    namespace: Str,
    selector: Selector,
    allowed: i64,
    /// Names of pods with a disruption that is already being processed, sorted.
    disrupted: Vec<String>,
    /// Protects the strings of its selector.
    _lease: Lease,
}

impl Cluster {
    /// Reads disruption budgets; one with an invalid selector protects nothing. Those of one
    /// namespace stay in their order.
    pub fn budgets<'a>(
        &mut self,
        budgets: impl IntoIterator<Item = &'a PodDisruptionBudget>,
    ) -> Vec<Budget> {
        let read = budgets.into_iter().map(|b| budget(b, &mut self.interner));
        let mut budgets: Vec<Budget> = read.collect();
        budgets.iter().for_each(|b| self.mention(&b.selector));
        budgets.sort_by_key(|budget| budget.namespace);
        budgets
    }
}

fn budget(budget: &PodDisruptionBudget, interner: &mut Interner) -> Budget {
    let spec = budget.spec.as_ref();
    let status = budget.status.as_ref();
    let selector = Selector::from_api(spec.and_then(|s| s.selector.as_ref()), interner);
    let disrupted = status.and_then(|s| s.disrupted_pods.as_ref()).into_iter().flatten();
    Budget {
        namespace: interner.intern(budget.metadata.namespace.as_deref().unwrap_or("default")),
        selector: selector.unwrap_or(Selector::Nothing),
        allowed: status.and_then(|s| s.disruptions_allowed).unwrap_or(0).into(),
        // The keys of a map are sorted.
        disrupted: disrupted.map(|(name, _)| name.clone()).collect(),
        _lease: interner.lease(),
    }
}

/// Budgets by class of the guarded pods, for classes met in a search.
pub(super) struct Guards<'a> {
    cluster: &'a Cluster,
    budgets: &'a [Budget],
    spent: &'a AttemptBudget,
    of_class: FastMap<u32, Rc<[u32]>>,
}

impl<'a> Guards<'a> {
    pub(super) fn new(
        cluster: &'a Cluster,
        budgets: &'a [Budget],
        spent: &'a AttemptBudget,
    ) -> Self {
        Self { cluster, budgets, spent, of_class: FastMap::default() }
    }

    /// Returns the indexes of the budgets that count the eviction of a pod, except those that count
    /// it already.
    pub(super) fn of(&mut self, id: PodId) -> Result<Vec<u32>, Exhausted> {
        let pod = self.cluster.pods.get(id);
        let all = self.of_class(pod.class)?;
        let name = self.cluster.text(pod.name);
        let counts = |at: &&u32| {
            let disrupted = &self.budgets[**at as usize].disrupted;
            disrupted.binary_search_by(|other| other.as_str().cmp(name)).is_err()
        };
        Ok(all.iter().filter(counts).copied().collect())
    }

    fn of_class(&mut self, class: u32) -> Result<Rc<[u32]>, Exhausted> {
        if let Some(found) = self.of_class.get(&class) {
            self.spent.pay(found.len() as u64, PURPOSE)?;
            return Ok(Rc::clone(found));
        }
        let labels = &self.cluster.classes[class as usize];
        let first = self.budgets.partition_point(|b| Some(b.namespace) < labels.namespace);
        let own = self.budgets[first..].iter();
        let own = own.take_while(|b| Some(b.namespace) == labels.namespace);
        self.spent.pay(1 + own.clone().count() as u64, PURPOSE)?;
        let guards = |b: &Budget| {
            labels.labelled && !b.selector.is_everything() && b.selector.matches(&labels.labels)
        };
        let found = own.enumerate().filter(|(_, b)| guards(b));
        let found: Rc<[u32]> = found.map(|(at, _)| (first + at) as u32).collect();
        self.of_class.insert(class, Rc::clone(&found));
        Ok(found)
    }
}

/// Remaining disruptions of budgets, for those met so far.
pub(super) struct Allowances<'a> {
    budgets: &'a [Budget],
    left: HashMap<u32, i64>,
}

impl<'a> Allowances<'a> {
    pub(super) fn of(budgets: &'a [Budget]) -> Self {
        Self { budgets, left: HashMap::new() }
    }

    /// Takes one disruption from a budget; returns true if that violates it.
    pub(super) fn take(&mut self, at: u32) -> bool {
        let allowed = self.budgets[at as usize].allowed;
        let left = self.left.entry(at).or_insert(allowed);
        *left -= 1;
        *left < 0
    }
}
