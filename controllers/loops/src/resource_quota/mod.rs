//! Resource quotas: counts what the objects of a namespace use.
//!
//! Reads quotas, pods, services, claims, and how many objects of every other kind there are.
//! Writes: the status of quotas. Admission adds to the counts when objects are created; this
//! controller corrects them when objects are deleted, and all of them once in a while. What
//! admission does not know of, because the quota or its limit was newer than its cache, is raised,
//! see `key`. A kind that is not listed keeps its last count, and others are not kept waiting.
// k8s: pkg/controller/resourcequota/resource_quota_controller.go
// k8s: pkg/controller/resourcequota/resource_quota_monitor.go

mod devices;
mod evaluator;
mod key;
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
use pintle_controllers_core::frame::{
    Controller, Now, SyncOutcome, Transcript, TranscriptStop, Wakes,
};
use pintle_controllers_core::kept::KeptObject;
use pintle_controllers_core::kinds::ResourceQuota;
use pintle_controllers_core::tables::{Change, Tables};
use serde_json::json;

use devices::DeviceClasses;
use evaluator::{Evaluator, NamespaceContent};
pub use key::QuotaKey;
use key::RAISE_WAIT;

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

    fn note_quota(&mut self, change: &Change, wake: &mut Wakes<QuotaKey>) {
        let Change::ResourceQuota(delta) = change else { return };
        let namespace = &delta.object().metadata.namespace;
        let count = self.quotas.entry(namespace.clone()).or_default();
        *count += usize::from(delta.old.is_none());
        *count -= usize::from(delta.new.is_none());
        if *count == 0 {
            self.quotas.remove(namespace);
        }
        let Some(quota) = &delta.new else { return };
        match &delta.old {
            Some(old) if is_equal(&old.spec.hard, &quota.spec.hard) => {
                // A count of this controller's may be older than an object that is known by now.
                if old.status.used != quota.status.used {
                    wake.after(QuotaKey::raise(quota.metadata.key()), RAISE_WAIT);
                }
            }
            _ => wake.now(QuotaKey::whole(quota.metadata.key())),
        }
    }

    /// The quotas of a namespace that count something of a kind.
    // k8s: resource_quota_controller.go replenishQuota
    fn counting<'a>(
        &'a self,
        kind: Kind,
        namespace: &'a str,
        tables: &'a Tables,
    ) -> impl Iterator<Item = ObjectKey> + 'a {
        let evaluator = self.evaluators.iter().find(|known| known.is_for(kind));
        let quotas = evaluator.map(|_| tables.resource_quotas.in_namespace(namespace));
        let is_counting = move |quota: &&Rc<KeptObject<ResourceQuota>>| {
            // By its spec, because the status may not be known yet while an earlier count runs.
            let mut names = quota.spec.hard.keys().map(|name| &**name);
            evaluator.is_some_and(|known| names.any(|name| known.matches(name, &self.classes)))
        };
        quotas.into_iter().flatten().filter(is_counting).map(|quota| quota.metadata.key())
    }

    /// An object was added, deleted, or changed what it uses.
    fn replenish(&self, change: &Change, tables: &Tables, now: Now, wake: &mut Wakes<QuotaKey>) {
        let Some(kind) = change.kind() else { return };
        let Some(meta) = change.new_meta().or(change.old_meta()) else { return };
        // A part of a kind that is followed twice counts there.
        if !kind.fields.is_empty() || !self.has_quota(&meta.namespace) {
            return;
        }
        let is_added = change.old_meta().is_none();
        if is_added && tables.is_synced(kind) {
            for quota in self.counting(kind, &meta.namespace, tables) {
                wake.after(QuotaKey::raise(quota), RAISE_WAIT);
            }
        } else if change.new_meta().is_none() || usage::is_replenishing(change, now.wall) {
            for quota in self.counting(kind, &meta.namespace, tables) {
                wake.now(QuotaKey::whole(quota));
            }
        }
    }

    /// Counts by classes of devices depend on what the classes stand for.
    fn note_classes(&mut self, tables: &Tables, wake: &mut Wakes<QuotaKey>) {
        let old = std::mem::replace(&mut self.classes, Rc::new(DeviceClasses::of(tables)));
        if !tables.is_synced(DEVICE_CLASSES) || *old == *self.classes {
            return;
        }
        for quota in tables.resource_quotas.iter() {
            let mut names = quota.spec.hard.keys();
            let is_of =
                |name: &Symbol, classes: &DeviceClasses| devices::depends_on_classes(name, classes);
            if names.any(|name| is_of(name, &old) || is_of(name, &self.classes)) {
                wake.now(QuotaKey::whole(quota.metadata.key()));
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
    quota: Rc<KeptObject<ResourceQuota>>,
    evaluators: Vec<(Evaluator, NamespaceContent)>,
    classes: Rc<DeviceClasses>,
    resync: Duration,
    /// Counts may only become higher.
    is_raise: bool,
}

impl Controller for ResourceQuotas {
    type Key = QuotaKey;
    type Snapshot = QuotaSnapshot;
    type Note = ();

    const NAME: &'static str = "resourcequota-controller";

    fn key_of(object: &ObjectKey) -> Option<QuotaKey> {
        Some(QuotaKey::whole(object.clone()))
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
        wake: &mut Wakes<QuotaKey>,
    ) {
        match change {
            Change::ResourceQuota(_) => self.note_quota(change, wake),
            Change::Discovered => {
                self.discover(tables);
                let quotas = tables.resource_quotas.iter();
                quotas.for_each(|quota| wake.now(QuotaKey::whole(quota.metadata.key())));
            }
            Change::Listed(kind) => {
                let namespaces = self.quotas.keys();
                let quotas =
                    namespaces.flat_map(|namespace| self.counting(*kind, namespace, tables));
                quotas.for_each(|quota| wake.now(QuotaKey::whole(quota)));
            }
            Change::DeviceClass(_) => self.note_classes(tables, wake),
            _ => {}
        }
        self.replenish(change, tables, now, wake);
    }

    fn snapshot(&mut self, key: &QuotaKey, tables: &Tables, _: Now) -> Option<QuotaSnapshot> {
        let quota = tables.resource_quotas.get(&key.quota)?;
        let counts = |evaluator: &&Evaluator| {
            quota.spec.hard.keys().any(|name| evaluator.matches(name, &self.classes))
        };
        let evaluators = self.evaluators.iter().filter(counts);
        Some(QuotaSnapshot {
            quota: Rc::clone(quota),
            evaluators: evaluators
                .map(|evaluator| {
                    let content = evaluator.content(key.quota.namespace(), tables);
                    (evaluator.clone(), content)
                })
                .collect(),
            classes: Rc::clone(&self.classes),
            resync: self.resync,
            is_raise: key.is_raise,
        })
    }

    // k8s: resource_quota_controller.go syncResourceQuota
    fn sync(
        snapshot: &QuotaSnapshot,
        transcript: &mut Transcript,
    ) -> Result<SyncOutcome<()>, TranscriptStop> {
        let quota = &snapshot.quota;
        let counted = snapshot.count(transcript);
        if snapshot.is_raise {
            if let Some(used) = raised(quota, &counted) {
                write(quota, &used, transcript)?;
            }
            return Ok(SyncOutcome::done());
        }
        let used = used(quota, &counted);
        let status = &quota.status;
        let is_new = status.used.is_none() && !quota.spec.hard.is_empty();
        let empty = BTreeMap::new();
        let is_used_new = !is_equal(&used, status.used.as_ref().unwrap_or(&empty));
        if !has_current_limits(quota) || is_new || is_used_new {
            write(quota, &used, transcript)?;
        }
        Ok(SyncOutcome::new(snapshot.next(transcript), Vec::new()))
    }
}

/// The limits of the status are those of the spec.
fn has_current_limits(quota: &ResourceQuota) -> bool {
    let empty = BTreeMap::new();
    is_equal(&quota.spec.hard, quota.status.hard.as_ref().unwrap_or(&empty))
}

/// The counts with those that are higher than known; `None` if none is.
fn raised(quota: &ResourceQuota, counted: &Amounts) -> Option<BTreeMap<Symbol, Quantity>> {
    // Without current limits a whole count is on its way.
    let last = quota.status.used.as_ref().filter(|_| has_current_limits(quota))?;
    let mut used = last.clone();
    let mut is_any = false;
    for (name, known) in &mut used {
        let counted = counted.get(&**name).filter(|amount| **amount > known.amount());
        if let Some(amount) = counted {
            (*known, is_any) = (quantity(amount), true);
        }
    }
    is_any.then_some(used)
}

/// Writes the counts.
fn write(
    quota: &KeptObject<ResourceQuota>,
    used: &BTreeMap<Symbol, Quantity>,
    transcript: &mut Transcript,
) -> Result<(), TranscriptStop> {
    explain(used, quota.status.used.as_ref().unwrap_or(&BTreeMap::new()), transcript);
    let mut body = quota.value();
    let hard = &body["spec"]["hard"];
    let hard = if hard.is_null() { json!({}) } else { hard.clone() };
    let texts: BTreeMap<&str, &str> =
        used.iter().map(|(name, quantity)| (&**name, quantity.as_str())).collect();
    body["status"] = json!({"hard": hard, "used": texts});
    let target = Target::status(RESOURCE_QUOTAS, quota.metadata.key());
    transcript.send(Request::Replace { target, body })??;
    Ok(())
}

/// Records which counts are new.
fn explain(
    used: &BTreeMap<Symbol, Quantity>,
    last: &BTreeMap<Symbol, Quantity>,
    transcript: &mut Transcript,
) {
    for (name, quantity) in used {
        match last.get(name) {
            Some(known) if known.amount() == quantity.amount() => {}
            Some(known) => transcript.because(format!("{name}: {quantity} are used, was {known}")),
            None => transcript.because(format!("{name}: {quantity} are used")),
        }
    }
}

/// The last counts, replaced by new ones as far as there are any, of what has a limit.
fn used(quota: &ResourceQuota, counted: &Amounts) -> BTreeMap<Symbol, Quantity> {
    let last = quota.status.used.as_ref();
    let known = |name: &Symbol| {
        let new = counted.get(&**name).map(quantity);
        new.or_else(|| last.and_then(|used| used.get(name)).cloned())
    };
    let names = quota.spec.hard.keys();
    names.filter_map(|name| Some((name.clone(), known(name)?))).collect()
}

fn quantity(amount: &Amount) -> Quantity {
    amount.canonical().parse().expect("the canonical text of an amount is a quantity")
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
    fn count(&self, transcript: &mut Transcript) -> Amounts {
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
            if let NamespaceContent::Unlisted(kind) = content {
                transcript.because(format!("{kind:?} are not listed yet, so the last count stays"));
                matched.retain(|name| !names.contains(name));
                continue;
            }
            for name in &names {
                total.entry((*name).to_owned()).or_insert(Amount::ZERO);
            }
            let spec = &self.quota.spec;
            add(&mut total, &content.usage(evaluator, spec, &self.classes, transcript.now()));
        }
        // Names that no evaluator counts keep what they have.
        total.retain(|name, _| matched.contains(&**name));
        total
    }

    /// When the quota is counted again: also when a pod that is being deleted stops counting.
    fn next(&self, transcript: &Transcript) -> Option<Duration> {
        let pods = self.evaluators.iter().filter_map(|(_, content)| content.next(transcript.now()));
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
