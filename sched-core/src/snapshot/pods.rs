//! Bound pods in compact rows, linked by node and by class.
//!
//! Input: a pod's effect on its node and on the counters, interned. Output: rows by id, by node and
//! by class. Owner: the writer of the cluster. Bounds: 76 bytes a pod plus one map entry; ids are
//! reused after removal, and a list that no pod uses is dropped.
//! Why links instead of lists: no allocation a pod, and removal in constant time.

use std::collections::HashMap;
use std::hash::Hash;

use super::objects::OwnLabels;
use crate::columns::counters::TermId;
use crate::columns::ports::HostPort;
use crate::intern::{FastMap, Str};
use crate::requests::PodRequests;

/// Index of a bound pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PodId(pub u32);

/// No row, no pod.
pub const NONE: u32 = u32::MAX;

/// Start time of a pod that has none: it counts as starting now, the latest of all.
pub const NO_START: i64 = i64::MAX;

/// One bound pod.
#[derive(Clone, Debug)]
pub struct PodRow {
    /// Identity: uid, or namespace/name if there is none.
    pub key: Str,
    /// Name.
    pub name: Str,
    /// Name of its node.
    pub node_name: Str,
    /// Row of its node, `NONE` while that is unknown.
    pub row: u32,
    /// Class of namespace and labels.
    pub class: u32,
    /// Interned requests.
    pub requests: u32,
    /// Interned list of affinity terms.
    pub terms: u32,
    /// Interned list of host ports.
    pub ports: u32,
    /// Interned labels that no other pod has.
    pub own: u32,
    /// Priority.
    pub priority: i32,
    /// Start time in nanoseconds, `NO_START` when unset.
    pub start_ns: i64,
    /// Being deleted.
    pub terminating: bool,
    /// Being deleted because of preemption.
    pub preempted: bool,
    /// Assumed, not yet confirmed by the API.
    pub assumed: bool,
    /// Owned by a DaemonSet: stays when a node is drained.
    pub daemon: bool,
    next_on_node: u32,
    prev_on_node: u32,
    next_in_class: u32,
    prev_in_class: u32,
}

impl PodRow {
    /// A row that is not linked yet.
    #[must_use]
    pub fn new(key: Str, name: Str, node_name: Str, class: u32) -> Self {
        Self {
            key,
            name,
            node_name,
            row: NONE,
            class,
            requests: 0,
            terms: 0,
            ports: 0,
            own: 0,
            priority: 0,
            start_ns: NO_START,
            terminating: false,
            preempted: false,
            assumed: false,
            daemon: false,
            next_on_node: NONE,
            prev_on_node: NONE,
            next_in_class: NONE,
            prev_in_class: NONE,
        }
    }
}

/// Lists stored once, as long as a pod uses them: requests, terms, ports.
#[derive(Clone, Debug)]
pub struct SharedLists<T> {
    ids: HashMap<T, u32>,
    /// Items with the number of pods that use them.
    items: Vec<(T, u32)>,
    free: Vec<u32>,
}

impl<T> Default for SharedLists<T> {
    fn default() -> Self {
        Self { ids: HashMap::new(), items: Vec::new(), free: Vec::new() }
    }
}

impl<T: Clone + Default + Eq + Hash> SharedLists<T> {
    /// Returns the id of an item for one more pod.
    pub fn intern(&mut self, item: &T) -> u32 {
        if let Some(id) = self.ids.get(item) {
            self.items[*id as usize].1 += 1;
            return *id;
        }
        let id = match self.free.pop() {
            Some(id) => {
                self.items[id as usize] = (item.clone(), 1);
                id
            }
            None => {
                self.items.push((item.clone(), 1));
                u32::try_from(self.items.len() - 1).expect("fewer than 2^32 items")
            }
        };
        self.ids.insert(item.clone(), id);
        id
    }

    /// One pod fewer uses the item.
    pub fn release(&mut self, id: u32) {
        let (item, pods) = &mut self.items[id as usize];
        *pods = pods.checked_sub(1).expect("a released list was interned");
        if *pods == 0 {
            self.ids.remove(item);
            *item = T::default();
            self.free.push(id);
        }
    }

    /// The item of an id.
    #[must_use]
    pub fn get(&self, id: u32) -> &T {
        &self.items[id as usize].0
    }

    /// Returns all items that some pod uses.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.ids.keys()
    }

    fn heap_bytes(&self) -> usize {
        self.items.capacity() * (size_of::<T>() + 4) + self.ids.capacity() * (size_of::<T>() + 5)
    }
}

/// All bound pods.
#[derive(Clone, Debug, Default)]
pub struct PodTable {
    rows: Vec<PodRow>,
    free: Vec<u32>,
    by_key: FastMap<Str, u32>,
    on_node: Vec<u32>,
    in_class: Vec<u32>,
    orphans: FastMap<Str, Vec<u32>>,
    /// Distinct requests.
    pub requests: SharedLists<PodRequests>,
    /// Distinct lists of terms.
    pub terms: SharedLists<Vec<TermId>>,
    /// Distinct lists of host ports.
    pub ports: SharedLists<Vec<HostPort>>,
    /// Labels that only one pod has.
    pub own: SharedLists<OwnLabels>,
}

impl PodTable {
    /// Number of pods.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// The pod of that identity.
    #[must_use]
    pub fn find(&self, key: Str) -> Option<PodId> {
        self.by_key.get(&key).map(|id| PodId(*id))
    }

    /// A pod's row.
    #[must_use]
    pub fn get(&self, id: PodId) -> &PodRow {
        &self.rows[id.0 as usize]
    }

    /// A pod's row for flags; links stay as they are.
    pub fn get_mut(&mut self, id: PodId) -> &mut PodRow {
        &mut self.rows[id.0 as usize]
    }

    /// Stores a pod, linked into its class only.
    pub fn insert(&mut self, row: PodRow) -> PodId {
        assert!(row.row == NONE, "a pod is linked to its node by attach");
        let (key, class, node_name) = (row.key, row.class, row.node_name);
        let id = match self.free.pop() {
            Some(id) => {
                self.rows[id as usize] = row;
                id
            }
            None => {
                self.rows.push(row);
                u32::try_from(self.rows.len() - 1).expect("fewer than 2^32 pods")
            }
        };
        let before = self.by_key.insert(key, id);
        assert!(before.is_none(), "a pod is removed before it is stored again");
        self.link_class(PodId(id), class);
        self.orphans.entry(node_name).or_default().push(id);
        PodId(id)
    }

    /// Moves a pod to another class.
    pub fn set_class(&mut self, id: PodId, class: u32) {
        self.unlink_class(id);
        self.link_class(id, class);
    }

    fn link_class(&mut self, id: PodId, class: u32) {
        let head = slot(&mut self.in_class, class);
        let next = std::mem::replace(head, id.0);
        let pod = &mut self.rows[id.0 as usize];
        (pod.class, pod.next_in_class, pod.prev_in_class) = (class, next, NONE);
        if next != NONE {
            self.rows[next as usize].prev_in_class = id.0;
        }
    }

    fn unlink_class(&mut self, id: PodId) {
        let pod = &self.rows[id.0 as usize];
        let (class, next, prev) = (pod.class, pod.next_in_class, pod.prev_in_class);
        if prev == NONE {
            self.in_class[class as usize] = next;
        } else {
            self.rows[prev as usize].next_in_class = next;
        }
        if next != NONE {
            self.rows[next as usize].prev_in_class = prev;
        }
    }

    /// Drops a pod that is on no node.
    pub fn remove(&mut self, id: PodId) {
        self.unlink_class(id);
        let free = PodRow::new(Str(0), Str(0), Str(0), NONE);
        let row = std::mem::replace(&mut self.rows[id.0 as usize], free);
        assert!(row.row == NONE, "a pod is detached before it is removed");
        self.by_key.remove(&row.key);
        self.requests.release(row.requests);
        self.terms.release(row.terms);
        self.ports.release(row.ports);
        self.own.release(row.own);
        if let Some(list) = self.orphans.get_mut(&row.node_name) {
            list.retain(|o| *o != id.0);
            if list.is_empty() {
                self.orphans.remove(&row.node_name);
            }
        }
        self.free.push(id.0);
    }

    /// Links a pod to the row of its node.
    pub fn attach(&mut self, id: PodId, row: u32) {
        let name = self.rows[id.0 as usize].node_name;
        if let Some(list) = self.orphans.get_mut(&name) {
            list.retain(|o| *o != id.0);
            if list.is_empty() {
                self.orphans.remove(&name);
            }
        }
        let head = slot(&mut self.on_node, row);
        let next = std::mem::replace(head, id.0);
        let pod = &mut self.rows[id.0 as usize];
        pod.row = row;
        pod.next_on_node = next;
        pod.prev_on_node = NONE;
        if next != NONE {
            self.rows[next as usize].prev_on_node = id.0;
        }
    }

    /// Unlinks a pod from its node's row; it stays known under the node's name.
    pub fn detach(&mut self, id: PodId) {
        let pod = &mut self.rows[id.0 as usize];
        let (row, next, prev, name) = (pod.row, pod.next_on_node, pod.prev_on_node, pod.node_name);
        pod.row = NONE;
        pod.next_on_node = NONE;
        pod.prev_on_node = NONE;
        if prev == NONE {
            self.on_node[row as usize] = next;
        } else {
            self.rows[prev as usize].next_on_node = next;
        }
        if next != NONE {
            self.rows[next as usize].prev_on_node = prev;
        }
        self.orphans.entry(name).or_default().push(id.0);
    }

    /// Returns the pods of an unknown node of this name.
    #[must_use]
    pub fn orphans(&self, node: Str) -> Vec<PodId> {
        self.orphans.get(&node).into_iter().flatten().map(|id| PodId(*id)).collect()
    }

    /// Pods on a row.
    pub fn on_node(&self, row: u32) -> impl Iterator<Item = PodId> + '_ {
        let head = self.on_node.get(row as usize).copied().unwrap_or(NONE);
        let next = |id: &PodId| Some(self.rows[id.0 as usize].next_on_node);
        std::iter::successors(some(head), move |id| next(id).and_then(some))
    }

    /// Pods of a class.
    pub fn in_class(&self, class: u32) -> impl Iterator<Item = PodId> + '_ {
        let head = self.in_class.get(class as usize).copied().unwrap_or(NONE);
        let next = |id: &PodId| Some(self.rows[id.0 as usize].next_in_class);
        std::iter::successors(some(head), move |id| next(id).and_then(some))
    }

    /// All pods, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = PodId> + '_ {
        let used = self.rows.iter().enumerate().filter(|(_, row)| row.class != NONE);
        used.map(|(at, _)| PodId(at as u32))
    }

    /// Returns true if a class has pods.
    pub(crate) fn has_class(&self, class: u32) -> bool {
        self.in_class.get(class as usize).is_some_and(|head| *head != NONE)
    }

    /// Bytes held on the heap, pools included.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.rows.capacity() * size_of::<PodRow>()
            + self.by_key.capacity() * 9
            + (self.on_node.capacity() + self.in_class.capacity() + self.free.capacity()) * 4
            + self.requests.heap_bytes()
            + self.terms.heap_bytes()
            + self.ports.heap_bytes()
            + self.own.heap_bytes()
    }
}

fn some(id: u32) -> Option<PodId> {
    (id != NONE).then_some(PodId(id))
}

fn slot(heads: &mut Vec<u32>, at: u32) -> &mut u32 {
    if heads.len() <= at as usize {
        heads.resize(at as usize + 1, NONE);
    }
    &mut heads[at as usize]
}
