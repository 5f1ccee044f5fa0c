//! Shortages of the node, over the whole core: the memory and disk that a node has left depend on
//! its pods.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::json;

use crate::eviction::Settings as EvictionSettings;
use crate::eviction::observed::{
    ContainerUse, DiskLayout, DiskUse, Freed, Observation, PodUse, ResourceReading, Scope,
    VolumeUse,
};
use crate::eviction::rank::EvictionRule;
use crate::eviction::signal::Signal;
use crate::eviction::threshold::{STALL_MIN, Threshold, ThresholdLevel};
use crate::worker::testing::{Host, of_folder, sized_pod, small_settings};
use crate::worker::{PodsInput, Settings, WorkerStage};
use pintle_api_types::ids::{PodUid, UnixNanos};

pub(super) const MI: u64 = 1 << 20;
const MEMORY: u64 = 1_000 * MI;
const DISK: u64 = 10_000 * MI;

fn threshold(signal: Signal, level: &str, grace: u64) -> Threshold {
    let level = ThresholdLevel::parse(level).expect("a level");
    Threshold { signal, level, grace: Duration::from_secs(grace), min_reclaim: None }
}

pub(super) fn hard() -> Vec<Threshold> {
    let disk = threshold(Signal::NodeFsAvailable, "10%", 0);
    vec![threshold(Signal::MemoryAvailable, "100Mi", 0), disk]
}

pub(super) fn settings(thresholds: Vec<Threshold>) -> Settings {
    let eviction = EvictionSettings {
        thresholds,
        transition: Duration::from_secs(300),
        grace_seconds_max: 60,
        local_storage: true,
        stall_min: None,
    };
    Settings { eviction, ..small_settings() }
}

/// A node with pods of given usage while they run.
pub(super) struct Scarce {
    pub(super) host: Host,
    pub(super) uses: BTreeMap<PodUid, (u64, u64)>,
    /// Dead containers and unused images hold this, in bytes.
    garbage: u64,
    /// The delay until freed resources show.
    shows_after: Duration,
    /// The freed amount that does not show yet, and when it will.
    unseen: (u64, UnixNanos),
    /// Stall in hundredths of a percent, and page cache that counts as used.
    stall: Option<u16>,
    cache: u64,
    /// Bytes that each pod writes between two observations.
    writes: u64,
    /// Readings are those of this time and no newer.
    stale: Option<UnixNanos>,
    /// Disks hold a pod's data as long as its containers are there, dead or not.
    pub(super) logs_stay: bool,
    /// The steps taken about the shortage, as text.
    evicted: Vec<String>,
    /// The available memory at each eviction.
    free_at: Vec<u64>,
    /// The most victims at once.
    most_at_once: usize,
}

impl Scarce {
    pub(super) fn with(thresholds: Vec<Threshold>) -> Self {
        Self::of(settings(thresholds))
    }

    fn of(settings: Settings) -> Self {
        Self {
            host: Host::with(settings),
            uses: BTreeMap::new(),
            garbage: 0,
            shows_after: Duration::ZERO,
            writes: 0,
            stall: None,
            cache: 0,
            unseen: (0, UnixNanos::NEVER),
            stale: None,
            logs_stay: false,
            evicted: Vec::new(),
            free_at: Vec::new(),
            most_at_once: 0,
        }
    }

    pub(super) fn want(&mut self, pod: Pod, memory_mi: u64, disk_mi: u64) {
        let uid = pintle_api_types::pod::uid(&pod);
        self.uses.insert(uid, (memory_mi * MI, disk_mi * MI));
        self.host.want(pod);
    }

    fn runs(&self, uid: &PodUid) -> bool {
        self.host.records.get(uid).is_some_and(|record| record.any_running())
    }

    fn free_memory(&self) -> u64 {
        let used = self.uses.iter().filter(|(uid, _)| self.runs(uid));
        MEMORY.saturating_sub(used.map(|(_, (memory, _))| memory).sum())
    }

    fn observe(&self, pods: &Scope, disks: bool) -> Observation {
        let now = self.host.now.wall;
        let at = self.stale.unwrap_or(now);
        let has_logs = |uid: &PodUid| {
            let record = self.host.records.get(uid);
            self.logs_stay && record.is_some_and(|record| !record.containers.is_empty())
        };
        let on_disk = self.uses.iter().filter(|(uid, _)| self.runs(uid) || has_logs(uid));
        let on_disk: u64 = on_disk.map(|(_, (_, disk))| disk).sum();
        let unseen = if now < self.unseen.1 { self.unseen.0 } else { 0 };
        let disk = DISK.saturating_sub(on_disk + self.garbage + unseen);
        let readings = [
            (
                Signal::MemoryAvailable,
                ResourceReading {
                    available: self.free_memory().saturating_sub(self.cache),
                    capacity: MEMORY,
                    at,
                },
            ),
            (Signal::NodeFsAvailable, ResourceReading { available: disk, capacity: DISK, at }),
        ];
        let asked = |uid: &&PodUid| match pods {
            Scope::Nobody => false,
            Scope::These(those) => those.contains(*uid),
            Scope::All => true,
        };
        let told = self.uses.keys().filter(asked).filter(|uid| self.runs(uid));
        let told = told.map(|uid| (uid.clone(), self.use_of(uid, disks))).collect();
        Observation {
            at: now,
            readings: readings.into(),
            layout: DiskLayout::default(),
            stall: self.stall,
            cache: BTreeMap::from([(Signal::MemoryAvailable, self.cache)]),
            pods: (*pods != Scope::Nobody).then_some(told),
        }
    }

    fn use_of(&self, uid: &PodUid, disks: bool) -> PodUse {
        let (memory, disk) = self.uses[uid];
        let disk = DiskUse { bytes: disk, inodes: 1 };
        let volume = VolumeUse { disk, in_memory: false };
        let container = ContainerUse { working_set: Some(memory), ..ContainerUse::default() };
        let mut used = PodUse { working_set: Some(memory), ..PodUse::default() };
        used.containers.insert("c".to_owned(), container);
        if disks {
            used.volumes.insert("v".to_owned(), volume);
        }
        used
    }

    /// Answers all requests; true when there was one.
    fn answer(&mut self) -> bool {
        let free = self.free_memory();
        if let Some((ticket, pods, disks)) = self.host.looks.pop() {
            self.uses.values_mut().for_each(|(_, disk)| *disk += self.writes);
            let observation = Box::new(self.observe(&pods, disks));
            self.host.send(PodsInput::Pressure { ticket, observation });
        } else if let Some(ticket) = self.host.reclaims.pop() {
            let bytes = std::mem::take(&mut self.garbage);
            self.unseen = (bytes, self.host.now.wall.plus(self.shows_after));
            let freed = Freed { bytes, images: u32::from(bytes > 0), ..Freed::default() };
            self.host.send(PodsInput::Reclaimed { ticket, freed });
        } else {
            return false;
        }
        let told = |line: &String| {
            ["Evicted", "Attempting", "Reclaim"].iter().any(|word| line.starts_with(word))
        };
        let log = std::mem::take(&mut self.host.log);
        let before = self.victims().len();
        self.evicted.extend(log.into_iter().filter(told));
        let went = self.victims().len() - before;
        self.free_at.extend(std::iter::repeat_n(free, went));
        self.most_at_once = self.most_at_once.max(went);
        true
    }

    /// Everything is answered for this many seconds.
    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let mut turns = 0;
            while self.answer() {
                turns += 1;
                assert!(turns < 50, "it spins: {:?}", self.evicted);
            }
            self.host.wait(Duration::from_secs(1));
        }
    }

    /// Pods that were evicted, in order.
    pub(super) fn victims(&self) -> Vec<&str> {
        self.evicted.iter().filter_map(|line| line.strip_prefix("Evicted ")).collect()
    }
}

pub(super) fn pod(uid: &str, priority: i32) -> Pod {
    let mut pod = sized_pod(uid, "10m", 1, json!({"priority": priority}));
    let spec = pod.spec.get_or_insert_default();
    spec.termination_grace_period_seconds = Some(30);
    let volume = json!([{"name": "v", "emptyDir": {}}]);
    spec.volumes = Some(serde_json::from_value(volume).expect("volumes"));
    pod
}

#[test]
fn no_pod_is_evicted_while_a_reclaim_reports_progress() {
    let mut node = Scarce::with(hard());
    node.want(pod("a", 0), 1, 9_500);
    let seconds = |seconds| Duration::from_secs(seconds);
    while node.host.reclaims.is_empty() {
        node.answer();
        node.host.wait(seconds(1));
    }
    let ticket = node.host.reclaims.pop().expect("one");
    // Looks are answered, the reclaim is not.
    let pass = |node: &mut Scarce, count: u64| {
        for _ in 0..count {
            while !node.host.looks.is_empty() {
                node.answer();
            }
            node.host.wait(seconds(1));
        }
    };
    for _ in 0..5 {
        pass(&mut node, 110);
        node.host.send(PodsInput::Reclaiming { ticket });
    }
    assert_eq!(node.victims(), [""; 0]);
    // Word of another one is none of this one.
    pass(&mut node, 100);
    node.host.send(PodsInput::Reclaiming { ticket: ticket + 1 });
    pass(&mut node, 80);
    assert_eq!(node.victims(), ["a"], "{:?}", node.evicted);
}

#[test]
fn node_is_observed_again_before_a_second_pod_is_evicted() {
    let mut node = Scarce::with(hard());
    for (uid, memory) in [("a", 300), ("b", 350), ("c", 290)] {
        node.want(pod(uid, 0), memory, 1);
    }
    node.pass(60);
    assert_eq!(node.victims(), ["b"]);
    let status = node.host.status("b");
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
    assert_eq!(
        status["message"],
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 60Mi. \
         Container c was using 350Mi, request is 0, has larger consumption of memory. "
    );
    let conditions = status["conditions"].as_array().expect("conditions");
    let target = conditions.iter().find(|c| c["type"] == "DisruptionTarget").expect("a condition");
    assert_eq!(
        (&target["reason"], &target["message"]),
        (&json!("TerminationByKubelet"), &status["message"],)
    );
    assert_eq!(node.evicted[0], "Attempting to reclaim memory");
    for uid in ["a", "c"] {
        assert_eq!(node.host.stage(uid), Some(WorkerStage::Syncing));
    }
    let report = node.host.pods.pressure_report(None, node.host.now);
    assert_eq!((report.evictions.len(), report.evictions[0].of), (1, 3));
    assert_eq!(report.evictions[0].rule, EvictionRule::Usage);
}

#[test]
fn only_critical_and_static_pods_are_spared_from_eviction() {
    let mut node = Scarce::with(hard());
    node.want(pod("critical", 2_000_000_000), 500, 1);
    node.want(of_folder(pod("static", 0), "static"), 450, 1);
    node.want(pod("small", 100), 1, 1);
    node.pass(300);
    assert_eq!(node.victims(), ["small"]);
    assert_eq!(node.host.stage("critical"), Some(WorkerStage::Syncing));
    assert_eq!(node.host.stage("static"), Some(WorkerStage::Syncing));
}

#[test]
fn next_eviction_waits_a_limited_time_for_the_previous_victim() {
    let mut node = Scarce::with(hard());
    for uid in ["a", "b", "c"] {
        node.want(pod(uid, 0), 330, 1);
    }
    node.host.stubborn = true;
    node.pass(35);
    assert_eq!(node.victims().len(), 1, "10 s for its end and 30 s to be cleaned up");
    node.pass(30);
    assert_eq!(node.victims().len(), 2, "it is not waited for for ever");
    node.host.stubborn = false;
    node.pass(120);
    assert_eq!(node.victims().len(), 2);
}

#[test]
fn unused_images_are_removed_first_and_a_pod_is_evicted_if_the_disk_stays_full() {
    for (shows_after, victims) in [(0, 0), (5, 0), (25, 0), (90, 1)] {
        let mut node = Scarce::with(hard());
        node.want(pod("a", 0), 1, 5_000);
        node.want(pod("b", 0), 1, 3_000);
        node.garbage = 1_500 * MI;
        node.shows_after = Duration::from_secs(shows_after);
        node.pass(85);
        assert_eq!(node.victims().len(), victims, "{shows_after}: {:?}", node.evicted);
        let first = &node.evicted[..2];
        assert_eq!(first, ["Attempting to reclaim ephemeral-storage", "Reclaim nodefs.available"]);
    }
}

#[test]
fn pod_with_the_highest_usage_is_evicted_if_no_space_can_be_reclaimed() {
    let mut node = Scarce::with(hard());
    node.want(pod("a", 0), 1, 5_000);
    node.want(pod("b", 0), 1, 4_500);
    node.pass(60);
    assert_eq!(node.victims(), ["a"]);
}

#[test]
fn memory_stall_left_by_a_victim_does_not_evict_a_second_pod_at_once() {
    let mut by_stall = settings(hard());
    by_stall.eviction.stall_min = Some(STALL_MIN);
    let mut node = Scarce::of(by_stall);
    node.want(pod("a", 0), 21, 1);
    node.want(pod("b", 0), 20, 1);
    (node.stall, node.cache) = (Some(6_000), 900 * MI);
    node.pass(12);
    assert_eq!(node.victims(), ["a"]);
    // The kernel's average falls slowly, and the cache stays until its memory is needed.
    node.pass(10);
    assert_eq!(node.victims(), ["a"]);
    node.pass(30);
    assert_eq!(node.victims(), ["a", "b"], "it stalls all the same");
}

#[test]
fn pod_that_keeps_writing_does_not_delay_the_eviction() {
    for garbage in [0, 50] {
        let mut node = Scarce::with(hard());
        node.want(pod("a", 0), 1, 9_100);
        (node.garbage, node.writes) = (garbage * MI, MI);
        node.pass(15);
        assert_eq!(node.victims(), ["a"], "{garbage}: {:?}", node.evicted);
    }
}

#[test]
fn reclaimed_space_is_not_counted_again_after_the_disk_shows_it() {
    let mut node = Scarce::with(hard());
    node.want(pod("a", 0), 1, 8_950);
    // 50 MiB are left, 950 with all of it, and 1,000 are wanted.
    (node.garbage, node.writes) = (900 * MI, 100 * MI);
    node.pass(3);
    assert_eq!(node.victims(), ["a"], "{:?}", node.evicted);
}

#[test]
fn reading_with_the_same_timestamp_evicts_only_once() {
    let mut node = Scarce::with(hard());
    for uid in ["a", "b", "c"] {
        node.want(pod(uid, 0), 330, 1);
    }
    node.stale = Some(node.host.now.wall);
    node.pass(300);
    assert_eq!(node.victims().len(), 1);
}

#[test]
fn soft_eviction_keeps_the_grace_period_and_a_hard_threshold_shortens_it() {
    let mut soft = vec![threshold(Signal::MemoryAvailable, "200Mi", 20)];
    soft.extend(hard());
    let mut node = Scarce::with(soft);
    node.want(pod("a", 0), 400, 1);
    node.want(pod("b", 0), 450, 1);
    node.pass(20);
    assert_eq!(node.victims(), Vec::<&str>::new());
    node.host.stubborn = true;
    node.pass(15);
    assert_eq!(node.victims(), ["b"]);
    assert_eq!(grace(&node, "b"), Some(30), "its own, as that is less than may be given");
    node.uses.insert("a".into(), (500 * MI, MI));
    node.pass(15);
    assert_eq!(grace(&node, "b"), Some(1));
    assert_eq!(node.victims(), ["b"], "no second one");
}

#[test]
fn pod_over_its_empty_dir_limit_is_evicted_without_node_pressure() {
    let mut node = Scarce::with(hard());
    let mut limited = pod("limited", 0);
    let volumes = json!([{"name": "v", "emptyDir": {"sizeLimit": "100Mi"}}]);
    limited.spec.get_or_insert_default().volumes =
        Some(serde_json::from_value(volumes).expect("volumes"));
    node.want(limited, 1, 100);
    node.want(pod("free", 0), 1, 500);
    node.pass(30);
    assert_eq!(node.victims(), Vec::<&str>::new());
    node.uses.insert("limited".into(), (MI, 101 * MI));
    node.pass(30);
    assert_eq!(node.victims(), ["limited"]);
    let status = node.host.status("limited");
    assert_eq!(status["message"], "Usage of EmptyDir volume \"v\" exceeds the limit \"100Mi\". ");
    let conditions = status["conditions"].as_array().expect("conditions");
    assert!(conditions.iter().all(|c| c["type"] != "DisruptionTarget"));
}

#[test]
fn best_effort_pods_are_rejected_until_the_pressure_transition_period_ends() {
    let mut node = Scarce::with(hard());
    node.want(pod("a", 0), 950, 1);
    node.pass(30);
    assert_eq!(node.victims(), ["a"]);
    let refused = |node: &mut Scarce, uid: &str| {
        let mut best_effort = pod(uid, 0);
        best_effort.spec.get_or_insert_default().containers[0].resources = None;
        node.want(best_effort, 1, 1);
        node.host.status(uid)["reason"] == "Evicted"
    };
    assert!(refused(&mut node, "early"));
    let message = node.host.status("early")["message"].clone();
    assert_eq!(message, "Pod was rejected: The node had condition: [MemoryPressure]. ");
    // The Node object's conditions meanwhile change nothing.
    node.host.send(PodsInput::Admission(small_settings().admission));
    assert!(refused(&mut node, "meanwhile"));
    node.want(pod("burstable", 0), 1, 1);
    assert_eq!(node.host.stage("burstable"), Some(WorkerStage::Syncing));
    node.pass(400);
    assert!(!refused(&mut node, "late"));
}

#[test]
fn kernel_memory_events_trigger_one_observation_at_once() {
    let mut node = Scarce::with(hard());
    node.want(pod("a", 0), 100, 1);
    node.pass(1);
    assert!(node.host.looks.is_empty());
    for _ in 0..100 {
        node.host.send(PodsInput::MemoryLow);
    }
    assert_eq!(node.host.looks.len(), 1);
    assert!(node.answer());
    assert!(node.host.looks.is_empty(), "the next one waits for its time");
}

#[test]
fn unanswered_observation_is_requested_again_and_its_late_answer_is_ignored() {
    let mut node = Scarce::with(hard());
    node.pass(1);
    node.host.wait(Duration::from_secs(10));
    let lost = node.host.looks.pop().expect("a look");
    node.host.wait(Duration::from_secs(59));
    assert!(node.host.looks.is_empty());
    node.host.wait(Duration::from_secs(1));
    let again = node.host.looks.last().expect("another one").0;
    // The answer to the first one comes late and is none.
    node.want(pod("a", 0), 950, 1);
    let observation = Box::new(node.observe(&Scope::All, true));
    node.host.send(PodsInput::Pressure { ticket: lost.0, observation });
    assert_eq!(node.host.looks.len(), 1);
    assert_eq!(node.host.looks[0].0, again);
    assert_eq!(node.host.take(), "StartContainer a");
}

#[test]
fn no_observation_is_requested_without_eviction_settings() {
    let mut host = Host::new();
    host.want(pod("a", 0));
    host.send(PodsInput::MemoryLow);
    host.wait(Duration::from_secs(600));
    assert!(host.looks.is_empty() && host.pods.evict_wake().is_none());
}

/// The grace period of a pod that ends.
pub(super) fn grace(node: &Scarce, uid: &str) -> Option<i64> {
    node.host.pods.worker(&uid.into()).and_then(|worker| worker.ending.grace_seconds)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any usage of pods, however it changes: spared pods stay, no pod is evicted while there
    /// is enough, no more are evicted than necessary, and in the end there is enough or no
    /// candidate is left.
    #[test]
    fn evictions_are_never_more_than_necessary_and_never_hit_spared_pods(
        pods in prop::collection::vec((0..400_u64, 0..4_i32), 1..7),
        changes in prop::collection::vec((0..7_usize, 0..400_u64, 1..30_u64), 0..6),
        killed_at in prop::option::of(0..60_u64),
    ) {
        let mut node = Scarce::with(hard());
        let critical = |kind: i32| kind == 3;
        for (index, (memory, kind)) in pods.iter().enumerate() {
            let priority = if critical(*kind) { 2_000_000_000 } else { *kind };
            node.want(pod(&format!("p{index}"), priority), *memory, 1);
        }
        let mut seconds = 0;
        let mut pass = |node: &mut Scarce, count: u64| {
            for _ in 0..count {
                if killed_at == Some(seconds) {
                    restart(node, &pods);
                }
                seconds += 1;
                node.pass(1);
            }
        };
        for (index, memory, wait) in &changes {
            let uid: PodUid = format!("p{index}").as_str().into();
            if let Some(used) = node.uses.get_mut(&uid) {
                used.0 = memory * MI;
            }
            pass(&mut node, *wait);
        }
        pass(&mut node, 120);
        prop_assert!(node.most_at_once <= 1, "{:?}", node.evicted);
        prop_assert!(node.free_at.iter().all(|free| *free < 100 * MI), "{:?}", node.free_at);
        for (index, (_, kind)) in pods.iter().enumerate() {
            let evicted = node.victims().contains(&format!("p{index}").as_str());
            prop_assert!(!(evicted && critical(*kind)));
        }
        let others = |uid: &PodUid| {
            let index: usize = uid.as_str()[1..].parse().expect("an index");
            !critical(pods[index].1)
        };
        let left = node.uses.keys().filter(|uid| others(uid) && node.runs(uid)).count();
        prop_assert!(node.free_memory() >= 100 * MI || left == 0);
        prop_assert!(node.host.pods.next_wake().is_some());
    }
}

/// The agent is killed and starts again; open requests are never answered.
fn restart(node: &mut Scarce, pods: &[(u64, i32)]) {
    node.host.looks.clear();
    node.host.reclaims.clear();
    let ended: Vec<_> = node.victims().into_iter().map(str::to_owned).collect();
    let wanted = pods.iter().enumerate().map(|(index, (_, kind))| {
        let priority = if *kind == 3 { 2_000_000_000 } else { *kind };
        let mut pod = pod(&format!("p{index}"), priority);
        if ended.contains(&format!("p{index}")) {
            pod.status.get_or_insert_default().phase = Some("Failed".to_owned());
        }
        pod
    });
    let wanted = wanted.collect();
    node.host.restart_with(settings(hard()), wanted);
}
