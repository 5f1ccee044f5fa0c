//! The rate of events and of usage collection, and the effect of observations without readings.

use std::collections::BTreeMap;

use pintle_api_types::ids::Now;
use serde_json::json;

use super::super::observed::{ContainerUse, DiskUse, PodUse, Unread};
use super::super::rank::Evictable;
use super::super::threshold::{Settings, ThresholdLevel};
use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HINT: Duration = Duration::from_millis(250);

fn threshold(level: &str, grace: u64) -> Threshold {
    let level = ThresholdLevel::parse(level).expect("a level");
    let grace = Duration::from_secs(grace);
    Threshold { signal: Signal::MemoryAvailable, level, grace, min_reclaim: None }
}

/// A node with 50 of memory left, and a record of requests and steps.
struct PressedNode {
    evictor: Evictor,
    settings: Settings,
    pods: Vec<(PodUid, k8s_openapi::api::core::v1::Pod)>,
    limited: BTreeSet<PodUid>,
    /// Nothing can be read of the node; nothing of pods.
    is_unread: bool,
    is_blind: bool,
    /// Parts of this pod's usage that cannot be read.
    unread: Unread,
    unread_of: &'static str,
    now: Now,
    looks: Vec<(Duration, Scope)>,
    reclaims: u32,
    told: Vec<Duration>,
    victims: Vec<(Duration, PodUid)>,
}

impl PressedNode {
    fn with(pods: &[&str], threshold: Threshold) -> Self {
        let pod = |name: &&str| {
            let pod = json!({"metadata": {"name": name, "uid": name}, "spec": {"containers": []}});
            (PodUid::from(*name), serde_json::from_value(pod).expect("a pod"))
        };
        let thresholds = vec![threshold];
        Self {
            evictor: Evictor::default(),
            settings: Settings {
                thresholds,
                transition: SECOND * 60,
                local_storage: true,
                ..Settings::default()
            },
            pods: pods.iter().map(pod).collect(),
            limited: BTreeSet::new(),
            is_unread: false,
            is_blind: false,
            unread: Unread::default(),
            unread_of: "hog",
            reclaims: 0,
            now: Now::default(),
            looks: Vec::new(),
            told: Vec::new(),
            victims: Vec::new(),
        }
    }

    fn age(&self) -> Duration {
        self.now.mono.since(Mono::default())
    }

    fn observe(&self, scope: &Scope) -> Observation {
        let reading = ResourceReading { available: 50, capacity: 1_000, at: self.now.wall };
        let working_set = (!self.is_blind).then_some(400);
        let used = |uid: &PodUid| {
            let (is_hog, is_unread) = (uid.as_str() == "hog", uid.as_str() == self.unread_of);
            let unread = if is_unread { self.unread } else { Unread::default() };
            let bytes = if is_hog && unread.is_none() { 900 } else { 1 };
            let logs = Some(DiskUse { bytes, inodes: 1 });
            let container = ContainerUse { logs, ..ContainerUse::default() };
            let containers = BTreeMap::from([("c".to_owned(), container)]);
            let used = PodUse { working_set, containers, unread, ..PodUse::default() };
            (uid.clone(), used)
        };
        let uses = self.pods.iter().map(|(uid, _)| used(uid)).collect();
        let readings = BTreeMap::from([(self.settings.thresholds[0].signal, reading)]);
        Observation {
            readings: if self.is_unread { BTreeMap::new() } else { readings },
            pods: (*scope != Scope::Nobody).then_some(uses),
            ..Observation::default()
        }
    }

    /// Sends and answers every due request.
    fn turn(&mut self) {
        self.evictor.pass(false, self.now.mono);
        let all = || self.pods.iter().map(|(uid, _)| uid.clone()).collect();
        let limited = || self.limited.clone();
        let Some((ticket, scope, _)) = self.evictor.ask(limited, all, self.now.mono) else {
            return;
        };
        let observation = self.observe(&scope);
        self.looks.push((self.age(), scope));
        let pods: Vec<_> = self.pods.iter().map(|(uid, pod)| Evictable { uid, pod }).collect();
        let scene = EvictionSnapshot {
            settings: &self.settings,
            observation: &observation,
            pods: &pods,
            is_early: false,
            now: self.now,
        };
        for step in self.evictor.observe(ticket, &scene) {
            match step {
                EvictionStep::Tell(_) => self.told.push(self.age()),
                EvictionStep::Reclaim { ticket, .. } => {
                    self.reclaims += 1;
                    self.evictor.reclaimed(ticket, &Freed::default(), self.now.mono);
                }
                EvictionStep::Evict(victim) => self.victims.push((self.age(), victim.uid)),
                _ => {}
            }
        }
    }

    /// This many seconds, in each of which the kernel reports four times that memory gets short, or
    /// never.
    fn pass(&mut self, seconds: u32, is_storm: bool) {
        for _ in 0..seconds * 4 {
            if is_storm {
                self.evictor.heed(self.now.mono);
            }
            self.turn();
            self.now = self.now.plus(HINT);
        }
    }

    fn looks_at(&self, what: impl Fn(&Scope) -> bool) -> Vec<Duration> {
        self.looks.iter().filter(|(_, scope)| what(scope)).map(|(at, _)| *at).collect()
    }
}

#[test]
fn shortage_event_is_due_once_per_kubelet_period_and_resource() {
    let at = |seconds| Mono::default().plus(SECOND * seconds);
    for (told, starved, now, expected) in [
        (None, Starved::Memory, 0, true),
        (Some((Starved::Memory, at(5))), Starved::Memory, 5, false),
        (Some((Starved::Memory, at(5))), Starved::Memory, 14, false),
        (Some((Starved::Memory, at(5))), Starved::Memory, 15, true),
        (Some((Starved::Memory, at(5))), Starved::Inodes, 6, true),
    ] {
        assert_eq!(is_event_due(told, starved, at(now)), expected, "{told:?} {starved} {now}");
    }
}

#[test]
fn kernel_notice_storm_emits_one_event_per_period_and_measures_no_pod() {
    let mut node = PressedNode::with(&[], threshold("100", 0));
    node.pass(60, true);
    assert_eq!(node.told, [0, 10, 20, 30, 40, 50].map(|at| SECOND * at));
    assert!(node.looks.len() >= 200, "{}", node.looks.len());
    assert_eq!(node.looks_at(|scope| *scope != Scope::Nobody), [], "no pod may be evicted");
}

#[test]
fn shortage_remaining_after_a_victim_emits_an_event_at_once() {
    let mut node = PressedNode::with(&["a", "b"], threshold("100", 0));
    node.pass(2, true);
    assert_eq!((node.told.len(), node.victims.len()), (1, 1));
    let before = node.looks.len();
    node.pass(2, true);
    assert_eq!(node.looks.len(), before, "while it goes there is nothing to be seen");
    node.evictor.pass(true, node.now.mono);
    node.pass(1, true);
    assert_eq!((node.told.len(), node.victims.len()), (2, 2));
}

#[test]
fn pod_disk_limits_are_checked_each_period_regardless_of_memory_notices() {
    for is_storm in [false, true] {
        let mut node = PressedNode::with(&[], threshold("10", 0));
        node.limited.insert("limited".into());
        node.pass(9, false);
        node.pass(51, is_storm);
        let at = node.looks_at(|scope| matches!(scope, Scope::These(_)));
        assert_eq!(at, [0, 10, 20, 30, 40, 50].map(|at| SECOND * at), "{is_storm}");
        node.limited.clear();
        node.pass(30, is_storm);
        assert_eq!(node.looks_at(|scope| matches!(scope, Scope::These(_))).len(), 6);
    }
}

#[test]
fn failed_observation_does_not_restart_the_grace_period() {
    let mut node = PressedNode::with(&["a"], threshold("100", 30));
    node.pass(15, false);
    node.is_unread = true;
    node.pass(10, false);
    assert!(node.evictor.pressure().memory, "nothing says that it is over");
    node.is_unread = false;
    node.pass(10, false);
    let (at, _) = node.victims.first().expect("a pod is evicted");
    assert!(*at < SECOND * 32, "{at:?}");
}

#[test]
fn victim_selection_waits_for_usage_figures_up_to_a_time_limit() {
    let mut node = PressedNode::with(&["a", "b"], threshold("100", 0));
    node.is_blind = true;
    node.pass(20, true);
    assert_eq!(node.victims, []);
    node.pass(12, true);
    assert_eq!(node.victims.len(), 1, "it may be so on this node for ever");
    let mut node = PressedNode::with(&["a", "b"], threshold("100", 0));
    node.is_blind = true;
    node.pass(3, true);
    node.is_blind = false;
    node.pass(2, true);
    assert_eq!(node.victims.len(), 1);
}

#[test]
fn disk_eviction_waits_for_volume_usage_and_evicts_the_largest_user() {
    let threshold = Threshold { signal: Signal::NodeFsAvailable, ..threshold("10%", 0) };
    let mut node = PressedNode::with(&["a-small", "hog"], threshold);
    node.unread.volumes = true;
    node.pass(60, false);
    assert!(node.victims.is_empty(), "{:?}", node.victims);
    assert!(node.looks_at(|scope| *scope == Scope::All).len() > 40, "it looks on");
    node.unread.volumes = false;
    node.pass(60, false);
    assert_eq!(node.victims[0].1, PodUid::from("hog"));
}

#[test]
fn the_wait_for_volumes_ends_with_a_victim_and_not_with_another_reclaim() {
    let threshold = Threshold { signal: Signal::NodeFsAvailable, ..threshold("10%", 0) };
    let mut node = PressedNode::with(&["a-small", "hog"], threshold);
    node.unread.layers = true;
    node.pass(4, false);
    // Later than pods are ranked, so that one wait is over before the other.
    node.unread = Unread { volumes: true, ..Unread::default() };
    node.pass(123, false);
    assert_eq!((node.reclaims, node.victims.len()), (1, 1), "{:?}", node.victims);
}

#[test]
fn disk_eviction_waits_for_layer_usage_while_disk_reclaim_is_repeated() {
    let threshold = Threshold { signal: Signal::NodeFsAvailable, ..threshold("10%", 0) };
    let mut node = PressedNode::with(&["a-small", "hog"], threshold);
    node.unread.layers = true;
    node.pass(600, false);
    assert!(node.victims.is_empty(), "{:?}", node.victims);
    assert!((4..=5).contains(&node.reclaims), "{}", node.reclaims);
    node.unread.layers = false;
    node.pass(60, false);
    assert_eq!(node.victims[0].1, PodUid::from("hog"));
}

/// A node short of disk on which the hog, of a high priority, uses more than it may.
fn with_limit() -> PressedNode {
    let threshold = Threshold { signal: Signal::NodeFsAvailable, ..threshold("10%", 0) };
    let mut node = PressedNode::with(&["a-small", "hog"], threshold);
    let limits = json!({"limits": {"ephemeral-storage": "500"}});
    let spec = json!({"priority": 1000, "containers": [{"name": "c", "resources": limits}]});
    let hog = json!({"metadata": {"name": "hog", "uid": "hog"}, "spec": spec});
    node.pods[1].1 = serde_json::from_value(hog).expect("a pod");
    node.limited.insert("hog".into());
    node
}

fn goes_for_its_limit(node: &PressedNode) {
    let victims: Vec<_> = node.victims.iter().map(|(_, uid)| uid.as_str()).collect();
    let evictions: Vec<_> = node.evictor.evictions().collect();
    let [eviction] = evictions[..] else { panic!("{victims:?}") };
    assert_eq!((victims, eviction.signal.as_str()), (vec!["hog"], "ephemeralpodfs.limit"));
    assert!(!eviction.message.starts_with(message::OF_NODE), "{}", eviction.message);
    assert_eq!(eviction.rule, EvictionRule::Limit);
}

#[test]
fn pod_over_its_disk_limit_is_evicted_before_reclaim_and_ranking() {
    let mut node = with_limit();
    node.is_unread = true;
    node.pass(2, false);
    assert_eq!(node.looks_at(|scope| matches!(scope, Scope::These(_))), [Duration::ZERO]);
    node.is_unread = false;
    node.pass(2, true);
    assert_eq!(node.looks_at(|scope| *scope == Scope::Nobody).len(), 1, "of the kernel's hint");
    assert_eq!((node.reclaims, node.told.len()), (0, 0));
    goes_for_its_limit(&node);
}

#[test]
fn pod_over_its_disk_limit_is_evicted_while_other_pods_usage_is_unknown() {
    let mut node = with_limit();
    (node.unread, node.unread_of) = (Unread { layers: true, ..Unread::default() }, "a-small");
    let limited = std::mem::take(&mut node.limited);
    let plain = node.pods[0].1.clone();
    let pod = std::mem::replace(&mut node.pods[1].1, plain);
    node.pass(6, false);
    assert!(node.victims.is_empty() && node.reclaims == 1, "it waits for layers");
    (node.limited, node.pods[1].1) = (limited, pod);
    node.pass(2, false);
    goes_for_its_limit(&node);
}
