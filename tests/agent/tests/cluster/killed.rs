//! The agents of two nodes killed at random moments while pods are created and deleted on both.

use std::thread;
use std::time::Duration;

use pintle_testbed::cluster::TestCluster;
use xtask::cluster::node::agent_process;
use xtask::node::Leftovers;

use crate::work::{Bystander, Work, given_seed};

/// How often agents are killed: one, the other, or both.
const ROUNDS: u64 = 8;
/// The events are always the same; their times depend on the machine.
const SEED: u64 = 36;

#[test]
fn repeatedly_killed_agents_of_two_nodes_neither_lose_nor_duplicate_pods() {
    let test = TestCluster::with_nodes(2);
    test.empty_nodes();
    let cluster = test.cluster();
    let bystanders = cluster.nodes().iter().map(|node| {
        let name = format!("bystander-{node}");
        Bystander::start_on(&test, &name, node)
    });
    let bystanders: Vec<_> = bystanders.collect();
    let seed = given_seed().unwrap_or(SEED);
    let mut work = Work::new(&test, seed).with_kills().with_deployment();
    let agents: Vec<_> = cluster.nodes().iter().map(|node| agent_process(node)).collect();
    let mut kills = 0;
    for _ in 0..ROUNDS {
        work.step();
        work.step();
        let killed = match work.rng().range(0, 3) {
            0 => &agents[..1],
            1 => &agents[1..],
            _ => &agents[..],
        };
        for agent in killed {
            // The moment is what is tried: in the middle of a start, of a sync, or long after.
            thread::sleep(Duration::from_millis(work.rng().range(0, 2_500)));
            cluster.kill(agent).expect("the agent dies");
            kills += 1;
        }
        if work.rng().chance(50) {
            work.step();
        }
        for agent in killed {
            cluster.start(agent).expect("the agent starts");
        }
    }
    eprintln!("{kills} agents were killed");
    work.settle();
    for bystander in &bystanders {
        bystander.check(&test);
    }
    // Shims that containerd leaves running after the caller of a stop died are not the agent's.
    work.finish_but(Leftovers::forgive_abandoned_sandboxes);
}
