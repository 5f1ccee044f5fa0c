//! Index of counters by key, and by labels that a counted pod must have.
//!
//! Input: counters, added and removed. Output: the counter of a key; for a pod's namespace and
//! labels, the counters that may count it. Owner: the writer of the cluster. Bounds: a place a
//! counter, or `NAMESPACES_MAX`. Why places: pending pods keep their counters, of which one pod may
//! have very many, and each new class of pods is matched with all counters at its places.

use std::collections::HashMap;

use super::counters::{CounterId, CounterKey, Scope};
use crate::intern::{FastMap, Str};
use crate::selector::{LabelOp, Selector};

/// Number of namespaces up to which a counter is indexed under each of them, and not as one for all
/// namespaces.
const NAMESPACES_MAX: usize = 4;

/// A label that every counted pod has: its key, and its value if there is only one.
type Label = (Str, Option<Str>);

/// Index key of a counter: its namespace and its label, each if it requires one.
type Place = (Option<Str>, Option<Label>);

/// All counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterIndex {
    ids: HashMap<CounterKey, CounterId>,
    places: FastMap<Place, Vec<CounterId>>,
}

impl CounterIndex {
    pub(crate) fn len(&self) -> usize {
        self.ids.len()
    }

    pub(crate) fn get(&self, key: &CounterKey) -> Option<CounterId> {
        self.ids.get(key).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&CounterKey, CounterId)> {
        self.ids.iter().map(|(key, id)| (key, *id))
    }

    pub(crate) fn insert(&mut self, key: CounterKey, id: CounterId) {
        put(&mut self.places, &key, id);
        self.ids.insert(key, id);
    }

    /// Keeps the counters for which `keeps` is true.
    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(CounterId) -> bool) {
        self.ids.retain(|_, id| keeps(*id));
        self.places = FastMap::default();
        self.ids.iter().for_each(|(key, id)| put(&mut self.places, key, *id));
    }

    /// Returns the counters that may count pods with these labels in this namespace, each once.
    pub(crate) fn candidates(
        &self,
        namespace: Str,
        labels: &[(Str, Str)],
    ) -> impl Iterator<Item = CounterId> {
        let of_labels = labels.iter().flat_map(|(k, v)| [Some((*k, None)), Some((*k, Some(*v)))]);
        let places = [None].into_iter().chain(of_labels);
        let places = places.flat_map(move |label| [(None, label), (Some(namespace), label)]);
        places.filter_map(|place| self.places.get(&place)).flatten().copied()
    }
}

fn put(places: &mut FastMap<Place, Vec<CounterId>>, key: &CounterKey, id: CounterId) {
    let label = key.all.iter().find_map(|one| label(&one.selector));
    let namespaces = key.all.iter().find_map(|one| match &one.scope {
        Scope::These(list) if list.len() <= NAMESPACES_MAX => Some(list),
        _ => None,
    });
    match namespaces {
        Some(list) => {
            list.iter().for_each(|of| places.entry((Some(*of), label)).or_default().push(id));
        }
        None => places.entry((None, label)).or_default().push(id),
    }
}

fn label(selector: &Selector) -> Option<Label> {
    let Selector::All(requirements) = selector else { return None };
    let of_value = selector.anchor().map(|(key, value)| (key, Some(value)));
    of_value.or_else(|| {
        let mut needed = requirements.iter();
        let found = needed.find(|r| matches!(r.op, LabelOp::In | LabelOp::Exists));
        found.map(|r| (r.key, None))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::counters::PodMatch;

    /// Returns a counter of these namespaces and labels; a value of 0 requires the key alone.
    fn counter(namespaces: Option<&[u32]>, labels: &[(u32, u32)]) -> CounterKey {
        let mut interner = crate::intern::Interner::default();
        (0..100).for_each(|at| _ = interner.intern(&at.to_string()));
        let expressions = labels.iter().map(|(key, value)| match value {
            0 => serde_json::json!({"key": key.to_string(), "operator": "Exists"}),
            value => serde_json::json!({"key": key.to_string(), "operator": "In",
                "values": [value.to_string()]}),
        });
        let selector = serde_json::json!({"matchExpressions": expressions.collect::<Vec<_>>()});
        let selector = serde_json::from_value(selector).expect("a selector");
        let selector = Selector::from_api(Some(&selector), &mut interner).expect("a selector");
        let list = namespaces.map(|list| list.iter().map(|at| Str(*at)).collect());
        let scope = list.map_or(Scope::All, Scope::These);
        CounterKey { all: [PodMatch { scope, selector }].into(), live_only: false }
    }

    #[test]
    fn candidates_are_all_counters_of_a_pod_and_none_of_other_labels() {
        let mut index = CounterIndex::default();
        let mut names = interner_texts();
        let keys: Vec<CounterKey> = [
            counter(None, &[]),
            counter(None, &[(10, 0)]),
            counter(Some(&[1]), &[(10, 11)]),
            counter(Some(&[1, 2, 3, 4, 5]), &[(10, 11), (12, 0)]),
            counter(Some(&[1, 2]), &[]),
        ]
        .into();
        for (at, key) in keys.iter().enumerate() {
            index.insert(key.clone(), CounterId(at as u32));
        }
        // Counters of other labels, of which there may be very many.
        for at in 0..1_000_u32 {
            let id = CounterId(100 + at);
            index.insert(counter(Some(&[6 + at % 3]), &[(10, 20 + at % 50), (70, at)]), id);
        }
        for namespace in [1, 2, 9] {
            for labels in [vec![], vec![(10, 11)], vec![(10, 13)], vec![(10, 11), (12, 13)]] {
                let labels: Vec<(Str, Str)> =
                    labels.into_iter().map(|(k, v)| (names(k), names(v))).collect();
                let mut found: Vec<CounterId> = index.candidates(Str(namespace), &labels).collect();
                found.sort_unstable();
                let counts = |id: &CounterId| {
                    keys.get(id.0 as usize).is_some_and(|k| k.matches(Str(namespace), &labels))
                };
                let want = (0..keys.len() as u32).map(CounterId).filter(counts);
                assert!(want.clone().all(|id| found.contains(&id)), "{namespace} {labels:?}");
                assert!(found.windows(2).all(|two| two[0] != two[1]), "{found:?}");
                assert!(found.iter().all(|id| id.0 < 100), "{found:?}");
            }
        }
        index.retain(|id| id.0 == 4);
        let left: Vec<CounterId> = index.candidates(Str(2), &[]).collect();
        assert_eq!((left, index.len()), (vec![CounterId(4)], 1));
    }

    /// Returns the interned text of a number, equal to that in `counter`.
    fn interner_texts() -> impl FnMut(u32) -> Str {
        let mut interner = crate::intern::Interner::default();
        (0..100).for_each(|at| _ = interner.intern(&at.to_string()));
        move |at| interner.intern(&at.to_string())
    }
}
