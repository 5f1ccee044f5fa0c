//! The agent killed at random instants while pods with volumes of every kind come and go.
//!
//! Nothing that a pod wrote is lost, no driver is asked for what must not be, and no folder, mount or
//! loop device is left. The driver takes its time for each call, so that many instants are within one.

use std::thread;
use std::time::Duration;

use pintle_api_types::rng::Rng;
use pintle_csi_driver::faults::{Fault, Rule};
use pintle_testbed::cluster::{AGENT, TestCluster};
use pintle_testbed::{LONG, until};
use xtask::cluster::Cluster;
use xtask::node::Leftovers;

use crate::drivers::Driver;
use crate::fleet::Fleet;
use crate::record::WriteRecord;

/// Kills in a run of all tests, one to three minutes; `PINTLE_KILLS` sets another number.
const KILLS: usize = 12;
/// The pods are always the same; the instants depend on the machine.
const SEED: u64 = 42;
/// Longest time between the start of an agent and its death.
const LIFE_MS: u64 = 2_000;
/// Longest time without an agent.
const GAP_MS: u64 = 400;
/// How long the driver takes for a call.
const CALL_MS: u64 = 60;

fn kills() -> usize {
    std::env::var("PINTLE_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(KILLS)
}

fn seed() -> u64 {
    std::env::var("PINTLE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED)
}

/// Waits until pods have written as often as to every second kill, however slow the machine is.
fn wait_for_writes(record: &WriteRecord, kill: usize) {
    until(LONG, "pods run between the kills", || {
        let writes = record.writes()?.len();
        anyhow::ensure!(writes >= kill / 2, "{writes} writes before kill {kill}");
        Ok(())
    });
}

/// Kills the agent as often as it says, and leaves it running.
fn kill_repeatedly(cluster: &Cluster, record: &WriteRecord, mut rng: Rng, kills: usize) {
    for kill in 1..=kills {
        wait_for_writes(record, kill);
        thread::sleep(Duration::from_millis(rng.range(0, LIFE_MS)));
        cluster.kill(AGENT).expect("the agent dies");
        if rng.chance(25) {
            thread::sleep(Duration::from_millis(rng.range(0, GAP_MS)));
        }
        cluster.start(AGENT).expect("the agent starts");
        if kill % 50 == 0 {
            eprintln!("{kill} of {kills} kills");
        }
    }
}

fn survive(kills: usize) {
    let test = TestCluster::take();
    test.empty_nodes();
    let driver = Driver::start(&test, "killed", false);
    let calls =
        ["NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"];
    driver.fail(&calls.map(|call| Rule::new(call, Fault::Delay { milliseconds: CALL_MS })));
    let mut fleet = Fleet::new(&test, &driver, seed());
    fleet.create_one_of_each();
    let (cluster, rng) = (test.cluster().clone(), Rng::new(fleet.rng().number()));
    let record = fleet.record().clone();
    thread::scope(|scope| {
        let killer = scope.spawn(move || kill_repeatedly(&cluster, &record, rng, kills));
        while !killer.is_finished() {
            fleet.step();
        }
        killer.join().expect("no panic");
    });
    fleet.settle();
    fleet.check_nothing_is_lost();
    // Shims that containerd leaves running after the caller of a stop died are not the agent's.
    let found = fleet.finish_but(Leftovers::forgive_abandoned_sandboxes);
    eprintln!("{kills} kills, {} pods, {found} writes found", fleet.made());
    assert!(found >= kills / 2, "too few pods have run");
    test.cluster().replay_agents().expect("the agent decides again what it decided");
    test.cluster().start(AGENT).expect("the agent starts");
    until(LONG, "the agent runs", || {
        anyhow::ensure!(test.cluster().pid(AGENT).is_some(), "it does not");
        Ok(())
    });
}

#[test]
fn agent_killed_at_random_instants_loses_no_data_and_leaves_no_volume() {
    survive(kills());
}

#[test]
#[ignore = "a quarter of an hour"]
fn agent_killed_five_hundred_times_loses_no_data_and_leaves_no_volume() {
    survive(500);
}
