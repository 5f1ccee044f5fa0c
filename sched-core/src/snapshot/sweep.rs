//! Frees what nothing refers to any more: programs, classes, counters, terms, keys, strings.
//!
//! Input: the tables of a cluster. Output: the same tables without what only gone objects named.
//! Owner: the writer of the cluster. Bounds: a sweep checks everything that can be freed, and the
//! names of each pod; it runs when as much was added as the last one found in use, so that the
//! memory of any churn is a small multiple of what is alive. Leased entries do not count: a lease
//! held for long protects everything added in its time, which must not grow without bound. Indexes
//! of a table are reused. None can be mistaken: a program that is held outside keeps its class, its
//! counters and its keys.

use std::sync::Arc;

use super::cluster::{Cluster, PodClass};
use crate::bits::Bits;
use crate::columns::counters::{CounterKey, Scope, TermKey};
use crate::columns::keys::KeyId;
use crate::intern::{Marks, Str};
use crate::program::Program;
use crate::selector::Selector;

/// Entries beyond which a sweep is worth its walk.
const SWEEP_MIN: usize = 4096;

/// Free indexes of the tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Free {
    pub(super) classes: Vec<u32>,
    pub(super) counters: Vec<u32>,
    pub(super) terms: Vec<u32>,
    /// Entries at which the next sweep is due.
    due: usize,
}

/// Entries that programs refer to, by table.
#[derive(Default)]
struct Used {
    classes: Bits,
    counters: Bits,
    keys: Bits,
}

impl Used {
    fn program(&mut self, program: &Program) {
        self.classes.set(program.class);
        for c in program.spread.hard.iter().chain(&program.spread.soft) {
            self.counters.set(c.counter.0);
            self.keys.set(c.key.0);
        }
        if let Some((counter, keys)) = &program.pods.required {
            self.counters.set(counter.0);
            keys.iter().for_each(|key| self.keys.set(key.0));
        }
        let pulls = program.pods.preferred.iter().map(|(_, counter, key)| (counter, key));
        for (counter, key) in program.pods.anti.iter().map(|(c, k)| (c, k)).chain(pulls) {
            self.counters.set(counter.0);
            self.keys.set(key.0);
        }
    }
}

impl Cluster {
    /// Returns the number of entries that a sweep may free.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.interner.len()
            + self.class_ids.len()
            + self.counter_ids.len()
            + self.term_ids.len()
            + self.programs.len()
    }

    /// Sweeps if enough was added since the last sweep. Called before an object is parsed, because
    /// its strings are not yet referred to.
    pub(crate) fn sweep_if_due(&mut self) {
        // Counters that are not kept may be created because those of deleted pods use up a
        // namespace's quota.
        let came = self.vocabulary() + self.counter_budget.passing();
        if came >= self.free.due.max(SWEEP_MIN) {
            let in_use = self.sweep_all();
            self.counter_budget.forget_passing();
            self.free.due = self.vocabulary() + in_use.max(SWEEP_MIN);
        }
    }

    /// Frees unreferenced entries.
    pub fn sweep(&mut self) {
        self.sweep_all();
    }

    /// Frees unreferenced entries; returns how many are in use, without those that are only leased.
    fn sweep_all(&mut self) -> usize {
        // Templates hold programs and numbers of strings without a lease of their own.
        self.templates.clear();
        self.owners.forget_changes();
        let used = self.sweep_programs();
        self.sweep_terms();
        self.sweep_counters(&used.counters);
        self.sweep_classes(&used.classes);
        self.sweep_keys(used.keys);
        for name in self.view.sparse.scalars.keys_where(|column| column.is_unused()) {
            self.view.sparse.scalars.remove(&name);
        }
        let mut marks = self.marks();
        self.interner.sweep(&mut marks);
        let tables = self.vocabulary() - self.interner.len();
        tables + (marks.texts.len() + marks.labels.len()).min(self.interner.len())
    }

    /// Drops programs that only the cache holds; returns the entries that the others refer to.
    fn sweep_programs(&mut self) -> Used {
        let mut used = Used::default();
        self.programs.sweep(|program| used.program(program));
        self.release_counters();
        self.counter_budget.programs().for_each(|program| used.program(program));
        used
    }

    fn sweep_terms(&mut self) {
        let mut carried = Bits::default();
        self.pods.terms.iter().flatten().for_each(|term| carried.set(term.0));
        let mut freed = Bits::default();
        self.term_ids.retain(|_, id| {
            let kept = carried.get(id.0);
            if !kept {
                freed.set(id.0);
                self.free.terms.push(id.0);
            }
            kept
        });
        if !freed.is_empty() {
            for class in 0..self.classes.len() as u32 {
                if self.view.counts.class_terms.get(class).iter().any(|term| freed.get(term.0)) {
                    self.view.counts.class_terms.get_mut(class).retain(|term| !freed.get(term.0));
                }
            }
        }
        let lists = self.view.counts.class_terms.iter();
        self.counter_budget.count_selected(|id| freed.get(id), lists);
    }

    fn sweep_counters(&mut self, used: &Bits) {
        let mut freed = Vec::new();
        self.counter_ids.retain(|id| {
            let kept = used.get(id.0);
            if !kept {
                freed.push(id);
            }
            kept
        });
        self.free_counters(&freed);
    }

    fn sweep_classes(&mut self, used: &Bits) {
        self.class_ids.retain(|_, id| {
            let kept = used.get(*id) || self.pods.has_class(*id);
            if !kept {
                self.classes[*id as usize] = PodClass::default();
                *self.view.counts.class_terms.get_mut(*id) = Vec::new();
                self.free.classes.push(*id);
            }
            kept
        });
    }

    fn sweep_keys(&mut self, mut used: Bits) {
        for (_, id) in self.counter_ids.iter() {
            let domains = &self.view.counts.counters.get(id.0).domains;
            domains.iter().for_each(|(key, _)| used.set(key.0));
        }
        let terms = self.term_ids.values().map(|id| self.view.counts.terms.get(id.0).topology.0);
        terms.for_each(|key| used.set(key));
        let in_use = |key: KeyId| used.get(key.0);
        Arc::make_mut(&mut self.view.keys).sweep(self.view.rows, in_use);
    }

    /// Returns the strings and label sets that the tables refer to.
    fn marks(&self) -> Marks {
        let mut marks = Marks::default();
        let view = &self.view;
        let texts = &mut marks.texts;
        texts.extend([view.wildcard_ip, view.empty_text]);
        texts.extend(self.own_keys.iter().map(|(key, _)| *key));
        texts.extend(view.names.iter());
        texts.extend(view.keys.words());
        texts.extend(view.sparse.taints.iter().flat_map(|(t, _)| [t.key, t.value]));
        texts.extend(view.sparse.images.iter().map(|(name, _)| *name));
        texts.extend(view.sparse.features.iter().map(|(name, _)| *name));
        texts.extend(view.sparse.scalars.iter().map(|(name, _)| *name));
        for ((protocol, _), users) in view.sparse.ports.iter() {
            texts.insert(*protocol);
            texts.extend(users.ips());
        }
        texts.extend(self.pods.ports.iter().flatten().flat_map(|p| [p.protocol, p.ip]));
        for pod in self.pods.iter().map(|id| self.pods.get(id)) {
            texts.extend([pod.key, pod.name, pod.node_name]);
        }
        self.counter_ids
            .iter()
            .for_each(|(key, _)| mark_counter(key, &mut |word| _ = texts.insert(word)));
        self.term_ids.keys().for_each(|key| mark_term(key, &mut |word| _ = texts.insert(word)));
        self.owners.words(&mut |word| _ = texts.insert(word));
        for (namespace, labels, _) in self.class_ids.keys() {
            texts.insert(*namespace);
            marks.labels.insert(*labels);
        }
        for (namespace, labels) in &self.namespaces {
            texts.insert(*namespace);
            marks.labels.insert(*labels);
        }
        marks
    }
}

fn mark_scope(scope: &Scope, mark: &mut impl FnMut(Str)) {
    if let Scope::These(list) = scope {
        list.iter().for_each(|word| mark(*word));
    }
}

/// Calls `mark` with every string of a selector.
pub(super) fn mark_selector(selector: &Selector, mark: &mut impl FnMut(Str)) {
    if let Selector::All(requirements) = selector {
        for requirement in requirements {
            mark(requirement.key);
            requirement.values.iter().for_each(|word| mark(*word));
        }
    }
}

fn mark_counter(key: &CounterKey, mark: &mut impl FnMut(Str)) {
    for one in &key.all {
        mark_scope(&one.scope, mark);
        mark_selector(&one.selector, mark);
    }
}

fn mark_term(key: &TermKey, mark: &mut impl FnMut(Str)) {
    mark(key.topology);
    mark_scope(&key.scope, mark);
    mark_selector(&key.namespaces, mark);
    mark_selector(&key.selector, mark);
}
