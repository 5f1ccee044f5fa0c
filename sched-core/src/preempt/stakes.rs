//! Effect of single pods on the constraints of the preemptor: changes if one of them is removed.
//!
//! Input: a program and the columns. Output: for a node, sums over all constraints; for a pod, its
//! share in these sums. Owner: one search for victims. Bounds: the counters of the program and
//! their domains once a search, those of a class of pods or a list of terms once each; then a node
//! costs its topology keys, and a pod the keys that it touches.
//! Why sums: a rule such as "no pod of any of these terms is in the domain" holds exactly when the
//! sum of the pods over all terms is zero, however many terms there are, and a sum is changed by a
//! difference.

use std::rc::Rc;

use super::PURPOSE;
use crate::attempt_budget::{AttemptBudget, Exhausted};
use crate::columns::domain_counts::DomainCounts;
use crate::columns::keys::KeyId;
use crate::filter::interpod;
use crate::filter::spread::{Domains, NO_MINIMUM};
use crate::intern::{FastMap, Str};
use crate::program::{Program, Spread};
use crate::snapshot::Cluster;
use crate::snapshot::pods::PodRow;
use crate::snapshot::view::View;

/// Numbers by topology key, given by its place in [`KeySums::keys`].
type OfKeys = Rc<[(usize, i64)]>;

/// Pods that terms reject, by topology key and value, added up over all terms.
#[derive(Debug, Default)]
pub(super) struct KeySums {
    pub(super) keys: Vec<KeyId>,
    by_value: Vec<Vec<i64>>,
}

impl KeySums {
    fn add(&mut self, view: &View, key: KeyId, counts: &DomainCounts) -> usize {
        let at = self.keys.iter().position(|k| *k == key).unwrap_or_else(|| {
            self.keys.push(key);
            self.by_value.push(vec![0; view.keys.column(key).value_ids()]);
            self.keys.len() - 1
        });
        for (value, count) in counts.iter() {
            self.by_value[at][value as usize] += i64::from(count);
        }
        at
    }

    /// The sum over the keys for a row with these values.
    pub(super) fn at(&self, values: &[u32]) -> i64 {
        values.iter().zip(&self.by_value).map(|(value, sums)| sums[*value as usize]).sum()
    }

    /// Returns the values of a row, by key.
    pub(super) fn values(&self, view: &View, row: u32) -> Vec<u32> {
        self.keys.iter().map(|key| view.keys.column(*key).value(row)).collect()
    }
}

/// The least count over the domains of a constraint, and over all but the first domain with it.
#[derive(Clone, Copy, Debug)]
struct Least {
    value: usize,
    least: i64,
    of_others: i64,
}

impl Least {
    fn of(domains: &Domains) -> Self {
        let mut found = Self { value: 0, least: NO_MINIMUM, of_others: NO_MINIMUM };
        let present = domains.counts.iter().zip(&domains.present).enumerate();
        for (value, (count, _)) in present.filter(|(_, (_, present))| **present) {
            if *count < found.least {
                found = Self { value, least: *count, of_others: found.least };
            } else {
                found.of_others = found.of_others.min(*count);
            }
        }
        found
    }

    /// Returns the least count with `delta` more pods in one domain.
    fn with(self, constraint: &Spread, domains: &Domains, value: usize, delta: i64) -> i64 {
        if domains.size < constraint.min_domains {
            return 0;
        }
        let others = if value == self.value { self.of_others } else { self.least };
        let here = domains.present.get(value).copied().unwrap_or(false);
        if here { others.min(domains.counts[value] + delta) } else { others }
    }
}

/// The required affinity of a pod, as a node must meet it.
#[derive(Debug)]
pub(super) struct Attracted<'a> {
    keys: Vec<(KeyId, &'a DomainCounts)>,
    /// Number of matching pods, by the key that covers most of them.
    pub(super) most: i64,
}

/// Effect of a class of pods on the program.
#[derive(Debug, Default)]
pub(super) struct OfClass {
    /// It meets the required affinity.
    pub(super) attracts: bool,
    /// Terms of the anti-affinity that it meets, by key.
    pub(super) anti: OfKeys,
    /// Hard spread constraints that count it.
    pub(super) spread: Rc<[usize]>,
}

/// Facts of a search, and of pods met in it.
pub(super) struct Stakes<'a> {
    cluster: &'a Cluster,
    program: &'a Program,
    spent: &'a AttemptBudget,
    domains: &'a [Domains],
    least: Vec<Least>,
    pub(super) attracted: Option<Attracted<'a>>,
    pub(super) anti: KeySums,
    pub(super) existing: KeySums,
    /// Terms by counter: places of their keys.
    anti_of: FastMap<u32, Vec<usize>>,
    /// Key of each existing term.
    existing_of: FastMap<u32, usize>,
    ports: FastMap<(Str, i32), Vec<Str>>,
    classes: FastMap<u32, Rc<OfClass>>,
    term_lists: FastMap<u32, OfKeys>,
    port_lists: FastMap<u32, i64>,
    requests: FastMap<u32, OfKeys>,
}

impl<'a> Stakes<'a> {
    /// Reads what the program counts; `domains` are those of its hard spread constraints.
    pub(super) fn of(
        cluster: &'a Cluster,
        program: &'a Program,
        domains: &'a [Domains],
        spent: &'a AttemptBudget,
    ) -> Result<Self, Exhausted> {
        let mut ports: FastMap<(Str, i32), Vec<Str>> = FastMap::default();
        for port in &program.ports {
            ports.entry((port.protocol, port.port)).or_default().push(port.ip);
        }
        let sizes = domains.iter().map(|domains| domains.counts.len() as u64);
        spent.pay(program.ports.len() as u64 + sizes.sum::<u64>(), PURPOSE)?;
        let mut stakes = Self {
            cluster,
            program,
            spent,
            domains,
            least: domains.iter().map(Least::of).collect(),
            attracted: attracted(&cluster.view, program, spent)?,
            anti: KeySums::default(),
            existing: KeySums::default(),
            anti_of: FastMap::default(),
            existing_of: FastMap::default(),
            ports,
            classes: FastMap::default(),
            term_lists: FastMap::default(),
            port_lists: FastMap::default(),
            requests: FastMap::default(),
        };
        stakes.add_anti()?;
        stakes.add_existing()?;
        Ok(stakes)
    }

    fn add_anti(&mut self) -> Result<(), Exhausted> {
        let view = &self.cluster.view;
        for (counter, key) in &self.program.pods.anti {
            let counts = view.counts.counters.get(counter.0).domain(*key);
            self.spent.pay(1 + counts.len() as u64, PURPOSE)?;
            // A term without matching pods rejects nothing, whatever the victims.
            if !counts.is_empty() {
                let at = self.anti.add(view, *key, counts);
                self.anti_of.entry(counter.0).or_default().push(at);
            }
        }
        Ok(())
    }

    fn add_existing(&mut self) -> Result<(), Exhausted> {
        let view = &self.cluster.view;
        self.spent.pay(view.counts.class_terms.get(self.program.class).len() as u64, PURPOSE)?;
        for (id, term) in interpod::forbidding(view, self.program) {
            self.spent.pay(1 + term.domains.len() as u64, PURPOSE)?;
            let at = self.existing.add(view, term.topology, &term.domains);
            self.existing_of.insert(id.0, at);
        }
        Ok(())
    }

    /// Returns true if a constraint allows the pod in a domain after its number of pods changes by
    /// `delta`.
    pub(super) fn allows(&self, at: usize, value: u32, delta: i64) -> bool {
        let (c, domains, value) =
            (&self.program.spread.hard[at], &self.domains[at], value as usize);
        let count = domains.counts.get(value).copied().unwrap_or(0) + delta;
        let least = self.least[at].with(c, domains, value, delta);
        count + i64::from(c.self_match) - least <= c.max_skew
    }

    /// Returns the effect of a pod's class on the program.
    pub(super) fn class(&mut self, pod: &PodRow) -> Result<Rc<OfClass>, Exhausted> {
        if let Some(found) = self.classes.get(&pod.class) {
            return Ok(Rc::clone(found));
        }
        let (own, class) = (self.program.class, &self.cluster.classes[pod.class as usize]);
        let constraints = &self.program.spread.hard;
        self.spent.pay((class.counters.len() + constraints.len()) as u64, PURPOSE)?;
        let wanted = self.program.pods.required.as_ref().map(|(counter, _)| *counter);
        let is_neighbour = class.namespace == self.cluster.classes[own as usize].namespace;
        let counters = &class.counters;
        let counts = |c: &Spread| c.everything || counters.binary_search(&c.counter).is_ok();
        let spread = constraints.iter().enumerate();
        let spread = spread.filter(|(_, c)| is_neighbour && counts(c)).map(|(at, _)| at);
        let keys = counters.iter().filter_map(|counter| self.anti_of.get(&counter.0)).flatten();
        let found = Rc::new(OfClass {
            attracts: wanted.is_some_and(|counter| counters.binary_search(&counter).is_ok()),
            anti: tally(keys.map(|at| (*at, 1))),
            spread: spread.collect(),
        });
        self.classes.insert(pod.class, Rc::clone(&found));
        Ok(found)
    }

    /// Terms of a pod that reject the program's pod, by key.
    pub(super) fn terms(&mut self, pod: &PodRow) -> Result<OfKeys, Exhausted> {
        if let Some(found) = self.term_lists.get(&pod.terms) {
            return Ok(Rc::clone(found));
        }
        let terms = self.cluster.pods.terms.get(pod.terms);
        self.spent.pay(terms.len() as u64, PURPOSE)?;
        let found = tally(terms.iter().filter_map(|t| Some((*self.existing_of.get(&t.0)?, 1))));
        self.term_lists.insert(pod.terms, Rc::clone(&found));
        Ok(found)
    }

    /// Returns how many ports of a pod are ports that the program requests.
    pub(super) fn ports(&mut self, pod: &PodRow) -> Result<i64, Exhausted> {
        if self.ports.is_empty() {
            return Ok(0);
        }
        if let Some(found) = self.port_lists.get(&pod.ports) {
            return Ok(*found);
        }
        let any = self.cluster.view.wildcard_ip;
        let ports = self.cluster.pods.ports.get(pod.ports);
        let mut found = 0;
        for port in ports {
            let asked = self.ports.get(&(port.protocol, port.port)).map_or(&[][..], |ips| ips);
            self.spent.pay(1 + asked.len() as u64, PURPOSE)?;
            let clash = |ip: &&Str| **ip == port.ip || **ip == any || port.ip == any;
            found += asked.iter().filter(clash).count() as i64;
        }
        self.port_lists.insert(pod.ports, found);
        Ok(found)
    }

    /// Returns a pod's requests of the program's extended resources, by their index in the program:
    /// `scalars` first, then `delegated`.
    pub(super) fn scalars(&mut self, pod: &PodRow) -> Result<OfKeys, Exhausted> {
        if let Some(found) = self.requests.get(&pod.requests) {
            return Ok(Rc::clone(found));
        }
        let requests = &self.cluster.pods.requests.get(pod.requests).plain;
        let asked = self.program.scalars.iter().chain(&self.program.delegated);
        self.spent.pay(asked.clone().count() as u64, PURPOSE)?;
        let amounts = asked.enumerate();
        let amounts =
            amounts.map(|(at, (name, _))| (at, requests.amount(self.cluster.text(*name))));
        let found: OfKeys = amounts.filter(|(_, amount)| *amount != 0).collect();
        self.requests.insert(pod.requests, Rc::clone(&found));
        Ok(found)
    }
}

/// Adds up numbers of the same key.
fn tally(items: impl Iterator<Item = (usize, i64)>) -> OfKeys {
    let mut sums: FastMap<usize, i64> = FastMap::default();
    items.for_each(|(at, count)| *sums.entry(at).or_default() += count);
    let mut sums: Vec<(usize, i64)> = sums.into_iter().collect();
    sums.sort_unstable();
    sums.into()
}

fn attracted<'a>(
    view: &'a View,
    program: &Program,
    spent: &AttemptBudget,
) -> Result<Option<Attracted<'a>>, Exhausted> {
    let Some((counter, keys)) = &program.pods.required else { return Ok(None) };
    let counter = view.counts.counters.get(counter.0);
    let keys: Vec<_> = keys.iter().map(|key| (*key, counter.domain(*key))).collect();
    spent.pay(keys.iter().map(|(_, counts)| 1 + counts.len() as u64).sum(), PURPOSE)?;
    let total = |counts: &DomainCounts| counts.iter().map(|(_, n)| i64::from(n)).sum::<i64>();
    let most = keys.iter().map(|(_, counts)| total(counts)).max().unwrap_or(0);
    Ok(Some(Attracted { keys, most }))
}

impl Attracted<'_> {
    /// Returns the least number of matching pods in a domain of a row; `None` if it lacks a key.
    pub(super) fn least(&self, view: &View, row: u32) -> Option<i64> {
        self.keys.iter().try_fold(i64::MAX, |least, (key, counts)| {
            let value = view.keys.column(*key).value(row);
            (value != 0).then(|| least.min(counts.get(value).into()))
        })
    }
}
