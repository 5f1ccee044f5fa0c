//! Random worlds: no node or device is overcommitted, and a pod that fits gets a node without
//! waiting for the unschedulable flush.
//!
//! A world has an API server that delivers events late and out of order between kinds, bindings
//! that fail or whose results come late, and pods and nodes that change; in some, schedulers die
//! and others take over. At the end all events are delivered: then no pod that fits may be pending,
//! and no device may be allocated twice.
//!
//! The API server is six maps of objects and not `api/memory`, because nothing here is a request:
//! the world writes all objects itself, and chance decides what becomes of a binding.

mod check;
mod claims;
mod groups;
mod hand_over;
mod panics;
mod room;
mod rules;

use std::collections::{BTreeMap, HashMap, VecDeque};

use pintle_api_types::object::key_of;
use pintle_sched_core::snapshot::objects::OWN_KEYS;
use serde_json::{Value, json};

use super::tests::object;
use super::*;
use crate::diagnosis::Asking;
use crate::pod_fields::PodRef;
use crate::watch_event::{WatchEvent, WatchedKind, WatchedObject};

/// Random operations per world.
const EVENTS: usize = 400;
/// Names of pods.
const PODS: usize = 24;
/// Watched kinds with objects that change.
const KINDS: [WatchedKind; 6] = [
    WatchedKind::Pod,
    WatchedKind::Node,
    WatchedKind::ResourceClaim,
    WatchedKind::ResourceSlice,
    WatchedKind::PodGroup,
    WatchedKind::DeviceTaintRule,
];
/// Seconds that end every backoff.
const LONG: u64 = 60;
/// Seeds of worlds that failed once.
const SEEN: [u64; 8] = [3_017, 24_553, 70_878, 74_370, 602_052, 602_244, 701_910, 806_532];
/// Turns without a change after which a gang has nothing to wait for.
const QUIET: usize = 12;
/// Turns after which all writes finish before the next decision. A group is popped in the order of
/// its first pod, but preempts by the group's priority. A victim that is popped before the group
/// and has devices to reserve may thus get a node and lose it before its binding, again and again.
/// Upstream behaves the same, unless its writes are fast.
// k8s: pkg/scheduler/schedule_one_podgroup.go podGroupInfoForPod, framework/preemption/executor.go PreemptPod
const SLOW: usize = 100;

struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 11).expect("64 bits") % end
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }
}

/// The API server, and its undelivered events.
struct SchedulerWorld {
    chance: Chance,
    nodes: BTreeMap<String, Value>,
    pods: BTreeMap<String, Value>,
    claims: BTreeMap<String, Value>,
    slices: BTreeMap<String, Value>,
    groups: BTreeMap<String, Value>,
    rules: BTreeMap<String, Value>,
    has_groups: bool,
    /// DeviceTaintRules exist.
    has_rules: bool,
    /// CPUs of their node that some devices consume.
    takes: Option<&'static str>,
    /// WorkloadAwarePreemption is on.
    preempts_whole: bool,
    known: groups::KnownPods,
    of_claims: claims::ClaimWrites,
    undelivered: HashMap<WatchedKind, VecDeque<WatchEvent>>,
    binds: Vec<(PodRef, Rc<str>)>,
    answers: Vec<(PodRef, Rc<str>, BindingResult)>,
    /// Statuses not written yet, the latest for each pod.
    statuses: Vec<(PodRef, String)>,
    /// Preemptions under way.
    evictions: Vec<(Vec<PodRef>, PodRef)>,
    evicted: Vec<Evicted>,
    numbered: u64,
    now: u64,
    /// Nodes shrink or are deleted while their pods stay.
    nodes_shrink: bool,
    /// Events delivered to the leader, if others may take over, and the number of takeovers.
    delivered: Vec<WatchEvent>,
    has_successors: bool,
    hand_overs: usize,
    /// The scheduler panics at random; `flawed` are the objects that made it panic.
    has_panics: bool,
    flawed: Vec<(WatchedKind, String)>,
    panicked: usize,
}

fn thing(kind: WatchedKind, value: &Value) -> WatchedObject {
    match kind {
        WatchedKind::Node => WatchedObject::Node(object(value.clone())),
        WatchedKind::ResourceClaim => WatchedObject::ResourceClaim(object(value.clone())),
        WatchedKind::ResourceSlice => WatchedObject::ResourceSlice(object(value.clone())),
        WatchedKind::PodGroup => WatchedObject::PodGroup(object(value.clone())),
        WatchedKind::DeviceTaintRule => WatchedObject::DeviceTaintRule(object(value.clone())),
        _ => WatchedObject::Pod(object(value.clone())),
    }
}

impl SchedulerWorld {
    fn new(seed: u64) -> Self {
        Self {
            chance: Chance(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            nodes: BTreeMap::new(),
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            slices: BTreeMap::new(),
            groups: BTreeMap::new(),
            rules: BTreeMap::new(),
            has_groups: seed.is_multiple_of(3),
            has_rules: seed.is_multiple_of(4),
            takes: seed.is_multiple_of(7).then_some("500m"),
            preempts_whole: seed.is_multiple_of(6),
            known: BTreeMap::new(),
            of_claims: claims::ClaimWrites::default(),
            undelivered: HashMap::new(),
            binds: Vec::new(),
            answers: Vec::new(),
            statuses: Vec::new(),
            evictions: Vec::new(),
            evicted: Vec::new(),
            numbered: 0,
            now: 0,
            nodes_shrink: seed.is_multiple_of(2),
            delivered: Vec::new(),
            has_successors: seed.is_multiple_of(5),
            hand_overs: 0,
            has_panics: seed.is_multiple_of(10),
            flawed: Vec::new(),
            panicked: 0,
        }
    }

    fn queue_event(&mut self, kind: WatchedKind, watch_event: WatchEvent) {
        self.undelivered.entry(kind).or_default().push_back(watch_event);
    }

    fn all(&mut self, kind: WatchedKind) -> &mut BTreeMap<String, Value> {
        match kind {
            WatchedKind::Node => &mut self.nodes,
            WatchedKind::ResourceClaim => &mut self.claims,
            WatchedKind::ResourceSlice => &mut self.slices,
            WatchedKind::PodGroup => &mut self.groups,
            WatchedKind::DeviceTaintRule => &mut self.rules,
            _ => &mut self.pods,
        }
    }

    fn set(&mut self, kind: WatchedKind, name: &str, mut value: Value) {
        self.numbered += 1;
        value["metadata"]["resourceVersion"] = self.numbered.to_string().into();
        self.queue_event(kind, WatchEvent::Set(thing(kind, &value)));
        let all = self.all(kind);
        all.insert(name.to_owned(), value);
    }

    fn delete(&mut self, kind: WatchedKind, name: &str) {
        let all = self.all(kind);
        if let Some(value) = all.remove(name) {
            self.numbered += 1;
            self.queue_event(kind, WatchEvent::Gone(thing(kind, &value)));
        }
    }

    fn any(&mut self, kind: WatchedKind) -> Option<String> {
        let all = self.all(kind);
        let names: Vec<String> = all.keys().cloned().collect();
        (!names.is_empty()).then(|| names[self.chance.below(names.len())].clone())
    }

    fn new_node(&mut self) {
        let name = format!("n{}", self.chance.below(6));
        if self.nodes.contains_key(&name) {
            return;
        }
        let value = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name,
                "zone": self.chance.of(&["a", "b"]), "disk": self.chance.of(&["ssd", "hdd"])}},
            "spec": {"unschedulable": self.chance.one_in(6)},
            "status": {"allocatable": {"cpu": self.chance.of(&["1", "2", "4"]), "memory": "8Gi",
                "pods": self.chance.of(&["2", "5"])}},
        });
        self.set(WatchedKind::Node, &name, value);
        let count = self.chance.below(3);
        self.set(WatchedKind::ResourceSlice, &name, claims::slice(&name, count, self.takes));
    }

    fn change_node(&mut self) {
        let Some(name) = self.any(WatchedKind::Node) else { return };
        let mut node = self.nodes[&name].clone();
        match self.chance.below(if self.nodes_shrink { 5 } else { 4 }) {
            0 => {
                let is = node["spec"]["unschedulable"] == true;
                node["spec"]["unschedulable"] = (!is).into();
            }
            1 => node["metadata"]["labels"]["disk"] = self.chance.of(&["ssd", "hdd"]).into(),
            2 => node["metadata"]["labels"]["zone"] = self.chance.of(&["a", "b", "c"]).into(),
            3 => {
                let taint = json!([{"key": "k", "effect": "NoSchedule"}]);
                let has = node["spec"].get("taints").is_some_and(|taints| !taints.is_null());
                node["spec"]["taints"] = if has { Value::Null } else { taint };
            }
            _ => {
                let cpu = self.chance.of(&["1", "2", "4"]);
                node["status"]["allocatable"]["cpu"] = cpu.into();
            }
        }
        self.set(WatchedKind::Node, &name, node);
    }

    fn new_pod(&mut self) {
        let name = format!("p{}", self.chance.below(PODS));
        if self.pods.contains_key(&name) {
            return;
        }
        self.numbered += 1;
        let app = self.chance.of(&["x", "y", "z"]);
        let mut spec = json!({
            "schedulerName": "default-scheduler",
            "priority": if self.chance.one_in(8) { 10 } else { 0 },
            "containers": [{"name": "c", "resources":
                {"requests": {"cpu": self.chance.of(&["100m", "500m", "1", "3"])}}}],
        });
        let mut selector = json!({"matchLabels": {"app": self.chance.of(&["x", "y", "z"])}});
        if self.chance.one_in(2) {
            // By a label that no other pod has.
            let names = [(); 8].map(|()| format!("p{}", self.chance.below(PODS)));
            selector = json!({"matchExpressions":
                [{"key": OWN_KEYS[0], "operator": "In", "values": names}]});
        }
        let key = self.chance.of(&["zone", "kubernetes.io/hostname"]);
        let term = json!([{"topologyKey": key, "labelSelector": selector}]);
        let required = "requiredDuringSchedulingIgnoredDuringExecution";
        match self.chance.below(11) {
            0 => spec["nodeSelector"] = json!({"disk": self.chance.of(&["ssd", "hdd"])}),
            1 => spec["affinity"] = json!({"podAffinity": {required: term}}),
            2 => spec["affinity"] = json!({"podAntiAffinity": {required: term}}),
            3 => {
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 1, "topologyKey": key,
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}]);
            }
            4 => spec["tolerations"] = json!([{"key": "k", "operator": "Exists"}]),
            5 => {
                let ports = json!([{"containerPort": 80, "hostPort": 80}]);
                spec["containers"][0]["ports"] = ports;
            }
            6 => spec["schedulingGates"] = json!([{"name": "g"}]),
            7..=8 => {
                let claim = format!("c{}", self.chance.below(6));
                spec["resourceClaims"] = json!([{"name": "c", "resourceClaimName": claim}]);
            }
            _ => {}
        }
        self.join(&mut spec);
        if self.takes.is_some() && spec["resourceClaims"].is_array() {
            // Only claims that a container uses consume node resources.
            spec["containers"][0]["resources"]["claims"] = json!([{"name": "c"}]);
        }
        let uid = format!("u{}", self.numbered);
        let value = json!({"metadata": {"name": name, "namespace": "default", "uid": uid,
            "labels": {"app": app, OWN_KEYS[0]: name}}, "spec": spec});
        self.set(WatchedKind::Pod, &name, value);
    }

    fn change_pod(&mut self) {
        let Some(name) = self.any(WatchedKind::Pod) else { return };
        let mut pod = self.pods[&name].clone();
        match self.chance.below(4) {
            0 => pod["metadata"]["labels"]["app"] = self.chance.of(&["x", "y", "z"]).into(),
            1 => pod["spec"]["schedulingGates"] = Value::Null,
            2 => pod["spec"]["tolerations"] = json!([{"key": "k", "operator": "Exists"}]),
            _ => pod["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z"),
        }
        self.set(WatchedKind::Pod, &name, pod);
    }

    /// Makes a random change.
    fn happen(&mut self) {
        if self.change_group() || self.change_rule() {
            return;
        }
        match self.chance.below(20) {
            16..=17 => self.new_claim(),
            18 => self.end_claim(),
            19 => _ = self.control_claims(),
            0 => self.new_node(),
            1 => self.change_node(),
            2..=7 => self.new_pod(),
            8 => self.change_pod(),
            9 => {
                if !self.nodes_shrink || !self.chance.one_in(4) {
                    return;
                }
                if let Some(name) = self.any(WatchedKind::Node) {
                    self.delete(WatchedKind::Node, &name);
                }
            }
            10..=12 => {
                // With WorkloadAwarePreemption nodes should stay full.
                if self.preempts_whole && self.chance.one_in(2) {
                    return;
                }
                if let Some(name) = self.any(WatchedKind::Pod) {
                    self.delete(WatchedKind::Pod, &name);
                }
            }
            _ => self.now += self.chance.below(3) as u64,
        }
    }

    /// Executes a binding in the API server.
    fn bind(&mut self) {
        if self.binds.is_empty() {
            return;
        }
        let at = self.chance.below(self.binds.len());
        let (pod, node) = self.binds.swap_remove(at);
        let fails = self.chance.one_in(10);
        let answer = match self.pods.get(pod.key.name()).cloned() {
            Some(mut value) if value["metadata"]["uid"] == *pod.uid && !fails => {
                assert!(value["spec"]["nodeName"].is_null(), "bound twice: {pod:?}");
                let leaving = value["metadata"].get("deletionTimestamp").is_some();
                if leaving {
                    BindingResult::Failed("it is being deleted".to_owned())
                } else {
                    self.check_devices(&value, &node);
                    value["spec"]["nodeName"] = (*node).into();
                    self.set(WatchedKind::Pod, pod.key.name(), value);
                    BindingResult::Bound
                }
            }
            _ => BindingResult::Failed("no".to_owned()),
        };
        self.answers.push((pod, node, answer));
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Bind { pod, node, .. } => self.binds.push((pod, node)),
            Command::Status { pod, nominated, .. } => {
                let uid = pod.uid().expect("a uid").into();
                let pod = PodRef { key: key_of(&*pod.whole()), uid };
                if let Some(node) = nominated {
                    self.statuses.retain(|(waiting, _)| *waiting != pod);
                    self.statuses.push((pod, node));
                }
            }
            Command::Evict { victims, pod, .. } => self.evictions.push((victims, pod)),
            Command::Consult(_) | Command::BindVolumes { .. } => panic!("no extenders, no volumes"),
            other @ (Command::ReserveDevices { .. }
            | Command::ReleaseDevices { .. }
            | Command::GiveDevicesBack { .. }) => self.take_claims(other),
            Command::RecordEvent(_) | Command::GroupStatus { .. } => {}
        }
    }

    fn find_pod(&self, pod: &PodRef) -> Option<Value> {
        let found = self.pods.get(pod.key.name());
        found.filter(|value| value["metadata"]["uid"] == *pod.uid).cloned()
    }

    /// Writes a status, or deletes a victim.
    fn write(&mut self) -> bool {
        let (statuses, evictions) = (self.statuses.len(), self.evictions.len());
        if statuses + evictions == 0 {
            return self.write_claims();
        }
        if self.chance.one_in(2) && self.write_claims() {
            return true;
        }
        let at = self.chance.below(statuses + evictions);
        if at < statuses {
            let (pod, node) = self.statuses.swap_remove(at);
            if let Some(mut value) = self.find_pod(&pod) {
                value["status"]["nominatedNodeName"] = node.into();
                self.set(WatchedKind::Pod, pod.key.name(), value);
            }
            return true;
        }
        let (victims, pod) = &mut self.evictions[at - statuses];
        let (victim, pod) = (victims.pop(), pod.clone());
        let fails = victim.is_some() && self.chance.one_in(8);
        match victim.filter(|_| !fails) {
            Some(victim) => self.evict(&victim),
            None => {
                self.evictions.swap_remove(at - statuses);
                self.evicted.push(Evicted { pod, all: !fails, took: Duration::ZERO });
            }
        }
        true
    }

    /// Deletes a victim at once, or marks it as terminating first.
    fn evict(&mut self, victim: &PodRef) {
        let Some(mut value) = self.find_pod(victim) else { return };
        let name = victim.key.name();
        if self.chance.one_in(2) {
            return self.delete(WatchedKind::Pod, name);
        }
        let gone = json!({"type": "DisruptionTarget", "status": "True",
            "reason": "PreemptionByScheduler"});
        value["status"]["conditions"] = json!([gone]);
        value["metadata"]["deletionTimestamp"] = json!("2020-01-01T00:00:00Z");
        self.set(WatchedKind::Pod, name, value);
    }

    /// Removes terminating pods from nodes at the end.
    fn finish_victims(&mut self) -> bool {
        let leaving = |(_, pod): &(&String, &Value)| {
            pod["metadata"].get("deletionTimestamp").is_some() && !pod["spec"]["nodeName"].is_null()
        };
        let leaving: Vec<String> =
            self.pods.iter().filter(leaving).map(|(name, _)| name.clone()).collect();
        leaving.iter().for_each(|name| self.delete(WatchedKind::Pod, name));
        !leaving.is_empty()
    }

    /// Delivers an event or the result of a binding.
    fn deliver(&mut self, scheduler: &mut Scheduler) -> bool {
        match self.next_delivered() {
            Some(watch_event) => {
                self.apply(scheduler, watch_event);
                true
            }
            None => self.answer(scheduler),
        }
    }

    /// Returns the next event: the oldest one of a random kind.
    fn next_delivered(&mut self) -> Option<WatchEvent> {
        let kinds = self.kinds();
        let first = self.chance.below(kinds.len());
        let mut turns = kinds.iter().copied().cycle().skip(first).take(kinds.len());
        let watch_event = turns.find_map(|kind| self.undelivered.get_mut(&kind)?.pop_front())?;
        if self.has_successors {
            self.delivered.push(watch_event.clone());
        }
        self.hears(&watch_event);
        Some(watch_event)
    }

    /// Delivers one pending result.
    fn answer(&mut self, scheduler: &mut Scheduler) -> bool {
        if self.chance.one_in(2) && self.answer_claims(scheduler) {
            return true;
        }
        let (now, bindings) = (Duration::from_secs(self.now), self.answers.len());
        if bindings + self.evicted.len() == 0 {
            return self.answer_claims(scheduler);
        }
        let at = self.chance.below(bindings + self.evicted.len());
        if at < bindings {
            let (pod, node, ended) = self.answers.swap_remove(at);
            scheduler.ended(&pod, &node, ended, now);
        } else {
            let evicted = self.evicted.swap_remove(at - bindings);
            scheduler.evicted(&evicted, now);
        }
        true
    }

    /// Makes one decision and executes its commands.
    fn decide(&mut self, scheduler: &mut Scheduler) -> bool {
        let now = Duration::from_secs(self.now);
        scheduler.attend(now);
        scheduler.take_commands().into_iter().for_each(|command| self.carry_out(command));
        let kept = room::kept(scheduler);
        let decided = self.decide_with_panics(scheduler, now);
        let commands = scheduler.take_commands();
        self.no_gang_is_torn(scheduler, &commands);
        self.room_is_made_well(scheduler, &kept, &commands);
        for command in commands {
            self.carry_out(command);
        }
        if scheduler.is_torn() {
            self.read_again(scheduler);
        }
        decided
    }

    fn run(&mut self, scheduler: &mut Scheduler) {
        for _ in 0..EVENTS {
            if self.has_successors && self.chance.one_in(60) {
                self.hand_over(scheduler);
            }
            match self.chance.below(9) {
                0..=2 => self.happen(),
                3..=4 => _ = self.deliver(scheduler),
                5 => self.bind(),
                6 => _ = self.write(),
                7 => _ = self.answer(scheduler),
                _ => _ = self.decide(scheduler),
            }
        }
        if self.has_successors && self.hand_overs == 0 {
            self.hand_over(scheduler);
        }
        self.end_panics();
        self.settle(scheduler);
        if self.end_rules() {
            self.settle(scheduler);
        }
    }

    /// Delivers everything, with no further changes.
    fn settle(&mut self, scheduler: &mut Scheduler) {
        let mut quiet = 0;
        for turn in 0.. {
            let waits = [QueuePlace::Active, QueuePlace::Backoff, QueuePlace::ErrorBackoff];
            let left = waits.map(|place| scheduler.count(place));
            assert!(turn < 200, "it does not come to an end: {left:?}");
            let (mut any, before) = (false, self.numbered);
            while self.deliver(scheduler)
                || turn >= SLOW && self.write()
                || self.decide(scheduler)
                || self.write()
                || self.finish_victims()
                || self.control_claims()
                || !self.binds.is_empty()
            {
                any = true;
                while !self.binds.is_empty() {
                    self.bind();
                }
            }
            let is_over = self.has_groups && self.only_groups_wait(scheduler);
            let changed = self.numbered != before || !is_over;
            quiet = if changed { 0 } else { quiet + 1 };
            if !any && left == [0; 3] || quiet == QUIET {
                return;
            }
            self.now += LONG;
        }
    }
}

/// Runs a world; returns the number of panics.
fn world(seed: u64) -> usize {
    let mut world = SchedulerWorld::new(seed);
    (0..4).for_each(|_| world.new_node());
    world.new_groups();
    let mut scheduler = world.newcomer();
    world.run(&mut scheduler);
    world.check(&scheduler);
    assert_eq!(world.has_successors, world.hand_overs > 0, "seed {seed}");
    world.panicked
}

#[test]
fn seeds_of_past_failures_pass() {
    for seed in SEEN {
        println!("PINTLE_SEED={seed} PINTLE_WORLDS=1");
        world(seed);
    }
}

#[test]
fn no_fitting_pod_waits_and_no_node_is_overcommitted_in_any_world() {
    let number = |name: &str, default| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, worlds) = (number("PINTLE_SEED", 1), number("PINTLE_WORLDS", 500));
    let mut panicked = 0;
    for seed in first..first + worlds {
        println!("PINTLE_SEED={seed} PINTLE_WORLDS=1");
        panicked += world(seed);
    }
    assert!(panicked > 0 || worlds < 100, "schedulers panic in some worlds");
}
