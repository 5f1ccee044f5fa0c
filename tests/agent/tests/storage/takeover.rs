//! Take-over from the kubelet and hand-back to it with volumes of every kind mounted and in use.
//!
//! Containers run on, what pods wrote stays, the next agent has the volumes of the one before it: it
//! gives them to other pods, takes them away, and leaves nothing. The driver refuses a call that
//! differs from the other agent's, so arguments are equal as well.

use std::collections::BTreeSet;

use anyhow::ensure;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_csi_driver::log::{Line, LogFile, Phase};
use pintle_testbed::cluster::TestCluster;
use pintle_testbed::cluster::swap::{End, Swap, ours};
use pintle_testbed::manifest::condition;
use pintle_testbed::{LONG, until};
use serde_json::json;
use xtask::cluster::Agent;
use xtask::node::Leftovers;

use crate::drivers::{DRIVER, Driver, SLEEP};
use crate::fleet::Fleet;
use crate::ground::{Bound, claimant, volume};

/// Pods and volumes are always the same.
const SEED: u64 = 42;

fn lines(driver: &Driver<'_>) -> Vec<Line> {
    LogFile::new(&driver.state).read().expect("a log")
}

/// Fails if a volume was taken away since the log had this many lines.
fn check_nothing_was_taken_away(driver: &Driver<'_>, before: usize) {
    let lines = lines(driver);
    let taken = lines[before..].iter().filter(|line| line.method.starts_with("NodeUn"));
    let taken: Vec<_> = taken.collect();
    assert!(taken.is_empty(), "{taken:#?}");
}

/// The first agent starts pods of each kind; the second takes over, starts others, and ends some; the
/// first one comes back and does the same.
fn hand_over_and_back(first: &Agent, second: &Agent) {
    let test = TestCluster::take();
    test.empty_nodes();
    let swap = Swap::new(&test);
    swap.to(first, End::Stopped);
    let driver = Driver::start(&test, "takeover", false);
    let mut fleet = Fleet::new(&test, &driver, SEED);
    fleet.create_one_of_each();
    fleet.settle();
    for agent in [second, first] {
        let held = swap.running();
        let names = fleet.names();
        let before = lines(&driver).len();
        swap.to(agent, End::Stopped);
        fleet.create_one_of_each();
        fleet.settle();
        let running: BTreeSet<_> = swap.running().into_iter().collect();
        let ended: Vec<_> = held.iter().filter(|held| !running.contains(held)).collect();
        assert!(ended.is_empty(), "{ended:#?}");
        check_nothing_was_taken_away(&driver, before);
        fleet.check_nothing_is_lost();
        // Every second pod of the agent before, so that some volumes go and some stay.
        let ending: Vec<String> = names.into_iter().step_by(2).collect();
        fleet.delete(&ending);
        fleet.settle();
    }
    let found = fleet.finish_but(Leftovers::forgive_abandoned_sandboxes);
    eprintln!("    {found} writes found");
}

#[test]
#[ignore = "minutes: three agents one after the other"]
fn takeover_from_the_kubelet_and_back_keeps_containers_data_and_volumes() {
    hand_over_and_back(&Agent::Kubelet, &ours());
}

#[test]
#[ignore = "minutes: three agents one after the other"]
fn handback_to_the_kubelet_and_back_keeps_containers_data_and_volumes() {
    hand_over_and_back(&ours(), &Agent::Kubelet);
}

/// A call that hangs when the agent is killed.
#[derive(Clone, Copy, Debug)]
struct HalfDone {
    method: &'static str,
    /// Name of the pod, its claim and its volume.
    name: &'static str,
    is_block: bool,
}

const HALF_DONE: [HalfDone; 8] = [
    HalfDone { method: "NodeStageVolume", name: "half-stage", is_block: false },
    HalfDone { method: "NodePublishVolume", name: "half-publish", is_block: false },
    HalfDone { method: "NodeUnpublishVolume", name: "half-unpublish", is_block: false },
    HalfDone { method: "NodeUnstageVolume", name: "half-unstage", is_block: false },
    HalfDone { method: "NodeStageVolume", name: "half-stage-dev", is_block: true },
    HalfDone { method: "NodePublishVolume", name: "half-publish-dev", is_block: true },
    HalfDone { method: "NodeUnpublishVolume", name: "half-unpublish-dev", is_block: true },
    HalfDone { method: "NodeUnstageVolume", name: "half-unstage-dev", is_block: true },
];

impl HalfDone {
    fn ends(self) -> bool {
        self.method.starts_with("NodeUn")
    }

    /// Creates the volume and its claim; returns the handle.
    fn bind(self, driver: &Driver<'_>, bound: &mut Bound<'_>) -> String {
        let bytes = 1 << 20;
        let handle = pintle_csi_driver::create(&driver.state, self.name, bytes, self.is_block);
        let handle = handle.expect("a volume");
        let mode = if self.is_block { "Block" } else { "Filesystem" };
        let source = json!({"driver": DRIVER, "volumeHandle": handle});
        bound.bind(&volume(self.name, json!({"csi": source, "volumeMode": mode})));
        handle
    }

    fn start(self, test: &TestCluster) {
        let mut pod = claimant(self.name, self.name, SLEEP);
        if self.is_block {
            let container = &mut pod["spec"]["containers"][0];
            container["volumeMounts"] = json!([]);
            container["volumeDevices"] = json!([{"name": "data", "devicePath": "/dev/disk"}]);
        }
        test.apply(&pod);
    }
}

/// The first agent is killed in each of its calls; the second one finishes what it began.
fn take_over_half_done(first: &Agent, second: &Agent) {
    let test = TestCluster::take();
    test.empty_nodes();
    let swap = Swap::new(&test);
    swap.to(first, End::Stopped);
    let driver = Driver::start(&test, "half", false);
    let mut bound = Bound::new(&test);
    let handles = HALF_DONE.map(|half| (half, half.bind(&driver, &mut bound)));
    for (half, _) in handles.iter().filter(|(half, _)| half.ends()) {
        half.start(&test);
        test.pod_until(half.name, "is ready", |pod| condition(pod, "Ready"));
    }
    let hang = |(half, handle): &(HalfDone, String)| {
        let rule = Rule::new(half.method, Fault::Hang);
        Rule { volume: handle.clone(), ..rule }
    };
    driver.fail(&handles.iter().map(hang).collect::<Vec<_>>());
    for (half, _) in &handles {
        match half.ends() {
            true => drop(
                test.kubectl(&["delete", "pod", half.name, "--grace-period=1", "--wait=false"])
                    .expect("deleted"),
            ),
            false => half.start(&test),
        }
    }
    let is_called = |half: &HalfDone, handle: &str| {
        lines(&driver).iter().any(|line| {
            line.phase == Phase::Begin && line.method == half.method && line.volume == handle
        })
    };
    until(LONG, "every call hangs", || {
        let missing: Vec<_> =
            handles.iter().filter(|(half, handle)| !is_called(half, handle)).collect();
        ensure!(missing.is_empty(), "{missing:?}");
        Ok(())
    });
    swap.leave(End::Killed);
    driver.fail(&[]);
    swap.enter(second);
    for (half, _) in &handles {
        match half.ends() {
            true => test.pod_gone(half.name),
            false => drop(test.pod_until(half.name, "is ready", |pod| condition(pod, "Ready"))),
        }
    }
    let delete = ["delete", "pods", "--all", "--grace-period=1"];
    test.kubectl(&delete).expect("deleted");
    if *second == Agent::Kubelet {
        // The kubelet does not look at global folders: what no pod has, it has forgotten. It is taken
        // away once our agent is back.
        swap.to(&ours(), End::Stopped);
    }
    driver.nothing_is_left();
    until(LONG, "the driver has nothing in use", || {
        let used = pintle_csi_driver::volumes_in_use(&driver.state)?;
        ensure!(used.is_empty(), "{used:?}");
        Ok(())
    });
    let faults = crate::journal::faults(&lines(&driver));
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
#[ignore = "minutes: the kubelet is slow with calls that hang"]
fn takeover_from_a_kubelet_killed_in_each_call_finishes_its_half_done_calls() {
    take_over_half_done(&Agent::Kubelet, &ours());
}

#[test]
#[ignore = "minutes: the kubelet is slow with calls that hang"]
fn handback_from_an_agent_killed_in_each_call_leaves_nothing_after_its_return() {
    take_over_half_done(&ours(), &Agent::Kubelet);
}
