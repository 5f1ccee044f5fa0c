//! Classes of pods, the counters that count them and the terms that select them.
//!
//! Input: requirements of compiled programs and bound pods. Output: ids of counters and terms that
//! deltas keep current. Owner: the writer of the cluster. Bounds: a new counter walks the pods of
//! the classes it matches, once; a new class is compared with the counters that may count it, a new
//! class or term with all terms or classes. The first selector that mentions an own label walks all
//! pods, once.

use std::sync::Arc;

use super::cluster::{Cluster, PodClass};
use super::objects::OwnLabels;
use super::pods::{NONE, PodId};
use crate::bits::Bits;
use crate::columns::counters::{Counter, CounterId, CounterKey, Term, TermId, TermKey};
use crate::columns::domain_counts::DomainCounts;
use crate::columns::keys::{HOSTNAME, KeyId};
use crate::columns::row_counts::RowCounts;
use crate::intern::{LabelsId, Str};
use crate::selector::Selector;

/// Bytes of a counter of no pod, with its selector in the index.
const COUNTER_BYTES: usize = 512;

impl Cluster {
    /// Returns the class of a pod: its namespace, the labels that other pods may share, and those
    /// of its own labels that some selector mentioned.
    pub(crate) fn class_of(&mut self, namespace: Str, labels: LabelsId, own: &OwnLabels) -> u32 {
        let labelled = !own.is_empty() || !self.interner.labels(labels).is_empty();
        let mentioned = |at: u8| self.own_keys[at as usize].1;
        if !own.iter().any(|(at, _)| mentioned(*at)) {
            return self.class(namespace, labels, labelled);
        }
        let mentioned = own.iter().filter(|(at, _)| mentioned(*at)).cloned().collect();
        let pairs = self.all_labels(labels, &mentioned);
        let labels = self.interner.intern_pairs(&pairs);
        self.class(namespace, labels, labelled)
    }

    /// Returns a pod's labels, including its own ones.
    pub(crate) fn all_labels(&mut self, labels: LabelsId, own: &OwnLabels) -> Arc<[(Str, Str)]> {
        if own.is_empty() {
            return Arc::clone(self.interner.labels(labels));
        }
        let mut pairs = self.interner.labels(labels).to_vec();
        for (at, value) in own {
            pairs.push((self.own_keys[*at as usize].0, self.interner.intern(value)));
        }
        pairs.sort_unstable();
        pairs.into()
    }

    fn class(&mut self, namespace: Str, labels: LabelsId, labelled: bool) -> u32 {
        let key = (namespace, labels, labelled);
        if let Some(id) = self.class_ids.get(&key) {
            return *id;
        }
        let list = Arc::clone(self.interner.labels(labels));
        let counts =
            |id: &CounterId| self.view.counts.counters.get(id.0).key.matches(namespace, &list);
        let candidates = self.counter_ids.candidates(namespace, &list);
        let candidates = candidates.chain(self.counter_budget.passing_counters());
        let mut counters: Vec<CounterId> = candidates.filter(counts).collect();
        counters.sort_unstable();
        let class = PodClass { namespace: Some(namespace), labels: list, labelled, counters };
        let id = match self.free.classes.pop() {
            Some(id) => {
                self.classes[id as usize] = class;
                id
            }
            None => {
                self.classes.push(class);
                self.view.counts.class_terms.push(Vec::new())
            }
        };
        self.class_ids.insert(key, id);
        let terms = self.terms_selecting(id);
        self.counter_budget.select(&terms);
        *self.view.counts.class_terms.get_mut(id) = terms;
        id
    }

    /// Records that a selector mentions these keys. A class with pods that differed only in own
    /// labels is split by the values of a new key.
    pub(crate) fn mention(&mut self, selector: &Selector) {
        let Selector::All(requirements) = selector else { return };
        for at in 0..self.own_keys.len() {
            let (key, mentioned) = self.own_keys[at];
            if mentioned || !requirements.iter().any(|r| r.key == key) {
                continue;
            }
            self.own_keys[at].1 = true;
            self.templates.clear();
            self.view.counts.own_keys_version += 1;
            self.view.epoch += 1;
            for id in self.pods.iter().collect::<Vec<_>>() {
                self.classify_anew(id, at as u8);
            }
        }
    }

    fn classify_anew(&mut self, id: PodId, at: u8) {
        let pod = self.pods.get(id);
        let own = self.pods.own.get(pod.own).iter();
        let Some(value) = own.clone().find(|(of, _)| *of == at).map(|(_, v)| Arc::clone(v)) else {
            return;
        };
        let class = &self.classes[pod.class as usize];
        let namespace = class.namespace.expect("a class with pods is in use");
        let mut pairs = class.labels.to_vec();
        pairs.push((self.own_keys[at as usize].0, self.interner.intern(&value)));
        pairs.sort_unstable();
        let labels = self.interner.intern_pairs(&pairs);
        // No counter mentions the key yet, so that the same counters count the pod.
        let class = self.class(namespace, labels, true);
        self.pods.set_class(id, class);
    }

    pub(super) fn terms_selecting(&self, class: u32) -> Vec<TermId> {
        let terms = self.term_ids.iter().filter(|(key, _)| self.term_selects(key, class));
        let mut terms: Vec<TermId> = terms.map(|(_, id)| *id).collect();
        terms.sort_unstable();
        terms
    }

    // k8s: kube-scheduler/framework/types.go AffinityTerm.Matches
    fn term_selects(&self, term: &TermKey, class: u32) -> bool {
        let class = &self.classes[class as usize];
        let Some(namespace) = class.namespace else { return false };
        let within = term.scope.contains(namespace)
            || match self.namespaces.get(&namespace) {
                Some(labels) => term.namespaces.matches(self.interner.labels(*labels)),
                None => term.namespaces.matches(&[]),
            };
        within && term.selector.matches(&class.labels)
    }

    /// Returns the id of a term, created for a pod of this namespace if it is new.
    pub(crate) fn term(&mut self, key: &TermKey, namespace: Str) -> TermId {
        if let Some(id) = self.term_ids.get(key) {
            return *id;
        }
        self.mention(&key.selector);
        let topology = self.key(key.topology);
        let by_row = self.interner.text(key.topology) == HOSTNAME;
        let nodes = by_row.then(RowCounts::default);
        let domains = DomainCounts::default();
        let term = Term { key: key.clone(), topology, domains, total: 0, nodes };
        let id = TermId(self.view.counts.terms.put(term, &mut self.free.terms));
        self.term_ids.insert(key.clone(), id);
        self.counter_budget.own_term(id, namespace);
        for class in 0..self.classes.len() as u32 {
            if self.term_selects(key, class) {
                self.view.counts.class_terms.get_mut(class).push(id);
                self.counter_budget.select(&[id]);
            }
        }
        id
    }

    /// Returns the id of a label key of nodes; the table is not copied for a known one.
    pub(crate) fn key(&mut self, name: Str) -> KeyId {
        let known = self.view.keys.find(name);
        known.unwrap_or_else(|| Arc::make_mut(&mut self.view.keys).intern(name))
    }

    /// Returns a counter of these pods that also counts by `topology`; creates it if it is new.
    pub(crate) fn counter(&mut self, key: &CounterKey, topology: Option<KeyId>) -> CounterId {
        let known = self.counter_ids.get(key).or_else(|| self.counter_budget.find(key));
        let id = known.unwrap_or_else(|| self.new_counter(key));
        if let Some(topology) = topology
            && !self.view.counts.counters.get(id.0).domains.iter().any(|(k, _)| *k == topology)
        {
            let counter = self.view.counts.counters.get_mut(id.0);
            counter.track(topology, &self.view.keys);
            let bytes = self.view.keys.column(topology).value_ids() * size_of::<u32>();
            self.counter_budget.grow(id, bytes);
        }
        id
    }

    fn new_counter(&mut self, key: &CounterKey) -> CounterId {
        key.all.iter().for_each(|m| self.mention(&m.selector));
        let mut counter = Counter::new(key.clone());
        let id = CounterId(self.view.counts.counters.put(counter.clone(), &mut self.free.counters));
        for (at, class) in self.classes.iter_mut().enumerate() {
            if !class.namespace.is_some_and(|namespace| key.matches(namespace, &class.labels)) {
                continue;
            }
            if let Err(at) = class.counters.binary_search(&id) {
                class.counters.insert(at, id);
            }
            for pod in self.pods.in_class(at as u32).map(|p| self.pods.get(p)) {
                if pod.row != NONE && !(key.live_only && pod.terminating) {
                    counter.add(pod.row, self.view.rows, 1, &self.view.keys);
                }
            }
        }
        *self.view.counts.counters.get_mut(id.0) = counter;
        // Counts by row turn into a bit for each row and plane.
        let bytes = COUNTER_BYTES + self.view.rows / 2;
        if self.counter_budget.keeps(key, id, bytes) {
            self.counter_ids.insert(key.clone(), id);
        }
        id
    }

    /// Frees the counters of released programs that are not kept.
    pub(crate) fn release_counters(&mut self) {
        let released = self.counter_budget.take_released();
        self.free_counters(&released);
    }

    /// Frees counters; their indexes are reused.
    pub(crate) fn free_counters(&mut self, all: &[CounterId]) {
        if all.is_empty() {
            return;
        }
        let mut freed = Bits::default();
        for id in all {
            freed.set(id.0);
            let nothing = CounterKey { all: Box::default(), live_only: false };
            *self.view.counts.counters.get_mut(id.0) = Counter::new(nothing);
            self.free.counters.push(id.0);
            self.counter_budget.freed(*id);
        }
        for class in &mut self.classes {
            class.counters.retain(|counter| !freed.get(counter.0));
        }
    }

    /// Bytes beyond interned strings: what grows with the nodes, and what grows with the pods.
    #[must_use]
    pub fn heap_bytes(&self) -> (usize, usize) {
        let nodes = self.view.heap_bytes() + self.digests.capacity() * 8;
        let counters = self.view.counts.counters.iter();
        let counters = counters.map(|c| {
            let domains = c.domains.iter().map(|(_, d)| d.heap_bytes() + 48);
            c.nodes.heap_bytes() + domains.sum::<usize>() + 128
        });
        let terms = self.view.counts.terms.iter().map(|t| {
            let nodes = t.nodes.as_ref().map_or(0, RowCounts::heap_bytes);
            nodes + t.domains.heap_bytes() + 200
        });
        let classes =
            self.classes.capacity() * size_of::<PodClass>() + self.class_ids.capacity() * 17;
        (nodes, self.pods.heap_bytes() + counters.chain(terms).sum::<usize>() + classes)
    }
}
