//! Counters that pending pods may keep, and counters that live for one attempt.
//!
//! Input: the namespace and the size of a pod that is compiled, counters created for it. Output:
//! are they kept, and which are freed? Owner: the writer of the cluster. Bounds: the limits of
//! [`CounterLimits`]; beyond them a counter lives as long as its program is held, which is an
//! attempt. Why: each added or deleted pod updates all counters that count it, and one pod may have
//! tens of thousands of terms, each with a selector of its own. A counter that is created for each
//! attempt counts the same; it costs the attempts of that pod more, and other pods nothing.

use std::collections::HashMap;
use std::sync::Arc;

use crate::columns::counters::{CounterId, CounterKey, TermId};
use crate::intern::{FastMap, Str};
use crate::program::Program;

/// Limits of counters kept for pods.
#[derive(Clone, Copy, Debug)]
pub struct CounterLimits {
    /// Terms and constraints of one pod.
    pub pod: usize,
    /// Counters of the pods of one namespace.
    pub namespace: usize,
    /// Bytes that these may grow to.
    pub namespace_bytes: usize,
    /// Pairs of a class of pods and a term of a pod on a node that selects it, by the namespace of
    /// the terms: four bytes each.
    pub selected: usize,
}

impl Default for CounterLimits {
    fn default() -> Self {
        Self { pod: 512, namespace: 8_192, namespace_bytes: 128 << 20, selected: 16 << 20 }
    }
}

/// Counters of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NamespaceShare {
    counters: usize,
    bytes: usize,
}

/// Owners of kept counters, and counters that are not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterBudget {
    pub(crate) limits: CounterLimits,
    /// Namespace and bytes by counter, of those that are kept.
    owners: FastMap<u32, (Str, usize)>,
    shares: FastMap<Str, NamespaceShare>,
    /// The namespace of the pod that is being compiled.
    namespace: Option<Str>,
    /// Counters of the pod that is being compiled, if they are not kept.
    open: Option<HashMap<CounterKey, CounterId>>,
    /// Programs with counters that are not kept.
    held: Vec<(Arc<Program>, Vec<CounterId>)>,
    /// Namespace of the pod that was the first with a term, by term.
    term_owners: FastMap<u32, Str>,
    /// Classes that terms select, by the namespace of the terms.
    selected: FastMap<Str, usize>,
    /// Counters created and not kept, since the last query.
    passing: usize,
}

impl CounterBudget {
    /// Starts to compile a pod with so many terms and constraints.
    pub(crate) fn begin(&mut self, namespace: Str, terms: usize) {
        self.namespace = Some(namespace);
        let share = self.shares.get(&namespace).copied().unwrap_or_default();
        let is_over = terms > self.limits.pod
            || share.counters >= self.limits.namespace
            || share.bytes >= self.limits.namespace_bytes;
        self.open = (is_over && terms > 0).then(HashMap::new);
    }

    /// Returns a counter of the pod being compiled that is not kept.
    pub(crate) fn find(&self, key: &CounterKey) -> Option<CounterId> {
        self.open.as_ref()?.get(key).copied()
    }

    /// Records a new counter; returns true if it is kept.
    pub(crate) fn keeps(&mut self, key: &CounterKey, id: CounterId, bytes: usize) -> bool {
        if let Some(open) = &mut self.open {
            self.passing += 1;
            open.insert(key.clone(), id);
            return false;
        }
        if let Some(namespace) = self.namespace {
            self.owners.insert(id.0, (namespace, 0));
            self.shares.entry(namespace).or_default().counters += 1;
            self.grow(id, bytes);
        }
        true
    }

    /// A counter may become larger than before.
    pub(crate) fn grow(&mut self, id: CounterId, bytes: usize) {
        if let Some((namespace, of_counter)) = self.owners.get_mut(&id.0) {
            *of_counter += bytes;
            self.shares.entry(*namespace).or_default().bytes += bytes;
        }
    }

    /// Ends the compilation of a pod without a program; returns the counters to free.
    pub(crate) fn abandon(&mut self) -> Vec<CounterId> {
        self.namespace = None;
        self.open.take().into_iter().flat_map(HashMap::into_values).collect()
    }

    /// Ends the compilation of a pod; returns the program if its counters are kept, else a held
    /// one.
    pub(crate) fn hold(&mut self, program: Program) -> Result<Program, Arc<Program>> {
        self.namespace = None;
        let Some(open) = self.open.take() else { return Ok(program) };
        let program = Arc::new(program);
        self.held.push((Arc::clone(&program), open.into_values().collect()));
        Err(program)
    }

    /// Returns true if the counters of the pod that is being compiled are not kept.
    pub(crate) fn is_passing(&self) -> bool {
        self.open.is_some()
    }

    /// Returns all counters that are not kept.
    pub(crate) fn passing_counters(&self) -> impl Iterator<Item = CounterId> + '_ {
        let open = self.open.iter().flat_map(HashMap::values);
        open.chain(self.held.iter().flat_map(|(_, ids)| ids)).copied()
    }

    /// Returns the programs with counters that are not kept.
    pub(crate) fn programs(&self) -> impl Iterator<Item = &Program> {
        self.held.iter().map(|(program, _)| &**program)
    }

    /// Returns the counters of programs that are no longer held.
    pub(crate) fn take_released(&mut self) -> Vec<CounterId> {
        let mut freed = Vec::new();
        self.held.retain_mut(|(program, ids)| {
            let is_held = Arc::strong_count(program) > 1;
            if !is_held {
                freed.append(ids);
            }
            is_held
        });
        freed
    }

    /// A kept counter was freed.
    pub(crate) fn freed(&mut self, id: CounterId) {
        let Some((namespace, bytes)) = self.owners.remove(&id.0) else { return };
        let Some(share) = self.shares.get_mut(&namespace) else { return };
        share.counters -= 1;
        share.bytes -= bytes;
        if *share == NamespaceShare::default() {
            self.shares.remove(&namespace);
        }
    }

    /// Records a term that is new with a pod of a namespace.
    pub(crate) fn own_term(&mut self, id: TermId, namespace: Str) {
        self.term_owners.insert(id.0, namespace);
    }

    /// Records that terms select one more class.
    pub(crate) fn select(&mut self, terms: &[TermId]) {
        for owner in terms.iter().filter_map(|id| self.term_owners.get(&id.0)) {
            *self.selected.entry(*owner).or_default() += 1;
        }
    }

    /// Recounts how many classes terms select, for terms that are not freed.
    pub(crate) fn count_selected<'a>(
        &mut self,
        is_freed: impl Fn(u32) -> bool,
        lists: impl Iterator<Item = &'a Vec<TermId>>,
    ) {
        self.term_owners.retain(|id, _| !is_freed(*id));
        self.selected.clear();
        lists.for_each(|list| self.select(list));
    }

    /// Returns true if terms of a namespace select as many classes as they may.
    pub(crate) fn is_full(&self, namespace: Str) -> bool {
        self.selected.get(&namespace).is_some_and(|count| *count >= self.limits.selected)
    }

    /// Returns how many counters were created and not kept since the last call of
    /// [`Self::forget_passing`].
    pub(crate) fn passing(&self) -> usize {
        self.passing
    }

    /// Restarts the count.
    pub(crate) fn forget_passing(&mut self) {
        self.passing = 0;
    }
}
