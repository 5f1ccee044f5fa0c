//! Resource quotas: counts what the objects of a namespace use.
//!
//! Reads quotas, pods, services, claims, and how many objects of every other kind there are.
//! Writes: the status of quotas. Admission adds to the counts when objects are created; this
//! controller corrects them when objects go, and all of them once in a while. A kind that is not
//! listed keeps its last count, and others are not kept waiting.
// k8s: pkg/controller/resourcequota/resource_quota_controller.go
// k8s: pkg/controller/resourcequota/resource_quota_monitor.go

mod devices;
mod evaluator;
mod scopes;
#[cfg(test)]
mod tests;
mod usage;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::time::Duration;

use pintle_api_types::key::ObjectKey;
use pintle_api_types::kind::{
    DEVICE_CLASSES, Kind, PERSISTENT_VOLUME_CLAIMS, PODS, RESOURCE_CLAIMS, RESOURCE_QUOTAS,
    SERVICES,
};
use pintle_api_types::quantity::{Amount, Amounts, Quantity};
use pintle_api_types::request::{Request, Target};
use pintle_api_types::symbol::Symbol;
use pintle_controllers_core::frame::{Controller, Now, Outcome, Stop, Transcript, Wakes};
use pintle_controllers_core::kept::Kept;
use pintle_controllers_core::kinds::ResourceQuota;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::json;

use devices::DeviceClasses;
use evaluator::{Content, Evaluator};

/// The controller.
#[derive(Debug)]
pub struct ResourceQuotas {
    /// `--concurrent-resource-quota-syncs`.
    pub workers: usize,
    /// `--resource-quota-sync-period`; zero for none.
    pub resync: Duration,
    /// The API server has resource claims.
    pub reads_claims: bool,
    evaluators: Vec<Evaluator>,
    classes: Rc<DeviceClasses>,
    /// Quotas of each namespace.
    quotas: HashMap<Symbol, usize>,
}

impl ResourceQuotas {
    /// A controller that counts what does not depend on discovery.
    pub fn new(workers: usize, resync: Duration, reads_claims: bool) -> Self {
        Self {
            workers,
            resync,
            reads_claims,
            evaluators: evaluator::fixed(reads_claims),
            classes: Rc::default(),
            quotas: HashMap::new(),
        }
    }

    fn note_quota(&mut self, change: &Change, wake: &mut Wakes<ObjectKey>) {
        let Change::ResourceQuota(delta) = change else { return };
        let namespace = &delta.object().metadata.namespace;
        let count = self.quotas.entry(namespace.clone()).or_default();
        *count += usize::from(delta.old.is_none());
        *count -= usize::from(delta.new.is_none());
        if *count == 0 {
            self.quotas.remove(namespace);
        }
        let Some(quota) = &delta.new else { return };
        // Changes of the status are this controller's own, or admission's.
        let is_same = |old: &Rc<Kept<ResourceQuota>>| is_equal(&old.spec.hard, &quota.spec.hard);
        if !delta.old.as_ref().is_some_and(is_same) {
            wake.now(quota.metadata.key());
        }
    }

    /// Wakes the quotas of a namespace that count something of a kind.
    // k8s: resource_quota_controller.go replenishQuota
    fn replenish(&self, kind: Kind, namespace: &str, tables: &Tables, wake: &mut Wakes<ObjectKey>) {
        let Some(evaluator) = self.evaluators.iter().find(|known| known.is_for(kind)) else {
            return;
        };
        for quota in tables.resource_quotas.in_namespace(namespace) {
            let names = quota.status.hard.iter().flatten().map(|(name, _)| &**name);
            if names.into_iter().any(|name| evaluator.matches(name, &self.classes)) {
                wake.now(quota.metadata.key());
            }
        }
    }

    fn discover(&mut self, tables: &Tables) {
        self.evaluators = evaluator::fixed(self.reads_claims);
        for kind in evaluator::counted(&tables.discovery) {
            if !self.evaluators.iter().any(|known| known.is_for(kind)) {
                self.evaluators.push(Evaluator::count(kind, None));
            }
        }
    }

    fn has_quota(&self, namespace: &Symbol) -> bool {
        self.quotas.contains_key(namespace)
    }
}

/// A quota and what its namespace has.
#[derive(Debug)]
pub struct QuotaSnapshot {
    quota: Rc<Kept<ResourceQuota>>,
    evaluators: Vec<(Evaluator, Content)>,
    classes: Rc<DeviceClasses>,
    resync: Duration,
}

impl Controller for ResourceQuotas {
    type Key = ObjectKey;
    type Snapshot = QuotaSnapshot;
    type Note = ();

    const NAME: &'static str = "resourcequota-controller";

    fn key_of(object: &ObjectKey) -> Option<ObjectKey> {
        Some(object.clone())
    }

    fn kinds(&self) -> Vec<Kind> {
        let mut kinds = vec![RESOURCE_QUOTAS, PODS, SERVICES, PERSISTENT_VOLUME_CLAIMS];
        if self.reads_claims {
            kinds.extend([RESOURCE_CLAIMS, DEVICE_CLASSES]);
        }
        kinds
    }

    fn reads_all_metadata(&self) -> bool {
        true
    }

    // Upstream has as many workers for quotas that were never counted as for others.
    fn workers(&self) -> usize {
        self.workers * 2
    }

    fn handle_change(
        &mut self,
        change: &Change,
        tables: &Tables,
        now: Now,
        wake: &mut Wakes<ObjectKey>,
    ) {
        match change {
            Change::ResourceQuota(_) => self.note_quota(change, wake),
            Change::Discovered => {
                self.discover(tables);
                tables.resource_quotas.iter().for_each(|quota| wake.now(quota.metadata.key()));
            }
            Change::Listed(kind) if !self.quotas.is_empty() => {
                for namespace in self.quotas.keys() {
                    self.replenish(*kind, namespace, tables, wake);
                }
            }
            Change::DeviceClass(_) => self.classes = Rc::new(DeviceClasses::of(tables)),
            _ => {}
        }
        let (Some(kind), Some(meta)) = (change.kind(), change.old_meta()) else { return };
        // A part of a kind that is followed twice counts there.
        let is_counted = kind.fields.is_empty() && self.has_quota(&meta.namespace);
        if is_counted && (change.new_meta().is_none() || usage::is_replenishing(change, now.wall)) {
            self.replenish(kind, &meta.namespace, tables, wake);
        }
    }

    fn snapshot(&mut self, key: &ObjectKey, tables: &Tables, _: Now) -> Option<QuotaSnapshot> {
        let quota = tables.resource_quotas.get(key)?;
        let counts = |evaluator: &&Evaluator| {
            quota.spec.hard.keys().any(|name| evaluator.matches(name, &self.classes))
        };
        let evaluators = self.evaluators.iter().filter(counts);
        Some(QuotaSnapshot {
            quota: Rc::clone(quota),
            evaluators: evaluators
                .map(|evaluator| {
                    let content = evaluator.content(key.namespace(), tables);
                    (evaluator.clone(), content)
                })
                .collect(),
            classes: Rc::clone(&self.classes),
            resync: self.resync,
        })
    }

    // k8s: resource_quota_controller.go syncResourceQuota
    fn sync(snapshot: &QuotaSnapshot, asked: &mut Transcript) -> Result<Outcome<()>, Stop> {
        let quota = &snapshot.quota;
        let counted = snapshot.count(asked);
        let used = used(quota, &counted);
        let status = &quota.status;
        let empty = BTreeMap::new();
        let is_limit_new = !is_equal(&quota.spec.hard, status.hard.as_ref().unwrap_or(&empty));
        let is_new = status.used.is_none() && !quota.spec.hard.is_empty();
        let is_used_new = !is_equal(&used, status.used.as_ref().unwrap_or(&empty));
        if is_limit_new || is_new || is_used_new {
            explain(&used, status.used.as_ref().unwrap_or(&empty), asked);
            let mut body = quota.value();
            let hard = &body["spec"]["hard"];
            let hard = if hard.is_null() { json!({}) } else { hard.clone() };
            let texts: BTreeMap<&str, &str> =
                used.iter().map(|(name, quantity)| (&**name, quantity.as_str())).collect();
            body["status"] = json!({"hard": hard, "used": texts});
            let target = Target::status(RESOURCE_QUOTAS, quota.metadata.key());
            asked.send(Request::Replace { target, body })??;
        }
        Ok(Outcome { again: snapshot.next(asked), notes: Vec::new() })
    }
}

/// Records which counts are new.
fn explain(
    used: &BTreeMap<Symbol, Quantity>,
    last: &BTreeMap<Symbol, Quantity>,
    asked: &mut Transcript,
) {
    for (name, quantity) in used {
        match last.get(name) {
            Some(known) if known.amount() == quantity.amount() => {}
            Some(known) => asked.because(format!("{name}: {quantity} are used, was {known}")),
            None => asked.because(format!("{name}: {quantity} are used")),
        }
    }
}

/// The last counts, replaced by new ones as far as there are any, of what has a limit.
fn used(quota: &ResourceQuota, counted: &Amounts) -> BTreeMap<Symbol, Quantity> {
    let last = quota.status.used.as_ref();
    let known = |name: &Symbol| {
        let new = counted.get(&**name).map(|amount| {
            amount.canonical().parse().expect("the canonical text of an amount is a quantity")
        });
        new.or_else(|| last.and_then(|used| used.get(name)).cloned())
    };
    let names = quota.spec.hard.keys();
    names.filter_map(|name| Some((name.clone(), known(name)?))).collect()
}

// k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/resources.go Equals
fn is_equal(one: &BTreeMap<Symbol, Quantity>, other: &BTreeMap<Symbol, Quantity>) -> bool {
    one.len() == other.len()
        && one.iter().all(|(name, quantity)| {
            other.get(name).is_some_and(|known| known.amount() == quantity.amount())
        })
}

impl QuotaSnapshot {
    /// Counts what the quota limits; what cannot be counted is left out.
    // k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/resources.go CalculateUsage
    fn count(&self, asked: &mut Transcript) -> Amounts {
        let hard = self.quota.spec.hard.keys();
        let mut matched: BTreeSet<&str> = hard.map(|name| &**name).collect();
        let mut total = Amounts::new();
        for (evaluator, content) in &self.evaluators {
            let names = matched.iter().copied();
            let names: Vec<_> =
                names.filter(|name| evaluator.matches(name, &self.classes)).collect();
            if names.is_empty() {
                continue;
            }
            if let Content::Unlisted(kind) = content {
                asked.because(format!("{kind:?} are not listed yet, so the last count stays"));
                matched.retain(|name| !names.contains(name));
                continue;
            }
            for name in &names {
                total.entry((*name).to_owned()).or_insert(Amount::ZERO);
            }
            let spec = &self.quota.spec;
            add(&mut total, &content.usage(evaluator, spec, &self.classes, asked.now()));
        }
        // Names that no evaluator counts keep what they have.
        total.retain(|name, _| matched.contains(&**name));
        total
    }

    /// When the quota is counted again: also when a pod that is being deleted stops counting.
    fn next(&self, asked: &Transcript) -> Option<Duration> {
        let pods = self.evaluators.iter().filter_map(|(_, content)| content.next(asked.now()));
        let resync = Some(self.resync).filter(|resync| !resync.is_zero());
        pods.chain(resync).min()
    }
}

/// Adds the amounts of a list to another.
// k8s: staging/src/k8s.io/apiserver/pkg/quota/v1/resources.go Add
fn add(total: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let known = total.entry(name.clone()).or_insert(Amount::ZERO);
        *known = *known + *amount;
    }
}
