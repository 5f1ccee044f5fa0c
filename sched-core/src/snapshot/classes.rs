//! Classes of pods, the counters that count them and the terms that select them.
//!
//! Input: what compiled programs and bound pods ask for. Output: ids of counters and terms that
//! deltas keep current. Owner: the writer of the cluster. Bounds: a new counter walks the pods of
//! the classes it matches, once; a new class or term is compared with all terms or classes.

use std::sync::Arc;

use super::cluster::{Class, Cluster};
use super::counters::{Counter, CounterId, CounterKey, Term, TermId, TermKey};
use super::keys::KeyId;
use super::pods::NONE;
use crate::intern::{LabelsId, Str};

impl Cluster {
    /// The class of a namespace and labels.
    pub(crate) fn class(&mut self, namespace: Str, labels: LabelsId) -> u32 {
        if let Some(id) = self.class_ids.get(&(namespace, labels)) {
            return *id;
        }
        let id = u32::try_from(self.classes.len()).expect("fewer than 2^32 classes");
        let labels_list = Arc::clone(self.interner.labels(labels));
        let counters = self.view.counters.iter().enumerate();
        let counters = counters
            .filter(|(_, c)| c.key.matches(namespace, &labels_list))
            .map(|(i, _)| CounterId(i as u32))
            .collect();
        self.classes.push(Class { namespace, labels: labels_list, counters });
        self.class_ids.insert((namespace, labels), id);
        let terms = self.terms_selecting(id);
        self.view.class_terms.push(terms);
        id
    }

    pub(super) fn terms_selecting(&self, class: u32) -> Vec<TermId> {
        let terms = self.view.terms.iter().enumerate();
        terms
            .filter(|(_, t)| self.term_selects(&t.key, class))
            .map(|(i, _)| TermId(i as u32))
            .collect()
    }

    // k8s: kube-scheduler/framework/types.go AffinityTerm.Matches
    fn term_selects(&self, term: &TermKey, class: u32) -> bool {
        let class = &self.classes[class as usize];
        let within = term.scope.contains(class.namespace)
            || match self.namespaces.get(&class.namespace) {
                Some(labels) => term.namespaces.matches(self.interner.labels(*labels)),
                None => term.namespaces.matches(&[]),
            };
        within && term.selector.matches(&class.labels)
    }

    pub(super) fn term(&mut self, key: &TermKey) -> TermId {
        if let Some(id) = self.term_ids.get(key) {
            return *id;
        }
        let topology = Arc::make_mut(&mut self.view.keys).intern(key.topology);
        let term = Term { key: key.clone(), topology, domains: Vec::new(), total: 0 };
        let id = TermId(self.view.terms.push(term));
        self.term_ids.insert(key.clone(), id);
        for class in 0..self.classes.len() as u32 {
            if self.term_selects(key, class) {
                self.view.class_terms.get_mut(class).push(id);
            }
        }
        id
    }

    /// A counter of these pods that also counts by `topology`, begun if nobody asked before.
    pub(crate) fn counter(&mut self, key: &CounterKey, topology: Option<KeyId>) -> CounterId {
        let id = match self.counter_ids.get(key) {
            Some(id) => *id,
            None => self.new_counter(key),
        };
        if let Some(topology) = topology
            && !self.view.counters.get(id.0).domains.iter().any(|(k, _)| *k == topology)
        {
            self.view.counters.get_mut(id.0).track(topology, &self.view.keys);
        }
        id
    }

    fn new_counter(&mut self, key: &CounterKey) -> CounterId {
        let mut counter = Counter::new(key.clone());
        let id = CounterId(u32::try_from(self.view.counters.len()).expect("few counters"));
        for (at, class) in self.classes.iter_mut().enumerate() {
            if !key.matches(class.namespace, &class.labels) {
                continue;
            }
            class.counters.push(id);
            for pod in self.pods.in_class(at as u32).map(|p| self.pods.get(p)) {
                if pod.row != NONE && !(key.live_only && pod.terminating) {
                    counter.add(pod.row, 1, &self.view.keys);
                }
            }
        }
        self.view.counters.push(counter);
        self.counter_ids.insert(key.clone(), id);
        id
    }

    /// Bytes beyond interned strings: what grows with the nodes, and what grows with the pods.
    #[must_use]
    pub fn heap_bytes(&self) -> (usize, usize) {
        let nodes = self.view.heap_bytes() + self.digests.capacity() * 8;
        let counters = self.view.counters.iter();
        let counters = counters.map(|c| {
            let domains = c.domains.iter().map(|(_, d)| d.capacity() * 4 + 32);
            c.nodes.capacity() * 9 + domains.sum::<usize>() + 128
        });
        let terms = self.view.terms.iter().map(|t| t.domains.capacity() * 4 + 160);
        let classes = self.classes.capacity() * size_of::<Class>() + self.class_ids.capacity() * 13;
        (nodes, self.pods.heap_bytes() + counters.chain(terms).sum::<usize>() + classes)
    }
}
