//! Volumes of a driver in a simulated world: two nodes, their agents, one driver, one attacher.
//!
//! `Storage` is the product's own. The driver, the disk, the Node objects and the attach-detach
//! controller are simulated: calls fail, take effect late or without an answer, agents die between
//! any two steps and begin from the records on disk. The driver checks every call (`driver`): no
//! volume on two nodes, no unstaging below a publication, no call for an unattached volume. Once
//! the faults stop every pod has its volumes, and once the pods are gone nothing is left.

mod driver;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pintle_agent_core::storage::Outcome;
use pintle_agent_core::types::PodUid;
use pintle_api_types::rng::Rng;

use driver::Driver;
use node::{Node, Volume};

/// Nodes of a world.
const NODES: usize = 2;
/// Steps with faults.
const STEPS: u32 = 400;
/// Steps after which a world without faults must be at rest.
const SETTLE_MAX: u32 = 4_000;

/// Counts over worlds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub worlds: u64,
    pub calls: u64,
    pub deaths: u64,
    pub deaths_in_call: u64,
    pub uncertain: u64,
    pub shared: u64,
    pub detached: u64,
}

impl Stats {
    /// Adds another world's.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        self.calls += other.calls;
        self.deaths += other.deaths;
        self.deaths_in_call += other.deaths_in_call;
        self.uncertain += other.uncertain;
        self.shared += other.shared;
        self.detached += other.detached;
    }
}

/// A pod of the API server.
#[derive(Clone, Debug)]
struct Pod {
    node: usize,
    volumes: Vec<Volume>,
}

/// A world.
pub struct World {
    rng: Rng,
    driver: Driver,
    nodes: Vec<Node>,
    pods: BTreeMap<PodUid, Pod>,
    made: u32,
    faults: bool,
    stats: Stats,
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            driver: Driver::default(),
            nodes: (0..NODES).map(Node::new).collect(),
            pods: BTreeMap::new(),
            made: 0,
            faults: true,
            stats: Stats { worlds: 1, ..Stats::default() },
        }
    }

    pub fn run(mut self) -> Stats {
        for _ in 0..STEPS {
            self.step();
        }
        self.faults = false;
        self.settle();
        self.check_pods_have_their_volumes();
        for uid in self.pods.keys().cloned().collect::<Vec<_>>() {
            self.delete(&uid);
        }
        self.settle();
        self.check_nothing_is_left();
        self.stats
    }

    fn step(&mut self) {
        match self.rng.range(0, 100) {
            0..8 => self.create(),
            8..14 => self.delete_one(),
            14..17 if self.faults => self.kill_one(),
            17..22 => self.sync_one(),
            22..32 => self.attach_or_detach(),
            32..42 => self.tell_node(),
            42..72 => self.act(),
            72..95 => self.answer(),
            _ => self.pass(),
        }
    }

    /// Nothing is made or deleted any more, and nothing fails: until everything is at rest.
    fn settle(&mut self) {
        self.rest();
        for _ in 0..NODES * 8 {
            self.sync_one();
        }
        self.rest();
    }

    fn rest(&mut self) {
        for _ in 0..SETTLE_MAX {
            match self.rng.range(0, 10) {
                0..3 => self.attach_or_detach(),
                3..5 => self.tell_node(),
                5..7 => self.act(),
                7..9 => self.answer(),
                _ => self.pass(),
            }
        }
    }

    fn create(&mut self) {
        if self.pods.len() > 6 || !self.faults {
            return;
        }
        self.made += 1;
        let uid = PodUid::from(format!("00000000-0000-4000-8000-{:012}", self.made).as_str());
        let count = self.rng.range(1, 3);
        let all = Volume::all(&mut self.rng);
        let volumes = all.into_iter().take(count as usize).collect();
        let node = self.rng.range(0, NODES as u64) as usize;
        let pod = Pod { node, volumes };
        self.nodes[node].want(&uid, &pod.volumes);
        self.pods.insert(uid, pod);
    }

    fn delete_one(&mut self) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        if uids.is_empty() || !self.faults {
            return;
        }
        let uid = self.rng.pick(&uids).clone();
        self.delete(&uid);
    }

    fn delete(&mut self, uid: &PodUid) {
        if let Some(pod) = self.pods.remove(uid) {
            self.nodes[pod.node].release(uid);
        }
    }

    /// A pod's next sync requests its volumes again.
    fn sync_one(&mut self) {
        let uids: Vec<_> = self.pods.keys().cloned().collect();
        if uids.is_empty() {
            return;
        }
        let uid = self.rng.pick(&uids).clone();
        let pod = &self.pods[&uid];
        let (at, volumes) = (pod.node, pod.volumes.clone());
        self.nodes[at].want(&uid, &volumes);
    }

    /// An agent dies; calls that were on their way arrive or do not. The new one begins from the disk.
    fn kill_one(&mut self) {
        let at = self.rng.range(0, NODES as u64) as usize;
        self.stats.deaths += 1;
        let calls = self.nodes[at].die();
        self.stats.deaths_in_call += u64::from(!calls.is_empty());
        for call in calls {
            if self.rng.chance(50) && self.driver.apply(at, &call).is_ok() {
                self.nodes[at].disk.done(&call);
            }
        }
        let wanted = self.pods.iter().filter(|(_, pod)| pod.node == at);
        let wanted: Vec<_> = wanted.map(|(uid, pod)| (uid.clone(), pod.volumes.clone())).collect();
        self.nodes[at].begin();
        for (uid, volumes) in &wanted {
            self.nodes[at].want(uid, volumes);
        }
        self.nodes[at].sources_ready(&wanted.iter().map(|(uid, _)| uid.clone()).collect());
    }

    /// The attach-detach controller takes one step.
    fn attach_or_detach(&mut self) {
        let volumes = Volume::all(&mut self.rng);
        let Some(volume) = volumes.iter().find(|volume| volume.is_attached_first()) else { return };
        let name = volume.name();
        let mut wanting = self.pods.values().filter(|pod| pod.volumes.contains(volume));
        match self.driver.attached_to(&name) {
            Some(at) => {
                let is_wanted = wanting.any(|pod| pod.node == at);
                if !is_wanted && !self.nodes[at].object.in_use().contains(&name) {
                    self.driver.detach(&name, at);
                    self.nodes[at].object.change(|node| {
                        node.attached.remove(&name);
                    });
                    self.stats.detached += 1;
                }
            }
            None => {
                if let Some(pod) = wanting.next() {
                    self.driver.attach(&name, pod.node);
                    self.nodes[pod.node].object.change(|node| {
                        node.attached.insert(name);
                    });
                }
            }
        }
    }

    fn tell_node(&mut self) {
        let at = self.rng.range(0, NODES as u64) as usize;
        match self.rng.chance(50) {
            true => self.nodes[at].write_status(&mut self.rng),
            false => self.nodes[at].read_object(&mut self.rng),
        }
    }

    /// A call reaches the driver.
    fn act(&mut self) {
        let at = self.rng.range(0, NODES as u64) as usize;
        let Some(mut call) = self.nodes[at].take_call(&mut self.rng) else { return };
        self.stats.calls += 1;
        let luck = if self.faults { self.rng.range(0, 100) } else { 99 };
        let outcome: Outcome = match luck {
            0..6 => Err(node::failure(node::NOT_ASKED)),
            6..14 => Err(node::failure(node::FINAL)),
            14..20 => Err(node::failure(node::UNCERTAIN)),
            20..30 => {
                // It is done, and the answer is lost.
                if self.driver.apply(at, &call.call).is_ok() {
                    call.is_done = true;
                }
                Err(node::failure(node::UNCERTAIN))
            }
            _ => self.driver.apply(at, &call.call),
        };
        self.stats.uncertain += u64::from(call.is_done);
        self.nodes[at].disk.called(&call.call, &outcome);
        self.nodes[at].answers.push((call, outcome));
        self.stats.shared += u64::from(self.driver.is_shared());
    }

    fn answer(&mut self) {
        let at = self.rng.range(0, NODES as u64) as usize;
        self.nodes[at].answer(&mut self.rng);
    }

    fn pass(&mut self) {
        let by = Duration::from_millis(self.rng.range(1, 60_000));
        self.nodes.iter_mut().for_each(|node| node.pass(by));
    }

    fn check_pods_have_their_volumes(&self) {
        for (uid, pod) in &self.pods {
            for volume in &pod.volumes {
                let elsewhere = volume.is_attached_first()
                    && self.driver.attached_to(&volume.name()) != Some(pod.node);
                let taken = volume.is_for_one_pod() && !self.driver.has(pod.node, volume, uid);
                let holder = taken
                    && self
                        .pods
                        .keys()
                        .any(|other| other != uid && self.driver.has(pod.node, volume, other));
                assert!(
                    elsewhere || holder || self.driver.has(pod.node, volume, uid),
                    "pod {uid} waits for {volume:?}: {:?}",
                    self.nodes[pod.node].waiting(uid)
                );
            }
        }
    }

    fn check_nothing_is_left(&self) {
        assert_eq!(self.driver.left(), BTreeSet::new());
        for node in &self.nodes {
            assert!(node.is_empty(), "{node:?}");
        }
    }
}
